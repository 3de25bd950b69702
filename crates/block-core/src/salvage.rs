//! Salvage: when all records but the replicas' own are lost, which replicas may the volume be started from?
//!
//! An engine writes a [`SyncMeta`] to every member of a new in-sync set before it acknowledges a write under that set.
//! So each acknowledged write is on replicas that know of its set or a newer one, and the newest record among *all*
//! members that it names cannot have been overtaken unseen. If one of these members is missing, it may be the one that
//! went on alone: then this refuses to guess.
//!
//! That a replica took a write does not mean that it still has it: a machine that is restarted forgets what was not
//! flushed. So those that say that theirs was are left behind, as an engine does it, unless all were.

use std::collections::BTreeSet;

use crate::epoch::Epoch;
use crate::names::ReplicaName;
use crate::wire::{ReplicaMode, SyncMeta};

/// What one replica says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The name under which the caller knows the replica.
    pub replica: ReplicaName,
    pub mode: ReplicaMode,
    /// The epoch and content of the last record, if an engine ever wrote one.
    pub sync: Option<(Epoch, SyncMeta)>,
    /// The digest of the live volume, if the caller had it computed.
    pub digest: Option<[u8; 32]>,
    /// Whether the replica stopped by itself, after a failed disk.
    pub faulted: bool,
    /// Whether its machine was restarted since an engine opened it which did not end in order: what was acknowledged and
    /// not flushed may be missing.
    pub restarted: bool,
}

/// Whether the newest replicas are equal to the last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identical {
    /// The engine closed in order on all of them, or their digests are equal.
    Yes,
    /// Their digests differ: each has all acknowledged writes (flushed ones, if all were restarted), but not the same
    /// others. Start from one.
    No,
    /// No proof either way: start from one and rebuild the others.
    Unknown,
}

/// Where to start from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub epoch: Epoch,
    pub generation: u64,
    /// Replicas that have every acknowledged write, unless [`Verdict::all_restarted`].
    pub newest: BTreeSet<ReplicaName>,
    /// The machines of all of these were restarted: each has every write that was flushed, none is known to have
    /// what was only acknowledged.
    pub all_restarted: bool,
    pub identical: Identical,
    /// Replicas that must be rebuilt, whatever they hold.
    pub outdated: BTreeSet<ReplicaName>,
}

/// Why there is no safe answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SalvageRefusal {
    #[error("no replica was given")]
    NoReplicas,
    #[error("replica {replica} was given twice")]
    GivenTwice { replica: ReplicaName },
    #[error("no replica has a record of an in-sync set")]
    NoRecord,
    #[error("replica {replica} calls itself {recorded}: replicas were mixed up")]
    NameMismatch {
        replica: ReplicaName,
        recorded: ReplicaName,
    },
    #[error(
        "replicas {one} and {other} name different sets for epoch {epoch}, generation {generation}"
    )]
    Contradiction {
        one: ReplicaName,
        other: ReplicaName,
        epoch: Epoch,
        generation: u64,
    },
    #[error(
        "the newest record (generation {generation}) also names {}: bring them back, they may have newer data",
        list(missing)
    )]
    MissingMembers {
        generation: u64,
        missing: BTreeSet<ReplicaName>,
    },
    #[error(
        "all replicas of the newest set (generation {generation}) are faulted or were being rebuilt"
    )]
    NoneUsable { generation: u64 },
}

