//! Nothing that another tool wrote is lost when we read an object and write it again.

use api_types::{Volume, VolumeAttachment, VolumeState};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use serde_json::{Value, json};

use crate::{
    instances::{instance, loss},
    kinds::{every_crd, read_and_write, schema_of, schema_of_kind},
};

/// Objects of each kind. Sixteen kinds, some with a hundred fields: more would make this the slowest test by far.
const OBJECTS_PER_KIND: u32 = 96;

#[test]
fn random_objects_of_every_kind_survive() {
    for crd in every_crd() {
        let kind = &crd.spec.names.kind;
        let schema = schema_of(&crd);
        let config = Config {
            cases: OBJECTS_PER_KIND,
            failure_persistence: None,
            ..Config::default()
        };
        TestRunner::new(config)
            .run(&instance(&schema), |fields| {
                let object = with_envelope(kind, fields);
                let written = read_and_write(kind, &object).map_err(TestCaseError::fail)?;
                loss(&schema, &object, &written).map_err(TestCaseError::fail)?;
                prop_assert_eq!(
                    &read_and_write(kind, &written),
                    &Ok(written),
                    "writing again changes it"
                );
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{kind}: {error}"));
    }
}

/// Adds what every object has, which CRD schemas do not repeat.
fn with_envelope(kind: &str, mut fields: Value) -> Value {
    let api_version = if kind.starts_with("VolumeSnapshot") {
        "snapshot.storage.k8s.io/v1"
    } else {
        "longhorn.io/v1beta2"
    };
    fields["apiVersion"] = json!(api_version);
    fields["kind"] = json!(kind);
    fields["metadata"] = json!({ "name": "any", "namespace": "longhorn-system", "labels": { "longhornvolume": "any" } });
    fields
}

#[track_caller]
fn check_survives(kind: &str, fields: Value) -> Value {
    let object = with_envelope(kind, fields);
    let written = read_and_write(kind, &object).unwrap();
    loss(&schema_of_kind(kind), &object, &written).unwrap();
    written
}

#[test]
fn foreign_fields_survive_at_every_level() {
    let written = check_survives(
        "VolumeAttachment",
        json!({
            "spec": {
                "volume": "v", "paused": true,
                "attachmentTickets": { "t": { "id": "t", "type": "of-the-future", "lease": { "seconds": 5, "holder": null } } },
            },
            "status": {
                "observedGeneration": 9,
                "attachmentTicketStatuses": { "t": {
                    "id": "t", "satisfied": true, "score": 0.5,
                    "conditions": [{ "type": "Satisfied", "status": "Perhaps", "severity": [1, 2] }],
                } },
            },
        }),
    );
    assert_eq!(written["spec"]["paused"], true);
    assert_eq!(
        written["spec"]["attachmentTickets"]["t"]["lease"],
        json!({ "seconds": 5, "holder": null })
    );
    assert_eq!(
        written["spec"]["attachmentTickets"]["t"]["type"],
        "of-the-future"
    );
    let status = &written["status"]["attachmentTicketStatuses"]["t"];
    assert_eq!(status["score"], 0.5);
    assert_eq!(status["conditions"][0]["status"], "Perhaps");
    assert_eq!(status["conditions"][0]["severity"], json!([1, 2]));

    let written = check_survives(
        "Setting",
        json!({ "value": "3", "defaultsByDataEngine": { "v1": "3" } }),
    );
    assert_eq!(written["value"], "3");
    assert_eq!(written["defaultsByDataEngine"], json!({ "v1": "3" }));
    assert!(
        written.get("spec").is_none(),
        "a setting has no spec on the wire"
    );
}

#[test]
fn what_go_writes_for_not_set_is_read_as_not_set() {
    let written = check_survives(
        "Volume",
        json!({
            "spec": { "size": "10737418240", "accessMode": "", "dataLocality": "", "diskSelector": null, "frontend": "" },
            "status": { "state": "", "conditions": null, "kubernetesStatus": { "workloadsStatus": null }, "shareState": "" },
        }),
    );
    assert_eq!(written["spec"]["accessMode"], "rwo");
    assert_eq!(written["spec"]["dataLocality"], "disabled");
    assert_eq!(written["spec"]["diskSelector"], json!([]));
    assert_eq!(written["spec"]["frontend"], "");
    assert_eq!(written["status"]["state"], "creating");
    assert_eq!(written["status"]["conditions"], json!([]));
    assert_eq!(written["status"]["shareState"], "");
}

#[test]
fn sparse_objects_are_read_and_sizes_may_be_numbers() {
    let volume: Volume =
        serde_json::from_value(with_envelope("Volume", json!({ "spec": { "size": 4096 } })))
            .unwrap();
    assert_eq!(volume.spec.size.bytes(), 4096);
    assert_eq!(volume.status, None);
    assert_eq!(
        serde_json::to_value(&volume).unwrap()["spec"]["size"],
        "4096"
    );

    let attachment: VolumeAttachment =
        serde_json::from_value(with_envelope("VolumeAttachment", json!({ "spec": {} }))).unwrap();
    assert!(attachment.spec.attachment_tickets.is_empty());
}

#[test]
fn what_lariat_adds_is_absent_until_it_is_used() {
    let written = check_survives("Volume", json!({ "spec": {}, "status": {} }));
    for name in ["epoch", "inSyncReplicas", "fenceProof"] {
        assert!(written["status"].get(name).is_none(), "{name}");
    }
    let proof = json!({ "epoch": 7, "replicas": ["r1"], "time": "2026-11-15T00:00:00Z", "formerNodeID": "n1" });
    let status = json!({ "epoch": 7, "inSyncReplicas": ["r1", "r2"], "fenceProof": proof });
    let written = check_survives("Volume", json!({ "spec": {}, "status": status }));
    assert_eq!(written["status"]["fenceProof"], proof);
    assert_eq!(written["status"]["inSyncReplicas"], json!(["r1", "r2"]));
}

#[test]
fn enums_know_their_wire_names() {
    assert_eq!(VolumeState::from("attached"), VolumeState::Attached);
    assert_eq!(
        VolumeState::from("frozen"),
        VolumeState::Other("frozen".to_owned())
    );
    assert_eq!(VolumeState::from("frozen").as_str(), "frozen");
    assert_eq!(
        VolumeState::KNOWN,
        [
            "creating",
            "attached",
            "detached",
            "attaching",
            "detaching",
            "deleting"
        ]
    );
}

#[test]
fn the_judge_of_losses_sees_losses() {
    let schema = json!({ "type": "object", "properties": {
        "a": { "type": "string" }, "list": { "type": "array", "items": { "type": "integer" }, "nullable": true },
    } });
    let check = |read: Value, written: Value| loss(&schema, &read, &written);
    assert!(
        check(json!({ "a": "x" }), json!({})).is_err(),
        "a value is gone"
    );
    assert!(
        check(json!({ "a": "x" }), json!({ "a": "y" })).is_err(),
        "a value has changed"
    );
    assert!(
        check(json!({ "foreign": 0 }), json!({})).is_err(),
        "a foreign zero is gone"
    );
    assert!(
        check(json!({ "foreign": null }), json!({ "foreign": 0 })).is_err(),
        "a foreign null has changed"
    );
    assert!(
        check(json!({ "list": [1, 2] }), json!({ "list": [1] })).is_err(),
        "an item is gone"
    );
    assert!(
        check(json!({ "list": null }), json!({ "list": [1] })).is_err(),
        "an item has come"
    );
    assert!(check(json!({ "list": null, "a": "" }), json!({ "list": [] })).is_ok());
}
