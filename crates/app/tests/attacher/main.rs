//! `lariat attacher` as a process of its own, beside a CSI driver that is not ours; see `driver.rs` for what that one shows.

#[path = "../support/mod.rs"]
mod support;

mod driver;
mod election;
mod results;
#[allow(dead_code, reason = "the metrics' own tests use more of it")]
#[path = "../metrics/scrape.rs"]
mod scrape;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, Secret};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::driver::{Driver, NAME};
use crate::scrape::{Process, Scrape};
use crate::support::{Cluster, PATIENCE, lariat};

/// Characters that a finalizer may not have become dashes.
const FINALIZER: &str = "external-attacher/disks-example-com";
const OTHER: &str = "other.example.com";
const IN_FLIGHT: usize = 500;
/// What an attacher is started with unless a test says otherwise.
const USUAL: &[&str] = &["--reconcile-sync", "1"];

/// An API, a driver of another name, and the attachers between them. They end in this order.
struct World {
    /// Oldest first; one, unless a test starts more.
    attachers: Vec<Child>,
    arguments: &'static [&'static str],
    socket: PathBuf,
    client: Client,
    driver: Driver,
    cluster: Cluster,
}

impl World {
    async fn start() -> Self {
        Self::start_with(USUAL).await
    }

    async fn start_with(arguments: &'static [&'static str]) -> Self {
        let cluster = Cluster::start();
        let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig()).expect("a kubeconfig");
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let client = Client::try_from(config.expect("a configuration")).expect("a client");
        let socket = cluster.folder().join("driver.sock");
        let driver = Driver::default();
        driver.serve(&socket);
        let mut world = Self {
            attachers: Vec::new(),
            arguments,
            socket,
            client,
            driver,
            cluster,
        };
        world.start_attacher();
        let drivers =
            json!([{"name": NAME, "nodeID": "id-of-n1"}, {"name": OTHER, "nodeID": "other"}]);
        let node = json!({"metadata": {"name": "n1"}, "spec": {"drivers": drivers}});
        world.create::<CSINode>(node).await;
        world
    }

    fn start_attacher(&mut self) {
        let folder = self.metrics_folder(self.attachers.len());
        let child = Command::new(lariat())
            .arg("attacher")
            .args(self.arguments)
            .arg("--csi-address")
            .arg(&self.socket)
            .arg("--kubeconfig")
            .arg(self.cluster.kubeconfig())
            .args(["--metrics-listen", "127.0.0.1:0", "--metrics-token-file"])
            .arg(folder.join("metrics-token"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.attachers.push(child.expect("lariat can be started"));
    }

    /// For an attacher that starts beside so many others.
    fn metrics_folder(&self, others: usize) -> PathBuf {
        self.cluster.folder().join(format!("attacher-{others}"))
    }

    fn scrape(&self) -> Scrape {
        let folder = self.metrics_folder(0);
        Process::of(&folder, &folder.join("metrics-token")).scrape()
    }

    fn pid(&self) -> u32 {
        self.attachers.first().expect("it runs").id()
    }

    /// Ends the oldest attacher without a word.
    fn kill_attacher(&mut self) {
        let mut child = self.attachers.remove(0);
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
    }

    fn all<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>,
    {
        Api::all(self.client.clone())
    }

    async fn create<K>(&self, object: Value) -> K
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + serde::de::DeserializeOwned,
    {
        let object = serde_json::from_value(object).expect("an object");
        let created = self
            .all::<K>()
            .create(&PostParams::default(), &object)
            .await;
        created.expect("it is created")
    }

    async fn volume(&self, name: &str, driver: &str, csi: Value) {
        let mut source = json!({"driver": driver, "volumeHandle": format!("h-{name}")});
        for (key, value) in csi.as_object().into_iter().flatten() {
            source[key] = value.clone();
        }
        let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "csi": source});
        self.create::<PersistentVolume>(json!({"metadata": {"name": name}, "spec": spec}))
            .await;
    }

    async fn attachment(&self, volume: &str, driver: &str) -> VolumeAttachment {
        let source = json!({"persistentVolumeName": volume});
        let spec = json!({"attacher": driver, "nodeName": "n1", "source": source});
        self.create(json!({"metadata": {"name": format!("va-{volume}")}, "spec": spec}))
            .await
    }

    async fn attach(&self, volume: &str) {
        self.volume(volume, NAME, json!({})).await;
        self.attachment(volume, NAME).await;
    }

    async fn delete_attachment(&self, volume: &str) {
        let name = format!("va-{volume}");
        let api = self.all::<VolumeAttachment>();
        let deleted = api.delete(&name, &DeleteParams::default()).await;
        deleted.expect("it is deleted");
    }

    async fn patch_attachment(&self, volume: &str, patch: Value) {
        let (name, patch) = (format!("va-{volume}"), Patch::Merge(patch));
        let api = self.all::<VolumeAttachment>();
        let patched = api.patch(&name, &PatchParams::default(), &patch).await;
        patched.expect("it is patched");
    }

    /// The attachment of a volume once it is as it should be.
    async fn until(
        &self,
        volume: &str,
        what: &str,
        holds: impl Fn(Option<&VolumeAttachment>) -> bool,
    ) -> Option<VolumeAttachment> {
        let (api, name) = (self.all::<VolumeAttachment>(), format!("va-{volume}"));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = api.get_opt(&name).await.expect("an answer");
            if holds(found.as_ref()) {
                return found;
            }
            assert!(Instant::now() < deadline, "{name} is not {what}: {found:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn until_attached(&self, volume: &str) -> VolumeAttachment {
        let found = self.until(volume, "attached", is_attached).await;
        found.expect("it was attached just now")
    }

    async fn until_gone(&self, volume: &str) {
        self.until(volume, "gone", |found| found.is_none()).await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        while !self.attachers.is_empty() {
            self.kill_attacher();
        }
    }
}

