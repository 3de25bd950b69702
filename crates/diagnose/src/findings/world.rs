//! A small cluster in which all is well, and ways to spoil it.

use cluster_core::names::attachment_name;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::dump::{ClusterDump, Kind};

pub const NOW: &str = "2026-01-31T12:00:00Z";
pub const VOLUME: &str = "pvc-1";

pub fn now() -> Timestamp {
    NOW.parse().expect("a time")
}

/// The id of the pod's ticket on a node, which is its VolumeAttachment's name.
pub fn id(node: &str) -> String {
    attachment_name(&VOLUME.into(), &"driver.longhorn.io".into(), &node.into())
        .as_str()
        .to_owned()
}

/// Objects by kind and name: `Volume pvc-1`, `Node.longhorn node-1`, `Attachment NAME`.
#[derive(Clone)]
pub struct World(Vec<Value>);

const OURS: &str = "longhorn.io/v1beta2";

fn ours(kind: &str, name: &str, spec: &Value, status: &Value) -> Value {
    json!({
        "apiVersion": OURS, "kind": kind,
        "metadata": {"name": name, "namespace": "longhorn-system", "resourceVersion": "7", "uid": format!("uid-{name}"),
                     "creationTimestamp": "2026-01-31T10:00:00Z"},
        "spec": spec, "status": status,
    })
}

pub fn ticket(id: &str, kind: &str, node: &str) -> Value {
    json!({"id": id, "type": kind, "nodeID": node, "generation": 0, "parameters": {"disableFrontend": "false"}})
}

pub fn satisfied(id: &str, satisfied: bool, since: &str) -> Value {
    let status = if satisfied { "True" } else { "False" };
    json!({"id": id, "satisfied": satisfied, "generation": 0, "conditions": [
        {"type": "Satisfied", "status": status, "lastTransitionTime": since, "reason": "", "message": ""}]})
}

pub fn lease(name: &str, renewed: &str, seen: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": "longhorn-system",
                     "managedFields": [{"manager": "m", "operation": "Update", "time": seen}]},
        "spec": {"holderIdentity": "somebody", "renewTime": renewed},
    })
}

/// Two hours old, or ten minutes if it is still waited for.
pub fn attachment(node: &str, attached: bool) -> Value {
    let created = if attached {
        "2026-01-31T10:00:00Z"
    } else {
        "2026-01-31T11:50:00Z"
    };
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": id(node), "resourceVersion": "8", "uid": "uid-va", "creationTimestamp": created,
                     "finalizers": ["external-attacher/driver-longhorn-io"]},
        "spec": {"attacher": "driver.longhorn.io", "nodeName": node, "source": {"persistentVolumeName": VOLUME}},
        "status": {"attached": attached},
    })
}

pub fn pod(name: &str, node: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "creationTimestamp": "2026-01-31T11:50:00Z"},
        "spec": {"nodeName": node, "containers": [], "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
        "status": {"phase": phase},
    })
}

