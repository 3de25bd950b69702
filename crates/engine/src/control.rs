//! What is said on the control socket.
//!
//! One JSON value per line, both ways. A client sends [`ControlRequest`]s and gets one [`ControlReply`]
//! each, by `id`. After `subscribe` it also gets [`ControlPush::Event`]s. After `attachCommitter` it is the one who
//! records in-sync sets: it gets [`ControlPush::Propose`] and must answer with a `commit` command. The version is
//! in every request; an engine refuses one that it does not speak, and says which it does.

pub mod client;
mod report;
pub mod server;

use block_core::ReplicaName;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::core::MemberAddress;
pub use report::{
    EngineState, EngineStatus, FenceProofReport, MemberReport, ProposalReport, SnapshotReport,
    StatisticsReport, TaskReport,
};

/// The version of these messages. 1: the first.
pub const CONTROL_VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlRequest {
    pub version: u32,
    pub id: u64,
    pub command: Command,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Command {
    Status,
    /// Takes a snapshot of all replicas at one point of the write order.
    Snapshot {
        name: String,
        created_unix_ms: u64,
    },
    /// Marks a snapshot as removed; a purge then merges it away.
    DeleteSnapshot {
        name: String,
    },
    ListSnapshots,
    /// Makes the volume what the snapshot shows; only while the front end is `none`.
    Revert {
        name: String,
    },
    /// Merges removed snapshots away; answered when done.
    Purge,
    Expand {
        size_bytes: u64,
    },
    /// Adds a replica, or brings one back: copies what it lacks and has it recorded. Answered when done.
    Rebuild {
        name: String,
        address: String,
    },
    /// The replica is served at another address than before. A connection that is up goes on; the next one is made there.
    SetAddress {
        name: String,
        address: String,
    },
    /// Leaves a replica behind, in order.
    RemoveReplica {
        name: String,
    },
    /// Rebuilds copy no faster than this; 0: no limit.
    SetRebuildRate {
        bytes_per_second_max: u64,
    },
    /// Tells a standby of the set that the writer works with now.
    Follow {
        generation: u64,
        in_sync: Vec<ReplicaAt>,
    },
    /// Makes a standby the writer: it was recorded as such, with this in-sync set.
    Promote {
        generation: u64,
        in_sync: Vec<ReplicaAt>,
    },
    /// Closes the front end, flushes, and ends the engine.
    Shutdown,
    /// Sends events on this connection from now on.
    Subscribe,
    /// This connection records in-sync sets from now on.
    AttachCommitter,
    /// The committer's answer to a proposal.
    Commit {
        generation: u64,
        verdict: Verdict,
    },
}

/// A replica and where it is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaAt {
    pub name: String,
    pub address: String,
}

/// An in-sync set as a command names it.
pub(crate) fn read_set(in_sync: Vec<ReplicaAt>) -> Result<Vec<MemberAddress>, CommandError> {
    if in_sync.is_empty() {
        return Err(CommandError::new("no replica is in sync"));
    }
    let read = |ReplicaAt { name, address }| match ReplicaName::new(&name) {
        Ok(name) => Ok(MemberAddress { name, address }),
        Err(error) => Err(CommandError::new(format!(
            "{name:?} names no replica: {error}"
        ))),
    };
    in_sync.into_iter().map(read).collect()
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Verdict {
    /// It is recorded, durably.
    Recorded,
    /// Not now: propose it again later.
    NotNow { why: String },
    /// A newer engine owns the volume: stop.
    Fenced { why: String },
}

/// A change of the in-sync set that waits to be recorded. The caller records it if, and only if, the recorded epoch
/// is this one and the recorded generation is the one before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Proposal {
    pub volume: String,
    pub epoch: u64,
    pub generation: u64,
    pub in_sync: Vec<String>,
    /// Where each of `in_sync` is served.
    pub addresses: Vec<String>,
    pub replaces: Vec<String>,
    /// Why members are left behind.
    pub reasons: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    Done,
    Status(Box<EngineStatus>),
    Snapshots(Vec<SnapshotReport>),
}

#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct CommandError {
    pub message: String,
}

impl CommandError {
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlReply {
    pub id: u64,
    pub result: Result<Answer, CommandError>,
}

/// What an engine sends without being asked each time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ControlPush {
    Event(Notice),
    Propose(Proposal),
}

/// One line from the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FromEngine {
    Reply(ControlReply),
    Push(ControlPush),
}

/// Something that happened, for whoever watches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Notice {
    Opened {
        epoch: u64,
    },
    Ready {
        endpoint: String,
    },
    FrontendFailed {
        reason: String,
    },
    /// Users of the device that an engine before this one had get I/O errors: it could not be taken over, and there is a new one.
    DeviceMadeAnew {
        why: String,
    },
    MemberConnected {
        member: String,
    },
    MemberFailed {
        member: String,
        why: String,
    },
    LastMemberLost {
        member: String,
        why: String,
    },
    InSyncChanged {
        generation: u64,
        in_sync: Vec<String>,
    },
    CommitRefused {
        generation: u64,
        why: String,
    },
    RebuildStarted {
        member: String,
    },
    RebuildInterrupted {
        member: String,
        why: String,
    },
    RebuildFinished {
        member: String,
        copied_bytes: u64,
    },
    RebuildFailed {
        member: String,
        why: String,
    },
    Reconciled {
        differing_bytes: u64,
    },
    Fenced {
        why: String,
    },
    /// A standby was written to, and waits to become the writer.
    WantsTakeOver,
}
