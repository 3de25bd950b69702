//! Five hundred attachments at once on the real API, for a driver of another name: through `lariat attacher`, and through the
//! external-attacher on the same API.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::future::join;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::control_plane::{ControlPlane, Part, program};
use crate::driver::{Driver, NAME};
use crate::installation::ONE;
use crate::support::lariat;

const ATTACHMENTS: usize = 500;
const NODES: usize = 10;
/// How many requests of ours are under way at once: objects are to be there faster than anybody can attach them.
const AT_ONCE: usize = 50;
/// What a call of the driver takes.
const LATENCY: Duration = Duration::from_millis(100);
/// With its defaults the external-attacher makes five requests a second, of which an attachment needs three.
const PATIENCE: Duration = Duration::from_secs(900);
/// Set for the benchmark, which has time for those defaults as well.
const WITH_DEFAULTS: &str = "LARIAT_STORM_WITH_DEFAULTS";

/// One way to have five hundred attachments made and undone.
struct Contender {
    name: &'static str,
    program: PathBuf,
    flags: &'static [&'static str],
    /// Whether it is held to one call for each attachment and detachment.
    is_ours: bool,
}

fn contenders() -> Vec<Contender> {
    let external = |name, flags| Contender {
        name,
        program: program("csi-attacher").expect("csi-attacher"),
        flags,
        is_ours: false,
    };
    // The benchmark measures a release build.
    let ours = std::env::var_os("LARIAT_BIN").map_or_else(|| lariat().into(), PathBuf::from);
    let mut contenders = vec![
        Contender {
            name: "lariat attacher, defaults",
            program: ours,
            flags: &["attacher"],
            is_ours: true,
        },
        external(
            "csi-attacher 2.0.0, 100 workers, 1,000 requests a second",
            &[
                "--worker-threads=100",
                "--kube-api-qps=1000",
                "--kube-api-burst=1000",
            ],
        ),
    ];
    if std::env::var_os(WITH_DEFAULTS).is_some() {
        contenders.push(external("csi-attacher 2.0.0, defaults", &[]));
    }
    contenders
}

async fn connect(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    Client::try_from(config.expect("a configuration")).expect("a client")
}

/// When each was there, by its name.
type Times = BTreeMap<String, Instant>;

async fn create_all<K>(client: &Client, objects: Vec<Value>) -> Times
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
            let made = made.expect("an object that the API takes");
            (made.name_any(), Instant::now())
        }
    });
    futures::stream::iter(made)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await
}

fn node(number: usize) -> String {
    format!("node-{}", number % NODES)
}

fn csi_node(number: usize) -> Value {
    let driver = json!({"name": NAME, "nodeID": node(number)});
    json!({"metadata": {"name": node(number)}, "spec": {"drivers": [driver]}})
}

/// Objects of one storm: the volumes of another have their finalizers already.
struct Storm {
    round: usize,
}

impl Storm {
    fn handle(&self, number: usize) -> String {
        format!("disk-{}-{number}", self.round)
    }

    fn volume_name(&self, number: usize) -> String {
        format!("pv-{}-{number}", self.round)
    }

    fn volume(&self, number: usize) -> Value {
        json!({"metadata": {"name": self.volume_name(number)}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": NAME, "volumeHandle": self.handle(number)},
        }})
    }

    fn attachment(&self, number: usize) -> Value {
        json!({"metadata": {"name": format!("va-{}-{number}", self.round)}, "spec": {
            "attacher": NAME, "nodeName": node(number),
            "source": {"persistentVolumeName": self.volume_name(number)},
        }})
    }
}

/// Watches until every attachment was seen to be attached, or to be gone; when each was. Whoever waits for `watching` causes
/// nothing that is not seen.
async fn watch_until(api: &Api<VolumeAttachment>, gone: bool, watching: &Notify) -> Times {
    let mut seen = Times::new();
    let events = watcher::watcher(api.clone(), watcher::Config::default());
    let mut events = std::pin::pin!(events);
    let is_attached =
        |found: &VolumeAttachment| found.status.as_ref().is_some_and(|status| status.attached);
    let watch = async {
        while seen.len() < ATTACHMENTS {
            let name = match events.next().await.expect("watches do not end") {
                Ok(Event::Apply(found) | Event::InitApply(found)) if !gone => {
                    is_attached(&found).then(|| found.name_any())
                }
                Ok(Event::Delete(found)) if gone => Some(found.name_any()),
                Ok(Event::InitDone) => {
                    watching.notify_one();
                    None
                }
                Ok(_) | Err(_) => None,
            };
            if let Some(name) = name {
                seen.entry(name).or_insert_with(Instant::now);
            }
        }
    };
    let ended = tokio::time::timeout(PATIENCE, watch).await;
    assert!(
        ended.is_ok(),
        "only {} of {ATTACHMENTS} after {PATIENCE:?}",
        seen.len()
    );
    seen
}

