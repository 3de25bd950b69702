//! Objects of clusters that are larger than any machine here could run.

use std::time::Duration;

use anyhow::{Context as _, Result};
use cluster_core::names::{
    HANDLE_ANNOTATION, NODE_ID_ANNOTATION, UniqueVolumeName, finalizer_name,
};
use diagnose::KINDS;
use futures::{TryStreamExt as _, stream};
use jiff::Timestamp;
use kube::Client;
use serde_json::{Map, Value, json};

use super::server::send;

const DRIVER: &str = api_types::names::DRIVER;
const NODES: usize = 20;
/// Requests at once while objects are made.
const WRITERS: usize = 64;

/// An object that is to be made, and its status after that.
pub(super) struct Made {
    /// As `diagnose` names it.
    resource: &'static str,
    object: Value,
}

/// Makes all of them; returns when the last one is there.
pub(super) async fn load(client: &Client, crowd: Vec<Made>) -> Result<()> {
    stream::iter(crowd.into_iter().map(anyhow::Ok))
        .try_for_each_concurrent(WRITERS, |made| make(client, made))
        .await
}

async fn make(client: &Client, made: Made) -> Result<()> {
    let kind = KINDS
        .iter()
        .find(|kind| kind.resource == made.resource)
        .with_context(|| format!("{} is no kind that is read", made.resource))?;
    let mut object = made.object;
    object["apiVersion"] = kind.api_version.into();
    object["kind"] = kind.kind.into();
    let status = object.as_object_mut().and_then(|all| all.remove("status"));
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let path = match object["metadata"]["namespace"].as_str() {
        // The path lists all namespaces, or names the only one.
        Some(namespace) if !kind.path.contains("/namespaces/") => {
            let (root, resource) = kind.path.rsplit_once('/').context("a path")?;
            format!("{root}/namespaces/{namespace}/{resource}")
        }
        _ => kind.path.to_owned(),
    };
    let told = || format!("cannot make {} {name}", made.resource);
    send(client, "POST", &path, Some(&object))
        .await
        .with_context(told)?;
    if let Some(status) = status {
        let patch = json!({ "status": status });
        send(
            client,
            "PATCH",
            &format!("{path}/{name}/status"),
            Some(&patch),
        )
        .await
        .with_context(told)?;
    }
    Ok(())
}

/// Attached volumes with all that belongs to them; every thousandth has a ticket that nobody asked for.
pub(super) fn volumes(count: usize) -> Vec<Made> {
    let mut crowd = Vec::new();
    for number in 0..NODES {
        crowd.extend(node_parts(&node(number)));
    }
    for number in 0..count {
        volume_parts(number, &mut crowd);
    }
    crowd
}

/// PersistentVolumes that are attached and mounted, on nodes that say so.
pub(super) fn attachments(count: usize) -> Vec<Made> {
    let mut crowd = Vec::new();
    let mut mounted: Vec<Vec<String>> = vec![Vec::new(); NODES];
    for number in 0..count {
        let name = volume_name(number);
        let unique = UniqueVolumeName {
            driver: DRIVER.into(),
            handle: name.as_str().into(),
        };
        mounted[number % NODES].push(unique.to_string());
        // As controllers have left them, so that none of them has anything to do.
        let finalizer = finalizer_name(&DRIVER.into());
        let mut volume = persistent_volume(&name);
        volume.object["metadata"]["finalizers"] = json!([finalizer]);
        volume.object["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
        volume.object["status"] = json!({"phase": "Released"});
        let mut attachment = attachment(&name, &node(number));
        attachment.object["metadata"]["finalizers"] = json!([finalizer]);
        attachment.object["metadata"]["annotations"] = json!({
            HANDLE_ANNOTATION: name, NODE_ID_ANNOTATION: node(number),
        });
        crowd.push(volume);
        crowd.push(attachment);
    }
    for (number, in_use) in mounted.iter().enumerate() {
        let attached = in_use
            .iter()
            .map(|name| json!({"name": name, "devicePath": ""}));
        let mut object = kubernetes_node(&node(number));
        object["status"]["volumesInUse"] = in_use.as_slice().into();
        object["status"]["volumesAttached"] = attached.collect();
        crowd.insert(
            0,
            Made {
                resource: "nodes",
                object,
            },
        );
    }
    crowd
}

fn node(number: usize) -> String {
    format!("node-{}", number % NODES)
}

fn volume_name(number: usize) -> String {
    format!("pvc-{number:08}")
}

fn ready() -> Value {
    json!([{"type": "Ready", "status": "True"}])
}

fn kubernetes_node(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "annotations": {cluster_core::names::MANAGED_ANNOTATION: "true"}},
        "status": {"conditions": ready()},
    })
}

