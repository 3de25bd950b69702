#![allow(
    clippy::needless_pass_by_value,
    reason = "rows of literals read better without a reference before each"
)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::patch::bounds::DEPTH_MAX;
use crate::patch::merge;
use crate::patch::test_values::{any_object, any_value};

/// What of a pod, a node and a volume attachment strategic merge cares about.
fn schema() -> Schema {
    let text = json!({"type": "string"});
    serde_json::from_value(json!({"type": "object", "properties": {
        "metadata": {"type": "object"},
        "spec": {"type": "object", "properties": {
            "containers": {
                "type": "array",
                "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name",
                "items": {"type": "object", "properties": {
                    "name": text, "image": text,
                    "args": {"type": "array", "items": text},
                    "env": {
                        "type": "array",
                        "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name",
                        "items": {"type": "object", "properties": {"name": text, "value": text}},
                    },
                    "ports": {
                        "type": "array",
                        "x-kubernetes-patch-strategy": "merge",
                        "x-kubernetes-patch-merge-key": "containerPort",
                        "items": {"type": "object"},
                    },
                }},
            },
            "volumes": {
                "type": "array",
                "x-kubernetes-patch-strategy": "merge,retainKeys", "x-kubernetes-patch-merge-key": "name",
                "items": {"type": "object"},
            },
            "tolerations": {"type": "array", "items": {"type": "object"}},
            "nodeSelector": {"type": "object", "additionalProperties": text},
            "selector": {"type": "object", "x-kubernetes-patch-strategy": "replace"},
            "broken": {
                "type": "array", "x-kubernetes-patch-strategy": "merge", "items": {"type": "object"},
            },
        }},
        "status": {"type": "object", "properties": {
            "conditions": {
                "type": "array",
                "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "type",
                "items": {"type": "object"},
            },
        }},
    }}))
    .expect("a schema")
}

#[track_caller]
fn check(live: Value, patch: Value, expected: Value) {
    match apply(&live, &patch, &schema()) {
        Ok(result) => assert_eq!(result, expected),
        Err(error) => panic!("{error}"),
    }
}

/// Live and expected are a pod's spec.
#[track_caller]
fn check_spec(live: Value, patch: Value, expected: Value) {
    check(
        json!({"spec": live}),
        json!({"spec": patch}),
        json!({"spec": expected}),
    );
}

#[test]
fn containers_and_env_merge_by_name() {
    check_spec(
        json!({"containers": [{"name": "a", "image": "1", "args": ["x"]}, {"name": "b"}]}),
        json!({"containers": [{"name": "a", "image": "2", "args": ["y"]}, {"name": "c"}]}),
        json!({"containers": [{"name": "a", "image": "2", "args": ["y"]}, {"name": "c"}, {"name": "b"}]}),
    );
    check_spec(
        json!({"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}]}),
        json!({"containers": [{"name": "a", "env": [{"name": "Y", "value": "3"}]}]}),
        json!({"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "3"}]}]}),
    );
    check_spec(
        json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "protocol": "TCP"}]}]}),
        json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "name": "http"}, {"containerPort": 81}]}]}),
        json!({"containers": [{"name": "a", "ports": [
            {"containerPort": 80, "protocol": "TCP", "name": "http"}, {"containerPort": 81},
        ]}]}),
    );
}

#[test]
fn node_conditions_merge_by_type() {
    check(
        json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Disk", "status": "False"}]}}),
        json!({"status": {"conditions": [{"type": "Disk", "status": "True"}]}}),
        json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Disk", "status": "True"}]}}),
    );
}

#[test]
fn sets_merge_and_atomic_lists_are_replaced() {
    let live = json!({"metadata": {"finalizers": ["a", "b"]}});
    check(
        live.clone(),
        json!({"metadata": {"finalizers": ["b", "c"]}}),
        json!({"metadata": {"finalizers": ["a", "b", "c"]}}),
    );
    check(
        live.clone(),
        json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a", "z"]}}),
        json!({"metadata": {"finalizers": ["b"]}}),
    );
    check(
        json!({"metadata": {}}),
        json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}),
        json!({"metadata": {}}),
    );
    check(
        live,
        json!({"metadata": {"$setElementOrder/finalizers": ["c", "b", "a"], "finalizers": ["c"]}}),
        json!({"metadata": {"finalizers": ["c", "b", "a"]}}),
    );
    check_spec(
        json!({"tolerations": [{"key": "a"}], "nodeSelector": {"a": "1", "b": "2"}}),
        json!({"tolerations": [{"key": "b"}], "nodeSelector": {"a": null, "c": "3"}}),
        json!({"tolerations": [{"key": "b"}], "nodeSelector": {"b": "2", "c": "3"}}),
    );
    check_spec(
        json!({"selector": {"a": "1"}}),
        json!({"selector": {"b": "2"}}),
        json!({"selector": {"b": "2"}}),
    );
}

