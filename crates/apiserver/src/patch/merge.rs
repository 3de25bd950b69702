//! JSON merge patch (RFC 7396): objects merge, null removes, everything else replaces.

use serde_json::{Map, Value};
use thiserror::Error;

use super::Rejection;
use super::bounds::{TooDeep, check_depth};
use super::values::cannot_unmarshal;

/// Why a merge patch was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MergePatchError {
    /// RFC 7396 lets any value be a patch and replace the whole document; an API object can only be
    /// patched by an object.
    #[error("error decoding patch: {0}")]
    NotAnObject(String),
    #[error("the object or the patch is too deep")]
    TooDeep(#[source] TooDeep),
}

impl MergePatchError {
    /// What the client is told.
    pub fn rejection(&self) -> Rejection {
        match self {
            Self::NotAnObject(_) => Rejection::bad_request(self.to_string()),
            Self::TooDeep(source) => {
                Rejection::bad_request(format!("error decoding patch: {source}"))
            }
        }
    }
}

/// The live object with the patch merged into it.
pub fn apply(live: &Value, patch: &Value) -> Result<Value, MergePatchError> {
    check_depth(live).map_err(MergePatchError::TooDeep)?;
    check_depth(patch).map_err(MergePatchError::TooDeep)?;
    let Value::Object(patch) = patch else {
        let complaint = cannot_unmarshal(patch, "value of type map[string]interface {}");
        return Err(MergePatchError::NotAnObject(complaint));
    };
    let mut result = live.clone();
    merge_object(&mut result, patch);
    Ok(result)
}

fn merge_object(target: &mut Value, patch: &Map<String, Value>) {
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else {
        return;
    };
    for (name, value) in patch {
        match value {
            Value::Null => {
                target.remove(name);
            }
            Value::Object(patch) => {
                merge_object(target.entry(name.clone()).or_insert(Value::Null), patch);
            }
            replacement => {
                target.insert(name.clone(), replacement.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::patch::bounds::DEPTH_MAX;
    use crate::patch::test_values::{any_object, any_value};

    #[track_caller]
    #[allow(
        clippy::needless_pass_by_value,
        reason = "rows of literals read better without a reference before each"
    )]
    fn check(live: Value, patch: Value, expected: Value) {
        assert_eq!(apply(&live, &patch), Ok(expected));
    }

    /// The examples of RFC 7396, appendix A, that have an object as patch.
    #[test]
    fn merges_as_the_rfc_says() {
        check(json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"}));
        check(
            json!({"a": "b"}),
            json!({"b": "c"}),
            json!({"a": "b", "b": "c"}),
        );
        check(json!({"a": "b"}), json!({"a": null}), json!({}));
        check(
            json!({"a": "b", "b": "c"}),
            json!({"a": null}),
            json!({"b": "c"}),
        );
        check(json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"}));
        check(json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]}));
        check(
            json!({"a": {"b": "c"}}),
            json!({"a": {"b": "d", "c": null}}),
            json!({"a": {"b": "d"}}),
        );
        check(
            json!({"a": [{"b": "c"}]}),
            json!({"a": [1]}),
            json!({"a": [1]}),
        );
        check(
            json!({"e": null}),
            json!({"a": 1}),
            json!({"e": null, "a": 1}),
        );
        check(
            json!([1, 2]),
            json!({"a": "b", "c": null}),
            json!({"a": "b"}),
        );
        check(
            json!({}),
            json!({"a": {"bb": {"ccc": null}}}),
            json!({"a": {"bb": {}}}),
        );
    }

    #[test]
    fn refuses_what_is_no_object() {
        for patch in [json!([1]), json!(null), json!("x"), json!(1)] {
            let error = apply(&json!({}), &patch).expect_err("not an object");
            let rejection = error.rejection();
            assert_eq!(rejection.code, 400);
            assert!(
                rejection
                    .message
                    .starts_with("error decoding patch: json: cannot unmarshal ")
            );
        }
        let deep = (0..=DEPTH_MAX).fold(json!({}), |inner, _| json!({"a": inner}));
        assert_eq!(
            apply(&json!({}), &deep),
            Err(MergePatchError::TooDeep(TooDeep))
        );
        assert_eq!(
            apply(&deep, &json!({})),
            Err(MergePatchError::TooDeep(TooDeep))
        );
    }

    /// The pseudo-code of RFC 7396, section 2, as it stands there.
    fn oracle(target: Option<Value>, patch: &Value) -> Value {
        let Value::Object(patch) = patch else {
            return patch.clone();
        };
        let mut target = match target {
            Some(Value::Object(target)) => target,
            _ => Map::new(),
        };
        for (name, value) in patch {
            let old = target.remove(name);
            if !value.is_null() {
                target.insert(name.clone(), oracle(old, value));
            }
        }
        Value::Object(target)
    }

    proptest! {
        #[test]
        fn agrees_with_the_rfc(live in any_value(), patch in any_object()) {
            let merged = apply(&live, &patch).expect("an object");
            prop_assert_eq!(&merged, &oracle(Some(live), &patch));
            prop_assert_eq!(apply(&merged, &patch).expect("an object"), merged, "idempotent");
        }
    }
}
