#![allow(
    clippy::needless_pass_by_value,
    reason = "rows of literals read better without a reference before each"
)]

mod properties;

use serde_json::{Value, json};

use super::*;
use crate::patch::bounds::DEPTH_MAX;
use crate::patch::test_cluster::{Cluster, named, schema};

#[track_caller]
fn refused(cluster: &mut Cluster, manager: &str, fields: Value) -> Rejection {
    let before = cluster.object.clone();
    let error = cluster
        .try_apply(manager, &fields, false)
        .expect_err("must be refused");
    assert_eq!(cluster.object, before);
    error.rejection()
}

#[test]
fn creates_and_records_what_was_applied() {
    let mut cluster = Cluster::new();
    cluster.apply("a", json!({
        "metadata": {"labels": {"app": "x"}, "finalizers": ["f"]},
        "data": {"k": "v"},
        "spec": {"selector": {"s": "1"}, "containers": [{"name": "c", "args": ["1"], "ports": [{"containerPort": 80}]}]},
    }));
    assert_eq!(
        cluster.owners(),
        json!({"a Apply": {
            "f:metadata": {"f:labels": {"f:app": {}}, "f:finalizers": {"v:\"f\"": {}}},
            "f:data": {"f:k": {}},
            "f:spec": {"f:selector": {}, "f:containers": {"k:{\"name\":\"c\"}": {
                ".": {}, "f:name": {}, "f:args": {},
                "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}},
            }}},
        }})
    );
    let entry = &cluster.live()["metadata"]["managedFields"][0];
    assert_eq!(entry["time"], "2026-01-01T00:00:01Z");
    assert_eq!(entry["apiVersion"], "v1");
    assert_eq!(entry["fieldsType"], "FieldsV1");
}

#[test]
fn applying_the_same_again_changes_nothing() {
    let mut cluster = Cluster::new();
    let fields = json!({"data": {"k": "v"}, "spec": {"strategy": {}}});
    cluster.apply("a", fields.clone());
    let first = cluster.object.clone();
    cluster.apply("a", fields);
    assert_eq!(cluster.object, first);
    // The same fields with another value are a change, and it has a time.
    cluster.apply("a", json!({"data": {"k": "w"}, "spec": {"strategy": {}}}));
    let entry = &cluster.live()["metadata"]["managedFields"][0];
    assert_eq!(entry["time"], "2026-01-01T00:00:03Z");
}

/// `kubectl create --dry-run -o yaml` prints such a null.
#[test]
fn a_null_creation_timestamp_means_nothing() {
    let mut cluster = Cluster::new();
    let created =
        json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, "data": {"k": "v"}});
    cluster.update("a", &created);
    cluster.apply(
        "b",
        json!({"metadata": {"creationTimestamp": null}, "data": {"k": "v"}}),
    );
    assert_eq!(cluster.content(), created);
}

#[test]
fn what_is_no_longer_applied_goes() {
    let mut cluster = Cluster::new();
    cluster.apply("a", json!({"data": {"k": "1", "l": "2"}, "spec": {"replicas": 1, "containers": [{"name": "c"}, {"name": "d"}]}}));
    cluster.apply(
        "b",
        json!({"data": {"m": "3"}, "spec": {"containers": [{"name": "d", "image": "i"}]}}),
    );
    cluster.apply("a", json!({"data": {"k": "1"}}));
    assert_eq!(
        cluster.content(),
        json!({"data": {"k": "1", "m": "3"}, "spec": {"containers": [{"name": "d", "image": "i"}]}})
    );
    cluster.apply("b", json!({}));
    assert_eq!(cluster.content(), json!({"data": {"k": "1"}}));
    assert_eq!(
        cluster.owners(),
        json!({"a Apply": {"f:data": {"f:k": {}}}})
    );
}

