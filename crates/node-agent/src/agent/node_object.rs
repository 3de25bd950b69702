//! `nodes.longhorn.io`: this node's object, and the part of its status that is about disks.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api_types::{
    Condition, ConditionStatus, DiskSpec, Leftover, Node, NodeSpec, condition, disk_condition,
    names,
};
use kube::Api;
use kube::api::PostParams;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::objects::patch_status;
use super::replicas::ReplicaStore;
use super::strays::Strays;
use super::{AgentError, Context};

/// The name of the disk that a node has unless people say otherwise.
pub const DEFAULT_DISK: &str = "default";

/// How often the disk's figures are taken.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The identity of a disk, kept on the disk: it moves with it.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DiskIdentity {
    disk_uuid: String,
}

/// Reads the identity of the disk, or gives it one.
pub fn disk_uuid(path: &Path) -> io::Result<String> {
    match std::fs::read(path) {
        Ok(text) => {
            let identity: DiskIdentity = serde_json::from_slice(&text)?;
            Ok(identity.disk_uuid)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let disk_uuid = uuid::Uuid::new_v4().to_string();
            let text = serde_json::to_string(&DiskIdentity {
                disk_uuid: disk_uuid.clone(),
            })?;
            super::write_durably(path, &text)?;
            Ok(disk_uuid)
        }
        Err(error) => Err(error),
    }
}

/// Free and total bytes of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Figures {
    available: i64,
    maximum: i64,
}

fn figures(path: &Path) -> io::Result<Figures> {
    let stat = rustix::fs::statvfs(path)?;
    let bytes =
        |blocks: u64| i64::try_from(blocks.saturating_mul(stat.f_frsize)).unwrap_or(i64::MAX);
    // Coarse, so that a node at rest writes nothing: others on the same disk change it all the time.
    const STEP: i64 = 16 << 20;
    Ok(Figures {
        available: bytes(stat.f_bavail) / STEP * STEP,
        maximum: bytes(stat.f_blocks),
    })
}

/// Keeps the object until told to stop.
pub(super) async fn run(
    context: Arc<Context>,
    disk_uuid: String,
    replicas: ReplicaStore,
    mut stop: watch::Receiver<bool>,
) -> Result<(), AgentError> {
    let api: Api<Node> = Api::namespaced(context.client.clone(), names::NAMESPACE);
    let mut every = tokio::time::interval(LOOK_EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut strays = Strays::default();
    loop {
        tokio::select! {
            _ = every.tick() => {}
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        }
        let leftovers = strays.look(&context.layout).await;
        if let Err(error) = keep(&api, &context, &disk_uuid, &replicas, &leftovers).await {
            tracing::warn!(node.name = %context.node, error = &error as &dyn std::error::Error, "cannot keep the node's object");
        }
    }
}

async fn keep(
    api: &Api<Node>,
    context: &Context,
    disk_uuid: &str,
    replicas: &ReplicaStore,
    leftovers: &[Leftover],
) -> Result<(), kube::Error> {
    let node = match api.get_opt(&context.node).await? {
        Some(node) => node,
        None => {
            api.create(&PostParams::default(), &first_object(context))
                .await?
        }
    };
    // Before the replicas were listed, what they take is not known: better no figure than a wrong one.
    let Some(store) = replicas.get() else {
        return Ok(());
    };
    let scheduled: BTreeMap<String, i64> = store
        .state()
        .iter()
        .filter_map(|replica| {
            let name = replica.metadata.name.clone()?;
            Some((name, replica.spec.volume_size.bytes()))
        })
        .collect();
    let now = jiff::Timestamp::now().to_string();
    let status = disk_status(context, &node, disk_uuid, &scheduled, &now);
    let wanted = json!({
        "agent": {
            "version": env!("CARGO_PKG_VERSION"),
            "leftovers": leftovers,
        },
        "diskStatus": {DEFAULT_DISK: status},
        "region": context.region.clone().unwrap_or_default(),
        "zone": context.zone.clone().unwrap_or_default(),
    });
    patch_status(api, &node, &wanted).await?;
    Ok(())
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

fn disk_status(
    context: &Context,
    node: &Node,
    disk_uuid: &str,
    scheduled: &BTreeMap<String, i64>,
    now: &str,
) -> Value {
    let previous = node
        .status
        .as_ref()
        .and_then(|status| status.disk_status.get(DEFAULT_DISK));
    let mut conditions: Vec<Condition> =
        previous.map_or_else(Vec::new, |disk| disk.conditions.clone());
    let path = context.layout.disk();
    let (figures, trouble) = match figures(&path) {
        Ok(figures) => (Some(figures), String::new()),
        Err(error) => (None, format!("{} cannot be used: {error}", path.display())),
    };
    let spec = node.spec.disks.get(DEFAULT_DISK);
    let ready = figures.is_some();
    let reason = if ready { "" } else { "DiskPressure" };
    let status = ConditionStatus::from(ready);
    condition::set(
        &mut conditions,
        disk_condition::READY,
        status,
        reason,
        &trouble,
        now,
    );
    let allowed = spec.is_some_and(|disk| disk.allow_scheduling) && node.spec.allow_scheduling;
    let reserved = spec.map_or(0, |disk| disk.storage_reserved);
    let room = figures.is_some_and(|figures| figures.available > reserved);
    let (reason, message) = match (ready, allowed, room) {
        (false, _, _) => ("DiskNotReady", trouble.as_str()),
        (true, false, _) => (
            "SchedulingDisabled",
            "scheduling to this disk is turned off",
        ),
        (true, true, false) => ("DiskPressure", "what is free is reserved"),
        (true, true, true) => ("", ""),
    };
    let schedulable = ConditionStatus::from(ready && allowed && room);
    condition::set(
        &mut conditions,
        disk_condition::SCHEDULABLE,
        schedulable,
        reason,
        message,
        now,
    );
    json!({
        "conditions": conditions,
        "storageAvailable": figures.map_or(0, |figures| figures.available),
        "storageMaximum": figures.map_or(0, |figures| figures.maximum),
        "storageScheduled": scheduled.values().sum::<i64>(),
        "scheduledReplica": scheduled,
        "scheduledBackingImage": {},
        "diskUUID": disk_uuid,
        "diskName": DEFAULT_DISK,
        "diskPath": path.display().to_string(),
        "diskType": "filesystem",
        "diskDriver": "",
        "filesystemType": "",
        "instanceManagerName": "",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_keeps_its_identity() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lariat-disk.json");
        let first = disk_uuid(&path).expect("an identity");
        assert_eq!(disk_uuid(&path).expect("an identity"), first);
        std::fs::write(&path, "torn").expect("a write");
        assert!(disk_uuid(&path).is_err(), "a torn identity is not replaced");
    }
}
