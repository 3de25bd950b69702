//! Verification: what disks have made of snapshots, judged by their digests.
//!
//! A snapshot does not change, and every replica shows the same for it. So a digest that is not what it was, or not what the
//! others have, means that a disk has changed something by itself, or never wrote it.

use std::collections::BTreeMap;

use crate::names::ReplicaName;

pub type Digest = [u8; 32];

/// What one replica found when it read all that a snapshot shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// What it found and kept before.
    AsItWas(Digest),
    /// There is nothing to compare it with but other replicas. From now on there is.
    FirstTime(Digest),
    /// Not what it found before.
    Changed { kept: Option<Digest>, why: String },
    /// The snapshot is not there: it was deleted a moment ago, or the replica was left behind.
    Missing,
    /// Nobody can tell.
    Unread { why: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotVerdict {
    AsItWas,
    FirstTime,
    /// The disk has changed it. Rebuild this replica.
    ChangedOnDisk {
        why: String,
    },
    /// Most others show something else; or no content has a majority, and this is said of all.
    DiffersFromOthers,
    Missing,
    Unread {
        why: String,
    },
}

impl SnapshotVerdict {
    /// Whether there is damage.
    #[must_use]
    pub fn is_wrong(&self) -> bool {
        match self {
            Self::ChangedOnDisk { .. } | Self::DiffersFromOthers => true,
            Self::AsItWas | Self::FirstTime | Self::Missing | Self::Unread { .. } => false,
        }
    }

    /// Whether there may be damage that nobody has looked for.
    #[must_use]
    pub fn is_open(&self) -> bool {
        match self {
            Self::Missing | Self::Unread { .. } => true,
            Self::AsItWas
            | Self::FirstTime
            | Self::ChangedOnDisk { .. }
            | Self::DiffersFromOthers => false,
        }
    }
}

/// Judges one snapshot by what all replicas found. A replica whose disk has changed it still says what it once was.
#[must_use]
pub fn judge(found: &BTreeMap<ReplicaName, Found>) -> BTreeMap<ReplicaName, SnapshotVerdict> {
    let right = majority(found.values().filter_map(digest));
    let verdict = |found: &Found| match found {
        Found::Changed { why, .. } => SnapshotVerdict::ChangedOnDisk { why: why.clone() },
        Found::Missing => SnapshotVerdict::Missing,
        Found::Unread { why } => SnapshotVerdict::Unread { why: why.clone() },
        Found::AsItWas(digest) | Found::FirstTime(digest) if right != Some(*digest) => {
            SnapshotVerdict::DiffersFromOthers
        }
        Found::AsItWas(_) => SnapshotVerdict::AsItWas,
        Found::FirstTime(_) => SnapshotVerdict::FirstTime,
    };
    found
        .iter()
        .map(|(replica, found)| (replica.clone(), verdict(found)))
        .collect()
}

fn digest(found: &Found) -> Option<Digest> {
    match found {
        Found::AsItWas(digest) | Found::FirstTime(digest) => Some(*digest),
        Found::Changed { kept, .. } => *kept,
        Found::Missing | Found::Unread { .. } => None,
    }
}

/// What more than half have.
fn majority(digests: impl Iterator<Item = Digest>) -> Option<Digest> {
    let mut votes: BTreeMap<Digest, usize> = BTreeMap::new();
    for digest in digests {
        *votes.entry(digest).or_default() += 1;
    }
    let all: usize = votes.values().sum();
    let most = votes.into_iter().max_by_key(|(_, votes)| *votes)?;
    (most.1 * 2 > all).then_some(most.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One replica a word: `5` found before and now, `5?` for the first time, `5!` kept and not found now, `-` missing,
    /// `x` unread. The verdicts in the same order: `same`, `first`, `changed`, `differs`, `missing`, `unread`.
    fn check(row: &str, wanted: &str) {
        let found = row.split_whitespace().enumerate().map(|(at, word)| {
            let digest = || {
                let digits = word.trim_end_matches(['?', '!']);
                [digits.parse().expect("a number"); 32]
            };
            let why = String::new();
            let found = match word {
                "-" => Found::Missing,
                "x" => Found::Unread { why },
                word if word.ends_with('?') => Found::FirstTime(digest()),
                word if word.ends_with('!') => Found::Changed {
                    kept: Some(digest()),
                    why,
                },
                _ => Found::AsItWas(digest()),
            };
            let name = ReplicaName::new(&format!("r{at}")).expect("a name");
            (name, found)
        });
        let verdicts = judge(&found.collect());
        let words: Vec<&str> = verdicts
            .values()
            .map(|verdict| match verdict {
                SnapshotVerdict::AsItWas => "same",
                SnapshotVerdict::FirstTime => "first",
                SnapshotVerdict::ChangedOnDisk { .. } => "changed",
                SnapshotVerdict::DiffersFromOthers => "differs",
                SnapshotVerdict::Missing => "missing",
                SnapshotVerdict::Unread { .. } => "unread",
            })
            .collect();
        assert_eq!(words.join(" "), wanted, "{row}");
    }

    #[test]
    fn damage_is_told_from_its_absence() {
        check("", "");
        check("5", "same");
        check("5 5? 5", "same first same");
        check("5! 5 5", "changed same same");
        check("6? 5? 5?", "differs first first");
        check("6 5 5?", "differs same first");
        // Two that say different things: neither can be believed.
        check("5? 6?", "differs differs");
        // What a damaged one once had speaks for the other, or against it.
        check("5! 5?", "changed first");
        check("5! 6?", "changed differs");
        check("5! 6? 6?", "changed first first");
        check("- 5 5", "missing same same");
        check("x 5", "unread same");
        check("x -", "unread missing");
    }
}