#[test]
fn a_conflict_names_the_field_and_its_owner() {
    let mut cluster = Cluster::new();
    cluster.update(
        "kubectl-client-side-apply",
        &json!({"data": {"a": "1", "b": "1"}}),
    );
    let rejection = refused(&mut cluster, "other", json!({"data": {"a": "2"}}));
    assert_eq!((rejection.code, rejection.reason), (409, "Conflict"));
    assert_eq!(
        rejection.message,
        r#"Apply failed with 1 conflict: conflict with "kubectl-client-side-apply" using v1: .data.a"#
    );
    assert_eq!(
        rejection.causes,
        [json!({
            "reason": "FieldManagerConflict",
            "message": r#"conflict with "kubectl-client-side-apply" using v1"#,
            "field": ".data.a",
        })]
    );

    cluster.apply(
        "applier",
        json!({"spec": {"containers": [{"name": "c", "image": "1"}]}}),
    );
    let rejection = refused(
        &mut cluster,
        "other",
        json!({
            "data": {"a": "2", "b": "2"}, "spec": {"containers": [{"name": "c", "image": "2"}]},
        }),
    );
    assert_eq!(
        rejection.message,
        concat!(
            "Apply failed with 3 conflicts: conflicts with \"applier\":\n",
            "- .spec.containers[name=\"c\"].image\n",
            "conflicts with \"kubectl-client-side-apply\" using v1:\n",
            "- .data.a\n",
            "- .data.b",
        )
    );
    assert_eq!(rejection.causes.len(), 3);
}

/// The example of the Kubernetes documentation: a config map that kubectl applied and a controller
/// changed.
#[test]
fn the_documented_config_map() {
    let mut cluster = Cluster::new();
    let config = json!({
        "metadata": {"labels": {"test-label": "test"}}, "data": {"key": "some value"},
    });
    cluster.apply("kubectl", config.clone());
    assert_eq!(
        cluster.owners(),
        json!({"kubectl Apply": {
            "f:metadata": {"f:labels": {"f:test-label": {}}}, "f:data": {"f:key": {}},
        }})
    );
    let mut changed = cluster.live().clone();
    changed["data"]["key"] = json!("new value");
    cluster.update("kube-controller-manager", &changed);
    assert_eq!(
        cluster.owners(),
        json!({
            "kubectl Apply": {"f:metadata": {"f:labels": {"f:test-label": {}}}},
            "kube-controller-manager Update": {"f:data": {"f:key": {}}},
        })
    );
    let rejection = refused(&mut cluster, "kubectl", config);
    assert_eq!(
        rejection.message,
        r#"Apply failed with 1 conflict: conflict with "kube-controller-manager" using v1: .data.key"#
    );
    // Giving the field up leaves it to the controller.
    cluster.apply(
        "kubectl",
        json!({"metadata": {"labels": {"test-label": "test"}}}),
    );
    assert_eq!(cluster.content()["data"], json!({"key": "new value"}));
}

#[test]
fn force_takes_ownership() {
    let mut cluster = Cluster::new();
    cluster.apply("a", json!({"data": {"k": "1", "l": "1"}}));
    cluster
        .try_apply("b", &json!({"data": {"k": "2"}}), true)
        .expect("forced");
    assert_eq!(cluster.content(), json!({"data": {"k": "2", "l": "1"}}));
    assert_eq!(
        cluster.owners(),
        json!({"a Apply": {"f:data": {"f:l": {}}}, "b Apply": {"f:data": {"f:k": {}}}})
    );
    let rejection = refused(&mut cluster, "a", json!({"data": {"k": "1", "l": "1"}}));
    assert_eq!(
        rejection.message,
        r#"Apply failed with 1 conflict: conflict with "b": .data.k"#
    );
}

#[test]
fn equal_values_are_shared() {
    let mut cluster = Cluster::new();
    cluster.apply("a", json!({"data": {"k": "1"}}));
    cluster.apply("b", json!({"data": {"k": "1"}}));
    let shared = json!({"f:data": {"f:k": {}}});
    assert_eq!(
        cluster.owners(),
        json!({"a Apply": shared, "b Apply": shared})
    );
    // Whoever only shares what is there has changed nothing, and stands first, without a time.
    let entries = &cluster.live()["metadata"]["managedFields"];
    assert_eq!(entries[0]["manager"], "b");
    assert_eq!(entries[0]["time"], Value::Null);
    assert_eq!(entries[1]["time"], "2026-01-01T00:00:01Z");
    cluster.apply("a", json!({}));
    assert_eq!(cluster.content(), json!({"data": {"k": "1"}}));
    assert_eq!(cluster.owners(), json!({"b Apply": shared}));
    refused(&mut cluster, "a", json!({"data": {"k": "2"}}));
}

