//! The attacher: calls the driver for each VolumeAttachment, as the external-attacher does.
//!
//! What it does next is [`cluster_core::attacher`]'s decision; here are the watches, the queues, the calls
//! and the patches. It differs from the external-attacher where users suffer from that one: no pool of
//! workers that slow calls exhaust, attaches and detaches in separate lanes, patches under a deadline of
//! their own, a detach that works after the PersistentVolume is gone, and the queue's age as a metric.

mod compare;
mod handler;
mod metrics;
mod news;
mod patches;
mod refused;
mod secrets;
mod written;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cluster_core::attacher::RpcError;
use cluster_core::{DriverName, NodeName};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::{Api, Client, ResourceExt as _};
use thiserror::Error;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::handler::Handler;
pub use self::metrics::CallMetrics;
use self::refused::Refused;
pub(crate) use self::secrets::read_secret;
use super::cache::{Cache, Feeds};
use super::csi::{CsiController, CsiSocket, within};
use super::queue::{Backoff, Lane, Queue};
use crate::metrics::{LaneStatus, Metrics};
use crate::runtime::{LeaderOptions, lead};

/// Short questions about the driver itself.
const IDENTITY_TIMEOUT: Duration = Duration::from_secs(10);
/// A driver that is not up yet is asked again after this time.
const IDENTITY_RETRY: Duration = Duration::from_millis(500);

pub(crate) const ATTACH: usize = 0;
pub(crate) const DETACH: usize = 1;

#[derive(Clone, Debug)]
pub struct AttacherOptions {
    /// The path of the driver's socket, with or without `unix://`.
    pub csi_address: String,
    /// How long a publish or unpublish may take.
    pub rpc_timeout: Duration,
    /// How long writing its result may take, counted from its end.
    pub patch_timeout: Duration,
    /// How often the driver's own list is compared, if it has one.
    pub reconcile_every: Duration,
    /// For volumes that name no file system.
    pub default_fs_type: String,
    pub backoff: Backoff,
    /// Calls in flight at once, in each direction.
    pub in_flight_max: usize,
}

impl Default for AttacherOptions {
    fn default() -> Self {
        Self {
            csi_address: String::new(),
            rpc_timeout: Duration::from_secs(120),
            patch_timeout: Duration::from_secs(30),
            reconcile_every: Duration::from_secs(60),
            default_fs_type: String::new(),
            backoff: Backoff {
                first: Duration::from_secs(1),
                longest: Duration::from_secs(300),
            },
            in_flight_max: 4096,
        }
    }
}

#[derive(Debug, Error)]
pub enum AttacherError {
    #[error("the CSI socket {address} cannot be used: check that the driver runs and owns it")]
    Connect {
        address: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error(
        "the driver answered GetPluginInfo with the name {0:?}, which is not one: see its Identity service"
    )]
    NoName(String),
}

/// One driver's attacher.
pub struct Attacher<C> {
    feeds: Feeds,
    csi: Arc<C>,
    driver: DriverName,
    options: AttacherOptions,
    queue: Queue<String>,
    volume_queue: Queue<String>,
    metrics: Metrics,
}

/// Which attachments name a volume, so that news of the volume reaches them.
type ByVolume = Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>;

impl<C: CsiController> Attacher<C> {
    /// Asks the driver for its name, for as long as it takes to come up.
    pub async fn connect(
        feeds: Feeds,
        csi: Arc<C>,
        options: AttacherOptions,
        metrics: Metrics,
    ) -> Result<Self, AttacherError> {
        let address = &options.csi_address;
        let name = until_answered(address, "GetPluginInfo", || csi.driver_name()).await;
        if name.is_empty() || name.len() > 63 {
            return Err(AttacherError::NoName(name));
        }
        let lane = |name| Lane {
            name,
            in_flight_max: options.in_flight_max,
        };
        let queue = Queue::new(
            "attacher",
            &[lane("attach"), lane("detach")],
            options.backoff,
            &metrics,
        );
        let volume_queue = Queue::new(
            "attacher_volume",
            &[lane("finalizer")],
            options.backoff,
            &metrics,
        );
        Ok(Self {
            feeds,
            csi,
            driver: DriverName::new(name),
            options,
            queue,
            volume_queue,
            metrics,
        })
    }

    pub fn driver(&self) -> &DriverName {
        &self.driver
    }

    /// How long the queues are, and how old.
    pub fn status(&self) -> Vec<LaneStatus> {
        self.queue.status()
    }

