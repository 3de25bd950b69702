//! A volume's life: placed, attached, detached, fenced, deleted.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::support::{Cluster, eventually};
use api_types::{Engine, InstanceState, Replica, Volume, VolumeAttachment, VolumeState};
use k8s_openapi::api::core::v1::{Event, PersistentVolume, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

fn running(engines: &[Engine]) -> Vec<&Engine> {
    engines
        .iter()
        .filter(|engine| engine.spec.desire_state == InstanceState::Running)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_brings_the_volume_and_its_withdrawal_takes_it_away() {
    let cluster = Cluster::start().await;
    let agents = cluster.agents(3).await;
    let manager = cluster.manager("m");
    cluster.wait_until_nodes_are_ready(3).await;
    cluster.create_volume("vol", 3).await;
    let detached = cluster
        .wait_for_state("vol", VolumeState::Detached, "")
        .await;
    let status = detached.status.expect("a status");
    assert_eq!(status.in_sync_replicas.len(), 3);
    assert_eq!(status.epoch, 0, "no engine, no epoch");
    let replicas = cluster.replicas("vol").await;
    let nodes: BTreeSet<&str> = replicas
        .iter()
        .map(|replica| replica.spec.node_id.as_str())
        .collect();
    assert_eq!(nodes, BTreeSet::from(["n1", "n2", "n3"]));
    assert!(
        replicas
            .iter()
            .all(|replica| replica.spec.disk_path.starts_with("/disks/n"))
    );

    // The engine is held back, so that what is written before it runs can be seen.
    agents[0].hold_engines(true);
    let filed = Instant::now();
    cluster.file_ticket("vol", "csi-1", "n1").await;
    cluster
        .wait_for("vol", "wanted on n1", |volume| volume.spec.node_id == "n1")
        .await;
    println!("ticket to Volume.spec.nodeID: {:?}", filed.elapsed());
    let engines = eventually(|| async {
        let engines = cluster.engines("vol").await;
        if engines.is_empty() {
            Err(())
        } else {
            Ok(engines)
        }
    });
    let engines = engines.await.expect("an engine");
    println!("ticket to Engine: {:?}", filed.elapsed());
    assert_eq!(engines.len(), 1);
    let spec = &engines[0].spec;
    assert_eq!((engines[0].name_any().as_str(), spec.epoch), ("vol-e-1", 1));
    assert_eq!(
        (spec.node_id.as_str(), spec.replica_address_map.len()),
        ("n1", 3)
    );
    let attaching = cluster
        .wait_for_state("vol", VolumeState::Attaching, "n1")
        .await;
    assert_eq!(
        attaching.status.expect("a status").epoch,
        1,
        "the epoch was issued before"
    );
    let ticket: Api<VolumeAttachment> = cluster.api();
    let status = ticket
        .get("vol")
        .await
        .expect("tickets")
        .status
        .expect("a status");
    assert!(!status.attachment_ticket_statuses["csi-1"].satisfied);

    agents[0].hold_engines(false);
    cluster
        .merge_status::<Engine>(
            "vol-e-1",
            json!({"ownerID": "n1", "currentState": "starting"}),
        )
        .await;
    let attached = cluster
        .wait_for_state("vol", VolumeState::Attached, "n1")
        .await;
    cluster.wait_until_satisfied("vol", "csi-1").await;
    println!("ticket to satisfied: {:?}", filed.elapsed());
    let status = attached.status.expect("a status");
    assert_eq!(status.robustness, api_types::VolumeRobustness::Healthy);
    assert_eq!(status.current_size.bytes(), crate::support::GIB);

    cluster.withdraw_ticket("vol", "csi-1").await;
    let detached = cluster
        .wait_for_state("vol", VolumeState::Detached, "")
        .await;
    assert_eq!(detached.spec.node_id, "");
    assert!(running(&cluster.engines("vol").await).is_empty());

    let events: Api<Event> = Api::all(cluster.client.clone());
    let told = eventually(|| async {
        let all = events
            .list(&ListParams::default())
            .await
            .expect("events")
            .items;
        let about = all
            .iter()
            .filter(|event| event.involved_object.name.as_deref() == Some("vol"));
        let reasons: BTreeSet<String> = about.filter_map(|event| event.reason.clone()).collect();
        let wanted = [
            "CreatingReplica",
            "StartingEngine",
            "Attached",
            "Detached",
            "Healthy",
        ];
        if wanted.iter().all(|reason| reasons.contains(*reason)) {
            Ok(())
        } else {
            Err(reasons)
        }
    });
    assert_eq!(told.await, Ok(()));
    manager.stop().await;
    for agent in agents {
        agent.lose().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_node_is_fenced_and_the_volume_comes_up_elsewhere() {
    let cluster = Cluster::start().await;
    let mut agents = cluster.agents(3).await;
    let manager = cluster.manager("m");
    cluster.wait_until_nodes_are_ready(3).await;
    cluster.create_volume("vol", 3).await;
    cluster.file_ticket("vol", "csi-1", "n1").await;
    cluster
        .wait_for_state("vol", VolumeState::Attached, "n1")
        .await;

    agents.remove(0).lose().await;
    let fenced = cluster
        .wait_for("vol", "fenced", |volume| {
            volume
                .status
                .as_ref()
                .is_some_and(|status| status.fence_proof.is_some())
        })
        .await;
    let status = fenced.status.expect("a status");
    let proof = status.fence_proof.expect("a proof");
    assert_eq!((proof.former_node_id.as_str(), proof.epoch), ("n1", 2));
    let on_others: BTreeSet<String> = cluster
        .replicas("vol")
        .await
        .into_iter()
        .filter(|replica| replica.spec.node_id != "n1")
        .map(|replica| replica.name_any())
        .collect();
    assert_eq!(
        proof.replicas.into_iter().collect::<BTreeSet<_>>(),
        on_others
    );

    cluster.withdraw_ticket("vol", "csi-1").await;
    cluster.file_ticket("vol", "csi-2", "n2").await;
    let attached = cluster
        .wait_for_state("vol", VolumeState::Attached, "n2")
        .await;
    cluster.wait_until_satisfied("vol", "csi-2").await;
    let epoch = attached.status.expect("a status").epoch;
    assert!(epoch > 1, "a new incarnation: {epoch}");
    let engines = cluster.engines("vol").await;
    let running = running(&engines);
    assert_eq!(running.len(), 1, "{engines:#?}");
    assert_eq!(
        (running[0].spec.node_id.as_str(), running[0].spec.epoch),
        ("n2", epoch)
    );
    manager.stop().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proposed_in_sync_set_is_committed_once() {
    let cluster = Cluster::start().await;
    let _agents = cluster.agents(3).await;
    let manager = cluster.manager("m");
    cluster.wait_until_nodes_are_ready(3).await;
    cluster.create_volume("vol", 3).await;
    cluster.file_ticket("vol", "csi-1", "n1").await;
    let attached = cluster
        .wait_for_state("vol", VolumeState::Attached, "n1")
        .await;
    let before = attached.status.expect("a status");
    let kept: Vec<String> = before.in_sync_replicas[..2].to_vec();
    let proposal = json!({
        "proposedInSyncReplicas": kept, "proposalBasedOn": before.in_sync_version,
        "replicaModeMap": {(before.in_sync_replicas[2].as_str()): "ERR"},
    });
    cluster.merge_status::<Engine>("vol-e-1", proposal).await;
    let committed = cluster
        .wait_for("vol", "smaller", |volume| {
            volume
                .status
                .as_ref()
                .is_some_and(|status| status.in_sync_replicas == kept)
        })
        .await;
    let after = committed.status.expect("a status");
    assert_eq!(after.in_sync_version, before.in_sync_version + 1);
    assert_eq!(after.epoch, before.epoch);
    // The engine's agent answers from what it reads in the Engine.
    let engines: Api<Engine> = cluster.api();
    let mirrored = eventually(|| async {
        let spec = engines.get("vol-e-1").await.expect("the engine").spec;
        if spec.in_sync_version == after.in_sync_version {
            Ok(spec)
        } else {
            Err(spec)
        }
    });
    assert_eq!(
        mirrored.await.expect("the new version").in_sync_replicas,
        kept
    );
    // The proposal is still there. Something later is seen to be handled, and it was not committed again.
    let used = json!({"allocatedBytes": 4096});
    cluster.merge_status::<Replica>(&kept[0], used).await;
    let later = cluster
        .wait_for("vol", "larger", |volume| {
            volume
                .status
                .as_ref()
                .is_some_and(|status| status.actual_size == 4096)
        })
        .await;
    let later = later.status.expect("a status");
    assert_eq!(
        (later.in_sync_version, later.in_sync_replicas),
        (after.in_sync_version, kept)
    );
    manager.stop().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_volume_leaves_nothing_also_on_a_lost_node() {
    let cluster = Cluster::start().await;
    let mut agents = cluster.agents(3).await;
    let manager = cluster.manager("m");
    cluster.wait_until_nodes_are_ready(3).await;
    for (name, ticket) in [("whole", "csi-1"), ("broken", "csi-2")] {
        cluster.create_volume(name, 3).await;
        cluster.file_ticket(name, ticket, "n1").await;
        cluster
            .wait_for_state(name, VolumeState::Attached, "n1")
            .await;
    }
    let volumes: Api<Volume> = cluster.api();
    volumes
        .delete("whole", &DeleteParams::default())
        .await
        .expect("a deletion");
    gone(&cluster, "whole").await;
    agents.remove(0).lose().await;
    volumes
        .delete("broken", &DeleteParams::default())
        .await
        .expect("a deletion");
    gone(&cluster, "broken").await;
    manager.stop().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_see_on_the_volume_who_uses_it() {
    let cluster = Cluster::start().await;
    let manager = cluster.manager("m");
    cluster.create_volume("vol", 1).await;
    let apply = PatchParams::apply("test").force();
    let persistent_volumes: Api<PersistentVolume> = Api::all(cluster.client.clone());
    let object = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "vol"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "driver.longhorn.io", "volumeHandle": "vol"},
            "claimRef": {"namespace": "default", "name": "data", "uid": "u"}},
    });
    persistent_volumes
        .patch("vol", &apply, &Patch::Apply(object))
        .await
        .expect("a volume");
    let bound = Patch::Merge(json!({"status": {"phase": "Bound"}}));
    let params = PatchParams::default();
    persistent_volumes
        .patch_status("vol", &params, &bound)
        .await
        .expect("a status");
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-0"},
        "spec": {"containers": [{"name": "web", "image": "web"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
    });
    pods.patch("web-0", &apply, &Patch::Apply(pod))
        .await
        .expect("a pod");
    let used = cluster
        .wait_for("vol", "used", |volume| {
            let status = volume.status.clone().unwrap_or_default().kubernetes_status;
            status.workloads_status.len() == 1
        })
        .await;
    let users = used.status.expect("a status").kubernetes_status;
    assert_eq!(
        (users.pv_status.as_str(), users.pvc_name.as_str()),
        ("Bound", "data")
    );
    assert_eq!(users.workloads_status[0].pod_name, "web-0");
    assert_eq!(users.last_pod_ref_at, "");
    let now = DeleteParams::default().grace_period(0);
    pods.delete("web-0", &now).await.expect("a deletion");
    let unused = cluster
        .wait_for("vol", "unused", |volume| {
            let status = volume.status.clone().unwrap_or_default().kubernetes_status;
            !status.last_pod_ref_at.is_empty()
        })
        .await;
    let users = unused.status.expect("a status").kubernetes_status;
    assert_eq!(
        users.workloads_status[0].pod_name, "web-0",
        "it stays to be seen"
    );
    manager.stop().await;
    cluster.stop().await;
}

async fn gone(cluster: &Cluster, name: &str) {
    let volumes: Api<Volume> = cluster.api();
    let attachments: Api<VolumeAttachment> = cluster.api();
    let left = eventually(|| async {
        let volume = volumes.get_opt(name).await.expect("an answer");
        let attachment = attachments.get_opt(name).await.expect("an answer");
        let (engines, replicas) = (cluster.engines(name).await, cluster.replicas(name).await);
        if volume.is_none() && attachment.is_none() && engines.is_empty() && replicas.is_empty() {
            return Ok(());
        }
        Err((volume.map(|volume| volume.metadata), engines, replicas))
    });
    if let Err(left) = left.await {
        panic!("{name} left {left:#?}");
    }
}
