//! Who may write, and who has everything that was acknowledged: epochs and the in-sync set.
//!
//! One record per volume lives in the API and changes only by compare-and-swap. Everything the data
//! plane may do follows from it and from what each replica has accepted:
//!
//! 1. A replica stores the largest epoch it has seen and refuses everything from a smaller one.
//! 2. A write is acknowledged when every replica of the committed set, *and* of every set proposed
//!    since and not yet answered, has it.
//! 3. The set changes only by [`commit_in_sync`], which names the epoch and the version it is based on.
//! 4. A new engine gets a new epoch by [`InSyncRecord::issue`], serves only with members that have
//!    accepted it, and commits a smaller set first if some have not.
//!
//! Why it is safe: the record's set at the moment an epoch is issued is final for the epoch before
//! (3), each of its members has all that was acknowledged (2), and as soon as one member has accepted
//! the new epoch the old engine can acknowledge nothing more (1, 2) nor leave that member behind (3).
//! So any non-empty part of the set will do for the next engine.
//!
//! Why there is a version besides the epoch: an engine that proposes to add a rebuilt replica, loses
//! it, and takes the proposal back, must not find the first proposal committed later by a slow
//! messenger. The model checker finds that history as soon as the version check is left out.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::identity::{Epoch, NodeName, ReplicaName, Timestamp, Version};

/// The volume's record in the API.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InSyncRecord {
    /// The only epoch whose engine may acknowledge and commit.
    pub epoch: Epoch,
    /// The largest epoch ever given out; larger than `epoch` while a standby engine waits.
    pub issued: Epoch,
    /// Grows with every change of the writer or of its set.
    pub version: Version,
    /// The replicas that have every acknowledged write.
    pub members: BTreeSet<ReplicaName>,
}

/// A set that an engine wants committed before it goes on without, or with, some replica.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Proposal {
    /// The proposing engine's epoch.
    pub epoch: Epoch,
    /// The record's version that the engine had seen.
    pub based_on: Version,
    pub members: BTreeSet<ReplicaName>,
}

/// Why a proposed in-sync set was not committed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CommitInSyncError {
    #[error(
        "epoch {proposed} has been superseded by epoch {current}: the engine is fenced and must stop"
    )]
    Superseded { proposed: Epoch, current: Epoch },
    #[error("epoch {proposed} is not the writer yet (epoch {current} is): take over first")]
    NotYetWriter { proposed: Epoch, current: Epoch },
    #[error(
        "the in-sync set has moved from version {based_on} to {current}: read it and propose again"
    )]
    Outdated { based_on: Version, current: Version },
    #[error("an empty in-sync set would leave nobody with the acknowledged writes")]
    Empty,
    #[error("replica {0} is not a replica of this volume")]
    Unknown(ReplicaName),
}

/// Commits a proposal: the only way in which an in-sync set changes while its epoch lasts.
///
/// The result must be written with a compare-and-swap against the object that `current` was read
/// from. `known` are the volume's replicas: members may leave without being known any more, but
/// nobody unknown may join.
pub fn commit_in_sync(
    current: &InSyncRecord,
    proposal: &Proposal,
    known: impl Fn(&ReplicaName) -> bool,
) -> Result<InSyncRecord, CommitInSyncError> {
    if proposal.epoch < current.epoch {
        return Err(CommitInSyncError::Superseded {
            proposed: proposal.epoch,
            current: current.epoch,
        });
    }
    if proposal.epoch > current.epoch {
        return Err(CommitInSyncError::NotYetWriter {
            proposed: proposal.epoch,
            current: current.epoch,
        });
    }
    if proposal.based_on != current.version {
        return Err(CommitInSyncError::Outdated {
            based_on: proposal.based_on,
            current: current.version,
        });
    }
    if proposal.members.is_empty() {
        return Err(CommitInSyncError::Empty);
    }
    if let Some(stranger) = proposal
        .members
        .iter()
        .find(|member| !current.members.contains(*member) && !known(member))
    {
        return Err(CommitInSyncError::Unknown(stranger.clone()));
    }
    Ok(InSyncRecord {
        version: current.version.next(),
        members: proposal.members.clone(),
        ..current.clone()
    })
}

