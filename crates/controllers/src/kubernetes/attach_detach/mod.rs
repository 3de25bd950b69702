//! The attach-detach controller: which VolumeAttachments there should be.
//!
//! Watches feed a model; whenever it changes, [`cluster_core::decide`] is asked and what it says is written.
//! Nothing is kept but what the decision hands back to itself, and losing that costs patience, not safety:
//! who has what is rebuilt from VolumeAttachments. There is no timer but the one that the decision asks for.

mod execute;
mod model;
mod people;

use std::time::Duration;

use api_types::{Volume, names};
use cluster_core::{
    ClusterView, DriverName, Memory, NodeName, Settings, UniqueVolumeName, VolumeHandle, decide,
};
use events::Recorder;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::execute::Executor;
use self::model::{Model, SharedModel};
use super::cache::{Cache, Feeds};
use super::now;
use crate::metrics::{Metrics, Rounds};
use crate::runtime::reference;

/// What events say they come from.
const COMPONENT: &str = "attachdetach-controller";

#[derive(Clone, Debug)]
pub struct AttachDetachOptions {
    /// The driver whose volumes have fence proofs.
    pub driver: DriverName,
    pub settings: Settings,
}

impl Default for AttachDetachOptions {
    fn default() -> Self {
        Self {
            driver: DriverName::from(names::DRIVER),
            settings: Settings::default(),
        }
    }
}

/// Works until it is told to stop.
pub async fn run(
    feeds: &Feeds,
    options: AttachDetachOptions,
    metrics: &Metrics,
    stop: CancellationToken,
) {
    let client = feeds.client().clone();
    let model = SharedModel::default();
    model.lock().view.settings = options.settings.clone();
    let mut watches = Watches {
        feeds: feeds.clone(),
        model: model.clone(),
        tasks: JoinSet::new(),
        synced: Vec::new(),
    };
    watches.add(Api::<Pod>::all(client.clone()), Model::pod);
    watches.add(
        Api::<PersistentVolumeClaim>::all(client.clone()),
        Model::claim,
    );
    watches.add(Api::<PersistentVolume>::all(client.clone()), Model::volume);
    watches.add(Api::<Node>::all(client.clone()), Model::node);
    watches.add(Api::<CSINode>::all(client.clone()), Model::csi_node);
    watches.add(Api::<CSIDriver>::all(client.clone()), Model::csi_driver);
    watches.add(
        Api::<VolumeAttachment>::all(client.clone()),
        Model::attachment,
    );
    let driver = options.driver.clone();
    watches.add(
        Api::<Volume>::namespaced(client.clone(), names::NAMESPACE),
        move |model: &mut Model, old: Option<&Volume>, new: Option<&Volume>| {
            let Some(any) = new.or(old) else { return false };
            let unique = UniqueVolumeName {
                driver: driver.clone(),
                handle: VolumeHandle::new(any.name_any()),
            };
            let fenced = new.and_then(Volume::fenced_node).map(NodeName::from);
            let writer = new.and_then(Volume::writer_node).map(NodeName::from);
            model.own_volume(&unique, new.map(reference));
            model.fence(&unique, fenced) | model.writer(&unique, writer)
        },
    );
    let Watches {
        mut tasks, synced, ..
    } = watches;
    tokio::select! {
        () = stop.cancelled() => return,
        _ = futures::future::join_all(synced) => {}
    }
    let recorder = Recorder::new(client.clone(), COMPONENT);
    let rounds = metrics.rounds("attach_detach");
    let executor = Executor::new(client, recorder, model.clone());
    tokio::select! {
        () = stop.cancelled() => {}
        () = work(executor, &model, &rounds) => {}
        // A watch ends only by a defect of ours: the process must not go on without it.
        Some(ended) = tasks.join_next() => {
            tracing::error!(?ended, "a watch of the attach-detach controller has ended");
        }
    }
}

async fn work(mut executor: Executor, model: &SharedModel, rounds: &Rounds) {
    let mut memory = remember(&model.lock().view);
    loop {
        let began = Instant::now();
        let span = tracing::info_span!("attach_detach");
        let entered = span.enter();
        let plan = {
            let mut model = model.lock();
            model.forget_unseen();
            decide(&model.view, &memory, now())
        };
        for reason in &plan.reasons {
            tracing::debug!(%reason, "decided");
        }
        let recheck = plan.recheck_after;
        executor.start(&plan);
        memory = plan.memory;
        drop(entered);
        rounds.ended(began.elapsed(), false);
        let wake = [
            recheck.map(|after| Instant::now() + after),
            executor.next_retry(),
            model.lock().next_expiry(),
        ];
        let timer = async {
            match wake.into_iter().flatten().min() {
                // A moment later than asked, so that what was waited for is certainly over.
                Some(at) => tokio::time::sleep_until(at + Duration::from_millis(1)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = model.changed() => {}
            () = executor.finished() => {}
            () = timer => {}
        }
    }
}

/// What was told before we started needs not be told again.
fn remember(view: &ClusterView) -> Memory {
    tracing::info!(
        attachments = view.attachments.len(),
        "the attach-detach controller starts"
    );
    let told = view
        .attachments
        .iter()
        .filter(|(_, attachment)| attachment.attached)
        .filter_map(|(name, attachment)| {
            let volume = attachment.source.volume()?.clone();
            Some((name.clone(), (volume, attachment.node.clone())))
        });
    Memory {
        told_attached: told.collect(),
        ..Memory::default()
    }
}

struct Watches {
    feeds: Feeds,
    model: SharedModel,
    tasks: JoinSet<()>,
    synced: Vec<futures::future::BoxFuture<'static, ()>>,
}

impl Watches {
    fn add<K, F>(&mut self, api: Api<K>, apply: F)
    where
        K: Resource<DynamicType = ()>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug
            + Send
            + Sync
            + 'static,
        F: Fn(&mut Model, Option<&K>, Option<&K>) -> bool + Send + 'static,
    {
        let model = self.model.clone();
        let (cache, task): (Cache<K>, _) = self.feeds.follow(api, move |old, new| {
            model.update(|model| apply(model, old.map(AsRef::as_ref), new.map(AsRef::as_ref)));
        });
        self.tasks.spawn(task);
        self.synced
            .push(Box::pin(async move { cache.synced().await }));
    }
}
