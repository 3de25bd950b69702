//! The engine's rules, without sockets, files, threads or clock.
//!
//! The shell turns everything that happens into an [`Event`] and carries out the [`Action`]s that
//! [`EngineCore::apply`] answers with; time is an argument. So the same code runs under a volume and, with a
//! seed, under the simulation in `tests/simulation.rs`.
//!
//! What holds at all times:
//! - A write is answered only when every member of the in-sync set has it. While a change of
//!   the set is proposed, *both* sets count: whichever one the caller has recorded, it has the write.
//! - Two writes of which blocks overlap are never under way together, and a read waits for a write
//!   that overlaps it; so replies may come in any order and replicas still agree.
//! - A read is answered only while no newer engine can have opened the volume; see `lease`.
//! - A member that misses a write is never used again until it was rebuilt. The last one is different: nothing
//!   can replace it, so it is waited for, and what is not answered yet is sent to it again.

mod address;
mod closing;
mod data;
mod deadlines;
mod id_map;
mod identity;
mod interface;
mod lease;
mod locks;
mod member;
mod membership;
mod opening;
mod places;
mod reads;
mod rebuild;
mod reconcile;
pub mod statistics;
mod status;
mod tasks;

use std::collections::{BTreeMap, VecDeque};

use block_core::wire::{self, Reply};
use block_core::{Epoch, ReplicaName};

use crate::control::{Answer, CommandError, Notice};
use crate::frontend::FrontendState;
use crate::io::{IoFault, Request};
use data::{Fan, FanId, NOT_WHAT_WAS_ASKED};
use id_map::IdMap;
pub use identity::Expected;
pub use interface::{Action, CommitVerdict, CoreConfig, Event, MemberAddress};
use locks::WriteLocks;
pub(crate) use member::{Link, Member, Role};
pub use member::{LinkRefusal, MemberIndex, MemberSet};
use membership::SyncStage;
use reads::ReadState;
use statistics::Statistics;
pub(crate) use status::report_member;
pub use tasks::{OWN_SNAPSHOT_PREFIXES, SNAPSHOT_TASKS};
use tasks::{Task, TaskId};

/// Microseconds since the engine's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Moment {
    #[must_use]
    pub fn after(self, us: u64) -> Moment {
        Moment(self.0.saturating_add(us))
    }

    #[must_use]
    pub fn since_us(self, earlier: Moment) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A request to one replica; never used twice by one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// A command on the control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// Counts the connections to all members, so that news of an old one is recognised: here, and by the replica, which may
/// have been served under another name before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Incarnation(pub u64);

/// ```text
/// Opening ──> Serving ──> Closing ──> Done
///    └───────────┴─────────> Fenced
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waiting for the members to accept the epoch; none of it is served yet.
    Opening {
        since: Moment,
    },
    Serving,
    /// The front end is closing, or (`sealing`) the members are told of the orderly end.
    Closing {
        sealing: bool,
    },
    Fenced {
        why: String,
    },
    Done,
}

/// What one job to a member is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Leg(FanId),
    Read(u64),
    Task(TaskId),
    /// The record of the in-sync set on the member itself.
    Meta,
    /// Brings the member to the volume's size while it opens.
    Grow,
    Ping,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    member: MemberIndex,
    purpose: Purpose,
    /// Else it may take as long as the member answers anything.
    has_deadline: bool,
    sent_at: Moment,
}

/// One volume's engine. Its methods live in the submodules: `data` (requests), `membership` (who is in
/// sync), `tasks` and `rebuild` (everything that takes several steps).
pub struct EngineCore {
    config: CoreConfig,
    now: Moment,
    phase: Phase,
    size_bytes: u64,
    members: Vec<Member>,
    incarnation_last: Incarnation,
    committed: MemberSet,
    generation: u64,
    stage: SyncStage,
    committer_attached: bool,
    fence_proof: Option<FenceProof>,
    /// When no older engine reads any more, as far as the members that have accepted our epoch can tell.
    older_reads_end_at: Option<Moment>,
    /// The engine before us ended in order, a member says.
    predecessor_ended: bool,
    jobs: IdMap<JobId, Job>,
    job_next: u64,
    fans: IdMap<FanId, Fan>,
    fan_next: u64,
    reads: IdMap<u64, ReadState>,
    read_next: u64,
    /// Reads that found no member to read from.
    reads_parked: Vec<u64>,
    locks: WriteLocks,
    /// Requests that wait for a lock or for the end of a barrier, in the order of their arrival.
    waiting: VecDeque<(Moment, Request)>,
    /// Client requests under way that change the volume: a barrier waits for none.
    writes_open: usize,
    /// What all members have done since the start and may hold in memory only, and how much of it a flush has made durable:
    /// that comes first. What an engine that was killed may have left unflushed is one more.
    changes_done: u64,
    changes_durable: u64,
    barrier: Option<TaskId>,
    barrier_queue: VecDeque<TaskId>,
    snapshots_version: u64,
    tasks: BTreeMap<TaskId, Task>,
    task_next: u64,
    /// Numbers the snapshots that the engine takes for itself.
    snapshot_next: u64,
    /// After an unclean end: reads come from this member alone until all are compared.
    read_pin: Option<MemberIndex>,
    frontend: FrontendState,
    shutdown: Option<CommandId>,
    statistics: Statistics,
    rebuild_rate: u64,
    out: Vec<Action>,
}