    /// Works until it is told to stop.
    pub async fn run(self, stop: CancellationToken) {
        let capabilities = tokio::select! {
            () = stop.cancelled() => return,
            capabilities = until_answered(&self.options.csi_address, "ControllerGetCapabilities", || self.csi.capabilities()) => capabilities,
        };
        tracing::info!(driver = %self.driver, ?capabilities, "the attacher starts");
        let mut watches = JoinSet::new();
        let by_volume = ByVolume::default();
        let attachments = self.follow_attachments(&by_volume, &mut watches);
        let volumes = self.follow_volumes(&by_volume, &mut watches);
        let csi_nodes = self.follow_csi_nodes(&attachments, &mut watches);
        let handler = Arc::new(Handler {
            client: self.feeds.client().clone(),
            csi: Arc::clone(&self.csi),
            driver: self.driver.clone(),
            capabilities: capabilities.attach,
            options: self.options.clone(),
            attachments: attachments.clone(),
            volumes: volumes.clone(),
            csi_nodes: csi_nodes.clone(),
            force: Mutex::default(),
            refused: Refused::default(),
            metrics: self.metrics.calls.clone(),
        });
        let everything_seen = async {
            attachments.synced().await;
            volumes.synced().await;
            csi_nodes.synced().await;
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = everything_seen => {}
        }
        let (by_handler, by_volume_handler) = (Arc::clone(&handler), Arc::clone(&handler));
        let attachments_work = self.queue.run(
            move |name, lane| Arc::clone(&by_handler).look(name, lane),
            stop.clone(),
        );
        let volumes_work = self.volume_queue.run(
            move |name, _| Arc::clone(&by_volume_handler).release_volume(name),
            stop.clone(),
        );
        let comparing = async {
            if capabilities.list_published && capabilities.attach.publish {
                handler.compare_for_ever(&self.queue).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = attachments_work => {}
            () = volumes_work => {}
            () = comparing => {}
            // A watch ends only by a defect of ours: the process must not go on without it.
            Some(ended) = watches.join_next() => {
                tracing::error!(driver = %self.driver, ?ended, "a watch of the attacher has ended");
            }
        }
    }

    fn follow_attachments(
        &self,
        by_volume: &ByVolume,
        watches: &mut JoinSet<()>,
    ) -> Cache<VolumeAttachment> {
        let (queue, volume_queue) = (self.queue.clone(), self.volume_queue.clone());
        let (driver, by_volume) = (self.driver.clone(), Arc::clone(by_volume));
        let (cache, task) = self.feeds.follow(
            Api::<VolumeAttachment>::all(self.feeds.client().clone()),
            move |old, new| {
                let Some(any) = new.or(old) else { return };
                if any.spec.attacher != driver.as_str() {
                    return;
                }
                let (name, volume) = (any.name_any(), &any.spec.source.persistent_volume_name);
                if let Some(volume) = volume {
                    let mut index = by_volume.lock().expect("no holder panics");
                    let names = index.entry(volume.clone()).or_default();
                    if new.is_some() {
                        names.insert(name.clone());
                    } else {
                        names.remove(&name);
                        if names.is_empty() {
                            index.remove(volume);
                            volume_queue.add(volume.clone(), 0);
                        }
                    }
                }
                let Some(new) = new else { return };
                if news::of_attachment(&driver, old.map(AsRef::as_ref), new) {
                    queue.add(name, lane_of(new));
                }
            },
        );
        watches.spawn(task);
        cache
    }

    fn follow_volumes(
        &self,
        by_volume: &ByVolume,
        watches: &mut JoinSet<()>,
    ) -> Cache<PersistentVolume> {
        let (queue, volume_queue) = (self.queue.clone(), self.volume_queue.clone());
        let by_volume = Arc::clone(by_volume);
        let (cache, task) = self.feeds.follow(
            Api::<PersistentVolume>::all(self.feeds.client().clone()),
            move |old, new| {
                let Some(new) = new else { return };
                if !news::of_volume(old.map(AsRef::as_ref), new) {
                    return;
                }
                let name = new.name_any();
                let index = by_volume.lock().expect("no holder panics");
                for attachment in index.get(&name).into_iter().flatten() {
                    // Looked at in the attach lane; one that is being deleted is found to be so there.
                    queue.add(attachment.clone(), ATTACH);
                }
                volume_queue.add(name, 0);
            },
        );
        watches.spawn(task);
        cache
    }

    fn follow_csi_nodes(
        &self,
        attachments: &Cache<VolumeAttachment>,
        watches: &mut JoinSet<()>,
    ) -> Cache<CSINode> {
        let (queue, driver, attachments) =
            (self.queue.clone(), self.driver.clone(), attachments.clone());
        let (cache, task) = self.feeds.follow(
            Api::<CSINode>::all(self.feeds.client().clone()),
            move |old, new| {
                let Some(new) = new else { return };
                let entry = |node: &CSINode| cluster_core::wire::csi_node(node).remove(&driver);
                if old.map(|old| entry(old)) == Some(entry(new)) {
                    return;
                }
                let node = NodeName::new(new.name_any());
                for attachment in attachments.all() {
                    let is_attached = attachment
                        .status
                        .as_ref()
                        .is_some_and(|status| status.attached);
                    if attachment.spec.node_name == node.as_str()
                        && attachment.spec.attacher == driver.as_str()
                        && (!is_attached || attachment.metadata.deletion_timestamp.is_some())
                    {
                        queue.add(attachment.name_any(), lane_of(&attachment));
                    }
                }
            },
        );
        watches.spawn(task);
        cache
    }
}

fn socket(options: &AttacherOptions) -> Result<CsiSocket, AttacherError> {
    CsiSocket::new(&options.csi_address).map_err(|source| AttacherError::Connect {
        address: options.csi_address.clone(),
        source: source.into(),
    })
}

/// Serves the driver behind a socket until it is told to stop.
pub async fn run(
    client: Client,
    options: AttacherOptions,
    metrics: Metrics,
    stop: CancellationToken,
) -> Result<(), AttacherError> {
    let csi = socket(&options)?;
    run_with(Feeds::new(client), Arc::new(csi), options, metrics, stop).await
}

/// Where it is decided which process works.
pub struct Election<'a> {
    /// For the Lease alone, which is renewed in time or lost.
    pub client: Client,
    /// Of the Lease.
    pub namespace: &'a str,
}

