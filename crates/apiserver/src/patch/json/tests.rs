#![allow(
    clippy::needless_pass_by_value,
    reason = "rows of literals read better without a reference before each"
)]

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::patch::test_values::{any_name, any_object, any_value};

#[track_caller]
fn check(live: Value, patch: Value, expected: Value) {
    match apply(&live, &patch) {
        Ok(result) => assert_eq!(result, expected),
        Err(error) => panic!("{error:?}"),
    }
}

#[track_caller]
fn check_refused(live: Value, patch: Value, code: u16) -> JsonPatchError {
    let error = apply(&live, &patch).expect_err("must be refused");
    assert_eq!(error.rejection().code, code, "{error:?}");
    error
}

#[test]
fn carries_out_every_operation() {
    check(
        json!({"a": 1}),
        json!([{"op": "add", "path": "/b", "value": 2}]),
        json!({"a": 1, "b": 2}),
    );
    check(
        json!({"a": [1]}),
        json!([{"op": "add", "path": "/a/-", "value": 2}]),
        json!({"a": [1, 2]}),
    );
    check(
        json!({"a": [1]}),
        json!([{"op": "add", "path": "/a/0", "value": 2}]),
        json!({"a": [2, 1]}),
    );
    check(
        json!({"a": 1}),
        json!([{"op": "remove", "path": "/a"}]),
        json!({}),
    );
    check(
        json!({"a": 1}),
        json!([{"op": "replace", "path": "/a", "value": null}]),
        json!({"a": null}),
    );
    check(
        json!({"a": 1}),
        json!([{"op": "move", "from": "/a", "path": "/b"}]),
        json!({"b": 1}),
    );
    check(
        json!({"a": [1]}),
        json!([{"op": "copy", "from": "/a", "path": "/b"}]),
        json!({"a": [1], "b": [1]}),
    );
    check(
        json!({"a/b": {"m~n": 1}}),
        json!([{"op": "remove", "path": "/a~1b/m~0n"}]),
        json!({"a/b": {}}),
    );
    check(json!({"a": 1}), json!([]), json!({"a": 1}));
    check(json!({"a": 1}), json!(null), json!({"a": 1}));
    check(
        json!({"a": 1}),
        json!([{"op": "test", "path": "/a", "value": 1.0}]),
        json!({"a": 1}),
    );
}

/// A finalizer's first appearance, as the external attacher writes it.
#[test]
fn testing_an_absent_member_for_null_succeeds() {
    let patch = json!([
        {"op": "test", "path": "/metadata/finalizers", "value": null},
        {"op": "add", "path": "/metadata/finalizers", "value": ["x"]},
    ]);
    check(
        json!({"metadata": {}}),
        patch.clone(),
        json!({"metadata": {"finalizers": ["x"]}}),
    );
    check_refused(json!({"metadata": {"finalizers": []}}), patch.clone(), 422);
    check_refused(json!({}), patch, 422);
}

#[test]
fn what_cannot_be_carried_out_is_unprocessable() {
    let live = json!({"a": {"b": 1}, "l": [1]});
    let rows = [
        json!({"op": "remove", "path": "/c"}),
        json!({"op": "replace", "path": "/c", "value": 1}),
        json!({"op": "add", "path": "/c/d", "value": 1}),
        json!({"op": "add", "path": "/l/2", "value": 1}),
        json!({"op": "add", "path": "/l/x", "value": 1}),
        json!({"op": "add", "path": "/a/b/c", "value": 1}),
        json!({"op": "remove", "path": "/l/-"}),
        json!({"op": "test", "path": "/a/b", "value": 2}),
        json!({"op": "test", "path": "/x/y", "value": null}),
        json!({"op": "move", "from": "/a", "path": "/a/b"}),
        json!({"op": "copy", "from": "/x", "path": "/y"}),
        json!({"op": "replace", "path": "", "value": {}}),
        json!({"op": "remove", "path": ""}),
        json!({"op": "add", "path": "no-slash", "value": 1}),
        json!({"op": "frobnicate", "path": "/a"}),
        json!({"op": "add", "path": "/q"}),
        json!({"path": "/a"}),
        json!({}),
    ];
    for operation in rows {
        let error = apply(
            &live,
            &json!([{"op": "add", "path": "/z", "value": 1}, operation]),
        )
        .expect_err("must be refused");
        assert!(
            matches!(error, JsonPatchError::NotApplicable { index: 1, .. }),
            "{operation}: {error:?}"
        );
        let rejection = error.rejection();
        assert_eq!((rejection.code, rejection.reason), (422, "Invalid"));
        assert_eq!(
            rejection.message,
            "the server rejected our request due to an error in our request"
        );
    }
}