fn is_attached(attachment: Option<&VolumeAttachment>) -> bool {
    attachment
        .and_then(|attachment| attachment.status.as_ref())
        .is_some_and(|status| status.attached)
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attach_and_detach_with_all_that_others_rely_on() {
    let world = World::start().await;
    let secret =
        json!({"metadata": {"name": "key"}, "stringData": {"password": "told to the driver"}});
    let secret: Secret = serde_json::from_value(secret).expect("a secret");
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), "default");
    let created = secrets.create(&PostParams::default(), &secret).await;
    created.expect("a secret");
    world.volume("theirs", OTHER, json!({})).await;
    let foreign = world.attachment("theirs", OTHER).await;

    let csi = json!({
        "readOnly": true, "fsType": "xfs", "volumeAttributes": {"pool": "fast"},
        "controllerPublishSecretRef": {"namespace": "default", "name": "key"},
    });
    world.volume("v", NAME, csi).await;
    world.attachment("v", NAME).await;
    let attached = world.until_attached("v").await;
    assert_eq!(attached.finalizers(), [FINALIZER]);
    let (shown, driver) = (world.scrape(), ("driver_name", NAME));
    let publish = "/csi.v1.Controller/ControllerPublishVolume";
    let labels = [driver, ("method_name", publish), ("grpc_status_code", "OK")];
    let calls = shown.sum("csi_sidecar_operations_seconds_count", &labels);
    assert_eq!(calls, 1.0);
    let lane = [("queue", "attacher"), ("lane", "attach")];
    assert_eq!(shown.sum("lariat_queue_waiting", &lane), 0.0);
    let node = &attached.annotations()["csi.alpha.kubernetes.io/node-id"];
    assert_eq!(node, "id-of-n1");
    let metadata = attached
        .status
        .and_then(|status| status.attachment_metadata);
    assert_eq!(metadata.expect("a publish context")["device"], "/dev/h-v");
    let request = world.driver.last_publish();
    assert_eq!(request.node_id, "id-of-n1", "from the CSINode");
    assert!(request.readonly);
    assert_eq!(request.secrets["password"], "told to the driver");
    assert_eq!(request.volume_context["pool"], "fast");

    // The PersistentVolume is deleted first: it stays until the driver has let go.
    let volumes = world.all::<PersistentVolume>();
    let volume = volumes.get("v").await.expect("a volume");
    assert_eq!(volume.finalizers(), [FINALIZER]);
    volumes
        .delete("v", &DeleteParams::default())
        .await
        .expect("marked");
    world.delete_attachment("v").await;
    world.until_gone("v").await;
    let deadline = Instant::now() + PATIENCE;
    while volumes.get_opt("v").await.expect("an answer").is_some() {
        assert!(Instant::now() < deadline, "the volume's finalizer stays");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        world.driver.calls(),
        ["publish h-v id-of-n1", "unpublish h-v id-of-n1"]
    );
    let request = world.driver.last_unpublish();
    assert_eq!(request.secrets["password"], "told to the driver");

    let untouched = world.all::<VolumeAttachment>().get("va-theirs").await;
    let untouched = untouched.expect("another driver's attachment");
    assert_eq!(untouched.resource_version(), foreign.resource_version());
    let theirs = volumes
        .get("theirs")
        .await
        .expect("another driver's volume");
    assert!(theirs.finalizers().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_are_told_with_their_code_and_tried_again() {
    let world = World::start().await;
    world
        .driver
        .fail_next(Status::resource_exhausted("this node is full"));
    world.attach("v").await;
    let failed = |found: Option<&VolumeAttachment>| {
        let status = found.and_then(|found| found.status.as_ref());
        status.is_some_and(|status| status.attach_error.is_some())
    };
    let found = world.until("v", "told the error", failed).await;
    let error = found
        .and_then(|found| found.status?.attach_error)
        .expect("an error");
    assert_eq!(error.error_code, Some(Code::ResourceExhausted as i32));
    assert!(
        error
            .message
            .expect("a message")
            .contains("this node is full")
    );
    let attached = world.until_attached("v").await;
    let status = attached.status.expect("a status");
    assert!(
        status.attach_error.is_none(),
        "the error is over: {status:?}"
    );
    assert_eq!(world.driver.count("publish h-v id-of-n1"), 2);

    world.driver.fail_next(Status::unavailable("not now"));
    world.delete_attachment("v").await;
    world.until_gone("v").await;
    assert_eq!(world.driver.count("unpublish h-v id-of-n1"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detach_needs_no_volume_object() {
    let world = World::start().await;
    world.attach("v").await;
    world.until_attached("v").await;
    // Somebody has torn the PersistentVolume out, finalizers and all.
    let volumes = world.all::<PersistentVolume>();
    volumes
        .delete("v", &DeleteParams::default())
        .await
        .expect("marked");
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let patched = volumes.patch("v", &Default::default(), &patch).await;
    patched.expect("no finalizer");
    world.delete_attachment("v").await;
    world.until_gone("v").await;
    assert!(!world.driver.is_published("h-v"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_drivers_list_contradicts_is_attached_again() {
    let world = World::start().await;
    for volume in ["a", "b", "c", "d", "e"] {
        world.attach(volume).await;
        world.until_attached(volume).await;
    }
    world.driver.forget("h-e");
    eventually("another publish", || {
        world.driver.count("publish h-e id-of-n1") == 2 && world.driver.is_published("h-e")
    })
    .await;
    assert_eq!(
        world.driver.count("publish h-a id-of-n1"),
        1,
        "only what is contradicted"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_mid_publish_the_next_one_goes_on() {
    let mut world = World::start().await;
    world.driver.set_latency(Duration::from_secs(3600));
    world.attach("v").await;
    eventually("a publish in flight", || world.driver.in_flight() == 1).await;
    world.kill_attacher();
    eventually("the broken call to end", || world.driver.in_flight() == 0).await;
    let found = world.all::<VolumeAttachment>().get("va-v").await;
    assert_eq!(
        found.expect("an attachment").finalizers(),
        [FINALIZER],
        "it may be attached"
    );

    world.driver.set_latency(Duration::ZERO);
    world.start_attacher();
    world.until_attached("v").await;
    assert_eq!(
        world.driver.count("publish h-v id-of-n1"),
        2,
        "asked once more"
    );

    // The same for a detach.
    world.driver.set_latency(Duration::from_secs(3600));
    world.delete_attachment("v").await;
    eventually("an unpublish in flight", || world.driver.in_flight() == 1).await;
    world.kill_attacher();
    world.driver.set_latency(Duration::ZERO);
    world.start_attacher();
    world.until_gone("v").await;
    assert!(!world.driver.is_published("h-v"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_publishes_cost_no_thread_each_and_hold_no_detach_up() {
    let world = World::start().await;
    world.attach("first").await;
    world.until_attached("first").await;
    let before = threads(world.pid());
    world.driver.set_latency(Duration::from_secs(3600));
    for number in 0..IN_FLIGHT {
        world.attach(&format!("v{number}")).await;
    }
    eventually("all publishes to be in flight", || {
        world.driver.in_flight() == IN_FLIGHT
    })
    .await;
    let now = threads(world.pid());
    assert!(
        now <= before + 8,
        "{now} threads for {IN_FLIGHT} calls in flight, {before} before"
    );
    // The detach does not wait for those that hang.
    world.driver.set_latency(Duration::ZERO);
    world.delete_attachment("first").await;
    world.until_gone("first").await;
    assert_eq!(world.driver.in_flight(), IN_FLIGHT);
}

/// How many threads a process has.
fn threads(pid: u32) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    tasks.expect("a process").count()
}
