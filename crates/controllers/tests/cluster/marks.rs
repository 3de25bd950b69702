//! The mark of a file system that is being made: it stays for pods, and nobody else gets a volume that has it.

use api_types::names::annotation::MAKING_FILE_SYSTEM;
use api_types::{Volume, VolumeAttachment, VolumeState};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::support::{Cluster, eventually};

async fn mark(cluster: &Cluster, node: &str) {
    let volumes: Api<Volume> = cluster.api();
    let patch = json!({"metadata": {"annotations": {MAKING_FILE_SYSTEM: node}}});
    let (parameters, patch) = (PatchParams::default(), Patch::Merge(&patch));
    let marked = volumes.patch("vol", &parameters, &patch).await;
    marked.expect("a mark");
}

fn is_marked(volume: &Volume) -> bool {
    volume.annotations().contains_key(MAKING_FILE_SYSTEM)
}

fn by_hand(node: &str) -> Value {
    json!({
        "id": "person", "type": "longhorn-api", "nodeID": node,
        "parameters": {"disableFrontend": "false"},
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_is_attached_by_hand_is_not_half_made_any_more() {
    let cluster = Cluster::start().await;
    let _agents = cluster.agents(2).await;
    let manager = cluster.manager("m");
    cluster.wait_until_nodes_are_ready(2).await;
    cluster.create_volume("vol", 2).await;
    let detached = || cluster.wait_for_state("vol", VolumeState::Detached, "");
    detached().await;

    // A node dies while it makes a file system, and the pod goes to another.
    mark(&cluster, "n1").await;
    cluster.file_ticket("vol", "csi-1", "n1").await;
    cluster.wait_until_satisfied("vol", "csi-1").await;
    cluster.withdraw_ticket("vol", "csi-1").await;
    detached().await;
    cluster.file_ticket("vol", "csi-2", "n2").await;
    cluster.wait_until_satisfied("vol", "csi-2").await;
    assert!(is_marked(&cluster.volume("vol").await));
    // A person who waits has nothing yet.
    cluster.patch_ticket("vol", "person", by_hand("n1")).await;
    let attachments: Api<VolumeAttachment> = cluster.api();
    let judged = eventually(|| async {
        let tickets = attachments.get("vol").await.expect("tickets").status;
        let statuses = tickets.unwrap_or_default().attachment_ticket_statuses;
        statuses.get("person").cloned().ok_or(statuses)
    });
    assert!(!judged.await.expect("a status").satisfied);
    assert!(is_marked(&cluster.volume("vol").await));

    // No version of it is both marked and his.
    let volumes: Api<Volume> = cluster.api();
    let options = watcher::Config::default();
    let versions = watcher(volumes, options).applied_objects();
    let mut versions = std::pin::pin!(versions);
    let present = versions.try_next().await.expect("a watch");
    assert!(present.is_some_and(|present| is_marked(&present)));
    cluster.withdraw_ticket("vol", "csi-2").await;
    loop {
        let version = versions.next().await.expect("a watch does not end");
        let version = version.expect("a version");
        if version.spec.node_id == "n1" {
            assert!(!is_marked(&version), "{:?}", version.spec);
            break;
        }
    }
    cluster.wait_until_satisfied("vol", "person").await;

    // A pod beside him cannot have a file system made for it that would be made again over what he writes.
    cluster.file_ticket("vol", "csi-3", "n1").await;
    cluster.wait_until_satisfied("vol", "csi-3").await;
    mark(&cluster, "n1").await;
    cluster
        .wait_for("vol", "unmarked", |volume| !is_marked(volume))
        .await;
    manager.stop().await;
    cluster.stop().await;
}
