//! Makes this node's replicas what their objects ask for.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use api_types::{Replica, names};
use block_core::VolumeName;
use block_core::wire::ReplicaStatus;
use events::sentence;
use futures::StreamExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::disks::{Disk, Disks, Place};
use super::engine_report::cut;
use super::objects::{newest, patch_status, release};
use super::replica_plan::{
    OnDisk, Step, Wanted, plan, plan_after_failed_removal, plan_for_standing, plan_without_disk,
};
use super::{AgentError, Context};

/// How often a replica is looked at although nothing was asked: its size on disk changes by itself.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// After a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Steps from nothing to a replica that serves, and a few for races.
const STEPS_MAX: usize = 8;

/// This node's replicas, once they were listed.
pub type Listed = Option<Store<Replica>>;

/// Follows the Replica objects of this node until told to stop.
pub(super) async fn run(
    context: Arc<Context>,
    disks: Arc<Disks>,
    shared: watch::Sender<Listed>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), AgentError> {
    let api: Api<Replica> = Api::namespaced(context.client.clone(), names::NAMESPACE);
    let selector = format!("{}={}", names::label::NODE, context.node);
    let (store, writer) = reflector::store();
    let config = watcher::Config::default().labels(&selector);
    let events = reflector::reflector(writer, watcher::watcher(api, config)).default_backoff();
    let mut events = pin!(events);
    let mut disks_changed = disks.changes();
    let mut wakes: HashMap<String, Arc<Notify>> = HashMap::new();
    let mut tasks: JoinSet<String> = JoinSet::new();
    let mut listed = false;
    loop {
        let mut touched: Vec<String> = Vec::new();
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            Ok(()) = disks_changed.changed() => {
                if listed {
                    warn_of_strays(&disks, &store);
                }
                touched.extend(all_volumes(&store, &wakes));
            }
            Some(ended) = tasks.join_next() => {
                let volume = ended.map_err(|_| AgentError::Task("a replica's task"))?;
                wakes.remove(&volume);
                touched.push(volume);
            }
            event = events.next() => match event {
                Some(Ok(Event::Apply(replica) | Event::Delete(replica))) => touched.push(replica.spec.volume_name),
                Some(Ok(Event::InitDone)) => {
                    if !listed {
                        warn_of_strays(&disks, &store);
                    }
                    listed = true;
                    shared.send_replace(Some(store.clone()));
                    touched.extend(all_volumes(&store, &wakes));
                }
                Some(Ok(Event::Init | Event::InitApply(_))) => {}
                Some(Err(error)) => tracing::debug!(error = &error as &dyn std::error::Error, "watching replicas"),
                None => return Err(AgentError::Task("the watch of replicas")),
            },
        }
        // Before the disks were looked at, none is missing.
        if !listed || *disks_changed.borrow() == 0 {
            continue;
        }
        touched.sort();
        touched.dedup();
        for volume in touched {
            if let Some(wake) = wakes.get(&volume) {
                wake.notify_one();
            } else if !of_volume(&store, &volume).is_empty() {
                let wake = Arc::new(Notify::new());
                wakes.insert(volume.clone(), wake.clone());
                let (context, disks, store) = (context.clone(), disks.clone(), store.clone());
                tasks.spawn(async move {
                    follow(&context, &disks, &store, &volume, &wake).await;
                    volume
                });
            }
        }
    }
    tasks.shutdown().await;
    Ok(())
}

fn all_volumes(store: &Store<Replica>, wakes: &HashMap<String, Arc<Notify>>) -> Vec<String> {
    let known = store.state();
    let known = known.iter().map(|replica| replica.spec.volume_name.clone());
    wakes.keys().cloned().chain(known).collect()
}

fn warn_of_strays(disks: &Disks, store: &Store<Replica>) {
    for disk in disks.open_disks() {
        for volume in disk.volumes() {
            if of_volume(store, &volume).is_empty() {
                tracing::warn!(volume.name = %volume, disk.path = %disk.path.display(),
                    "the disk has data of a volume that no Replica of this node asks for");
            }
        }
    }
}

fn of_volume(store: &Store<Replica>, volume: &str) -> Vec<Arc<Replica>> {
    let mut replicas = store.state();
    replicas.retain(|replica| replica.spec.volume_name == volume);
    replicas.sort_by_key(|replica| replica.name_any());
    replicas
}

