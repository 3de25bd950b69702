//! What one volume's decision needs to know of everything else: nodes, disks, settings.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use api_types::condition::{self, ConditionStatus};
use api_types::{InstanceState, ReplicaRole, disk_condition, node_condition};

use super::{count, time};
use crate::identity::{DiskName, NodeName, Timestamp};
use crate::settings::Settings;
use crate::view::{Disk, Node, NodeHealth};

/// The surroundings of every volume.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub nodes: BTreeMap<NodeName, Node>,
    pub settings: Settings,
    /// What `numberOfReplicas: 0` stands for.
    pub replicas_default: usize,
    pub now: Timestamp,
}

/// Reads the cluster. `replicas` and `engines` are those of all volumes: disks are counted from the objects, since what
/// nodes report lags behind. `out_of_service` are the Kubernetes nodes that a person declared powered off.
pub fn cluster<'a>(
    nodes: impl IntoIterator<Item = &'a api_types::Node>,
    replicas: impl IntoIterator<Item = &'a api_types::Replica>,
    engines: impl IntoIterator<Item = &'a api_types::Engine>,
    out_of_service: &BTreeSet<String>,
    settings: &api_types::settings::Settings,
    now: Timestamp,
) -> Cluster {
    use api_types::settings::{DEFAULT_REPLICA_COUNT, DISABLE_SCHEDULING_ON_CORDONED_NODE};
    let keep_off_cordoned = settings.is_on(&DISABLE_SCHEDULING_ON_CORDONED_NODE);
    // This is read for every decision about every volume: nearly always nothing is rebuilt, and replicas are only counted.
    let rebuilt: HashSet<&str> = engines
        .into_iter()
        .filter(|engine| engine.spec.desire_state == InstanceState::Running)
        .flat_map(|engine| &engine.spec.replica_roles)
        .filter(|(_, role)| **role == ReplicaRole::Rebuild)
        .map(|(name, _)| name.as_str())
        .collect();
    let mut scheduled = BTreeMap::<&str, u64>::new();
    let mut rebuilds = BTreeMap::<&str, u32>::new();
    for replica in replicas {
        let bytes = scheduled.entry(&replica.spec.disk_id).or_default();
        *bytes = bytes.saturating_add(count(replica.spec.volume_size.bytes()));
        let name = replica.metadata.name.as_deref().unwrap_or_default();
        if rebuilt.contains(name) {
            *rebuilds.entry(&replica.spec.node_id).or_default() += 1;
        }
    }
    let nodes = nodes
        .into_iter()
        .filter_map(|object| {
            let name = object.metadata.name.as_deref()?;
            let is_off = out_of_service.contains(name);
            let mut node = node(object, is_off, keep_off_cordoned, &scheduled, now);
            node.rebuilds = rebuilds.get(name).copied().unwrap_or_default();
            Some((NodeName::from(name), node))
        })
        .collect();
    Cluster {
        nodes,
        settings: super::settings(settings),
        replicas_default: usize::try_from(settings.whole_number(&DEFAULT_REPLICA_COUNT))
            .unwrap_or(1),
        now,
    }
}

fn node(
    object: &api_types::Node,
    is_out_of_service: bool,
    keep_off_cordoned: bool,
    scheduled: &BTreeMap<&str, u64>,
    now: Timestamp,
) -> Node {
    let default = api_types::NodeStatus::default();
    let status = object.status.as_ref().unwrap_or(&default);
    let is_cordoned =
        condition::find(&status.conditions, node_condition::SCHEDULABLE).is_some_and(|condition| {
            condition.status == ConditionStatus::False
                && condition.reason == "KubernetesNodeCordoned"
        });
    Node {
        health: health(&status.conditions, is_out_of_service, now),
        allow_scheduling: object.spec.allow_scheduling
            && object.metadata.deletion_timestamp.is_none()
            && !(keep_off_cordoned && is_cordoned),
        eviction_requested: object.spec.eviction_requested || status.auto_evicting,
        zone: (!status.zone.is_empty()).then(|| status.zone.clone()),
        tags: object.spec.tags.iter().cloned().collect(),
        disks: disks(object, status, scheduled),
        rebuilds: 0,
    }
}

/// A node that answers is believed over a taint that somebody forgot to remove.
fn health(
    conditions: &[api_types::Condition],
    is_out_of_service: bool,
    now: Timestamp,
) -> NodeHealth {
    let ready = condition::find(conditions, node_condition::READY);
    match ready {
        Some(ready) if ready.status == ConditionStatus::True => NodeHealth::Ready,
        _ if is_out_of_service => NodeHealth::OutOfService,
        // Nobody has judged it yet, so it has not been lost for any length of time.
        found => NodeHealth::Lost {
            since: found
                .and_then(|condition| time(&condition.last_transition_time))
                .unwrap_or(now),
        },
    }
}

/// The names under which the node reports a disk. A disk that comes back under another name has two for a while: the one that the
/// spec lists is its name now, and what the other one says of it is over.
fn names<'a>(
    object: &'a api_types::Node,
    status: &'a api_types::NodeStatus,
) -> BTreeMap<&'a str, (&'a String, &'a api_types::DiskStatus)> {
    let rank = |(name, disk): (&String, &api_types::DiskStatus)| {
        let is_listed = object.spec.disks.contains_key(name);
        (is_listed, is_ready(disk))
    };
    let mut names = BTreeMap::new();
    for entry in &status.disk_status {
        let uuid = entry.1.disk_uuid.as_str();
        let known = names.entry(uuid).or_insert(entry);
        if rank(entry) > rank(*known) {
            *known = entry;
        }
    }
    names.remove("");
    names
}

fn is_ready(disk: &api_types::DiskStatus) -> bool {
    condition::is_true(&disk.conditions, disk_condition::READY)
}

/// A disk exists as long as its node reports it. One that a person has taken out of the spec gets nothing new, and what is on it
/// leaves.
fn disks(
    object: &api_types::Node,
    status: &api_types::NodeStatus,
    scheduled: &BTreeMap<&str, u64>,
) -> BTreeMap<DiskName, Disk> {
    names(object, status)
        .into_iter()
        .map(|(uuid, (name, disk))| {
            let spec = object.spec.disks.get(name);
            let view = Disk {
                name: name.clone(),
                listed: spec.is_some(),
                ready: is_ready(disk),
                allow_scheduling: spec.is_some_and(|spec| spec.allow_scheduling),
                eviction_requested: spec.is_none_or(|spec| spec.eviction_requested),
                reserved_bytes: spec.map_or(0, |spec| count(spec.storage_reserved)),
                maximum_bytes: count(disk.storage_maximum),
                available_bytes: count(disk.storage_available),
                scheduled_bytes: scheduled.get(uuid).copied().unwrap_or_default(),
                tags: spec.map_or_else(BTreeSet::new, |spec| spec.tags.iter().cloned().collect()),
            };
            (DiskName::from(uuid), view)
        })
        .collect()
}

/// Where the disk with this identity is mounted on its node.
#[must_use]
pub fn disk_path(node: &api_types::Node, disk: &DiskName) -> Option<String> {
    let (name, status) = names(node, node.status.as_ref()?).remove(disk.as_str())?;
    if !status.disk_path.is_empty() {
        return Some(status.disk_path.clone());
    }
    Some(node.spec.disks.get(name)?.path.clone())
}