/// That every member of the in-sync set has accepted an epoch: from then on no older engine can write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceProof {
    pub epoch: Epoch,
    pub members: Vec<ReplicaName>,
    pub at: Moment,
}

impl EngineCore {
    #[must_use]
    pub fn new(config: CoreConfig) -> Self {
        assert!(
            !config.in_sync.is_empty(),
            "a volume has at least one replica in sync"
        );
        let members: Vec<Member> = config
            .in_sync
            .iter()
            .cloned()
            .map(|to| Member::new(to, Role::InSync))
            .collect();
        let committed = (0..members.len()).map(MemberIndex::from_position).collect();
        Self {
            now: Moment(0),
            phase: Phase::Opening { since: Moment(0) },
            size_bytes: config.size_bytes,
            members,
            incarnation_last: Incarnation(0),
            committed,
            generation: config.generation,
            stage: SyncStage::Unrecorded,
            committer_attached: false,
            fence_proof: None,
            older_reads_end_at: None,
            predecessor_ended: false,
            jobs: IdMap::default(),
            job_next: 1,
            fans: IdMap::default(),
            fan_next: 1,
            reads: IdMap::default(),
            read_next: 1,
            reads_parked: Vec::new(),
            locks: WriteLocks::default(),
            waiting: VecDeque::new(),
            writes_open: 0,
            changes_done: 0,
            changes_durable: 0,
            barrier: None,
            barrier_queue: VecDeque::new(),
            snapshots_version: 1,
            tasks: BTreeMap::new(),
            task_next: 1,
            snapshot_next: 0,
            read_pin: None,
            frontend: FrontendState::Closed,
            shutdown: None,
            statistics: Statistics::default(),
            rebuild_rate: config.rebuild_bytes_per_second_max,
            out: Vec::new(),
            config,
        }
    }

    /// An engine in the place of a standby, whose front end is open and whose connections had numbers up to this one.
    #[must_use]
    pub(crate) fn succeeding(
        config: CoreConfig,
        incarnation: Incarnation,
        frontend: FrontendState,
    ) -> Self {
        Self {
            incarnation_last: incarnation,
            frontend,
            ..Self::new(config)
        }
    }

    /// Handles one event; what follows from it is added to `actions`.
    pub fn apply(&mut self, now: Moment, event: Event, actions: &mut Vec<Action>) {
        self.now = self.now.max(now);
        match event {
            Event::Start => {
                self.phase = Phase::Opening { since: self.now };
                self.connect_missing();
            }
            Event::Submit(request) => self.on_submit(request),
            Event::LinkUp {
                member,
                incarnation,
                facts,
            } => {
                if self.is_current(member, incarnation) {
                    self.on_link_up(member, &facts);
                }
            }
            Event::LinkRefused {
                member,
                incarnation,
                refusal,
            } => {
                if self.is_current(member, incarnation) {
                    self.on_link_refused(member, refusal);
                }
            }
            Event::LinkDown {
                member,
                incarnation,
                reason,
            } => {
                if self.is_current(member, incarnation) {
                    self.fail_member(member, &reason);
                }
            }
            Event::Reply {
                member,
                incarnation,
                job,
                reply,
            } => {
                if self.is_current(member, incarnation) {
                    self.members[member.position()].heard_at = self.now;
                    self.on_reply(member, job, reply);
                }
            }
            Event::Commit {
                generation,
                verdict,
            } => self.on_commit(generation, verdict),
            Event::CommitterAttached => {
                self.committer_attached = true;
                self.repeat_proposal();
            }
            Event::CommitterLost => self.committer_attached = false,
            Event::Command { id, command } => self.on_command(id, command),
            Event::FrontendChanged(state) => self.on_frontend_changed(state),
            Event::Tick => self.on_tick(),
        }
        self.restore();
        actions.append(&mut self.out);
    }

    /// What must follow from the state, whatever the event was.
    fn restore(&mut self) {
        if matches!(self.phase, Phase::Fenced { .. } | Phase::Done) {
            return;
        }
        self.advance_opening();
        self.propose_if_needed();
        self.advance_tasks();
        self.advance_closing();
    }

    fn unix_ms(&self) -> u64 {
        self.config.started_unix_ms + self.now.0 / 1000
    }

    fn is_current(&self, member: MemberIndex, incarnation: Incarnation) -> bool {
        self.members.get(member.position()).is_some_and(|member| {
            member.incarnation == incarnation && !matches!(member.link, Link::Down { .. })
        })
    }

