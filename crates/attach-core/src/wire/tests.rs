#![expect(
    clippy::needless_pass_by_value,
    reason = "rows of data read better without borrows"
)]

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::decide;
use crate::reaper::Fate;
use crate::view::{Engines, Nodes, Settings, View};

fn object<T: DeserializeOwned>(kind: &str, body: Value) -> T {
    let mut whole = json!({ "apiVersion": "longhorn.io/v1beta2", "kind": kind, "metadata": { "name": "vol" }, "spec": {} });
    for (key, value) in body.as_object().unwrap() {
        whole[key] = value.clone();
    }
    serde_json::from_value(whole).unwrap()
}

fn a_volume(body: Value) -> api_types::Volume {
    object("Volume", body)
}

#[test]
fn the_migration_annotation_is_the_one_that_others_know() {
    assert_eq!(
        migration::ANNOTATION,
        api_types::names::annotation::MIGRATION
    );
}

#[test]
fn sharing_comes_from_access_mode_and_migratable() {
    let check = |spec: Value, expected: Sharing| {
        assert_eq!(
            volume(&a_volume(json!({ "spec": spec })))
                .unwrap()
                .0
                .sharing,
            expected
        );
    };
    check(json!({}), Sharing::Exclusive);
    check(
        json!({ "accessMode": "rwo", "migratable": true }),
        Sharing::Exclusive,
    );
    check(json!({ "accessMode": "rwx" }), Sharing::Shared);
    check(
        json!({ "accessMode": "rwx", "migratable": true }),
        Sharing::Migratable,
    );
}

#[test]
fn an_engine_has_failed_when_restarts_are_counted_and_their_time_is_known() {
    let check = |status: Value, expected: Option<&str>| {
        let status = volume(&a_volume(json!({ "status": status })))
            .unwrap()
            .0
            .status;
        let expected = expected.map(|time| time.parse().unwrap());
        assert_eq!(status.engine_failed_at, expected);
    };
    let at = "2026-01-31T12:00:00Z";
    check(
        json!({ "engineRestarts": 2, "engineRestartedAt": at }),
        Some(at),
    );
    // Counted from the start again, as after a detach: the time is of something else.
    check(
        json!({ "engineRestarts": 0, "engineRestartedAt": at }),
        None,
    );
    check(
        json!({ "engineRestarts": 2, "engineRestartedAt": "" }),
        None,
    );
    check(
        json!({ "engineRestarts": 2, "engineRestartedAt": "yesterday" }),
        None,
    );
    check(json!({}), None);
}

#[test]
fn a_share_needs_state_and_endpoint_and_a_clone_its_state() {
    let check = |status: Value, expected: (bool, bool)| {
        let status = volume(&a_volume(json!({ "status": status })))
            .unwrap()
            .0
            .status;
        assert_eq!((status.share_available, status.clone_copied), expected);
    };
    check(
        json!({ "shareState": "running", "shareEndpoint": "nfs://10.0.0.1/vol" }),
        (true, false),
    );
    check(json!({ "shareState": "running" }), (false, false));
    check(
        json!({ "shareState": "starting", "shareEndpoint": "nfs://10.0.0.1/vol" }),
        (false, false),
    );
    check(
        json!({ "cloneStatus": { "state": "copy-completed-awaiting-healthy" } }),
        (false, true),
    );
    check(
        json!({ "cloneStatus": { "state": "initiated" } }),
        (false, false),
    );
}