/// One volume's replicas: usually one, for a moment two.
async fn follow(
    context: &Arc<Context>,
    disks: &Disks,
    store: &Store<Replica>,
    volume: &str,
    wake: &Notify,
) {
    let mut written: HashMap<String, Replica> = HashMap::new();
    let mut measured: Option<Instant> = None;
    loop {
        let replicas = of_volume(store, volume);
        if replicas.is_empty() {
            return;
        }
        let mut pause = LOOK_AGAIN;
        let measure = measured.is_none_or(|at| at.elapsed() >= LOOK_AGAIN);
        if measure {
            measured = Some(Instant::now());
        }
        for replica in &replicas {
            let replica = newest(replica.as_ref(), &written);
            match settle(context, disks, &replica, measure).await {
                Ok(Some(patched)) => {
                    written.insert(patched.name_any(), patched);
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(replica.name = %replica.name_any(), error = &error as &dyn std::error::Error, "cannot settle a replica");
                    pause = RETRY;
                }
            }
        }
        let _ = tokio::time::timeout(pause, wake.notified()).await;
    }
}

/// Takes steps until the replica is as its object asks, and reports it. Without `measure`, its size on the disk is left
/// as it was reported: every report wakes us again, and under a writer the size is never the same twice.
async fn settle(
    context: &Arc<Context>,
    disks: &Disks,
    replica: &Replica,
    measure: bool,
) -> Result<Option<Replica>, kube::Error> {
    let api: Api<Replica> = Api::namespaced(context.client.clone(), names::NAMESPACE);
    let wanted = Wanted::read(replica);
    let Ok(volume) = VolumeName::new(&wanted.volume) else {
        let message = format!("{:?} is not a volume's name", wanted.volume);
        return patch_status(&api, replica, &failed(context, &message)).await;
    };
    let (disk, disk_name, is_listed) = match disks.place(&wanted.disk) {
        Place::Here {
            disk,
            name,
            is_listed,
        } => (disk, name, is_listed),
        Place::Nowhere(unusable) => {
            let step = plan_without_disk(&wanted, &context.node, &unusable);
            return conclude(context, &api, replica, step).await;
        }
    };
    let size_bytes = u64::try_from(replica.spec.volume_size.bytes()).unwrap_or(0);
    for _ in 0..STEPS_MAX {
        // The disk after the replica: what was found there counts only if it is in its place still.
        let (on_disk, standing) = blocking({
            let (disk, volume) = (disk.clone(), volume.clone());
            move || (disk.look(&volume), disk.standing())
        })
        .await;
        let node = &context.node;
        if let Some(step) =
            plan_for_standing(&wanted, node, &disk_name, is_listed, &on_disk, &standing)
        {
            return conclude(context, &api, replica, step).await;
        }
        let owner_exists = match &on_disk {
            OnDisk::Data { owner, .. } | OnDisk::Broken { owner, .. } if *owner != wanted.name => {
                match api.get_opt(owner).await? {
                    // It makes room for this one, which is looked at again when it is gone.
                    Some(owner) if owner.metadata.deletion_timestamp.is_some() => {
                        return Ok(None);
                    }
                    owner => owner.is_some(),
                }
            }
            _ => true,
        };
        let step = plan(&wanted, &on_disk, owner_exists);
        tracing::debug!(replica.name = %wanted.name, ?step, "decided");
        let done = match step {
            Step::Serve => {
                let mut report = blocking({
                    let (context, disk, volume) = (context.clone(), disk.clone(), volume.clone());
                    let desire = replica.spec.desire_state.clone();
                    move || serving(&context, &disk, &volume, &desire)
                })
                .await;
                let reported = replica
                    .status
                    .as_ref()
                    .map_or(0, |status| status.allocated_bytes);
                if !measure && reported > 0 {
                    report["allocatedBytes"] = reported.into();
                }
                return patch_status(&api, replica, &report).await;
            }
            step @ (Step::Refuse(_) | Step::Await(_) | Step::Release) => {
                return conclude(context, &api, replica, step).await;
            }
            Step::Create => {
                let (disk, volume, name) = (disk.clone(), volume.clone(), wanted.name.clone());
                blocking(move || disk.create(&name, &volume, size_bytes)).await
            }
            Step::AcceptEpoch(epoch) => {
                let (disk, volume) = (disk.clone(), volume.clone());
                blocking(move || disk.accept(&volume, epoch)).await
            }
            Step::RemoveData { of } => {
                tracing::info!(replica.name = %of, volume.name = %volume, "removing a replica's data");
                let (removed_from, volume) = (disk.clone(), volume.clone());
                let removed = blocking(move || removed_from.remove(&volume)).await;
                if let Err(why) = &removed
                    && wanted.deleting
                {
                    tracing::warn!(replica.name = %of, disk.name = %disk_name, "cannot remove a replica's data: {why}");
                    let step = plan_after_failed_removal(&context.node, &disk_name, why, is_listed);
                    return conclude(context, &api, replica, step).await;
                }
                removed
            }
        };
        if let Err(why) = done {
            return patch_status(&api, replica, &failed(context, &why)).await;
        }
    }
    let why = "it does not come to rest: another process changes its folder";
    patch_status(&api, replica, &failed(context, why)).await
}

