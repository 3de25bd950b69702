//! What every controller is given: a client, a copy of the objects, and somebody to tell people.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use api_types::names::NAMESPACE;
use api_types::{Backup, Engine, Node, Replica, Setting, Snapshot, Volume, VolumeAttachment};
use events::{EventKind, Recorder};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node as KubernetesNode, ObjectReference, PersistentVolume, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment as KubernetesAttachment;
use kube::core::object::HasSpec;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use volume_core::wire::Cluster;

use super::cache::Cache;
use super::write::Writer;
use crate::history;
use crate::metrics::Metrics;

/// The taint with which a person says that a node is powered off.
const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";
/// Events that wait to be written. More are dropped: telling people must not hold up the work.
const EVENTS_WAITING_MAX: usize = 1024;

/// All that is watched. One watch for each kind, however many controllers look at it.
#[derive(Clone, Default)]
pub struct Objects {
    pub volumes: Cache<Volume>,
    pub attachments: Cache<VolumeAttachment>,
    pub engines: Cache<Engine>,
    pub replicas: Cache<Replica>,
    pub nodes: Cache<Node>,
    pub settings: Cache<Setting>,
    pub snapshots: Cache<Snapshot>,
    pub backups: Cache<Backup>,
    pub leases: Cache<Lease>,
    pub kubernetes_nodes: Cache<KubernetesNode>,
    pub kubernetes_attachments: Cache<KubernetesAttachment>,
    pub persistent_volumes: Cache<PersistentVolume>,
    pub pods: Cache<Pod>,
}

impl Objects {
    /// Starts all watches; they end with the set.
    pub fn watch(&self, client: &Client) -> JoinSet<()> {
        fn inside<K>(client: &Client) -> Api<K>
        where
            K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        {
            Api::namespaced(client.clone(), NAMESPACE)
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(self.volumes.clone().run(inside(client)));
        tasks.spawn(self.attachments.clone().run(inside(client)));
        tasks.spawn(self.engines.clone().run(inside(client)));
        tasks.spawn(self.replicas.clone().run(inside(client)));
        tasks.spawn(self.nodes.clone().run(inside(client)));
        tasks.spawn(self.settings.clone().run(inside(client)));
        tasks.spawn(self.snapshots.clone().run(inside(client)));
        tasks.spawn(self.backups.clone().run(inside(client)));
        tasks.spawn(self.leases.clone().run(inside(client)));
        let everywhere = || client.clone();
        tasks.spawn(self.kubernetes_nodes.clone().run(Api::all(everywhere())));
        tasks.spawn(
            self.kubernetes_attachments
                .clone()
                .run(Api::all(everywhere())),
        );
        tasks.spawn(self.persistent_volumes.clone().run(Api::all(everywhere())));
        tasks.spawn(self.pods.clone().run(Api::all(everywhere())));
        tasks
    }

    /// Waits until every kind has been listed once: nothing may be decided on half of the world.
    pub async fn wait_until_ready(&self) {
        self.volumes.wait_until_ready().await;
        self.attachments.wait_until_ready().await;
        self.engines.wait_until_ready().await;
        self.replicas.wait_until_ready().await;
        self.nodes.wait_until_ready().await;
        self.settings.wait_until_ready().await;
        self.snapshots.wait_until_ready().await;
        self.backups.wait_until_ready().await;
        self.leases.wait_until_ready().await;
        self.kubernetes_nodes.wait_until_ready().await;
        self.kubernetes_attachments.wait_until_ready().await;
        self.persistent_volumes.wait_until_ready().await;
        self.pods.wait_until_ready().await;
    }

    /// Whether every kind has been listed once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.volumes.is_ready()
            && self.attachments.is_ready()
            && self.engines.is_ready()
            && self.replicas.is_ready()
            && self.nodes.is_ready()
            && self.settings.is_ready()
            && self.snapshots.is_ready()
            && self.backups.is_ready()
            && self.leases.is_ready()
            && self.kubernetes_nodes.is_ready()
            && self.kubernetes_attachments.is_ready()
            && self.persistent_volumes.is_ready()
            && self.pods.is_ready()
    }