#[test]
fn a_plan_written_and_read_again_is_the_same() {
    let mut wire_volume = a_volume(json!({
        "metadata": { "name": "vol", "annotations": { "keep": "me" } },
        "spec": { "accessMode": "rwx", "migratable": true, "nodeID": "n1" },
        "status": { "state": "attached", "currentNodeID": "n1" },
    }));
    let ticket = |node: &str| json!({ "id": node, "type": "csi-attacher", "nodeID": node });
    let mut attachment: api_types::VolumeAttachment = object(
        "VolumeAttachment",
        json!({
            "spec": { "volume": "vol", "attachmentTickets": { "n1": ticket("n1"), "n2": ticket("n2") } },
            "status": { "attachmentTicketStatuses": { "n1": { "id": "n1", "note": "of another tool" }, "gone": { "id": "gone" } } },
        }),
    );
    let view = |wire_volume: &api_types::Volume, attachment: &api_types::VolumeAttachment| View {
        now: "2026-06-01T12:00:00Z".parse().unwrap(),
        volume: volume(wire_volume).unwrap().0,
        tickets: tickets(attachment),
        statuses: statuses(attachment),
        nodes: Nodes::default(),
        engines: Engines::default(),
        settings: Settings::default(),
    };
    let before = view(&wire_volume, &attachment);
    let plan = decide(&before);
    write_volume(&plan, &mut wire_volume);
    write_statuses(&plan, &mut attachment);
    assert_eq!(view(&wire_volume, &attachment), plan.applied_to(&before));

    let annotations = wire_volume.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["keep"], "me");
    assert_eq!(
        annotations[migration::ANNOTATION],
        r#"{"source":"n1","target":"n2","phase":"preparing","since":"2026-06-01T12:00:00Z","deadline":"2026-06-01T12:10:00Z"}"#
    );
    let written = serde_json::to_value(attachment.status).unwrap();
    let satisfied = json!({
        "id": "n1", "satisfied": true, "generation": 0, "note": "of another tool",
        "conditions": [{
            "type": "Satisfied", "status": "True", "reason": "", "message": "",
            "lastProbeTime": "", "lastTransitionTime": "2026-06-01T12:00:00Z",
        }],
    });
    assert_eq!(written["attachmentTicketStatuses"]["n1"], satisfied);
    assert_eq!(written["attachmentTicketStatuses"].get("gone"), None);
}

#[test]
fn tickets_survive_the_wire_with_their_lease() {
    let mut parameters = BTreeMap::from([("disableFrontend".to_owned(), "any".to_owned())]);
    for (key, value) in [
        (crate::lease::OWNER, "Backup.longhorn.io/b"),
        (crate::lease::OWNER_UID, "u"),
        (crate::lease::DEADLINE, "2026-06-01T12:00:00Z"),
        (crate::lease::HEARTBEAT, "17"),
        (crate::lease::HEARTBEAT_PERIOD_SECONDS, "30"),
    ] {
        parameters.insert(key.to_owned(), value.to_owned());
    }
    let wire = AttachmentTicket {
        id: "t".to_owned(),
        attacher_type: "backup-controller".to_owned(),
        node_id: "n1".to_owned(),
        parameters: parameters.clone(),
        generation: 3,
        ..AttachmentTicket::default()
    };
    let read = ticket("t", &wire);
    assert_eq!(read.defect, None);
    parameters.insert("lastAttachedBy".to_owned(), String::new());
    assert_eq!(
        ticket_to_wire(&read),
        AttachmentTicket { parameters, ..wire }
    );
    assert!(
        Ticket::is_request_parameter("disableFrontend")
            && !Ticket::is_request_parameter(crate::lease::HEARTBEAT)
    );
}

#[test]
fn broken_leases_are_defects() {
    for (key, value) in [
        (crate::lease::OWNER, "nobody"),
        (crate::lease::OWNER, "/name"),
        (crate::lease::DEADLINE, "soon"),
        (crate::lease::HEARTBEAT, "17"),
    ] {
        let wire = AttachmentTicket {
            id: "t".to_owned(),
            node_id: "n1".to_owned(),
            parameters: BTreeMap::from([(key.to_owned(), value.to_owned())]),
            ..AttachmentTicket::default()
        };
        assert!(ticket("t", &wire).defect.is_some(), "{key}={value}");
    }
}

#[test]
fn the_sole_writer_has_an_epoch_and_the_role() {
    for (spec, expected) in [
        (json!({ "role": "writer", "epoch": 2 }), true),
        (json!({ "role": "standby", "epoch": 2 }), false),
        (json!({ "role": "former", "epoch": 1 }), false),
        // Longhorn's engines have neither, and each its own replicas.
        (json!({}), false),
    ] {
        let mut object = json!({ "spec": spec });
        object["spec"]["nodeID"] = "n1".into();
        let engine = engine(&super::tests::object("Engine", object)).expect("it has a node");
        assert_eq!(engine.is_sole_writer, expected, "{spec}");
    }
}