/// The same, one process at a time: whoever holds the Lease that the external-attacher of this driver would hold. So an
/// external-attacher of the same driver is excluded as well.
pub async fn run_elected(
    client: Client,
    options: AttacherOptions,
    election: Election<'_>,
    metrics: Metrics,
    stop: CancellationToken,
) -> Result<(), AttacherError> {
    let csi = socket(&options)?;
    let address = &options.csi_address;
    let named = until_answered(address, "GetPluginInfo", || csi.driver_name());
    let driver = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        driver = named => driver,
    };
    let leader = LeaderOptions {
        lease: lease_name(&driver),
        namespace: election.namespace.to_owned(),
        ..LeaderOptions::default()
    };
    let work = |stop| run(client.clone(), options.clone(), metrics.clone(), stop);
    let ended = lead(election.client, &leader, stop, work).await;
    ended.unwrap_or(Ok(()))
}

/// The Lease's name, as the external-attacher makes it of the driver's.
fn lease_name(driver: &str) -> String {
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let allowed = |letter: char| if is_allowed(letter) { letter } else { '-' };
    let name: String = driver.chars().map(allowed).collect();
    let end = if name.ends_with('-') { "X" } else { "" };
    format!("external-attacher-leader-{name}{end}")
}

/// The same with a driver that is reached some other way.
pub async fn run_with<C: CsiController>(
    feeds: Feeds,
    csi: Arc<C>,
    options: AttacherOptions,
    metrics: Metrics,
    stop: CancellationToken,
) -> Result<(), AttacherError> {
    let attacher = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        attacher = Attacher::connect(feeds, csi, options, metrics) => attacher?,
    };
    attacher.run(stop).await;
    Ok(())
}

fn lane_of(attachment: &VolumeAttachment) -> usize {
    if attachment.metadata.deletion_timestamp.is_some() {
        DETACH
    } else {
        ATTACH
    }
}

/// Asks until there is an answer: a driver may come up after us.
async fn until_answered<T, F>(address: &str, method: &str, mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, RpcError>>,
{
    let mut told = false;
    loop {
        match within(IDENTITY_TIMEOUT, method, ask()).await {
            Ok(answer) => return answer,
            Err(error) => {
                if !told {
                    tracing::warn!(
                        "no driver answers {method} on {address} yet: {}; see that it runs and owns this socket; asking again until it answers",
                        error.message
                    );
                    told = true;
                }
                tokio::time::sleep(IDENTITY_RETRY).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::lease_name;

    #[test]
    fn the_lease_is_the_one_that_an_external_attacher_takes() {
        let check = |driver: &str, expected: &str| assert_eq!(lease_name(driver), expected);
        check(
            "driver.longhorn.io",
            "external-attacher-leader-driver-longhorn-io",
        );
        check("odd_", "external-attacher-leader-odd-X");
    }
}
