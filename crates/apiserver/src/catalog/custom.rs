//! Resources that a `CustomResourceDefinition` adds.

use std::sync::Arc;

use serde_json::Value;

use super::{Columns, CustomColumn, Origin, Resource, ScalePaths, Subresources, Traits};
use crate::builtin;
use crate::schema::Schema;

/// The served resources of one CRD object: one for each served version.
pub fn resources(definition: &Value) -> Vec<Resource> {
    let versions = definition["spec"]["versions"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    versions
        .iter()
        .filter(|version| version["served"].as_bool().unwrap_or(false))
        .filter_map(|version| resource(definition, version))
        .collect()
}

/// Every name under which a CRD's kind may be written, to find clashes.
pub fn accepted_names(definition: &Value) -> Value {
    let names = &definition["spec"]["names"];
    let kind = text(&names["kind"]);
    let mut accepted = names.clone();
    if accepted["singular"].as_str().unwrap_or_default().is_empty() {
        accepted["singular"] = kind.to_lowercase().into();
    }
    if accepted["listKind"].as_str().unwrap_or_default().is_empty() {
        accepted["listKind"] = format!("{kind}List").into();
    }
    accepted
}

fn resource(definition: &Value, version: &Value) -> Option<Resource> {
    let spec = &definition["spec"];
    let names = accepted_names(definition);
    let storage_version = spec["versions"]
        .as_array()?
        .iter()
        .find(|version| version["storage"].as_bool().unwrap_or(false))
        .map(|version| text(&version["name"]))?;
    let mut schema = Schema::from_value(version["schema"]["openAPIV3Schema"].clone()).ok()?;
    // Whatever a CRD says of metadata, an object's metadata is the server's to define.
    schema.properties.insert(
        "metadata".to_owned(),
        builtin::object_meta().as_ref().clone(),
    );
    let namespaced = text(&spec["scope"]) == "Namespaced";
    let mut selectable_fields = vec!["metadata.name".to_owned()];
    if namespaced {
        selectable_fields.push("metadata.namespace".to_owned());
    }
    for field in version["selectableFields"].as_array().into_iter().flatten() {
        selectable_fields.push(text(&field["jsonPath"]).trim_start_matches('.').to_owned());
    }
    let group = text(&spec["group"]);
    Some(Resource {
        version: text(&version["name"]),
        kind: text(&names["kind"]),
        list_kind: text(&names["listKind"]),
        plural: text(&names["plural"]),
        singular: text(&names["singular"]),
        short_names: texts(&names["shortNames"]),
        categories: texts(&names["categories"]),
        namespaced,
        schema: Arc::new(schema),
        subresources: Subresources {
            status: !version["subresources"]["status"].is_null(),
            scale: scale(&version["subresources"]["scale"]),
            ..Subresources::default()
        },
        selectable_fields,
        columns: Columns::Custom(columns(version)),
        traits: Traits {
            counts_generation: true,
            update_needs_version: true,
            ..Traits::default()
        },
        storage_group: group.clone(),
        storage_version,
        group,
        origin: Origin::Custom,
    })
}

fn scale(scale: &Value) -> Option<ScalePaths> {
    let path = |value: &Value| -> Option<Vec<String>> {
        let fields = value.as_str()?.strip_prefix('.')?;
        Some(fields.split('.').map(str::to_owned).collect())
    };
    Some(ScalePaths {
        spec_replicas: path(&scale["specReplicasPath"])?,
        status_replicas: path(&scale["statusReplicasPath"])?,
        label_selector: path(&scale["labelSelectorPath"]),
    })
}

/// The declared columns, or the age alone, which is what the real server shows then.
fn columns(version: &Value) -> Vec<CustomColumn> {
    let declared = version["additionalPrinterColumns"].as_array();
    let Some(declared) = declared.filter(|columns| !columns.is_empty()) else {
        return vec![CustomColumn {
            name: "Age".to_owned(),
            type_name: "date".to_owned(),
            format: String::new(),
            description: "When the object was created".to_owned(),
            priority: 0,
            json_path: ".metadata.creationTimestamp".to_owned(),
        }];
    };
    declared
        .iter()
        .map(|column| CustomColumn {
            name: text(&column["name"]),
            type_name: text(&column["type"]),
            format: text(&column["format"]),
            description: text(&column["description"]),
            priority: column["priority"].as_i64().unwrap_or(0),
            json_path: text(&column["jsonPath"]),
        })
        .collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(text).collect()
}
