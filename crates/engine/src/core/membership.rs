//! Who is in sync: failures, proposals to the caller, and the record on the members themselves.
//!
//! ```text
//!              propose            recorded            all members know
//!  Settled ──────────> Proposed ───────────> Recording ───────────────> Settled
//!                          └── not now: try again ──┘
//! ```
//! In `Proposed` and `Recording` a write needs both the old and the new set.

use block_core::ReplicaName;
use block_core::geometry::check_size;
use block_core::wire::{self, ReplicaMode, ReplicaStatus, Reply, SyncMeta};

use super::data::done;
use super::member::{Link, LinkRefusal, Role};
use super::{
    Action, CommitVerdict, EngineCore, FenceProof, MemberIndex, MemberSet, Moment, Phase, Purpose,
};
use crate::control::{Notice, Proposal};

/// First pause before a lost member is tried again, and the longest.
const RETRY_FIRST_US: u64 = 50_000;
const RETRY_LONGEST_US: u64 = 2_000_000;

/// A caller that said "not now" is asked again after this.
const PROPOSE_AGAIN_US: u64 = 1_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncStage {
    /// This engine has not yet told the members of the set that it was started with.
    Unrecorded,
    Settled,
    Proposed {
        set: MemberSet,
        again_at: Option<Moment>,
    },
    Recording {
        previous: MemberSet,
        waiting: MemberSet,
    },
    /// Told of an orderly end.
    Sealing {
        waiting: MemberSet,
    },
}

impl EngineCore {
    /// The members whose answer a write needs.
    pub(super) fn required(&self) -> MemberSet {
        match &self.stage {
            SyncStage::Proposed { set, .. } => self.committed.union(*set),
            SyncStage::Recording { previous, .. } => self.committed.union(*previous),
            SyncStage::Unrecorded | SyncStage::Settled | SyncStage::Sealing { .. } => {
                self.committed
            }
        }
    }

    pub(super) fn on_link_up(&mut self, member: MemberIndex, facts: &ReplicaStatus) {
        let position = member.position();
        self.accepted(member, facts);
        let unfit = match (&self.members[position].role, facts.mode) {
            (Role::InSync, ReplicaMode::Ready) if facts.fault.is_empty() => {
                check_size(facts.size_bytes)
                    .err()
                    .map(|error| error.to_string())
            }
            (Role::InSync, ReplicaMode::Ready) => Some(facts.fault.clone()),
            (Role::InSync, mode) => Some(format!(
                "it is recorded as in sync but is {mode:?}: rebuild it, or restore its folder"
            )),
            _ => None,
        };
        if let Some(why) = unfit {
            self.out.push(Action::Disconnect {
                member,
                reason: why.clone(),
            });
            self.on_link_refused(member, LinkRefusal::Unreachable(why));
            return;
        }
        if self.has_lost_writes(member, facts) {
            let name = self.members[position].name();
            self.fence(format!(
                "the machine of {name}, the last replica in sync, was restarted, or its disk failed: writes that were acknowledged and not flushed are lost"
            ));
            return;
        }
        let state = &mut self.members[position];
        state.host_boot = Some(facts.host_boot);
        // The replica forgets it with the next record; this engine must not.
        state.may_lack_writes |= facts.restarted_since_opened;
        state.link = Link::Up;
        state.ping_open = false;
        state.retries = 0;
        state.trouble = None;
        state.size_bytes = facts.size_bytes;
        state.allocated_bytes = facts.allocated_bytes;
        state.was_clean = facts.sync.as_ref().is_none_or(|sync| sync.clean);
        self.out.push(Action::Notify(Notice::MemberConnected {
            member: state.to.name.to_string(),
        }));
        let opening = matches!(self.phase, Phase::Opening { .. });
        match state.role {
            Role::InSync | Role::JoinReady => {
                if opening {
                    self.size_bytes = self.size_bytes.max(facts.size_bytes);
                }
                if let SyncStage::Recording { waiting, .. } = &self.stage
                    && waiting.contains(member)
                {
                    self.send_meta(member, false);
                } else if facts.restarted_since_opened && !opening {
                    // Nothing was missing, or this engine would have ended: the next time that it says so is to be believed again.
                    self.send_meta(member, false);
                }
                self.resend_legs(member);
                self.wake_parked_reads();
            }
            _ => {}
        }
    }