    /// The copy of one kind, if it is watched here.
    pub(crate) fn of_kind<K: 'static>(&self) -> Option<Cache<K>> {
        let caches: [&dyn Any; 13] = [
            &self.volumes,
            &self.attachments,
            &self.engines,
            &self.replicas,
            &self.nodes,
            &self.settings,
            &self.snapshots,
            &self.backups,
            &self.leases,
            &self.kubernetes_nodes,
            &self.kubernetes_attachments,
            &self.persistent_volumes,
            &self.pods,
        ];
        let found = caches.into_iter().find_map(<dyn Any>::downcast_ref);
        found.cloned()
    }

    pub fn volume(&self, name: &str) -> Option<Arc<Volume>> {
        self.volumes.get(NAMESPACE, name)
    }

    pub fn attachment(&self, name: &str) -> Option<Arc<VolumeAttachment>> {
        self.attachments.get(NAMESPACE, name)
    }

    /// The engines of one volume, by name.
    pub fn engines_of(&self, volume: &str) -> Vec<Arc<Engine>> {
        let mut found = self
            .engines
            .select(|engine| engine.spec().volume_name == volume);
        found.sort_by_key(|engine| engine.name_any());
        found
    }

    /// The Snapshot objects of one volume, by name.
    pub fn snapshots_of(&self, volume: &str) -> Vec<Arc<Snapshot>> {
        let mut found = self
            .snapshots
            .select(|snapshot| snapshot.spec().volume == volume);
        found.sort_by_key(|snapshot| snapshot.name_any());
        found
    }

    /// The replicas of one volume, by name.
    pub fn replicas_of(&self, volume: &str) -> Vec<Arc<Replica>> {
        let mut found = self
            .replicas
            .select(|replica| replica.spec().volume_name == volume);
        found.sort_by_key(|replica| replica.name_any());
        found
    }

    /// The settings in force. One that makes no sense counts as not set.
    pub fn settings(&self) -> api_types::settings::Settings {
        let objects = self.settings.all();
        let (settings, _) = api_types::settings::Settings::read(objects.iter().map(AsRef::as_ref));
        settings
    }

    /// Kubernetes nodes that a person has declared powered off.
    pub fn out_of_service(&self) -> BTreeSet<String> {
        let is_off = |node: &KubernetesNode| {
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
            taints
                .is_some_and(|taints| taints.iter().any(|taint| taint.key == OUT_OF_SERVICE_TAINT))
        };
        let nodes = self.kubernetes_nodes.select(is_off);
        nodes.iter().map(|node| node.name_any()).collect()
    }

    /// The surroundings of a volume's decision.
    pub fn cluster(&self, now: Timestamp) -> Cluster {
        let (nodes, replicas) = (self.nodes.all(), self.replicas.all());
        let engines = self.engines.all();
        volume_core::wire::cluster(
            nodes.iter().map(AsRef::as_ref),
            replicas.iter().map(AsRef::as_ref),
            engines.iter().map(AsRef::as_ref),
            &self.out_of_service(),
            &self.settings(),
            milliseconds(now),
        )
    }
}

/// A time as `volume_core` counts it.
fn milliseconds(time: Timestamp) -> volume_core::Timestamp {
    volume_core::Timestamp(u64::try_from(time.as_millisecond()).unwrap_or(0))
}

/// Shared by all controllers; cheap to clone.
#[derive(Clone)]
pub struct Context {
    pub client: Client,
    pub objects: Objects,
    pub metrics: Metrics,
    events: mpsc::Sender<Telling>,
    history: history::Recorder,
}

struct Telling {
    about: ObjectReference,
    kind: EventKind,
    reason: String,
    message: String,
}

impl Context {
    /// The future writes events and histories. It must run for as long as the context is used, and ends with it.
    pub fn new(
        client: Client,
        objects: Objects,
        metrics: Metrics,
        component: &str,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (events, mut waiting) = mpsc::channel::<Telling>(EVENTS_WAITING_MAX);
        let recorder = Recorder::new(client.clone(), component);
        let (history, entries) = history::Recorder::new();
        let recording = history::run(client.clone(), entries);
        let context = Self {
            client,
            objects,
            metrics,
            events,
            history,
        };
        let telling = async move {
            while let Some(telling) = waiting.recv().await {
                let Telling {
                    about,
                    kind,
                    reason,
                    message,
                } = telling;
                recorder.record(&about, kind, &reason, &message).await;
            }
        };
        let writing = async move {
            futures::join!(telling, recording);
        };
        (context, writing)
    }

    /// Tells people about an object, without waiting until it is written.
    pub fn tell(&self, about: ObjectReference, kind: EventKind, reason: &str, message: &str) {
        let telling = Telling {
            about,
            kind,
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        if self.events.try_send(telling).is_err() {
            tracing::debug!(
                event.reason = reason,
                "an event was dropped: too many wait to be written"
            );
        }
    }

    /// Where it is kept what happened to volumes. Nobody waits until it is written.
    pub fn history(&self) -> &history::Recorder {
        &self.history
    }

    /// Writes objects of a kind in our namespace.
    pub fn writer<K>(&self, cache: &Cache<K>) -> Writer<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + serde::Serialize
            + Debug
            + Send
            + Sync
            + 'static,
    {
        Writer::new(
            Api::namespaced(self.client.clone(), NAMESPACE),
            cache.clone(),
        )
    }
}

/// What an event about this object refers to.
pub(crate) fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    object.object_ref(&())
}
