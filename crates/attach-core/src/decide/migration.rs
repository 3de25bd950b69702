//! Migration: the one case in which a volume is on two nodes, and moves from one to the other without
//! being detached.

use crate::migration::{MigrationRecord, Phase};
use crate::names::NodeName;
use crate::plan::Action;
use crate::reasons::Reason;
use crate::view::{Sharing, View, VolumeSpec};

use super::draft::Draft;
use super::is_settled_on;
use super::tickets::Tickets;

/// A second node is wanted, or not yet given up.
pub(super) fn is_under_way(view: &View) -> bool {
    view.volume.sharing == Sharing::Migratable
        && (view.volume.spec.migration_node.is_some()
            || view.volume.status.current_migration_node.is_some())
}

/// The volume can be used on the migration's target.
pub(super) fn is_available_on(view: &View, tickets: &Tickets<'_>, target: &NodeName) -> bool {
    // An engine there that the volume does not know of yet is a leftover of an earlier migration.
    if view.volume.status.current_migration_node.as_ref() != Some(target) {
        return false;
    }
    if view.engines.complete {
        return view.engines.is_available_on(target);
    }
    // A dump without engines: the best evidence is what the controller said when it could see them.
    tickets
        .csi()
        .filter(|ticket| ticket.node == *target)
        .any(|ticket| {
            view.statuses
                .get(&ticket.id)
                .is_some_and(|status| status.satisfies(ticket))
        })
}

/// Starts a migration if the tickets ask for one.
pub(super) fn start(
    view: &View,
    tickets: &Tickets<'_>,
    draft: &mut Draft,
    source: &NodeName,
) -> Option<Action> {
    if view.volume.sharing != Sharing::Migratable || !is_settled_on(view, source) {
        return None;
    }
    let frontend = draft.spec.disable_frontend;
    tickets.csi_on(source, frontend)?;
    let mut wanted = tickets
        .csi()
        .filter(|ticket| ticket.node != *source && ticket.frontend.accepts(frontend))
        .map(|ticket| &ticket.node)
        .peekable();
    wanted.peek()?;
    let Some(target) = wanted.find(|node| !view.nodes.condition(node).is_down()) else {
        draft.recheck_after(view.settings.recheck);
        return None;
    };
    let record = next_record(view, draft.migration.take(), source, target);
    let starts = record.phase == Phase::Preparing;
    if starts {
        draft.spec.migration_node = Some(target.clone());
        draft.recheck_at(view.now, record.deadline);
        draft.reasons.push(Reason::Migrating {
            source_node: source.clone(),
            target: target.clone(),
        });
    }
    draft.migration = Some(record);
    starts.then_some(Action::Migrate)
}

/// The record with which a migration starts, or the one that says why it does not.
fn next_record(
    view: &View,
    known: Option<MigrationRecord>,
    source: &NodeName,
    target: &NodeName,
) -> MigrationRecord {
    match known {
        Some(known) if known.is_between(source, target) => match known.phase {
            Phase::Expired => known,
            // A second try, on what is left of the first one's time.
            Phase::Interrupted if view.now < known.deadline => known.in_phase(Phase::Preparing),
            Phase::Interrupted => known.in_phase(Phase::Expired),
            Phase::Preparing
            | Phase::Ready
            | Phase::Confirming
            | Phase::RollingBack
            | Phase::Recovered => new_record(view, source, target),
        },
        // We are on the target of an interrupted migration, because its source was down.
        Some(known) if known.is_between(target, source) && is_recovery(known.phase) => {
            known.in_phase(Phase::Recovered)
        }
        _ => new_record(view, source, target),
    }
}

fn is_recovery(phase: Phase) -> bool {
    matches!(phase, Phase::Interrupted | Phase::Recovered)
}

fn new_record(view: &View, source: &NodeName, target: &NodeName) -> MigrationRecord {
    MigrationRecord {
        source: source.clone(),
        target: target.clone(),
        phase: Phase::Preparing,
        since: view.now,
        deadline: view
            .now
            .checked_add(view.settings.migration_deadline)
            .unwrap_or(jiff::Timestamp::MAX),
    }
}

/// Carries a migration one step further.
pub(super) fn advance(
    view: &View,
    tickets: &Tickets<'_>,
    draft: &mut Draft,
    source: &NodeName,
) -> Action {
    let held = tickets.matching(&draft.spec).next().is_some();
    let Some(target) = draft.spec.migration_node.clone() else {
        if !held {
            return draft.let_go(Reason::NoMatchingTicket {
                node: source.clone(),
            });
        }
        // Confirmed or rolled back: one engine is still on its way out.
        return draft.wait(Reason::Detaching {
            from: leaving(view, source),
        });
    };
    let available = is_available_on(view, tickets, &target);
    let phase = if available {
        Phase::Ready
    } else {
        Phase::Preparing
    };
    let record = draft
        .migration
        .take()
        .unwrap_or_else(|| new_record(view, source, &target))
        .in_phase(phase);
    draft.migration = Some(record.clone());
    // Whatever brought the volume down took the reason to trust its engines with it: let go, and come back.
    if !view.volume.status.is_attached_on(source) {
        draft.let_go(Reason::MigrationInterrupted { target });
        return Action::CancelMigration;
    }
    let frontend = draft.spec.disable_frontend;
    let source_wanted = tickets.csi_on(source, frontend).is_some();
    let target_wanted = tickets.csi_on(&target, frontend).is_some();
    match (source_wanted, target_wanted) {
        (true, true) => carry_on(view, draft, record),
        (false, true) => confirm(view, draft, record),
        (_, false) if held => {
            let reason = Reason::MigrationRolledBack {
                source_node: source.clone(),
                target,
            };
            roll_back(draft, record.in_phase(Phase::RollingBack), reason)
        }
        (_, false) => draft.let_go(Reason::NoMatchingTicket {
            node: source.clone(),
        }),
    }
}