    pub(super) fn on_link_refused(&mut self, member: MemberIndex, refusal: LinkRefusal) {
        let mut retry_at = self.retry_moment(member);
        let state = &mut self.members[member.position()];
        let why = match refusal {
            LinkRefusal::StaleEpoch(why) => {
                let name = state.name().clone();
                self.fence(format!("replica {name} has accepted a newer engine: {why}"));
                return;
            }
            // A process before this one, of the same epoch, had as many connections: the numbers go on behind its last.
            LinkRefusal::Superseded { newest, why } => {
                if newest.0 == u64::MAX {
                    let name = state.name().clone();
                    self.fence(format!("replica {name} takes no further connection: {why}"));
                    return;
                }
                if newest >= state.incarnation {
                    self.incarnation_last = self.incarnation_last.max(newest);
                    retry_at = self.now;
                }
                why
            }
            LinkRefusal::Unreachable(why) => why,
        };
        state.link = Link::Down { retry_at };
        state.trouble = Some(why.clone());
        if let Role::Joining { task, .. } = state.role {
            self.rebuild_interrupted(task, &why);
        }
    }

    fn retry_moment(&mut self, member: MemberIndex) -> Moment {
        let state = &mut self.members[member.position()];
        let pause_us = RETRY_FIRST_US << state.retries.min(6);
        state.retries += 1;
        self.now.after(pause_us.min(RETRY_LONGEST_US))
    }

    /// A member's connection is lost, it is too slow, or it refused what others did.
    pub(super) fn fail_member(&mut self, member: MemberIndex, why: &str) {
        let position = member.position();
        if matches!(self.phase, Phase::Fenced { .. } | Phase::Done) {
            return;
        }
        // No smaller set is recorded any more, so nobody could be left behind: the next engine sees to it.
        if self.phase == (Phase::Closing { sealing: true }) && self.committed.contains(member) {
            self.exit(false);
            return;
        }
        let others_live = self.others_live(member);
        let retry_at = self.retry_moment(member);
        let proposed =
            matches!(&self.stage, SyncStage::Proposed { set, .. } if set.contains(member));
        let state = &mut self.members[position];
        if !matches!(state.link, Link::Down { .. }) {
            self.out.push(Action::Disconnect {
                member,
                reason: why.to_owned(),
            });
        }
        state.link = Link::Down { retry_at };
        state.trouble = Some(why.to_owned());
        state.reads_open = 0;
        let name = state.to.name.to_string();
        let interrupted = match state.role.clone() {
            Role::InSync if others_live => {
                state.role = Role::Failed {
                    why: why.to_owned(),
                };
                self.out.push(Action::Notify(Notice::MemberFailed {
                    member: name,
                    why: why.to_owned(),
                }));
                None
            }
            // The last one: nothing can stand in for it, so it is waited for.
            Role::InSync => {
                self.out.push(Action::Notify(Notice::LastMemberLost {
                    member: name,
                    why: why.to_owned(),
                }));
                None
            }
            // Whether the caller has recorded it is not known yet; if so it must be left behind in order.
            Role::JoinReady if proposed => {
                state.role = Role::Failed {
                    why: why.to_owned(),
                };
                None
            }
            Role::JoinReady => {
                state.role = Role::Out {
                    why: why.to_owned(),
                };
                None
            }
            Role::Joining { task, .. } => {
                state.role = Role::Joining { task, live: false };
                Some(task)
            }
            Role::Failed { .. } | Role::Out { .. } => None,
        };
        self.forget_acks(member);
        self.abandon_jobs(member);
        if self.members[position].role != Role::InSync {
            self.meta_not_needed(member);
        }
        if let Some(task) = interrupted {
            self.rebuild_interrupted(task, why);
        }
        self.source_lost(member);
        if self.read_pin == Some(member) {
            self.read_pin = self.choose_reader(MemberSet::default());
        }
    }

    /// Ends a member's connection; if it is still wanted, another one is made at once. The replica refuses what is still on its way
    /// over the old one, and nobody waits for the answers.
    pub(super) fn disconnect(&mut self, member: MemberIndex, reason: &str) {
        let state = &mut self.members[member.position()];
        state.link = Link::Down { retry_at: self.now };
        state.reads_open = 0;
        self.out.push(Action::Disconnect {
            member,
            reason: reason.to_owned(),
        });
        self.abandon_jobs(member);
    }

    /// Whether the volume goes on without this member.
    pub(super) fn others_live(&self, member: MemberIndex) -> bool {
        self.committed.iter().any(|other| {
            let state = &self.members[other.position()];
            other != member && state.role == Role::InSync && state.is_up()
        })
    }

    /// What the member was asked goes elsewhere, or waits for it or for the set's change.
    fn abandon_jobs(&mut self, member: MemberIndex) {
        let mut abandoned: Vec<_> = self
            .jobs
            .extract_if(|_, job| job.member == member)
            .collect();
        abandoned.sort_unstable_by_key(|(id, _)| *id);
        for (_, job) in abandoned {
            match job.purpose {
                Purpose::Leg(fan) => self.leg_lost(fan, member),
                Purpose::Read(read) => self.dispatch_read(read),
                // Tasks are told of the member as a whole.
                Purpose::Task(_) | Purpose::Meta | Purpose::Grow | Purpose::Ping => {}
            }
        }
    }

