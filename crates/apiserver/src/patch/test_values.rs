//! Random JSON values over few names, so that two of them often meet in the same field.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

pub(super) fn any_scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3..3_i64).prop_map(Value::from),
        (0..4_i32).prop_map(|quarter| json!(f64::from(quarter) / 4.0)),
        "[ab~/]{0,2}".prop_map(Value::from),
    ]
}

pub(super) fn any_name() -> impl Strategy<Value = String> {
    prop_oneof![8 => "[a-d]", 1 => Just("~1/".to_owned()), 1 => Just(String::new())]
}

pub(super) fn any_value() -> impl Strategy<Value = Value> {
    any_scalar().prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::vec((any_name(), inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

pub(super) fn any_object() -> impl Strategy<Value = Value> {
    prop::collection::vec((any_name(), any_value()), 0..5)
        .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>()))
}