#[test]
fn an_engine_is_available_when_it_should_run_and_does() {
    let check = |spec: Value, status: Value, expected: Option<(bool, bool, bool)>| {
        let engine = engine(&object("Engine", json!({ "spec": spec, "status": status })));
        assert_eq!(
            engine.map(|engine| (
                engine.running,
                engine.has_rw_replica,
                engine.error.is_some()
            )),
            expected
        );
    };
    let running = json!({ "nodeID": "n1", "desireState": "running" });
    let serving = json!({ "currentState": "running", "replicaModeMap": { "a": "RW", "b": "ERR" } });
    check(running.clone(), serving.clone(), Some((true, true, false)));
    check(
        running.clone(),
        json!({ "currentState": "running", "replicaModeMap": { "a": "WO" } }),
        Some((true, false, false)),
    );
    check(
        running,
        json!({ "currentState": "error" }),
        Some((false, false, true)),
    );
    check(
        json!({ "nodeID": "n1", "desireState": "stopped" }),
        serving.clone(),
        Some((false, true, false)),
    );
    check(json!({}), serving, None);
}

#[test]
fn a_node_is_cordoned_when_kubernetes_says_so() {
    let check = |conditions: Value, expected: (bool, bool)| {
        let node = node(&object(
            "Node",
            json!({ "status": { "conditions": conditions } }),
        ));
        assert_eq!((node.ready, node.cordoned), expected);
    };
    check(json!([]), (false, false));
    check(
        json!([{ "type": "Ready", "status": "True" }]),
        (true, false),
    );
    let cordoned =
        json!([{ "type": "Schedulable", "status": "False", "reason": "KubernetesNodeCordoned" }]);
    check(cordoned, (false, true));
}

#[test]
fn snapshots_and_backups_end() {
    let snapshot_fate = |status: Value, deleting: bool| {
        let mut metadata = json!({ "name": "s" });
        if deleting {
            metadata["deletionTimestamp"] = "2026-06-01T12:00:00Z".into();
        }
        super::snapshot_fate(&object(
            "Snapshot",
            json!({ "metadata": metadata, "status": status }),
        ))
    };
    assert_eq!(snapshot_fate(json!({}), false), Fate::Active);
    assert!(matches!(
        snapshot_fate(json!({ "creationTime": "2026-06-01T12:00:00Z" }), false),
        Fate::Final { .. }
    ));
    assert_eq!(
        snapshot_fate(json!({ "creationTime": "2026-06-01T12:00:00Z" }), true),
        Fate::Active
    );

    let backup_fate = |state: &str, snapshot_exists| {
        let body = json!({ "spec": { "snapshotName": "s" }, "status": { "state": state } });
        super::backup_fate(&object("Backup", body), snapshot_exists)
    };
    assert_eq!(backup_fate("InProgress", false), Fate::Active);
    assert_eq!(backup_fate("Pending", true), Fate::Active);
    assert_eq!(
        backup_fate("Completed", true),
        Fate::Final {
            result: "Completed".into()
        }
    );
    assert_eq!(
        backup_fate("Pending", false),
        Fate::Hopeless {
            reason: "its snapshot \"s\" does not exist".into()
        }
    );

    let head = json!({ "status": { "children": { "volume-head": true } } });
    let around = SnapshotSurroundings {
        in_engine: Some(false),
        refused: true,
        purge_disabled: true,
    };
    let facts = super::snapshot(&object("Snapshot", head), around);
    assert!(facts.is_head_parent && facts.purged && facts.refused && facts.purge_disabled);
}

#[test]
fn a_volumes_facts_come_from_its_status() {
    let facts = volume_facts(&a_volume(json!({
        "spec": { "Standby": true },
        "status": {
            "state": "attached", "currentNodeID": "n2", "ownerID": "n1", "restoreRequired": true,
            "expansionRequired": true, "frontendDisabled": true, "cloneStatus": { "state": "initiated" },
        },
    })))
    .unwrap();
    assert!(
        facts.standby
            && facts.restore_required
            && facts.expansion_required
            && facts.frontend_disabled
    );
    assert!(facts.clone_copying && !facts.deleting);
    assert_eq!(facts.home(), Some("n2".into()));
}