#[test]
fn lists_merge_by_their_declared_keys() {
    let ports = |ports: Value| json!({"spec": {"containers": [{"name": "c", "ports": ports}]}});
    let mut cluster = Cluster::new();
    cluster.apply("a", ports(json!([{"containerPort": 53}])));
    cluster.apply(
        "b",
        ports(json!([{"containerPort": 53, "protocol": "UDP", "name": "dns"}])),
    );
    assert_eq!(
        cluster.content(),
        ports(
            json!([{"containerPort": 53}, {"containerPort": 53, "protocol": "UDP", "name": "dns"}])
        )
    );
    // The default of a key is that key's value, so this names the first port.
    cluster.apply(
        "a",
        ports(json!([{"containerPort": 53, "protocol": "TCP", "name": "tcp"}])),
    );
    assert_eq!(
        cluster.content()["spec"]["containers"][0]["ports"],
        json!([{"containerPort": 53, "protocol": "TCP", "name": "tcp"}, {"containerPort": 53, "protocol": "UDP", "name": "dns"}])
    );

    let conditions = |conditions: Value| json!({"status": {"conditions": conditions}});
    let mut cluster = Cluster::new();
    cluster.apply(
        "kubelet",
        conditions(json!([{"type": "Ready", "status": "True"}])),
    );
    cluster.apply(
        "monitor",
        conditions(json!([{"type": "Disk", "status": "Ok"}])),
    );
    cluster.apply(
        "kubelet",
        conditions(json!([{"type": "Ready", "status": "False"}])),
    );
    assert_eq!(
        cluster.content(),
        conditions(json!([{"type": "Ready", "status": "False"}, {"type": "Disk", "status": "Ok"}]))
    );
}

#[test]
fn lists_come_in_the_applied_order() {
    let rows = [
        ("abc", "", "abc"),
        ("abc", "ca", "bca"),
        ("ab", "ba", "ba"),
        ("xab", "na", "xnab"),
        ("a", "bac", "bac"),
        ("axb", "ba", "xba"),
    ];
    let list = |names: &str| -> Value {
        let names = names.chars().map(|name| json!({"name": name.to_string()}));
        json!({"spec": {"containers": names.collect::<Vec<_>>()}})
    };
    for (live, applied, expected) in rows {
        let schema = schema();
        let merged = merge::merge(&list(live), &list(applied), Node::root(&schema));
        assert_eq!(merged, list(expected), "{applied} over {live}");
    }
}

#[test]
fn atomic_values_have_one_owner() {
    let mut cluster = Cluster::new();
    cluster.apply("a", json!({"spec": {"selector": {"x": "1"}}}));
    let rejection = refused(&mut cluster, "b", json!({"spec": {"selector": {"y": "1"}}}));
    assert_eq!(
        rejection.message,
        r#"Apply failed with 1 conflict: conflict with "a": .spec.selector"#
    );
    cluster.apply("a", json!({"spec": {"selector": {"y": "1"}}}));
    assert_eq!(cluster.content(), json!({"spec": {"selector": {"y": "1"}}}));
    cluster.apply(
        "a",
        json!({"spec": {"anything": {"deep": {"list": [1, {"x": 2}]}}}}),
    );
    assert_eq!(
        cluster.owners(),
        json!({"a Apply": {"f:spec": {"f:anything": {"f:deep": {".": {}, "f:list": {}}}}}})
    );
}

#[test]
fn defaults_inside_a_struct_go_with_it() {
    let mut cluster = Cluster::new();
    cluster.apply(
        "a",
        json!({"data": {"k": "1"}, "spec": {"strategy": {"type": "Rolling"}}}),
    );
    if let Some(object) = &mut cluster.object {
        object["spec"]["strategy"]["surge"] = json!(1);
    }
    cluster.apply("a", json!({"data": {"k": "1"}}));
    assert_eq!(cluster.content(), json!({"data": {"k": "1"}}));
}