    /// Proposes the set that the members' roles call for, one change at a time.
    pub(super) fn propose_if_needed(&mut self) {
        match &self.stage {
            SyncStage::Settled | SyncStage::Unrecorded => {}
            SyncStage::Proposed {
                again_at: Some(again_at),
                ..
            } if *again_at <= self.now => {
                self.repeat_proposal();
                return;
            }
            _ => return,
        }
        if matches!(self.phase, Phase::Closing { sealing: true }) {
            return;
        }
        let set: MemberSet = (0..self.members.len())
            .filter(|position| {
                matches!(self.members[*position].role, Role::InSync | Role::JoinReady)
            })
            .map(MemberIndex::from_position)
            .collect();
        let someone_lives = set
            .iter()
            .any(|member| self.members[member.position()].is_up());
        if set == self.committed || !someone_lives {
            return;
        }
        self.stage = SyncStage::Proposed {
            set,
            again_at: None,
        };
        self.repeat_proposal();
    }

    pub(super) fn repeat_proposal(&mut self) {
        let SyncStage::Proposed { set, again_at } = &mut self.stage else {
            return;
        };
        *again_at = None;
        let set = *set;
        let names = |set: MemberSet| -> Vec<String> {
            set.iter()
                .map(|member| self.members[member.position()].name().to_string())
                .collect()
        };
        let reasons = self
            .committed
            .without(set)
            .iter()
            .map(|member| {
                let state = &self.members[member.position()];
                format!(
                    "{}: {}",
                    state.name(),
                    state.trouble.as_deref().unwrap_or("removed")
                )
            })
            .collect();
        let proposal = Proposal {
            volume: self.config.volume.clone(),
            epoch: self.config.epoch.0,
            generation: self.generation + 1,
            in_sync: names(set),
            addresses: set
                .iter()
                .map(|member| self.members[member.position()].to.address.clone())
                .collect(),
            replaces: names(self.committed),
            reasons,
        };
        self.out.push(Action::Propose(proposal));
    }

    pub(super) fn on_commit(&mut self, generation: u64, verdict: CommitVerdict) {
        let SyncStage::Proposed { set, .. } = self.stage else {
            return;
        };
        if generation != self.generation + 1 {
            return;
        }
        match verdict {
            CommitVerdict::Fenced(why) => self.fence(why),
            CommitVerdict::NotNow(why) => {
                let again_at = Some(self.now.after(PROPOSE_AGAIN_US));
                self.stage = SyncStage::Proposed { set, again_at };
                self.out
                    .push(Action::Notify(Notice::CommitRefused { generation, why }));
            }
            CommitVerdict::Recorded => self.on_recorded(set),
        }
    }

    fn on_recorded(&mut self, set: MemberSet) {
        let previous = self.committed;
        self.committed = set;
        self.generation += 1;
        for member in previous.without(set).iter() {
            let state = &mut self.members[member.position()];
            if let Role::Failed { why } = &state.role {
                state.role = Role::Out { why: why.clone() };
            }
        }
        for member in set.without(previous).iter() {
            let state = &mut self.members[member.position()];
            if state.role == Role::JoinReady {
                state.role = Role::InSync;
            }
        }
        self.out.push(Action::Notify(Notice::InSyncChanged {
            generation: self.generation,
            in_sync: self.names(set),
        }));
        if matches!(self.phase, Phase::Opening { .. }) {
            // Members are told when all of them have been seen: a record ends what a replica remembers of a restart of its
            // machine, and one that comes later may have the writes that it lacks.
            self.stage = SyncStage::Unrecorded;
            return;
        }
        self.record_on_members(previous);
        // Fewer members may be needed for reads.
        self.wake_parked_reads();
    }

    /// Writes the set to its members; what they have not got, a salvage could not know.
    fn record_on_members(&mut self, previous: MemberSet) {
        let waiting: MemberSet = self
            .committed
            .iter()
            .filter(|member| self.members[member.position()].role == Role::InSync)
            .collect();
        self.stage = SyncStage::Recording { previous, waiting };
        for member in waiting.iter() {
            if self.members[member.position()].is_up() {
                self.send_meta(member, false);
            }
        }
        self.finish_recording();
    }

    fn send_meta(&mut self, member: MemberIndex, clean: bool) {
        let meta = SyncMeta {
            replica: self.members[member.position()].name().clone(),
            generation: self.generation,
            in_sync: self
                .committed
                .iter()
                .map(|m| self.members[m.position()].name().clone())
                .collect(),
            clean,
        };
        self.send(member, Purpose::Meta, wire::Request::SetMeta(meta));
    }