/// A step after which there is nothing more to do for now.
async fn conclude(
    context: &Context,
    api: &Api<Replica>,
    replica: &Replica,
    step: Step,
) -> Result<Option<Replica>, kube::Error> {
    let report = match step {
        Step::Release => {
            release(api, replica).await?;
            return Ok(None);
        }
        Step::Await(why) => away(context, "unknown", &why),
        Step::Refuse(why) => failed(context, &why),
        Step::Serve | Step::Create | Step::AcceptEpoch(_) | Step::RemoveData { .. } => {
            return Ok(None);
        }
    };
    patch_status(api, replica, &report).await
}

fn failed(context: &Context, why: &str) -> Value {
    away(context, "error", why)
}

/// Of a replica that is not served.
fn away(context: &Context, state: &str, why: &str) -> Value {
    json!({
        "ownerID": context.node,
        "currentState": state,
        "address": "",
        "verified": false,
        "message": cut(why),
    })
}

fn serving(
    context: &Context,
    disk: &Disk,
    volume: &VolumeName,
    desire: &api_types::InstanceState,
) -> Value {
    let status = match disk.server.status(volume) {
        Ok(status) => status,
        Err(error) => return failed(context, &sentence(&error)),
    };
    let layers = disk
        .server
        .replica(volume)
        .ok()
        .and_then(|replica| replica.list_layers().ok())
        .unwrap_or_default();
    let snapshots: Vec<String> = layers
        .iter()
        .filter_map(|layer| match &layer.layer {
            block_core::wire::LayerRef::Snapshot(name) => Some(name.to_string()),
            block_core::wire::LayerRef::Head => None,
        })
        .collect();
    let digest = digest(&status, &snapshots);
    let address = disk.server.local_addr();
    let state = match (status.fault.is_empty(), desire) {
        (false, _) => "error",
        (true, api_types::InstanceState::Running) => "running",
        (true, _) => "stopped",
    };
    json!({
        "ownerID": context.node,
        "currentState": state,
        "started": true,
        "address": address.to_string(),
        "ip": address.ip().to_string(),
        "storageIP": address.ip().to_string(),
        "port": address.port(),
        "acceptedEpoch": status.accepted_epoch.0,
        "currentSize": status.size_bytes.to_string(),
        "allocatedBytes": status.allocated_bytes,
        // What a replica knows of its last writer is the in-sync set that it was told of.
        "lastWriteEpoch": status.sync_epoch.0,
        "revision": status.sync.as_ref().map_or(0, |sync| sync.generation),
        "layers": snapshots,
        "digest": digest,
        "verified": status.fault.is_empty(),
        "message": cut(&status.fault),
    })
}

/// Equal for replicas that a salvage may use together. Whether they were closed in order is left out: an engine compares
/// and repairs what the last writes of a killed one left different.
fn digest(status: &ReplicaStatus, snapshots: &[String]) -> String {
    let sync = status
        .sync
        .as_ref()
        .map(|sync| (sync.generation, &sync.in_sync));
    let known = format!("{} {sync:?} {snapshots:?}", status.size_bytes);
    let hash = Sha256::digest(known.as_bytes());
    hash.iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
