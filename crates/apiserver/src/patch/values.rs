//! JSON values as the real server compares and prints them: numbers by value (`1` is `1.0`), one
//! total order, and Go's `%v` notation in messages.

use std::cmp::Ordering;
use std::fmt::Write;

use serde_json::{Number, Value};

/// Whether two values are the same, numbers by value.
pub(super) fn same(left: &Value, right: &Value) -> bool {
    compare(left, right) == Ordering::Equal
}

/// A total order over JSON values: numbers, strings, booleans, lists, objects, null.
pub(super) fn compare(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::Null, Value::Null) => Ordering::Equal,
        (Value::Bool(left), Value::Bool(right)) => left.cmp(right),
        (Value::Number(left), Value::Number(right)) => compare_numbers(left, right),
        (Value::String(left), Value::String(right)) => left.cmp(right),
        (Value::Array(left), Value::Array(right)) => left
            .iter()
            .zip(right)
            .map(|(left, right)| compare(left, right))
            .find(|order| order.is_ne())
            .unwrap_or_else(|| left.len().cmp(&right.len())),
        (Value::Object(left), Value::Object(right)) => compare_objects(left, right),
        _ => rank(left).cmp(&rank(right)),
    }
}

/// A text that two values share exactly when they are the [`same`]: the key of hash look-ups.
pub(super) fn identity(value: &Value) -> String {
    match value {
        Value::Number(number) => match whole(number) {
            Some(whole) => whole.to_string(),
            None => number.to_string(),
        },
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(identity).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            let fields: Vec<String> = fields
                .into_iter()
                .map(|(name, value)| format!("{name:?}:{}", identity(value)))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Null | Value::Bool(_) | Value::String(_) => value.to_string(),
    }
}

/// A value as Go's `%v` prints it, which is how it appears in the real server's messages; cut at a
/// length that keeps a message a message.
pub(super) fn go_text(value: &Value) -> String {
    const SHOWN_BYTES_MAX: usize = 1024;
    let mut text = String::new();
    write_go_text(value, SHOWN_BYTES_MAX, &mut text);
    if text.len() > SHOWN_BYTES_MAX {
        let cut = text.floor_char_boundary(SHOWN_BYTES_MAX);
        text.truncate(cut);
        text.push('…');
    }
    text
}

/// The name of a value's type in Go, for messages about unexpected types.
pub(super) fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// What Go's JSON decoder says of a value that is not what it should be, as in the real server's
/// answers to bodies of the wrong form.
pub(super) fn cannot_unmarshal(value: &Value, into: &str) -> String {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    format!("json: cannot unmarshal {kind} into Go {into}")
}

fn write_go_text(value: &Value, limit: usize, text: &mut String) {
    if text.len() > limit {
        return;
    }
    match value {
        Value::Null => text.push_str("<nil>"),
        Value::Bool(_) | Value::Number(_) => {
            let _ = write!(text, "{value}");
        }
        Value::String(content) => text.push_str(content),
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(' ');
                }
                write_go_text(item, limit, text);
            }
            text.push(']');
        }
        Value::Object(fields) => {
            text.push_str("map[");
            for (index, (name, field)) in fields.iter().enumerate() {
                if index > 0 {
                    text.push(' ');
                }
                text.push_str(name);
                text.push(':');
                write_go_text(field, limit, text);
            }
            text.push(']');
        }
    }
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

fn compare_objects(
    left: &serde_json::Map<String, Value>,
    right: &serde_json::Map<String, Value>,
) -> Ordering {
    // The map keeps its keys sorted, unless a feature of serde_json elsewhere in the build makes it
    // keep their order of insertion: sorting here makes both the same.
    let mut left: Vec<_> = left.iter().collect();
    let mut right: Vec<_> = right.iter().collect();
    left.sort_unstable_by_key(|(name, _)| *name);
    right.sort_unstable_by_key(|(name, _)| *name);
    left.iter()
        .zip(&right)
        .map(|((left_name, left), (right_name, right))| {
            left_name.cmp(right_name).then_with(|| compare(left, right))
        })
        .find(|order| order.is_ne())
        .unwrap_or_else(|| left.len().cmp(&right.len()))
}

fn compare_numbers(left: &Number, right: &Number) -> Ordering {
    match (whole(left), whole(right)) {
        (Some(left), Some(right)) => left.cmp(&right),
        (Some(left), None) => compare_whole_to_float(left, float(right)),
        (None, Some(right)) => compare_whole_to_float(right, float(left)).reverse(),
        (None, None) => float(left).total_cmp(&float(right)),
    }
}

/// The number as an integer if it is one, however it is written. Floats past 2^100 stay floats:
/// no integer of JSON reaches them.
fn whole(number: &Number) -> Option<i128> {
    const FLOAT_WHOLE_MAX: f64 = 1_267_650_600_228_229_401_496_703_205_376.0;
    if let Some(number) = number.as_i64() {
        return Some(number.into());
    }
    if let Some(number) = number.as_u64() {
        return Some(number.into());
    }
    let number = float(number);
    (number.fract() == 0.0 && number.abs() <= FLOAT_WHOLE_MAX).then_some(number as i128)
}

fn float(number: &Number) -> f64 {
    number.as_f64().unwrap_or(0.0)
}

/// `float` is not whole or is beyond every integer, so the two are never equal.
fn compare_whole_to_float(whole: i128, float: f64) -> Ordering {
    // A cast of a float beyond i128 saturates, which keeps the order.
    if whole <= float.floor() as i128 {
        Ordering::Less
    } else {
        Ordering::Greater
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_compare_by_value() {
        let rows = [
            (json!(1), json!(1.0), Ordering::Equal),
            (json!(1), json!(1.5), Ordering::Less),
            (json!(2), json!(1.5), Ordering::Greater),
            (json!(-1), json!(-1.5), Ordering::Greater),
            (json!(u64::MAX), json!(1e300), Ordering::Less),
            (json!(i64::MIN), json!(-1e300), Ordering::Greater),
            (
                json!(9_007_199_254_740_993_i64),
                json!(9_007_199_254_740_992.0),
                Ordering::Greater,
            ),
            (json!(0.0), json!(-0.0), Ordering::Equal),
            (json!(1), json!("1"), Ordering::Less),
            (json!([1, 2]), json!([1]), Ordering::Greater),
            (json!({"a": 1}), json!({"a": 1.0}), Ordering::Equal),
            (json!({"a": 1}), json!({"b": 0}), Ordering::Less),
        ];
        for (left, right, order) in rows {
            assert_eq!(compare(&left, &right), order, "{left} {right}");
            assert_eq!(compare(&right, &left), order.reverse(), "{right} {left}");
            assert_eq!(identity(&left) == identity(&right), order.is_eq());
        }
    }

    #[test]
    fn prints_like_go() {
        let value = json!({"name": "x", "list": [1, null, true], "map": {}});
        assert_eq!(go_text(&value), "map[list:[1 <nil> true] map:map[] name:x]");
        assert!(go_text(&json!("é".repeat(5000))).len() < 1100);
    }
}
