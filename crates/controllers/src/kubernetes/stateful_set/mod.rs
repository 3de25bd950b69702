//! A small StatefulSet controller for the embedded mode: pods with stable names and claims of their own, made again
//! elsewhere when their node is lost.
//!
//! What Kubernetes has and this has not: ControllerRevisions (so that nothing can be rolled back), and claims that are
//! deleted with their pods.

mod decide;
mod objects;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use events::{EventKind, Recorder, sentence};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use self::decide::{Member, Step, decide};
use super::cache::{Cache, Feeds, Key};
use super::queue::{Backoff, Lane, Outcome, Queue};
use crate::metrics::Metrics;

/// What events say they come from.
const COMPONENT: &str = "statefulset-controller";
const IN_FLIGHT_MAX: usize = 64;
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(100),
    longest: Duration::from_secs(30),
};

/// Works until it is told to stop.
pub async fn run(feeds: &Feeds, metrics: &Metrics, stop: CancellationToken) {
    let lane = Lane {
        name: "stateful_set",
        in_flight_max: IN_FLIGHT_MAX,
    };
    let queue: Queue<Key> = Queue::new("stateful_set", &[lane], BACKOFF, metrics);
    let client = feeds.client().clone();
    let mut watches = JoinSet::new();
    let by_set = queue.clone();
    let (sets, task) = feeds.follow(Api::<StatefulSet>::all(client.clone()), move |old, new| {
        if let Some(any) = new.or(old) {
            by_set.add(Key::of(any.as_ref()), 0);
        }
    });
    watches.spawn(task);
    let by_pod = queue.clone();
    let (pods, task) = feeds.follow(Api::<Pod>::all(client.clone()), move |old, new| {
        let Some(any) = new.or(old) else { return };
        let namespace = any.namespace().unwrap_or_default();
        for owner in any.owner_references() {
            if owner.kind == "StatefulSet" {
                by_pod.add(Key::new(&namespace, &owner.name), 0);
            }
        }
    });
    watches.spawn(task);
    tokio::select! {
        () = stop.cancelled() => return,
        _ = futures::future::join(sets.synced(), pods.synced()) => {}
    }
    let handler = Arc::new(Handler {
        recorder: Recorder::new(client.clone(), COMPONENT),
        client,
        sets,
        pods,
    });
    tokio::select! {
        () = queue.run(move |key, _| Arc::clone(&handler).look(key), stop) => {}
        // A watch ends only by a defect of ours: the process must not go on without it.
        Some(ended) = watches.join_next() => {
            tracing::error!(?ended, "a watch of the StatefulSet controller has ended");
        }
    }
}

struct Handler {
    client: Client,
    recorder: Recorder,
    sets: Cache<StatefulSet>,
    pods: Cache<Pod>,
}

impl Handler {
    async fn look(self: Arc<Self>, key: Key) -> Outcome {
        let span = tracing::info_span!("stateful_set", set = %key);
        async move {
            let Some(set) = self.sets.get(&key) else {
                return Outcome::Done;
            };
            if set.metadata.deletion_timestamp.is_some() {
                // Its pods are the garbage collector's now.
                return Outcome::Done;
            }
            match self.work(&set).await {
                Ok(()) => Outcome::Done,
                Err(error) => {
                    tracing::warn!(error = %error, "the set could not be served; trying again later");
                    Outcome::Failed
                }
            }
        }
        .instrument(span)
        .await
    }

    async fn work(&self, set: &StatefulSet) -> Result<(), kube::Error> {
        let namespace = set.namespace().unwrap_or_default();
        let pods = self.pods.of_namespace(&namespace);
        let own: BTreeMap<u32, Arc<Pod>> = pods
            .into_iter()
            .filter_map(|pod| Some((objects::number_of(set, &pod)?, pod)))
            .collect();
        let members: BTreeMap<u32, Member> = own
            .iter()
            .map(|(number, pod)| (*number, objects::member(pod)))
            .collect();
        let wanted = objects::wanted(set);
        let steps = decide(&wanted, &members);
        tracing::debug!(?steps, "decided");
        self.write_status(set, &objects::status(set, &wanted, &members))
            .await?;
        for step in steps {
            match step {
                Step::Create(number) => self.create(set, number).await?,
                Step::Delete(number) => {
                    if let Some(pod) = own.get(&number) {
                        self.delete(set, pod).await?;
                    }
                }
            }
        }
        Ok(())
    }

    async fn create(&self, set: &StatefulSet, number: u32) -> Result<(), kube::Error> {
        let namespace = set.namespace().unwrap_or_default();
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &namespace);
        for claim in objects::claims(set, number) {
            // One of before is the point of it.
            made(&claims, claim).await?;
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let (name, about) = (objects::pod_name(set, number), set.object_ref(&()));
        let created = made(&pods, objects::pod(set, number)).await;
        let of = format!("Pod {name} in StatefulSet {}", set.name_any());
        match created {
            Ok(true) => {
                tracing::info!(pod.name = name, "the pod is made");
                let message = format!("create {of} successful");
                self.recorder
                    .record(&about, EventKind::Normal, "SuccessfulCreate", &message)
                    .await;
                Ok(())
            }
            // Made a moment ago, which the watch does not show yet; or there is a stranger of that name.
            Ok(false) => match pods.get_opt(&name).await? {
                Some(pod) if objects::number_of(set, &pod).is_none() => {
                    let message = format!(
                        "create {of} failed: a pod of that name is not the set's own; delete or rename it"
                    );
                    self.recorder
                        .record(&about, EventKind::Warning, "FailedCreate", &message)
                        .await;
                    Err(kube::Error::Api(Box::new(
                        kube::core::Status::failure(&message, "AlreadyExists").with_code(409),
                    )))
                }
                Some(_) | None => Ok(()),
            },
            Err(error) => {
                let message = format!("create {of} failed: {}", sentence(&error));
                self.recorder
                    .record(&about, EventKind::Warning, "FailedCreate", &message)
                    .await;
                Err(error)
            }
        }
    }

    async fn delete(&self, set: &StatefulSet, pod: &Pod) -> Result<(), kube::Error> {
        let api: Api<Pod> =
            Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: pod.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match api.delete(&pod.name_any(), &parameters).await {
            Ok(_) => {
                let message = format!(
                    "delete Pod {} in StatefulSet {} successful",
                    pod.name_any(),
                    set.name_any()
                );
                self.recorder
                    .record(
                        &set.object_ref(&()),
                        EventKind::Normal,
                        "SuccessfulDelete",
                        &message,
                    )
                    .await;
                Ok(())
            }
            // Gone, or another one by now: the watch will tell.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn write_status(
        &self,
        set: &StatefulSet,
        status: &k8s_openapi::api::apps::v1::StatefulSetStatus,
    ) -> Result<(), kube::Error> {
        if set.status.as_ref() == Some(status) {
            return Ok(());
        }
        let api: Api<StatefulSet> =
            Api::namespaced(self.client.clone(), &set.namespace().unwrap_or_default());
        let patch = Patch::Merge(json!({"metadata": {"uid": set.uid()}, "status": status}));
        match api
            .patch_status(&set.name_any(), &PatchParams::default(), &patch)
            .await
        {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(error)) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Whether the object is new: false if there is one of that name.
async fn made<K>(api: &Api<K>, object: serde_json::Value) -> Result<bool, kube::Error>
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let object: K = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(false),
        Err(error) => Err(error),
    }
}