    fn on_reply(&mut self, member: MemberIndex, job: JobId, reply: Reply) {
        // A job that is unknown was answered before, or given up: late and repeated replies end here.
        if self
            .jobs
            .get(&job)
            .is_none_or(|known| known.member != member)
        {
            return;
        }
        let Some(known) = self.jobs.remove(&job) else {
            return;
        };
        if let Reply::Failed(failure) = &reply
            && failure.code == wire::StatusCode::StaleEpoch
        {
            let name = self.members[member.position()].name().clone();
            self.fence(format!(
                "replica {name} obeys a newer engine: {}",
                failure.text
            ));
            return;
        }
        if !matches!(reply, Reply::Failed(_)) {
            self.confirmed(member, known.sent_at);
        }
        match known.purpose {
            Purpose::Leg(fan) => self.on_leg(fan, member, reply),
            Purpose::Read(read) => self.on_read(read, member, known.sent_at, reply),
            Purpose::Task(task) => self.on_task_reply(task, member, job, reply),
            Purpose::Meta => self.on_meta(member, reply),
            Purpose::Grow => self.on_grown(member, reply),
            Purpose::Ping => {
                self.members[member.position()].ping_open = false;
                match reply {
                    Reply::Status(status) if status.fault.is_empty() => {}
                    Reply::Status(status) => self.fail_member(member, &status.fault),
                    Reply::Failed(_) => {}
                    _ => self.fail_member(member, NOT_WHAT_WAS_ASKED),
                }
            }
        }
    }

    /// Sends a request to a member whose link is up.
    fn send(&mut self, member: MemberIndex, purpose: Purpose, request: wire::Request) -> JobId {
        let job = JobId(self.job_next);
        self.job_next += 1;
        self.jobs.insert(
            job,
            Job {
                member,
                purpose,
                has_deadline: deadlines::has_deadline(&request),
                sent_at: self.now,
            },
        );
        self.out.push(Action::Send {
            member,
            job,
            request,
        });
        job
    }

    fn on_tick(&mut self) {
        for (member, why) in self.late_members() {
            if self.members[member.position()].is_up() {
                self.fail_member(member, &why.to_string());
            }
        }
        self.ping_quiet();
        self.connect_missing();
        self.give_up_on_absent();
    }

    /// Starts connections that are wanted and whose time has come.
    fn connect_missing(&mut self) {
        for position in 0..self.members.len() {
            let wanted = self.members[position].wants_link();
            if let Link::Down { retry_at } = self.members[position].link
                && wanted
                && retry_at <= self.now
            {
                self.incarnation_last.0 += 1;
                let may_create = self.may_create(&self.members[position]);
                let expected = self.expected(&self.members[position]);
                let member = &mut self.members[position];
                member.incarnation = self.incarnation_last;
                member.link = Link::Connecting { since: self.now };
                self.out.push(Action::Connect {
                    member: MemberIndex::from_position(position),
                    incarnation: member.incarnation,
                    to: member.to.clone(),
                    expected,
                    create_size_bytes: may_create.then_some(self.size_bytes),
                });
            }
        }
    }

    /// A newer engine owns the volume: nothing that we answer from here on may look like success.
    fn fence(&mut self, why: String) {
        if matches!(self.phase, Phase::Fenced { .. } | Phase::Done) {
            return;
        }
        self.out
            .push(Action::Notify(Notice::Fenced { why: why.clone() }));
        self.fail_all_requests(IoFault::Fenced);
        self.fail_all_tasks(&CommandError::new(format!("the engine is fenced: {why}")));
        self.phase = Phase::Fenced { why };
        self.out.push(Action::CloseFrontend);
        if let Some(command) = self.shutdown.take() {
            self.out.push(Action::Answer {
                command,
                result: Ok(Answer::Done),
            });
            self.out.push(Action::Exit { clean: false });
            self.phase = Phase::Done;
        }
    }

    fn on_frontend_changed(&mut self, state: FrontendState) {
        if let FrontendState::Failed { reason } = &state {
            self.out.push(Action::Notify(Notice::FrontendFailed {
                reason: reason.clone(),
            }));
        }
        if let FrontendState::Ready { endpoint } = &state {
            self.out.push(Action::Notify(Notice::Ready {
                endpoint: endpoint.to_string(),
            }));
        }
        self.frontend = state;
    }

    /// Whether deadlines or retries may be near.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.jobs.is_empty()
            || !self.tasks.is_empty()
            || self.phase != Phase::Serving
            || self.stage != SyncStage::Settled
            || self
                .members
                .iter()
                .any(|member| member.wants_link() && !member.is_up())
    }

    /// Whether a member's answer may come at any moment.
    #[must_use]
    pub fn awaits_replies(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Whether the engine serves requests from clients.
    fn takes_requests(&self) -> bool {
        matches!(
            self.phase,
            Phase::Serving | Phase::Closing { sealing: false }
        )
    }
}
