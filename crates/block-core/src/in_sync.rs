//! The in-sync set: the replicas that have every acknowledged write, and how it may change.
//!
//! The set is recorded outside of the engine (in the API). An engine proposes a [`SetChange`]; the recorder applies it
//! with [`RecordedSet::compare_and_swap`], which refuses engines of older epochs and changes of an older set. Until the
//! answer is there, the engine acknowledges no write that a member of the *old* set lacks.

use std::collections::BTreeSet;

use crate::epoch::Epoch;
use crate::names::ReplicaName;

/// A non-empty set of replicas, numbered: each change makes the generation larger by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InSyncSet {
    generation: u64,
    members: BTreeSet<ReplicaName>,
}

/// Why a set cannot be made or changed so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    #[error("an in-sync set must have at least one replica")]
    Empty,
    #[error("replica {replica} is not in the in-sync set")]
    NotAMember { replica: ReplicaName },
    #[error("replica {replica} is in the in-sync set already")]
    AlreadyAMember { replica: ReplicaName },
}

/// A change that an engine wants recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetChange {
    pub epoch: Epoch,
    /// The generation that the engine believes to be recorded.
    pub base_generation: u64,
    pub next: InSyncSet,
}

impl InSyncSet {
    pub fn new(generation: u64, members: BTreeSet<ReplicaName>) -> Result<Self, SetError> {
        if members.is_empty() {
            Err(SetError::Empty)
        } else {
            Ok(Self {
                generation,
                members,
            })
        }
    }

    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    #[must_use]
    pub fn members(&self) -> &BTreeSet<ReplicaName> {
        &self.members
    }

    #[must_use]
    pub fn contains(&self, replica: &ReplicaName) -> bool {
        self.members.contains(replica)
    }

    /// A write may be acknowledged when every member has answered it. More answers do no harm.
    #[must_use]
    pub fn may_acknowledge(&self, answered: &BTreeSet<ReplicaName>) -> bool {
        self.members.is_subset(answered)
    }

    /// The change that leaves failed replicas behind. The last replica cannot be left behind: then there is nothing
    /// that holds the data, and the volume must fail instead.
    pub fn propose_without(
        &self,
        failed: &BTreeSet<ReplicaName>,
        epoch: Epoch,
    ) -> Result<SetChange, SetError> {
        if let Some(stranger) = failed.difference(&self.members).next() {
            return Err(SetError::NotAMember {
                replica: stranger.clone(),
            });
        }
        self.propose(self.members.difference(failed).cloned().collect(), epoch)
    }

    /// The change that takes in a rebuilt and verified replica.
    pub fn propose_with(&self, joined: &ReplicaName, epoch: Epoch) -> Result<SetChange, SetError> {
        if self.contains(joined) {
            return Err(SetError::AlreadyAMember {
                replica: joined.clone(),
            });
        }
        let mut members = self.members.clone();
        members.insert(joined.clone());
        self.propose(members, epoch)
    }

    fn propose(&self, members: BTreeSet<ReplicaName>, epoch: Epoch) -> Result<SetChange, SetError> {
        let next = Self::new(self.generation + 1, members)?;
        Ok(SetChange {
            epoch,
            base_generation: self.generation,
            next,
        })
    }
}

/// What the recorder keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedSet {
    pub epoch: Epoch,
    pub set: InSyncSet,
}

/// Why the recorder refuses a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompareAndSwapError {
    #[error("the change is of epoch {offered}, but epoch {recorded} owns the volume")]
    OtherEpoch { offered: Epoch, recorded: Epoch },
    #[error("the change is of generation {offered}, but generation {recorded} is recorded")]
    OtherGeneration { offered: u64, recorded: u64 },
}

impl RecordedSet {
    /// Records a change, or the same one again: an engine that did not hear the answer may ask twice.
    pub fn compare_and_swap(&mut self, change: &SetChange) -> Result<(), CompareAndSwapError> {
        if change.epoch != self.epoch {
            return Err(CompareAndSwapError::OtherEpoch {
                offered: change.epoch,
                recorded: self.epoch,
            });
        }
        if change.next == self.set {
            return Ok(());
        }
        if change.base_generation != self.set.generation {
            let (offered, recorded) = (change.base_generation, self.set.generation);
            return Err(CompareAndSwapError::OtherGeneration { offered, recorded });
        }
        self.set = change.next.clone();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> BTreeSet<ReplicaName> {
        list.split_whitespace()
            .map(|name| ReplicaName::new(name).expect("a name"))
            .collect()
    }

    #[test]
    fn a_set_changes_one_generation_at_a_time_and_never_to_nothing() {
        let set = InSyncSet::new(4, names("a b c")).expect("a set");
        let smaller = set
            .propose_without(&names("b"), Epoch(9))
            .expect("a change");
        assert_eq!((smaller.base_generation, smaller.next.generation()), (4, 5));
        assert_eq!(smaller.next.members(), &names("a c"));
        assert_eq!(
            set.propose_without(&names("a b c"), Epoch(9)),
            Err(SetError::Empty)
        );
        assert!(matches!(
            set.propose_without(&names("x"), Epoch(9)),
            Err(SetError::NotAMember { .. })
        ));
        let b = ReplicaName::new("b").expect("a name");
        assert!(matches!(
            set.propose_with(&b, Epoch(9)),
            Err(SetError::AlreadyAMember { .. })
        ));
        assert_eq!(
            smaller
                .next
                .propose_with(&b, Epoch(9))
                .expect("a change")
                .next
                .members(),
            &names("a b c")
        );
    }

    #[test]
    fn a_write_needs_every_member() {
        let set = InSyncSet::new(1, names("a b")).expect("a set");
        for (answered, wanted) in [
            ("", false),
            ("a", false),
            ("a c", false),
            ("a b", true),
            ("a b c", true),
        ] {
            assert_eq!(set.may_acknowledge(&names(answered)), wanted, "{answered}");
        }
    }

    #[test]
    fn the_recorder_refuses_old_engines_and_old_views() {
        let set = InSyncSet::new(1, names("a b c")).expect("a set");
        let mut recorded = RecordedSet {
            epoch: Epoch(5),
            set: set.clone(),
        };
        let stale = set
            .propose_without(&names("a"), Epoch(4))
            .expect("a change");
        assert!(matches!(
            recorded.compare_and_swap(&stale),
            Err(CompareAndSwapError::OtherEpoch { .. })
        ));
        let without_a = set
            .propose_without(&names("a"), Epoch(5))
            .expect("a change");
        let without_b = set
            .propose_without(&names("b"), Epoch(5))
            .expect("a change");
        assert_eq!(recorded.compare_and_swap(&without_a), Ok(()));
        assert_eq!(recorded.compare_and_swap(&without_a), Ok(()), "asked twice");
        assert!(matches!(
            recorded.compare_and_swap(&without_b),
            Err(CompareAndSwapError::OtherGeneration { .. })
        ));
        assert_eq!(recorded.set.members(), &names("b c"));
    }
}
