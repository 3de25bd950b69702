//! The agent of a node: it makes this host match the objects that name it, and says what it sees.
//!
//! Every task is supervised: one that ends by itself ends the agent, whose successor adopts what runs.

mod control;
pub mod disk_plan;
mod disks;
mod engine_actor;
pub mod engine_plan;
mod engine_process;
pub mod engine_report;
mod engines;
mod keeper;
mod layout;
pub mod lease;
mod leftovers;
mod metrics;
pub mod node_object;
mod objects;
mod process;
pub mod relay;
pub mod replica_plan;
mod replicas;
mod stalled;
mod strays;

use std::error::Error;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api_types::names;
use csi_driver::{NodeOptions, NotesOnVolumes};
use events::Recorder;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use rustix::fs::{FlockOperation, flock};
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use layout::Layout;
pub use metrics::NodeMetrics;

use crate::kubelet::{self, CsiSocket, KubeletError, KubeletOptions};

/// The cluster's secret of the replica protocol.
pub const REPLICA_KEY_SECRET: &str = "lariat-replica-key";
/// Its key in the Secret's data.
pub const REPLICA_KEY: &str = "key";

/// How an agent runs.
#[derive(Clone)]
pub struct AgentOptions {
    /// The node's name, in Kubernetes and in `nodes.longhorn.io`.
    pub node: String,
    pub client: Client,
    /// For the node's lease alone, whose renewals must not wait for anything else.
    pub lease_client: Client,
    /// As whom the stand-in for a kubelet speaks; a kubelet has rights that an agent should not have.
    pub kubelet_client: Client,
    /// The node's own folder; see [`Layout`].
    pub data_dir: PathBuf,
    /// The `lariat` binary, which engines are started from.
    pub executable: PathBuf,
    /// Where replicas are served; other nodes must reach it.
    pub listen_host: IpAddr,
    pub tls: ReplicaTls,
    /// Where the CSI node service listens; without it, in `data_dir`.
    pub csi_socket: Option<PathBuf>,
    /// How many volumes may be published here, as the CSI node service answers; zero for no limit.
    pub max_volumes: u32,
    /// No kubelet runs here: the agent stands in for its volume manager.
    pub embedded: bool,
    /// Whether a keeper holds devices open while their engines restart.
    pub keeper: bool,
    pub zone: Option<String>,
    pub region: Option<String>,
    pub metrics: NodeMetrics,
}

/// Whether the lines between engines and replicas are encrypted. Replicas of a node take encrypted lines whatever is set, so that a
/// cluster can go through these one by one, node by node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplicaTls {
    #[default]
    Off,
    /// Engines of this node encrypt theirs.
    Used,
    /// And its replicas refuse others.
    Required,
}

