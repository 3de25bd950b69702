//! The attach-detach controller against the real embedded API. There is no kubelet: the tests write what one
//! would write into a node's status.

mod support;

use std::cmp::Reverse;
use std::sync::Arc;

use api_types::Volume;
use cluster_core::DriverName;
use controllers::kubernetes::attach_detach::{self, AttachDetachOptions};
use controllers::kubernetes::attacher::{AttacherOptions, run_with};
use controllers::kubernetes::attachment_state;
use controllers::kubernetes::cache::Feeds;
use controllers::metrics::Metrics;
use http::Method;
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use prometheus_client::registry::Registry;
use serde_json::json;
use support::csi::FakeCsi;
use support::objects::{DRIVER, attachment_name, is_attached};
use support::{Cluster, create, until, until_true};

/// A cluster with nodes n1 and n2, this controller and an attacher.
async fn start(volumes_max: u32) -> (Cluster, Arc<FakeCsi>) {
    let mut cluster = Cluster::start().await;
    cluster.node("n1", volumes_max).await;
    cluster.node("n2", volumes_max).await;
    let csi = Arc::new(FakeCsi::new(DRIVER));
    let (client, driver, stop) = (
        cluster.client.clone(),
        Arc::clone(&csi),
        cluster.stop.clone(),
    );
    cluster.spawn(async move {
        let options = AttacherOptions::default();
        run_with(
            Feeds::new(client),
            driver,
            options,
            Metrics::default(),
            stop,
        )
        .await
        .expect("it runs");
    });
    spawn_controller(&mut cluster, Metrics::default());
    (cluster, csi)
}

fn spawn_controller(cluster: &mut Cluster, metrics: Metrics) {
    let (client, stop) = (cluster.client.clone(), cluster.stop.clone());
    let options = AttachDetachOptions::default();
    let (feeds, driver) = (Feeds::new(client), DriverName::from(DRIVER));
    let (beside, counted, stopped) = (feeds.clone(), metrics.clone(), stop.clone());
    cluster.spawn(async move {
        attach_detach::run(&feeds, options, &metrics, stop).await;
    });
    cluster.spawn(async move {
        attachment_state::run(&beside, driver, &counted, stopped).await;
    });
}

fn unique(handle: &str) -> String {
    format!("kubernetes.io/csi/{DRIVER}^{handle}")
}

fn attached_list(node: Option<&Node>) -> Vec<String> {
    let status = node.and_then(|node| node.status.as_ref());
    let volumes = status.and_then(|status| status.volumes_attached.as_ref());
    volumes
        .into_iter()
        .flatten()
        .map(|volume| volume.name.clone())
        .collect()
}

/// A volume of our own driver has an object of ours.
async fn own_volume(cluster: &Cluster, name: &str) -> Api<Volume> {
    let volumes: Api<Volume> = Api::namespaced(cluster.client.clone(), "longhorn-system");
    create(
        &volumes,
        json!({"apiVersion": "longhorn.io/v1beta2", "kind": "Volume",
            "metadata": {"name": name, "namespace": "longhorn-system"}, "spec": {"size": "1073741824"}}),
    )
    .await;
    volumes
}

async fn until_attached(cluster: &Cluster, volume: &str, node: &str) {
    let name = attachment_name(volume, node);
    let attachments = cluster.all::<VolumeAttachment>();
    until(&attachments, &name, "attached", is_attached).await;
}

/// An attachment as an earlier life has left it.
async fn left_attached(cluster: &Cluster, volume: &str, node: &str) -> VolumeAttachment {
    let name = attachment_name(volume, node);
    cluster.attachment(&name, DRIVER, volume, node).await;
    let attached = Patch::Merge(json!({"status": {"attached": true}}));
    cluster
        .all::<VolumeAttachment>()
        .patch_status(&name, &PatchParams::default(), &attached)
        .await
        .expect("patched")
}