impl World {
    /// `pod app` runs on node-1 with claim `data`, volume `pvc-1`, three replicas.
    pub fn healthy() -> Self {
        let mut world = Self(Vec::new());
        world.add(lease(
            "lariat-manager",
            "2026-01-31T11:59:59.5Z",
            "2026-01-31T11:59:59Z",
        ));
        world.add(json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "driver.longhorn.io"}, "spec": {}}));
        for node in ["node-1", "node-2", "node-3"] {
            world.add_node(node);
        }
        world.edit("Node node-1", |node| {
            node["status"]["volumesInUse"] = json!(["kubernetes.io/csi/driver.longhorn.io^pvc-1"]);
            node["status"]["volumesAttached"] =
                json!([{"name": "kubernetes.io/csi/driver.longhorn.io^pvc-1", "devicePath": ""}]);
        });
        world.add(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": "default", "uid": "uid-claim", "creationTimestamp": "2026-01-31T10:00:00Z"},
            "spec": {"volumeName": VOLUME}, "status": {"phase": "Bound"},
        }));
        world.add(json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": VOLUME, "resourceVersion": "9", "uid": "uid-pv",
                         "annotations": {"driver.longhorn.io/attached-node": "node-1"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "csi": {"driver": "driver.longhorn.io", "volumeHandle": VOLUME},
                     "claimRef": {"namespace": "default", "name": "data", "uid": "uid-claim"}},
        }));
        world.add(pod("app", "node-1", "Running"));
        world.add(attachment("node-1", true));
        world.add_volume();
        world
    }

    fn add_node(&mut self, node: &str) {
        let ready = |status: &str| json!([{"type": "Ready", "status": status, "lastTransitionTime": "2026-01-31T10:00:00Z"}]);
        self.add(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": node, "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
            "status": {"conditions": ready("True")},
        }));
        self.add(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node},
            "spec": {"drivers": [{"name": "driver.longhorn.io", "nodeID": node, "allocatable": {"count": 32}}]},
        }));
        self.add(lease(
            &format!("lariat-node-{node}"),
            "2026-01-31T11:59:59.5Z",
            "2026-01-31T11:59:59Z",
        ));
        let gigabytes = 1i64 << 30;
        self.add(ours(
            "Node",
            node,
            &json!({"name": node, "allowScheduling": true, "disks": {"default": {"path": "/d", "allowScheduling": true}}}),
            &json!({
                "conditions": ready("True"),
                "agent": {"version": "0.1.0"},
                "diskStatus": {"default": {
                    "diskUUID": format!("disk-{node}"), "storageAvailable": 90 * gigabytes, "storageMaximum": 100 * gigabytes,
                    "conditions": ready("True"),
                }},
            }),
        ));
    }

    fn add_volume(&mut self) {
        let id = id("node-1");
        let names = ["pvc-1-r-00000000", "pvc-1-r-00000001", "pvc-1-r-00000002"];
        self.add(ours(
            "VolumeAttachment",
            VOLUME,
            &json!({"volume": VOLUME, "attachmentTickets": {(&*id): ticket(&id, "csi-attacher", "node-1")}}),
            &json!({"attachmentTicketStatuses": {(&*id): satisfied(&id, true, "2026-01-31T11:50:00Z")}}),
        ));
        self.add(ours(
            "Volume",
            VOLUME,
            &json!({"size": "1073741824", "numberOfReplicas": 3, "accessMode": "rwo", "nodeID": "node-1", "frontend": "blockdev"}),
            &json!({
                "state": "attached", "robustness": "healthy", "currentNodeID": "node-1", "epoch": 1, "issuedEpoch": 1,
                "inSyncReplicas": names, "inSyncVersion": 1, "replicasCreated": 3, "currentSize": "1073741824",
                "runningSince": "2026-01-31T11:50:00Z",
            }),
        ));
        let all = |value: &str| -> Value {
            names
                .iter()
                .map(|name| ((*name).to_owned(), Value::from(value)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        self.add(ours(
            "Engine",
            "pvc-1-e-1",
            &json!({
                "volumeName": VOLUME, "volumeSize": "1073741824", "nodeID": "node-1", "desireState": "running", "active": true,
                "epoch": 1, "inSyncReplicas": names, "inSyncVersion": 1, "replicaRoles": all("in-sync"),
                "replicaAddressMap": all("h:1"), "role": "writer",
            }),
            &json!({
                "ownerID": "node-1", "currentState": "running", "endpoint": "/dev/v", "currentSize": "1073741824", "epoch": 1,
                "replicaModeMap": all("RW"), "inSyncReplicas": names, "inSyncVersion": 1, "fencedReplicas": names,
            }),
        ));
        for (place, name) in names.iter().enumerate() {
            let node = format!("node-{}", place + 1);
            self.add(ours(
                "Replica",
                name,
                &json!({
                    "volumeName": VOLUME, "volumeSize": "1073741824", "nodeID": node, "diskID": format!("disk-{node}"),
                    "desireState": "running", "epoch": 1, "healthyAt": "2026-01-31T10:00:00Z",
                }),
                &json!({
                    "ownerID": node, "currentState": "running", "address": "h:1", "acceptedEpoch": 1, "currentSize": "1073741824",
                    "verified": true, "lastWriteEpoch": 1, "revision": 5, "digest": "0a",
                }),
            ));
        }
    }

    pub fn add(&mut self, object: Value) {
        self.0.push(object);
    }

    fn key(object: &Value) -> String {
        let group = if object["apiVersion"] == OURS && object["kind"] != "Volume" {
            "longhorn."
        } else {
            ""
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        format!(
            "{group}{} {}",
            text(&object["kind"]),
            text(&object["metadata"]["name"])
        )
    }

    /// Changes an object in place. Ours are called `longhorn.KIND NAME`, but for `Volume NAME`.
    #[track_caller]
    pub fn edit(&mut self, key: &str, change: impl FnOnce(&mut Value)) {
        let object = self.0.iter_mut().find(|object| Self::key(object) == key);
        change(object.unwrap_or_else(|| panic!("there is no {key}")));
    }

    #[track_caller]
    pub fn remove(&mut self, key: &str) {
        let before = self.0.len();
        self.0.retain(|object| Self::key(object) != key);
        assert!(self.0.len() < before, "there is no {key}");
    }

    /// As if the kind could not be read.
    pub fn drop_kind(&mut self, kind: &Kind) {
        self.0.retain(|object| {
            object["kind"] != kind.kind || object["apiVersion"] != kind.api_version
        });
    }

    /// Files a ticket, not satisfied for ten minutes.
    pub fn file(&mut self, ticket: Value) {
        let id = ticket["id"].as_str().expect("an id").to_owned();
        self.edit("longhorn.VolumeAttachment pvc-1", |object| {
            object["spec"]["attachmentTickets"][&id] = ticket;
            object["status"]["attachmentTicketStatuses"][&id] =
                satisfied(&id, false, "2026-01-31T11:50:00Z");
        });
    }

    pub fn drop_ticket(&mut self, id: &str) {
        self.edit("longhorn.VolumeAttachment pvc-1", |object| {
            for field in [
                "/spec/attachmentTickets",
                "/status/attachmentTicketStatuses",
            ] {
                let map = object.pointer_mut(field).and_then(Value::as_object_mut);
                map.expect("a map").remove(id);
            }
        });
    }

    /// The pod has ended and its volume is detached; nobody asks for it.
    pub fn detach(&mut self) {
        self.remove("Pod app");
        self.remove(&format!("VolumeAttachment {}", id("node-1")));
        self.drop_ticket(&id("node-1"));
        self.edit("Node node-1", |node| {
            node["status"]["volumesInUse"] = json!([]);
            node["status"]["volumesAttached"] = json!([]);
        });
        self.edit("PersistentVolume pvc-1", |volume| {
            volume["metadata"]["annotations"] = json!({});
        });
        self.edit("Volume pvc-1", |volume| {
            volume["spec"]["nodeID"] = "".into();
            volume["status"]["state"] = "detached".into();
            volume["status"]["robustness"] = "unknown".into();
            volume["status"]["currentNodeID"] = "".into();
            volume["status"]["runningSince"] = "".into();
        });
        self.remove("longhorn.Engine pvc-1-e-1");
        for name in ["pvc-1-r-00000000", "pvc-1-r-00000001", "pvc-1-r-00000002"] {
            self.edit(&format!("longhorn.Replica {name}"), |replica| {
                replica["spec"]["desireState"] = "stopped".into();
                replica["status"]["currentState"] = "stopped".into();
            });
        }
    }

    /// The node stops answering ten minutes ago.
    pub fn lose(&mut self, node: &str) {
        self.edit(&format!("Node {node}"), |object| {
            object["status"]["conditions"][0] =
                json!({"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-31T11:50:00Z"});
        });
        self.edit(&format!("longhorn.Node {node}"), |object| {
            object["status"]["conditions"][0] =
                json!({"type": "Ready", "status": "False", "reason": "LeaseExpired", "lastTransitionTime": "2026-01-31T11:50:00Z"});
        });
        self.edit(&format!("Lease lariat-node-{node}"), |lease| {
            lease["spec"]["renewTime"] = "2026-01-31T11:50:00Z".into();
            lease["metadata"]["managedFields"][0]["time"] = "2026-01-31T11:50:00Z".into();
        });
    }

    #[track_caller]
    pub fn dump(&self) -> ClusterDump {
        let mut dump = ClusterDump::default();
        for object in &self.0 {
            assert!(dump.add(object), "{object} has no place in the dump");
        }
        assert_eq!(dump.unread, [], "everything here can be read");
        dump
    }
}