/// Says which replicas have every acknowledged write, or why nobody can know.
pub fn salvage(evidence: &[Evidence]) -> Result<Verdict, SalvageRefusal> {
    check_names(evidence)?;
    let records = || {
        evidence
            .iter()
            .filter_map(|one| Some((one, one.sync.as_ref()?)))
    };
    let (witness, (epoch, record)) = records()
        .max_by_key(|(_, (epoch, record))| (*epoch, record.generation))
        .ok_or(if evidence.is_empty() {
            SalvageRefusal::NoReplicas
        } else {
            SalvageRefusal::NoRecord
        })?;
    let (epoch, generation) = (*epoch, record.generation);
    let members: BTreeSet<ReplicaName> = record.in_sync.iter().cloned().collect();
    for (other, (other_epoch, other_record)) in records() {
        let same_version = (*other_epoch, other_record.generation) == (epoch, generation);
        if same_version
            && other_record
                .in_sync
                .iter()
                .cloned()
                .collect::<BTreeSet<_>>()
                != members
        {
            let (one, other) = (witness.replica.clone(), other.replica.clone());
            return Err(SalvageRefusal::Contradiction {
                one,
                other,
                epoch,
                generation,
            });
        }
    }
    let given: BTreeSet<ReplicaName> = evidence.iter().map(|one| one.replica.clone()).collect();
    let missing: BTreeSet<ReplicaName> = members.difference(&given).cloned().collect();
    if !missing.is_empty() {
        return Err(SalvageRefusal::MissingMembers {
            generation,
            missing,
        });
    }
    // A member that does not hold the newest record itself was not there when it was written: it may lack a write that
    // was acknowledged under the set before.
    let usable = |one: &&Evidence| {
        let holds_newest = one
            .sync
            .as_ref()
            .is_some_and(|(of, sync)| (*of, sync.generation) == (epoch, generation));
        holds_newest
            && members.contains(&one.replica)
            && one.mode == ReplicaMode::Ready
            && !one.faulted
    };
    let (restarted, intact): (Vec<&Evidence>, Vec<&Evidence>) = evidence
        .iter()
        .filter(usable)
        .partition(|one| one.restarted);
    // If all were restarted, none is better than another.
    let all_restarted = intact.is_empty();
    let newest = if all_restarted { restarted } else { intact };
    if newest.is_empty() {
        return Err(SalvageRefusal::NoneUsable { generation });
    }
    let names: BTreeSet<ReplicaName> = newest.iter().map(|one| one.replica.clone()).collect();
    Ok(Verdict {
        epoch,
        generation,
        identical: compare(&newest),
        outdated: given.difference(&names).cloned().collect(),
        newest: names,
        all_restarted,
    })
}

fn check_names(evidence: &[Evidence]) -> Result<(), SalvageRefusal> {
    let mut seen = BTreeSet::new();
    for one in evidence {
        if !seen.insert(&one.replica) {
            return Err(SalvageRefusal::GivenTwice {
                replica: one.replica.clone(),
            });
        }
        if let Some((_, record)) = &one.sync
            && record.replica != one.replica
        {
            let recorded = record.replica.clone();
            return Err(SalvageRefusal::NameMismatch {
                replica: one.replica.clone(),
                recorded,
            });
        }
    }
    Ok(())
}

fn compare(newest: &[&Evidence]) -> Identical {
    let digests: Option<BTreeSet<[u8; 32]>> = newest.iter().map(|one| one.digest).collect();
    if let Some(digests) = digests {
        return if digests.len() == 1 {
            Identical::Yes
        } else {
            Identical::No
        };
    }
    let closed_in_order = newest
        .iter()
        .all(|one| one.sync.as_ref().is_some_and(|(_, sync)| sync.clean));
    if newest.len() == 1 || closed_in_order {
        Identical::Yes
    } else {
        Identical::Unknown
    }
}

