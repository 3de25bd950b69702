//! Makes this node's replicas what their objects ask for.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api_types::{Replica, names};
use block_core::wire::VolumeKey;
use block_core::{Epoch, VolumeName};
use futures::StreamExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt as _};
use replica::server::VolumeError;
use replica::{KeyPolicy, ReplicaServer, ReplicaSpec, ServerConfig};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::engine_report::cut;
use super::objects::{newest, patch_status, release};
use super::replica_plan::{OnDisk, Step, Wanted, plan};
use super::{AgentError, Context, chain, write_durably};

/// How often a replica is looked at although nothing was asked: its size on disk changes by itself.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// After a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Steps from nothing to a replica that serves, and a few for races.
const STEPS_MAX: usize = 8;

/// The disk's replicas and who they are of.
pub struct Disk {
    server: ReplicaServer,
    owners: PathBuf,
    replicas: PathBuf,
    uuid: String,
    secret: Vec<u8>,
}

impl Disk {
    /// Serves on the port that this node had before, if it is free: engines come back to it by themselves.
    pub fn open(context: &Context, uuid: String, secret: Vec<u8>) -> Result<Self, AgentError> {
        let layout = &context.layout;
        let mut config = ServerConfig::new(layout.replicas());
        config.keys = KeyPolicy::Derived {
            secret: secret.clone(),
            clients_may_create: false,
        };
        let port = std::fs::read_to_string(layout.replica_port())
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0);
        config.listen = (context.listen_host, port).into();
        let bound = ReplicaServer::bind(config.clone()).or_else(|error| {
            if port == 0 {
                return Err(error);
            }
            tracing::warn!(
                port,
                error = &error as &dyn std::error::Error,
                "the port of before is taken; choosing another"
            );
            config.listen.set_port(0);
            ReplicaServer::bind(config)
        });
        let server = bound.map_err(AgentError::ReplicaServer)?;
        let port = server.local_addr().port();
        std::fs::write(layout.replica_port(), port.to_string())
            .map_err(AgentError::folder(&layout.replica_port()))?;
        Ok(Self {
            server,
            owners: layout.owners(),
            replicas: layout.replicas(),
            uuid,
            secret,
        })
    }

    fn owner_path(&self, volume: &VolumeName) -> PathBuf {
        self.owners.join(volume.as_str())
    }

    fn look(&self, volume: &VolumeName) -> OnDisk {
        let status = self.server.status(volume);
        if let Err(VolumeError::NotFound { .. }) = status {
            return OnDisk::Nothing;
        }
        let Ok(owner) = std::fs::read_to_string(self.owner_path(volume)) else {
            return OnDisk::Stray;
        };
        match status {
            Ok(status) => OnDisk::Data {
                owner,
                accepted_epoch: status.accepted_epoch.0,
            },
            Err(error) => OnDisk::Broken {
                owner,
                why: chain(&error),
            },
        }
    }

    /// Whose the data is, is on the disk before the data.
    fn create(&self, name: &str, volume: &VolumeName, size_bytes: u64) -> Result<(), String> {
        write_durably(&self.owner_path(volume), name)
            .map_err(|error| format!("cannot note the owner of its data: {error}"))?;
        self.server
            .create_volume(&ReplicaSpec {
                volume: volume.clone(),
                key: VolumeKey::derive(&self.secret, volume),
                size_bytes,
            })
            .map_err(|error| chain(&error))
    }

    fn accept(&self, volume: &VolumeName, epoch: u64) -> Result<(), String> {
        let replica = self.server.replica(volume).map_err(|error| chain(&error))?;
        replica
            .open_epoch(Epoch(epoch))
            .map_err(|error| chain(&error))
    }

    fn remove(&self, volume: &VolumeName) -> Result<(), String> {
        match self.server.delete_volume(volume) {
            Ok(()) | Err(VolumeError::NotFound { .. }) => {}
            Err(error) => return Err(chain(&error)),
        }
        match std::fs::remove_file(self.owner_path(volume)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("cannot remove the note of its owner: {error}"))
            }
            _ => Ok(()),
        }
    }

    /// Volumes whose data is here, for a warning about those that nobody asks for.
    fn volumes(&self) -> Vec<String> {
        let listed = replica::server::list_volumes(&self.replicas).unwrap_or_default();
        listed.iter().map(ToString::to_string).collect()
    }
}

/// What the node's object needs to know of replicas.
pub type ReplicaStore = Arc<OnceLock<Store<Replica>>>;

