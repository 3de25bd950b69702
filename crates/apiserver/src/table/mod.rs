//! Server-side tables: what `kubectl get` prints.

mod age;
mod built_in;
mod jsonpath;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::catalog::{Columns, CustomColumn, Resource};
use crate::object;
use crate::status::ApiError;

/// How much of each object comes along with its row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IncludeObject {
    None,
    #[default]
    Metadata,
    Object,
}

impl IncludeObject {
    pub fn parse(text: Option<&str>) -> Result<Self, ApiError> {
        match text {
            None | Some("Metadata") => Ok(Self::Metadata),
            Some("None") => Ok(Self::None),
            Some("Object") => Ok(Self::Object),
            Some(other) => Err(ApiError::bad_request(format!(
                "unrecognized includeObject value: {other:?}"
            ))),
        }
    }
}

/// One column's definition.
struct Column {
    name: String,
    type_name: String,
    format: String,
    description: String,
    priority: i64,
}

/// A `meta.k8s.io/v1` Table of the given objects.
pub fn table(
    resource: &Resource,
    objects: &[Value],
    include: IncludeObject,
    now: Timestamp,
) -> Value {
    let columns = match &resource.columns {
        Columns::BuiltIn => built_in::columns(&resource.kind),
        Columns::Custom(columns) => custom_columns(columns),
    };
    let cells = |object: &Value| match &resource.columns {
        Columns::BuiltIn => built_in::cells(&resource.kind, object, now),
        Columns::Custom(columns) => custom_cells(columns, object, now),
    };
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let mut row = json!({"cells": cells(object)});
            match include {
                IncludeObject::None => row["object"] = Value::Null,
                IncludeObject::Metadata => row["object"] = partial_metadata(object),
                IncludeObject::Object => row["object"] = object.clone(),
            }
            row
        })
        .collect();
    let definitions: Vec<Value> = columns.iter().map(definition).collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {},
        "columnDefinitions": definitions,
        "rows": rows,
    })
}

/// An object cut down to what is true of every kind.
pub fn partial_metadata(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

fn definition(column: &Column) -> Value {
    json!({
        "name": column.name,
        "type": column.type_name,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    })
}

fn name_column() -> Column {
    Column {
        name: "Name".to_owned(),
        type_name: "string".to_owned(),
        format: "name".to_owned(),
        description: "Name of the object, unique for its kind within a namespace".to_owned(),
        priority: 0,
    }
}

fn custom_columns(columns: &[CustomColumn]) -> Vec<Column> {
    let declared = columns.iter().map(|column| Column {
        name: column.name.clone(),
        type_name: column.type_name.clone(),
        format: column.format.clone(),
        description: if column.description.is_empty() {
            format!(
                "Custom resource definition column (in JSONPath format): {}",
                column.json_path
            )
        } else {
            column.description.clone()
        },
        priority: column.priority,
    });
    std::iter::once(name_column()).chain(declared).collect()
}

fn custom_cells(columns: &[CustomColumn], custom: &Value, now: Timestamp) -> Vec<Value> {
    let declared = columns.iter().map(|column| {
        let found = jsonpath::find(custom, &column.json_path);
        custom_cell(column, &found, now)
    });
    std::iter::once(Value::from(object::name(custom)))
        .chain(declared)
        .collect()
}

/// A value that is not of the column's type is left out rather than shown wrongly.
fn custom_cell(column: &CustomColumn, found: &[&Value], now: Timestamp) -> Value {
    let Some(first) = found.first() else {
        return Value::Null;
    };
    match column.type_name.as_str() {
        "integer" => first.as_i64().map_or(Value::Null, Value::from),
        "number" => first.as_f64().map_or(Value::Null, Value::from),
        "boolean" => first.as_bool().map_or(Value::Null, Value::from),
        "date" => first
            .as_str()
            .map_or(Value::Null, |since| age::age(since, now).into()),
        _ => {
            let texts: Vec<String> = found.iter().map(|value| shown(value)).collect();
            texts.join(",").into()
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn cells(
        group: &str,
        version: &str,
        plural: &str,
        custom: &[Value],
        object: Value,
    ) -> Vec<Value> {
        let catalog = Catalog::new(custom);
        let resource = catalog.find(group, version, plural).unwrap();
        let shown = table(
            &resource,
            &[object],
            IncludeObject::None,
            NOW.parse().unwrap(),
        );
        let columns = shown["columnDefinitions"].as_array().unwrap().len();
        let cells = shown["rows"][0]["cells"].as_array().unwrap().clone();
        assert_eq!(cells.len(), columns, "a cell for each column");
        cells
    }

    #[test]
    fn built_in_kinds() {
        let attachment = json!({
            "metadata": {"name": "csi-1", "creationTimestamp": "2026-01-01T00:55:00Z"},
            "spec": {"attacher": "driver.longhorn.io", "nodeName": "n1", "source": {"persistentVolumeName": "pv"}},
            "status": {"attached": true},
        });
        let found = cells("storage.k8s.io", "v1", "volumeattachments", &[], attachment);
        assert_eq!(
            found,
            [
                json!("csi-1"),
                json!("driver.longhorn.io"),
                json!("pv"),
                json!("n1"),
                json!(true),
                json!("5m")
            ]
        );

        let pod = json!({
            "metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:59:30Z"},
            "spec": {"containers": [{}, {}]}, "status": {"phase": "Pending"},
        });
        let found = cells("", "v1", "pods", &[], pod);
        assert_eq!(
            found[..5],
            [
                json!("p"),
                json!("0/2"),
                json!("Pending"),
                json!("0"),
                json!("30s")
            ]
        );
    }

    #[test]
    fn custom_kinds() {
        let crd = json!({"spec": {
            "group": "e.com", "scope": "Cluster", "names": {"plural": "ws", "kind": "W"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}},
                "additionalPrinterColumns": [
                    {"name": "Size", "type": "string", "jsonPath": ".spec.size"},
                    {"name": "Count", "type": "integer", "jsonPath": ".spec.count"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ]}],
        }});
        let object = json!({
            "metadata": {"name": "w", "creationTimestamp": "2025-12-31T01:00:00Z"},
            "spec": {"size": "10", "count": "not a number"},
        });
        let found = cells("e.com", "v1", "ws", &[crd], object);
        assert_eq!(found, [json!("w"), json!("10"), Value::Null, json!("24h")]);
    }
}