/// Why a standby engine may not become the writer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TakeOverError {
    #[error("epoch {wanted} has been superseded by epoch {current}")]
    Superseded { wanted: Epoch, current: Epoch },
    #[error("epoch {wanted} was never given out (the largest is {issued})")]
    NeverIssued { wanted: Epoch, issued: Epoch },
}

/// Makes the standby engine with epoch `wanted` the writer: migration's hand-over.
pub fn take_over(current: &InSyncRecord, wanted: Epoch) -> Result<InSyncRecord, TakeOverError> {
    if wanted <= current.epoch {
        return Err(TakeOverError::Superseded {
            wanted,
            current: current.epoch,
        });
    }
    if wanted > current.issued {
        return Err(TakeOverError::NeverIssued {
            wanted,
            issued: current.issued,
        });
    }
    Ok(InSyncRecord {
        epoch: wanted,
        version: current.version.next(),
        ..current.clone()
    })
}

impl InSyncRecord {
    /// The next writer's epoch. From here on no older engine can commit anything.
    #[must_use]
    pub fn issue(&self) -> Self {
        let epoch = self.issued.next();
        Self {
            epoch,
            issued: epoch,
            version: self.version.next(),
            members: self.members.clone(),
        }
    }

    /// An epoch for a standby engine; the writer stays who it is until [`take_over`], and so does its set: it goes on under
    /// the version that it knows.
    #[must_use]
    pub(crate) fn reserve(&self) -> Self {
        Self {
            issued: self.issued.next(),
            ..self.clone()
        }
    }

    /// What an engine must wait for before it acknowledges a write.
    pub fn required<'a>(&'a self, unanswered: &'a [Proposal]) -> BTreeSet<&'a ReplicaName> {
        let proposed = unanswered
            .iter()
            .filter(|proposal| proposal.epoch == self.epoch && proposal.based_on == self.version)
            .flat_map(|proposal| &proposal.members);
        self.members.iter().chain(proposed).collect()
    }
}

/// Evidence that no engine before `epoch` can acknowledge another write.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FenceProof {
    pub epoch: Epoch,
    /// The in-sync members that have stored the epoch.
    pub replicas: BTreeSet<ReplicaName>,
    /// Where the superseded engine was.
    pub node: NodeName,
    pub at: Timestamp,
}

impl FenceProof {
    /// Does this show that nothing written on `node` by an engine of `epoch` or before can be
    /// acknowledged any more?
    pub fn covers(&self, node: &NodeName, epoch: Epoch) -> bool {
        self.node == *node && epoch < self.epoch
    }
}