async fn ended(part: &mut Part) {
    while part.is_running() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// How long it took all of them, and how long one of them.
struct Figures {
    all: Duration,
    one: Vec<Duration>,
}

impl Figures {
    fn new(started: Instant, since: impl Fn(&str) -> Instant, ended: &Times) -> Self {
        let took = |(name, at): (&String, &Instant)| at.saturating_duration_since(since(name));
        let mut one: Vec<Duration> = ended.iter().map(took).collect();
        one.sort_unstable();
        let last = ended.values().max().expect("some ended");
        Self {
            all: last.duration_since(started),
            one,
        }
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = self.all.as_secs_f64();
        let rate = self.one.len() as f64 / all;
        let p50 = self.one[self.one.len() / 2].as_secs_f64();
        let p99 = self.one[self.one.len() * 99 / 100].as_secs_f64();
        write!(
            f,
            "{all:.1} s, {rate:.0} a second, p50 {p50:.2} s, p99 {p99:.2} s"
        )
    }
}

#[test]
fn five_hundred_attachments_are_made_and_undone_with_one_call_each() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let folder = tempfile::Builder::new().prefix("lk").tempdir_in("/tmp");
        let folder = folder.expect("a temporary folder");
        let plane = ControlPlane::start_bare(folder.path());
        let client = connect(&plane.administrator()).await;
        create_all::<CSINode>(&client, (0..NODES).map(csi_node).collect()).await;
        for (round, contender) in contenders().iter().enumerate() {
            let storm = Storm { round };
            storm.run(contender, &plane, folder.path(), &client).await;
        }
    });
}

impl Storm {
    async fn run(
        &self,
        contender: &Contender,
        plane: &ControlPlane,
        folder: &Path,
        client: &Client,
    ) {
        let socket = folder.join(format!("driver-{}.sock", self.round));
        let driver = Driver::default();
        driver.set_latency(LATENCY);
        driver.serve(&socket);
        let volumes = (0..ATTACHMENTS).map(|number| self.volume(number));
        create_all::<PersistentVolume>(client, volumes.collect()).await;
        let mut command = Command::new(&contender.program);
        command
            .args(contender.flags)
            .arg(format!("--csi-address={}", socket.display()))
            .arg(format!("--kubeconfig={}", plane.administrator().display()));
        let log = format!("attacher-{}", self.round);
        let mut attacher = Part::start(folder, &log, &mut command);
        tokio::select! {
            () = self.measure(contender, client) => {}
            () = ended(&mut attacher) => panic!("{} has ended by itself", contender.name),
        }
        drop(attacher);
        self.check_calls(contender, &driver);
    }

    async fn measure(&self, contender: &Contender, client: &Client) {
        let api: Api<VolumeAttachment> = Api::all(client.clone());
        let attachments = (0..ATTACHMENTS).map(|number| self.attachment(number));
        let watching = Notify::new();
        let creation = async {
            watching.notified().await;
            let started = Instant::now();
            let created = create_all::<VolumeAttachment>(client, attachments.collect()).await;
            (started, created)
        };
        let ((started, created), attached) =
            join(creation, watch_until(&api, false, &watching)).await;
        let attaches = Figures::new(started, |name| created[name], &attached);

        let deletion = async {
            watching.notified().await;
            let started = Instant::now();
            let parameters = (DeleteParams::default(), ListParams::default());
            let deleted = api.delete_collection(&parameters.0, &parameters.1).await;
            deleted.expect("attachments that can be deleted");
            started
        };
        let (started, detached) = join(deletion, watch_until(&api, true, &watching)).await;
        let detaches = Figures::new(started, |_| started, &detached);
        println!(
            "{}: {ATTACHMENTS} attached in {attaches}; detached in {detaches}",
            contender.name
        );
    }

    fn check_calls(&self, contender: &Contender, driver: &Driver) {
        let calls = driver.calls();
        for number in 0..ATTACHMENTS {
            for verb in ["publish", "unpublish"] {
                let call = format!("{verb} {} {}", self.handle(number), node(number));
                let count = calls.iter().filter(|made| **made == call).count();
                let is_right = count == 1 || (count > 1 && !contender.is_ours);
                assert!(
                    is_right,
                    "{}: {call} was made {count} times",
                    contender.name
                );
            }
        }
    }
}
