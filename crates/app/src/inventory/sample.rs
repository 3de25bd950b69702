//! A small cluster in which something of everything goes on, for golden files.

use api_types::{Node, Replica, Volume};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Inventory;

/// The moment at which the sample is looked at.
pub(crate) fn now() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().expect("a time")
}

fn read<T: serde::de::DeserializeOwned>(values: &[Value]) -> Vec<T> {
    let read = |value: &Value| serde_json::from_value(value.clone()).expect("a sound object");
    values.iter().map(read).collect()
}

fn metadata(name: &str, created: &str) -> Value {
    json!({"name": name, "namespace": "longhorn-system", "creationTimestamp": created})
}

pub(crate) fn volume(name: &str, size: i64, replicas: i64, status: &Value) -> Value {
    let node = status["currentNodeID"].as_str().unwrap_or_default();
    json!({
        "metadata": metadata(name, "2026-02-20T09:00:00Z"),
        "spec": {
            "size": size.to_string(), "numberOfReplicas": replicas, "accessMode": "rwo", "frontend": "blockdev",
            "nodeID": node,
        },
        "status": status,
    })
}

pub(crate) fn replica(name: &str, volume: &str, node: &str, state: &str) -> Value {
    json!({
        "metadata": metadata(name, "2026-02-20T09:00:01Z"),
        "spec": {
            "volumeName": volume, "nodeID": node, "diskID": format!("uuid-{node}"), "volumeSize": "1073741824",
            "desireState": "running", "healthyAt": "2026-02-20T09:00:02Z",
        },
        "status": {"currentState": state, "ownerID": node, "address": "10.0.0.1:9000", "acceptedEpoch": 3, "allocatedBytes": 300_000_000},
    })
}

pub(crate) fn engine(volume: &str, node: &str, epoch: i64, state: &str) -> Value {
    json!({
        "metadata": metadata(&format!("{volume}-e-{epoch}"), "2026-03-01T11:00:00Z"),
        "spec": {"volumeName": volume, "nodeID": node, "epoch": epoch, "desireState": "running", "active": true},
        "status": {
            "currentState": state, "ownerID": node, "epoch": epoch, "endpoint": format!("/dev/longhorn/{volume}"),
            "replicaModeMap": {format!("{volume}-r-00000001"): "RW"},
        },
    })
}

pub(crate) fn ticket(id: &str, kind: &str, node: &str, parameters: &Value) -> Value {
    json!({"id": id, "type": kind, "nodeID": node, "generation": 0, "parameters": parameters})
}

/// A longhorn VolumeAttachment; those tickets that are named in `satisfied` have got what they asked for.
pub(crate) fn attachment(volume: &str, tickets: &[Value], satisfied: &[&str]) -> Value {
    let by_id = |value: &Value| {
        (
            value["id"].as_str().expect("an id").to_owned(),
            value.clone(),
        )
    };
    let statuses = satisfied.iter().map(|id| {
        let condition = json!({"type": "Satisfied", "status": "True", "lastTransitionTime": "2026-03-01T11:00:05Z"});
        ((*id).to_owned(), json!({"id": id, "satisfied": true, "generation": 0, "conditions": [condition]}))
    });
    json!({
        "metadata": metadata(volume, "2026-02-20T09:00:00Z"),
        "spec": {"volume": volume, "attachmentTickets": tickets.iter().map(by_id).collect::<serde_json::Map<_, _>>()},
        "status": {"attachmentTicketStatuses": statuses.collect::<serde_json::Map<_, _>>()},
    })
}

pub(crate) fn node(name: &str, ready: bool, cordoned: bool) -> Value {
    let reason = if cordoned {
        "KubernetesNodeCordoned"
    } else {
        ""
    };
    let word = |holds: bool| if holds { "True" } else { "False" };
    json!({
        "metadata": metadata(name, "2026-01-01T00:00:00Z"),
        "spec": {"name": name, "allowScheduling": true, "disks": {"default": {
            "path": "/var/lib/lariat/disks/default", "allowScheduling": true, "storageReserved": 10_737_418_240_i64,
        }}},
        "status": {
            "zone": "hall-1",
            "conditions": [
                {"type": "Ready", "status": word(ready), "reason": if ready { "" } else { "Lost" },
                 "message": if ready { "" } else { "its agent has not renewed its lease" },
                 "lastTransitionTime": "2026-03-01T11:30:00Z"},
                {"type": "Schedulable", "status": word(!cordoned), "reason": reason, "lastTransitionTime": "2026-03-01T11:30:00Z"},
            ],
            "diskStatus": {"default": {
                "diskUUID": format!("uuid-{name}"), "diskName": "default", "diskPath": "/var/lib/lariat/disks/default",
                "storageMaximum": 107_374_182_400_i64, "storageAvailable": 64_424_509_440_i64, "storageScheduled": 3_221_225_472_i64,
                "scheduledReplica": {"pvc-11111111-r-00000001": 1_073_741_824},
                "conditions": [{"type": "Ready", "status": word(ready)}, {"type": "Schedulable", "status": word(ready)}],
            }},
        },
    })
}

