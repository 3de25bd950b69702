//! The embedded mode's whole set against the real embedded API: from a claim to an attached volume and back,
//! with a driver that does as it is told (`support/csi.rs` says what that does not show) and no kubelet.

mod support;

use std::sync::Arc;
use std::time::Duration;

use api_types::Volume;
use controllers::kubernetes::cache::Feeds;
use controllers::kubernetes::queue::Backoff;
use controllers::kubernetes::{Options, spawn_with};
use events::{EventKind, Recorder};
use http::Method;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttachment};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use support::csi::FakeCsi;
use support::objects::{DRIVER, attachment_name, is_attached};
use support::{Cluster, create, until};

async fn start() -> (Cluster, Arc<FakeCsi>) {
    let mut cluster = Cluster::start().await;
    let csi = Arc::new(FakeCsi::new(DRIVER));
    let mut options = Options::for_driver(DRIVER);
    let quick = Backoff {
        first: Duration::from_millis(20),
        longest: Duration::from_millis(500),
    };
    options.attacher.backoff = quick;
    options.binder.backoff = quick;
    let feeds = Feeds::new(cluster.client.clone());
    let mut tasks = spawn_with(&feeds, &csi, options, &cluster.stop);
    cluster.spawn(async move {
        if let Some(ended) = tasks.join_next().await {
            panic!("a controller ended: {ended:?}");
        }
    });
    (cluster, csi)
}

async fn class(cluster: &Cluster, name: &str, more: Value) {
    let mut class = json!({"metadata": {"name": name}, "provisioner": DRIVER,
        "parameters": {"numberOfReplicas": "2", "csi.storage.k8s.io/fstype": "xfs"}});
    json_patch::merge(&mut class, &more);
    create::<StorageClass>(&cluster.all(), class).await;
}

async fn claim(cluster: &Cluster, name: &str, more: Value) -> PersistentVolumeClaim {
    let mut claim = json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    json_patch::merge(&mut claim, &more);
    create(&cluster.default(), claim).await
}