/// Rolled back before anything ran on its target: nothing is left to wait for, and the volume is decided like any other.
pub(super) fn is_over_at_once(view: &View, action: Action) -> bool {
    action == Action::RollBackMigration && view.volume.status.current_migration_node.is_none()
}

/// The node whose engine is on its way out after a confirmation or a roll-back.
fn leaving(view: &View, staying: &NodeName) -> Option<NodeName> {
    let status = &view.volume.status;
    [&status.current_node, &status.current_migration_node]
        .into_iter()
        .flatten()
        .find(|node| *node != staying)
        .cloned()
}

/// Gives the migration that the volume's spec describes its record. One that others started has none yet.
pub(super) fn adopt(view: &View, draft: &mut Draft) {
    let VolumeSpec {
        node: Some(source),
        migration_node: Some(target),
        ..
    } = &view.volume.spec
    else {
        return;
    };
    let known = draft
        .migration
        .as_ref()
        .is_some_and(|record| record.is_between(source, target));
    if view.volume.sharing == Sharing::Migratable && !known {
        draft.migration = Some(new_record(view, source, target));
    }
}

/// Both tickets are there: bring the target up, then wait for the workload to choose.
fn carry_on(view: &View, draft: &mut Draft, record: MigrationRecord) -> Action {
    let MigrationRecord {
        source,
        target,
        deadline,
        ..
    } = record.clone();
    if record.phase == Phase::Ready {
        draft.reasons.push(Reason::MigrationReady { target });
        return Action::Migrate;
    }
    // The deadline is for bringing the target up. Once it writes, the volume is taken from nobody for a restart of its engine.
    if view.now >= deadline && !is_handed_over(view, &target) {
        let reason = Reason::MigrationExpired {
            source_node: source,
            target,
            deadline,
        };
        return roll_back(draft, record.in_phase(Phase::Expired), reason);
    }
    draft.recheck_at(view.now, deadline);
    draft.reasons.push(Reason::MigrationPreparing { target });
    Action::Migrate
}

/// Only the target's ticket is left: it becomes the volume's node as soon as it can be.
fn confirm(view: &View, draft: &mut Draft, record: MigrationRecord) -> Action {
    let MigrationRecord {
        source,
        target,
        deadline,
        ..
    } = record.clone();
    let available = record.phase == Phase::Ready || is_handed_over(view, &target);
    if view.nodes.condition(&target).is_down() || (!available && view.now >= deadline) {
        return draft.let_go(Reason::MigrationTargetLost { target });
    }
    if !available {
        draft.recheck_after(view.settings.recheck);
        return draft.wait(Reason::MigrationPreparing { target });
    }
    match is_safe_to_confirm(view, &source, &target) {
        None => draft.let_go(Reason::MigrationSourceLost {
            source_node: source,
        }),
        Some(false) => {
            // The engines sync by themselves, and nothing announces when they have.
            draft.recheck_after(view.settings.recheck);
            draft.wait(Reason::MigrationSnapshotsDiffer {
                source_node: source,
                target,
            })
        }
        Some(true) => {
            draft.spec.node = Some(target.clone());
            draft.spec.migration_node = None;
            draft.migration = Some(record.in_phase(Phase::Confirming));
            draft.reasons.push(Reason::MigrationConfirmed {
                source_node: source,
                target,
            });
            Action::ConfirmMigration
        }
    }
}

fn roll_back(draft: &mut Draft, record: MigrationRecord, reason: Reason) -> Action {
    draft.spec.migration_node = None;
    draft.migration = Some(record);
    draft.reasons.push(reason);
    Action::RollBackMigration
}

/// Whether the target has all that the source has; None when nobody can say that any more.
///
/// After the hand-over it has: the source can write no more, whatever it lists, and may be gone. To let go of the volume then would be
/// to take it from the one who writes. Before, both engines must know the same snapshots, as far as both have listed theirs.
fn is_safe_to_confirm(view: &View, source: &NodeName, target: &NodeName) -> Option<bool> {
    if !view.engines.complete {
        return Some(true);
    }
    if is_handed_over(view, target) {
        return Some(true);
    }
    let (source, target) = (view.engines.on(source)?, view.engines.on(target)?);
    let both = source.snapshots.as_ref().zip(target.snapshots.as_ref());
    Some(both.is_none_or(|(source, target)| source == target))
}

/// The target writes: whoever looks after the replicas has said so, and the source is shut out.
fn is_handed_over(view: &View, target: &NodeName) -> bool {
    let engine = view.engines.on(target);
    engine.is_some_and(|engine| engine.is_sole_writer)
}

/// Drops a record that has nothing left to say: no second node, and no second ticket to make one.
pub(super) fn tidy(view: &View, tickets: &Tickets<'_>, draft: &mut Draft) {
    let Some(record) = &draft.migration else {
        return;
    };
    let winding_up = view.volume.status.current_migration_node.is_some();
    let wanted = |node: &NodeName| tickets.csi().any(|ticket| ticket.node == *node);
    let both_wanted = wanted(&record.source) && wanted(&record.target);
    let migratable = view.volume.sharing == Sharing::Migratable;
    if !migratable || !(draft.spec.migration_node.is_some() || winding_up || both_wanted) {
        draft.migration = None;
    }
}
