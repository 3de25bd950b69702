//! What an engine is told about its proposal. The answer comes from the API, never from this process's own memory:
//! an engine may leave a replica behind, or count on one, only when every later engine will know of it.

use std::collections::BTreeSet;

use engine::control::{Proposal, Verdict};

/// The in-sync set as the engine's object shows it: a copy of what the Volume has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    pub epoch: u64,
    pub version: u64,
    pub members: BTreeSet<String>,
}

/// The answer that can be given now; `None` while there is none and the engine has to wait.
///
/// `volume_epoch` is the epoch that the Volume has, where it was read.
#[must_use]
pub fn verdict(
    proposal: &Proposal,
    recorded: &Recorded,
    volume_epoch: Option<u64>,
) -> Option<Verdict> {
    let newest = volume_epoch.unwrap_or(0).max(recorded.epoch);
    if newest > proposal.epoch {
        let why = format!(
            "epoch {newest} was issued for volume {}; this engine has epoch {}",
            proposal.volume, proposal.epoch
        );
        return Some(Verdict::Fenced { why });
    }
    if recorded.epoch < proposal.epoch || recorded.version < proposal.generation {
        return None;
    }
    let proposed: BTreeSet<String> = proposal.in_sync.iter().cloned().collect();
    if recorded.version == proposal.generation && recorded.members == proposed {
        return Some(Verdict::Recorded);
    }
    let members: Vec<&str> = recorded.members.iter().map(String::as_str).collect();
    let why = format!(
        "version {} of the in-sync set is {}, not what this engine proposed",
        recorded.version,
        members.join(", ")
    );
    Some(Verdict::NotNow { why })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(members: &str) -> BTreeSet<String> {
        members.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn only_the_very_proposal_is_recorded() {
        // The engine of epoch 5 proposes version 8: "a b".
        let proposal = Proposal {
            volume: "v".into(),
            epoch: 5,
            generation: 8,
            in_sync: vec!["b".into(), "a".into()],
            addresses: vec![],
            replaces: vec![],
            reasons: vec![],
        };
        let check =
            |epoch, version, members: &str, volume_epoch: Option<u64>, expected: Option<&str>| {
                let recorded = Recorded {
                    epoch,
                    version,
                    members: set(members),
                };
                let verdict = verdict(&proposal, &recorded, volume_epoch);
                let kind = verdict.as_ref().map(|verdict| match verdict {
                    Verdict::Recorded => "recorded",
                    Verdict::NotNow { .. } => "not now",
                    Verdict::Fenced { .. } => "fenced",
                });
                assert_eq!(
                    kind, expected,
                    "{epoch} {version} {members} {volume_epoch:?}"
                );
            };
        // Nothing was recorded yet: the engine waits.
        check(5, 7, "a b c", None, None);
        check(5, 7, "a b", Some(5), None);
        check(5, 8, "a b", None, Some("recorded"));
        check(5, 8, "a b", Some(5), Some("recorded"));
        // Another set under that version, or a later version, is not the proposal.
        check(5, 8, "a b c", None, Some("not now"));
        check(5, 8, "a", None, Some("not now"));
        check(5, 9, "a b", None, Some("not now"));
        // A newer engine, seen in either place.
        check(6, 8, "a b", None, Some("fenced"));
        check(5, 8, "a b", Some(6), Some("fenced"));
        check(5, 7, "a b c", Some(6), Some("fenced"));
        // An object of an older epoch says nothing about this engine's proposal.
        check(4, 8, "a b", None, None);
    }
}
