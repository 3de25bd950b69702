//! Whom a volume that opens waits for, and who may come back to one that is open.

use block_core::wire::ReplicaStatus;

use super::member::{Member, Role};
use super::{EngineCore, MemberIndex, Phase};

/// What remains of the grace for a member that the caller has written off: enough for a handshake, should it live after all,
/// for leaving it behind costs a rebuild.
const WRITTEN_OFF_GRACE_DIVISOR: u64 = 20;

const RESTARTED: &str = "its machine was restarted, or its disk failed: it may lack writes that were acknowledged and not flushed";

impl EngineCore {
    /// Members that do not accept the epoch in time are left behind, if others have and no older engine can read from
    /// them any more. Those that the caller has written off get little
    /// time. It is the record that must wait: the next engine knows only what is recorded.
    pub(super) fn give_up_on_absent(&mut self) {
        let Phase::Opening { since } = self.phase else {
            return;
        };
        if self.older_engines_may_read() {
            return;
        }
        let waited_us = self.now.since_us(since);
        for member in self.committed.iter() {
            let state = &self.members[member.position()];
            let grace_us = if self.config.written_off.contains(state.name()) {
                self.config.open_grace_us / WRITTEN_OFF_GRACE_DIVISOR
            } else {
                self.config.open_grace_us
            };
            let is_absent = state.role == Role::InSync && !state.is_up();
            if is_absent && waited_us >= grace_us && self.others_live(member) {
                let why = state
                    .trouble
                    .clone()
                    .unwrap_or_else(|| "it did not answer".into());
                self.fail_member(member, &why);
            }
        }
    }

    /// An engine was killed, and the machine of a member was restarted before this one came: what was acknowledged and not flushed
    /// may be missing there. Those whose machines went on have it, so they are believed; a comparison could
    /// choose the wrong side, and sees the newest layer only, so the restarted ones are to be rebuilt. If all were
    /// restarted, none is better than another.
    pub(super) fn leave_restarted_behind(&mut self) {
        let (restarted, intact): (Vec<MemberIndex>, Vec<MemberIndex>) = self
            .committed
            .iter()
            .filter(|member| {
                let state = &self.members[member.position()];
                state.role == Role::InSync && state.is_up()
            })
            .partition(|member| self.members[member.position()].may_lack_writes);
        if intact.is_empty() {
            return;
        }
        for member in restarted {
            self.fail_member(member, RESTARTED);
        }
    }

    /// Whether an empty replica may be made where the member is not: only where nothing can be missed. One that is recorded as in
    /// sync has all that was acknowledged; if it was here and is gone, so is its data, and an empty one would
    /// pass for it.
    pub(super) fn may_create(&self, member: &Member) -> bool {
        match member.role {
            Role::Joining { .. } => true,
            Role::InSync => {
                let opening = matches!(self.phase, Phase::Opening { .. });
                self.config.create && opening && !member.was_connected()
            }
            Role::JoinReady | Role::Failed { .. } | Role::Out { .. } => false,
        }
    }

    /// A member that was waited for, because nothing can stand in for it, comes back from a machine that forgot what was not
    /// on its disk, or it says so itself, since its disk failed. To go on would be to say of the next flush that it covers what is gone.
    /// While the volume opens, this engine has promised nothing yet.
    pub(super) fn has_lost_writes(&self, member: MemberIndex, facts: &ReplicaStatus) -> bool {
        let state = &self.members[member.position()];
        let was_restarted = state.host_boot.is_some_and(|boot| boot != facts.host_boot);
        let says_so = facts.restarted_since_opened && !state.may_lack_writes;
        let opening = matches!(self.phase, Phase::Opening { .. });
        state.role == Role::InSync
            && !opening
            && (was_restarted || says_so)
            && self.changes_done > self.changes_durable
    }

    /// Whether an engine before this one did not end in order: writes may be on some members only, and not flushed.
    pub(super) fn predecessor_was_killed(&self) -> bool {
        let was_clean = |member: MemberIndex| self.members[member.position()].was_clean;
        !self.committed.iter().all(was_clean)
    }
}
