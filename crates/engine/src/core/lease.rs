//! Until when an engine may read: no longer than a newer one waits.
//!
//! A replica that obeys a newer engine refuses the older one, so a write of the older one, which needs every member, is
//! never acknowledged. A read needs only one: a member that the newer engine could not reach, and left behind, would
//! answer the older engine with what was true before. So both count the time:
//!
//! - An engine sends a read to a member only if every *other* member of the recorded set has answered something that was
//!   sent less than a lease ago. Under load every answer counts; a quiet volume asks ([`EngineCore::ping_quiet`]).
//! - An engine that opens leaves a member that has not accepted its epoch behind only when a lease and some more have passed
//!   since another one last took a request of an older engine. It takes none from then on, so the lease of all of them is over.
//!
//! Where every member accepts, the engine before ended in order, or it has been silent for long because its node died, nobody
//! waits. Clocks need not agree on the time, only on how fast it passes, within the margin.

use block_core::wire::{self, ReplicaStatus};

use super::member::Link;
use super::membership::SyncStage;
use super::{EngineCore, MemberIndex, MemberSet, Moment, Purpose};

impl EngineCore {
    /// Every member of which a newer engine may have been told that it is in sync.
    fn perhaps_recorded(&self) -> MemberSet {
        match &self.stage {
            SyncStage::Proposed { set, .. } => self.committed.union(*set),
            SyncStage::Unrecorded
            | SyncStage::Settled
            | SyncStage::Recording { .. }
            | SyncStage::Sealing { .. } => self.committed,
        }
    }

    /// The members whose word is needed, and too old, before `reader` may be asked; it answers for itself.
    pub(super) fn lease_lacks(&self, reader: MemberIndex) -> MemberSet {
        self.perhaps_recorded()
            .iter()
            .filter(|other| {
                let confirmed_at = self.members[other.position()].confirmed_at;
                *other != reader && self.now.since_us(confirmed_at) >= self.config.read_lease_us
            })
            .collect()
    }

    /// A member has answered what was sent to it then: it obeyed no newer engine at that moment.
    pub(super) fn confirmed(&mut self, member: MemberIndex, sent_at: Moment) {
        let state = &mut self.members[member.position()];
        state.confirmed_at = state.confirmed_at.max(sent_at);
        if self.reads_parked.is_empty() {
            return;
        }
        let reader = self.choose_reader(MemberSet::default());
        if reader.is_some_and(|reader| self.lease_lacks(reader).is_empty()) {
            self.wake_parked_reads();
        }
    }

    /// Asks those for a sign of life that reads wait for.
    pub(super) fn renew_lease(&mut self, lacking: MemberSet) {
        for member in lacking.iter() {
            let state = &self.members[member.position()];
            if state.is_up() && !state.ping_open {
                self.ping(member);
            }
        }
    }

    /// Asks members that were silent for a while for a sign of life.
    pub(super) fn ping_quiet(&mut self) {
        let quiet_us = self.config.job_deadline_us.min(self.config.read_lease_us) / 4;
        for position in 0..self.members.len() {
            let member = &self.members[position];
            let quiet = self.now.since_us(member.confirmed_at) > quiet_us;
            if member.is_up() && quiet && !member.ping_open {
                self.ping(MemberIndex::from_position(position));
            }
        }
    }

    fn ping(&mut self, member: MemberIndex) {
        self.members[member.position()].ping_open = true;
        self.send(member, Purpose::Ping, wire::Request::Status);
    }

    /// A member has accepted our epoch: older engines hear no more from it.
    pub(super) fn accepted(&mut self, member: MemberIndex, facts: &ReplicaStatus) {
        let state = &mut self.members[member.position()];
        if let Link::Connecting { since } = state.link {
            state.confirmed_at = state.confirmed_at.max(since);
        }
        if self.committed.contains(member) {
            // Clocks that differ by an eighth are broken.
            let wait_us = self.config.read_lease_us + self.config.read_lease_us / 8;
            let over_at = self
                .now
                .after(wait_us.saturating_sub(facts.older_silent_us));
            let known = self.older_reads_end_at.get_or_insert(over_at);
            *known = over_at.min(*known);
            // Its record is of a set that it was a part of until now, and nobody has opened it since.
            self.predecessor_ended |= facts.sync.as_ref().is_some_and(|sync| sync.clean);
        }
    }

    /// Whether an engine before us may still read from members that do not know of us.
    pub(super) fn older_engines_may_read(&self) -> bool {
        let over = self
            .older_reads_end_at
            .is_some_and(|over_at| self.now >= over_at);
        !over && !self.predecessor_ended
    }
}
