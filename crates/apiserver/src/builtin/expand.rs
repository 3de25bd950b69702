//! From `k8s-openapi`'s JSON Schema with references to one self-contained [`Schema`].

use std::sync::Arc;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::merge;
use crate::schema::{Definition, Schema, SchemaOrBool};

const REFERENCE_PREFIX: &str = "#/$defs/";

/// Types whose JSON may be anything, though their schema says `object` or lists alternatives.
const OPAQUE: [&str; 6] = [
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1",
    "io.k8s.apimachinery.pkg.runtime.RawExtension",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray",
];

const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";

/// The schema of `T` with every reference replaced by what it refers to.
pub(super) fn schema_of<T: JsonSchema>() -> Schema {
    let generator = SchemaGenerator::new(SchemaSettings::draft2020_12());
    let mut root = generator.into_root_schema_for::<T>().to_value();
    let definitions = match root.get_mut("$defs").map(Value::take) {
        Some(Value::Object(definitions)) => definitions,
        Some(_) | None => Map::new(),
    };
    let mut expander = Expander {
        definitions: &definitions,
        open: vec![T::schema_name().into_owned()],
    };
    let mut schema = expander.node(&root);
    merge::annotate(&T::schema_name(), &mut schema);
    schema
}

struct Expander<'a> {
    definitions: &'a Map<String, Value>,
    /// The definitions being expanded, outermost first: meeting one again is recursion.
    open: Vec<String>,
}

impl Expander<'_> {
    fn node(&mut self, node: &Value) -> Schema {
        let name = node
            .get("$ref")
            .and_then(Value::as_str)
            .and_then(|reference| reference.strip_prefix(REFERENCE_PREFIX));
        let mut schema = match name {
            Some(name) => self.reference(name),
            None => self.plain(node),
        };
        // What a field says of itself is nearer than what its type says.
        if name.is_some()
            && let Some(description) = node.get("description").and_then(Value::as_str)
        {
            schema.description = Some(description.to_owned());
        }
        schema
    }

    fn reference(&mut self, name: &str) -> Schema {
        let recursive = self.open.iter().any(|open| open == name);
        let Some(definition) = self.definitions.get(name) else {
            return opaque(None);
        };
        let mut schema = if recursive || OPAQUE.contains(&name) {
            opaque(definition.get("description").and_then(Value::as_str))
        } else {
            self.open.push(name.to_owned());
            let schema = self.plain(definition);
            self.open.pop();
            schema
        };
        if name == QUANTITY {
            schema.format = Some("quantity".to_owned());
        }
        merge::annotate(name, &mut schema);
        schema.definition = Some(Arc::new(Definition {
            name: name.to_owned(),
            description: schema.description.clone(),
        }));
        schema
    }

    fn plain(&mut self, node: &Value) -> Schema {
        let mut schema = Schema {
            type_name: text(node, "type"),
            format: text(node, "format"),
            description: text(node, "description"),
            int_or_string: node.get("x-kubernetes-int-or-string") == Some(&json!(true)),
            ..Schema::default()
        };
        if let Some(Value::Object(properties)) = node.get("properties") {
            schema.properties = properties
                .iter()
                .map(|(name, property)| (name.clone(), self.node(property)))
                .collect();
        }
        if let Some(Value::Array(required)) = node.get("required") {
            let names = required.iter().filter_map(Value::as_str);
            schema.required = names.map(str::to_owned).collect();
        }
        if let Some(additional) = node.get("additionalProperties") {
            schema.additional_properties = Some(Box::new(match additional {
                Value::Bool(any) => SchemaOrBool::Bool(*any),
                other => SchemaOrBool::Schema(self.node(other)),
            }));
        }
        if let Some(items) = node.get("items") {
            schema.items = Some(Box::new(self.node(items)));
        }
        let says_nothing = match schema.type_name.as_deref() {
            Some("object") => {
                schema.properties.is_empty() && schema.additional_properties.is_none()
            }
            None => !schema.int_or_string,
            Some(_) => false,
        };
        schema.preserve_unknown_fields = says_nothing;
        schema
    }
}

fn opaque(description: Option<&str>) -> Schema {
    Schema {
        description: description.map(str::to_owned),
        preserve_unknown_fields: true,
        ..Schema::default()
    }
}

fn text(node: &Value, keyword: &str) -> Option<String> {
    node.get(keyword).and_then(Value::as_str).map(str::to_owned)
}

/// Every definition that the built-in kinds use, with the names of its fields.
#[cfg(test)]
pub(super) fn definition_fields() -> Vec<(String, Vec<String>)> {
    use k8s_openapi::api::{apps::v1 as apps, core::v1 as core, storage::v1 as storage};
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;

    let mut generator = SchemaGenerator::new(SchemaSettings::draft2020_12());
    generator.subschema_for::<core::Pod>();
    generator.subschema_for::<core::Node>();
    generator.subschema_for::<core::Namespace>();
    generator.subschema_for::<core::PersistentVolume>();
    generator.subschema_for::<core::PersistentVolumeClaim>();
    generator.subschema_for::<core::ServiceAccount>();
    generator.subschema_for::<core::Event>();
    generator.subschema_for::<apps::StatefulSet>();
    generator.subschema_for::<storage::StorageClass>();
    generator.subschema_for::<storage::VolumeAttachment>();
    generator.subschema_for::<storage::CSINode>();
    generator.subschema_for::<storage::CSIDriver>();
    generator.subschema_for::<meta::DeleteOptions>();
    generator.subschema_for::<meta::Status>();
    generator.subschema_for::<apiextensions::CustomResourceDefinition>();
    let definitions = generator.take_definitions(false);
    definitions
        .iter()
        .map(|(name, definition)| {
            let properties = definition.get("properties").and_then(Value::as_object);
            let fields = properties.map(|fields| fields.keys().cloned().collect());
            (name.clone(), fields.unwrap_or_default())
        })
        .collect()
}
