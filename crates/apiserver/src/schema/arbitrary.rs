//! Arbitrary schemas and values over a small alphabet, so that they often meet.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::Schema;

const NAMES: [&str; 6] = ["a", "b", "c", "metadata", "kind", "spec"];

pub(crate) fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i64..100).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-5.0f64..5.0).prop_map(Value::from),
        "[ab0-9TZ:.-]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((prop::sample::select(&NAMES[..]), inner), 0..5).prop_map(
                |fields| {
                    Value::Object(
                        fields
                            .into_iter()
                            .map(|(name, value)| (name.to_owned(), value))
                            .collect::<Map<_, _>>(),
                    )
                }
            ),
        ]
    })
}

pub(crate) fn any_schema() -> impl Strategy<Value = Schema> {
    any_schema_value().prop_map(|value| {
        let text = value.to_string();
        Schema::from_value(value).unwrap_or_else(|error| panic!("{error}: {text}"))
    })
}

/// Keywords are thrown together without regard to whether they make sense.
fn any_schema_value() -> impl Strategy<Value = Value> {
    let leaf = (
        prop::option::of(prop::sample::select(
            &[
                "object", "array", "string", "integer", "number", "boolean", "nonsense",
            ][..],
        )),
        prop::collection::vec(any_keyword(), 0..4),
    )
        .prop_map(|(type_name, keywords)| {
            let mut schema = Map::new();
            if let Some(type_name) = type_name {
                schema.insert("type".to_owned(), type_name.into());
            }
            schema.extend(
                keywords
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value)),
            );
            Value::Object(schema)
        });
    leaf.prop_recursive(4, 32, 4, |inner| {
        (
            inner.clone(),
            prop::collection::btree_map(prop::sample::select(&NAMES[..]), inner.clone(), 0..4),
            prop::collection::vec(
                (
                    prop::sample::select(
                        &[
                            "items",
                            "additionalProperties",
                            "not",
                            "anyOf",
                            "oneOf",
                            "allOf",
                        ][..],
                    ),
                    inner,
                ),
                0..3,
            ),
        )
            .prop_map(|(mut schema, properties, nested)| {
                if !properties.is_empty() {
                    schema["properties"] = json!(properties);
                }
                for (keyword, child) in nested {
                    schema[keyword] = match keyword {
                        "items" | "additionalProperties" | "not" => child,
                        _ => json!([child]),
                    };
                }
                schema
            })
    })
}

fn any_keyword() -> impl Strategy<Value = (&'static str, Value)> {
    let rows = [
        ("nullable", json!(true)),
        ("default", json!({"a": 1})),
        ("default", json!("b")),
        ("default", json!(2)),
        ("required", json!(["a", "b"])),
        ("enum", json!(["a", 1, null])),
        ("minimum", json!(2)),
        ("maximum", json!(-1.5)),
        ("exclusiveMinimum", json!(true)),
        ("multipleOf", json!(0)),
        ("multipleOf", json!(0.1)),
        ("minLength", json!(2)),
        ("maxLength", json!(3)),
        ("pattern", json!("^[a-b]+$")),
        ("pattern", json!("(")),
        ("format", json!("date-time")),
        ("format", json!("int32")),
        ("format", json!("uuid")),
        ("minItems", json!(1)),
        ("maxItems", json!(2)),
        ("uniqueItems", json!(true)),
        ("minProperties", json!(1)),
        ("maxProperties", json!(2)),
        ("additionalProperties", json!(true)),
        ("additionalProperties", json!(false)),
        ("x-kubernetes-preserve-unknown-fields", json!(true)),
        ("x-kubernetes-int-or-string", json!(true)),
        ("x-kubernetes-embedded-resource", json!(true)),
        ("x-kubernetes-list-type", json!("map")),
        ("x-kubernetes-list-type", json!("set")),
        ("x-kubernetes-list-map-keys", json!(["a", "b"])),
        (
            "x-kubernetes-validations",
            json!([{"rule": "self.a == oldSelf.a"}]),
        ),
        (
            "x-kubernetes-validations",
            json!([{"rule": "size(self) > 1", "message": "m"}]),
        ),
        (
            "x-kubernetes-validations",
            json!([{"rule": "((", "messageExpression": ")"}, 1]),
        ),
    ];
    prop::sample::select(rows.to_vec())
}
