//! What an engine is told about its proposal. The answer comes from the API, never from this process's own memory:
//! an engine may leave a replica behind, or count on one, only when every later engine will know of it.

use std::collections::BTreeSet;

use api_types::Volume;
use engine::control::{Proposal, Verdict};

use super::engine_plan::Wanted;

/// An in-sync set as an object shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    pub epoch: u64,
    pub version: u64,
    pub members: BTreeSet<String>,
}

impl Recorded {
    /// The record itself.
    #[must_use]
    pub fn in_volume(volume: &Volume) -> Option<Self> {
        let status = volume.status.as_ref()?;
        Some(Self {
            epoch: u64::try_from(status.epoch).ok()?,
            version: u64::try_from(status.in_sync_version).ok()?,
            members: status.in_sync_replicas.iter().cloned().collect(),
        })
    }

    /// The engine's copy of it.
    #[must_use]
    pub fn in_engine(engine: &Wanted) -> Self {
        Self {
            epoch: engine.epoch,
            version: engine.version,
            members: engine.in_sync.clone(),
        }
    }
}

/// The answer that can be given now; `None` while there is none and the engine has to wait.
///
/// The Volume's word counts, where there is one. Engines have copies of it, and every agent's account may write to every Engine,
/// because rules cannot tell its finalizers from the rest, nor one node's Engines from another's; nobody but the manager writes
/// the record.
#[must_use]
pub fn verdict(proposal: &Proposal, copy: &Recorded, volume: Option<&Recorded>) -> Option<Verdict> {
    let recorded = volume.unwrap_or(copy);
    let newest = recorded.epoch.max(copy.epoch);
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
        let recorded = |(epoch, version, members): (u64, u64, &str)| Recorded {
            epoch,
            version,
            members: set(members),
        };
        let check =
            |copy: (u64, u64, &str), volume: Option<(u64, u64, &str)>, expected: Option<&str>| {
                let shown = format!("{copy:?} {volume:?}");
                let verdict = verdict(&proposal, &recorded(copy), volume.map(recorded).as_ref());
                let kind = verdict.as_ref().map(|verdict| match verdict {
                    Verdict::Recorded => "recorded",
                    Verdict::NotNow { .. } => "not now",
                    Verdict::Fenced { .. } => "fenced",
                });
                assert_eq!(kind, expected, "{shown}");
            };
        let (before, recorded) = ((5, 7, "a b c"), (5, 8, "a b"));
        // Nothing was recorded yet: the engine waits.
        check(before, None, None);
        check(before, Some(before), None);
        check((5, 7, "a b"), Some((5, 7, "a b")), None);
        check(recorded, None, Some("recorded"));
        check(recorded, Some(recorded), Some("recorded"));
        // The copy comes later.
        check(before, Some(recorded), Some("recorded"));
        // What the Volume does not say is not recorded, whoever wrote it into the Engine.
        check(recorded, Some(before), None);
        check(recorded, Some((5, 8, "a b c")), Some("not now"));
        // Another set under that version, or a later version, is not the proposal.
        check((5, 8, "a b c"), None, Some("not now"));
        check((5, 8, "a"), None, Some("not now"));
        check((5, 9, "a b"), None, Some("not now"));
        // A newer engine, seen in either place.
        check((6, 8, "a b"), None, Some("fenced"));
        check(recorded, Some((6, 8, "a b")), Some("fenced"));
        check(before, Some((6, 8, "a b c")), Some("fenced"));
        // A record of an older epoch says nothing about this engine's proposal.
        check((4, 8, "a b"), None, None);
        check(recorded, Some((4, 8, "a b")), None);
    }
}
