//! Filling in the defaults that a schema declares.

use serde_json::{Map, Value};

use super::{DEPTH_MAX, Schema};

/// Fills in defaults, top down, so that a default object gets its own fields' defaults too.
///
/// A null where null is not allowed counts as absent: it takes the default if there is one, and goes
/// if there is none. Nulls in lists without a default stay for validation to complain about, since
/// dropping them would move the other items.
pub fn apply_defaults(schema: &Schema, value: &mut Value) {
    node(schema, value, 0);
}

fn node(schema: &Schema, value: &mut Value, depth: usize) {
    if depth > DEPTH_MAX {
        return;
    }
    match value {
        Value::Object(fields) => object(schema, fields, depth),
        Value::Array(items) => {
            let Some(item_schema) = schema.items.as_deref() else {
                return;
            };
            for item in items {
                if is_forbidden_null(item_schema, item)
                    && let Some(default) = &item_schema.default
                {
                    *item = default.clone();
                }
                node(item_schema, item, depth + 1);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn object(schema: &Schema, fields: &mut Map<String, Value>, depth: usize) {
    fields.retain(|name, child| match schema.field(name) {
        Some(child_schema) => {
            !is_forbidden_null(child_schema, child) || {
                match &child_schema.default {
                    Some(default) => *child = default.clone(),
                    None => return false,
                }
                true
            }
        }
        None => true,
    });
    for (name, child_schema) in &schema.properties {
        if let Some(default) = &child_schema.default
            && !fields.contains_key(name)
        {
            fields.insert(name.clone(), default.clone());
        }
    }
    for (name, child) in fields {
        if let Some(child_schema) = schema.field(name) {
            node(child_schema, child, depth + 1);
        }
    }
}

/// Where the schema says nothing about the type, null is as good as any value.
fn is_forbidden_null(schema: &Schema, value: &Value) -> bool {
    value.is_null() && !schema.nullable && (schema.type_name.is_some() || schema.int_or_string)
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
    fn check(schema: Value, before: Value, after: Value) {
        let schema = Schema::from_value(schema).unwrap();
        let mut value = before;
        apply_defaults(&schema, &mut value);
        assert_eq!(value, after);
    }

    #[test]
    fn rows() {
        let schema = json!({"type": "object", "properties": {
            "size": {"type": "integer", "default": 3},
            "mode": {"type": "string", "nullable": true, "default": "rw"},
            "plain": {"type": "string"},
            "spec": {"type": "object", "default": {}, "properties": {"a": {"type": "string", "default": "x"}}},
            "list": {"type": "array", "items": {"type": "object", "properties": {"p": {"type": "string", "default": "TCP"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "string", "default": "d"}}}});
        check(
            schema.clone(),
            json!({}),
            json!({"size": 3, "mode": "rw", "spec": {"a": "x"}}),
        );
        check(
            schema.clone(),
            json!({"size": null, "mode": null, "plain": null, "spec": {"a": "y"}}),
            json!({"size": 3, "mode": null, "spec": {"a": "y"}}),
        );
        check(
            schema,
            json!({"size": 1, "mode": "ro", "spec": {}, "list": [{}, {"p": "UDP"}, null], "map": {"k": null, "l": "m"}}),
            json!({"size": 1, "mode": "ro", "spec": {"a": "x"}, "list": [{"p": "TCP"}, {"p": "UDP"}, null], "map": {"k": "d", "l": "m"}}),
        );
    }

    proptest! {
        #[test]
        fn defaulting_twice_is_defaulting_once(schema in any_schema(), mut value in any_value()) {
            apply_defaults(&schema, &mut value);
            let once = value.clone();
            apply_defaults(&schema, &mut value);
            prop_assert_eq!(value, once);
        }
    }
}
