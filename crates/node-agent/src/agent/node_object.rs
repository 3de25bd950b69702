//! `nodes.longhorn.io`: this node's object, and the part of its status that is about disks.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use api_types::{
    Condition, ConditionStatus, DiskSpec, Leftover, Node, NodeSpec, Replica, condition,
    disk_condition, names,
};
use futures::StreamExt as _;
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::disks::{DEFAULT_DISK, Disks, Figures, Place, Slot};
use super::objects::patch_status;
use super::replicas::Listed;
use super::strays::Strays;
use super::{AgentError, Context, stopped};

/// How often the disks' figures are taken.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Keeps the object, and serves the disks that it names, until told to stop.
pub(super) async fn run(
    context: Arc<Context>,
    disks: Arc<Disks>,
    mut replicas: watch::Receiver<Listed>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), AgentError> {
    let api: Api<Node> = Api::namespaced(context.client.clone(), names::NAMESPACE);
    let changes = watcher::watch_object(api.clone(), &context.node).default_backoff();
    let mut changes = pin!(changes);
    let mut every = tokio::time::interval(LOOK_EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut strays = Strays::default();
    let mut leftovers = Vec::new();
    let mut node: Option<Node> = None;
    loop {
        tokio::select! {
            _ = every.tick() => {
                leftovers = strays.look(&context, node.as_ref().and_then(asks_to_put_away)).await;
                context.metrics.leftovers(leftovers.len());
            }
            Ok(()) = replicas.changed() => {}
            change = changes.next() => match change {
                Some(Ok(seen)) => node = seen,
                Some(Err(error)) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "watching the node's object");
                    continue;
                }
                None => return Err(AgentError::Task("the watch of the node's object")),
            },
            () = stopped(&mut stop) => return Ok(()),
        }
        let listed = replicas.borrow_and_update().clone();
        let keeping = keep(&api, &context, &disks, &listed, node.as_ref(), &leftovers);
        match keeping.await {
            Ok(Some(kept)) => node = Some(kept),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(node.name = %context.node, error = &error as &dyn std::error::Error, "cannot keep the node's object");
            }
        }
    }
}

/// A time that cannot be read asks for nothing.
fn asks_to_put_away(node: &Node) -> Option<jiff::Timestamp> {
    let text = node.annotations().get(names::annotation::PUT_AWAY)?;
    text.parse().ok()
}

/// Gives the object as it is after a write of ours.
async fn keep(
    api: &Api<Node>,
    context: &Context,
    disks: &Arc<Disks>,
    replicas: &Listed,
    node: Option<&Node>,
    leftovers: &[Leftover],
) -> Result<Option<Node>, kube::Error> {
    let Some(node) = node else {
        // The watch has not told of it, which it may just have been too slow for.
        return match api.get_opt(&context.node).await? {
            Some(node) => Ok(Some(node)),
            None => {
                let node = first_object(context);
                api.create(&PostParams::default(), &node).await.map(Some)
            }
        };
    };
    let scheduled = replicas
        .as_ref()
        .map(|store| Scheduled::read(&store.state(), disks));
    let settled = tokio::task::spawn_blocking({
        let (disks, node, used) = (disks.clone(), node.clone(), scheduled.clone());
        // Before the replicas were listed, any disk may be in use.
        move || {
            disks.settle(&node, |uuid| {
                used.as_ref()
                    .is_none_or(|used| used.by_disk.contains_key(uuid))
            });
        }
    });
    if let Err(error) = settled.await {
        std::panic::resume_unwind(error.into_panic());
    }
    // Before that, what they take is not known either: better no figure than a wrong one.
    let Some(scheduled) = scheduled else {
        return Ok(None);
    };
    let now = jiff::Timestamp::now().to_string();
    let disk_status: BTreeMap<String, Value> = disks
        .slots()
        .iter()
        .map(|(name, slot)| {
            (
                name.clone(),
                disk_status(node, name, slot, &scheduled, &now),
            )
        })
        .collect();
    let wanted = json!({
        "agent": {
            "version": env!("CARGO_PKG_VERSION"),
            "leftovers": leftovers,
        },
        "diskStatus": disk_status,
        "region": context.region.clone().unwrap_or_default(),
        "zone": context.zone.clone().unwrap_or_default(),
    });
    patch_status(api, node, &wanted).await
}

fn first_object(context: &Context) -> Node {
    let disk = DiskSpec {
        path: context.layout.disk().display().to_string(),
        allow_scheduling: true,
        ..DiskSpec::default()
    };
    let mut node = Node::new(
        &context.node,
        NodeSpec {
            name: context.node.clone(),
            allow_scheduling: true,
            disks: [(DEFAULT_DISK.to_owned(), disk)].into(),
            ..NodeSpec::default()
        },
    );
    node.metadata.namespace = Some(names::NAMESPACE.to_owned());
    node
}

