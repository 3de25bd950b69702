//! Two managers, one at work; and the tickets that operations hold.

use crate::support::{Cluster, eventually};
use api_types::names::NAMESPACE;
use api_types::{ByteSize, Snapshot, SnapshotSpec, VolumeAttachment, VolumeState};
use attach_core::reaper::Policy;
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node as KubernetesNode};
use k8s_openapi::api::storage::v1::VolumeAttachment as KubernetesAttachment;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

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

/// Two that nobody needs any more, and one beside them that somebody does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_tickets_are_taken_out_and_others_stay() {
    let cluster = Cluster::start().await;
    let _agents = cluster.agents(2).await;
    let policy = Policy {
        grace: SignedDuration::from_secs(1),
        ..Policy::default()
    };
    let manager = cluster.manager_with("m", policy);
    cluster.wait_until_nodes_are_ready(2).await;
    for volume in ["orphan", "late", "used", "mounted"] {
        cluster.create_volume(volume, 1).await;
        cluster
            .wait_for_state(volume, VolumeState::Detached, "")
            .await;
    }
    let live = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "csi-used"},
        "spec": {"attacher": "driver.longhorn.io", "nodeName": "n1", "source": {"persistentVolumeName": "used"}},
    });
    let live: KubernetesAttachment = serde_json::from_value(live).expect("an attachment");
    Api::all(cluster.client.clone())
        .create(&PostParams::default(), &live)
        .await
        .expect("created");
    let nodes: Api<KubernetesNode> = Api::all(cluster.client.clone());
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    let node: KubernetesNode = serde_json::from_value(node).expect("a node");
    nodes
        .create(&PostParams::default(), &node)
        .await
        .expect("created");
    let uses = async |volumes: Value| {
        let status = Patch::Merge(json!({"status": {"volumesInUse": volumes}}));
        let how = PatchParams::default();
        let written = nodes.patch_status("n1", &how, &status).await;
        written.expect("a status");
    };
    uses(json!(["kubernetes.io/csi/driver.longhorn.io^mounted"])).await;
    cluster.file_ticket("mounted", "csi-mounted", "n1").await;
    cluster.file_ticket("used", "csi-used", "n1").await;
    cluster.file_ticket("orphan", "csi-orphan", "n1").await;
    let late = json!({
        "id": "person", "type": "longhorn-api", "nodeID": "n2",
        "parameters": {"disableFrontend": "false", "lariat.io/deadline": "2020-01-01T00:00:00Z"},
    });
    cluster.patch_ticket("late", "person", late).await;

    let attachments: Api<VolumeAttachment> = cluster.api();
    let until_gone = async |volume: &str| {
        let gone = eventually(|| async {
            let found = attachments.get(volume).await.expect("tickets");
            let tickets = found.spec.attachment_tickets;
            if tickets.is_empty() {
                Ok(())
            } else {
                Err(tickets)
            }
        });
        assert_eq!(gone.await, Ok(()), "{volume}");
    };
    until_gone("orphan").await;
    until_gone("late").await;
    let events: Api<Event> = cluster.api();
    for (volume, reason) in [
        ("orphan", "TicketSuspected"),
        ("orphan", "TicketRemoved"),
        ("late", "TicketRemoved"),
    ] {
        let told = eventually(|| async {
            let all = events.list(&ListParams::default()).await.expect("events");
            let mut told = all.items.into_iter().filter(|event| {
                event.involved_object.name.as_deref() == Some(volume)
                    && event.reason.as_deref() == Some(reason)
            });
            told.next().map(drop).ok_or(())
        });
        assert_eq!(told.await, Ok(()), "{reason} of {volume}");
    }
    // It was filed before the one whose ticket is gone by now.
    for (volume, ticket) in [("used", "csi-used"), ("mounted", "csi-mounted")] {
        let found = attachments.get(volume).await.expect("tickets");
        let kept: Vec<&String> = found.spec.attachment_tickets.keys().collect();
        assert_eq!(kept, [ticket]);
    }
    uses(json!([])).await;
    until_gone("mounted").await;
    manager.stop().await;
    cluster.stop().await;
}
