//! Claims and volumes: which belongs to which, and making volumes for claims that ask for a class.
//!
//! For the embedded mode: the persistent volume controller, the external-provisioner and the protection
//! controllers of Kubernetes, as far as a storage system's users meet them.

mod decide;
mod handler;
mod provision;
mod quantity;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use api_types::names;
use events::Recorder;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttachment};
use kube::{Api, ResourceExt as _};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::decide::named_volume;
use self::handler::Handler;
use super::cache::{Feeds, Key};
use super::csi::CsiController;
use super::queue::{Backoff, Lane, Queue};
use crate::metrics::Metrics;

/// What events say they come from.
const COMPONENT: &str = "persistentvolume-controller";
/// Each look is tens of kilobytes, of which a new manager that finds thousands of claims should not hold all at once.
const IN_FLIGHT_MAX: usize = 128;
pub(super) const SELECTED_NODE: &str = decide::SELECTED_NODE;

#[derive(Clone, Debug)]
pub struct BinderOptions {
    /// The driver, and the provisioner's name in classes.
    pub driver: String,
    /// How long creating or deleting a volume may take.
    pub rpc_timeout: Duration,
    pub backoff: Backoff,
}

impl Default for BinderOptions {
    fn default() -> Self {
        Self {
            driver: names::DRIVER.to_owned(),
            rpc_timeout: Duration::from_secs(120),
            backoff: Backoff {
                first: Duration::from_millis(500),
                longest: Duration::from_secs(60),
            },
        }
    }
}

/// Works until it is told to stop.
pub async fn run<C: CsiController>(
    feeds: &Feeds,
    csi: Arc<C>,
    options: BinderOptions,
    metrics: &Metrics,
    stop: CancellationToken,
) {
    let lane = |name| Lane {
        name,
        in_flight_max: IN_FLIGHT_MAX,
    };
    let claim_queue: Queue<Key> =
        Queue::new("binder_claim", &[lane("claim")], options.backoff, metrics);
    let volume_queue: Queue<String> =
        Queue::new("binder_volume", &[lane("volume")], options.backoff, metrics);
    let client = feeds.client().clone();
    let mut watches = JoinSet::new();

    let (queue, volumes_of_claims) = (claim_queue.clone(), volume_queue.clone());
    let (claims, task) = feeds.follow(
        Api::<PersistentVolumeClaim>::all(client.clone()),
        move |old, new| {
            let Some(any) = new.or(old) else { return };
            queue.add(Key::of(any.as_ref()), 0);
            if let Some(volume) = named_volume(any) {
                volumes_of_claims.add(volume.to_owned(), 0);
            }
        },
    );
    watches.spawn(task);
    let (queue, by_claim, known_claims) =
        (volume_queue.clone(), claim_queue.clone(), claims.clone());
    let (volumes, task) = feeds.follow(
        Api::<PersistentVolume>::all(client.clone()),
        move |old, new| {
            let Some(any) = new.or(old) else { return };
            queue.add(any.name_any(), 0);
            let reference = any.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
            match reference {
                Some(claim) => by_claim.add(
                    Key::new(
                        claim.namespace.as_deref().unwrap_or_default(),
                        claim.name.as_deref().unwrap_or_default(),
                    ),
                    0,
                ),
                // A free volume is news for every claim that waits.
                None => {
                    for claim in known_claims.all() {
                        let phase = claim
                            .status
                            .as_ref()
                            .and_then(|status| status.phase.as_deref());
                        if phase != Some("Bound") {
                            by_claim.add(Key::of(claim.as_ref()), 0);
                        }
                    }
                }
            }
        },
    );
    watches.spawn(task);
    let (queue, known_claims) = (claim_queue.clone(), claims.clone());
    let (classes, task) = feeds.follow(Api::<StorageClass>::all(client.clone()), move |_, _| {
        for claim in known_claims.all() {
            if named_volume(&claim).is_none() {
                queue.add(Key::of(claim.as_ref()), 0);
            }
        }
    });
    watches.spawn(task);
    let queue = claim_queue.clone();
    let (pods, task) = feeds.follow(Api::<Pod>::all(client.clone()), move |old, new| {
        let Some(any) = new.or(old) else { return };
        for claim in cluster_core::wire::claims_of(any) {
            queue.add(Key::new(&claim.namespace, &claim.name), 0);
        }
    });
    watches.spawn(task);
    let queue = volume_queue.clone();
    let (attachments, task) = feeds.follow(
        Api::<VolumeAttachment>::all(client.clone()),
        move |old, new| {
            // Only that one is gone can let a volume go on.
            let (Some(gone), None) = (old, new) else {
                return;
            };
            if let Some(volume) = &gone.spec.source.persistent_volume_name {
                queue.add(volume.clone(), 0);
            }
        },
    );
    watches.spawn(task);
    let everything_seen = async {
        claims.synced().await;
        volumes.synced().await;
        classes.synced().await;
        pods.synced().await;
        attachments.synced().await;
    };
    tokio::select! {
        () = stop.cancelled() => return,
        () = everything_seen => {}
    }
    let handler = Arc::new(Handler {
        recorder: Recorder::new(client.clone(), COMPONENT),
        client,
        csi,
        options,
        claims,
        volumes,
        classes,
        pods,
        attachments,
    });
    let by_volume = Arc::clone(&handler);
    tokio::select! {
        () = claim_queue.run(move |key, _| Arc::clone(&handler).look_at_claim(key), stop.clone()) => {}
        () = volume_queue.run(move |name, _| Arc::clone(&by_volume).look_at_volume(name), stop.clone()) => {}
        // A watch ends only by a defect of ours: the process must not go on without it.
        Some(ended) = watches.join_next() => {
            tracing::error!(?ended, "a watch of the binder has ended");
        }
    }
}