/// Follows the Replica objects of this node until told to stop.
pub(super) async fn run(
    context: Arc<Context>,
    disk: Arc<Disk>,
    shared: ReplicaStore,
    mut stop: watch::Receiver<bool>,
) -> Result<(), AgentError> {
    let api: Api<Replica> = Api::namespaced(context.client.clone(), names::NAMESPACE);
    let selector = format!("{}={}", names::label::NODE, context.node);
    let (store, writer) = reflector::store();
    let config = watcher::Config::default().labels(&selector);
    let events = reflector::reflector(writer, watcher::watcher(api, config)).default_backoff();
    let mut events = pin!(events);
    shared.set(store.clone()).ok();
    let mut wakes: HashMap<String, Arc<Notify>> = HashMap::new();
    let mut tasks: JoinSet<String> = JoinSet::new();
    let mut ready = false;
    loop {
        let mut touched: Vec<String> = Vec::new();
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            Some(ended) = tasks.join_next() => {
                let volume = ended.map_err(|_| AgentError::Task("a replica's task"))?;
                wakes.remove(&volume);
                touched.push(volume);
            }
            event = events.next() => match event {
                Some(Ok(Event::Apply(replica) | Event::Delete(replica))) => touched.push(replica.spec.volume_name),
                Some(Ok(Event::InitDone)) => {
                    if !ready {
                        warn_of_strays(&disk, &store);
                    }
                    ready = true;
                    touched.extend(wakes.keys().cloned());
                    touched.extend(store.state().iter().map(|replica| replica.spec.volume_name.clone()));
                }
                Some(Ok(Event::Init | Event::InitApply(_))) => {}
                Some(Err(error)) => tracing::debug!(error = &error as &dyn std::error::Error, "watching replicas"),
                None => return Err(AgentError::Task("the watch of replicas")),
            },
        }
        if !ready {
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
                let (context, disk, store) = (context.clone(), disk.clone(), store.clone());
                tasks.spawn(async move {
                    follow(&context, &disk, &store, &volume, &wake).await;
                    volume
                });
            }
        }
    }
    tasks.shutdown().await;
    Ok(())
}

fn warn_of_strays(disk: &Disk, store: &Store<Replica>) {
    for volume in disk.volumes() {
        if of_volume(store, &volume).is_empty() {
            tracing::warn!(volume.name = %volume, "the disk has data of a volume that no Replica of this node asks for");
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
    disk: &Arc<Disk>,
    store: &Store<Replica>,
    volume: &str,
    wake: &Notify,
) {
    let mut written: HashMap<String, Replica> = HashMap::new();
    loop {
        let replicas = of_volume(store, volume);
        if replicas.is_empty() {
            return;
        }
        let mut pause = LOOK_AGAIN;
        for replica in &replicas {
            let replica = newest(replica.as_ref(), &written);
            match settle(context, disk, &replica).await {
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

/// Takes steps until the replica is as its object asks, and reports it.
async fn settle(
    context: &Arc<Context>,
    disk: &Arc<Disk>,
    replica: &Replica,
) -> Result<Option<Replica>, kube::Error> {
    let api: Api<Replica> = Api::namespaced(context.client.clone(), names::NAMESPACE);
    let wanted = Wanted::read(replica);
    let Ok(volume) = VolumeName::new(&wanted.volume) else {
        let message = format!("{:?} is not a volume's name", wanted.volume);
        return patch_status(&api, replica, &failed(context, &message)).await;
    };
    let size_bytes = u64::try_from(replica.spec.volume_size.bytes()).unwrap_or(0);
    for _ in 0..STEPS_MAX {
        let on_disk = blocking({
            let (disk, volume) = (disk.clone(), volume.clone());
            move || disk.look(&volume)
        })
        .await;
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
        let step = plan(&wanted, &disk.uuid, &on_disk, owner_exists);
        tracing::debug!(replica.name = %wanted.name, ?step, "decided");
        let done = match step {
            Step::Serve => {
                let report = blocking({
                    let (context, disk, volume) = (context.clone(), disk.clone(), volume.clone());
                    let desire = replica.spec.desire_state.clone();
                    move || serving(&context, &disk, &volume, &desire)
                })
                .await;
                return patch_status(&api, replica, &report).await;
            }
            Step::Refuse(why) => return patch_status(&api, replica, &failed(context, &why)).await,
            Step::Release => {
                release(&api, replica).await?;
                return Ok(None);
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
                let (disk, volume) = (disk.clone(), volume.clone());
                blocking(move || disk.remove(&volume)).await
            }
        };
        if let Err(why) = done {
            return patch_status(&api, replica, &failed(context, &why)).await;
        }
    }
    let why = "it does not come to rest: another process changes its folder";
    patch_status(&api, replica, &failed(context, why)).await
}

fn failed(context: &Context, why: &str) -> Value {
    json!({
        "ownerID": context.node,
        "currentState": "error",
        "address": "",
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
        Err(error) => return failed(context, &chain(&error)),
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
        "verified": status.fault.is_empty(),
        "message": cut(&status.fault),
    })
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
