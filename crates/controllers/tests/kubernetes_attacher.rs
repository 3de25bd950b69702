//! The attacher against the real embedded API and a driver that does as it is told. What such a driver does
//! not show is said in `support/csi.rs`.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use controllers::kubernetes::attacher::{Attacher, AttacherOptions, run_with};
use controllers::kubernetes::cache::Feeds;
use controllers::kubernetes::csi::CsiController as _;
use controllers::kubernetes::queue::Backoff;
use controllers::metrics::Metrics;
use http::Method;
use k8s_openapi::api::core::v1::{PersistentVolume, Secret};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use prometheus_client::registry::Registry;
use serde_json::json;
use support::csi::FakeCsi;
use support::objects::{DRIVER, attach_error, is_attached};
use support::{Cluster, PATIENCE, create, until, until_true};

const FINALIZER: &str = "external-attacher/driver-longhorn-io";

fn options() -> AttacherOptions {
    AttacherOptions {
        backoff: Backoff {
            first: Duration::from_millis(20),
            longest: Duration::from_millis(200),
        },
        reconcile_every: Duration::from_millis(100),
        ..AttacherOptions::default()
    }
}

/// A cluster with node n1, and an attacher for the driver.
async fn start(csi: &Arc<FakeCsi>) -> Cluster {
    let mut cluster = Cluster::start().await;
    cluster.node("n1", 0).await;
    spawn_attacher(&mut cluster, csi, Metrics::default());
    cluster
}

fn spawn_attacher(cluster: &mut Cluster, csi: &Arc<FakeCsi>, metrics: Metrics) {
    let (client, csi, stop) = (
        cluster.client.clone(),
        Arc::clone(csi),
        cluster.stop.clone(),
    );
    cluster.spawn(async move {
        run_with(Feeds::new(client), csi, options(), metrics, stop)
            .await
            .expect("it runs");
    });
}

