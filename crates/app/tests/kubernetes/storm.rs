//! Five hundred attachments at once, through `lariat attacher` on the real API, for a driver of another name.

use std::path::Path;
use std::process::Command;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Resource};
use serde_json::{Value, json};

use crate::control_plane::{ControlPlane, Part};
use crate::driver::{Driver, NAME};
use crate::installation::ONE;
use crate::support::{PATIENCE, lariat};

const ATTACHMENTS: usize = 500;
const NODES: usize = 10;
/// How many requests of ours are under way at once: objects are to be there faster than anybody can attach them.
const AT_ONCE: usize = 50;
/// What a call of the driver takes.
const LATENCY: Duration = Duration::from_millis(100);

async fn connect(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    Client::try_from(config.expect("a configuration")).expect("a client")
}

async fn create_all<K>(client: &Client, objects: Vec<Value>)
where
    K: Resource<DynamicType = ()> + Clone + serde::Serialize + serde::de::DeserializeOwned,
    K: std::fmt::Debug,
{
    let api: Api<K> = Api::all(client.clone());
    let made = objects.into_iter().map(|object| {
        let api = api.clone();
        async move {
            let object: K = serde_json::from_value(object).expect("an object");
            let made = api.create(&PostParams::default(), &object).await;
            made.expect("an object that the API takes");
        }
    });
    futures::stream::iter(made)
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<()>>()
        .await;
}

fn node(number: usize) -> String {
    format!("node-{}", number % NODES)
}

fn volume(number: usize) -> Value {
    json!({"metadata": {"name": format!("pv-{number}")}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": NAME, "volumeHandle": format!("disk-{number}")},
    }})
}

fn attachment(number: usize) -> Value {
    json!({"metadata": {"name": format!("va-{number}")}, "spec": {
        "attacher": NAME, "nodeName": node(number),
        "source": {"persistentVolumeName": format!("pv-{number}")},
    }})
}

fn csi_node(number: usize) -> Value {
    let driver = json!({"name": NAME, "nodeID": node(number)});
    json!({"metadata": {"name": node(number)}, "spec": {"drivers": [driver]}})
}

/// Lists until the attachments are as they should be.
async fn until(
    api: &Api<VolumeAttachment>,
    what: &str,
    holds: impl Fn(&[VolumeAttachment]) -> bool,
) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let listed = api.list(&ListParams::default()).await.expect("a list");
        if holds(&listed.items) {
            return;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn five_hundred_attachments_are_made_and_undone_with_one_call_each() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(storm());
}

async fn storm() {
    let folder = tempfile::Builder::new().prefix("lk").tempdir_in("/tmp");
    let folder = folder.expect("a temporary folder");
    let plane = ControlPlane::start_bare(folder.path());
    let client = connect(&plane.administrator()).await;
    let socket = folder.path().join("driver.sock");
    let driver = Driver::default();
    driver.set_latency(LATENCY);
    driver.serve(&socket);
    let mut command = Command::new(lariat());
    command
        .args(["attacher", "--csi-address"])
        .arg(&socket)
        .arg("--kubeconfig")
        .arg(plane.administrator());
    let attacher = Part::start(folder.path(), "attacher", &mut command);
    create_all::<CSINode>(&client, (0..NODES).map(csi_node).collect()).await;
    create_all::<PersistentVolume>(&client, (0..ATTACHMENTS).map(volume).collect()).await;

    let api: Api<VolumeAttachment> = Api::all(client.clone());
    let started = Instant::now();
    create_all::<VolumeAttachment>(&client, (0..ATTACHMENTS).map(attachment).collect()).await;
    let created = started.elapsed();
    let is_attached =
        |found: &VolumeAttachment| found.status.as_ref().is_some_and(|status| status.attached);
    until(&api, "all to be attached", |all| {
        all.len() == ATTACHMENTS && all.iter().all(is_attached)
    })
    .await;
    let attached = started.elapsed();

    let started = Instant::now();
    let parameters = (DeleteParams::default(), ListParams::default());
    let deleted = api.delete_collection(&parameters.0, &parameters.1).await;
    deleted.expect("attachments that can be deleted");
    until(&api, "all to be detached", <[VolumeAttachment]>::is_empty).await;
    let detached = started.elapsed();
    println!(
        "{ATTACHMENTS} attachments: created in {created:?}, attached after {attached:?}; detached after {detached:?}"
    );

    let calls = driver.calls();
    for number in 0..ATTACHMENTS {
        let (handle, node) = (format!("disk-{number}"), node(number));
        for verb in ["publish", "unpublish"] {
            let call = format!("{verb} {handle} {node}");
            let count = calls.iter().filter(|made| **made == call).count();
            assert_eq!(count, 1, "{call}");
        }
    }
    drop(attacher);
    drop(plane);
}
