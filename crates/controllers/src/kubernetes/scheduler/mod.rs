//! A small scheduler for the embedded mode: a node for every pod that has none.
//!
//! Pods are placed one after the other, so that each sees where the one before went. A pod that fits nowhere
//! is told why, node by node, and tried again when a node, a claim or another pod changes.

mod fit;
mod news;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cluster_core::{DriverName, UniqueVolumeName, truncate_message, wire};
use events::{EventKind, Recorder};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use self::fit::{Candidate, Luggage, Volume, place};
use super::binder::SELECTED_NODE;
use super::cache::{Cache, Feeds, Key};
use super::queue::{Backoff, Lane, Outcome, Queue};
use crate::metrics::Metrics;

const NAME: &str = "default-scheduler";
/// Until the watch has caught up with a node that changed.
const OUTDATED_RETRY: Duration = Duration::from_millis(20);
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(100),
    longest: Duration::from_secs(10),
};

/// Works until it is told to stop.
pub async fn run(feeds: &Feeds, metrics: &Metrics, stop: CancellationToken) {
    // One at a time: each placement counts on the ones before.
    let lane = Lane {
        name: "pod",
        in_flight_max: 1,
    };
    let queue: Queue<Key> = Queue::new("scheduler", &[lane], BACKOFF, metrics);
    let waiting = Waiting {
        pods: Arc::default(),
        queue: queue.clone(),
    };
    let client = feeds.client().clone();
    let mut watches = JoinSet::new();
    let on_pod = waiting.clone();
    let (pods, task) = feeds.follow(Api::<Pod>::all(client.clone()), move |old, new| {
        let Some(any) = new.or(old) else { return };
        let key = Key::of(any.as_ref());
        match new {
            Some(pod) if needs_node(pod) => {
                // Our own word that it fits nowhere is no reason to look again; a namesake is.
                if old.is_none_or(|old| !needs_node(old) || old.uid() != pod.uid()) {
                    on_pod.queue.add(key, 0);
                }
            }
            Some(_) => {
                on_pod.forget(&key);
                // One that is over makes room.
                if new.is_some_and(|pod| is_over(pod)) {
                    on_pod.wake();
                }
            }
            None => {
                on_pod.forget(&key);
                on_pod.wake();
            }
        }
    });
    watches.spawn(task);
    let (nodes, task) = follow_waking(feeds, &waiting, news::of_node);
    watches.spawn(task);
    let (csi_nodes, task) = follow_waking::<CSINode>(feeds, &waiting, |old, new| {
        old.spec.drivers != new.spec.drivers
    });
    watches.spawn(task);
    let (claims, task) = follow_waking(feeds, &waiting, news::of_claim);
    watches.spawn(task);
    let (volumes, task) =
        follow_waking::<PersistentVolume>(feeds, &waiting, |old, new| old.spec != new.spec);
    watches.spawn(task);
    let (classes, task) = follow_waking::<StorageClass>(feeds, &waiting, |_, _| true);
    watches.spawn(task);
    // One that goes makes room; what one says meanwhile does not.
    let (attachments, task) = follow_waking::<VolumeAttachment>(feeds, &waiting, |_, _| false);
    watches.spawn(task);
    let everything_seen = async {
        pods.synced().await;
        nodes.synced().await;
        csi_nodes.synced().await;
        claims.synced().await;
        volumes.synced().await;
        classes.synced().await;
        attachments.synced().await;
    };
    tokio::select! {
        () = stop.cancelled() => return,
        () = everything_seen => {}
    }
    let scheduler = Arc::new(Scheduler {
        recorder: Recorder::new(client.clone(), NAME),
        client,
        pods,
        nodes,
        csi_nodes,
        claims,
        volumes,
        classes,
        attachments,
        waiting,
        assumed: Mutex::default(),
    });
    tokio::select! {
        () = queue.run(move |key, _| Arc::clone(&scheduler).look(key), stop) => {}
        // A watch ends only by a defect of ours: the process must not go on without it.
        Some(ended) = watches.join_next() => {
            tracing::error!(?ended, "a watch of the scheduler has ended");
        }
    }
}