#[test]
fn what_is_no_patch_is_a_bad_request() {
    for body in [
        json!({}),
        json!("x"),
        json!([1]),
        json!([{"op": 1}]),
        json!([{"path": []}]),
    ] {
        check_refused(json!({}), body, 400);
    }
    let rejection = check_refused(json!({}), json!({}), 400).rejection();
    assert_eq!(
        rejection.message,
        "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
    );
    let deep = (0..=DEPTH_MAX).fold(json!({}), |inner, _| json!([inner]));
    check_refused(json!({}), deep, 400);
    let many = vec![json!({"op": "test", "path": "/a", "value": null}); OPERATIONS_MAX + 1];
    let error = check_refused(json!({}), Value::Array(many), 413);
    assert_eq!(
        error.to_string(),
        "The allowed maximum operations in a JSON patch is 10000, got 10001"
    );
}

#[test]
fn strict_validation_finds_members_that_no_operation_has() {
    let patch = json!([{"op": "remove", "path": "/a"}, {"op": "remove", "path": "/a", "valeu": 1}]);
    assert_eq!(
        unknown_members(&patch),
        [r#"json patch unknown field "[1].valeu""#]
    );
    assert!(unknown_members(&json!({"a": 1})).is_empty());
}

#[test]
fn copies_do_not_amplify() {
    let double = json!({"op": "copy", "from": "/a", "path": "/a/-"});
    let error = check_refused(
        json!({"a": ["0123456789"]}),
        Value::Array(vec![double; 100]),
        422,
    );
    assert!(matches!(
        error,
        JsonPatchError::NotApplicable {
            reason: NotApplicable::CopiesTooMuch | NotApplicable::TooDeep(_),
            ..
        }
    ));
    let nest = json!({"op": "copy", "from": "/a", "path": "/a/a"});
    check_refused(
        json!({"a": {"a": 1}}),
        Value::Array(vec![nest; DEPTH_MAX]),
        422,
    );
    let chain = (0..200).fold(json!({}), |inner, _| json!({"a": inner}));
    let path = "/a".repeat(199);
    let moved = json!([{"op": "move", "from": "/b", "path": format!("{path}/b")}]);
    let error = check_refused(json!({"a": chain["a"], "b": chain}), moved, 422);
    assert!(matches!(
        error,
        JsonPatchError::NotApplicable {
            reason: NotApplicable::TooDeep(_),
            ..
        }
    ));
}

#[test]
fn work_is_bounded() {
    let wide = json!({"a": vec![0; 200_000], "b": {}});
    let there = json!({"op": "move", "from": "/a", "path": "/b/a"});
    let back = json!({"op": "move", "from": "/b/a", "path": "/a"});
    let patch = Value::Array(vec![[there, back]; 2_000].concat());
    let error = check_refused(wide, patch, 422);
    assert!(matches!(
        error,
        JsonPatchError::NotApplicable {
            reason: NotApplicable::TooMuchWork,
            ..
        }
    ));
}

/// RFC 6902 by the letter, on a document rebuilt from scratch for each operation.
mod oracle {
    use super::*;

    pub(super) fn apply(document: &Value, patch: &[Value]) -> Option<Value> {
        let mut document = document.clone();
        for operation in patch {
            let path = tokens(operation["path"].as_str()?);
            let from = operation["from"].as_str().map(tokens);
            document = match operation["op"].as_str()? {
                "add" => add(&document, &path, &operation["value"])?,
                "remove" => remove(&document, &path)?,
                "replace" => add(&remove(&document, &path)?, &path, &operation["value"])?,
                "move" => {
                    let from = from?;
                    let value = get(&document, &from)?.clone();
                    if path.len() > from.len() && path.starts_with(&from) {
                        return None;
                    }
                    add(&remove(&document, &from)?, &path, &value)?
                }
                "copy" => add(&document, &path, get(&document, &from?)?)?,
                "test" => {
                    let (last, parent) = path.split_last()?;
                    let parent = get(&document, parent)?;
                    let found = match get(parent, std::slice::from_ref(last)) {
                        Some(found) => found.clone(),
                        None if parent.is_object() => Value::Null,
                        None => return None,
                    };
                    same(&found, &operation["value"]).then_some(document)?
                }
                _ => return None,
            };
        }
        Some(document)
    }

    fn tokens(path: &str) -> Vec<String> {
        let unescape = |token: &str| token.replace("~1", "/").replace("~0", "~");
        path.split('/').skip(1).map(unescape).collect()
    }

    fn index(token: &str, length: usize) -> Option<usize> {
        let canonical = token == "0" || !token.starts_with('0');
        let digits = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_digit());
        let index = (canonical && digits).then(|| token.parse().ok())??;
        (index < length).then_some(index)
    }

    fn get<'a>(value: &'a Value, path: &[String]) -> Option<&'a Value> {
        let Some((first, rest)) = path.split_first() else {
            return Some(value);
        };
        match value {
            Value::Object(fields) => get(fields.get(first)?, rest),
            Value::Array(items) => get(&items[index(first, items.len())?], rest),
            _ => None,
        }
    }

    fn edit(
        value: &Value,
        path: &[String],
        change: &dyn Fn(&Value, &str) -> Option<Value>,
    ) -> Option<Value> {
        let (first, rest) = path.split_first()?;
        if rest.is_empty() {
            return change(value, first);
        }
        let mut value = value.clone();
        match &mut value {
            Value::Object(fields) => {
                let inner = fields.get_mut(first)?;
                *inner = edit(inner, rest, change)?;
            }
            Value::Array(items) => {
                let at = index(first, items.len())?;
                items[at] = edit(&items[at], rest, change)?;
            }
            _ => return None,
        }
        Some(value)
    }

    fn add(value: &Value, path: &[String], added: &Value) -> Option<Value> {
        edit(value, path, &|parent, key| match parent {
            Value::Object(fields) => {
                let mut fields = fields.clone();
                fields.insert(key.to_owned(), added.clone());
                Some(Value::Object(fields))
            }
            Value::Array(items) => {
                let at = match key {
                    "-" => items.len(),
                    key => index(key, items.len() + 1)?,
                };
                let (before, after) = items.split_at(at);
                Some(Value::Array(
                    [before, std::slice::from_ref(added), after].concat(),
                ))
            }
            _ => None,
        })
    }

    fn remove(value: &Value, path: &[String]) -> Option<Value> {
        edit(value, path, &|parent, key| match parent {
            Value::Object(fields) => {
                let mut fields = fields.clone();
                fields.remove(key)?;
                Some(Value::Object(fields))
            }
            Value::Array(items) => {
                let at = index(key, items.len())?;
                let mut items = items.clone();
                items.remove(at);
                Some(Value::Array(items))
            }
            _ => None,
        })
    }
}

