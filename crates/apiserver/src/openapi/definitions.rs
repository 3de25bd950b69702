//! Schemas as definitions of a document.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Dialect, Resource};
use crate::builtin;
use crate::schema::{Schema, SchemaOrBool};

pub(super) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
pub(super) const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
pub(super) const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
pub(super) const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";

/// The definitions of these kinds, of their lists, and of what all kinds share.
pub(super) fn all(resources: &[&Resource], dialect: Dialect) -> Value {
    let mut definitions = Map::new();
    for (name, schema) in shared() {
        definitions.insert(name.to_owned(), written(&schema, dialect, true));
    }
    definitions.insert(
        PATCH.to_owned(),
        json!({
            "description": "Patch is provided to give a concrete name and type to the Kubernetes PATCH request body.",
            "type": "object",
        }),
    );
    for resource in resources {
        let name = resource.definition_name();
        definitions.insert(format!("{name}List"), list(resource, &name, dialect));
        definitions.insert(name, object(resource, dialect));
    }
    Value::Object(definitions)
}

fn shared() -> Vec<(&'static str, Arc<Schema>)> {
    let mut shared = vec![
        (OBJECT_META, builtin::object_meta()),
        (LIST_META, builtin::list_meta()),
    ];
    for (name, kind) in [(STATUS, "Status"), (DELETE_OPTIONS, "DeleteOptions")] {
        shared.extend(builtin::schema("", "v1", kind).map(|schema| (name, schema)));
    }
    shared
}

fn object(resource: &Resource, dialect: Dialect) -> Value {
    let is_builtin = resource.builtin().is_some();
    let mut definition = written(&resource.schema, dialect, is_builtin);
    let described = builtin::object_meta().description.clone();
    if !definition["properties"].is_object() {
        definition["properties"] = json!({});
    }
    let properties = &mut definition["properties"];
    for name in ["apiVersion", "kind"] {
        if !properties[name].is_object() {
            properties[name] = type_field(name);
        }
    }
    let mut metadata = dialect.reference(OBJECT_META);
    metadata["description"] = properties["metadata"]["description"]
        .as_str()
        .map(str::to_owned)
        .or(described)
        .into();
    properties["metadata"] = metadata;
    definition["x-kubernetes-group-version-kind"] = json!([resource.group_version_kind("")]);
    definition
}

fn list(resource: &Resource, name: &str, dialect: Dialect) -> Value {
    let kind = &resource.kind;
    json!({
        "description": format!("{kind}List is a list of {kind}"),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": type_field("apiVersion"),
            "kind": type_field("kind"),
            "metadata": dialect.reference(LIST_META),
            "items": {
                "description": format!("List of {}.", resource.plural),
                "type": "array",
                "items": dialect.reference(name),
            },
        },
        "x-kubernetes-group-version-kind": [resource.group_version_kind("List")],
    })
}

/// The description of a field that every object has, from one that surely has it.
fn type_field(name: &str) -> Value {
    let schema = builtin::schema("", "v1", "Namespace");
    let description = schema
        .as_deref()
        .and_then(|schema| schema.properties.get(name))
        .and_then(|field| field.description.clone());
    json!({ "type": "string", "description": description })
}

/// A schema's JSON, in the terms that the dialect has.
fn written(schema: &Schema, dialect: Dialect, is_builtin: bool) -> Value {
    let adapted = adapt(schema, dialect, is_builtin);
    serde_json::to_value(&adapted).unwrap_or_else(|_| json!({}))
}

fn adapt(schema: &Schema, dialect: Dialect, is_builtin: bool) -> Schema {
    let child = |schema: &Schema| adapt(schema, dialect, is_builtin);
    let each = |schemas: &[Schema]| schemas.iter().map(child).collect();
    let mut adapted = Schema {
        properties: schema
            .properties
            .iter()
            .map(|(name, property)| (name.clone(), child(property)))
            .collect(),
        items: schema.items.as_deref().map(|items| Box::new(child(items))),
        additional_properties: schema.additional_properties.as_deref().map(|additional| {
            Box::new(match additional {
                SchemaOrBool::Bool(any) => SchemaOrBool::Bool(*any),
                SchemaOrBool::Schema(schema) => SchemaOrBool::Schema(child(schema)),
            })
        }),
        all_of: each(&schema.all_of),
        any_of: each(&schema.any_of),
        one_of: each(&schema.one_of),
        not: schema.not.as_deref().map(|not| Box::new(child(not))),
        ..without_children(schema)
    };
    if is_builtin && adapted.int_or_string {
        // Built-in types predate the extension: their numbers-or-text are text with a format.
        let is_quantity = adapted.format.as_deref() == Some("quantity");
        adapted.int_or_string = false;
        adapted.type_name = Some("string".to_owned());
        adapted.format = (!is_quantity).then(|| "int-or-string".to_owned());
    }
    if dialect == Dialect::V2 {
        // Swagger 2 has no words for these, and clients refuse fields that a definition with
        // properties does not name.
        adapted.nullable = false;
        adapted.any_of.clear();
        adapted.one_of.clear();
        adapted.not = None;
        if adapted.preserve_unknown_fields && !is_builtin {
            adapted.properties.clear();
            adapted.required.clear();
        }
    }
    adapted
}

/// Cloning the children only to replace them would square the work with the depth.
fn without_children(schema: &Schema) -> Schema {
    Schema {
        type_name: schema.type_name.clone(),
        format: schema.format.clone(),
        title: schema.title.clone(),
        description: schema.description.clone(),
        nullable: schema.nullable,
        default: schema.default.clone(),
        example: schema.example.clone(),
        external_docs: schema.external_docs.clone(),
        required: schema.required.clone(),
        allowed: schema.allowed.clone(),
        minimum: schema.minimum,
        maximum: schema.maximum,
        exclusive_minimum: schema.exclusive_minimum,
        exclusive_maximum: schema.exclusive_maximum,
        multiple_of: schema.multiple_of,
        min_length: schema.min_length,
        max_length: schema.max_length,
        pattern: schema.pattern.clone(),
        min_items: schema.min_items,
        max_items: schema.max_items,
        unique_items: schema.unique_items,
        min_properties: schema.min_properties,
        max_properties: schema.max_properties,
        preserve_unknown_fields: schema.preserve_unknown_fields,
        int_or_string: schema.int_or_string,
        embedded_resource: schema.embedded_resource,
        list_type: schema.list_type,
        list_map_keys: schema.list_map_keys.clone(),
        map_type: schema.map_type,
        validations: schema.validations.clone(),
        patch_strategy: schema.patch_strategy.clone(),
        patch_merge_key: schema.patch_merge_key.clone(),
        ..Schema::default()
    }
}
