//! Lists: their lengths, their duplicates, and which item of the old list an item of the new one is.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::{FieldError, FieldErrorKind, ListType, Path, Schema, Walk};

impl Walk {
    pub(super) fn list_limits(&mut self, schema: &Schema, items: &[Value], path: &Path<'_>) {
        let count = items.len() as u64;
        if let Some(minimum) = schema.min_items
            && count < minimum
        {
            let complaint = format!("should have at least {minimum} items");
            self.complain(FieldErrorKind::Invalid, path, count.into(), &complaint);
        }
        if let Some(maximum) = schema.max_items
            && count > maximum
        {
            let error = FieldError {
                value: Some(count.into()),
                ..FieldError::new(
                    FieldErrorKind::TooMany,
                    path.or_nil(),
                    format!("must have at most {maximum} items"),
                )
            };
            self.push(error);
        }
        if schema.unique_items && !duplicates(items.iter().map(canonical)).is_empty() {
            self.complain(
                FieldErrorKind::Invalid,
                path,
                Value::Array(items.to_vec()),
                "shouldn't contain duplicates",
            );
        }
    }

    pub(super) fn list_duplicates(&mut self, schema: &Schema, items: &[Value], path: &Path<'_>) {
        let keys_of = |item: &Value| key_values(schema, item);
        let shown: Vec<Value> = match schema.list_type {
            Some(ListType::Set) => items.to_vec(),
            Some(ListType::Map) => items
                .iter()
                .map(|item| keys_of(item).map_or(Value::Null, Value::Object))
                .collect(),
            Some(ListType::Atomic) | None => return,
        };
        // Items without any key are reported as missing it, not as equal to each other.
        let repeated = duplicates(shown.iter().map(canonical));
        for index in repeated {
            if schema.list_type == Some(ListType::Map) && shown[index].is_null() {
                continue;
            }
            let error = FieldError {
                value: Some(shown[index].clone()),
                ..FieldError::new(FieldErrorKind::Duplicate, path.index(index), "")
            };
            self.push(error);
        }
    }
}

/// The old items by what identifies them. Only lists that are maps can tell.
pub(in crate::schema) struct OldItems<'a> {
    schema: &'a Schema,
    by_key: HashMap<String, &'a Value>,
}

pub(in crate::schema) fn correlate<'a>(
    schema: &'a Schema,
    old: Option<&'a Value>,
) -> Option<OldItems<'a>> {
    if schema.list_type != Some(ListType::Map) {
        return None;
    }
    let by_key = old?
        .as_array()?
        .iter()
        .filter_map(|item| Some((canonical(&Value::Object(key_values(schema, item)?)), item)))
        .collect();
    Some(OldItems { schema, by_key })
}

impl<'a> OldItems<'a> {
    pub(in crate::schema) fn find(&self, item: &Value) -> Option<&'a Value> {
        let key = canonical(&Value::Object(key_values(self.schema, item)?));
        self.by_key.get(&key).copied()
    }
}

/// The fields of an item that identify it; keys it lacks have their defaults.
fn key_values(schema: &Schema, item: &Value) -> Option<Map<String, Value>> {
    let fields = item.as_object()?;
    let item_schema = schema.items.as_deref();
    let keys: Map<String, Value> = schema
        .list_map_keys
        .iter()
        .filter_map(|name| {
            let default = || {
                let property = item_schema.and_then(|schema| schema.properties.get(name));
                property.and_then(|property| property.default.as_ref())
            };
            let value = fields.get(name).or_else(default)?;
            Some((name.clone(), value.clone()))
        })
        .collect();
    (!keys.is_empty()).then_some(keys)
}

/// The indices of the items that equal an earlier one.
fn duplicates(items: impl Iterator<Item = String>) -> Vec<usize> {
    let mut seen = HashSet::new();
    items
        .enumerate()
        .filter_map(|(index, item)| (!seen.insert(item)).then_some(index))
        .collect()
}

/// A text that two values share exactly if they are equal as JSON: keys in order, `1.0` as `1`.
pub(in crate::schema) fn canonical(value: &Value) -> String {
    let mut text = String::new();
    write_canonical(value, &mut text);
    text
}

fn write_canonical(value: &Value, text: &mut String) {
    match value {
        Value::Number(number) => {
            let float = number.as_f64().unwrap_or(0.0);
            let whole = !number.is_i64() && !number.is_u64() && float.fract() == 0.0;
            let result = if whole && float.abs() < 9e15 {
                write!(text, "{float:.0}")
            } else {
                write!(text, "{number}")
            };
            result.expect("writing to a string cannot fail");
        }
        Value::Array(items) => {
            text.push('[');
            for item in items {
                write_canonical(item, text);
                text.push(',');
            }
            text.push(']');
        }
        Value::Object(fields) => {
            let mut names: Vec<&String> = fields.keys().collect();
            names.sort_unstable();
            text.push('{');
            for name in names {
                write!(text, "{name:?}:").expect("writing to a string cannot fail");
                write_canonical(&fields[name], text);
                text.push(',');
            }
            text.push('}');
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {
            write!(text, "{value}").expect("writing to a string cannot fail");
        }
    }
}
