//! Two managers, one at work; and the tickets that operations hold.

use crate::support::{Cluster, eventually};
use api_types::names::NAMESPACE;
use api_types::{ByteSize, Snapshot, SnapshotSpec, VolumeAttachment, VolumeState};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

async fn leader(cluster: &Cluster, wanted: &str) {
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let found = eventually(|| async {
        let lease = leases.get_opt("lariat-manager").await.expect("an answer");
        let holder = lease.and_then(|lease| lease.spec?.holder_identity);
        if holder.as_deref() == Some(wanted) {
            Ok(())
        } else {
            Err(holder)
        }
    });
    assert_eq!(found.await, Ok(()), "{wanted} leads");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_leader_dies_or_leaves_another_goes_on() {
    let cluster = Cluster::start().await;
    let _agents = cluster.agents(3).await;
    let first = cluster.manager("first");
    leader(&cluster, "first").await;
    let second = cluster.manager("second");
    cluster.wait_until_nodes_are_ready(3).await;
    cluster.create_volume("a", 2).await;
    cluster.wait_for_state("a", VolumeState::Detached, "").await;
    leader(&cluster, "first").await;

    first.kill().await;
    leader(&cluster, "second").await;
    cluster.file_ticket("a", "csi-1", "n3").await;
    let attached = cluster
        .wait_for_state("a", VolumeState::Attached, "n3")
        .await;
    assert_eq!(attached.status.expect("a status").epoch, 1);

    let third = cluster.manager("third");
    second.stop().await;
    leader(&cluster, "third").await;
    cluster.withdraw_ticket("a", "csi-1").await;
    cluster.wait_for_state("a", VolumeState::Detached, "").await;
    third.stop().await;
    leader(&cluster, "").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_a_detached_volume_holds_a_ticket_until_it_is_taken() {
    let cluster = Cluster::start().await;
    let _agents = cluster.agents(2).await;
    let manager = cluster.manager("m");
    cluster.wait_until_nodes_are_ready(2).await;
    cluster.create_volume("vol", 2).await;
    cluster
        .wait_for_state("vol", VolumeState::Detached, "")
        .await;
    let snapshot = Snapshot::new(
        "snap",
        SnapshotSpec {
            volume: "vol".to_owned(),
            create_snapshot: true,
            ..SnapshotSpec::default()
        },
    );
    let snapshots: Api<Snapshot> = cluster.api();
    snapshots
        .create(&PostParams::default(), &snapshot)
        .await
        .expect("a snapshot");
    let attached = cluster
        .wait_for("vol", "attached", |volume| {
            volume
                .status
                .as_ref()
                .is_some_and(|status| status.state == VolumeState::Attached)
        })
        .await;
    assert_eq!(attached.spec.size, ByteSize(crate::support::GIB));
    let attachments: Api<VolumeAttachment> = cluster.api();
    let tickets = attachments
        .get("vol")
        .await
        .expect("tickets")
        .spec
        .attachment_tickets;
    let kinds: Vec<&str> = tickets
        .values()
        .map(|ticket| ticket.attacher_type.as_str())
        .collect();
    assert_eq!(kinds, ["snapshot-controller"]);

    let taken = json!({"creationTime": "2026-01-01T00:00:00Z", "readyToUse": true});
    cluster.merge_status::<Snapshot>("snap", taken).await;
    cluster
        .wait_for_state("vol", VolumeState::Detached, "")
        .await;
    let tickets = attachments
        .get("vol")
        .await
        .expect("tickets")
        .spec
        .attachment_tickets;
    assert!(tickets.is_empty(), "{tickets:?}");
    manager.stop().await;
    cluster.stop().await;
}