fn phase(claim: Option<&PersistentVolumeClaim>) -> &str {
    let status = claim.and_then(|claim| claim.status.as_ref());
    status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

fn node_of(pod: Option<&Pod>) -> Option<String> {
    pod?.spec
        .as_ref()?
        .node_name
        .clone()
        .filter(|node| !node.is_empty())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_a_claim_to_an_attached_volume_and_back_to_nothing() {
    let (cluster, csi) = start().await;
    cluster.node("n1", 0).await;
    let default = json!({"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}});
    class(&cluster, "longhorn", default).await;
    let created = claim(&cluster, "data", json!({})).await;
    let (claims, volumes) = (
        cluster.default::<PersistentVolumeClaim>(),
        cluster.all::<PersistentVolume>(),
    );
    let bound = until(&claims, "data", "bound", |claim| phase(claim) == "Bound").await;
    let bound = bound.expect("it exists");
    let name = format!("pvc-{}", created.uid().expect("a UID"));
    let spec = bound.spec.expect("a spec");
    assert_eq!(spec.volume_name.as_deref(), Some(name.as_str()));
    assert_eq!(spec.storage_class_name.as_deref(), Some("longhorn"));
    let volume = until(&volumes, &name, "bound", |volume| {
        let status = volume.and_then(|volume| volume.status.as_ref());
        status.and_then(|status| status.phase.as_deref()) == Some("Bound")
    })
    .await
    .expect("it exists");
    let spec = volume.spec.expect("a spec");
    let source = spec.csi.expect("a CSI volume");
    assert_eq!(source.fs_type.as_deref(), Some("xfs"));
    assert_eq!(source.volume_handle, name);
    let attributes = source.volume_attributes.unwrap_or_default();
    assert_eq!(attributes.keys().collect::<Vec<_>>(), ["numberOfReplicas"]);
    assert_eq!(spec.capacity.expect("a capacity")["storage"].0, "1Gi");

    let pods = cluster.default::<Pod>();
    cluster.pod("p", None, &["data"]).await;
    let placed = until(&pods, "p", "placed", |pod| node_of(pod).is_some()).await;
    assert_eq!(node_of(placed.as_ref()).as_deref(), Some("n1"));
    let attachments = cluster.all::<VolumeAttachment>();
    let attachment = attachment_name(&name, "n1");
    until(&attachments, &attachment, "attached", is_attached).await;

    // The claim is deleted under the pod: it stays until the pod is gone.
    claims
        .delete("data", &DeleteParams::default())
        .await
        .expect("marked");
    let kept = claims.get("data").await.expect("the pod uses it");
    assert!(kept.metadata.deletion_timestamp.is_some());
    cluster.delete_pod("p").await;
    until(&attachments, &attachment, "gone", |attachment| {
        attachment.is_none()
    })
    .await;
    until(&claims, "data", "gone", |claim| claim.is_none()).await;
    until(&volumes, &name, "gone", |volume| volume.is_none()).await;
    // Whoever wrote at the same moment makes a call come again, which every driver has to bear.
    let mut calls = csi.calls();
    calls.dedup();
    assert_eq!(
        calls,
        [
            format!("create {name}"),
            format!("publish {name} n1"),
            format!("unpublish {name} n1"),
            format!("delete {name}"),
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_waits_for_its_first_pod_gets_that_pods_node() {
    let (cluster, csi) = start().await;
    for node in ["n1", "n2"] {
        cluster.node(node, 0).await;
    }
    class(
        &cluster,
        "late",
        json!({"volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Retain"}),
    )
    .await;
    claim(
        &cluster,
        "data",
        json!({"spec": {"storageClassName": "late"}}),
    )
    .await;
    cluster
        .until_event("WaitForFirstConsumer", "first consumer")
        .await;
    assert!(csi.calls().is_empty());
    let pod = json!({
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"kubernetes.io/hostname": "n2"},
            "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]},
    });
    let pods = cluster.default::<Pod>();
    create(&pods, pod).await;
    let placed = until(&pods, "p", "placed", |pod| node_of(pod).is_some()).await;
    assert_eq!(node_of(placed.as_ref()).as_deref(), Some("n2"));
    let claims = cluster.default::<PersistentVolumeClaim>();
    let bound = claims.get("data").await.expect("it exists");
    assert_eq!(
        bound.annotations()["volume.kubernetes.io/selected-node"],
        "n2"
    );
    let name = bound.spec.and_then(|spec| spec.volume_name).expect("bound");

    // Retain: the claim goes, the volume and its data stay.
    cluster.delete_pod("p").await;
    claims
        .delete("data", &DeleteParams::default())
        .await
        .expect("marked");
    let volumes = cluster.all::<PersistentVolume>();
    until(&volumes, &name, "released", |volume| {
        let status = volume.and_then(|volume| volume.status.as_ref());
        status.and_then(|status| status.phase.as_deref()) == Some("Released")
    })
    .await;
    assert_eq!(csi.volumes(), [name]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_made_by_hand_is_bound_by_its_name() {
    let (cluster, csi) = start().await;
    cluster
        .volume(
            "mine",
            DRIVER,
            json!({"persistentVolumeReclaimPolicy": "Delete"}),
        )
        .await;
    claim(
        &cluster,
        "data",
        json!({"spec": {"storageClassName": "", "volumeName": "mine"}}),
    )
    .await;
    let claims = cluster.default::<PersistentVolumeClaim>();
    until(&claims, "data", "bound", |claim| phase(claim) == "Bound").await;
    claim(
        &cluster,
        "late",
        json!({"spec": {"storageClassName": "", "volumeName": "mine"}}),
    )
    .await;
    cluster
        .until_event("FailedBinding", "already bound to a different claim")
        .await;
    claims
        .delete("data", &DeleteParams::default())
        .await
        .expect("marked");
    until(&claims, "data", "gone", |claim| claim.is_none()).await;
    let volumes = cluster.all::<PersistentVolume>();
    until(&volumes, "mine", "released", |volume| {
        let status = volume.and_then(|volume| volume.status.as_ref());
        status.and_then(|status| status.phase.as_deref()) == Some("Released")
    })
    .await;
    assert!(
        csi.calls().is_empty(),
        "what we did not make we do not delete"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_fits_nowhere_is_told_why_and_placed_when_it_fits() {
    let (cluster, _csi) = start().await;
    cluster.node("n1", 0).await;
    let cordon = |on: bool| Patch::Merge(json!({"spec": {"unschedulable": on}}));
    let nodes = cluster.all::<Node>();
    nodes
        .patch("n1", &PatchParams::default(), &cordon(true))
        .await
        .expect("cordoned");
    cluster.pod("p", None, &[]).await;
    let pods = cluster.default::<Pod>();
    until(&pods, "p", "told", |pod| {
        let status = pod.and_then(|pod| pod.status.as_ref());
        let conditions = status.and_then(|status| status.conditions.as_ref());
        conditions.into_iter().flatten().any(|condition| {
            condition.type_ == "PodScheduled"
                && condition.status == "False"
                && condition
                    .message
                    .as_deref()
                    .is_some_and(|message| message.contains("n1: it is cordoned"))
        })
    })
    .await;
    cluster
        .until_event("FailedScheduling", "0/1 nodes are available")
        .await;
    nodes
        .patch("n1", &PatchParams::default(), &cordon(false))
        .await
        .expect("uncordoned");
    until(&pods, "p", "placed", |pod| node_of(pod).is_some()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_for_one_pod_lets_the_next_one_wait_for_the_first() {
    let (cluster, _csi) = start().await;
    for node in ["n1", "n2"] {
        cluster.node(node, 0).await;
    }
    class(&cluster, "longhorn", json!({})).await;
    let for_one =
        json!({"spec": {"storageClassName": "longhorn", "accessModes": ["ReadWriteOncePod"]}});
    claim(&cluster, "data", for_one).await;
    let claims = cluster.default::<PersistentVolumeClaim>();
    until(&claims, "data", "bound", |claim| phase(claim) == "Bound").await;
    let pods = cluster.default::<Pod>();
    cluster.pod("first", None, &["data"]).await;
    until(&pods, "first", "placed", |pod| node_of(pod).is_some()).await;

    cluster.pod("second", None, &["data"]).await;
    let why = "persistentvolumeclaim \"data\" is ReadWriteOncePod and in use by pod first";
    let told = cluster.until_event("FailedScheduling", why).await;
    assert_eq!(told.involved_object.name.as_deref(), Some("second"));
    let waiting = pods.get("second").await.expect("it waits");
    assert_eq!(node_of(Some(&waiting)), None);

    cluster.delete_pod("first").await;
    until(&pods, "second", "placed", |pod| node_of(pod).is_some()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_that_fails_is_told_and_tried_again() {
    let (cluster, csi) = start().await;
    class(&cluster, "longhorn", json!({})).await;
    csi.fail_next("create", 8, "no disk has room");
    claim(
        &cluster,
        "data",
        json!({"spec": {"storageClassName": "longhorn"}}),
    )
    .await;
    cluster
        .until_event("ProvisioningFailed", "no disk has room")
        .await;
    let claims = cluster.default::<PersistentVolumeClaim>();
    until(&claims, "data", "bound", |claim| phase(claim) == "Bound").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_api_refuses_is_told_in_its_own_words() {
    let (cluster, _csi) = start().await;
    class(&cluster, "longhorn", json!({})).await;
    cluster.refuse(Method::POST, "/persistentvolumes");
    cluster.refuse(Method::POST, "/pods");
    let claimed = json!({"spec": {"storageClassName": "longhorn"}});
    claim(&cluster, "data", claimed).await;
    let set = json!({
        "metadata": {"name": "web"},
        "spec": {"serviceName": "web", "replicas": 1, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]}}},
    });
    create::<StatefulSet>(&cluster.default(), set).await;
    for (reason, expected) in [
        (
            "ProvisioningFailed",
            "failed to provision volume: the API did not take a write or a read: Unauthorized",
        ),
        (
            "FailedCreate",
            "create Pod web-0 in StatefulSet web failed: Unauthorized",
        ),
    ] {
        let event = cluster.until_event(reason, "failed").await;
        assert_eq!(event.message.as_deref(), Some(expected));
    }
    cluster.refuse_nothing();
    let claims = cluster.default::<PersistentVolumeClaim>();
    until(&claims, "data", "bound", |claim| phase(claim) == "Bound").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_nodes_pod_leaves_when_its_volume_is_fenced() {
    let (cluster, csi) = start().await;
    for node in ["n1", "n2"] {
        cluster.node(node, 0).await;
        let agents: Api<api_types::Node> =
            Api::namespaced(cluster.client.clone(), "longhorn-system");
        create(
            &agents,
            json!({"apiVersion": "longhorn.io/v1beta2", "kind": "Node",
                "metadata": {"name": node, "namespace": "longhorn-system"}, "spec": {"name": node}}),
        )
        .await;
    }
    class(&cluster, "longhorn", json!({})).await;
    let created = claim(
        &cluster,
        "data",
        json!({"spec": {"storageClassName": "longhorn"}}),
    )
    .await;
    let name = format!("pvc-{}", created.uid().expect("a UID"));
    let claims = cluster.default::<PersistentVolumeClaim>();
    until(&claims, "data", "bound", |claim| phase(claim) == "Bound").await;
    cluster.pod("old", Some("n1"), &["data"]).await;
    let attachments = cluster.all::<VolumeAttachment>();
    until(
        &attachments,
        &attachment_name(&name, "n1"),
        "attached",
        is_attached,
    )
    .await;
    let in_use = format!("kubernetes.io/csi/{DRIVER}^{name}");
    cluster
        .patch_node_status("n1", json!({"volumesInUse": [in_use]}))
        .await;
    let volumes: Api<Volume> = Api::namespaced(cluster.client.clone(), "longhorn-system");
    create(
        &volumes,
        json!({"apiVersion": "longhorn.io/v1beta2", "kind": "Volume",
            "metadata": {"name": name, "namespace": "longhorn-system"}, "spec": {"size": "1073741824"}}),
    )
    .await;

    let migrating = claim(
        &cluster,
        "moves",
        json!({"spec": {"storageClassName": "longhorn"}}),
    )
    .await;
    let migrating = format!("pvc-{}", migrating.uid().expect("a UID"));
    until(&claims, "moves", "bound", |claim| phase(claim) == "Bound").await;
    cluster.pod("target", Some("n1"), &["moves"]).await;
    create(
        &volumes,
        json!({"apiVersion": "longhorn.io/v1beta2", "kind": "Volume",
            "metadata": {"name": migrating, "namespace": "longhorn-system"}, "spec": {"size": "1073741824"}}),
    )
    .await;
    let says = async |volume: &str, status: Value| {
        let patch = Patch::Merge(json!({"status": status}));
        let how = PatchParams::default();
        let written = volumes.patch_status(volume, &how, &patch).await;
        written.expect("patched");
    };
    let on_both =
        json!({"state": "attached", "currentNodeID": "n2", "currentMigrationNodeID": "n1"});
    says(&migrating, on_both).await;

    ready(&cluster, "n1", "False").await;
    let nodes = cluster.all::<Node>();
    until(&nodes, "n1", "unknown and tainted", |node| {
        let node = node.expect("it exists");
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        !cluster_core::wire::node(node).ready
            && taints
                .into_iter()
                .flatten()
                .any(|taint| taint.key == "node.kubernetes.io/unreachable")
    })
    .await;
    let pods = cluster.default::<Pod>();
    for name in ["old", "target"] {
        let kept = pods.get(name).await.expect("nothing is proven yet");
        assert_eq!(kept.metadata.deletion_timestamp, None);
    }
    // The migration is given up after the node, which the volume then names no more.
    says(&migrating, json!({"currentMigrationNodeID": ""})).await;
    until(&pods, "target", "gone", |pod| pod.is_none()).await;
    let proof = json!({"currentNodeID": "", "fenceProof": {
        "epoch": 2, "replicas": ["r"], "time": "2026-01-01T00:00:00Z", "formerNodeID": "n1"}});
    says(&name, proof).await;
    until(&pods, "old", "gone", |pod| pod.is_none()).await;
    cluster.until_event("RemovedFromLostNode", "n1").await;
    // Its successor goes where it can run.
    cluster.pod("new", None, &["data"]).await;
    let placed = until(&pods, "new", "placed", |pod| node_of(pod).is_some()).await;
    assert_eq!(node_of(placed.as_ref()).as_deref(), Some("n2"));
    until(
        &attachments,
        &attachment_name(&name, "n2"),
        "attached",
        is_attached,
    )
    .await;
    assert_eq!(csi.published(&name), ["n2"]);

    ready(&cluster, "n1", "True").await;
    until(&nodes, "n1", "well again", |node| {
        let node = node.expect("it exists");
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        cluster_core::wire::node(node).ready && taints.is_none_or(Vec::is_empty)
    })
    .await;
}

/// As the node monitor writes it.
async fn ready(cluster: &Cluster, node: &str, status: &str) {
    let agents: Api<api_types::Node> = Api::namespaced(cluster.client.clone(), "longhorn-system");
    let patch = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
    agents
        .patch_status(node, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .expect("patched");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_whose_figures_change_is_counted_also_by_the_next_process() {
    let cluster = Cluster::start().await;
    let pod = cluster.pod("p", None, &[]).await;
    let about = pod.object_ref(&());
    let first = Recorder::new(cluster.client.clone(), "tester");
    for free in [30, 20] {
        let message = format!("{free} bytes are free on node-1");
        first
            .record(&about, EventKind::Warning, "Full", &message)
            .await;
    }
    let next = Recorder::new(cluster.client.clone(), "tester");
    for (message, count) in [
        ("10 bytes are free on node-1", 3),
        ("9 bytes are free on node-1", 4),
    ] {
        next.record(&about, EventKind::Warning, "Full", message)
            .await;
        let event = cluster.until_event("Full", message).await;
        assert_eq!(event.count, Some(count));
    }
    assert_eq!(cluster.events("Full").await.len(), 1);
    // Another node is another matter.
    next.record(
        &about,
        EventKind::Warning,
        "Full",
        "9 bytes are free on node-2",
    )
    .await;
    assert_eq!(cluster.events("Full").await.len(), 2);
    // Words without figures are themselves; a namesake of the pod has its own.
    next.record(&about, EventKind::Warning, "Full", "nothing is free")
        .await;
    cluster.delete_pod("p").await;
    let namesake = cluster.pod("p", None, &[]).await;
    next.record(
        &namesake.object_ref(&()),
        EventKind::Warning,
        "Full",
        "nothing is free",
    )
    .await;
    assert_eq!(cluster.events("Full").await.len(), 4);
}
