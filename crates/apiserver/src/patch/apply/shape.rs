//! What a schema says about merging: which values are one thing, and which are made of parts that
//! can have different owners.

use std::sync::OnceLock;

use serde_json::{Value, json};

use super::path::PathElement;
use crate::schema::{ListType, MapType, Schema, SchemaOrBool};

/// The schema of one field, and the real server's for `metadata`, which CRDs leave undeclared.
pub(in crate::patch) fn declared_field<'a>(
    schema: &'a Schema,
    is_root: bool,
    name: &str,
) -> Option<&'a Schema> {
    let field = schema.field(name);
    let is_object_meta = name == "metadata" && (is_root || schema.embedded_resource);
    if is_object_meta && field.is_none_or(|field| field.properties.is_empty()) {
        return Some(object_meta());
    }
    field
}

/// One place in an object: the schema that holds there, or what takes its place where there is none.
#[derive(Clone, Copy, Debug)]
pub(in crate::patch) enum Node<'a> {
    Declared {
        schema: &'a Schema,
        is_root: bool,
        /// `x-kubernetes-preserve-unknown-fields`, here or on an ancestor.
        preserve: bool,
    },
    /// Below preserved unknown fields: objects have parts, lists do not.
    Deduced,
    /// Anything goes, and it is one thing.
    Untyped,
}

/// How a value at a place merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::patch) enum Shape {
    /// One thing with one set of owners: a scalar, an atomic list or object, or a value that is not
    /// of the declared type and so cannot be taken apart.
    Leaf,
    Map,
    List,
}

impl<'a> Node<'a> {
    pub(in crate::patch) fn root(schema: &'a Schema) -> Self {
        Self::Declared {
            schema,
            is_root: true,
            preserve: schema.preserve_unknown_fields,
        }
    }

    /// The shape of a value found here. Null takes the shape that the schema declares.
    pub(in crate::patch) fn shape(&self, value: &Value) -> Shape {
        match (self, value) {
            (Self::Deduced, Value::Object(_)) => Shape::Map,
            (Self::Deduced | Self::Untyped, _) => Shape::Leaf,
            (Self::Declared { schema, .. }, Value::Object(_)) => self.map_shape(schema),
            (Self::Declared { schema, .. }, Value::Array(items)) => {
                let keyed = list_keys(schema).is_some()
                    && items.iter().all(|item| self.element(item).is_ok());
                if keyed { Shape::List } else { Shape::Leaf }
            }
            (Self::Declared { schema, .. }, Value::Null) => match schema.type_name.as_deref() {
                Some("object") => self.map_shape(schema),
                Some("array") if list_keys(schema).is_some() => Shape::List,
                _ => Shape::Leaf,
            },
            (Self::Declared { .. }, Value::Bool(_) | Value::Number(_) | Value::String(_)) => {
                Shape::Leaf
            }
        }
    }

    fn map_shape(&self, schema: &Schema) -> Shape {
        let declared = match schema.type_name.as_deref() {
            Some("object") => true,
            Some(_) => false,
            None => {
                !schema.properties.is_empty()
                    || schema.additional_properties.is_some()
                    || self.preserves()
            }
        };
        if declared && schema.map_type != Some(MapType::Atomic) {
            Shape::Map
        } else {
            Shape::Leaf
        }
    }

    fn preserves(&self) -> bool {
        match self {
            Self::Declared { preserve, .. } => *preserve,
            Self::Deduced => true,
            Self::Untyped => false,
        }
    }

