//! How long `doctor` takes for many volumes: `cargo run --release -p diagnose --example scale [VOLUMES]`.
//!
//! Each volume has a claim, a PersistentVolume, a pod, both kinds of VolumeAttachment, an engine and three replicas. The lists
//! are made as the API would answer them, then read, indexed and examined; one in a thousand has an orphan ticket.

use std::time::Instant;

use diagnose::{BundleFile, Index, Scope, examine, read_objects};
use serde_json::{Value, json};

fn main() {
    let volumes: usize = std::env::args()
        .nth(1)
        .map_or(10_000, |text| text.parse().expect("a number of volumes"));
    let at = "2026-01-31T12:00:00Z";
    let mut files: Vec<BundleFile> = lists(volumes)
        .into_iter()
        .map(|(resource, items)| BundleFile {
            path: format!("objects/{resource}.json"),
            bytes: json!({"kind": "List", "apiVersion": "v1", "items": items})
                .to_string()
                .into_bytes(),
        })
        .collect();
    files.push(BundleFile {
        path: "manifest.json".to_owned(),
        bytes: json!({"format": 1, "takenAt": at, "version": "0"})
            .to_string()
            .into_bytes(),
    });
    let bytes: usize = files.iter().map(|file| file.bytes.len()).sum();

    let start = Instant::now();
    let (dump, now) = read_objects(&files).expect("lists");
    let read = start.elapsed();
    let index = Index::new(&dump, now);
    let indexed = start.elapsed();
    let findings = examine(&index, &Scope::Everything);
    let all = start.elapsed();
    println!(
        "{volumes} volumes, {} MB of lists: read {} ms, indexed {} ms, examined {} ms, together {} ms; {} findings",
        bytes / 1_000_000,
        read.as_millis(),
        (indexed - read).as_millis(),
        (all - indexed).as_millis(),
        all.as_millis(),
        findings.len()
    );
}

fn lists(volumes: usize) -> Vec<(&'static str, Vec<Value>)> {
    let nodes = 20;
    let node = |number: usize| format!("node-{}", number % nodes);
    let mut all: std::collections::BTreeMap<&str, Vec<Value>> = std::collections::BTreeMap::new();
    let mut add =
        |resource: &'static str, object: Value| all.entry(resource).or_default().push(object);
    let seen = "2026-01-31T11:59:59Z";
    let lease = |name: String| json!({"metadata": {"name": name}, "spec": {"holderIdentity": "x", "renewTime": seen}});
    add(
        "leases.coordination.k8s.io",
        lease("lariat-manager".to_owned()),
    );
    for number in 0..nodes {
        let name = node(number);
        let ready = json!([{"type": "Ready", "status": "True"}]);
        add(
            "leases.coordination.k8s.io",
            lease(format!("lariat-node-{name}")),
        );
        add(
            "nodes",
            json!({"metadata": {"name": name, "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
            "status": {"conditions": ready}}),
        );
        add(
            "nodes.longhorn.io",
            json!({"metadata": {"name": name}, "spec": {"allowScheduling": true, "disks": {"d": {"allowScheduling": true}}},
            "status": {"conditions": ready, "diskStatus": {"d": {"diskUUID": format!("disk-{name}"), "conditions": ready,
                "storageAvailable": 1u64 << 50, "storageMaximum": 1u64 << 50}}}}),
        );
        add(
            "csinodes.storage.k8s.io",
            json!({"metadata": {"name": name}, "spec": {"drivers": [{"name": "driver.longhorn.io", "nodeID": name}]}}),
        );
    }
    for number in 0..volumes {
        let name = format!("pvc-{number:08}");
        let home = node(number);
        let id = cluster_core::names::attachment_name(
            &name.as_str().into(),
            &"driver.longhorn.io".into(),
            &home.as_str().into(),
        );
        let id = if number % 1000 == 999 {
            "csi-orphan".to_owned()
        } else {
            id.as_str().to_owned()
        };
        let replicas: Vec<String> = (0..3)
            .map(|place| format!("{name}-r-{place:08x}"))
            .collect();
        add(
            "persistentvolumeclaims",
            json!({"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"volumeName": name}, "status": {"phase": "Bound"}}),
        );
        add(
            "persistentvolumes",
            json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "driver.longhorn.io", "volumeHandle": name}, "claimRef": {"namespace": "default", "name": name, "uid": name}}}),
        );
        add(
            "pods",
            json!({"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"nodeName": home, "containers": [],
            "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": name}}]}, "status": {"phase": "Running"}}),
        );
        if id != "csi-orphan" {
            add(
                "volumeattachments.storage.k8s.io",
                json!({"metadata": {"name": id}, "spec": {"attacher": "driver.longhorn.io", "nodeName": home,
                "source": {"persistentVolumeName": name}}, "status": {"attached": true}}),
            );
        }
        add(
            "volumeattachments.longhorn.io",
            json!({"metadata": {"name": name}, "spec": {"volume": name, "attachmentTickets": {(&*id):
            {"id": id, "type": "csi-attacher", "nodeID": home, "generation": 0, "parameters": {"disableFrontend": "false"}}}},
            "status": {"attachmentTicketStatuses": {(&*id): {"id": id, "satisfied": true, "generation": 0, "conditions": [{"type": "Satisfied", "status": "True"}]}}}}),
        );
        add(
            "volumes.longhorn.io",
            json!({"metadata": {"name": name}, "spec": {"size": "4096", "numberOfReplicas": 3, "nodeID": home, "accessMode": "rwo"},
            "status": {"state": "attached", "robustness": "healthy", "currentNodeID": home, "epoch": 1, "issuedEpoch": 1, "inSyncReplicas": replicas,
                "inSyncVersion": 1, "replicasCreated": 3, "currentSize": "4096", "runningSince": "2026-01-31T11:00:00Z"}}),
        );
        let map = |value: &str| {
            replicas
                .iter()
                .map(|name| (name.clone(), Value::from(value)))
                .collect::<serde_json::Map<_, _>>()
        };
        add(
            "engines.longhorn.io",
            json!({"metadata": {"name": format!("{name}-e-1")}, "spec": {"volumeName": name, "nodeID": home, "desireState": "running",
            "active": true, "epoch": 1, "volumeSize": "4096", "inSyncReplicas": replicas, "inSyncVersion": 1, "replicaRoles": map("in-sync"), "replicaAddressMap": map("h:1")},
            "status": {"ownerID": home, "currentState": "running", "endpoint": "/dev/x", "currentSize": "4096", "epoch": 1, "replicaModeMap": map("RW"),
                "inSyncReplicas": replicas, "inSyncVersion": 1}}),
        );
        for (place, replica) in replicas.iter().enumerate() {
            let node = node(number + place);
            add(
                "replicas.longhorn.io",
                json!({"metadata": {"name": replica}, "spec": {"volumeName": name, "nodeID": node, "diskID": format!("disk-{node}"),
                "desireState": "running", "epoch": 1, "volumeSize": "4096"}, "status": {"ownerID": node, "currentState": "running", "address": "h:1", "acceptedEpoch": 1}}),
            );
        }
    }
    for resource in [
        "csidrivers.storage.k8s.io",
        "snapshots.longhorn.io",
        "backups.longhorn.io",
        "settings.longhorn.io",
        "events",
    ] {
        all.entry(resource).or_default();
    }
    all.into_iter().collect()
}
