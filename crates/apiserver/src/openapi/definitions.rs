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

/// The definitions of these kinds, of their lists, and of every type in them that has a name.
pub(super) fn all(resources: &[&Resource], dialect: Dialect) -> Value {
    let mut writer = Writer {
        dialect,
        definitions: Map::new(),
    };
    for (name, schema) in shared() {
        let value = writer.inline(&schema, Origin::Builtin);
        writer.definitions.insert(name.to_owned(), value);
    }
    writer.definitions.insert(
        PATCH.to_owned(),
        json!({
            "description": "Patch is provided to give a concrete name and type to the Kubernetes \
                            PATCH request body.",
            "type": "object",
        }),
    );
    for resource in resources {
        let name = resource.definition_name();
        let list = list(resource, &name, dialect);
        writer.definitions.insert(format!("{name}List"), list);
        let object = writer.object(resource);
        writer.definitions.insert(name, object);
    }
    Value::Object(writer.definitions)
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

/// Whose schema it is: the two are published a little differently.
#[derive(Clone, Copy, PartialEq)]
enum Origin {
    Builtin,
    Custom,
}

struct Writer {
    dialect: Dialect,
    definitions: Map<String, Value>,
}

impl Writer {
    /// A kind's own definition, with what every kind has.
    fn object(&mut self, resource: &Resource) -> Value {
        let origin = match resource.builtin() {
            Some(_) => Origin::Builtin,
            None => Origin::Custom,
        };
        let mut definition = self.inline(&resource.schema, origin);
        definition["x-kubernetes-group-version-kind"] = json!([resource.group_version_kind("")]);
        let keeps_unknown = resource.schema.preserve_unknown_fields && origin == Origin::Custom;
        if keeps_unknown && self.dialect == Dialect::V2 {
            // With the fields of every kind alone, its clients would refuse all others.
            return definition;
        }
        if !definition["properties"].is_object() {
            definition["properties"] = json!({});
        }
        let properties = &mut definition["properties"];
        for name in ["apiVersion", "kind"] {
            if !properties[name].is_object() {
                properties[name] = type_field(name);
            }
        }
        if origin == Origin::Custom {
            let description = "Standard object's metadata.";
            properties["metadata"] = self
                .dialect
                .described_reference(OBJECT_META, Some(description));
        }
        definition
    }

    /// A part of a definition: a reference if its type has a name.
    fn part(&mut self, schema: &Schema, origin: Origin) -> Value {
        let Some(definition) = &schema.definition else {
            return self.inline(schema, origin);
        };
        if !self.definitions.contains_key(&definition.name) {
            // Entered before it is written, since it may contain itself.
            self.definitions
                .insert(definition.name.clone(), Value::Null);
            let mut value = self.inline(schema, origin);
            value["description"] = json!(definition.description);
            self.definitions.insert(definition.name.clone(), value);
        }
        let own = schema.description.as_deref();
        let own = own.filter(|own| definition.description.as_deref() != Some(*own));
        self.dialect.described_reference(&definition.name, own)
    }

    /// A schema's JSON, in the terms that the dialect has.
    fn inline(&mut self, schema: &Schema, origin: Origin) -> Value {
        let node = adapt(schema, self.dialect, origin);
        let mut value = serde_json::to_value(&node).unwrap_or_else(|_| json!({}));
        // To clients of Swagger 2, a definition with properties has no others.
        let keeps_unknown = schema.preserve_unknown_fields && origin == Origin::Custom;
        let closed = self.dialect == Dialect::V2 && keeps_unknown;
        if !schema.properties.is_empty() && !closed {
            let properties: Map<String, Value> = schema
                .properties
                .iter()
                .map(|(name, property)| (name.clone(), self.part(property, origin)))
                .collect();
            value["properties"] = Value::Object(properties);
        }
        if let Some(items) = schema.items.as_deref() {
            value["items"] = self.part(items, origin);
        }
        match schema.additional_properties.as_deref() {
            Some(SchemaOrBool::Schema(additional)) => {
                value["additionalProperties"] = self.part(additional, origin);
            }
            Some(SchemaOrBool::Bool(any)) => value["additionalProperties"] = json!(any),
            None => {}
        }
        let mut alternatives = vec![("allOf", &schema.all_of)];
        // Swagger 2 has no words for the others.
        if self.dialect == Dialect::V3 {
            alternatives.extend([("anyOf", &schema.any_of), ("oneOf", &schema.one_of)]);
            if let Some(not) = schema.not.as_deref() {
                value["not"] = self.inline(not, origin);
            }
        }
        for (keyword, schemas) in alternatives {
            if !schemas.is_empty() {
                value[keyword] = schemas
                    .iter()
                    .map(|each| self.inline(each, origin))
                    .collect();
            }
        }
        value
    }
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

/// The node by itself, without what is in it.
fn adapt(schema: &Schema, dialect: Dialect, origin: Origin) -> Schema {
    let mut node = without_children(schema);
    if origin == Origin::Builtin {
        node.preserve_unknown_fields = false;
        if node.int_or_string {
            // Built-in types predate the extension: their numbers-or-text are text with a format.
            let is_quantity = node.format.as_deref() == Some("quantity");
            node.int_or_string = false;
            node.type_name = Some("string".to_owned());
            node.format = (!is_quantity).then(|| "int-or-string".to_owned());
        }
    }
    if dialect == Dialect::V2 {
        node.nullable = false;
        if node.preserve_unknown_fields {
            node.required.clear();
        }
    }
    node
}

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