#[derive(Debug, Error)]
pub enum AgentError {
    #[error("cannot use {path}; make it usable, or choose another folder with --data-dir")]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{path} is in use: another agent of this node runs; stop that one first, or give this one a folder of its own with --data-dir"
    )]
    Locked { path: PathBuf },
    #[error("cannot serve the CSI node service")]
    Csi(#[from] csi_driver::ServeError),
    #[error("the volume manager failed")]
    Kubelet(#[from] KubeletError),
    #[error("the API refused or did not answer")]
    Api(#[source] kube::Error),
    #[error("{0} ended by itself")]
    Task(&'static str),
}

impl AgentError {
    fn folder(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Folder { path, source }
    }
}

/// What all tasks of an agent share.
pub(crate) struct Context {
    pub node: String,
    pub client: Client,
    pub layout: Layout,
    pub executable: PathBuf,
    pub listen_host: IpAddr,
    pub tls: ReplicaTls,
    pub keeper: bool,
    pub zone: Option<String>,
    pub region: Option<String>,
    pub metrics: NodeMetrics,
    pub recorder: Recorder,
    /// Shared by engines that start; whoever clears away the device of one that is gone has it alone.
    pub starts: tokio::sync::RwLock<()>,
}

/// How long a stop waits for the secret: without it no replica is served, and engines of a predecessor may need one.
const SECRET_PATIENCE: Duration = Duration::from_secs(5);

/// Runs until `shutdown` resolves, and then until everything that runs here has ended in order, also what a predecessor
/// has left.
///
/// Replicas are served until `release` resolves, too: engines on other nodes that end at the same time may need them for
/// their last writes. That this node waits for nothing else is said by the file [`Layout::drained`].
pub async fn run(
    options: AgentOptions,
    shutdown: impl Future<Output = ()>,
    release: impl Future<Output = ()>,
) -> Result<(), AgentError> {
    let layout = Layout::new(&options.data_dir);
    layout
        .create()
        .map_err(AgentError::folder(&options.data_dir))?;
    let _lock = lock(&layout.lock())?;
    leftovers::drop_stale_links(&layout).map_err(AgentError::folder(&layout.devices()))?;
    let drained = layout.drained();
    let _ = std::fs::remove_file(&drained);
    let recorder = Recorder::new(options.client.clone(), kubelet::COMPONENT).on_host(&options.node);
    let context = Arc::new(Context {
        node: options.node,
        client: options.client,
        layout,
        executable: options.executable,
        listen_host: options.listen_host,
        tls: options.tls,
        keeper: options.keeper,
        zone: options.zone,
        region: options.region,
        metrics: options.metrics,
        recorder,
        starts: tokio::sync::RwLock::default(),
    });
    let mut shutdown = std::pin::pin!(shutdown);

    // Those who look after the node itself outlive the others: while engines end, the node is alive.
    let (stop_last, stopped_last) = watch::channel(false);
    let mut basics: JoinSet<Result<(), AgentError>> = JoinSet::new();
    let process_id = uuid::Uuid::new_v4().to_string();
    basics.spawn(lease::run(
        context.clone(),
        options.lease_client,
        process_id,
        stopped_last.clone(),
    ));
    context.metrics.begin(&context.layout, options.embedded);

    let mut asked = false;
    let secret = {
        let mut secret = std::pin::pin!(wait_for_secret(&context.client));
        tokio::select! {
            secret = &mut secret => Some(secret),
            ended = basics.join_next() => return Err(ended_by_itself(ended)),
            () = &mut shutdown => {
                asked = true;
                tokio::time::timeout(SECRET_PATIENCE, secret).await.ok()
            }
        }
    };
    let Some(secret) = secret else {
        tracing::warn!(node.name = %context.node, "ends before the API has given it the secret {REPLICA_KEY_SECRET}; \
            engines and mounts of a predecessor are left to the next start");
        return finish(basics, &stop_last).await;
    };
    let disks = Arc::new(disks::Disks::new(
        context.layout.clone(),
        context.listen_host,
        secret.clone(),
        context.tls == ReplicaTls::Required,
    ));
    let (tell_listed, listed) = watch::channel(None);
    context.metrics.serves(disks.clone(), listed.clone());
    basics.spawn(node_object::run(
        context.clone(),
        disks.clone(),
        listed,
        stopped_last.clone(),
    ));
    basics.spawn(replicas::run(
        context.clone(),
        disks.clone(),
        tell_listed,
        stopped_last,
    ));

    let csi_socket = options
        .csi_socket
        .unwrap_or_else(|| context.layout.csi_socket());
    let mut stages = Vec::new();
    if context.keeper {
        stages.push(Stage::new(|stopped| keeper::run(context.clone(), stopped)));
    }
    stages.push(Stage::engines(&context, secret));
    let max_volumes = options.max_volumes;
    stages.push(Stage::csi(&context, max_volumes, csi_socket.clone()));
    if options.embedded {
        let client = options.kubelet_client;
        stages.push(Stage::kubelet(&context, client, csi_socket));
    }
    let outcome = tokio::select! {
        () = async { if !asked { shutdown.await } } => Ok(()),
        error = first_end(&mut stages) => Err(error),
        ended = basics.join_next() => Err(ended_by_itself(ended)),
    };
    // A failure of ours is no reason to take devices away from their users: engines go on, and a successor adopts them.
    outcome?;
    tracing::info!(node.name = %context.node, "ending in order");
    let stages_ended = async {
        let mut ended = Ok(());
        // Users first: what they use is taken away after them.
        while let Some(stage) = stages.pop() {
            ended = ended.and(finish(stage.tasks, &stage.stop).await);
        }
        ended
    };
    let ended = tokio::select! {
        ended = stages_ended => ended,
        never = stalled::end_stalled(&context) => match never {},
    };
    std::fs::write(&drained, "").map_err(AgentError::folder(&drained))?;
    tokio::select! {
        () = release => {}
        gone = basics.join_next() => return Err(ended_by_itself(gone)),
    }
    let basics_ended = finish(basics, &stop_last).await;
    let _ = std::fs::remove_file(&drained);
    // Its drop closes all replicas.
    let _ = tokio::task::spawn_blocking(move || drop(disks)).await;
    ended.and(basics_ended)
}

/// What is stopped together, after everything that was started later.
struct Stage {
    tasks: JoinSet<Result<(), AgentError>>,
    stop: watch::Sender<bool>,
}

impl Stage {
    fn new<F>(start: impl FnOnce(watch::Receiver<bool>) -> F) -> Self
    where
        F: Future<Output = Result<(), AgentError>> + Send + 'static,
    {
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(start(stopped));
        Self { tasks, stop }
    }

    fn engines(context: &Arc<Context>, secret: Vec<u8>) -> Self {
        Self::new(|stopped| engines::run(context.clone(), secret, stopped))
    }

    fn csi(context: &Context, max_volumes: u32, socket: PathBuf) -> Self {
        let options = NodeOptions {
            max_volumes,
            // No controller carries an expansion out yet; the manager does not offer one either.
            expansion: false,
            ..NodeOptions::new(context.node.clone(), context.layout.devices())
        };
        let notes = NotesOnVolumes::new(context.client.clone(), context.node.clone());
        let notes = Arc::new(notes);
        let calls = context.metrics.calls.clone();
        Self::new(|mut stopped| async move {
            let cancelled = CancellationToken::new();
            let serving =
                csi_driver::serve_node(options, notes, &socket, &calls, cancelled.clone());
            let mut serving = std::pin::pin!(serving);
            tokio::select! {
                served = &mut serving => return served.map_err(AgentError::Csi),
                _ = stopped.wait_for(|stop| *stop) => cancelled.cancel(),
            }
            serving.await.map_err(AgentError::Csi)
        })
    }

    fn kubelet(context: &Context, client: Client, socket: PathBuf) -> Self {
        let options = KubeletOptions {
            node: context.node.clone(),
            folder: context.layout.kubelet(),
            devices: context.layout.devices(),
            driver: names::DRIVER.to_owned(),
            topology_keys: vec![csi_driver::node::TOPOLOGY_KEY.to_owned()],
            host: context.listen_host,
            pods_max: PODS_MAX,
            zone: context.zone.clone(),
            region: context.region.clone(),
        };
        Self::new(|stopped| async move {
            let csi = Arc::new(CsiSocket::new(socket));
            kubelet::run(options, client, csi, stopped)
                .await
                .map_err(AgentError::Kubelet)
        })
    }
}

/// What a kubelet says unless told otherwise.
const PODS_MAX: u32 = 110;

/// Resolves when something ended that should not have.
async fn first_end(stages: &mut [Stage]) -> AgentError {
    let ends = stages
        .iter_mut()
        .map(|stage| Box::pin(stage.tasks.join_next()));
    let (ended, _, _) = futures::future::select_all(ends).await;
    ended_by_itself(ended)
}

async fn finish(
    mut tasks: JoinSet<Result<(), AgentError>>,
    stop: &watch::Sender<bool>,
) -> Result<(), AgentError> {
    stop.send_replace(true);
    let mut outcome = Ok(());
    while let Some(ended) = tasks.join_next().await {
        let ended = ended.unwrap_or(Err(AgentError::Task("a task of the agent")));
        outcome = outcome.and(ended);
    }
    outcome
}

fn ended_by_itself(
    ended: Option<Result<Result<(), AgentError>, tokio::task::JoinError>>,
) -> AgentError {
    match ended {
        Some(Ok(Err(error))) => error,
        Some(Ok(Ok(()))) | Some(Err(_)) | None => AgentError::Task("a task of the agent"),
    }
}

/// Fails if this folder cannot be used, or if an agent runs on it. Its owner has not been disturbed then.
pub fn require_free(data_dir: &Path) -> Result<(), AgentError> {
    let layout = Layout::new(data_dir);
    layout.create().map_err(AgentError::folder(data_dir))?;
    lock(&layout.lock()).map(drop)
}

/// One agent for one folder: two would start engines twice.
fn lock(path: &Path) -> Result<File, AgentError> {
    let file = File::create(path).map_err(AgentError::folder(path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => Err(AgentError::Locked {
            path: path.to_owned(),
        }),
    }
}

/// The secret is made by whoever makes the cluster; until then nothing can be served.
async fn wait_for_secret(client: &Client) -> Vec<u8> {
    let api: Api<Secret> = Api::namespaced(client.clone(), names::NAMESPACE);
    let key_of = |secret: Option<&Secret>| {
        secret
            .and_then(|secret| secret.data.as_ref())
            .and_then(|data| data.get(REPLICA_KEY))
            .map(|key| key.0.clone())
            .filter(|key| !key.is_empty())
    };
    loop {
        let there = |secret: Option<&Secret>| key_of(secret).is_some();
        let awaited =
            kube::runtime::wait::await_condition(api.clone(), REPLICA_KEY_SECRET, there).await;
        match awaited {
            Ok(secret) => {
                if let Some(key) = key_of(secret.as_ref()) {
                    return key;
                }
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn Error,
                    "waiting for the secret {REPLICA_KEY_SECRET}"
                );
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Resolves when a task is to stop.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // The sender is gone only with the agent itself.
    let _ = stop.wait_for(|stop| *stop).await;
}

pub(crate) fn write_durably(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write as _;
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)?;
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}