    /// What holds for a field of the object here.
    pub(in crate::patch) fn field(&self, name: &str) -> Node<'a> {
        match self {
            Self::Declared {
                schema,
                is_root,
                preserve,
            } => match declared_field(schema, *is_root, name) {
                Some(field) => Node::Declared {
                    schema: field,
                    is_root: false,
                    preserve: *preserve || field.preserve_unknown_fields,
                },
                None if *preserve => Node::Deduced,
                None => Node::Untyped,
            },
            Self::Deduced => Node::Deduced,
            Self::Untyped => Node::Untyped,
        }
    }

    /// Whether a field may be there at all. An object without any declaration takes everything.
    pub(in crate::patch) fn allows(&self, name: &str) -> bool {
        let Self::Declared {
            schema,
            is_root,
            preserve,
        } = self
        else {
            return true;
        };
        *preserve
            || declared_field(schema, *is_root, name).is_some()
            || match schema.additional_properties.as_deref() {
                Some(SchemaOrBool::Bool(allowed)) => *allowed,
                Some(SchemaOrBool::Schema(_)) => true,
                None => schema.properties.is_empty(),
            }
            || (*is_root && ["apiVersion", "kind", "metadata"].contains(&name))
    }

    /// Whether a field is declared by name, as those of a struct are and the entries of a map are
    /// not. A struct's own presence is implied by its fields', a map entry's is owned by itself.
    pub(in crate::patch) fn names(&self, name: &str) -> bool {
        match self {
            Self::Declared {
                schema, is_root, ..
            } => {
                schema.properties.contains_key(name)
                    || (*is_root && ["apiVersion", "kind", "metadata"].contains(&name))
            }
            Self::Deduced | Self::Untyped => false,
        }
    }

    /// What holds for the elements of the list here.
    pub(in crate::patch) fn items(&self) -> Node<'a> {
        match self {
            Self::Declared {
                schema, preserve, ..
            } => match schema.items.as_deref() {
                Some(items) => Node::Declared {
                    schema: items,
                    is_root: false,
                    preserve: *preserve || items.preserve_unknown_fields,
                },
                None => Node::Untyped,
            },
            Self::Deduced | Self::Untyped => Node::Untyped,
        }
    }

    /// What holds below one step of a path, for sets of paths that come without a value.
    pub(in crate::patch) fn step(&self, element: &PathElement) -> Node<'a> {
        match element {
            PathElement::Field(name) => self.field(name),
            PathElement::Key(_) | PathElement::Value(_) | PathElement::Index(_) => self.items(),
        }
    }

    /// How an element of the list here is told from the others, or why it cannot be.
    pub(in crate::patch) fn element(&self, item: &Value) -> Result<PathElement, String> {
        let Self::Declared { schema, .. } = self else {
            return Err("not an associative list".to_owned());
        };
        match list_keys(schema) {
            Some([]) => match item {
                Value::Object(_) => {
                    Err("associative list without keys has an element that's a map type".to_owned())
                }
                Value::Array(_) => {
                    Err("not supported: associative list with lists as elements".to_owned())
                }
                Value::Null => Err(
                    "associative list without keys has an element that's an explicit null"
                        .to_owned(),
                ),
                scalar => Ok(PathElement::Value(scalar.clone())),
            },
            Some(keys) => keyed_element(schema, keys, item),
            None => Err("not an associative list".to_owned()),
        }
    }

    /// The declared type, for messages about values that are of another. Quantities and
    /// int-or-strings are declared as one type and come as two.
    pub(in crate::patch) fn expected_type(&self) -> Option<&'a str> {
        let Self::Declared { schema, .. } = self else {
            return None;
        };
        let two_types = schema.int_or_string
            || matches!(schema.format.as_deref(), Some("quantity" | "int-or-string"));
        if two_types {
            None
        } else {
            schema.type_name.as_deref()
        }
    }

    /// Whether the list here is keyed or a set, whatever it holds.
    pub(in crate::patch) fn has_elements(&self) -> bool {
        match self {
            Self::Declared { schema, .. } => list_keys(schema).is_some(),
            Self::Deduced | Self::Untyped => false,
        }
    }

    /// Whether nothing here can have an owner of its own, whatever the value is.
    pub(in crate::patch) fn is_atomic(&self) -> bool {
        match self {
            Self::Declared { schema, .. } => match schema.type_name.as_deref() {
                Some("object") => schema.map_type == Some(MapType::Atomic),
                Some("array") => list_keys(schema).is_none(),
                Some(_) => true,
                None => false,
            },
            Self::Deduced | Self::Untyped => false,
        }
    }

    /// Puts in the structs that are always there: the real server's built-in kinds hold them by
    /// value, and OpenAPI says so with a default of `{}`. That they appear is nobody's doing.
    pub(in crate::patch) fn fill_structs(&self, value: &mut Value) {
        let (Self::Declared { schema, .. }, Value::Object(fields)) = (self, value) else {
            return;
        };
        for (name, field) in &schema.properties {
            if field.default.as_ref().is_some_and(is_empty_object) {
                let below = fields
                    .entry(name.as_str())
                    .or_insert_with(|| Value::Object(serde_json::Map::new()));
                self.field(name).fill_structs(below);
            }
        }
    }
}

