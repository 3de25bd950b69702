//! What an object of a kind may look like: one schema type for built-in kinds and for CRDs.
//!
//! It is OpenAPI v3 as CRDs use it (structural: no `$ref`), with Kubernetes' extensions. Everything
//! that must know a kind's shape walks this one type: validation, pruning, defaulting, strategic
//! merge, server-side apply, and the published OpenAPI documents.

pub mod cel;
pub mod decode;
pub mod default;
mod format;
pub mod path;
mod pattern;
pub mod prune;
pub mod structural;
pub mod validate;

#[cfg(test)]
pub(crate) mod arbitrary;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How deep a schema or a value may nest before it is refused. JSON text is parsed no deeper than
/// this, so only a schema that nests combinators can meet the limit.
pub const DEPTH_MAX: usize = 128;

/// One node of a structural schema. Field names are those of the JSON form.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Schema {
    /// `object`, `array`, `string`, `integer`, `number` or `boolean`; absent for int-or-string and
    /// where anything goes.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(skip_serializing_if = "is_false")]
    pub nullable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub example: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_docs: Option<Value>,

    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: BTreeMap<String, Schema>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub additional_properties: Option<Box<SchemaOrBool>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<Box<Schema>>,

    #[serde(rename = "enum", skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum: Option<f64>,
    #[serde(skip_serializing_if = "is_false")]
    pub exclusive_minimum: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub exclusive_maximum: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multiple_of: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_length: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_length: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_items: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_items: Option<u64>,
    #[serde(skip_serializing_if = "is_false")]
    pub unique_items: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_properties: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_properties: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub all_of: Vec<Schema>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub any_of: Vec<Schema>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub one_of: Vec<Schema>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not: Option<Box<Schema>>,

    #[serde(
        rename = "x-kubernetes-preserve-unknown-fields",
        skip_serializing_if = "is_false"
    )]
    pub preserve_unknown_fields: bool,
    #[serde(
        rename = "x-kubernetes-int-or-string",
        skip_serializing_if = "is_false"
    )]
    pub int_or_string: bool,
    #[serde(
        rename = "x-kubernetes-embedded-resource",
        skip_serializing_if = "is_false"
    )]
    pub embedded_resource: bool,
    /// How server-side apply merges this list.
    #[serde(
        rename = "x-kubernetes-list-type",
        skip_serializing_if = "Option::is_none"
    )]
    pub list_type: Option<ListType>,
    #[serde(
        rename = "x-kubernetes-list-map-keys",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub list_map_keys: Vec<String>,
    #[serde(
        rename = "x-kubernetes-map-type",
        skip_serializing_if = "Option::is_none"
    )]
    pub map_type: Option<MapType>,
    /// CEL rules, evaluated by the validator.
    #[serde(
        rename = "x-kubernetes-validations",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub validations: Vec<Value>,
    /// `merge`, `replace`, `retainKeys` or two of them joined by a comma: strategic merge only.
    #[serde(
        rename = "x-kubernetes-patch-strategy",
        skip_serializing_if = "Option::is_none"
    )]
    pub patch_strategy: Option<String>,
    #[serde(
        rename = "x-kubernetes-patch-merge-key",
        skip_serializing_if = "Option::is_none"
    )]
    pub patch_merge_key: Option<String>,

    /// The named type that this node spells out, for documents that refer to types by their names.
    #[serde(skip)]
    pub definition: Option<Arc<Definition>>,

    /// `pattern`, compiled when it is first needed.
    #[serde(skip)]
    pub(crate) compiled_pattern: Compiled<Result<Regex, String>>,
    /// `validations`, compiled when they are first needed.
    #[serde(skip)]
    pub(crate) compiled_rules: Compiled<cel::RuleSet>,
}

/// A type's own name and description; a field of that type may describe itself differently.
#[derive(Debug, PartialEq)]
pub struct Definition {
    pub name: String,
    pub description: Option<String>,
}

/// Something derived from a schema node once and shared by its clones. It is no part of the node's
/// value: two nodes are equal whether or not either has been compiled.
///
/// The fields it is derived from are public for reading; a schema that has validated an object must
/// not be edited in place.
pub(crate) struct Compiled<T>(OnceLock<Arc<T>>);

impl<T> Compiled<T> {
    fn get_or_compile(&self, compile: impl FnOnce() -> T) -> &T {
        self.0.get_or_init(|| Arc::new(compile()))
    }
}

impl<T> Default for Compiled<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> Clone for Compiled<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> PartialEq for Compiled<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> fmt::Debug for Compiled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Compiled")
    }
}

/// `additionalProperties`: a schema for every value of a map, or whether there may be any.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is always boxed, by the one field that has it"
)]
pub enum SchemaOrBool {
    Bool(bool),
    Schema(Schema),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListType {
    Atomic,
    Set,
    Map,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MapType {
    Atomic,
    Granular,
}

impl Schema {
    /// A schema from its JSON form. Unknown keywords are ignored and null ones count as absent, as
    /// in the real server.
    pub fn from_value(mut value: Value) -> Result<Self, serde_json::Error> {
        drop_null_keywords(&mut value, 0);
        serde_json::from_value(value)
    }

    /// The schema of every value of a map, where there is one.
    pub fn additional(&self) -> Option<&Schema> {
        match self.additional_properties.as_deref() {
            Some(SchemaOrBool::Schema(schema)) => Some(schema),
            Some(SchemaOrBool::Bool(_)) | None => None,
        }
    }

    /// Whether fields that this node does not name are kept.
    pub fn keeps_unknown_fields(&self) -> bool {
        self.preserve_unknown_fields
            || matches!(
                self.additional_properties.as_deref(),
                Some(SchemaOrBool::Bool(true))
            )
    }

    /// The schema of one field of an object: a named property, else what every further one has.
    pub fn field(&self, name: &str) -> Option<&Schema> {
        self.properties.get(name).or_else(|| self.additional())
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

fn drop_null_keywords(value: &mut Value, depth: usize) {
    let Value::Object(schema) = value else { return };
    if depth > DEPTH_MAX {
        return;
    }
    schema.retain(|keyword, value| !value.is_null() || keyword == "default");
    for (keyword, child) in schema {
        match (keyword.as_str(), child) {
            ("properties", Value::Object(properties)) => {
                for property in properties.values_mut() {
                    drop_null_keywords(property, depth + 1);
                }
            }
            ("allOf" | "anyOf" | "oneOf", Value::Array(children)) => {
                for child in children {
                    drop_null_keywords(child, depth + 1);
                }
            }
            ("items" | "additionalProperties" | "not", child) => {
                drop_null_keywords(child, depth + 1);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn null_keywords_are_absent() {
        let schema = Schema::from_value(json!({"type": "object", "required": null, "properties": {
            "a": {"type": "string", "pattern": null, "x-kubernetes-validations": null},
            "l": {"type": "array", "items": {"type": "string", "enum": null}}}}))
        .unwrap();
        let expected = Schema::from_value(json!({"type": "object", "properties": {
            "a": {"type": "string"}, "l": {"type": "array", "items": {"type": "string"}}}}))
        .unwrap();
        assert_eq!(schema, expected);
        assert_eq!(
            serde_json::to_value(&schema).unwrap(),
            json!({"type": "object", "properties": {
                "a": {"type": "string"}, "l": {"type": "array", "items": {"type": "string"}}}})
        );
    }
}
