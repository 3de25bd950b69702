//! Objects made from a schema at random, and what must be left of them after a read and a write.

use proptest::{collection, option, prelude::*};
use serde_json::{Map, Value, json};

/// Objects that the schema admits, and some that only a later version's would: with fields and enum
/// values of its own, wherever the schema preserves unknown fields.
pub fn instance(schema: &Value) -> BoxedStrategy<Value> {
    let plain = match schema["type"].as_str() {
        None if schema["x-kubernetes-int-or-string"] == true => prop_oneof![
            any::<i32>().prop_map(Value::from),
            "[0-9]{1,4}Gi".prop_map(Value::from)
        ]
        .boxed(),
        Some("object") if schema["additionalProperties"].is_object() => {
            let entries = collection::btree_map(
                "[a-z0-9.-]{1,12}",
                instance(&schema["additionalProperties"]),
                0..3,
            );
            entries.prop_map(|entries| json!(entries)).boxed()
        }
        Some("object") => known_and_unknown_fields(schema),
        Some("array") => collection::vec(instance(&schema["items"]), 0..3)
            .prop_map(Value::from)
            .boxed(),
        Some("string") => text(schema),
        Some("integer") => any::<i64>().prop_map(Value::from).boxed(),
        Some("boolean") => any::<bool>().prop_map(Value::from).boxed(),
        other => panic!("no generator for type {other:?}"),
    };
    if schema["nullable"] == true {
        prop_oneof![9 => plain, 1 => Just(Value::Null)].boxed()
    } else {
        plain
    }
}

fn known_and_unknown_fields(schema: &Value) -> BoxedStrategy<Value> {
    let properties = schema["properties"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    let required: Vec<Value> = schema["required"].as_array().cloned().unwrap_or_default();
    let known: Vec<BoxedStrategy<Option<(String, Value)>>> = properties
        .iter()
        .map(|(name, property)| {
            let name = name.clone();
            let field = instance(property).prop_map({
                let name = name.clone();
                move |value| (name.clone(), value)
            });
            if required.contains(&Value::from(name)) {
                field.prop_map(Some).boxed()
            } else {
                option::of(field).boxed()
            }
        })
        .collect();
    let fields_max = if schema["x-kubernetes-preserve-unknown-fields"] == true {
        3
    } else {
        0
    };
    let unknown =
        collection::btree_map("[a-zA-Z][a-zA-Z0-9-]{0,8}", foreign_value(), 0..=fields_max);
    (known, unknown)
        .prop_map(move |(known, unknown)| {
            // By chance a foreign name may be one of ours; then it is not foreign.
            let foreign = unknown
                .into_iter()
                .filter(|(name, _)| !properties.contains_key(name));
            Value::Object(foreign.chain(known.into_iter().flatten()).collect())
        })
        .boxed()
}

fn text(schema: &Value) -> BoxedStrategy<Value> {
    if let Some(values) = schema["enum"].as_array() {
        let listed = proptest::sample::select(values.clone());
        return prop_oneof![4 => listed, 1 => "of-a-later-version-[a-z]{1,4}".prop_map(Value::from)].boxed();
    }
    if schema["format"] == "int64" {
        return (0..1_000_000_000_000_000_000_i64)
            .prop_map(|bytes| Value::from(bytes.to_string()))
            .boxed();
    }
    prop_oneof![1 => Just(Value::from("")), 4 => "\\PC{0,12}".prop_map(Value::from)].boxed()
}

fn foreign_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e9..1e9_f64).prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            collection::btree_map("[a-z]{1,4}", inner, 0..3).prop_map(|entries| json!(entries)),
        ]
    })
}

/// What of `read` is lost or changed in `written`, if anything.
///
/// Allowed is only what "not set" means: `null` and the empty string may become a default, and a field of
/// ours may be left out when it has its default. A foreign field must be there, untouched.
pub fn loss(schema: &Value, read: &Value, written: &Value) -> Result<(), String> {
    match (read, written) {
        (Value::Object(read), Value::Object(written)) => loss_in_object(schema, read, written),
        (Value::Array(read), Value::Array(written)) if read.len() == written.len() => read
            .iter()
            .zip(written)
            .try_for_each(|(read, written)| loss(&schema["items"], read, written)),
        (Value::Null, written) if schema["nullable"] == true && is_zero(written) => Ok(()),
        (Value::String(text), Value::String(_))
            if text.is_empty() && schema["type"] == "string" =>
        {
            Ok(())
        }
        (read, written) if read == written => Ok(()),
        (read, written) => Err(format!("{read} became {written}")),
    }
}

fn loss_in_object(
    schema: &Value,
    read: &Map<String, Value>,
    written: &Map<String, Value>,
) -> Result<(), String> {
    for (name, value) in read {
        let field_schema = match schema["properties"].get(name) {
            Some(property) => property,
            None => &schema["additionalProperties"],
        };
        match written.get(name) {
            Some(value_written) => {
                loss(field_schema, value, value_written)
                    .map_err(|loss| format!("{name}: {loss}"))?;
            }
            // The caller has seen that both read as the same typed object, so an enum that is left out had its default.
            None if is_zero(value) || field_schema["enum"].is_array() => {
                if schema["properties"].get(name).is_none() {
                    return Err(format!("foreign field {name} is gone"));
                }
            }
            None => return Err(format!("field {name} = {value} is gone")),
        }
    }
    Ok(())
}

/// Whether Go would call this the zero value.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}
