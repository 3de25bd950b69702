use serde_json::json;

use super::*;
use crate::patch::test_cluster::{Cluster, named, schema};

#[test]
fn a_creator_owns_everything_but_the_names() {
    let mut cluster = Cluster::new();
    cluster.update("kubectl-create", &json!({
        "metadata": {"labels": {"app": "x"}, "uid": "1", "generation": 1, "finalizers": ["f"]},
        "data": {"k": "v"},
        "spec": {"replicas": 1, "selector": {"a": "b"}, "strategy": {"type": "t"}, "containers": [{"name": "c", "args": ["1"]}]},
        "status": {},
    }));
    // By-value structs (default `{}`) are nobody's; the map, the pointer and the elements appeared.
    assert_eq!(
        cluster.owners(),
        json!({"kubectl-create Update": {
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}, "f:finalizers": {".": {}, "v:\"f\"": {}}},
            "f:data": {".": {}, "f:k": {}},
            "f:spec": {
                "f:replicas": {}, "f:selector": {}, "f:strategy": {".": {}, "f:type": {}},
                "f:containers": {".": {}, "k:{\"name\":\"c\"}": {".": {}, "f:name": {}, "f:args": {}}},
            },
        }})
    );
}

#[test]
fn an_update_moves_what_it_changes() {
    let mut cluster = Cluster::new();
    cluster.update("a", &json!({"data": {"k": "1", "l": "1", "m": "1"}}));
    let mut edited = cluster.live().clone();
    edited["data"] = json!({"k": "1", "l": "2", "n": "1"});
    cluster.update("b", &edited);
    assert_eq!(
        cluster.owners(),
        json!({
            "a Update": {"f:data": {".": {}, "f:k": {}}},
            "b Update": {"f:data": {"f:l": {}, "f:n": {}}},
        })
    );
    let times = |cluster: &Cluster| {
        let entries = cluster.live()["metadata"]["managedFields"]
            .as_array()
            .cloned();
        entries
            .unwrap_or_default()
            .iter()
            .map(|entry| entry["time"].to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        times(&cluster),
        ["\"2026-01-01T00:00:01Z\"", "\"2026-01-01T00:00:02Z\""]
    );

    // Nothing changed: no time does either.
    let same = cluster.live().clone();
    cluster.update("a", &same);
    assert_eq!(cluster.live(), &same);

    // The same manager's second change goes into its entry.
    let mut edited = same;
    edited["data"]["o"] = json!("1");
    cluster.update("a", &edited);
    assert_eq!(
        cluster.owners()["a Update"],
        json!({"f:data": {".": {}, "f:k": {}, "f:o": {}}})
    );
    assert_eq!(
        times(&cluster),
        ["\"2026-01-01T00:00:02Z\"", "\"2026-01-01T00:00:04Z\""]
    );

    // A client that does not know managedFields does not lose them.
    cluster.update("c", &json!({"data": {"k": "1", "l": "2"}}));
    assert_eq!(
        cluster.owners(),
        json!({
            "a Update": {"f:data": {".": {}, "f:k": {}}}, "b Update": {"f:data": {"f:l": {}}},
        })
    );
}

#[test]
fn an_update_and_an_apply_are_two_managers() {
    let mut cluster = Cluster::new();
    cluster.apply("a", json!({"data": {"k": "1"}}));
    let mut edited = cluster.live().clone();
    edited["data"]["k"] = json!("2");
    cluster.update("a", &edited);
    assert_eq!(
        cluster.owners(),
        json!({"a Update": {"f:data": {"f:k": {}}}})
    );
    let error = cluster
        .try_apply("a", &json!({"data": {"k": "1"}}), false)
        .expect_err("conflict");
    assert_eq!(
        error.to_string(),
        r#"Apply failed with 1 conflict: conflict with "a" using v1: .data.k"#
    );
}

#[test]
fn submitted_managed_fields() {
    let create = || {
        let mut cluster = Cluster::new();
        cluster.update("a", &json!({"data": {"k": "1"}}));
        cluster
    };
    let with = |managed: Value| json!({"data": {"k": "1"}, "metadata": {"managedFields": managed}});
    for reset in [json!([]), json!([{}])] {
        let mut cluster = create();
        cluster.update("b", &with(reset.clone()));
        assert_eq!(
            cluster.live()["metadata"].get("managedFields"),
            None,
            "{reset}"
        );
        // Untracked until the next apply.
        cluster.update("b", &json!({"data": {"k": "2"}}));
        assert_eq!(cluster.live()["metadata"].get("managedFields"), None);
        cluster.apply("c", json!({"data": {"l": "1"}}));
        assert_eq!(
            cluster.owners()["before-first-apply Update"],
            json!({"f:data": {".": {}, "f:k": {}}})
        );
    }

    let mut cluster = create();
    let mine = json!({
        "manager": "x", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:data": {"f:k": {}}},
    });
    cluster.update("b", &with(json!([mine])));
    assert_eq!(cluster.live()["metadata"]["managedFields"], json!([mine]));

    let broken = [
        json!(1),
        json!([1]),
        json!([{"manager": "x"}]),
        json!([{}, {}]),
        json!([{"operation": "Steal", "apiVersion": "v1", "fieldsType": "FieldsV1"}]),
        json!([{"operation": "Apply", "fieldsType": "FieldsV1"}]),
        json!([{"operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV9"}]),
        json!([{"operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "time": "yesterday"}]),
        json!([{"operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"bad": {}}}]),
    ];
    for broken in broken {
        let mut cluster = create();
        let before = cluster.object.clone();
        cluster.update("b", &with(broken.clone()));
        assert_eq!(cluster.object, before, "{broken}");
    }

    // Through a subresource they cannot be touched.
    let mut cluster = create();
    let before = cluster.object.clone();
    cluster.update_at("b", &with(json!([])), Some("status"));
    assert_eq!(cluster.object, before);
}

#[test]
fn subresources_are_tracked_apart() {
    let mut cluster = Cluster::new();
    cluster.update("a", &json!({"data": {"k": "1"}}));
    let mut edited = cluster.live().clone();
    edited["status"] = json!({"conditions": [{"type": "Ready"}]});
    cluster.update_at("a", &edited, Some("status"));
    assert_eq!(
        cluster.owners()["a Update status"],
        json!({"f:status": {
            "f:conditions": {".": {}, "k:{\"type\":\"Ready\"}": {".": {}, "f:type": {}}},
        }})
    );
    assert_eq!(
        cluster.owners()["a Update"],
        json!({"f:data": {".": {}, "f:k": {}}})
    );
}

#[test]
fn the_oldest_of_many_updaters_become_one() {
    let mut cluster = Cluster::new();
    let mut data = serde_json::Map::new();
    for number in 0..15 {
        let name = format!("m{number:02}");
        data.insert(name.clone(), json!("1"));
        let mut next = json!({"data": data});
        next["metadata"] = cluster
            .object
            .as_ref()
            .map_or(json!({}), |live| live["metadata"].clone());
        cluster.update(&name, &next);
    }
    let owners = cluster.owners();
    let owners = owners.as_object().expect("a map");
    assert_eq!(owners.len(), UPDATERS_MAX);
    assert_eq!(
        owners["ancient-changes Update"],
        json!({"f:data": {
            ".": {}, "f:m00": {}, "f:m01": {}, "f:m02": {}, "f:m03": {}, "f:m04": {}, "f:m05": {},
        }})
    );
    assert_eq!(owners["m14 Update"], json!({"f:data": {"f:m14": {}}}));
}

#[test]
fn times_alone_are_no_change() {
    let mut cluster = Cluster::new();
    cluster.update("a", &json!({"data": {"k": "1"}}));
    let before = cluster.live().clone();
    let mut after = before.clone();
    after["metadata"]["managedFields"][0]["time"] = json!("2027-01-01T00:00:00Z");
    assert!(keep_times_if_unchanged(&before, &mut after));
    assert_eq!(after, before);
    after["metadata"]["managedFields"][0]["time"] = json!("2027-01-01T00:00:00Z");
    after["data"]["k"] = json!("2");
    assert!(!keep_times_if_unchanged(&before, &mut after));
    assert_eq!(after["data"]["k"], "2");
}

#[test]
fn a_value_too_deep_to_compare_keeps_the_stored_managers() {
    let mut cluster = Cluster::new();
    cluster.update("a", &json!({"data": {"k": "1"}}));
    let deep = (0..300).fold(json!({}), |inner, _| json!({"a": inner}));
    let before = cluster.live().clone();
    let mut after = named(&json!({"data": deep}));
    track_update(
        Some(&before),
        &mut after,
        "b",
        "v1",
        None,
        "2026-01-01T00:00:00Z",
        &schema(),
    );
    assert_eq!(after["metadata"], before["metadata"]);
}