/// All that is counted, as Prometheus reads it.
fn counted(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).expect("encoded");
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attach_and_detach_leave_everything_as_it_was() {
    let csi = Arc::new(FakeCsi::new(DRIVER));
    let cluster = start(&csi).await;
    let attachments = cluster.all::<VolumeAttachment>();
    cluster.volume("v", DRIVER, json!({})).await;
    cluster.attachment("va", DRIVER, "v", "n1").await;
    let attached = until(&attachments, "va", "attached", is_attached)
        .await
        .expect("it exists");
    assert_eq!(attached.finalizers(), [FINALIZER]);
    let annotations = attached.annotations();
    assert_eq!(annotations["csi.alpha.kubernetes.io/node-id"], "n1");
    let metadata = attached
        .status
        .and_then(|status| status.attachment_metadata);
    assert_eq!(metadata.expect("a publish context")["device"], "/dev/v");
    let volumes = cluster.all::<PersistentVolume>();
    let volume = volumes.get("v").await.expect("a volume");
    assert_eq!(volume.finalizers(), [FINALIZER]);

    // The PersistentVolume is deleted first: it must stay until the attachment is gone, then go.
    volumes
        .delete("v", &DeleteParams::default())
        .await
        .expect("marked");
    attachments
        .delete("va", &DeleteParams::default())
        .await
        .expect("marked");
    until(&attachments, "va", "gone", |attachment| {
        attachment.is_none()
    })
    .await;
    until(&volumes, "v", "gone", |volume| volume.is_none()).await;
    assert_eq!(csi.calls(), ["publish v n1", "unpublish v n1"]);
    assert!(csi.published("v").is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_drivers_objects_are_left_alone() {
    let csi = Arc::new(FakeCsi::new(DRIVER));
    let cluster = start(&csi).await;
    cluster
        .volume("theirs", "other.example.com", json!({}))
        .await;
    let foreign = cluster
        .attachment("foreign", "other.example.com", "theirs", "n1")
        .await;
    // Ours comes later; when it is attached, the foreign one has been passed over.
    cluster.volume("ours", DRIVER, json!({})).await;
    cluster.attachment("own", DRIVER, "ours", "n1").await;
    let attachments = cluster.all::<VolumeAttachment>();
    until(&attachments, "own", "attached", is_attached).await;
    let untouched = attachments.get("foreign").await.expect("it exists");
    assert_eq!(untouched.resource_version(), foreign.resource_version());
    let volume = cluster.all::<PersistentVolume>().get("theirs").await;
    assert!(volume.expect("it exists").finalizers().is_empty());
    assert_eq!(csi.calls(), ["publish ours n1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_slow_publishes_are_in_flight_at_once_and_hold_no_detach_up() {
    const ATTACHMENTS: usize = 1000;
    let csi = Arc::new(FakeCsi::new(DRIVER));
    let mut cluster = Cluster::start().await;
    cluster.node("n1", 0).await;
    let metrics = Metrics::default();
    let mut registry = Registry::default();
    metrics.register_work(&mut registry);
    let client = cluster.client.clone();
    let attacher =
        Attacher::connect(Feeds::new(client), Arc::clone(&csi), options(), metrics).await;
    let attacher = attacher.expect("it connects");
    let stop = cluster.stop.clone();
    cluster.spawn(async move { attacher.run(stop).await });
    let attachments = cluster.all::<VolumeAttachment>();
    cluster.volume("first", DRIVER, json!({})).await;
    cluster.attachment("va-first", DRIVER, "first", "n1").await;
    until(&attachments, "va-first", "attached", is_attached).await;

    csi.hold();
    for number in 0..ATTACHMENTS {
        let name = format!("v{number}");
        cluster.volume(&name, DRIVER, json!({})).await;
        cluster
            .attachment(&format!("va-{name}"), DRIVER, &name, "n1")
            .await;
    }
    until_true("a thousand in flight", || {
        csi.in_flight.load(Ordering::SeqCst) == ATTACHMENTS
    })
    .await;
    let text = counted(&registry);
    assert!(
        text.contains("lariat_queue_in_flight{queue=\"attacher\",lane=\"attach\"} 1000"),
        "{text}"
    );
    assert!(
        text.contains("lariat_queue_oldest_in_flight_seconds{queue=\"attacher\",lane=\"attach\"}"),
        "{text}"
    );

    attachments
        .delete("va-first", &DeleteParams::default())
        .await
        .expect("marked");
    until(&attachments, "va-first", "gone", |attachment| {
        attachment.is_none()
    })
    .await;
    assert_eq!(
        csi.in_flight.load(Ordering::SeqCst),
        ATTACHMENTS,
        "the detach overtook them all"
    );

    csi.let_go();
    until_all_attached(&attachments, ATTACHMENTS).await;
    assert_eq!(csi.in_flight_peak.load(Ordering::SeqCst), ATTACHMENTS);
    assert_eq!(
        csi.calls().len(),
        ATTACHMENTS + 2,
        "each was asked for once"
    );
}

/// One list after another: a watch for each of a thousand would be most of the test.
async fn until_all_attached(attachments: &kube::Api<VolumeAttachment>, wanted: usize) {
    let waiting = async {
        loop {
            let all = attachments
                .list(&ListParams::default())
                .await
                .expect("a list");
            let attached = all
                .iter()
                .filter(|attachment| is_attached(Some(attachment)));
            if attached.count() == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let in_time = tokio::time::timeout(2 * PATIENCE, waiting).await;
    in_time.expect("all are attached in the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attacher_that_dies_between_call_and_patch_is_resumed_by_the_next() {
    let csi = Arc::new(FakeCsi::new(DRIVER));
    let mut cluster = Cluster::start().await;
    cluster.node("n1", 0).await;
    cluster.volume("v", DRIVER, json!({})).await;
    // The first life published and died: the driver has it, the status does not.
    csi.hold();
    let first = tokio_util::sync::CancellationToken::new();
    let dying = tokio::spawn(run_with(
        Feeds::new(cluster.client.clone()),
        Arc::clone(&csi),
        options(),
        Metrics::default(),
        first.clone(),
    ));
    cluster.attachment("va", DRIVER, "v", "n1").await;
    until_true("published", || csi.count("publish v n1") == 1).await;
    first.cancel();
    dying.await.expect("it ends").expect("without an error");
    let attachments = cluster.all::<VolumeAttachment>();
    let left = attachments.get("va").await.expect("it exists");
    assert_eq!(left.finalizers(), [FINALIZER]);
    assert!(!is_attached(Some(&left)));

    csi.let_go();
    spawn_attacher(&mut cluster, &csi, Metrics::default());
    until(&attachments, "va", "attached", is_attached).await;
    assert_eq!(
        csi.count("publish v n1"),
        2,
        "asked again, which is harmless"
    );
    attachments
        .delete("va", &DeleteParams::default())
        .await
        .expect("marked");
    until(&attachments, "va", "gone", |attachment| {
        attachment.is_none()
    })
    .await;
    assert!(csi.published("v").is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_are_shown_cut_and_retried_unless_hopeless() {
    let csi = Arc::new(FakeCsi::new(DRIVER));
    let cluster = start(&csi).await;
    let attachments = cluster.all::<VolumeAttachment>();
    // Aborted: something else is at work. Tried again by itself.
    csi.fail_next("publish", 10, &"x".repeat(3000));
    csi.fail_next("publish", 8, "node full");
    cluster.volume("busy", DRIVER, json!({})).await;
    cluster.attachment("va-busy", DRIVER, "busy", "n1").await;
    until(
        &attachments,
        "va-busy",
        "failed with code 10",
        |attachment| {
            attach_error(attachment)
                .is_some_and(|(message, code)| message.len() == 1024 && code == Some(10))
        },
    )
    .await;
    let done = until(&attachments, "va-busy", "attached", is_attached).await;
    assert_eq!(attach_error(done.as_ref()), None, "the error is gone");
    assert_eq!(csi.count("publish busy n1"), 3);

    // Invalid argument: the same request again is the same answer again.
    csi.fail_next("publish", 3, "no such file system");
    cluster.volume("wrong", DRIVER, json!({})).await;
    cluster.attachment("va-wrong", DRIVER, "wrong", "n1").await;
    until(&attachments, "va-wrong", "failed", |attachment| {
        attach_error(attachment) == Some(("no such file system".to_owned(), Some(3)))
    })
    .await;
    // Another volume goes through several delays meanwhile; this one is not asked for again.
    for _ in 0..4 {
        csi.fail_next("publish", 14, "not yet");
    }
    cluster.volume("other", DRIVER, json!({})).await;
    cluster.attachment("va-other", DRIVER, "other", "n1").await;
    until(&attachments, "va-other", "attached", is_attached).await;
    assert_eq!(csi.count("publish wrong n1"), 1);
    // The volume changes: that is a reason.
    let patch = json!({"spec": {"mountOptions": ["noatime"]}});
    cluster
        .all::<PersistentVolume>()
        .patch("wrong", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .expect("patched");
    until(&attachments, "va-wrong", "attached", is_attached).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detach_needs_neither_the_volume_nor_the_csi_node() {
    let csi = Arc::new(FakeCsi::new(DRIVER));
    let cluster = start(&csi).await;
    let attachments = cluster.all::<VolumeAttachment>();
    let volumes = cluster.all::<PersistentVolume>();
    cluster.volume("v", DRIVER, json!({})).await;
    cluster.attachment("va", DRIVER, "v", "n1").await;
    until(&attachments, "va", "attached", is_attached).await;
    // Somebody tears the volume out by hand.
    let bare = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    volumes
        .patch("v", &PatchParams::default(), &bare)
        .await
        .expect("patched");
    volumes
        .delete("v", &DeleteParams::default())
        .await
        .expect("deleted");
    until(&volumes, "v", "gone", |volume| volume.is_none()).await;
    cluster
        .all::<CSINode>()
        .delete("n1", &DeleteParams::default())
        .await
        .expect("deleted");
    csi.fail_next("unpublish", 14, "try later");
    attachments
        .delete("va", &DeleteParams::default())
        .await
        .expect("marked");
    until(&attachments, "va", "gone", |attachment| {
        attachment.is_none()
    })
    .await;
    assert_eq!(csi.count("unpublish v n1"), 2);
}

/// The attachment is read once, so that the driver is asked about what is there, and let go once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detach_that_nothing_disturbs_takes_two_requests() {
    let csi = Arc::new(FakeCsi::new(DRIVER));
    let mut cluster = Cluster::start().await;
    cluster.node("n1", 0).await;
    // There before the attacher: news of it would be one more reason for a look.
    cluster.volume("v", DRIVER, json!({})).await;
    let (metrics, mut registry) = (Metrics::default(), Registry::default());
    metrics.register_work(&mut registry);
    spawn_attacher(&mut cluster, &csi, metrics);
    let attachments = cluster.all::<VolumeAttachment>();
    cluster.attachment("va", DRIVER, "v", "n1").await;
    until(&attachments, "va", "attached", is_attached).await;

    cluster.forget_requests();
    attachments
        .delete("va", &DeleteParams::default())
        .await
        .expect("marked");
    until(&attachments, "va", "gone", |attachment| {
        attachment.is_none()
    })
    .await;
    // It may ask for more after it has let go.
    until_true("the end of the look", || {
        counted(&registry).contains("lariat_queue_in_flight{queue=\"attacher\",lane=\"detach\"} 0")
    })
    .await;
    let object = "/apis/storage.k8s.io/v1/volumeattachments/va";
    let expected = ["DELETE", "GET", "PATCH"].map(|method| format!("{method} {object}"));
    assert_eq!(cluster.requests(object), expected, "the first is our own");
    for untouched in ["/persistentvolumes/v", "/csinodes/n1"] {
        let requests = cluster.requests(untouched);
        assert!(requests.is_empty(), "{requests:?}");
    }
    assert_eq!(csi.calls(), ["publish v n1", "unpublish v n1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_is_said_and_waited_for() {
    let csi = Arc::new(FakeCsi::new(DRIVER));
    let cluster = start(&csi).await;
    let attachments = cluster.all::<VolumeAttachment>();
    let secret = json!({"controllerPublishSecretRef": {"namespace": "default", "name": "s"},
        "driver": DRIVER, "volumeHandle": "v", "readOnly": true});
    cluster.attachment("va", DRIVER, "v", "n2").await;
    let says = |words: &'static str| {
        move |attachment: Option<&VolumeAttachment>| {
            attach_error(attachment).is_some_and(|(message, _)| message.contains(words))
        }
    };
    until(&attachments, "va", "without volume", says("does not exist")).await;
    cluster.volume("v", DRIVER, json!({"csi": secret})).await;
    until(&attachments, "va", "without secret", says("s")).await;
    let secret: Secret = create(
        &cluster.default(),
        json!({"metadata": {"name": "s", "namespace": "default"}, "stringData": {"user": "u"}}),
    )
    .await;
    assert_eq!(secret.name_any(), "s");
    until(&attachments, "va", "without node", says("n2")).await;
    let unheld = attachments.get("va").await.expect("it exists");
    assert!(
        unheld.finalizers().is_empty(),
        "what cannot be attached can be deleted"
    );
    cluster.node("n2", 0).await;
    until(&attachments, "va", "attached", is_attached).await;
    let (request, secrets) = csi.last_publish().expect("a call");
    assert!(
        !request.read_only,
        "the driver does not know PUBLISH_READONLY"
    );
    assert_eq!(secrets.0["user"], "u");
    assert!(!format!("{secrets:?}").contains("user"));
    attachments
        .delete("va", &DeleteParams::default())
        .await
        .expect("marked");
    until(&attachments, "va", "gone", |attachment| {
        attachment.is_none()
    })
    .await;
    let (_, secrets) = csi.last_unpublish().expect("a call");
    assert_eq!(secrets.0["user"], "u", "the way back takes the same key");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_api_refuses_is_said_and_tried_again() {
    let csi = Arc::new(FakeCsi::new(DRIVER));
    let cluster = start(&csi).await;
    let attachments = cluster.all::<VolumeAttachment>();
    cluster.refuse(Method::GET, "/secrets/");
    let secret = json!({"controllerPublishSecretRef": {"namespace": "default", "name": "s"}});
    cluster.volume("v", DRIVER, json!({"csi": secret})).await;
    create::<Secret>(
        &cluster.default(),
        json!({"metadata": {"name": "s", "namespace": "default"}, "stringData": {"user": "u"}}),
    )
    .await;
    cluster.attachment("va", DRIVER, "v", "n1").await;
    let says = |words: &'static str| {
        move |attachment: Option<&VolumeAttachment>| {
            attach_error(attachment).is_some_and(|(message, _)| message == words)
        }
    };
    let secret = "secret default/s for attaching cannot be read: Unauthorized";
    until(&attachments, "va", "without secret", says(secret)).await;
    cluster.refuse_nothing();
    until(&attachments, "va", "attached", is_attached).await;

    cluster.refuse(Method::PATCH, "/persistentvolumes/");
    cluster.volume("w", DRIVER, json!({})).await;
    cluster.attachment("vb", DRIVER, "w", "n1").await;
    let finalizer = "the finalizer of the PersistentVolume could not be written: Unauthorized";
    until(&attachments, "vb", "without finalizer", says(finalizer)).await;
    assert_eq!(csi.count("publish w n1"), 0);
    cluster.refuse_nothing();
    let done = until(&attachments, "vb", "attached", is_attached).await;
    assert_eq!(attach_error(done.as_ref()), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_is_not_written_on_a_later_attachment_of_the_same_name() {
    let csi = Arc::new(FakeCsi::new(DRIVER));
    let cluster = start(&csi).await;
    let attachments = cluster.all::<VolumeAttachment>();
    cluster.volume("v", DRIVER, json!({})).await;
    csi.hold();
    cluster.attachment("va", DRIVER, "v", "n1").await;
    until_true("asked for", || csi.count("publish v n1") == 1).await;
    // Somebody takes the attachment away by force, and it is made again before the driver has answered.
    let bare = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    attachments
        .patch("va", &PatchParams::default(), &bare)
        .await
        .expect("patched");
    attachments
        .delete("va", &DeleteParams::default())
        .await
        .expect("deleted");
    until(&attachments, "va", "gone", |attachment| {
        attachment.is_none()
    })
    .await;
    let later = cluster.attachment("va", DRIVER, "v", "n1").await;
    csi.answer_one();
    // The later one has a call of its own, and that one still hangs.
    until_true("asked for again", || csi.count("publish v n1") == 2).await;
    let waiting = attachments.get("va").await.expect("it exists");
    assert_eq!(waiting.uid(), later.uid());
    assert!(!is_attached(Some(&waiting)), "{:?}", waiting.status);
    csi.let_go();
    until(&attachments, "va", "attached", is_attached).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detach_is_of_the_volume_that_was_attached() {
    let csi = Arc::new(FakeCsi::new(DRIVER));
    let cluster = start(&csi).await;
    let attachments = cluster.all::<VolumeAttachment>();
    let volumes = cluster.all::<PersistentVolume>();
    cluster.volume("v", DRIVER, json!({})).await;
    cluster.attachment("va", DRIVER, "v", "n1").await;
    until(&attachments, "va", "attached", is_attached).await;
    let bare = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    volumes
        .patch("v", &PatchParams::default(), &bare)
        .await
        .expect("patched");
    volumes
        .delete("v", &DeleteParams::default())
        .await
        .expect("deleted");
    let other = json!({"csi": {"volumeHandle": "other"}});
    cluster.volume("v", DRIVER, other).await;
    attachments
        .delete("va", &DeleteParams::default())
        .await
        .expect("marked");
    until(&attachments, "va", "gone", |attachment| {
        attachment.is_none()
    })
    .await;
    assert_eq!(csi.calls(), ["publish v n1", "unpublish v n1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_drivers_own_list_brings_a_lost_attachment_back() {
    let mut csi = FakeCsi::new(DRIVER);
    csi.capabilities.list_published = true;
    let csi = Arc::new(csi);
    let cluster = start(&csi).await;
    let attachments = cluster.all::<VolumeAttachment>();
    cluster.volume("v", DRIVER, json!({})).await;
    cluster.attachment("va", DRIVER, "v", "n1").await;
    until(&attachments, "va", "attached", is_attached).await;
    csi.forget_published("v");
    until_true("published again", || csi.published("v") == ["n1"]).await;
    assert!(csi.count("publish v n1") >= 2);
    assert!(is_attached(Some(
        &attachments.get("va").await.expect("it exists")
    )));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_needs_no_attaching_is_only_marked() {
    let mut csi = FakeCsi::new(DRIVER);
    csi.capabilities.attach.publish = false;
    let csi = Arc::new(csi);
    assert!(!csi.capabilities().await.expect("an answer").attach.publish);
    let cluster = start(&csi).await;
    let attachments = cluster.all::<VolumeAttachment>();
    cluster.volume("v", DRIVER, json!({})).await;
    cluster.attachment("va", DRIVER, "v", "n1").await;
    let attached = until(&attachments, "va", "attached", is_attached).await;
    assert!(attached.expect("it exists").finalizers().is_empty());
    assert!(csi.calls().is_empty());
}
