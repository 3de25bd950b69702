//! Who answers at a member's address.
//!
//! All replicas of a volume prove the same key, and an address may lead to another one than before: a node's pods can get each other's.
//! Each has recorded its name together with the in-sync set. It is looked at before the replica is opened, which would take it away
//! from the connection that rightly has it.

use block_core::ReplicaName;
use block_core::wire::ReplicaStatus;

use super::EngineCore;
use super::member::{Member, Role};

/// Which replica may be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// This one, which has what was acknowledged. One that has no record is believed: it is new, or was rebuilt by an engine that was killed
    /// before it could tell it so.
    Only(ReplicaName),
    /// Whatever is there is overwritten, unless it is one of these.
    NoneOf(Vec<ReplicaName>),
}

impl Expected {
    /// Why not the one that was found.
    #[must_use]
    pub fn refusal(&self, found: &ReplicaStatus) -> Option<String> {
        let recorded = &found.sync.as_ref()?.replica;
        match self {
            Expected::Only(name) if name != recorded => Some(format!(
                "its address leads to replica {recorded} instead: it is served elsewhere, or not at all"
            )),
            Expected::NoneOf(others) if others.contains(recorded) => Some(format!(
                "its address leads to replica {recorded}, which is a part of the volume and must not be overwritten"
            )),
            Expected::Only(_) | Expected::NoneOf(_) => None,
        }
    }
}

impl EngineCore {
    pub(super) fn expected(&self, member: &Member) -> Expected {
        match member.role {
            Role::InSync | Role::JoinReady | Role::Failed { .. } | Role::Out { .. } => {
                Expected::Only(member.name().clone())
            }
            Role::Joining { .. } => {
                let others = self.members.iter().filter(|other| {
                    other.name() != member.name() && !matches!(other.role, Role::Out { .. })
                });
                Expected::NoneOf(others.map(|other| other.name().clone()).collect())
            }
        }
    }
}