#[test]
fn an_unmanaged_object_belongs_to_whoever_came_before() {
    let mut cluster = Cluster::new();
    cluster.object = Some(named(&json!({"data": {"k": "1"}, "spec": {"replicas": 1}})));
    let rejection = refused(&mut cluster, "a", json!({"data": {"k": "2"}}));
    assert_eq!(
        rejection.message,
        r#"Apply failed with 1 conflict: conflict with "before-first-apply" using v1: .data.k"#
    );
    cluster.apply("a", json!({"data": {"l": "2"}}));
    assert_eq!(
        cluster.owners(),
        json!({
            "a Apply": {"f:data": {"f:l": {}}},
            "before-first-apply Update": {"f:data": {".": {}, "f:k": {}}, "f:spec": {"f:replicas": {}}},
        })
    );
}

#[test]
fn a_schema_that_turned_atomic_keeps_its_owners() {
    let mut cluster = Cluster::new();
    cluster.apply("a", json!({"data": {"k": "1"}}));
    let schema = std::sync::Arc::make_mut(&mut cluster.schema);
    let data = schema.properties.get_mut("data").expect("declared");
    data.map_type = Some(crate::schema::MapType::Atomic);
    let rejection = refused(&mut cluster, "b", json!({"data": {"l": "1"}}));
    assert_eq!(
        rejection.message,
        r#"Apply failed with 1 conflict: conflict with "a": .data"#
    );
}

#[test]
fn kubectl_continues_its_client_side_apply() {
    const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let last_applied = named(&json!({"data": {"k": "1", "l": "1"}})).to_string();
    let metadata = json!({"annotations": {ANNOTATION: last_applied}});
    let mut cluster = Cluster::new();
    cluster.update(
        "kubectl-client-side-apply",
        &json!({"metadata": metadata, "data": {"k": "1", "l": "1"}}),
    );
    refused(&mut cluster, "other", json!({"data": {"k": "2"}}));
    cluster.apply("kubectl", json!({"data": {"k": "2", "l": "1"}}));
    assert_eq!(cluster.content()["data"], json!({"k": "2", "l": "1"}));
    let annotation = &cluster.live()["metadata"]["annotations"][ANNOTATION];
    let expected = named(&json!({"data": {"k": "2", "l": "1"}}));
    assert_eq!(annotation, &format!("{expected}\n"));

    // Somebody else changed l in between: that is a conflict still, and the only one named.
    let mut cluster = Cluster::new();
    cluster.update(
        "kubectl-client-side-apply",
        &json!({"metadata": metadata, "data": {"k": "1", "l": "1"}}),
    );
    let mut edited = cluster.live().clone();
    edited["data"]["l"] = json!("3");
    cluster.update("editor", &edited);
    let rejection = refused(
        &mut cluster,
        "kubectl",
        json!({"data": {"k": "2", "l": "2"}}),
    );
    assert_eq!(
        rejection.message,
        r#"Apply failed with 1 conflict: conflict with "editor" using v1: .data.l"#
    );
}

#[test]
fn refuses_what_cannot_be_applied() {
    let mut cluster = Cluster::new();
    cluster.apply("a", json!({"data": {"k": "1"}}));
    let rows = [
        (
            json!({"metadata": {"managedFields": []}}),
            "metadata.managedFields must be nil",
        ),
        (
            json!({"spec": {"nope": 1}}),
            "failed to create typed patch object (/x; /v1, Kind=Thing): .spec.nope: field not declared in schema",
        ),
        (
            json!({"spec": {"replicas": "1"}}),
            "failed to create typed patch object (/x; /v1, Kind=Thing): .spec.replicas: expected numeric (int or float), got &value.valueUnstructured{Value:\"1\"}",
        ),
        (
            json!({"spec": {"containers": [{"image": "1"}]}}),
            "failed to create typed patch object (/x; /v1, Kind=Thing): .spec.containers: element 0: associative list with keys has an element that omits key field \"name\" (and doesn't have default value)",
        ),
        (
            json!({"spec": {"containers": [{"name": "a"}, {"name": "a"}], "strategy": []}}),
            "failed to create typed patch object (/x; /v1, Kind=Thing): errors:\n  .spec.containers: duplicate entries for key [name=\"a\"]\n  .spec.strategy: expected map, got &value.valueUnstructured{Value:[]}",
        ),
    ];
    for (fields, message) in rows {
        let rejection = refused(&mut cluster, "b", fields);
        assert_eq!((rejection.code, rejection.message.as_str()), (400, message));
    }
    let schema = schema();
    let request = |applied| ApplyRequest {
        live: cluster.object.as_ref(),
        applied,
        manager: "b",
        force: true,
        subresource: None,
        now: "2026-01-01T00:00:00Z",
        schema: &schema,
    };
    let other_version = json!({"apiVersion": "v2", "kind": "Thing"});
    assert_eq!(
        apply(request(&other_version)).map_err(|error| error.to_string()),
        Err(
            "Incorrect version specified in apply patch. Specified patch version: v2, expected: v1"
                .to_owned()
        )
    );
    let list = json!([]);
    assert_eq!(apply(request(&list)), Err(ApplyError::NotAnObject));
    let deep = (0..=DEPTH_MAX).fold(json!({}), |inner, _| json!({"a": inner}));
    assert_eq!(apply(request(&deep)), Err(ApplyError::TooDeep(TooDeep)));
}

