//! Removing replicas, only ever with enough others in use.

use std::collections::BTreeSet;

use super::staying;
use crate::decide::draft::Draft;
use crate::identity::ReplicaName;
use crate::plan::ReplicaSpec;
use crate::reason::{Reason, Removal};
use crate::view::{DataLocality, EngineRunning, ReplicaMode};

/// Replicas of emptied places leave first, then those beyond the wanted number, worst placed first.
pub(super) fn remove_evicted_and_surplus(draft: &mut Draft<'_>, running: &EngineRunning) {
    let evicting: Vec<ReplicaName> = draft
        .replicas
        .iter()
        .filter(|(_, spec)| draft.view.is_evicting(spec))
        .map(|(name, _)| name.clone())
        .collect();
    for name in evicting {
        // What is not in the set is nobody's data.
        if !draft.status.record.members.contains(&name)
            || serving(draft, running).len() >= wanted(draft)
        {
            remove(draft, &name, Removal::Evicted);
        }
    }
    while serving(draft, running).len() > wanted(draft) {
        let Some(name) = worst_placed(draft, &serving(draft, running)) else {
            return;
        };
        remove(draft, &name, Removal::Surplus);
    }
}

/// Failed replicas are kept as long as they might be useful.
pub(super) fn remove_replaced(draft: &mut Draft<'_>, running: &EngineRunning) {
    if serving(draft, running).len() < wanted(draft) {
        return;
    }
    for name in failed(draft, |name, _| !draft.status.record.members.contains(name)) {
        remove(draft, &name, Removal::Replaced);
    }
}

/// Makes room for another in its place, and says whether there is some now. It is no member: what it has is nobody's
/// data.
pub(super) fn remove_broken(draft: &mut Draft<'_>, name: &ReplicaName) -> bool {
    remove(draft, name, Removal::Broken)
}

/// What was on a disk that no longer exists is not coming back. Even a member leaves, if another one is
/// in use.
pub(super) fn remove_gone(draft: &mut Draft<'_>, running: &EngineRunning) {
    for name in failed(draft, |_, spec| draft.view.is_place_gone(spec)) {
        let is_member = draft.status.record.members.contains(&name);
        if !is_member || !serving(draft, running).is_empty() {
            remove(draft, &name, Removal::PlaceGone);
        }
    }
}

fn failed(
    draft: &Draft<'_>,
    test: impl Fn(&ReplicaName, &ReplicaSpec) -> bool,
) -> Vec<ReplicaName> {
    let failed = draft
        .replicas
        .iter()
        .filter(|(_, spec)| spec.failed_at.is_some());
    failed
        .filter(|(name, spec)| test(name, spec))
        .map(|(name, _)| name.clone())
        .collect()
}

/// Zero replicas wanted would mean to delete the data: that is not how a volume is deleted.
fn wanted(draft: &Draft<'_>) -> usize {
    draft.view.volume.replicas_wanted.max(1)
}

/// Members that stay and that the engine reads and writes right now.
fn serving(draft: &Draft<'_>, running: &EngineRunning) -> BTreeSet<ReplicaName> {
    let is_in_use = |name: &ReplicaName| {
        let is_intact = draft
            .replicas
            .get(name)
            .is_some_and(|spec| spec.failed_at.is_none());
        is_intact && running.modes.get(name) == Some(&ReplicaMode::ReadWrite)
    };
    staying(draft).into_iter().filter(is_in_use).collect()
}

fn worst_placed(draft: &Draft<'_>, candidates: &BTreeSet<ReplicaName>) -> Option<ReplicaName> {
    let engine_node = draft.writer().map(|(_, spec)| &spec.node);
    let locality = draft.view.volume.data_locality != DataLocality::Disabled;
    let specs = || {
        candidates
            .iter()
            .filter_map(|name| Some((name, draft.replicas.get(name)?)))
    };
    let zone = |spec: &ReplicaSpec| {
        draft
            .view
            .nodes
            .get(&spec.node)
            .and_then(|node| node.zone.clone())
    };
    let badness = |name: &ReplicaName, spec: &ReplicaSpec| {
        let others = || specs().filter(|(other, _)| *other != name);
        let shares_node = others().any(|(_, other)| other.node == spec.node);
        let shares_zone =
            others().any(|(_, other)| zone(other).is_some() && zone(other) == zone(spec));
        let is_precious = locality && Some(&spec.node) == engine_node;
        (!is_precious, shares_node, shares_zone, name.clone())
    };
    specs()
        .max_by_key(|(name, spec)| badness(name, spec))
        .map(|(name, _)| name.clone())
}

/// Takes a replica away; says whether it is gone. One that the engine has is left by the engine first, in order: it
/// proposes a set without it, and nobody's I/O waits for that. The object goes when nothing counts on it any more.
fn remove(draft: &mut Draft<'_>, name: &ReplicaName, why: Removal) -> bool {
    let is_member = draft.status.record.members.contains(name);
    if is_member && draft.status.record.members.len() == 1 {
        return false;
    }
    for spec in draft.engines.values_mut() {
        spec.replicas.remove(name);
    }
    draft.say(Reason::RemovingReplica {
        replica: name.clone(),
        why,
    });
    if is_member
        || draft
            .running_writer()
            .is_some_and(|running| counts_on(running, name))
    {
        return false;
    }
    draft.replicas.remove(name);
    true
}

/// Whether the engine uses a replica, or asks for it to be recorded as one with all the data.
fn counts_on(running: &EngineRunning, name: &ReplicaName) -> bool {
    let mode = running.modes.get(name);
    matches!(mode, Some(ReplicaMode::ReadWrite | ReplicaMode::WriteOnly))
        || running
            .proposal
            .as_ref()
            .is_some_and(|proposal| proposal.members.contains(name))
}