/// The bytes promised to each replica, by the identity of its disk.
#[derive(Clone, Default)]
pub(super) struct Scheduled {
    pub by_disk: BTreeMap<String, BTreeMap<String, i64>>,
}

impl Scheduled {
    pub fn read(replicas: &[Arc<Replica>], disks: &Disks) -> Self {
        let mut by_disk: BTreeMap<String, BTreeMap<String, i64>> = BTreeMap::new();
        for replica in replicas {
            let mut uuid = replica.spec.disk_id.clone();
            if let Place::Here { disk, .. } = disks.place(&uuid) {
                uuid.clone_from(&disk.uuid);
            }
            by_disk
                .entry(uuid)
                .or_default()
                .insert(replica.name_any(), replica.spec.volume_size.bytes());
        }
        Self { by_disk }
    }
}

fn disk_status(node: &Node, name: &str, slot: &Slot, scheduled: &Scheduled, now: &str) -> Value {
    let previous = node
        .status
        .as_ref()
        .and_then(|status| status.disk_status.get(name))
        .cloned()
        .unwrap_or_default();
    let spec = node.spec.disks.get(name);
    let mut conditions: Vec<Condition> = previous.conditions;
    let mut set = |kind: &str, holds: bool, reason: &str, message: &str| {
        let status = ConditionStatus::from(holds);
        condition::set(&mut conditions, kind, status, reason, message, now);
    };
    let seen = look(slot, &previous.disk_path, spec);
    set(
        disk_condition::READY,
        seen.trouble.is_none(),
        seen.reason,
        seen.trouble.as_deref().unwrap_or_default(),
    );
    let allowed = spec.is_some_and(|disk| disk.allow_scheduling) && node.spec.allow_scheduling;
    let reserved = spec.map_or(0, |disk| disk.storage_reserved);
    let room = seen
        .figures
        .is_some_and(|figures| figures.available > reserved);
    let (schedulable, reason, message) = match (&seen.trouble, spec.is_some(), allowed, room) {
        (Some(trouble), _, _, _) => (false, "DiskNotReady", trouble.as_str()),
        (None, false, _, _) => (
            false,
            "SchedulingDisabled",
            "the disk was removed from the node, and is served for the replicas that are still on it",
        ),
        (None, true, false, _) => (
            false,
            "SchedulingDisabled",
            "scheduling to this disk is turned off",
        ),
        (None, true, true, false) => (false, "DiskPressure", "what is free is reserved"),
        (None, true, true, true) => (true, "", ""),
    };
    set(disk_condition::SCHEDULABLE, schedulable, reason, message);
    let replicas = scheduled
        .by_disk
        .get(&seen.uuid)
        .cloned()
        .unwrap_or_default();
    json!({
        "conditions": conditions,
        "storageAvailable": seen.figures.map_or(0, |figures| figures.available),
        "storageMaximum": seen.figures.map_or(0, |figures| figures.maximum),
        "storageScheduled": replicas.values().sum::<i64>(),
        "scheduledReplica": replicas,
        "scheduledBackingImage": {},
        "diskUUID": seen.uuid,
        "diskName": name,
        "diskPath": seen.path,
        "diskType": "filesystem",
        "diskDriver": "",
        "filesystemType": "",
        "instanceManagerName": "",
    })
}

/// What a look at a disk gave.
struct Seen {
    uuid: String,
    path: String,
    figures: Option<Figures>,
    /// Why it is not ready, and the word for it.
    trouble: Option<String>,
    reason: &'static str,
}

fn look(slot: &Slot, reported_path: &str, spec: Option<&DiskSpec>) -> Seen {
    match slot {
        Slot::Open { disk, trouble, .. } => {
            let path = disk.path.display().to_string();
            let (figures, failure) = match disk.figures() {
                Ok(figures) => (Some(figures), None),
                Err(error) => (None, Some(format!("{path} cannot be used: {error}"))),
            };
            let trouble = trouble.clone().or(failure);
            let reason = if trouble.is_some() {
                "DiskPressure"
            } else {
                ""
            };
            let uuid = disk.uuid.clone();
            Seen {
                uuid,
                path,
                figures,
                trouble,
                reason,
            }
        }
        Slot::Refused {
            uuid, reason, why, ..
        } => Seen {
            uuid: uuid.clone(),
            path: spec.map_or(reported_path, |spec| &spec.path).to_owned(),
            figures: None,
            trouble: Some(why.clone()),
            reason,
        },
    }
}