fn node_parts(name: &str) -> Vec<Made> {
    let namespace = api_types::names::NAMESPACE;
    // Later than now by more than the benchmark takes: nobody renews it.
    let seen = Timestamp::now() + Duration::from_secs(600);
    let made = |resource, object| Made { resource, object };
    vec![
        made("nodes", kubernetes_node(name)),
        made(
            "leases.coordination.k8s.io",
            json!({
                "metadata": {"name": format!("lariat-node-{name}"), "namespace": namespace},
                "spec": {"holderIdentity": "bench", "renewTime": format!("{seen:.6}")},
            }),
        ),
        made(
            "nodes.longhorn.io",
            json!({
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"allowScheduling": true, "disks": {"d": {"allowScheduling": true}}},
                "status": {"conditions": ready(), "diskStatus": {"d": {
                    "diskUUID": format!("disk-{name}"), "conditions": ready(),
                    "storageAvailable": 1u64 << 50, "storageMaximum": 1u64 << 50,
                }}},
            }),
        ),
        made(
            "csinodes.storage.k8s.io",
            json!({"metadata": {"name": name}, "spec": {"drivers": [{"name": DRIVER, "nodeID": name, "topologyKeys": null}]}}),
        ),
    ]
}

fn persistent_volume(name: &str) -> Made {
    Made {
        resource: "persistentvolumes",
        object: json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Delete",
                "csi": {"driver": DRIVER, "volumeHandle": name},
                "claimRef": {"namespace": "default", "name": name},
            },
        }),
    }
}

fn attachment(volume: &str, node: &str) -> Made {
    Made {
        resource: "volumeattachments.storage.k8s.io",
        object: json!({
            "metadata": {"name": attachment_name(volume, node)},
            "spec": {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": volume}},
            "status": {"attached": true},
        }),
    }
}

fn attachment_name(volume: &str, node: &str) -> String {
    cluster_core::names::attachment_name(&volume.into(), &DRIVER.into(), &node.into()).to_string()
}

fn volume_parts(number: usize, crowd: &mut Vec<Made>) {
    let namespace = api_types::names::NAMESPACE;
    let (name, home) = (volume_name(number), node(number));
    let orphan = number % 1000 == 999;
    let id = if orphan {
        "csi-orphan".to_owned()
    } else {
        attachment_name(&name, &home)
    };
    let replicas: Vec<String> = (0..3)
        .map(|place| format!("{name}-r-{place:08x}"))
        .collect();
    let map = |value: &str| -> Map<String, Value> {
        let pairs = replicas.iter().map(|name| (name.clone(), value.into()));
        pairs.collect()
    };
    let size = "1073741824";
    let mut add = |resource, object| crowd.push(Made { resource, object });
    add(
        "persistentvolumeclaims",
        json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "volumeName": name, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
                "resources": {"requests": {"storage": "1Gi"}},
            },
            "status": {"phase": "Bound"},
        }),
    );
    add(
        "pods",
        json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "nodeName": home, "containers": [{"name": "app", "image": "none"}],
                "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": name}}],
            },
            "status": {"phase": "Running"},
        }),
    );
    add(
        "volumeattachments.longhorn.io",
        json!({
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"volume": name, "attachmentTickets": {(&*id): {
                "id": id, "type": "csi-attacher", "nodeID": home, "generation": 0, "parameters": {"disableFrontend": "false"},
            }}},
            "status": {"attachmentTicketStatuses": {(&*id): {
                "id": id, "satisfied": true, "generation": 0, "conditions": [{"type": "Satisfied", "status": "True"}],
            }}},
        }),
    );
    add(
        "volumes.longhorn.io",
        json!({
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"size": size, "numberOfReplicas": 3, "nodeID": home, "accessMode": "rwo", "frontend": "blockdev"},
            "status": {
                "state": "attached", "robustness": "healthy", "currentNodeID": home, "epoch": 1, "issuedEpoch": 1,
                "inSyncReplicas": replicas, "inSyncVersion": 1, "replicasCreated": 3, "currentSize": size,
                "runningSince": "2026-01-31T11:00:00Z",
            },
        }),
    );
    add(
        "engines.longhorn.io",
        json!({
            "metadata": {"name": format!("{name}-e-1"), "namespace": namespace},
            "spec": {
                "volumeName": name, "nodeID": home, "desireState": "running", "active": true, "epoch": 1, "volumeSize": size,
                "inSyncReplicas": replicas, "inSyncVersion": 1, "replicaRoles": map("in-sync"), "replicaAddressMap": map("h:1"),
            },
            "status": {
                "ownerID": home, "currentState": "running", "endpoint": "/dev/x", "currentSize": size, "epoch": 1,
                "replicaModeMap": map("RW"), "inSyncReplicas": replicas, "inSyncVersion": 1,
            },
        }),
    );
    for (place, replica) in replicas.iter().enumerate() {
        let node = node(number + place);
        add(
            "replicas.longhorn.io",
            json!({
                "metadata": {"name": replica, "namespace": namespace},
                "spec": {
                    "volumeName": name, "nodeID": node, "diskID": format!("disk-{node}"), "desireState": "running", "epoch": 1,
                    "volumeSize": size,
                },
                "status": {"ownerID": node, "currentState": "running", "address": "h:1", "acceptedEpoch": 1},
            }),
        );
    }
    crowd.push(persistent_volume(&name));
    if !orphan {
        crowd.push(attachment(&name, &home));
    }
}
