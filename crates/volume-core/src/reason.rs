//! Why a plan is what it is: one typed value per fact, one sentence each.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use crate::epoch::{CommitInSyncError, TakeOverError};
use crate::identity::{Epoch, NodeName, ReplicaName, listed};
use crate::placement::{Place, PlacementFailure};
use crate::salvage::SalvageRefusal;

/// Shown as conditions and events, and by `why` and `explain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    CreatingReplica {
        replica: ReplicaName,
        place: Place,
    },
    Unschedulable {
        failure: PlacementFailure,
    },
    NodeNotReady {
        node: NodeName,
    },
    StrictLocalElsewhere {
        wanted: NodeName,
        replica: ReplicaName,
        node: NodeName,
    },
    NoReplicaAvailable {
        members: BTreeSet<ReplicaName>,
    },
    ReplicasStarting {
        replicas: BTreeSet<ReplicaName>,
    },
    StartingEngine {
        node: NodeName,
        epoch: Epoch,
        replicas: BTreeSet<ReplicaName>,
    },
    EngineStarting {
        node: NodeName,
        epoch: Epoch,
    },
    OpeningFrontend {
        node: NodeName,
    },
    EngineFailed {
        node: NodeName,
        epoch: Epoch,
        message: String,
    },
    RestartBackoff {
        attempts: u32,
        wait: Duration,
    },
    ClosingFrontend {
        node: NodeName,
    },
    StoppingEngine {
        node: NodeName,
        epoch: Epoch,
    },
    StoppingReplicas {
        replicas: BTreeSet<ReplicaName>,
    },
    EngineUnreachable {
        node: NodeName,
        epoch: Epoch,
    },
    Fencing {
        node: NodeName,
        epoch: Epoch,
        waiting_for: BTreeSet<ReplicaName>,
    },
    Fenced {
        node: NodeName,
        epoch: Epoch,
        replicas: BTreeSet<ReplicaName>,
    },
    FenceImpossible {
        node: NodeName,
    },
    InSyncChanged {
        left: BTreeSet<ReplicaName>,
        joined: BTreeSet<ReplicaName>,
    },
    CommitRefused {
        error: CommitInSyncError,
    },
    StandbyStarting {
        node: NodeName,
        epoch: Epoch,
    },
    TookOver {
        node: NodeName,
        epoch: Epoch,
    },
    TakeOverRefused {
        error: TakeOverError,
    },
    HandedOver {
        node: NodeName,
    },
    MigrationNeedsWriter {
        node: NodeName,
    },
    ReplicaFailed {
        replica: ReplicaName,
        message: String,
    },
    Rebuilding {
        replica: ReplicaName,
    },
    RebuildQueued {
        replica: ReplicaName,
        node: NodeName,
    },
    WaitingForFailedReplica {
        replica: ReplicaName,
        wait: Duration,
    },
    Evicting {
        replica: ReplicaName,
        place: Place,
    },
    RemovingReplica {
        replica: ReplicaName,
        why: Removal,
    },
    Salvaged {
        replicas: BTreeSet<ReplicaName>,
        attempt: u32,
    },
    SalvageRefused {
        refusal: SalvageRefusal,
    },
    Faulted,
    Expanding {
        from_bytes: u64,
        to_bytes: u64,
    },
    ExpansionBlocked {
        place: Place,
        growth_bytes: u64,
    },
    ShrinkRefused {
        from_bytes: u64,
        to_bytes: u64,
    },
    Cloning {
        percent: u8,
    },
    CloneFailed {
        message: String,
    },
    Restoring {
        percent: u8,
    },
    RestoreFailed {
        message: String,
    },
    Deleting,
    DiskKeepsReplica {
        replica: ReplicaName,
        node: NodeName,
        /// As the node's object calls it.
        disk: String,
    },
}

