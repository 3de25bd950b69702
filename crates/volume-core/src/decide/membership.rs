//! The in-sync record: commits what the writer proposes, and marks who fell behind.

use std::collections::BTreeSet;

use super::draft::{Draft, Fate};
use crate::epoch::{Proposal, commit_in_sync};
use crate::identity::ReplicaName;
use crate::plan::{EngineRole, ReplicaRole};
use crate::reason::Reason;
use crate::view::{ReplicaMode, ReplicaObserved};

/// Answers the writer's proposal, if it has one that has not been answered.
pub(super) fn commit_proposals(draft: &mut Draft<'_>) {
    let proposals: Vec<Proposal> = draft
        .engines
        .keys()
        .filter_map(|name| match draft.fate(name) {
            Fate::Alive(running) => running.proposal.clone(),
            // An engine on a silent node may have proposed before the silence. Not answering is safe:
            // it only stalls an engine that we cannot hear.
            Fate::Starting | Fate::Failed(_) | Fate::Stopped | Fate::Unreachable => None,
        })
        .collect();
    for proposal in proposals {
        // Answered already: the engine has not yet read the newer record.
        if proposal.epoch == draft.status.record.epoch
            && proposal.based_on < draft.status.record.version
        {
            continue;
        }
        // Also one that has failed since: up to now it has everything, and the engine, which waits for the answer, leaves
        // it behind with the next proposal. One whose object somebody removed is left out: all others have everything,
        // too, and the engine starts again with them. To refuse would leave the engine waiting for ever.
        let known = |name: &ReplicaName| draft.replicas.contains_key(name);
        let mut proposal = proposal;
        let current = &draft.status.record.members;
        proposal
            .members
            .retain(|name| current.contains(name) || known(name));
        match commit_in_sync(&draft.status.record, &proposal, known) {
            Ok(record) => {
                let left: BTreeSet<_> = draft
                    .status
                    .record
                    .members
                    .difference(&record.members)
                    .cloned()
                    .collect();
                let joined: BTreeSet<_> = record
                    .members
                    .difference(&draft.status.record.members)
                    .cloned()
                    .collect();
                draft.status.record = record;
                retire_leavers(draft, &left);
                list_joined(draft, &joined);
                if !left.is_empty() || !joined.is_empty() {
                    draft.say(Reason::InSyncChanged { left, joined });
                }
            }
            Err(error) => draft.say(Reason::CommitRefused { error }),
        }
    }
    adopt_members(draft);
}

/// Those that the writer was told to leave have not failed; they are just not wanted any more.
fn retire_leavers(draft: &mut Draft<'_>, left: &BTreeSet<ReplicaName>) {
    let Some(listed) = draft.writer().map(|(_, spec)| spec.replicas.clone()) else {
        return;
    };
    let now = draft.now;
    for name in left.iter().filter(|name| !listed.contains_key(*name)) {
        if let Some(spec) = draft.replicas.get_mut(name) {
            spec.failed_at = Some(now);
        }
    }
}

/// Also one that was taken off the list while its proposal was under way: the writer has to be told again.
fn list_joined(draft: &mut Draft<'_>, joined: &BTreeSet<ReplicaName>) {
    let writer = draft.writer().map(|(name, _)| name.clone());
    if let Some(spec) = writer.and_then(|name| draft.engines.get_mut(&name)) {
        let joined = joined.iter().cloned();
        spec.replicas
            .extend(joined.map(|name| (name, ReplicaRole::InSync)));
    }
}

/// The writer's replica list follows the record.
fn adopt_members(draft: &mut Draft<'_>) {
    let (record, now) = (draft.status.record.clone(), draft.now);
    let modes = draft
        .running_writer()
        .map(|running| running.modes.clone())
        .unwrap_or_default();
    for name in &record.members {
        // What the writer reads and writes has not failed, whoever marked it when; unless its own node
        // says so, which the writer will notice too.
        let is_in_use = modes.get(name) == Some(&ReplicaMode::ReadWrite)
            && !matches!(draft.observed(name), ReplicaObserved::Failed { .. })
            && draft
                .replicas
                .get(name)
                .is_some_and(|spec| !draft.view.is_place_gone(spec));
        if let Some(spec) = draft.replicas.get_mut(name)
            && (spec.healthy_at.is_none() || (is_in_use && spec.failed_at.is_some()))
        {
            spec.healthy_at = Some(now);
            spec.failed_at = None;
        }
    }
    for spec in draft.engines.values_mut() {
        if spec.epoch != record.epoch || spec.role != EngineRole::Writer {
            continue;
        }
        for (name, role) in &mut spec.replicas {
            if record.members.contains(name) {
                *role = ReplicaRole::InSync;
            }
        }
        spec.replicas
            .retain(|name, role| *role == ReplicaRole::Rebuild || record.members.contains(name));
    }
}

/// A replica has failed when it was left behind, reports an error of its own, lost its disk, or could
/// not be built. A member whose node is merely silent has not failed: it still has everything.
pub(super) fn mark_failed_replicas(draft: &mut Draft<'_>) {
    let modes = draft
        .running_writer()
        .map(|running| running.modes.clone())
        .unwrap_or_default();
    let names: Vec<ReplicaName> = draft.replicas.keys().cloned().collect();
    for name in names {
        let Some(spec) = draft.replicas.get(&name) else {
            continue;
        };
        if spec.failed_at.is_some() {
            continue;
        }
        let is_member = draft.status.record.members.contains(&name);
        let message = if draft.view.is_place_gone(spec) {
            "its disk or node no longer exists".to_owned()
        } else if let ReplicaObserved::Failed { message } = draft.observed(&name) {
            message.clone()
        } else if !is_member && spec.healthy_at.is_some() {
            "the engine went on without it".to_owned()
        } else if !is_member && modes.get(&name) == Some(&ReplicaMode::Error) {
            "its rebuild failed".to_owned()
        } else if !is_member
            && !draft.view.is_place_ready(spec)
            && modes.get(&name) != Some(&ReplicaMode::WriteOnly)
        {
            "its node or disk was lost before it was built".to_owned()
        } else {
            continue;
        };
        let now = draft.now;
        if let Some(spec) = draft.replicas.get_mut(&name) {
            spec.failed_at = Some(now);
        }
        for engine in draft.engines.values_mut() {
            if !is_member {
                engine.replicas.remove(&name);
            }
        }
        draft.say(Reason::ReplicaFailed {
            replica: name,
            message,
        });
    }
}
