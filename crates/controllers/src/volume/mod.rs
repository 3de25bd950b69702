//! The volume controller: `volume_core::decide` over Volumes, Engines, Replicas and nodes.
//!
//! It is the only author of `Volume.status`, `Engine.spec` and `Replica.spec`. Writes go in the plan's order: replicas,
//! the volume's status, engines, deletions. An epoch exists from the moment that the status has it, by compare-and-swap,
//! and no engine is created before.

mod execute;
mod finalizers;
mod tell;
pub(crate) mod users;

use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use kube::ResourceExt as _;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use volume_core::wire;

use crate::history;
use crate::runtime::cache::Subscription;
use crate::runtime::told::Told;
use crate::runtime::{Context, Next, Objects, Queue, Stop};

/// Volumes that are worked on at once. A reconcile is a few writes, so this bounds the requests in flight.
const WORKERS: usize = 32;

/// Runs until cancelled.
pub async fn run(context: Context, stop: CancellationToken) {
    let queue = Queue::named("volume", &context.metrics);
    let objects = &context.objects;
    let add = queue.clone();
    let _volumes = objects
        .volumes
        .subscribe(move |volume| add.add(volume.name_any()));
    let add = queue.clone();
    let _engines = objects
        .engines
        .subscribe(move |engine| add.add(engine.spec.volume_name.clone()));
    let add = queue.clone();
    let _replicas = objects
        .replicas
        .subscribe(move |replica| add.add(replica.spec.volume_name.clone()));
    let add = queue.clone();
    let _snapshots = objects
        .snapshots
        .subscribe(move |snapshot| add.add(snapshot.spec.volume.clone()));
    let _users = look_for_users(objects, &queue);
    // A node, its taint or a setting may matter to every volume.
    let (add, volumes) = (queue.clone(), objects.volumes.clone());
    let add_all = Arc::new(move || {
        for volume in volumes.all() {
            add.add(volume.name_any());
        }
    });
    let add = Arc::clone(&add_all);
    let _nodes = objects.nodes.subscribe(move |_| add());
    let add = Arc::clone(&add_all);
    let _settings = objects.settings.subscribe(move |_| add());
    let (add, known) = (Arc::clone(&add_all), Mutex::new(objects.out_of_service()));
    let cache = objects.clone();
    let _kubernetes_nodes = objects.kubernetes_nodes.subscribe(move |_| {
        // Kubernetes nodes report often; only the taint matters here.
        let now = cache.out_of_service();
        let mut known = known
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if *known != now {
            *known = now;
            add();
        }
    });
    add_all();
    // What has lost its volume is looked at too.
    for engine in objects.engines.all() {
        queue.add(engine.spec.volume_name.clone());
    }
    for replica in objects.replicas.all() {
        queue.add(replica.spec.volume_name.clone());
    }
    let told = Arc::new(Told::default());
    queue
        .run(WORKERS, stop, |name| {
            let (context, told) = (context.clone(), Arc::clone(&told));
            let span = tracing::info_span!("volume", volume.name = %name);
            async move {
                reconcile(&context, &told, &name)
                    .await
                    .unwrap_or_else(|stop| stop.next())
            }
            .instrument(span)
        })
        .await;
}

/// Adds a volume when its users come, change or go: its claim, which its PersistentVolume names, and pods. Whoever comes is
/// to hear why the volume is not served.
#[must_use = "the subscriptions end when they are dropped"]
fn look_for_users(
    objects: &Objects,
    queue: &Queue,
) -> (Subscription<PersistentVolume>, Subscription<Pod>) {
    let add = queue.clone();
    let persistent_volumes = objects
        .persistent_volumes
        .subscribe(move |object| add.add(object.name_any()));
    let (add, cache) = (queue.clone(), objects.clone());
    let pods = objects.pods.subscribe(move |pod| {
        for volume in users::volumes_of(&cache, pod) {
            add.add(volume);
        }
    });
    (persistent_volumes, pods)
}

async fn reconcile(context: &Context, told: &Told, name: &str) -> Result<Next, Stop> {
    let objects = &context.objects;
    let (engines, replicas) = (objects.engines_of(name), objects.replicas_of(name));
    let Some(volume) = objects.volume(name) else {
        told.forget(name);
        context.history().forget(name);
        finalizers::release_orphans(context, &engines, &replicas).await?;
        return Ok(Next::Wait);
    };
    let now = Timestamp::now();
    let cluster = objects.cluster(now);
    let view = wire::view(
        &volume,
        engines.iter().map(AsRef::as_ref),
        replicas.iter().map(AsRef::as_ref),
        &cluster,
    );
    let view = view.map_err(|error| tell::unreadable(context, told, &volume, &error))?;
    let plan = volume_core::decide(&view, cluster.now);
    tracing::debug!(reasons = ?plan.reasons, "decided");
    let round = execute::Round {
        context,
        volume: &volume,
        engines: &engines,
        replicas: &replicas,
        view: &view,
        plan: &plan,
        now: cluster.now,
    };
    let result = round.execute().await;
    // Also when a write was refused: the reasons are why it was tried.
    tell::plan(context, told, &volume, &view, &plan, result.is_ok());
    let decision = history::of_volume(&view, &plan);
    match &result {
        Ok(()) => context.history().decided(&volume, decision, now),
        Err(_) => context.history().attempted(&volume, decision),
    }
    result?;
    Ok(plan.recheck_after.map_or(Next::Wait, Next::After))
}