/// Why a replica is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    Evicted,
    Surplus,
    Replaced,
    Broken,
    PlaceGone,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::CreatingReplica { replica, place } => {
                write!(f, "replica {replica} is created on {place}")
            }
            Reason::Unschedulable { failure } => {
                write!(f, "no disk can take another replica: {failure}")
            }
            Reason::NodeNotReady { node } => {
                write!(
                    f,
                    "node {node} is not ready; the engine starts when it is back"
                )
            }
            Reason::StrictLocalElsewhere {
                wanted,
                replica,
                node,
            } => write!(
                f,
                "data locality is strict-local and replica {replica} is on node {node}, so the volume cannot attach to {wanted}"
            ),
            Reason::NoReplicaAvailable { members } => {
                write!(
                    f,
                    "none of the in-sync replicas can be used now: {}",
                    listed(members)
                )
            }
            Reason::ReplicasStarting { replicas } => {
                write!(f, "waiting for replicas to start: {}", listed(replicas))
            }
            Reason::StartingEngine {
                node,
                epoch,
                replicas,
            } => {
                write!(
                    f,
                    "engine epoch {epoch} starts on node {node} with replicas {}",
                    listed(replicas)
                )
            }
            Reason::EngineStarting { node, epoch } => {
                write!(f, "engine epoch {epoch} is starting on node {node}")
            }
            Reason::OpeningFrontend { node } => {
                write!(f, "the block device is being opened on node {node}")
            }
            Reason::EngineFailed {
                node,
                epoch,
                message,
            } => {
                write!(f, "engine epoch {epoch} on node {node} failed: {message}")
            }
            Reason::RestartBackoff { attempts, wait } => write!(
                f,
                "the engine failed {attempts} times in a row; next start in {} s",
                wait.as_millis().div_ceil(1000)
            ),
            Reason::ClosingFrontend { node } => {
                write!(f, "the block device is being closed on node {node}")
            }
            Reason::StoppingEngine { node, epoch } => {
                write!(f, "engine epoch {epoch} is stopping on node {node}")
            }
            Reason::StoppingReplicas { replicas } => {
                write!(f, "replicas are stopping: {}", listed(replicas))
            }
            Reason::EngineUnreachable { node, epoch } => {
                write!(
                    f,
                    "node {node} does not answer, so engine epoch {epoch} may still be running there"
                )
            }
            Reason::Fencing {
                node,
                epoch,
                waiting_for,
            } => write!(
                f,
                "the engine on node {node} is superseded by epoch {epoch}; waiting until it is accepted by {}",
                listed(waiting_for)
            ),
            Reason::Fenced {
                node,
                epoch,
                replicas,
            } => write!(
                f,
                "nothing on node {node} can write any more: epoch {epoch} is accepted by {}",
                listed(replicas)
            ),
            Reason::FenceImpossible { node } => write!(
                f,
                "no in-sync replica outside node {node} can be reached, so its engine cannot be fenced"
            ),
            Reason::InSyncChanged { left, joined } => {
                write!(
                    f,
                    "in-sync set committed: left {}, joined {}",
                    listed(left),
                    listed(joined)
                )
            }
            Reason::CommitRefused { error } => {
                write!(f, "the proposed in-sync set was refused: {error}")
            }
            Reason::StandbyStarting { node, epoch } => {
                write!(
                    f,
                    "migration: standby engine epoch {epoch} starts on node {node}"
                )
            }
            Reason::TookOver { node, epoch } => {
                write!(
                    f,
                    "migration: node {node} is the writer from epoch {epoch} on"
                )
            }
            Reason::TakeOverRefused { error } => {
                write!(f, "migration: the hand-over was refused: {error}")
            }
            Reason::HandedOver { node } => {
                write!(
                    f,
                    "migration: node {node} writes already; waiting until the migration is confirmed"
                )
            }
            Reason::MigrationNeedsWriter { node } => {
                write!(
                    f,
                    "migration to node {node} waits until the volume is attached"
                )
            }
            Reason::ReplicaFailed { replica, message } => {
                write!(f, "replica {replica} failed: {message}")
            }
            Reason::Rebuilding { replica } => write!(f, "replica {replica} is being rebuilt"),
            Reason::RebuildQueued { replica, node } => {
                write!(
                    f,
                    "the rebuild of replica {replica} waits for others to finish on node {node}"
                )
            }
            Reason::WaitingForFailedReplica { replica, wait } => write!(
                f,
                "replica {replica} may come back; another takes its place in {} s",
                wait.as_millis().div_ceil(1000)
            ),
            Reason::Evicting { replica, place } => {
                write!(
                    f,
                    "replica {replica} leaves {place} as soon as another has taken its place"
                )
            }
            Reason::RemovingReplica { replica, why } => {
                let why = match why {
                    Removal::Evicted => "its disk or node is being emptied",
                    Removal::Surplus => "there are more replicas than wanted",
                    Removal::Replaced => "others have taken its place",
                    Removal::Broken => "it failed, and another is made in its place",
                    Removal::PlaceGone => "its disk no longer exists",
                };
                write!(f, "replica {replica} is removed: {why}")
            }
            Reason::Salvaged { replicas, attempt } => {
                write!(f, "salvage attempt {attempt} uses {}", listed(replicas))
            }
            Reason::SalvageRefused { refusal } => write!(f, "not salvaged: {refusal}"),
            Reason::Faulted => f.write_str("every in-sync replica has failed"),
            Reason::Expanding {
                from_bytes,
                to_bytes,
            } => {
                write!(f, "expanding from {from_bytes} to {to_bytes} bytes")
            }
            Reason::ExpansionBlocked {
                place,
                growth_bytes,
            } => {
                write!(
                    f,
                    "expansion waits: {place} has no room for {growth_bytes} more bytes"
                )
            }
            Reason::ShrinkRefused {
                from_bytes,
                to_bytes,
            } => {
                write!(
                    f,
                    "a volume cannot shrink from {from_bytes} to {to_bytes} bytes"
                )
            }
            Reason::Cloning { percent } => write!(f, "cloning, {percent} % done"),
            Reason::CloneFailed { message } => write!(f, "the clone failed: {message}"),
            Reason::Restoring { percent } => write!(f, "restoring, {percent} % done"),
            Reason::RestoreFailed { message } => write!(f, "the restore failed: {message}"),
            Reason::Deleting => f.write_str("the volume is being deleted"),
            Reason::DiskKeepsReplica {
                replica,
                node,
                disk,
            } => write!(
                f,
                "replica {replica} cannot be deleted while disk {disk} of node {node} is not served: mount the disk again, or \
                 give it up with `lariat disk remove {node} {disk} --dead`"
            ),
        }
    }
}
