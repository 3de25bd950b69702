//! What to do about a volume's snapshots.
//!
//! The engine has no memory of who wanted what: a snapshot that is asked for and not in the list is taken, one that is not to be and
//! is in the list is marked, and then merged away. So everything may be repeated, by this agent or the next one, and a list that
//! is older than the engine's last change says nothing.

use std::collections::{BTreeMap, BTreeSet};

use api_types::SnapshotRequest;

use super::EngineCommand;

/// One snapshot, as the engine listed it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Marked, and not merged away yet.
    pub marked: bool,
}

/// What is known of the snapshots of a running engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshots {
    /// None before the first list, and when the engine has changed something since.
    pub listed: Option<BTreeMap<String, Snapshot>>,
    /// A list, a mark or a merge is under way, or a list has failed a moment ago.
    pub busy: bool,
    /// Snapshots that are being taken or marked, or were to be a moment ago and could not.
    pub later: BTreeSet<String>,
    /// Merging has failed a moment ago.
    pub merge_later: bool,
}

impl Snapshots {
    /// The commands that bring the engine closer to what is asked for. One that is asked about something which is under way is
    /// not asked again, and nothing is concluded from a list while something changes it.
    pub(super) fn commands(
        &self,
        requests: &BTreeMap<String, SnapshotRequest>,
    ) -> Vec<EngineCommand> {
        if self.busy {
            return Vec::new();
        }
        let Some(listed) = &self.listed else {
            return vec![EngineCommand::ListSnapshots];
        };
        let mut commands = Vec::new();
        let mut merge = false;
        for (name, request) in requests {
            let known = listed.get(name);
            let later = self.later.contains(name);
            match (request, known) {
                // A name that is marked is free again when it is merged away.
                (SnapshotRequest::Take, Some(known)) if known.marked => merge = true,
                (SnapshotRequest::Take, None) if !later => {
                    commands.push(EngineCommand::TakeSnapshot { name: name.clone() });
                }
                (SnapshotRequest::Remove, Some(known)) if known.marked => merge = true,
                (SnapshotRequest::Remove, Some(_)) if !later => {
                    commands.push(EngineCommand::MarkSnapshot { name: name.clone() });
                }
                (SnapshotRequest::Take | SnapshotRequest::Remove, _) => {}
                // Of a newer controller, which has to deal with an agent that does not know it.
                (SnapshotRequest::Other(_), _) => {}
            }
        }
        if merge && !self.merge_later {
            commands.push(EngineCommand::MergeSnapshots);
        }
        commands
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::show_all;
    use super::*;

    /// "a b-" is a list with `a`, and with `b`, which is marked.
    fn listed(text: &str) -> Option<BTreeMap<String, Snapshot>> {
        let entry = |word: &str| {
            let marked = word.ends_with('-');
            (word.trim_end_matches('-').to_owned(), Snapshot { marked })
        };
        Some(text.split_whitespace().map(entry).collect())
    }

    /// "+a -b" asks for `a` to be taken and `b` to be removed.
    fn requests(text: &str) -> BTreeMap<String, SnapshotRequest> {
        let entry = |word: &str| {
            let (sign, name) = word.split_at(1);
            let request = match sign {
                "+" => SnapshotRequest::Take,
                "-" => SnapshotRequest::Remove,
                other => SnapshotRequest::from(other),
            };
            (name.to_owned(), request)
        };
        text.split_whitespace().map(entry).collect()
    }

    fn show(snapshots: &Snapshots, asked: &str) -> String {
        show_all(&snapshots.commands(&requests(asked)))
    }

    #[test]
    fn what_is_asked_for_and_not_there_is_done() {
        let rows = [
            ("", "", ""),
            ("a", "+a", ""),
            ("", "+a", "take a"),
            ("a", "+a +b", "take b"),
            ("a", "-a", "mark a"),
            ("a-", "-a", "merge"),
            ("", "-a", ""),
            ("a- b", "-a -b +c", "mark b; take c; merge"),
            // The old one has to go before a new one can have its name.
            ("a-", "+a", "merge"),
            ("a", "?a ?b", ""),
        ];
        for (list, asked, expected) in rows {
            let snapshots = Snapshots {
                listed: listed(list),
                ..Snapshots::default()
            };
            assert_eq!(show(&snapshots, asked), expected, "{list:?} {asked:?}");
        }
    }

    #[test]
    fn nothing_is_concluded_from_an_old_list() {
        let unknown = Snapshots::default();
        assert_eq!(show(&unknown, "+a -b"), "list");
        let busy = Snapshots {
            busy: true,
            ..unknown
        };
        assert_eq!(show(&busy, "+a -b"), "");
    }

    #[test]
    fn what_could_not_be_done_waits_a_moment_and_holds_up_nothing_else() {
        let snapshots = Snapshots {
            listed: listed("b c-"),
            later: BTreeSet::from(["a".to_owned(), "b".to_owned()]),
            merge_later: true,
            ..Snapshots::default()
        };
        assert_eq!(show(&snapshots, "+a -b -c +d"), "take d");
    }

    /// The control plane refuses such names before it attaches a volume, and knows nothing of engines.
    #[test]
    fn both_sides_agree_on_the_names_of_the_engine() {
        let own = engine::core::OWN_SNAPSHOT_PREFIXES;
        assert_eq!(api_types::names::ENGINE_SNAPSHOT_PREFIXES, own);
    }

    #[test]
    fn a_chain_has_room_for_what_engines_take_for_themselves() {
        // The live data, what the engine compares, and what up to three rebuilds take at once.
        let own = 5;
        let layers = block_core::wire::layer::LAYERS_MAX;
        assert_eq!(api_types::SNAPSHOTS_MAX + own, layers);
    }
}
