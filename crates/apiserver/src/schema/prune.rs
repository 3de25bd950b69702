//! Dropping the fields that a schema does not know, and saying which they were.

use serde_json::Value;

use super::path::Path;
use super::{DEPTH_MAX, Schema};
use crate::builtin;

/// How many unknown fields are named; the rest are dropped all the same.
const REPORTED_MAX: usize = 64;

/// Drops unknown fields from a whole object and returns their paths in order.
///
/// The object's own `apiVersion` and `kind` are always known, and its `metadata` always has the shape
/// of `ObjectMeta`, whatever the schema says. Where unknown fields are preserved, the known ones are
/// still pruned.
pub fn prune(schema: &Schema, value: &mut Value) -> Vec<String> {
    let mut pruner = Pruner::default();
    pruner.resource(schema, value, &Path::ROOT, 0);
    pruner.dropped
}

/// Drops unknown fields from a value that is no whole object, such as a default.
pub(super) fn prune_part(schema: &Schema, value: &mut Value) -> Vec<String> {
    let mut pruner = Pruner::default();
    pruner.node(schema, value, &Path::ROOT, 0);
    pruner.dropped
}

/// The message of strict field validation, and of the warning without it.
pub fn unknown_field(path: &str) -> String {
    format!("unknown field {path:?}")
}

#[derive(Default)]
struct Pruner {
    dropped: Vec<String>,
}

impl Pruner {
    /// A whole object: the root, or one embedded in another.
    fn resource(&mut self, schema: &Schema, value: &mut Value, path: &Path<'_>, depth: usize) {
        self.fields(schema, value, path, depth, true);
        if let Some(metadata) = value.get_mut("metadata") {
            let object_meta = builtin::object_meta();
            self.node(&object_meta, metadata, &path.field("metadata"), depth + 1);
        }
    }

    fn node(&mut self, schema: &Schema, value: &mut Value, path: &Path<'_>, depth: usize) {
        if depth > DEPTH_MAX {
            return;
        }
        match value {
            Value::Object(_) if schema.embedded_resource => {
                self.resource(schema, value, path, depth);
            }
            Value::Object(_) => self.fields(schema, value, path, depth, false),
            Value::Array(items) => match schema.items.as_deref() {
                Some(item_schema) => {
                    for (index, item) in items.iter_mut().enumerate() {
                        self.node(item_schema, item, &path.index(index), depth + 1);
                    }
                }
                None if schema.keeps_unknown_fields() => {}
                None => {
                    // A list of nobody knows what: its objects are all unknown fields.
                    let nothing = Schema::default();
                    for (index, item) in items.iter_mut().enumerate() {
                        self.node(&nothing, item, &path.index(index), depth + 1);
                    }
                }
            },
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn fields(
        &mut self,
        schema: &Schema,
        value: &mut Value,
        path: &Path<'_>,
        depth: usize,
        is_resource: bool,
    ) {
        let Value::Object(fields) = value else { return };
        let keeps_unknown = schema.keeps_unknown_fields();
        fields.retain(|name, child| {
            if is_resource && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                return true;
            }
            let child_path = path.field(name);
            match schema.field(name) {
                Some(child_schema) => {
                    self.node(child_schema, child, &child_path, depth + 1);
                    true
                }
                None if keeps_unknown => true,
                None => {
                    self.report(&child_path);
                    false
                }
            }
        });
    }

    fn report(&mut self, path: &Path<'_>) {
        if self.dropped.len() < REPORTED_MAX {
            self.dropped.push(path.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::arbitrary::{any_schema, any_value};
    use super::*;

    #[expect(
        clippy::needless_pass_by_value,
        reason = "rows read better as plain json!"
    )]
    fn check(schema: Value, before: Value, after: Value, dropped: &[&str]) {
        let schema = Schema::from_value(schema).unwrap();
        let mut value = before;
        let paths = prune(&schema, &mut value);
        assert_eq!(value, after);
        assert_eq!(paths, dropped);
    }

    #[test]
    fn unknown_fields_go_and_are_named() {
        check(
            json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
                "size": {"type": "string"},
                "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
                "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"b": {"type": "string"}}}}}}}}),
            json!({"apiVersion": "v1", "kind": "X", "top": 1, "metadata": {"name": "n", "nonsense": 1},
                "spec": {"size": "1", "foo": 1, "list": [{"a": "1", "x": 2}, 3], "map": {"k": {"b": "1", "y": 1}}}}),
            json!({"apiVersion": "v1", "kind": "X", "metadata": {"name": "n"},
                "spec": {"size": "1", "list": [{"a": "1"}, 3], "map": {"k": {"b": "1"}}}}),
            &[
                "spec.foo",
                "spec.list[0].x",
                "spec.map.k.y",
                "top",
                "metadata.nonsense",
            ],
        );
    }

    #[test]
    fn preserving_keeps_the_unknown_and_prunes_the_known() {
        check(
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
                "known": {"type": "object", "properties": {"a": {"type": "string"}}}}}),
            json!({"any": {"thing": [1]}, "known": {"a": "1", "b": 2}}),
            json!({"any": {"thing": [1]}, "known": {"a": "1"}}),
            &["known.b"],
        );
    }

    #[test]
    fn embedded_resources_have_their_own_metadata() {
        check(
            json!({"type": "object", "properties": {"template": {"type": "object",
                "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}}}}),
            json!({"template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "z": 1}, "spec": {"q": 1}, "other": 1}}),
            json!({"template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {}}}),
            &["template.other", "template.spec.q", "template.metadata.z"],
        );
    }

    #[test]
    fn managed_fields_survive() {
        let meta = json!({"metadata": {"name": "a", "managedFields": [
            {"manager": "m", "operation": "Apply", "fieldsV1": {"f:spec": {"f:x": {}}}}]}});
        check(json!({"type": "object"}), meta.clone(), meta, &[]);
    }

    proptest! {
        #[test]
        fn pruning_twice_is_pruning_once(schema in any_schema(), mut value in any_value()) {
            prune(&schema, &mut value);
            let once = value.clone();
            prop_assert_eq!(prune(&schema, &mut value), Vec::<String>::new());
            prop_assert_eq!(value, once);
        }
    }
}