#[test]
fn directives_do_what_they_say() {
    let live = json!({"containers": [{"name": "a", "image": "1"}, {"name": "b"}]});
    check_spec(
        live.clone(),
        json!({"containers": [{"name": "a", "$patch": "delete"}]}),
        json!({"containers": [{"name": "b"}]}),
    );
    check_spec(
        live.clone(),
        json!({"containers": [{"$patch": "replace"}, {"name": "c"}]}),
        json!({"containers": [{"name": "c"}]}),
    );
    check_spec(
        live.clone(),
        json!({"containers": [{"name": "a", "$patch": "delete"}, {"name": "a", "image": "2"}]}),
        json!({"containers": [{"name": "a", "image": "2"}, {"name": "b"}]}),
    );
    check_spec(
        live.clone(),
        json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "c"}, {"name": "a"}],
               "containers": [{"name": "c"}, {"name": "a", "image": null}]}),
        json!({"containers": [{"name": "b"}, {"name": "c"}, {"name": "a"}]}),
    );
    check_spec(
        live.clone(),
        json!({"$patch": "replace", "x": 1}),
        json!({"x": 1}),
    );
    check_spec(live.clone(), json!({"$patch": "delete"}), json!({}));
    check_spec(
        json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
        json!({"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]}),
        json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
    );
    check_spec(
        json!({}),
        json!({"containers": [{"name": "a", "$patch": "delete"}, {"name": "b", "image": null, "env": [{"name": "X", "$patch": "delete"}]}],
               "$setElementOrder/containers": [{"name": "b"}]}),
        json!({"containers": [{"name": "b", "env": []}]}),
    );
}

#[test]
fn refuses_in_the_real_servers_words() {
    let live = json!({"spec": {
        "containers": [{"name": "a"}], "volumes": [{"name": "v"}], "broken": [{"a": 1}],
        "nodeSelector": {"a": "1"},
    }, "metadata": {"finalizers": ["a"]}});
    let rows = [
        (
            json!({"spec": {"containers": [{"image": "1"}]}}),
            400,
            "map: map[image:1] does not contain declared merge key: name",
        ),
        (
            json!({"spec": {"containers": [{"name": "a", "$patch": "merge"}]}}),
            400,
            "merging lists cannot yet be specified in the patch",
        ),
        (
            json!({"spec": {"containers": [{"name": "a", "$patch": "frob"}]}}),
            400,
            "unknown patch type: frob in map: map[$patch:frob name:a]",
        ),
        (
            json!({"spec": {"nodeSelector": {"$patch": "merge"}}}),
            400,
            "unknown patch type: merge in map: map[$patch:merge]",
        ),
        (
            json!({"spec": {"containers": ["a"]}}),
            400,
            "list element types are not identical: [[map[name:a]] [a]]",
        ),
        (
            json!({"spec": {"broken": [{"a": 2}]}}),
            400,
            "cannot merge lists without merge key for type map",
        ),
        (
            json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name"], "x": 1}]}}),
            400,
            "invalid patch format of retainKeys",
        ),
        (
            json!({"spec": {"volumes": [{"name": "v", "$retainKeys": 1}]}}),
            400,
            "invalid patch format of retainKeys",
        ),
        (
            json!({"metadata": {"$deleteFromPrimitiveList": ["a"]}}),
            400,
            "invalid patch format of primitive list",
        ),
        (
            json!({"metadata": {"$setElementOrder": ["a"]}}),
            400,
            "invalid patch format of setElementOrder list",
        ),
        (
            json!({"metadata": {"$setElementOrder/finalizers": 1}}),
            400,
            "expected a []interface {}, but received a int64",
        ),
        (
            json!({"metadata": {"$setElementOrder/finalizers": ["a"], "finalizers": ["b"]}}),
            400,
            "The order in patch list:\n[b]\n doesn't match $setElementOrder list:\n[a]\n",
        ),
        (
            json!([]),
            400,
            "json: cannot unmarshal array into Go value of type map[string]interface {}",
        ),
    ];
    for (patch, code, message) in rows {
        let error = apply(&live, &patch, &schema()).expect_err("must be refused");
        let rejection = error.rejection();
        assert_eq!(
            (rejection.code, rejection.message.as_str()),
            (code, message),
            "{patch}"
        );
    }
    let lists = json!({"metadata": {"finalizers": [["a"]]}});
    let error = apply(&lists, &lists, &schema()).expect_err("must be refused");
    assert_eq!(error.rejection().code, 422);
    let deep = (0..=DEPTH_MAX).fold(json!({}), |inner, _| json!({"a": inner}));
    assert!(apply(&json!({}), &deep, &schema()).is_err());
}

/// Each container by itself: what the live one had, overlaid by the patch's fields, nulls removed.
fn oracle(live: &[Value], patch: &[Value]) -> BTreeMap<String, Value> {
    let name = |item: &Value| item["name"].as_str().unwrap_or_default().to_owned();
    let mut result: BTreeMap<String, Value> =
        live.iter().map(|item| (name(item), item.clone())).collect();
    for item in patch.iter().filter(|item| item["$patch"] == "delete") {
        result.remove(&name(item));
    }
    for item in patch.iter().filter(|item| item.get("$patch").is_none()) {
        let merged = result.entry(name(item)).or_insert_with(|| json!({}));
        let (Value::Object(merged), Value::Object(fields)) = (merged, item) else {
            continue;
        };
        for (field, value) in fields {
            if value.is_null() {
                merged.remove(field);
            } else {
                merged.insert(field.clone(), value.clone());
            }
        }
    }
    result
}

fn any_container() -> impl Strategy<Value = Value> {
    let image = prop_oneof![Just(Value::Null), "[12]".prop_map(Value::from)];
    ("[a-e]", prop::option::of(image), prop::option::of("[xy]")).prop_map(|(name, image, args)| {
        let mut item = json!({"name": name});
        if let Some(image) = image {
            item["image"] = image;
        }
        if let Some(args) = args {
            item["args"] = json!([args]);
        }
        item
    })
}

fn any_containers() -> impl Strategy<Value = Vec<Value>> {
    prop::collection::vec(any_container(), 0..6).prop_map(|mut items| {
        let mut seen = HashSet::new();
        items.retain(|item| seen.insert(item["name"].to_string()));
        items
    })
}

fn names(items: &[Value]) -> Vec<&str> {
    items
        .iter()
        .filter_map(|item| item["name"].as_str())
        .collect()
}

fn is_subsequence(part: &[&str], whole: &[&str]) -> bool {
    let mut whole = whole.iter();
    part.iter().all(|wanted| whole.any(|found| found == wanted))
}

/// A strategic patch's nulls mean "remove" inside the elements of lists too.
fn without_nulls_in_lists(value: &Value, in_list: bool) -> Value {
    match value {
        Value::Array(items) => items
            .iter()
            .map(|item| without_nulls_in_lists(item, true))
            .collect(),
        Value::Object(fields) => fields
            .iter()
            .filter(|(_, value)| !in_list || !value.is_null())
            .map(|(name, value)| (name.clone(), without_nulls_in_lists(value, in_list)))
            .collect::<Map<_, _>>()
            .into(),
        scalar => scalar.clone(),
    }
}

proptest! {
    #[test]
    fn keyed_lists_merge_element_by_element(
        live in any_containers(),
        mut patch in any_containers(),
        doomed in prop::collection::vec("[a-e]", 0..2),
    ) {
        let live: Vec<Value> = live.into_iter().map(|mut item| {
            if item["image"].is_null() {
                item.as_object_mut().map(|fields| fields.remove("image"));
            }
            item
        }).collect();
        patch.extend(doomed.iter().map(|name| json!({"name": name, "$patch": "delete"})));
        let merged = apply(
            &json!({"spec": {"containers": live}}),
            &json!({"spec": {"containers": patch}}),
            &schema(),
        );
        let merged = merged.expect("well-formed");
        let merged = merged["spec"]["containers"].as_array().expect("a list");
        let found: BTreeMap<String, Value> = merged
            .iter()
            .map(|item| (item["name"].as_str().unwrap_or_default().to_owned(), item.clone()))
            .collect();
        prop_assert_eq!(found.len(), merged.len(), "no element twice");
        prop_assert_eq!(&found, &oracle(&live, &patch));

        let set: Vec<Value> = patch.iter().filter(|item| item.get("$patch").is_none()).cloned().collect();
        prop_assert!(is_subsequence(&names(&set), &names(merged)), "the patch's order holds");
        let set_names = names(&set);
        let untouched: Vec<&str> = names(&live)
            .into_iter()
            .filter(|name| !set_names.contains(name) && !doomed.iter().any(|doomed| doomed == name))
            .collect();
        prop_assert!(is_subsequence(&untouched, &names(merged)), "the others' order holds");
    }

    #[test]
    fn an_explicit_order_is_obeyed(live in any_containers(), patch in any_containers()) {
        let mut order: Vec<&str> = names(&patch);
        let mut rest: Vec<&str> = names(&live);
        rest.retain(|name| !order.contains(name));
        rest.reverse();
        order.extend(rest);
        let order: Vec<Value> = order.iter().map(|name| json!({"name": name})).collect();
        let patch = json!({"spec": {"containers": patch, "$setElementOrder/containers": order}});
        let merged = apply(&json!({"spec": {"containers": live}}), &patch, &schema());
        let merged = merged.expect("well-formed");
        let merged = merged["spec"]["containers"].as_array().cloned().unwrap_or_default();
        prop_assert_eq!(names(&merged), names(&order));
    }

    #[test]
    fn without_a_schema_it_is_a_merge_patch(live in any_object(), patch in any_object()) {
        let expected = merge::apply(&live, &without_nulls_in_lists(&patch, false)).expect("an object");
        let result = apply(&live, &patch, &Schema::default());
        prop_assert_eq!(result, Ok(expected));
    }

    #[test]
    fn never_panics(live in any_value(), patch in any_value()) {
        let list = json!({"spec": {"containers": live, "volumes": live}, "metadata": {"finalizers": live}});
        let with = json!({"spec": {"containers": patch, "$setElementOrder/volumes": patch, "volumes": live},
            "metadata": {"$deleteFromPrimitiveList/finalizers": patch, "$retainKeys": patch}});
        let _ = apply(&list, &with, &schema());
        let _ = apply(&list, &json!({"spec": with["spec"]}), &schema());
        let _ = apply(&live, &patch, &schema());
    }

    #[test]
    fn no_directive_anywhere_makes_it_panic(live in any_directed(), patch in any_directed()) {
        let schema = schema();
        for field in ["spec", "metadata", "status"] {
            let live = json!({field: live, "spec": {"containers": live, "volumes": live}});
            let patch = json!({field: patch, "spec": {"containers": patch, "volumes": patch}});
            if let Err(error) = apply(&live, &patch, &schema) {
                prop_assert!([400, 422].contains(&error.rejection().code));
            }
        }
    }
}

/// Values full of directives, most of them in the wrong place.
fn any_directed() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "name",
        "containers",
        "env",
        "volumes",
        "finalizers",
        "conditions",
        "type",
        "$patch",
        "$retainKeys",
        "$setElementOrder/containers",
        "$setElementOrder/finalizers",
        "$setElementOrder/env",
        "$deleteFromPrimitiveList/finalizers",
        "$setElementOrder/",
        "$deleteFromPrimitiveList/containers",
    ]);
    let scalar = prop_oneof![
        3 => prop::sample::select(vec!["replace", "delete", "merge", "name", "a", "b"])
            .prop_map(Value::from),
        1 => Just(Value::Null),
        1 => Just(json!(1)),
    ];
    scalar.prop_recursive(4, 32, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::vec((names.clone(), inner), 0..5).prop_map(|fields| {
                let fields = fields
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value));
                Value::Object(fields.collect::<Map<_, _>>())
            }),
        ]
    })
}
