//! The part of a kubelet that mounts volumes, for clusters that have no kubelet. It runs no containers, and says so.
//!
//! A pod that is bound to this node has its volumes staged and published through the CSI node service, and is then
//! called running; a pod that is being deleted has them unpublished and unstaged, and is then deleted for good.

pub mod csi;
mod csi_socket;
mod node;
mod paths;
mod pods;
pub mod resolve;

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use events::Recorder;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::agent::stopped;
use csi::NodeCsi;
pub use csi_socket::CsiSocket;
use node::{NodeObject, RegisterError};
use paths::KubeletDir;
use pods::{Manager, Wake};

/// What events say they come from.
pub(crate) const COMPONENT: &str = "lariat-node";

/// At the end all volumes are unmounted, which waits for their users only so long.
const END_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct KubeletOptions {
    pub node: String,
    /// The kubelet's folder: `pods/` and `plugins/` are in it.
    pub folder: PathBuf,
    /// Links to the volumes' block devices, by the volume's handle.
    pub devices: PathBuf,
    /// The CSI driver of this node.
    pub driver: String,
    pub topology_keys: Vec<String>,
    pub host: IpAddr,
    /// How many pods fit on this node.
    pub pods_max: u32,
    pub zone: Option<String>,
    pub region: Option<String>,
}

