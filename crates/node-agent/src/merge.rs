//! The smallest merge patch that makes an object's fields what they should be.

use serde_json::{Map, Value};

/// What to merge into `current` (RFC 7396) so that each top-level key of `wanted` has its value; `None` if all do.
/// Keys that `wanted` does not name are somebody else's and are left alone.
#[must_use]
pub fn difference(current: &Value, wanted: &Value) -> Option<Value> {
    let (Value::Object(wanted), empty) = (wanted, Map::new()) else {
        return (current != wanted).then(|| wanted.clone());
    };
    let current = current.as_object().unwrap_or(&empty);
    let mut patch = Map::new();
    for (key, value) in wanted {
        if let Some(change) = change(current.get(key), value) {
            patch.insert(key.clone(), change);
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

fn change(current: Option<&Value>, wanted: &Value) -> Option<Value> {
    let Some(current) = current else {
        // Absent reads as the default, so an empty value need not be written.
        return (!is_empty(wanted)).then(|| wanted.clone());
    };
    let (Value::Object(current_fields), Value::Object(wanted_fields)) = (current, wanted) else {
        return (current != wanted).then(|| wanted.clone());
    };
    let mut patch = Map::new();
    for (key, value) in wanted_fields {
        if let Some(change) = change(current_fields.get(key), value) {
            patch.insert(key.clone(), change);
        }
    }
    // Inside a field of ours, what is not wanted goes.
    for key in current_fields.keys() {
        if !wanted_fields.contains_key(key) {
            patch.insert(key.clone(), Value::Null);
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_differs_is_patched() {
        let check = |current: Value, wanted: Value, expected: Option<Value>| {
            assert_eq!(
                difference(&current, &wanted),
                expected,
                "{current} to {wanted}"
            );
        };
        check(json!({"a": 1, "b": 2}), json!({"a": 1}), None);
        check(
            json!({"a": 1, "b": 2}),
            json!({"a": 3}),
            Some(json!({"a": 3})),
        );
        check(json!({}), json!({"message": "", "map": {}}), None);
        check(
            json!({"message": "old"}),
            json!({"message": ""}),
            Some(json!({"message": ""})),
        );
        check(
            json!({"modes": {"a": "RW", "b": "RW"}}),
            json!({"modes": {"a": "RW"}}),
            Some(json!({"modes": {"b": null}})),
        );
        check(
            json!({"set": ["a", "b"]}),
            json!({"set": ["a"]}),
            Some(json!({"set": ["a"]})),
        );
        check(Value::Null, json!({"a": 1}), Some(json!({"a": 1})));
    }
}
