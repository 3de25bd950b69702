//! Objects as the API has them, and what is read from and written to them.

use serde_json::{Value, json};

use super::*;
use crate::snapshots::Trouble;

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object")
}

fn volume() -> api_types::Volume {
    object(json!({
        "apiVersion": "longhorn.io/v1beta2", "kind": "Volume",
        "metadata": {"name": "v", "uid": "uid-of-v", "namespace": "longhorn-system"}, "spec": {},
    }))
}

fn snapshot(name: &str) -> api_types::Snapshot {
    object(json!({
        "apiVersion": "longhorn.io/v1beta2", "kind": "Snapshot",
        "metadata": {"name": name, "creationTimestamp": "2026-06-01T12:00:00Z"},
        "spec": {"volume": "v", "createSnapshot": true},
    }))
}

/// A running writer that has listed `a`, right below the live data, for the present generation of its object.
fn engine() -> api_types::Engine {
    object(json!({
        "apiVersion": "longhorn.io/v1beta2", "kind": "Engine",
        "metadata": {"name": "v-e-0", "generation": 4},
        "spec": {"volumeName": "v", "desireState": "running", "role": "writer", "epoch": 2},
        "status": {
            "currentState": "running", "epoch": 2, "snapshotsGeneration": 4,
            "snapshots": {
                "volume-head": {"name": "volume-head", "parent": "a"},
                "a": {
                    "name": "a", "children": {"volume-head": true}, "usercreated": true,
                    "created": "2026-06-01T12:00:01Z", "size": "8192", "restoreSize": "1048576",
                },
            },
            "snapshotErrors": {"b": "no room"},
        },
    }))
}

fn view(objects: &[api_types::Snapshot], engine: &api_types::Engine) -> SnapshotsView {
    let settings = Settings::default();
    snapshots(Some(&volume()), objects, [engine], &settings)
}

#[test]
fn a_list_counts_only_as_the_answer_to_what_is_asked_now() {
    let listed = |change: fn(&mut api_types::Engine)| {
        let mut engine = engine();
        change(&mut engine);
        let view = view(&[], &engine).engine;
        let names = view.listed.map(|listed| listed.into_keys().collect());
        (view.exists, names.map(|names: Vec<String>| names.join(" ")))
    };
    fn status(engine: &mut api_types::Engine) -> &mut api_types::EngineStatus {
        engine.status.as_mut().expect("a status")
    }
    assert_eq!(listed(|_| {}), (true, Some("a".to_owned())));
    let old: [fn(&mut api_types::Engine); 4] = [
        |engine| engine.metadata.generation = Some(5),
        |engine| engine.spec.epoch = 3,
        |engine| status(engine).current_state = InstanceState::Stopped,
        |engine| drop(status(engine).snapshots.remove(VOLUME_HEAD)),
    ];
    for change in old {
        assert_eq!(listed(change), (true, None));
    }
    // What a standby or a former writer says is no answer.
    assert_eq!(
        listed(|engine| engine.spec.role = EngineRole::Standby),
        (false, None)
    );
    assert_eq!(
        listed(|engine| engine.spec.desire_state = InstanceState::Stopped),
        (false, None)
    );
}

#[test]
fn only_the_writer_is_asked_and_what_it_could_not_do_is_shown() {
    let mut engine = engine();
    let told = |name: &str| {
        let mut object = snapshot(name);
        object.status.get_or_insert_default().requested_time = "2026-06-01T12:00:00Z".into();
        object
    };
    let view = view(&[told("a"), told("b"), snapshot("c")], &engine);
    assert!(view.engine.taking.is_empty() && view.hands_over("c"));
    write_snapshot_requests(&view, &mut engine);
    let again = self::view(&[], &engine).engine.taking;
    assert_eq!(again.into_iter().collect::<Vec<_>>(), ["a", "b"]);
    let expected = [("a", SnapshotRequest::Take), ("b", SnapshotRequest::Take)];
    let expected = expected.map(|(name, request)| (name.to_owned(), request));
    assert_eq!(engine.spec.snapshot_requests, BTreeMap::from(expected));
    let refused = Trouble::Refused {
        why: "no room".into(),
    };
    assert_eq!(
        view.outcome("b"),
        Outcome::Wait {
            trouble: Some(refused)
        }
    );
    engine.spec.role = EngineRole::Former;
    write_snapshot_requests(&view, &mut engine);
    assert!(engine.spec.snapshot_requests.is_empty());
}

#[test]
fn an_object_shows_its_snapshot() {
    let (engine, mut object) = (engine(), snapshot("a"));
    let outcome = view(&[object.clone()], &engine).outcome("a");
    write_snapshot_status(&outcome, true, snapshot_info([&engine], "a"), &mut object);
    let status = object.status.clone().expect("a status");
    assert!(status.ready_to_use && status.user_created);
    assert_eq!((status.size, status.restore_size), (8192, 1 << 20));
    assert_eq!(status.creation_time, "2026-06-01T12:00:01Z");
    assert_eq!(status.requested_time, "2026-06-01T12:00:00Z");
    assert!(status.children.contains_key(VOLUME_HEAD));
    assert_eq!(status.error, "");

    // It is not looked into while it is detached; what was seen stands, except that it is not to be used when it goes.
    let stands = Outcome::Wait { trouble: None };
    write_snapshot_status(&stands, false, None, &mut object);
    assert_eq!(object.status.as_ref(), Some(&status));
    object.metadata.deletion_timestamp = object.metadata.creation_timestamp.clone();
    write_snapshot_status(&stands, false, None, &mut object);
    assert!(!object.status.as_ref().expect("a status").ready_to_use);

    let lost = Outcome::Absent {
        trouble: Trouble::Lost,
    };
    write_snapshot_status(&lost, false, None, &mut object);
    let error = object.status.expect("a status").error;
    assert_eq!(error, "the volume does not have this snapshot any more");
}

#[test]
fn an_object_belongs_to_its_volume_and_to_whom_it_belonged() {
    let mut object = snapshot("a");
    object.metadata.finalizers = Some(vec!["somebody/else".to_owned()]);
    adopt_snapshot(&mut object.metadata, &volume());
    let once = object.metadata.clone();
    assert_eq!(
        once.finalizers.as_deref(),
        Some(&["somebody/else".to_owned(), FINALIZER.to_owned()][..])
    );
    assert_eq!(once.owner_references.as_ref().map(Vec::len), Some(1));
    adopt_snapshot(&mut object.metadata, &volume());
    assert_eq!(object.metadata, once);
    assert!(!is_of_former(&once, &volume()));
    let mut successor = volume();
    successor.metadata.uid = Some("another-uid".to_owned());
    assert!(is_of_former(&once, &successor));
    // Nobody's yet.
    assert!(!is_of_former(&snapshot("a").metadata, &successor));
    let shown = new_snapshot("found", &volume());
    assert!(!shown.spec.create_snapshot && shown.spec.volume == "v");
}
