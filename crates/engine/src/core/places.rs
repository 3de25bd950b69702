//! Where a replica that the engine has not seen yet finds its place among the members.

use super::member::{Link, Member, Role};
use super::tasks::TaskKind;
use super::{EngineCore, MemberAddress, MemberIndex, MemberSet};

impl EngineCore {
    /// A place for one more: a new one, or that of a member that is out and that nothing speaks of any more.
    pub(super) fn take_place(&mut self, to: MemberAddress) -> Option<MemberIndex> {
        let member = Member::new(to, Role::Out { why: "new".into() });
        if self.members.len() < MemberSet::MEMBERS_MAX {
            self.members.push(member);
            return Some(MemberIndex::from_position(self.members.len() - 1));
        }
        let place = (0..self.members.len())
            .map(MemberIndex::from_position)
            .find(|place| self.is_free(*place))?;
        self.members[place.position()] = member;
        Some(place)
    }

    fn is_free(&self, place: MemberIndex) -> bool {
        let state = &self.members[place.position()];
        let is_out =
            matches!(state.role, Role::Out { .. }) && matches!(state.link, Link::Down { .. });
        let in_task = self.tasks.values().any(|task| match &task.kind {
            TaskKind::Rebuild(rebuild) => rebuild.concerns(place),
            // It keeps lists by member; it ends by itself.
            TaskKind::Reconcile(_) => true,
            TaskKind::Broadcast(_) | TaskKind::ListSnapshots { .. } => false,
        });
        is_out
            && !in_task
            && !self.required().contains(place)
            && self.read_pin != Some(place)
            && self.jobs.values().all(|job| job.member != place)
            && self.fans.values().all(|fan| !fan.mentions(place))
    }
}
