//! What should be: the output of [`crate::decide()`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::epoch::{FenceProof, InSyncRecord};
use crate::identity::{
    DiskName, EngineName, Epoch, NodeName, ReplicaName, SnapshotName, Timestamp, VolumeName,
};
use crate::placement::PlacementFailure;
use crate::reason::Reason;
use crate::view::VolumeView;

/// The whole desired state. Objects that are not in it should not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePlan {
    pub status: VolumeStatus,
    pub engines: BTreeMap<EngineName, EngineSpec>,
    pub replicas: BTreeMap<ReplicaName, ReplicaSpec>,
    pub reasons: Vec<Reason>,
    /// Decide again after this long even if nothing is reported.
    pub recheck_after: Option<Duration>,
}

/// The fields of `Volume.status` that the volume controller decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeStatus {
    pub state: VolumeState,
    pub robustness: Robustness,
    /// Where the engine runs, or may still run.
    pub current_node: Option<NodeName>,
    pub current_migration_node: Option<NodeName>,
    pub record: InSyncRecord,
    pub fence_proof: Option<FenceProof>,
    /// Replicas ever made; names are counted with it.
    pub replicas_created: u64,
    /// The size that the replicas really have; 0 until known.
    pub size_bytes: u64,
    pub expansion_required: bool,
    pub restore: RestoreState,
    pub clone: CloneState,
    pub salvage_attempts: u32,
    pub restarts: Restarts,
    pub running_since: Option<Timestamp>,
    pub last_degraded_at: Option<Timestamp>,
    /// The device under mounts was replaced: pods must be restarted to mount again.
    pub remount_requested_at: Option<Timestamp>,
    /// Why the `Scheduled` condition is false.
    pub unschedulable: Option<PlacementFailure>,
}

/// ```text
/// creating ─▶ detached ─▶ attaching ─▶ attached ─▶ detaching ─▶ detached
///                 any ─▶ deleting
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VolumeState {
    #[default]
    Creating,
    Detached,
    Attaching,
    Attached,
    Detaching,
    Deleting,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Robustness {
    Healthy,
    Degraded,
    Faulted,
    #[default]
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RestoreState {
    #[default]
    NotNeeded,
    Required,
    Completed,
    Failed {
        message: String,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CloneState {
    #[default]
    NotNeeded,
    Initiated,
    /// `copy-completed-awaiting-healthy`: from here on a workload may interrupt it.
    CopyCompletedAwaitingHealthy,
    Completed,
    Failed {
        message: String,
    },
}

/// Engine starts that failed in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restarts {
    pub count: u32,
    pub last_at: Option<Timestamp>,
}

/// `Engine.spec`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSpec {
    pub node: NodeName,
    pub epoch: Epoch,
    pub role: EngineRole,
    pub desired: EngineDesired,
    /// The committed record as the engine should know it.
    pub record: InSyncRecord,
    pub replicas: BTreeMap<ReplicaName, ReplicaRole>,
    pub size_bytes: u64,
    pub job: Option<Job>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineRole {
    /// May write, as long as its epoch is the record's.
    Writer,
    /// Migration's other engine: open and readable; its first write makes it ask to take over.
    Standby,
    /// Migration's source after the target has taken over: its device stays until the migration is
    /// confirmed, but nothing can be written through it.
    Former,
}

/// A running engine gets or loses its front end by a restart; one that stops closes it by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineDesired {
    Running { frontend: bool },
    Stopped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplicaRole {
    InSync,
    Rebuild,
}

/// Work that an engine does besides serving I/O.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    CloneFrom {
        volume: VolumeName,
        snapshot: SnapshotName,
    },
    RestoreFrom {
        backup: String,
    },
}

/// `Replica.spec`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSpec {
    pub node: NodeName,
    pub disk: DiskName,
    pub size_bytes: u64,
    /// The replica's agent must make it accept at least this epoch: this is how a lost engine is
    /// fenced before any other starts.
    pub epoch: Epoch,
    pub desired: ReplicaDesired,
    pub failed_at: Option<Timestamp>,
    /// When it last joined the in-sync set; none while it has never been in sync.
    pub healthy_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplicaDesired {
    Running,
    Stopped,
}

/// One write that the shell has to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    CreateReplica(ReplicaName),
    UpdateReplica(ReplicaName),
    /// Written before engines, with a compare-and-swap: an engine must not start with an epoch that
    /// the record does not have.
    WriteStatus,
    CreateEngine(EngineName),
    UpdateEngine(EngineName),
    DeleteEngine(EngineName),
    DeleteReplica(ReplicaName),
}

impl VolumePlan {
    /// The writes that turn `view` into this plan, in the order in which they must be made. A crash
    /// between any two of them leaves a state from which the next decision goes on.
    pub fn changes(&self, view: &VolumeView) -> Vec<Change> {
        let mut changes = Vec::new();
        for (name, spec) in &self.replicas {
            match view.replicas.get(name) {
                None => changes.push(Change::CreateReplica(name.clone())),
                Some(old) if old.spec != *spec => changes.push(Change::UpdateReplica(name.clone())),
                Some(_) => {}
            }
        }
        if self.status != view.status {
            changes.push(Change::WriteStatus);
        }
        for (name, spec) in &self.engines {
            match view.engines.get(name) {
                None => changes.push(Change::CreateEngine(name.clone())),
                Some(old) if old.spec != *spec => changes.push(Change::UpdateEngine(name.clone())),
                Some(_) => {}
            }
        }
        let engines_gone = view
            .engines
            .keys()
            .filter(|name| !self.engines.contains_key(*name));
        changes.extend(engines_gone.cloned().map(Change::DeleteEngine));
        let replicas_gone = view
            .replicas
            .keys()
            .filter(|name| !self.replicas.contains_key(*name));
        changes.extend(replicas_gone.cloned().map(Change::DeleteReplica));
        changes
    }

    /// The nodes on which some engine may be running with an open front end.
    pub fn serving_nodes(&self) -> BTreeSet<&NodeName> {
        let open = |spec: &&EngineSpec| spec.desired == EngineDesired::Running { frontend: true };
        self.engines
            .values()
            .filter(open)
            .map(|spec| &spec.node)
            .collect()
    }
}

impl VolumeStatus {
    /// The node from which nothing can be written any more, so that its Kubernetes attachment may be
    /// released at once. None when the volume has been brought up there again since.
    pub fn fenced_node(&self) -> Option<&NodeName> {
        let node = &self.fence_proof.as_ref()?.node;
        (self.current_node.as_ref() != Some(node)).then_some(node)
    }
}

impl fmt::Display for VolumeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VolumeState::Creating => "creating",
            VolumeState::Detached => "detached",
            VolumeState::Attaching => "attaching",
            VolumeState::Attached => "attached",
            VolumeState::Detaching => "detaching",
            VolumeState::Deleting => "deleting",
        })
    }
}

impl fmt::Display for Robustness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Robustness::Healthy => "healthy",
            Robustness::Degraded => "degraded",
            Robustness::Faulted => "faulted",
            Robustness::Unknown => "unknown",
        })
    }
}
