//! Which replicas of a faulted volume may be used again: verified first, and never a guess.
//!
//! Longhorn takes every replica that failed within a minute of the last one, by wall clocks of
//! different nodes. Here only members of the in-sync set qualify, because each of them has every
//! acknowledged write; among those that can be read, the newest by their own metadata are used if
//! they are identical, and older ones are rebuilt from them.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::identity::{ReplicaName, listed};
use crate::view::ReplicaVersion;

/// Why nothing was salvaged.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SalvageRefusal {
    #[error("no in-sync replica can be read: {missing} would have the newest data; replicas left behind earlier: {stale}",
        missing = listed(missing), stale = listed(stale))]
    NoMember {
        missing: BTreeSet<ReplicaName>,
        stale: BTreeSet<ReplicaName>,
    },
    #[error(
        "replicas {first} and {second} claim the same revision with different content: \
        choose one of them by name"
    )]
    Ambiguous {
        first: ReplicaName,
        second: ReplicaName,
    },
    #[error("replica {0} has not reported what it contains yet")]
    NotVerified(ReplicaName),
    #[error(
        "{attempts} automatic salvages did not last: look at the replicas' errors, then salvage by name"
    )]
    TooManyAttempts { attempts: u32 },
}

/// The replicas that are identical to the newest one.
pub fn newest_identical(
    candidates: &BTreeMap<ReplicaName, &ReplicaVersion>,
) -> Result<BTreeSet<ReplicaName>, SalvageRefusal> {
    let age = |version: &ReplicaVersion| (version.epoch, version.revision);
    let Some((newest_name, newest)) = candidates.iter().max_by_key(|(_, version)| age(version))
    else {
        return Err(SalvageRefusal::NoMember {
            missing: BTreeSet::new(),
            stale: BTreeSet::new(),
        });
    };
    let mut chosen = BTreeSet::new();
    for (name, version) in candidates
        .iter()
        .filter(|(_, version)| age(version) == age(newest))
    {
        if version != newest {
            return Err(SalvageRefusal::Ambiguous {
                first: name.clone(),
                second: newest_name.clone(),
            });
        }
        chosen.insert(name.clone());
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Epoch;

    /// `name=epoch.revision.digest`.
    fn check(candidates: &str, expected: &str) {
        let versions: BTreeMap<ReplicaName, ReplicaVersion> = candidates
            .split_whitespace()
            .map(|text| {
                let (name, version) = text.split_once('=').expect("name=version");
                let numbers: Vec<u64> = version
                    .split('.')
                    .map(|n| n.parse().expect("a number"))
                    .collect();
                let version = ReplicaVersion {
                    epoch: Epoch(numbers[0]),
                    revision: numbers[1],
                    size_bytes: 1,
                    snapshots: Vec::new(),
                    digest: numbers[2],
                };
                (name.into(), version)
            })
            .collect();
        let borrowed = versions
            .iter()
            .map(|(name, version)| (name.clone(), version))
            .collect();
        let answer = match newest_identical(&borrowed) {
            Ok(chosen) => listed(&chosen),
            Err(refusal) => refusal.to_string(),
        };
        assert_eq!(answer, expected, "{candidates}");
    }

    #[test]
    fn the_newest_and_identical_ones_are_chosen() {
        check("a=1.5.7 b=1.5.7 c=1.5.7", "a, b, c");
        check("a=1.5.7 b=1.6.8 c=1.6.8", "b, c");
        check("a=2.1.7 b=1.9.8", "a");
        check("a=1.5.7", "a");
    }

    #[test]
    fn a_tie_with_different_content_is_not_guessed() {
        check(
            "a=1.5.7 b=1.5.8",
            "replicas a and b claim the same revision with different content: choose one of them by name",
        );
        check("a=1.4.7 b=1.4.8 c=1.5.9", "c");
        check(
            "",
            "no in-sync replica can be read: none would have the newest data; replicas left behind earlier: none",
        );
    }
}
