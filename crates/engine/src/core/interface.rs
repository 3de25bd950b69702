//! What the core is told, and what it asks for.

use std::collections::BTreeSet;

use block_core::wire::{self, ReplicaStatus, Reply};
use block_core::{Epoch, ReplicaName};

use super::{CommandId, Expected, Incarnation, JobId, LinkRefusal, MemberIndex};
use crate::control::{Answer, Command, CommandError, Notice, Proposal};
use crate::frontend::FrontendState;
use crate::io::{Outcome, Request, RequestId};

/// A replica and where it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberAddress {
    pub name: ReplicaName,
    pub address: String,
}

/// What an engine is told at its start.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    pub volume: String,
    pub epoch: Epoch,
    pub size_bytes: u64,
    /// The recorded in-sync set and its generation.
    pub in_sync: Vec<MemberAddress>,
    /// Members of which the caller knows that they will hardly answer, such as those of a node that died. They are tried,
    /// and nobody waits for them.
    pub written_off: BTreeSet<ReplicaName>,
    pub generation: u64,
    /// The volume is new: members that do not exist yet are made.
    pub create: bool,
    /// Has replicas look for blocks of zeroes in what is written: they take no space.
    pub detect_zeroes: bool,
    /// A replica that has not answered a request in this time is left behind, while others live.
    pub job_deadline_us: u64,
    /// How long the members may take to accept the epoch, before those that have are preferred.
    pub open_grace_us: u64,
    /// For how long a member's answer counts as its word that no newer engine is obeyed: the same for all engines
    /// of a volume, for a newer one relies on it.
    pub read_lease_us: u64,
    /// Rebuilds copy no faster than this; 0: no limit.
    pub rebuild_bytes_per_second_max: u64,
    /// The time of day at the engine's start: snapshots carry one.
    pub started_unix_ms: u64,
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    Start,
    Submit(Request),
    /// The member has accepted our epoch on this connection.
    LinkUp {
        member: MemberIndex,
        incarnation: Incarnation,
        facts: ReplicaStatus,
    },
    LinkRefused {
        member: MemberIndex,
        incarnation: Incarnation,
        refusal: LinkRefusal,
    },
    LinkDown {
        member: MemberIndex,
        incarnation: Incarnation,
        reason: String,
    },
    Reply {
        member: MemberIndex,
        incarnation: Incarnation,
        job: JobId,
        reply: Reply,
    },
    Commit {
        generation: u64,
        verdict: CommitVerdict,
    },
    CommitterAttached,
    CommitterLost,
    Command {
        id: CommandId,
        command: Command,
    },
    FrontendChanged(FrontendState),
    Tick,
}

/// What the caller says to a proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitVerdict {
    /// It is recorded, durably.
    Recorded,
    /// It is not recorded, and may be proposed again.
    NotNow(String),
    /// A newer engine owns the volume.
    Fenced(String),
}

/// What is to be done.
#[derive(Debug)]
pub enum Action {
    Connect {
        member: MemberIndex,
        incarnation: Incarnation,
        to: MemberAddress,
        expected: Expected,
        /// Makes an empty replica of this size where there is none.
        create_size_bytes: Option<u64>,
    },
    Disconnect {
        member: MemberIndex,
        reason: String,
    },
    Send {
        member: MemberIndex,
        job: JobId,
        request: wire::Request,
    },
    Complete {
        request: RequestId,
        outcome: Outcome,
    },
    Propose(Proposal),
    OpenFrontend {
        size_bytes: u64,
    },
    ResizeFrontend {
        size_bytes: u64,
    },
    /// Orderly; the front end goes on to submit until it is closed.
    CloseFrontend,
    Answer {
        command: CommandId,
        result: Result<Answer, CommandError>,
    },
    Notify(Notice),
    /// The engine is done. `clean`: every replica knows that it ended in order.
    Exit {
        clean: bool,
    },
}
