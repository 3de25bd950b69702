//! What is observed of one volume: the input of [`crate::decide()`].

use std::collections::{BTreeMap, BTreeSet};

use crate::epoch::Proposal;
use crate::identity::{
    DiskName, EngineName, Epoch, NodeName, ReplicaName, SnapshotName, Timestamp, VolumeName,
};
use crate::plan::{EngineSpec, ReplicaSpec, VolumeStatus};
use crate::settings::Settings;

/// Everything a decision about one volume may look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeView {
    pub volume: Volume,
    /// As last written by the volume controller.
    pub status: VolumeStatus,
    pub engines: BTreeMap<EngineName, Engine>,
    pub replicas: BTreeMap<ReplicaName, Replica>,
    pub nodes: BTreeMap<NodeName, Node>,
    pub settings: Settings,
}

/// What is wanted of the volume: its `spec`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub name: VolumeName,
    pub size_bytes: u64,
    pub replicas_wanted: usize,
    /// `spec.nodeID`.
    pub node: Option<NodeName>,
    /// `spec.migrationNodeID`.
    pub migration_node: Option<NodeName>,
    pub disable_frontend: bool,
    pub data_locality: DataLocality,
    pub node_selector: BTreeSet<String>,
    pub disk_selector: BTreeSet<String>,
    pub node_anti_affinity: AntiAffinity,
    pub zone_anti_affinity: AntiAffinity,
    pub disk_anti_affinity: AntiAffinity,
    pub source: DataSource,
    /// Replicas that a person asked to salvage from, accepting what the others may have had.
    pub salvage_from: BTreeSet<ReplicaName>,
    /// The object has a deletion timestamp.
    pub deleting: bool,
}

impl Volume {
    pub fn new(name: impl Into<VolumeName>, size_bytes: u64, replicas_wanted: usize) -> Self {
        Self {
            name: name.into(),
            size_bytes,
            replicas_wanted,
            node: None,
            migration_node: None,
            disable_frontend: false,
            data_locality: DataLocality::Disabled,
            node_selector: BTreeSet::new(),
            disk_selector: BTreeSet::new(),
            node_anti_affinity: AntiAffinity::AsSettings,
            zone_anti_affinity: AntiAffinity::AsSettings,
            disk_anti_affinity: AntiAffinity::AsSettings,
            source: DataSource::Empty,
            salvage_from: BTreeSet::new(),
            deleting: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataLocality {
    Disabled,
    /// Have one replica beside the engine when possible.
    BestEffort,
    /// Exactly one replica, on the engine's node, always.
    StrictLocal,
}

/// `spec.replica*SoftAntiAffinity` of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AntiAffinity {
    /// `ignored`: as the setting says.
    AsSettings,
    /// `enabled`: sharing is allowed.
    Soft,
    /// `disabled`: sharing is forbidden.
    Hard,
}

impl AntiAffinity {
    pub fn may_share(self, setting: bool) -> bool {
        match self {
            AntiAffinity::AsSettings => setting,
            AntiAffinity::Soft => true,
            AntiAffinity::Hard => false,
        }
    }
}

/// Where a new volume's content comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataSource {
    Empty,
    Clone {
        volume: VolumeName,
        snapshot: SnapshotName,
    },
    Restore {
        backup: String,
    },
}

/// One Engine object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine {
    pub spec: EngineSpec,
    pub observed: EngineObserved,
}

/// What the engine's node last said. Whether to believe it is decided from the node's health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineObserved {
    /// No process was started yet, as far as is known.
    Pending,
    /// There is a process, and it has nothing to say yet.
    Starting,
    Running(EngineRunning),
    Stopped,
    Failed {
        message: String,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineRunning {
    /// The block device or socket, when the front end is open.
    pub endpoint: Option<String>,
    pub modes: BTreeMap<ReplicaName, ReplicaMode>,
    pub size_bytes: u64,
    pub snapshots: BTreeSet<SnapshotName>,
    /// The in-sync set that the engine waits for.
    pub proposal: Option<Proposal>,
    /// A standby engine has been written to and wants to become the writer.
    pub wants_take_over: bool,
    pub job: Option<JobProgress>,
}

/// How the engine uses a replica; Longhorn's RW, WO and ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaMode {
    ReadWrite,
    WriteOnly,
    Error,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobProgress {
    Running { percent: u8 },
    Completed,
    Failed { message: String },
}

/// One Replica object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    pub spec: ReplicaSpec,
    pub observed: ReplicaObserved,
    /// The largest epoch that the replica has stored durably.
    pub accepted: Epoch,
    /// What the replica's own metadata says of its content, once read.
    pub content: Option<ReplicaVersion>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaObserved {
    Pending,
    Stopped,
    Running,
    Failed { message: String },
}

/// A replica's own metadata, enough to tell equal from different and newer from older.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplicaVersion {
    /// The epoch of the last write.
    pub epoch: Epoch,
    /// Grows with every set that its writers told it of.
    pub revision: u64,
    pub size_bytes: u64,
    /// Oldest first.
    pub snapshots: Vec<SnapshotName>,
    /// Digest of the head's index.
    pub digest: u64,
}

/// One node and its disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub health: NodeHealth,
    pub allow_scheduling: bool,
    pub eviction_requested: bool,
    pub zone: Option<String>,
    pub tags: BTreeSet<String>,
    pub disks: BTreeMap<DiskName, Disk>,
    /// Rebuilds running there, over all volumes.
    pub rebuilds: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeHealth {
    Ready,
    /// Its lease has run out.
    Lost {
        since: Timestamp,
    },
    /// A person has said that it is powered off (`node.kubernetes.io/out-of-service`).
    OutOfService,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// What the node's object calls it; it is known by its identity.
    pub name: String,
    /// The node's object names it; one that a person took out of it is reported as long as replicas are on it.
    pub listed: bool,
    pub ready: bool,
    pub allow_scheduling: bool,
    pub eviction_requested: bool,
    pub reserved_bytes: u64,
    pub maximum_bytes: u64,
    pub available_bytes: u64,
    /// The sizes of all Replica objects placed here, of any volume: counted from the objects, because what
    /// the node reports lags behind.
    pub scheduled_bytes: u64,
    pub tags: BTreeSet<String>,
}

impl VolumeView {
    /// Is the node there and answering?
    pub(crate) fn is_ready(&self, node: &NodeName) -> bool {
        self.nodes
            .get(node)
            .is_some_and(|node| node.health == NodeHealth::Ready)
    }

    pub(crate) fn disk(&self, node: &NodeName, disk: &DiskName) -> Option<&Disk> {
        self.nodes.get(node)?.disks.get(disk)
    }

    /// Is the replica's place being emptied?
    pub(crate) fn is_evicting(&self, spec: &ReplicaSpec) -> bool {
        self.nodes
            .get(&spec.node)
            .is_some_and(|node| node.eviction_requested)
            || self
                .disk(&spec.node, &spec.disk)
                .is_some_and(|disk| disk.eviction_requested)
    }

    /// Could a process use this replica's files now?
    pub(crate) fn is_place_ready(&self, spec: &ReplicaSpec) -> bool {
        self.is_ready(&spec.node)
            && self
                .disk(&spec.node, &spec.disk)
                .is_some_and(|disk| disk.ready)
    }

    /// Are the replica's files gone for good, as far as the API knows?
    pub(crate) fn is_place_gone(&self, spec: &ReplicaSpec) -> bool {
        self.disk(&spec.node, &spec.disk).is_none()
    }
}