#[test]
fn a_subresource_is_a_manager_of_its_own() {
    let mut cluster = Cluster::new();
    cluster.apply("a", json!({"spec": {"replicas": 1}}));
    let schema = schema();
    let status = named(&json!({"status": {"conditions": [{"type": "Ready"}]}}));
    let result = apply(ApplyRequest {
        live: cluster.object.as_ref(),
        applied: &status,
        manager: "a",
        force: false,
        subresource: Some("status"),
        now: "2026-01-01T00:01:00Z",
        schema: &schema,
    });
    cluster.object = Some(result.expect("no conflict"));
    assert_eq!(cluster.content()["spec"], json!({"replicas": 1}));
    assert_eq!(
        cluster.owners()["a Apply status"],
        json!({"f:status": {"f:conditions": {
            "k:{\"type\":\"Ready\"}": {".": {}, "f:type": {}},
        }}})
    );
    let rejection = refused(
        &mut cluster,
        "b",
        json!({"status": {"conditions": [{"type": "Ready", "status": "x"}, {"type": "Ready2"}]}, "spec": {"replicas": 2}}),
    );
    assert_eq!(
        rejection.message,
        r#"Apply failed with 1 conflict: conflict with "a": .spec.replicas"#
    );
}

#[test]
fn field_sets_have_one_notation() {
    let canonical = json!({
        "f:metadata": {"f:labels": {".": {}, "f:a.b/c": {}}},
        "f:spec": {"f:list": {"k:{\"name\":\"<x>\"}": {".": {}, "f:name": {}}, "v:1": {}, "i:0": {}}},
    });
    let set = parse_fields_v1(&canonical).expect("valid");
    assert_eq!(set.paths().len(), 6);
    let written = serialize_fields_v1(&set);
    assert_eq!(parse_fields_v1(&written), Ok(set));
    assert!(written.to_string().contains(r"\\u003cx\\u003e"));
    // Kinds of steps that a later version adds are left out.
    assert_eq!(
        parse_fields_v1(&json!({"z:new": {}, "f:a": {}})),
        parse_fields_v1(&json!({"f:a": {}}))
    );
    for broken in [
        json!([]),
        json!({"f:a": 1}),
        json!({"nothing": {}}),
        json!({"k:x": {}}),
        json!({"i:x": {}}),
        json!({"v:": {}}),
    ] {
        assert!(parse_fields_v1(&broken).is_err(), "{broken}");
    }
    let deep = (0..DEPTH_MAX + 10).fold(json!({}), |inner, _| json!({"f:a": inner}));
    assert!(parse_fields_v1(&deep).is_err());
}

/// An answer must not be much larger than the request that caused it.
#[test]
fn many_conflicts_are_counted_but_not_all_listed() {
    let data = |value: &str| {
        let entries =
            (0..CONFLICTS_LISTED_MAX + 5).map(|index| (format!("k{index}"), json!(value)));
        json!({"data": entries.collect::<serde_json::Map<_, _>>()})
    };
    let mut cluster = Cluster::new();
    cluster.apply("a", data("1"));
    let rejection = refused(&mut cluster, "b", data("2"));
    assert!(
        rejection
            .message
            .starts_with("Apply failed with 1005 conflicts: conflicts with \"a\":\n- .data.k0\n")
    );
    assert!(rejection.message.ends_with("\n- and 5 more"));
    assert_eq!(rejection.causes.len(), CONFLICTS_LISTED_MAX);
}