    pub(super) fn on_meta(&mut self, member: MemberIndex, reply: Reply) {
        if let Err(failure) = done(reply) {
            self.fail_member(member, &failure.to_string());
            return;
        }
        if !matches!(self.phase, Phase::Opening { .. }) {
            self.members[member.position()].may_lack_writes = false;
        }
        match &mut self.stage {
            SyncStage::Recording { waiting, .. } => {
                waiting.remove(member);
                self.finish_recording();
            }
            SyncStage::Sealing { waiting } => {
                waiting.remove(member);
                if waiting.is_empty() {
                    self.exit(true);
                }
            }
            _ => {}
        }
    }

    /// A member that is left behind need not know of the set that it is no part of.
    fn meta_not_needed(&mut self, member: MemberIndex) {
        if let SyncStage::Recording { waiting, .. } = &mut self.stage {
            waiting.remove(member);
            self.finish_recording();
        }
    }

    fn finish_recording(&mut self) {
        if let SyncStage::Recording { waiting, .. } = &self.stage
            && waiting.is_empty()
        {
            self.stage = SyncStage::Settled;
            self.settle_all();
            self.wake_parked_reads();
        }
    }

    /// Opens the volume when every member has accepted the epoch and knows of the set.
    pub(super) fn advance_opening(&mut self) {
        if !matches!(self.phase, Phase::Opening { .. }) {
            return;
        }
        self.leave_restarted_behind();
        let all_up = self.committed.iter().all(|member| {
            let state = &self.members[member.position()];
            state.role == Role::InSync && state.is_up()
        });
        match &self.stage {
            SyncStage::Unrecorded if all_up => {
                self.prove_fence();
                if self.grow_members() {
                    self.record_on_members(self.committed);
                }
            }
            SyncStage::Settled if all_up => {
                self.prove_fence();
                if self.grow_members() {
                    self.start_serving();
                }
            }
            _ => {}
        }
    }

    /// All members have accepted the epoch. If some were left behind before they had, the proof is of those that remain.
    fn prove_fence(&mut self) {
        if self.fence_proof.is_some() {
            return;
        }
        self.fence_proof = Some(FenceProof {
            epoch: self.config.epoch,
            members: self
                .committed
                .iter()
                .map(|m| self.members[m.position()].name().clone())
                .collect(),
            at: self.now,
        });
    }

    fn start_serving(&mut self) {
        self.phase = Phase::Serving;
        for member in &mut self.members {
            member.may_lack_writes = false;
            member.flushes_as_others = member.role == Role::InSync;
        }
        self.out.push(Action::Notify(Notice::Opened {
            epoch: self.config.epoch.0,
        }));
        if self.predecessor_was_killed() {
            self.changes_done += 1;
        }
        if !self.reconcile_if_unclean() {
            self.open_frontend();
        }
    }

    pub(super) fn open_frontend(&mut self) {
        self.out.push(Action::OpenFrontend {
            size_bytes: self.size_bytes,
        });
    }

    /// An expansion that was cut short has left members of different sizes: they all get the largest.
    /// Answers whether they have it.
    fn grow_members(&mut self) -> bool {
        let wanted = self.size_bytes;
        let mut all = true;
        for member in self.committed.iter() {
            if self.members[member.position()].size_bytes >= wanted {
                continue;
            }
            all = false;
            let asked = self
                .jobs
                .values()
                .any(|job| job.member == member && job.purpose == Purpose::Grow);
            if !asked {
                let request = wire::Request::Expand { size_bytes: wanted };
                self.send(member, Purpose::Grow, request);
            }
        }
        all
    }

    pub(super) fn on_grown(&mut self, member: MemberIndex, reply: Reply) {
        match done(reply) {
            Ok(()) => self.members[member.position()].size_bytes = self.size_bytes,
            Err(failure) => self.fail_member(member, &failure.to_string()),
        }
    }

    /// All data is on stable storage (or not): tells the members that this is the end.
    pub(super) fn on_sealed(&mut self, flushed: bool) {
        if !flushed || self.stage != SyncStage::Settled {
            self.exit(false);
            return;
        }
        self.stage = SyncStage::Sealing {
            waiting: self.committed,
        };
        for member in self.committed.iter() {
            if self.members[member.position()].is_up() {
                self.send_meta(member, true);
            } else {
                self.exit(false);
                return;
            }
        }
    }

    pub(super) fn names(&self, set: MemberSet) -> Vec<String> {
        set.iter()
            .map(|member| self.members[member.position()].name().to_string())
            .collect()
    }

    pub(super) fn find_member(&self, name: &ReplicaName) -> Option<MemberIndex> {
        self.members
            .iter()
            .position(|member| member.name() == name)
            .map(MemberIndex::from_position)
    }
}
