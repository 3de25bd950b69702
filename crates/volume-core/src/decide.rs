//! The decision, from the in-sync record down to each replica.
//!
//! Order matters: the record is settled first, because every later step reads it; lost engines are
//! fenced before anything is started; replicas are added and removed only around a running engine.

mod attach;
mod draft;
mod fence;
mod jobs;
mod membership;
mod migration;
mod replenish;
mod retire;
mod revive;

use std::collections::BTreeSet;

use draft::Draft;

use crate::identity::{EngineName, NodeName, ReplicaName, Timestamp};
use crate::plan::{EngineDesired, EngineSpec, Robustness, VolumePlan, VolumeState};
use crate::reason::Reason;
use crate::view::{EngineRunning, ReplicaMode, VolumeView};

/// What should be written next for this volume, and why.
///
/// Total, deterministic, and idempotent: deciding again after the plan was written changes nothing
/// until something else is observed.
pub fn decide(view: &VolumeView, now: Timestamp) -> VolumePlan {
    let mut draft = Draft::new(view, now);
    migration::finish_hand_over(&mut draft);
    // Also of a volume that is deleted: an engine ends in order only when it has its answer.
    membership::commit_proposals(&mut draft);
    if view.volume.deleting {
        retire::delete_everything(&mut draft);
        draft.publish_record();
        return draft.finish();
    }
    membership::mark_failed_replicas(&mut draft);
    jobs::open(&mut draft);
    replenish::create_first_replicas(&mut draft);
    fence::supersede_lost_engine(&mut draft);
    fence::record_proof(&mut draft);
    revive::salvage(&mut draft);
    migration::hand_over_if_wanted(&mut draft);
    jobs::follow(&mut draft);
    draft.status.state = match (&view.volume.node, draft.status.record.members.is_empty()) {
        (_, true) => VolumeState::Creating,
        (Some(node), false) => attach::toward(&mut draft, node),
        (None, false) => retire::detach(&mut draft),
    };
    migration::follow(&mut draft);
    jobs::assign(&mut draft);
    replenish::maintain(&mut draft);
    jobs::expand(&mut draft);
    conclude(&mut draft);
    draft.finish()
}

/// Robustness, where the engine is, and what every engine and replica must know.
fn conclude(draft: &mut Draft<'_>) {
    let robustness = robustness(draft);
    draft.status.robustness = robustness;
    match robustness {
        Robustness::Healthy => draft.status.last_degraded_at = None,
        Robustness::Degraded => {
            draft.status.last_degraded_at.get_or_insert(draft.now);
        }
        Robustness::Faulted | Robustness::Unknown => {}
    }
    if robustness == Robustness::Faulted {
        draft.say(Reason::Faulted);
    }
    draft.status.current_node = current_node(draft);
    draft.status.current_migration_node = migration::other_node(draft);
    let running = draft.running_writer().is_some();
    draft.status.running_since = if running {
        Some(draft.status.running_since.unwrap_or(draft.now))
    } else {
        None
    };
    forget_old_failures(draft);
    // A new epoch may have made an engine superfluous that was kept above.
    let unentitled = |spec: &EngineSpec| !draft.is_entitled(spec);
    let late: BTreeSet<EngineName> = draft
        .engines
        .iter()
        .filter(|(_, spec)| unentitled(spec))
        .map(|(name, _)| name.clone())
        .collect();
    retire::wind_down(draft, |name| !late.contains(name));
    retire::drop_ended(draft);
    draft.publish_record();
}

/// Where the volume is: on its node while an engine is wanted there or has handed over, else where one still may be.
fn current_node(draft: &Draft<'_>) -> Option<NodeName> {
    let wanted = draft.view.volume.node.as_ref();
    let is_served = draft
        .engines
        .values()
        .any(|spec| Some(&spec.node) == wanted && is_wanted(spec.desired));
    // The source's engine may have ended; it is the confirmation that moves the volume.
    if is_served || attach::handed_over_to(draft).is_some() {
        return wanted.cloned();
    }
    draft
        .writer()
        .map(|(_, spec)| spec.node.clone())
        .or_else(|| draft.unreleased_node())
}

fn robustness(draft: &Draft<'_>) -> Robustness {
    let members = &draft.status.record.members;
    if members.is_empty() {
        return Robustness::Unknown;
    }
    if members.iter().all(|name| {
        draft
            .replicas
            .get(name)
            .is_none_or(|spec| spec.failed_at.is_some())
    }) {
        return Robustness::Faulted;
    }
    let Some(running) = draft.running_writer() else {
        return Robustness::Unknown;
    };
    match in_use(draft, running) {
        0 => Robustness::Unknown,
        count if count >= draft.view.volume.replicas_wanted => Robustness::Healthy,
        _ => Robustness::Degraded,
    }
}

/// Members that the engine reads and writes.
fn in_use(draft: &Draft<'_>, running: &EngineRunning) -> usize {
    let is_intact = |name: &&ReplicaName| {
        draft
            .replicas
            .get(*name)
            .is_some_and(|spec| spec.failed_at.is_none())
    };
    let is_in_use = |name: &&ReplicaName| running.modes.get(*name) == Some(&ReplicaMode::ReadWrite);
    draft
        .status
        .record
        .members
        .iter()
        .filter(is_intact)
        .filter(is_in_use)
        .count()
}

/// After a long quiet run, old failures no longer count against the volume.
fn forget_old_failures(draft: &mut Draft<'_>) {
    let Some(since) = draft.status.running_since else {
        return;
    };
    let (quiet, stable_after) = (draft.now.since(since), draft.view.settings.stable_after);
    if draft.status.salvage_attempts == 0 && draft.status.restarts.count == 0 {
        return;
    }
    if quiet >= stable_after {
        draft.status.salvage_attempts = 0;
        draft.status.restarts = crate::plan::Restarts::default();
    } else {
        draft.recheck(stable_after.saturating_sub(quiet));
    }
}

/// Is this a spec with a process behind it, as far as we want one?
fn is_wanted(desired: EngineDesired) -> bool {
    matches!(desired, EngineDesired::Running { .. })
}