fn is_empty_object(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty)
}

/// The keys of a list whose elements have owners of their own; empty for a set. Without an explicit
/// list type, a strategic merge strategy says the same.
fn list_keys(schema: &Schema) -> Option<&[String]> {
    if !matches!(schema.type_name.as_deref(), None | Some("array")) {
        return None;
    }
    match schema.list_type {
        Some(ListType::Atomic) => None,
        Some(ListType::Set) => Some(&[]),
        Some(ListType::Map) => Some(&schema.list_map_keys),
        None => {
            let merges = schema
                .patch_strategy
                .as_deref()
                .is_some_and(|declared| declared.split(',').any(|strategy| strategy == "merge"));
            merges.then_some(match &schema.patch_merge_key {
                Some(key) => std::slice::from_ref(key),
                None => &[],
            })
        }
    }
}

fn keyed_element(schema: &Schema, keys: &[String], item: &Value) -> Result<PathElement, String> {
    let fields = match item {
        Value::Object(fields) => fields,
        Value::Null => {
            return Err("associative list with keys may not have a null element".to_owned());
        }
        _ => return Err("associative list with keys may not have non-map elements".to_owned()),
    };
    let mut key = Vec::with_capacity(keys.len());
    for name in keys {
        // A key with a default (a port's protocol) may be left out.
        let default = || {
            let items = schema.items.as_deref()?;
            items.properties.get(name)?.default.as_ref()
        };
        match fields.get(name).or_else(default) {
            Some(value) => key.push((name.clone(), value.clone())),
            None => {
                return Err(format!(
                    "associative list with keys has an element that omits key field {name:?} (and doesn't have default value)"
                ));
            }
        }
    }
    key.sort_by(|(left, _), (right, _)| left.cmp(right));
    Ok(PathElement::Key(key))
}

fn object_meta() -> &'static Schema {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let text = json!({"type": "string"});
        let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
        let schema = json!({"type": "object", "properties": {
            "name": text, "generateName": text, "namespace": text, "selfLink": text, "uid": text,
            "resourceVersion": text, "creationTimestamp": text, "deletionTimestamp": text,
            "generation": {"type": "integer"}, "deletionGracePeriodSeconds": {"type": "integer"},
            "labels": texts, "annotations": texts,
            "finalizers": {
                "type": "array", "items": text, "x-kubernetes-list-type": "set",
                "x-kubernetes-patch-strategy": "merge",
            },
            "ownerReferences": {
                "type": "array",
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"],
                "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "uid",
                "items": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {
                    "apiVersion": text, "kind": text, "name": text, "uid": text,
                    "controller": {"type": "boolean"}, "blockOwnerDeletion": {"type": "boolean"},
                }},
            },
            "managedFields": {
                "type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "x-kubernetes-list-type": "atomic",
            },
        }});
        // A literal of this very file that a test parses; an empty schema would only be less exact.
        serde_json::from_value(schema).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undeclared_metadata_gets_the_real_schema() {
        assert_eq!(object_meta().properties.len(), 15);
        let bare: Schema = serde_json::from_value(json!({"type": "object", "properties": {
            "metadata": {"type": "object"}, "spec": {"type": "object"},
        }}))
        .expect("a schema");
        let metadata = Node::root(&bare).field("metadata");
        assert_eq!(
            metadata.field("finalizers").shape(&json!(["x"])),
            Shape::List
        );
        assert_eq!(metadata.field("labels").shape(&json!({})), Shape::Map);
        let owners = metadata.field("ownerReferences");
        assert_eq!(owners.shape(&json!([{"uid": "1"}])), Shape::List);
        assert_eq!(owners.items().shape(&json!({"uid": "1"})), Shape::Leaf);
        assert!(!Node::root(&bare).allows("status"));
    }
}