/// Wakes pods that wait when an object comes or goes, or changes in what a placement looks at.
fn follow_waking<K>(
    feeds: &Feeds,
    waiting: &Waiting,
    matters: fn(&K, &K) -> bool,
) -> (Cache<K>, impl Future<Output = ()> + Send + 'static + use<K>)
where
    K: Resource<DynamicType = ()>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug
        + Send
        + Sync
        + 'static,
{
    let waiting = waiting.clone();
    feeds.follow(Api::<K>::all(feeds.client().clone()), move |old, new| {
        if let (Some(old), Some(new)) = (old, new)
            && !matters(old, new)
        {
            return;
        }
        waiting.wake();
    })
}

/// Pods that fit nowhere yet.
#[derive(Clone)]
struct Waiting {
    pods: Arc<Mutex<BTreeSet<Key>>>,
    queue: Queue<Key>,
}

impl Waiting {
    fn wake(&self) {
        let pods = std::mem::take(&mut *self.pods.lock().expect("no holder panics"));
        for key in pods {
            self.queue.add(key, 0);
        }
    }

    fn keep(&self, key: &Key) {
        self.pods
            .lock()
            .expect("no holder panics")
            .insert(key.clone());
    }

    fn forget(&self, key: &Key) {
        self.pods.lock().expect("no holder panics").remove(key);
    }
}

struct Scheduler {
    client: Client,
    recorder: Recorder,
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    csi_nodes: Cache<CSINode>,
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    classes: Cache<StorageClass>,
    attachments: Cache<VolumeAttachment>,
    waiting: Waiting,
    /// Pods that were bound and are not seen so yet, by UID.
    assumed: Mutex<BTreeMap<String, String>>,
}

impl Scheduler {
    async fn look(self: Arc<Self>, key: Key) -> Outcome {
        let span = tracing::info_span!("scheduler", pod = %key);
        async move {
            let Some(pod) = self.pods.get(&key) else {
                return Outcome::Done;
            };
            let uid = pod.uid().unwrap_or_default();
            let is_bound = self
                .assumed
                .lock()
                .expect("no holder panics")
                .contains_key(&uid);
            if !needs_node(&pod) || is_bound {
                return Outcome::Done;
            }
            // Before it is looked at, so that no change in between is missed.
            self.waiting.keep(&key);
            let decided = match self.luggage(&pod) {
                Ok(luggage) => self
                    .place(&pod, &luggage)
                    .map(|node| (node, luggage))
                    .map_err(|nowhere| nowhere.to_string()),
                Err(problem) => Err(problem),
            };
            let (node, luggage) = match decided {
                Ok(decided) => decided,
                Err(problem) => {
                    self.tell_unschedulable(&pod, &problem).await;
                    return Outcome::Done;
                }
            };
            if !luggage.unmade.is_empty() {
                return match self.select_node(&pod, &node).await {
                    // The claim's binding wakes the pod up.
                    Ok(()) => Outcome::Done,
                    Err(error) => failed(&error),
                };
            }
            match self.still_fits(&pod, &luggage, &node).await {
                Ok(true) => {}
                Ok(false) => return Outcome::Again(OUTDATED_RETRY),
                Err(error) => return failed(&error),
            }
            match self.bind(&pod, &node).await {
                Ok(()) => {
                    self.waiting.forget(&key);
                    let message = format!("Successfully assigned {key} to {node}");
                    self.tell(&pod, EventKind::Normal, "Scheduled", message);
                    Outcome::Done
                }
                Err(error) => failed(&error),
            }
        }
        .instrument(span)
        .await
    }

    /// What the pod brings along, or the sentence why it cannot travel at all.
    fn luggage(&self, pod: &Pod) -> Result<Luggage, String> {
        let mut luggage = Luggage::default();
        for key in wire::claims_of(pod) {
            let claim = self.claims.get(&Key::new(&key.namespace, &key.name));
            let Some(claim) = claim else {
                return Err(format!("persistentvolumeclaim \"{}\" not found", key.name));
            };
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!(
                    "persistentvolumeclaim \"{}\" is being deleted",
                    key.name
                ));
            }
            if let Some(user) = self.only_user(pod, &claim) {
                return Err(format!(
                    "persistentvolumeclaim \"{}\" is ReadWriteOncePod and in use by pod {user}",
                    key.name
                ));
            }
            if let Some(name) = wire::claim(&claim).volume {
                let Some(volume) = self.volumes.named(name.as_str()) else {
                    return Err(format!("persistentvolume \"{name}\" not found"));
                };
                luggage.volumes.extend(travelling(&volume));
                continue;
            }
            let driver = self.late_driver(&claim).ok_or_else(|| {
                format!(
                    "pod has unbound immediate PersistentVolumeClaims: {} is not bound",
                    key.name
                )
            })?;
            luggage.unmade.push(driver);
            let selected = claim.annotations().get(SELECTED_NODE);
            luggage.selected = selected.cloned().or(luggage.selected);
        }
        Ok(luggage)
    }

    /// The driver of a claim whose volume is made when its first pod has a node.
    fn late_driver(&self, claim: &PersistentVolumeClaim) -> Option<String> {
        let class = claim.spec.as_ref()?.storage_class_name.as_deref()?;
        let class = self.classes.named(class)?;
        let is_late = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
        is_late.then(|| class.provisioner.clone())
    }

    /// Another pod that has the claim, if only one may.
    fn only_user(&self, pod: &Pod, claim: &PersistentVolumeClaim) -> Option<String> {
        let spec = claim.spec.as_ref()?;
        let modes = spec.access_modes.as_ref()?;
        if !modes.iter().any(|mode| mode == "ReadWriteOncePod") {
            return None;
        }
        let name = claim.name_any();
        let others = self
            .pods
            .of_namespace(&claim.namespace().unwrap_or_default());
        others
            .into_iter()
            .find(|other| {
                other.uid() != pod.uid()
                    && self.node_of(other).is_some()
                    && !is_over(other)
                    && wire::claims_of(other).iter().any(|key| key.name == name)
            })
            .map(|other| other.name_any())
    }

    fn node_of(&self, pod: &Pod) -> Option<String> {
        if let Some(node) = wire::pod(pod).node {
            return Some(node.to_string());
        }
        let assumed = self.assumed.lock().expect("no holder panics");
        assumed.get(&pod.uid().unwrap_or_default()).cloned()
    }

    fn place(&self, pod: &Pod, luggage: &Luggage) -> Result<String, fit::NowhereToGo> {
        self.place_on(pod, luggage, &self.nodes.all())
    }

    fn place_on(
        &self,
        pod: &Pod,
        luggage: &Luggage,
        nodes: &[Arc<Node>],
    ) -> Result<String, fit::NowhereToGo> {
        let mut pods: BTreeMap<String, usize> = BTreeMap::new();
        let mut volumes: BTreeMap<String, BTreeSet<UniqueVolumeName>> = BTreeMap::new();
        for other in self.pods.all() {
            let Some(node) = self.node_of(&other).filter(|_| !is_over(&other)) else {
                continue;
            };
            let on_node = volumes.entry(node.clone()).or_default();
            for key in wire::claims_of(&other) {
                on_node.extend(self.volume_of_claim(&Key::new(&key.namespace, &key.name)));
            }
            *pods.entry(node).or_default() += 1;
        }
        for attachment in self.attachments.all() {
            let name = attachment.spec.source.persistent_volume_name.as_deref();
            let volume = name.and_then(|name| self.volumes.named(name));
            if let Some(volume) = volume.and_then(|volume| wire::persistent_volume(&volume)) {
                let on_node = volumes.entry(attachment.spec.node_name.clone());
                on_node.or_default().insert(volume.unique_name());
            }
        }
        let candidates: Vec<Candidate<'_>> = nodes
            .iter()
            .map(|node| {
                let name = node.name_any();
                Candidate {
                    node,
                    pods: pods.get(&name).copied().unwrap_or(0),
                    volumes: volumes.remove(&name).unwrap_or_default(),
                    volumes_max: self.limits(&name),
                }
            })
            .collect();
        place(pod, luggage, &candidates)
    }

    fn volume_of_claim(&self, key: &Key) -> Option<UniqueVolumeName> {
        let name = wire::claim(self.claims.get(key)?.as_ref()).volume?;
        let volume = self.volumes.named(name.as_str())?;
        Some(wire::persistent_volume(&volume)?.unique_name())
    }

    fn limits(&self, node: &str) -> BTreeMap<String, u32> {
        let drivers = self.csi_nodes.named(node).map(|node| wire::csi_node(&node));
        let limit = |(driver, entry): (DriverName, cluster_core::CsiNodeDriver)| {
            let max = entry.volumes_max.filter(|max| *max > 0)?;
            Some((driver.to_string(), max))
        };
        drivers.into_iter().flatten().filter_map(limit).collect()
    }

    /// Tells the binder for which node to make the pod's volumes.
    async fn select_node(&self, pod: &Pod, node: &str) -> Result<(), kube::Error> {
        for key in wire::claims_of(pod) {
            let Some(claim) = self.claims.get(&Key::new(&key.namespace, &key.name)) else {
                continue;
            };
            let is_late =
                wire::claim(&claim).volume.is_none() && self.late_driver(&claim).is_some();
            if !is_late || claim.annotations().contains_key(SELECTED_NODE) {
                continue;
            }
            let api: Api<PersistentVolumeClaim> =
                Api::namespaced(self.client.clone(), &key.namespace);
            let patch = Patch::Merge(json!({"metadata": {"annotations": {SELECTED_NODE: node}}}));
            api.patch(&key.name, &PatchParams::default(), &patch)
                .await?;
            tracing::info!(claim = %key, node.name = node, "a node is selected for the claim's first pod");
        }
        Ok(())
    }

    /// Would the pod go there as the node is now? A cordon that was answered must hold. That other things about the node
    /// have changed is no obstacle: in a storm of attachments its status changes all the time.
    async fn still_fits(
        &self,
        pod: &Pod,
        luggage: &Luggage,
        node: &str,
    ) -> Result<bool, kube::Error> {
        let live = Api::<Node>::all(self.client.clone()).get_opt(node).await?;
        Ok(live.is_some_and(|live| self.place_on(pod, luggage, &[Arc::new(live)]).is_ok()))
    }

    async fn bind(&self, pod: &Pod, node: &str) -> Result<(), kube::Error> {
        let api: Api<Pod> = self.pod_api(pod);
        let name = pod.name_any();
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": name, "namespace": pod.namespace(), "uid": pod.uid()},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        let parameters = PostParams::default();
        let _: Value = api
            .create_subresource("binding", &name, &parameters, &binding)
            .await?;
        tracing::info!(node.name = node, "the pod is bound");
        self.assume(pod, node);
        Ok(())
    }

    fn assume(&self, pod: &Pod, node: &str) {
        let unseen: BTreeSet<String> = self
            .pods
            .all()
            .iter()
            .filter(|pod| needs_node(pod))
            .filter_map(|pod| pod.uid())
            .collect();
        let mut assumed = self.assumed.lock().expect("no holder panics");
        assumed.retain(|uid, _| unseen.contains(uid));
        assumed.insert(pod.uid().unwrap_or_default(), node.to_owned());
    }

    fn pod_api(&self, pod: &Pod) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default())
    }

    async fn tell_unschedulable(&self, pod: &Pod, problem: &str) {
        let problem = truncate_message(problem);
        tracing::info!(problem, "the pod fits nowhere");
        let told = pod
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
            .any(|condition| {
                condition.type_ == "PodScheduled" && condition.message.as_deref() == Some(problem)
            });
        if told {
            return;
        }
        let condition = json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": problem,
            "lastTransitionTime": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        });
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        let (name, parameters) = (pod.name_any(), PatchParams::default());
        if let Err(error) = self
            .pod_api(pod)
            .patch_status(&name, &parameters, &patch)
            .await
        {
            tracing::debug!(error = %error, "the pod's condition could not be written");
        }
        let message = problem.to_owned();
        self.tell(pod, EventKind::Warning, "FailedScheduling", message);
    }

    /// Without waiting: pods are placed one after the other, and the next one is not to wait for words about this one.
    fn tell(&self, pod: &Pod, kind: EventKind, reason: &'static str, message: String) {
        let (recorder, about) = (self.recorder.clone(), pod.object_ref(&()));
        tokio::spawn(async move { recorder.record(&about, kind, reason, &message).await });
    }
}

fn travelling(volume: &PersistentVolume) -> Option<Volume> {
    let required = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.node_affinity.as_ref())
        .and_then(|affinity| affinity.required.as_ref());
    Some(Volume {
        name: wire::persistent_volume(volume)?.unique_name(),
        terms: required
            .map(|required| required.node_selector_terms.clone())
            .unwrap_or_default(),
    })
}

fn needs_node(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let scheduler = spec.and_then(|spec| spec.scheduler_name.as_deref());
    let node = spec.and_then(|spec| spec.node_name.as_deref());
    node.unwrap_or_default().is_empty()
        && matches!(scheduler, None | Some("" | NAME))
        && pod.metadata.deletion_timestamp.is_none()
        && !is_over(pod)
}

fn is_over(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn failed(error: &kube::Error) -> Outcome {
    match error {
        // Gone: the watch will tell.
        kube::Error::Api(status) if status.is_not_found() => Outcome::Done,
        // Bound by somebody else, which the next look sees; or only written to meanwhile, and then nobody else would look.
        kube::Error::Api(status) if status.is_conflict() => Outcome::Failed,
        _ => {
            tracing::warn!(error = %error, "the pod could not be bound; trying again later");
            Outcome::Failed
        }
    }
}