/// The members that have accepted the record's epoch, if they suffice as a proof: at least one, and
/// none of those that will be used (`usable`) is still to answer.
pub fn fenced_by(
    record: &InSyncRecord,
    usable: impl Fn(&ReplicaName) -> bool,
    accepted: &BTreeMap<ReplicaName, Epoch>,
) -> Option<BTreeSet<ReplicaName>> {
    let has_accepted = |name: &ReplicaName| {
        accepted
            .get(name)
            .is_some_and(|epoch| *epoch >= record.epoch)
    };
    let witnesses: BTreeSet<ReplicaName> = record
        .members
        .iter()
        .filter(|name| has_accepted(name))
        .cloned()
        .collect();
    let complete = record
        .members
        .iter()
        .all(|name| has_accepted(name) || !usable(name));
    (complete && !witnesses.is_empty()).then_some(witnesses)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `a b` as a set.
    fn set(names: &str) -> BTreeSet<ReplicaName> {
        names.split_whitespace().map(ReplicaName::from).collect()
    }

    /// `e3/4 v7 a b`: epoch 3 of 4 issued, version 7, members a and b.
    fn show(record: &InSyncRecord) -> String {
        let members: Vec<_> = record.members.iter().map(ReplicaName::as_str).collect();
        format!(
            "e{}/{} v{} {}",
            record.epoch,
            record.issued,
            record.version,
            members.join(" ")
        )
    }

    fn record() -> InSyncRecord {
        InSyncRecord {
            epoch: Epoch(3),
            issued: Epoch(4),
            version: Version(7),
            members: set("a b c"),
        }
    }

    /// `commit epoch version members`, `take-over epoch`, `issue`, `reserve`, `without name`.
    fn check(action: &str, expected: &str) {
        let words: Vec<&str> = action.split_whitespace().collect();
        let number = |index: usize| words[index].parse().expect("a number");
        let known = |name: &ReplicaName| name.as_str() != "stranger";
        let result = match words[0] {
            "commit" => {
                let proposal = Proposal {
                    epoch: Epoch(number(1)),
                    based_on: Version(number(2)),
                    members: set(&words[3..].join(" ")),
                };
                commit_in_sync(&record(), &proposal, known).map_err(|error| error.to_string())
            }
            "take-over" => {
                take_over(&record(), Epoch(number(1))).map_err(|error| error.to_string())
            }
            "issue" => Ok(record().issue()),
            "reserve" => Ok(record().reserve()),
            other => panic!("unknown action {other}"),
        };
        assert_eq!(
            result.as_ref().map_or_else(Clone::clone, show),
            expected,
            "{action}"
        );
    }

    #[test]
    fn commits_name_their_epoch_and_version() {
        check("commit 3 7 a b", "e3/4 v8 a b");
        check("commit 3 7 a b c d", "e3/4 v8 a b c d");
        check("commit 3 7 a b c", "e3/4 v8 a b c");
        check(
            "commit 2 7 a b",
            "epoch 2 has been superseded by epoch 3: the engine is fenced and must stop",
        );
        check(
            "commit 4 7 a b",
            "epoch 4 is not the writer yet (epoch 3 is): take over first",
        );
        check(
            "commit 3 6 a",
            "the in-sync set has moved from version 6 to 7: read it and propose again",
        );
        check(
            "commit 3 8 a",
            "the in-sync set has moved from version 8 to 7: read it and propose again",
        );
        check(
            "commit 3 7",
            "an empty in-sync set would leave nobody with the acknowledged writes",
        );
        check(
            "commit 3 7 a stranger",
            "replica stranger is not a replica of this volume",
        );
    }

    #[test]
    fn epochs_only_grow() {
        check("issue", "e5/5 v8 a b c");
        check("reserve", "e3/5 v7 a b c");
        check("take-over 4", "e4/4 v8 a b c");
        check("take-over 3", "epoch 3 has been superseded by epoch 3");
        check(
            "take-over 5",
            "epoch 5 was never given out (the largest is 4)",
        );
    }

    #[test]
    fn acknowledging_waits_for_every_set_that_may_have_been_committed() {
        let record = record();
        let proposal = |version, members| Proposal {
            epoch: Epoch(3),
            based_on: Version(version),
            members: set(members),
        };
        let required = |unanswered: &[Proposal]| -> Vec<String> {
            record
                .required(unanswered)
                .into_iter()
                .map(ToString::to_string)
                .collect()
        };
        assert_eq!(required(&[]), ["a", "b", "c"]);
        assert_eq!(
            required(&[proposal(7, "a b c d"), proposal(7, "a b c")]),
            ["a", "b", "c", "d"]
        );
        assert_eq!(
            required(&[proposal(6, "a d")]),
            ["a", "b", "c"],
            "answered by a later version"
        );
    }

    #[test]
    fn a_fence_needs_every_usable_member_and_at_least_one() {
        let check = |usable: &str, accepted: &str, expected: Option<&str>| {
            let accepted = accepted
                .split_whitespace()
                .map(|pair| {
                    let (name, epoch) = pair.split_once('@').expect("name@epoch");
                    (name.into(), Epoch(epoch.parse().expect("a number")))
                })
                .collect();
            let usable = set(usable);
            let proof = fenced_by(&record(), |name| usable.contains(name), &accepted);
            assert_eq!(proof, expected.map(set));
        };
        check("a b c", "a@3 b@3 c@3", Some("a b c"));
        check("a b c", "a@3 b@3 c@2", None);
        check("a b", "a@3 b@4 c@2", Some("a b"));
        check("", "a@2", None);
        check("", "a@3", Some("a"));
        check("", "d@3", None);
    }
}