async fn until_gone(cluster: &Cluster, name: &str) {
    let attachments = cluster.all::<VolumeAttachment>();
    until(&attachments, name, "gone", |attachment| {
        attachment.is_none()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pods_volume_is_attached_and_detached_with_it() {
    let (cluster, csi) = start(0).await;
    cluster.bound("v").await;
    cluster.pod("p", Some("n1"), &["v"]).await;
    let (attachments, nodes) = (cluster.all::<VolumeAttachment>(), cluster.all::<Node>());
    let name = attachment_name("v", "n1");
    until(&attachments, &name, "attached", is_attached).await;
    until(&nodes, "n1", "told", |node| {
        attached_list(node) == [unique("v")]
    })
    .await;
    let event = cluster.until_event("SuccessfulAttachVolume", "\"v\"").await;
    assert_eq!(event.involved_object.name.as_deref(), Some("p"));
    let volumes = cluster.all::<PersistentVolume>();
    until(&volumes, "v", "annotated", |volume| {
        let annotations = volume.expect("it exists").annotations();
        annotations
            .get("driver.longhorn.io/attached-node")
            .map(String::as_str)
            == Some("n1")
            && annotations.contains_key("driver.longhorn.io/attached-at")
    })
    .await;

    // The kubelet still has it mounted when the pod is gone: it stays until that is over.
    cluster
        .patch_node_status("n1", json!({"volumesInUse": [unique("v")]}))
        .await;
    cluster.delete_pod("p").await;
    cluster.bound("other").await;
    cluster.pod("q", Some("n1"), &["other"]).await;
    until_attached(&cluster, "other", "n1").await;
    let kept = attachments.get(&name).await.expect("it is still mounted");
    assert_eq!(kept.metadata.deletion_timestamp, None);
    cluster
        .patch_node_status("n1", json!({"volumesInUse": []}))
        .await;
    until_gone(&cluster, &name).await;
    until(&nodes, "n1", "told", |node| {
        attached_list(node) == [unique("other")]
    })
    .await;
    cluster.until_event("SuccessfulDetachVolume", "\"v\"").await;
    until(&volumes, "v", "no longer annotated", |volume| {
        !volume
            .expect("it exists")
            .annotations()
            .contains_key("driver.longhorn.io/attached-node")
    })
    .await;
    assert!(csi.published("v").is_empty());
}

/// As long as the node's list has the volume, its kubelet may mount it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_taken_from_a_node_that_cannot_be_told() {
    let (cluster, csi) = start(0).await;
    cluster.bound("v").await;
    cluster.pod("p", Some("n1"), &["v"]).await;
    until_attached(&cluster, "v", "n1").await;
    let nodes = cluster.all::<Node>();
    until(&nodes, "n1", "told", |node| {
        attached_list(node) == [unique("v")]
    })
    .await;
    // A later node gets something: the controller knows by now that n1 was told, and has that to take back.
    cluster.node("n3", 0).await;
    cluster.bound("later").await;
    cluster.pod("o", Some("n3"), &["later"]).await;
    until_attached(&cluster, "later", "n3").await;

    cluster.refuse(Method::PATCH, "/nodes/n1/status");
    cluster.forget_requests();
    cluster.delete_pod("p").await;
    // Nobody else waits for n1.
    cluster.bound("other").await;
    cluster.pod("q", Some("n2"), &["other"]).await;
    until_attached(&cluster, "other", "n2").await;
    // A second try begins when the first one is over with all that it does.
    until_true("another try to tell n1", || {
        cluster.requests("/nodes/n1/status").len() > 1
    })
    .await;
    let (attachments, name) = (
        cluster.all::<VolumeAttachment>(),
        attachment_name("v", "n1"),
    );
    let kept = attachments.get(&name).await.expect("n1 relies on it");
    assert_eq!(kept.metadata.deletion_timestamp, None);
    assert_eq!(csi.count("unpublish v n1"), 0);

    cluster.refuse_nothing();
    until_gone(&cluster, &name).await;
    until(&nodes, "n1", "told", |node| attached_list(node).is_empty()).await;
    assert!(csi.published("v").is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_do_not_get_one_volume_while_the_first_attach_is_uncertain() {
    let (cluster, csi) = start(0).await;
    cluster.bound("v").await;
    csi.hold();
    cluster.pod("first", Some("n1"), &["v"]).await;
    let attachments = cluster.all::<VolumeAttachment>();
    let name = attachment_name("v", "n1");
    until(&attachments, &name, "there", |attachment| {
        attachment.is_some()
    })
    .await;
    // Not attached yet, and perhaps about to be: that counts.
    cluster.pod("second", Some("n2"), &["v"]).await;
    let event = cluster
        .until_event("FailedAttachVolume", "Multi-Attach error")
        .await;
    assert_eq!(
        event.message.as_deref(),
        Some("Multi-Attach error for volume \"v\" Volume is already used by pod(s) first")
    );
    assert_eq!(event.involved_object.name.as_deref(), Some("second"));
    let sentence = "volume v waits for node n2: it may be attached to node n1";
    for kind in ["PersistentVolumeClaim", "PersistentVolume"] {
        let event = cluster
            .until_told(kind, "FailedAttachVolume", sentence)
            .await;
        assert_eq!(event.involved_object.name.as_deref(), Some("v"));
    }
    csi.let_go();
    until(&attachments, &name, "attached", is_attached).await;
    let all = attachments
        .list(&ListParams::default())
        .await
        .expect("a list");
    assert_eq!(all.items.len(), 1);
    cluster.delete_pod("first").await;
    let moved = attachment_name("v", "n2");
    until(&attachments, &moved, "attached", is_attached).await;
    assert_eq!(csi.published("v"), ["n2"]);
    assert_eq!(
        csi.calls(),
        ["publish v n1", "unpublish v n1", "publish v n2"]
    );
    let told = cluster.events("FailedAttachVolume").await;
    let of_pod = told.iter().filter(|words| words.contains("Multi-Attach"));
    assert_eq!(of_pod.count(), 1, "once per wait: {told:?}");
    assert_eq!(told.len(), 3, "and to volume and claim: {told:?}");
}

/// On the pod in Kubernetes' words, on the claim and on both volume objects with the reason's sentence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_driver_refuses_is_told_to_everybody() {
    let (cluster, csi) = start(0).await;
    own_volume(&cluster, "v").await;
    cluster.bound("v").await;
    // Failed precondition: it is not asked again before something has changed, or seconds have passed.
    csi.fail_next("publish", 9, "somebody else has it");
    cluster.pod("p", Some("n1"), &["v"]).await;
    let on_pod = "AttachVolume.Attach failed for volume \"v\" : somebody else has it";
    let sentence = "attaching volume v to node n1 fails: somebody else has it";
    for (kind, name, words) in [
        ("Pod", "p", on_pod),
        ("PersistentVolumeClaim", "v", sentence),
        ("PersistentVolume", "v", sentence),
        ("Volume", "v", sentence),
    ] {
        let event = cluster.until_told(kind, "FailedAttachVolume", words).await;
        assert_eq!(event.message.as_deref(), Some(words), "{kind}");
        assert_eq!(event.type_.as_deref(), Some("Warning"), "{kind}");
        assert_eq!(event.involved_object.name.as_deref(), Some(name));
        assert!(event.involved_object.uid.is_some(), "{kind}");
    }
    let attachments = cluster.all::<VolumeAttachment>();
    let name = attachment_name("v", "n1");
    until(&attachments, &name, "attached", is_attached).await;

    // The way back is refused as well.
    csi.fail_next("unpublish", 9, "the device is busy");
    cluster.delete_pod("p").await;
    let words = "DetachVolume.Detach failed for volume \"v\" on node \"n1\" : the device is busy";
    for kind in ["PersistentVolumeClaim", "PersistentVolume", "Volume"] {
        cluster.until_told(kind, "FailedDetachVolume", words).await;
    }
    until_gone(&cluster, &name).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_node_gets_no_more() {
    let (cluster, csi) = start(1).await;
    for name in ["a", "b"] {
        cluster.bound(name).await;
    }
    cluster.pod("pa", Some("n1"), &["a"]).await;
    until_attached(&cluster, "a", "n1").await;
    cluster.pod("pb", Some("n1"), &["b"]).await;
    cluster
        .until_event(
            "FailedAttachVolume",
            "has 1 volumes of driver.longhorn.io, and 1 are allowed",
        )
        .await;
    assert_eq!(csi.count("publish b n1"), 0);
    cluster.delete_pod("pa").await;
    until_attached(&cluster, "b", "n1").await;
}

/// n1 stops answering with the volume mounted, and a pod waits for it on n2.
async fn lose_n1(cluster: &Cluster) {
    cluster.bound("v").await;
    cluster.pod("old", Some("n1"), &["v"]).await;
    until_attached(cluster, "v", "n1").await;
    let lost = json!({"volumesInUse": [unique("v")], "conditions": [{"type": "Ready", "status": "Unknown"}]});
    cluster.patch_node_status("n1", lost).await;
    cluster.pod("new", Some("n2"), &["v"]).await;
    cluster
        .until_event("FailedAttachVolume", "Multi-Attach error")
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_proof_releases_a_lost_nodes_volume_at_once() {
    let (cluster, csi) = start(0).await;
    lose_n1(&cluster).await;
    let volumes = own_volume(&cluster, "v").await;
    let proof = json!({"status": {"currentNodeID": "", "fenceProof": {
        "epoch": 2, "replicas": ["r"], "time": "2026-01-01T00:00:00Z", "formerNodeID": "n1"}}});
    volumes
        .patch_status("v", &PatchParams::default(), &Patch::Merge(proof))
        .await
        .expect("patched");
    // The old pod still exists: proof, not its owner, decides.
    until_attached(&cluster, "v", "n2").await;
    until_gone(&cluster, &attachment_name("v", "n1")).await;
    cluster.until_event("ForceDetachVolume", "fenced").await;
    assert_eq!(csi.published("v"), ["n2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_out_of_service_taint_releases_what_was_mounted() {
    let (cluster, csi) = start(0).await;
    lose_n1(&cluster).await;
    let taint = json!({"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}});
    cluster
        .all::<Node>()
        .patch("n1", &PatchParams::default(), &Patch::Merge(taint))
        .await
        .expect("tainted");
    cluster.delete_pod("old").await;
    until_attached(&cluster, "v", "n2").await;
    assert_eq!(csi.published("v"), ["n2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_believes_attachments_and_no_annotation() {
    let mut cluster = Cluster::start().await;
    for node in ["n1", "n2"] {
        cluster.node(node, 0).await;
    }
    cluster.bound("v").await;
    cluster.pod("p", Some("n1"), &["v"]).await;
    let name = attachment_name("v", "n1");
    let before = left_attached(&cluster, "v", "n1").await;
    let attachments = cluster.all::<VolumeAttachment>();
    let lie = Patch::Merge(
        json!({"metadata": {"annotations": {"driver.longhorn.io/attached-node": "n2"}}}),
    );
    let volumes = cluster.all::<PersistentVolume>();
    volumes
        .patch("v", &PatchParams::default(), &lie)
        .await
        .expect("patched");
    // A volume that nobody has, and that says otherwise.
    cluster.volume("free", DRIVER, json!({})).await;
    volumes
        .patch("free", &PatchParams::default(), &lie)
        .await
        .expect("patched");

    spawn_controller(&mut cluster, Metrics::default());
    cluster
        .until_event(
            "AttachmentContradiction",
            "annotated as attached to n2; the truth is n1",
        )
        .await;
    until(&volumes, "v", "corrected", |volume| {
        let annotations = volume.expect("it exists").annotations();
        annotations
            .get("driver.longhorn.io/attached-node")
            .map(String::as_str)
            == Some("n1")
    })
    .await;
    cluster
        .until_event(
            "AttachmentContradiction",
            "annotated as attached to n2; the truth is no node",
        )
        .await;
    until(&volumes, "free", "corrected", |volume| {
        let annotations = volume.expect("it exists").annotations();
        !annotations.contains_key("driver.longhorn.io/attached-node")
    })
    .await;
    until(&cluster.all::<Node>(), "n1", "told", |node| {
        attached_list(node) == [unique("v")]
    })
    .await;
    let after = attachments.get(&name).await.expect("it exists");
    assert_eq!(before.resource_version(), after.resource_version());
    assert!(
        cluster.events("SuccessfulAttachVolume").await.is_empty(),
        "old news is not told again"
    );
    let reported = cluster.events("AttachmentContradiction").await;
    assert_eq!(reported.len(), 2, "{reported:?}");

    // One that somebody writes later is reported as well; it is theirs, and stays until the volume moves.
    let lie = Patch::Merge(
        json!({"metadata": {"annotations": {"driver.longhorn.io/attached-node": "n3"}}}),
    );
    let parameters = PatchParams::default();
    volumes
        .patch("v", &parameters, &lie)
        .await
        .expect("patched");
    cluster
        .until_event(
            "AttachmentContradiction",
            "annotated as attached to n3; the truth is n1",
        )
        .await;
    let kept = volumes.get("v").await.expect("it exists");
    assert_eq!(kept.annotations()["driver.longhorn.io/attached-node"], "n3");
    cluster.delete_pod("p").await;
    until_gone(&cluster, &name).await;
    until(&volumes, "v", "no longer annotated", |volume| {
        let annotations = volume.expect("it exists").annotations();
        !annotations.contains_key("driver.longhorn.io/attached-node")
    })
    .await;
    let reported = cluster.events("AttachmentContradiction").await;
    assert_eq!(
        reported.len(),
        3,
        "what we write is no contradiction: {reported:?}"
    );
}

/// Whether a gauge without labels is this.
fn shows(registry: &Registry, gauge: &str, value: i64) -> bool {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).expect("encoded");
    let wanted = format!("{gauge} {value}");
    text.lines().any(|line| line == wanted)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_finds_a_migration_with_its_clock() {
    let mut cluster = Cluster::start().await;
    // The older attachment has the later name: names decide between equal ages only.
    let mut nodes = ["n1", "n2"];
    nodes.sort_by_key(|node| Reverse(attachment_name("v", node)));
    let [source, target] = nodes;
    for node in nodes {
        cluster.node(node, 0).await;
    }
    cluster.bound("v").await;
    let volumes = cluster.all::<PersistentVolume>();
    let shared = Patch::Merge(json!({"spec": {"accessModes": ["ReadWriteMany"]}}));
    volumes
        .patch("v", &PatchParams::default(), &shared)
        .await
        .expect("patched");
    for (pod, node) in [("leaving", source), ("coming", target)] {
        cluster.pod(pod, Some(node), &["v"]).await;
    }
    let created =
        |attachment: &VolumeAttachment| attachment.creation_timestamp().expect("a time").0;
    let since = created(&left_attached(&cluster, "v", source).await);
    // Ages are whole seconds.
    until_true("the next second", || {
        jiff::Timestamp::now().as_second() > since.as_second()
    })
    .await;
    let younger = left_attached(&cluster, "v", target).await;

    let (metrics, mut registry) = (Metrics::default(), Registry::default());
    metrics.register_manager(&mut registry);
    spawn_controller(&mut cluster, metrics);
    let migrating = |count: i64, oldest: i64| {
        shows(&registry, "lariat_migrating_volumes", count)
            && shows(
                &registry,
                "lariat_migration_oldest_timestamp_seconds",
                oldest,
            )
    };
    until_true("a migration", || migrating(1, since.as_second())).await;
    let annotated = |node: &'static str, since: jiff::Timestamp| {
        move |volume: Option<&PersistentVolume>| {
            let annotations = volume.expect("it exists").annotations();
            let says = |key: &str| annotations.get(key).map(String::as_str);
            says("driver.longhorn.io/attached-node") == Some(node)
                && says("driver.longhorn.io/attached-at") == Some(since.to_string().as_str())
        }
    };
    until(&volumes, "v", "where it was", annotated(source, since)).await;

    cluster.delete_pod("leaving").await;
    until_gone(&cluster, &attachment_name("v", source)).await;
    until_true("no migration", || migrating(0, 0)).await;
    let moved = annotated(target, created(&younger));
    until(&volumes, "v", "where it is", moved).await;
    let attachments = cluster.all::<VolumeAttachment>();
    let kept = attachments.get(&younger.name_any()).await;
    let kept = kept.expect("its pod is there");
    assert_eq!(kept.resource_version(), younger.resource_version());
    let reported = cluster.events("AttachmentContradiction").await;
    assert!(reported.is_empty(), "it may be on both: {reported:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_nodes_volume_waits_for_proof() {
    let (cluster, _csi) = start(0).await;
    cluster.bound("v").await;
    cluster.pod("p", Some("n1"), &["v"]).await;
    let attachments = cluster.all::<VolumeAttachment>();
    let name = attachment_name("v", "n1");
    until(&attachments, &name, "attached", is_attached).await;
    // Mounted, gone, and the pod with it: in whatever order the watches show that.
    cluster
        .patch_node_status("n1", json!({"volumesInUse": [unique("v")]}))
        .await;
    cluster
        .all::<Node>()
        .delete("n1", &DeleteParams::default())
        .await
        .expect("deleted");
    cluster.delete_pod("p").await;
    cluster.pod("new", Some("n2"), &["v"]).await;
    cluster
        .until_event("FailedAttachVolume", "Multi-Attach error")
        .await;
    let kept = attachments
        .get(&name)
        .await
        .expect("what ran there may still run");
    assert_eq!(kept.metadata.deletion_timestamp, None);
}