#[derive(Debug, Error)]
pub enum KubeletError {
    #[error("{0} ended by itself")]
    Task(&'static str),
}

/// Runs until told to stop, then unmounts everything.
pub async fn run(
    options: KubeletOptions,
    client: Client,
    csi: Arc<dyn NodeCsi>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), KubeletError> {
    // News of claims, volumes and the node matter to pods that wait; news of what is attached here to all of them.
    let (changed, attached) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let mut watches: JoinSet<()> = JoinSet::new();
    let all = watcher::Config::default();
    let claims = follow(&mut watches, &client, all.clone(), &changed, |_| true);
    let volumes = follow(&mut watches, &client, all.clone(), &changed, |_| true);
    let only_this = all
        .clone()
        .fields(&format!("metadata.name={}", options.node));
    let own_node = follow(&mut watches, &client, only_this, &changed, |_| true);
    let node = options.node.clone();
    let is_here = move |attachment: &VolumeAttachment| attachment.spec.node_name == node;
    let attachments = follow(&mut watches, &client, all, &attached, is_here);
    let (pod_store, writer) = reflector::store();
    let of_node = watcher::Config::default().fields(&format!("spec.nodeName={}", options.node));
    let pod_events = watcher::watcher(Api::<Pod>::all(client.clone()), of_node);
    let mut pod_events = pin!(reflector::reflector(writer, pod_events).default_backoff());
    let manager = Arc::new(Manager {
        client: client.clone(),
        dir: KubeletDir::new(options.folder.clone()),
        csi,
        node: NodeObject::new(options.clone(), &client),
        recorder: Recorder::new(client.clone(), COMPONENT).on_host(&options.node),
        pods: pod_store.clone(),
        claims,
        volumes,
        attachments,
        own_node,
        locks: Default::default(),
        users: Default::default(),
        options,
    });
    let used = manager.remember();
    tokio::select! {
        biased;
        // What a predecessor has left mounted is unmounted all the same.
        () = stopped(&mut stop) => {
            end(&manager).await;
            return Ok(());
        }
        () = register(&manager, &used) => {}
    }
    let mut tasks: JoinSet<String> = JoinSet::new();
    let mut wakes: HashMap<String, Arc<Wake>> = HashMap::new();
    let mut look = tokio::time::interval(node::LOOK_EVERY);
    let mut ready = false;
    loop {
        let mut touched: Vec<String> = Vec::new();
        tokio::select! {
            () = stopped(&mut stop) => break,
            _ = look.tick() => {
                let kept = async {
                    manager.node.renew_lease().await?;
                    manager.node.keep_ready().await
                };
                if let Err(error) = kept.await {
                    tracing::debug!(error = &error as &dyn std::error::Error, "cannot keep the node ready");
                }
            }
            Some(_) = watches.join_next() => return Err(KubeletError::Task("a watch of the volume manager")),
            Some(ended) = tasks.join_next() => {
                let uid = ended.map_err(|_| KubeletError::Task("a pod's task"))?;
                wakes.remove(&uid);
            }
            () = attached.notified() => touched.extend(wakes.keys().cloned()),
            () = changed.notified() => touched.extend(
                wakes.iter().filter(|(_, wake)| !wake.is_settled()).map(|(uid, _)| uid.clone()),
            ),
            event = pod_events.next() => match event {
                Some(Ok(Event::Apply(pod) | Event::Delete(pod))) => touched.extend(pod.metadata.uid),
                Some(Ok(Event::InitDone)) => {
                    if !ready {
                        // Pods that are gone have folders still: they get a task, which clears them.
                        touched.extend(manager.dir.pods());
                    }
                    ready = true;
                    touched.extend(wakes.keys().cloned());
                    touched.extend(pod_store.state().iter().filter_map(|pod| pod.metadata.uid.clone()));
                }
                Some(Ok(Event::Init | Event::InitApply(_))) => {}
                Some(Err(error)) => tracing::debug!(error = &error as &dyn std::error::Error, "watching pods"),
                None => return Err(KubeletError::Task("the watch of pods")),
            },
        }
        if !ready {
            continue;
        }
        touched.sort();
        touched.dedup();
        for uid in touched {
            if let Some(wake) = wakes.get(&uid) {
                wake.notify();
                continue;
            }
            let wake = Arc::new(Wake::default());
            wakes.insert(uid.clone(), wake.clone());
            let manager = manager.clone();
            tasks.spawn(async move {
                manager.follow(&uid, &wake).await;
                uid
            });
        }
    }
    tasks.shutdown().await;
    end(&manager).await;
    watches.shutdown().await;
    Ok(())
}

/// Tries until the node's objects are there.
async fn register(manager: &Manager, used: &BTreeSet<String>) {
    loop {
        let registered = async {
            manager.node.register(manager.csi.as_ref()).await?;
            Ok::<_, RegisterError>(manager.node.keep_only(used).await?)
        };
        match registered.await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot register the node"
                );
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Leaves nothing mounted behind. Pods stay: the next start mounts for them again.
async fn end(manager: &Manager) {
    let all = async {
        let pods = manager.dir.pods();
        let torn_down = pods.iter().map(|uid| manager.tear_down_for_good(uid));
        futures::future::join_all(torn_down).await;
        if let Err(error) = manager.node.say_stopped().await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "cannot say that the node stops"
            );
        }
    };
    if tokio::time::timeout(END_PATIENCE, all).await.is_err() {
        tracing::warn!("not everything could be unmounted in time");
    }
}

/// Keeps a store of all objects of a kind, and says whenever one of those that concern us changes.
fn follow<K>(
    watches: &mut JoinSet<()>,
    client: &Client,
    config: watcher::Config,
    changed: &Arc<Notify>,
    concerns: impl Fn(&K) -> bool + Send + 'static,
) -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let events = watcher::watcher(Api::<K>::all(client.clone()), config);
    let events = reflector::reflector(writer, events).default_backoff();
    let changed = changed.clone();
    watches.spawn(drain(events, changed, concerns));
    store
}

async fn drain<K: Debug>(
    events: impl Stream<Item = Result<Event<K>, watcher::Error>>,
    changed: Arc<Notify>,
    concerns: impl Fn(&K) -> bool,
) {
    let mut events = pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(object) | Event::Delete(object)) => {
                if concerns(&object) {
                    changed.notify_one();
                }
            }
            Ok(Event::InitDone) => changed.notify_one(),
            Ok(Event::Init | Event::InitApply(_)) => {}
            Err(error) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "watching for pods"
                );
            }
        }
    }
}