fn any_path() -> impl Strategy<Value = String> {
    let name = any_name().prop_map(|name| name.replace('~', "~0").replace('/', "~1"));
    let token = prop_oneof![4 => name, 2 => "[0-2]", 1 => Just("-".to_owned())];
    prop::collection::vec(token, 1..4).prop_map(|tokens| {
        tokens
            .iter()
            .fold(String::new(), |path, token| path + "/" + token)
    })
}

fn any_operation() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec!["add", "remove", "replace", "move", "copy", "test"]);
    (names, any_path(), any_path(), any_value()).prop_map(
        |(op, path, from, value)| json!({"op": op, "path": path, "from": from, "value": value}),
    )
}

proptest! {
    #[test]
    fn agrees_with_the_rfc(
        live in any_object(),
        patch in prop::collection::vec(any_operation(), 1..5),
    ) {
        // Patches rarely apply whole: every prefix of one is judged, so that most runs see success.
        for length in 1..=patch.len() {
            let prefix = &patch[..length];
            let result = apply(&live, &Value::Array(prefix.to_vec()));
            prop_assert_eq!(result.ok(), oracle::apply(&live, prefix), "{:?}", prefix);
        }
    }

    #[test]
    fn never_panics(live in any_value(), patch in any_value()) {
        if let Err(error) = apply(&live, &patch) {
            prop_assert!([400, 413, 422].contains(&error.rejection().code));
        }
        let _ = apply(&live, &json!([patch]));
    }
}