pub(crate) const CSI: &str = "csi-0d4f52cd4e9cbcf10c8d2c1dd8f7f5b8f1b9a8f0a4a1b9b6a0c5a9f2d3e4f5a6";

/// Three nodes, one of them lost and one cordoned; volumes attached, waiting, degraded and idle.
pub(crate) fn cluster() -> Inventory {
    let claim = |name: &str| {
        json!({"pvName": "pv", "pvStatus": "Bound", "namespace": "default", "pvcName": name,
               "workloadsStatus": [{"podName": format!("{name}-0"), "podStatus": "Running"}]})
    };
    let volumes = [
        volume(
            "pvc-11111111",
            10 << 30,
            3,
            &json!({
                "state": "attached", "robustness": "healthy", "currentNodeID": "node-1", "epoch": 3, "actualSize": 3_221_225_472_i64,
                "inSyncReplicas": ["pvc-11111111-r-00000001", "pvc-11111111-r-00000002", "pvc-11111111-r-00000003"],
                "kubernetesStatus": claim("database"),
            }),
        ),
        volume(
            "pvc-22222222",
            1 << 30,
            3,
            &json!({
                "state": "attached", "robustness": "degraded", "currentNodeID": "node-2", "epoch": 7,
                "inSyncReplicas": ["pvc-22222222-r-00000001"], "kubernetesStatus": claim("web"),
            }),
        ),
        volume(
            "pvc-33333333",
            500 << 20,
            1,
            &json!({"state": "detached", "robustness": "faulted", "epoch": 2}),
        ),
        volume(
            "scratch",
            1 << 30,
            1,
            &json!({
                "state": "detached", "robustness": "unknown", "inSyncReplicas": ["scratch-r-00000001"],
            }),
        ),
    ];
    let attachments = [
        attachment(
            "pvc-11111111",
            &[
                ticket(
                    CSI,
                    "csi-attacher",
                    "node-1",
                    &json!({"disableFrontend": "false"}),
                ),
                ticket(
                    "snapshot-controller-daily",
                    "snapshot-controller",
                    "node-1",
                    &json!({"disableFrontend": "any"}),
                ),
            ],
            &[CSI, "snapshot-controller-daily"],
        ),
        attachment(
            "pvc-22222222",
            &[
                ticket(
                    "longhorn-api-alice-node-2",
                    "longhorn-api",
                    "node-2",
                    &json!({
                        "disableFrontend": "false", "lastAttachedBy": "alice@desk", "lariat.io/owner": "User/alice@desk",
                        "lariat.io/deadline": "2026-03-01T14:00:00Z",
                    }),
                ),
                ticket(
                    "csi-ffffffff",
                    "csi-attacher",
                    "node-3",
                    &json!({"disableFrontend": "false"}),
                ),
            ],
            &["longhorn-api-alice-node-2"],
        ),
        attachment(
            "pvc-33333333",
            &[
                ticket("csi-eeeeeeee", "csi-attacher", "node-1", &json!({})),
                ticket(
                    "teleport-1",
                    "volume-teleport-controller",
                    "node-1",
                    &json!({}),
                ),
            ],
            &[],
        ),
        attachment("scratch", &[], &[]),
    ];
    let replicas = [
        replica(
            "pvc-11111111-r-00000001",
            "pvc-11111111",
            "node-1",
            "running",
        ),
        replica(
            "pvc-11111111-r-00000002",
            "pvc-11111111",
            "node-2",
            "running",
        ),
        replica(
            "pvc-11111111-r-00000003",
            "pvc-11111111",
            "node-3",
            "running",
        ),
        replica(
            "pvc-22222222-r-00000001",
            "pvc-22222222",
            "node-2",
            "running",
        ),
        replica("pvc-22222222-r-00000002", "pvc-22222222", "node-3", "error"),
        replica("scratch-r-00000001", "scratch", "node-2", "stopped"),
    ];
    Inventory {
        volumes: read(&volumes),
        attachments: read(&attachments),
        engines: read(&[
            engine("pvc-11111111", "node-1", 3, "running"),
            engine("pvc-22222222", "node-2", 7, "running"),
        ]),
        replicas: read(&replicas),
        nodes: read(&[
            node("node-1", true, false),
            node("node-2", true, true),
            node("node-3", false, false),
        ]),
        settings: read(&[
            json!({"metadata": metadata("default-replica-count", "2026-01-01T00:00:00Z"), "value": "2"}),
        ]),
        ..Inventory::default()
    }
}

/// Only these.
pub(crate) fn small(volumes: Vec<Volume>, replicas: Vec<Replica>, nodes: Vec<Node>) -> Inventory {
    Inventory {
        volumes,
        replicas,
        nodes,
        ..Inventory::default()
    }
}