fn list(names: &BTreeSet<ReplicaName>) -> String {
    names
        .iter()
        .map(ReplicaName::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One replica from text: `name epoch.generation{members}` and the words `clean`, `rebuilding`, `faulted`,
    /// `restarted`, `digest=N`.
    fn evidence(text: &str) -> Vec<Evidence> {
        text.split(';')
            .map(str::trim)
            .filter(|row| !row.is_empty())
            .map(one)
            .collect()
    }

    fn one(row: &str) -> Evidence {
        let name = |text: &str| ReplicaName::new(text).expect("a name");
        let mut words = row.split_whitespace();
        let replica = name(words.next().expect("a name"));
        let mut found = Evidence {
            replica: replica.clone(),
            mode: ReplicaMode::Ready,
            sync: None,
            digest: None,
            faulted: false,
            restarted: false,
        };
        for word in words {
            match word.split_once('{') {
                Some((version, members)) => {
                    let (epoch, generation) = version.split_once('.').expect("epoch.generation");
                    let in_sync = members.trim_end_matches('}').split(',').map(name).collect();
                    let generation = generation.parse().expect("a generation");
                    let record = SyncMeta {
                        replica: replica.clone(),
                        generation,
                        in_sync,
                        clean: false,
                    };
                    found.sync = Some((Epoch(epoch.parse().expect("an epoch")), record));
                }
                None if word == "clean" => found.sync.as_mut().expect("a record").1.clean = true,
                None if word == "rebuilding" => found.mode = ReplicaMode::Rebuilding,
                None if word == "faulted" => found.faulted = true,
                None if word == "restarted" => found.restarted = true,
                None => {
                    let digest = word.strip_prefix("digest=").expect("a digest");
                    found.digest = Some([digest.parse().expect("a number"); 32]);
                }
            }
        }
        found
    }

    fn check(text: &str, wanted: &str) {
        let found = match salvage(&evidence(text)) {
            Ok(verdict) => format!("{} {:?}", list(&verdict.newest), verdict.identical),
            Err(refusal) => format!("refused: {refusal}"),
        };
        assert!(
            found.starts_with(wanted),
            "{text}\n found {found}\nwanted {wanted}"
        );
    }

    #[test]
    fn only_what_is_certain_is_chosen() {
        check("", "refused: no replica was given");
        check("a; b", "refused: no replica has a record");
        check("a 3.1{a,b} clean; b 3.1{a,b} clean", "a, b Yes");
        check("a 3.1{a,b}; b 3.1{a,b}", "a, b Unknown");
        check("a 3.1{a,b} digest=4; b 3.1{a,b} digest=4", "a, b Yes");
        check(
            "a 3.1{a,b} clean digest=4; b 3.1{a,b} clean digest=5",
            "a, b No",
        );
        check("a 3.1{a}", "a Yes");
        check("a 3.1{a,b,c}; b 3.2{b,c}; c 3.2{b,c}", "b, c Unknown");
        check("a 3.1{a,b,c}; b 4.2{b}", "b Yes");
        check("a 3.1{a,b,c}; b 4.2{a,b}", "b Yes");
        check(
            "a 3.1{a,b,c}; b 3.1{a,b,c}",
            "refused: the newest record (generation 1) also names c",
        );
        check(
            "b 3.2{b,c}",
            "refused: the newest record (generation 2) also names c",
        );
        check("a 3.1{a,b}; b 3.1{b}", "refused: replicas");
        check(
            "a 3.1{a} rebuilding",
            "refused: all replicas of the newest set",
        );
        check("a 3.1{a,b} faulted; b 3.1{a,b}", "b Yes");
        check("a 3.1{a}; a 3.1{a}", "refused: replica a was given twice");
    }

    #[test]
    fn who_may_lack_writes_is_left_behind_unless_all_may() {
        let check = |text: &str, newest: &str, outdated: &str, all_restarted: bool| {
            let verdict = salvage(&evidence(text)).expect("a verdict");
            assert_eq!(list(&verdict.newest), newest, "{text}");
            assert_eq!(list(&verdict.outdated), outdated, "{text}");
            assert_eq!(verdict.all_restarted, all_restarted, "{text}");
        };
        check("a 3.1{a,b}; b 3.1{a,b}", "a, b", "", false);
        check("a 3.1{a,b} restarted; b 3.1{a,b}", "b", "a", false);
        check(
            "a 3.1{a,b,c}; b 3.1{a,b,c} restarted; c 3.1{a,b,c}",
            "a, c",
            "b",
            false,
        );
        check(
            "a 3.1{a,b} restarted; b 3.1{a,b} restarted",
            "a, b",
            "",
            true,
        );
        check("a 3.1{a} restarted", "a", "", true);
        // Only one that could be started from makes the others superfluous.
        check(
            "a 3.1{a,b,c} restarted; b 3.1{a,b,c} faulted; c 2.1{a,b,c}",
            "a",
            "b, c",
            true,
        );
        // It was left behind before, whatever has become of it since.
        check("a 3.2{a}; b 3.1{a,b} restarted", "a", "b", false);
    }

    #[test]
    fn mixed_up_replicas_are_refused() {
        let mut given = evidence("a 3.1{a,b}; b 3.1{a,b}");
        given[0].sync.as_mut().expect("a record").1.replica =
            ReplicaName::new("b").expect("a name");
        assert!(matches!(
            salvage(&given),
            Err(SalvageRefusal::NameMismatch { .. })
        ));
    }
}
