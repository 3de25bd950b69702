//! The decision: given one volume and its tickets, what to write next, and why.
//!
//! ```text
//! cordon ─► what became of the last attach ─► one step for the volume ─► a status for each ticket
//! ```
//!
//! Statuses are derived from the state *after* the step and never from the step itself. That makes the decision
//! idempotent: decided again before the world has moved, it finds nothing to change.

mod cordon;
mod detachment;
mod draft;
mod migration;
mod selection;
mod status;
mod tickets;

use crate::breaker::{self, Gate, Observation, Reset};
use crate::names::NodeName;
use crate::plan::{Action, Plan};
use crate::reasons::{Party, Reason};
use crate::view::{View, VolumeState};

use draft::Draft;
use selection::Choice;
use tickets::Tickets;

/// Decides one volume. Total and deterministic: every view has exactly one plan.
#[must_use]
pub fn decide(view: &View) -> Plan {
    let mut draft = Draft::new(view);
    let tickets = Tickets::new(view, cordon::sweep(view, &mut draft));
    migration::tidy(view, &tickets, &mut draft);
    migration::adopt(view, &mut draft);
    let attach_failed = look_at_last_attach(view, &mut draft);
    let action = step(view, &tickets, &mut draft, attach_failed);
    migration::tidy(view, &tickets, &mut draft);
    watch_attach(view, &mut draft);
    status::plan(view, &tickets, draft, action)
}

/// One step of the volume. Whatever it is, the next one waits until the world has followed.
fn step(
    view: &View,
    tickets: &Tickets<'_>,
    draft: &mut Draft,
    attach_failed: Option<Reason>,
) -> Action {
    let Some(node) = draft.spec.node.clone() else {
        return step_without_node(view, tickets, draft);
    };
    if view.volume.is_faulted() {
        return draft.let_go(Reason::VolumeFaulted {
            volume: view.volume.name.clone(),
        });
    }
    let mut migrated = None;
    if migration::is_under_way(view) {
        let action = migration::advance(view, tickets, draft, &node);
        if !migration::is_over_at_once(view, action) {
            return action;
        }
        migrated = Some(action);
    }
    if let Some(reason) = attach_failed.or_else(|| detachment::cause(tickets, &draft.spec, &node)) {
        draft.let_go(reason);
        return attach_at_once(view, tickets, draft).unwrap_or(Action::Detach);
    }
    if let Some(action) = migration::start(view, tickets, draft, &node) {
        return action;
    }
    if let Some(action) = migrated {
        return action;
    }
    if view.volume.status.is_attached_on(&node) {
        if let Some(holder) = tickets.holder(&draft.spec) {
            draft.reasons.push(Reason::HeldBy {
                holder: Party::from(holder),
            });
        }
        return Action::Keep;
    }
    draft.wait(Reason::Attaching { node })
}

fn step_without_node(view: &View, tickets: &Tickets<'_>, draft: &mut Draft) -> Action {
    if let Some(target) = draft.spec.migration_node.clone() {
        draft.let_go(Reason::MigrationInterrupted { target });
        return Action::CancelMigration;
    }
    if let Some(reason) = not_detached(view) {
        return draft.wait(reason);
    }
    if tickets.candidates().next().is_none() {
        return nobody_to_serve(view, tickets, draft);
    }
    match choose(view, tickets, draft) {
        Ok(choice) => draft.attach(view, choice),
        Err(reason) => stand_still(view, draft, reason),
    }
}

/// A volume that let go before anything had begun need not wait for anything to end.
fn attach_at_once(view: &View, tickets: &Tickets<'_>, draft: &mut Draft) -> Option<Action> {
    if !view.volume.status.is_detached() {
        return None;
    }
    let choice = choose(view, tickets, draft).ok()?;
    Some(draft.attach(view, choice))
}

fn nobody_to_serve(view: &View, tickets: &Tickets<'_>, draft: &mut Draft) -> Action {
    if tickets.all().any(|ticket| tickets.is_summed_up(ticket)) {
        return draft.wait(Reason::WaitingForShare {
            volume: view.volume.name.clone(),
        });
    }
    let nobody = tickets.all().next().is_none();
    draft.reasons.push(if nobody {
        Reason::NoTickets
    } else {
        Reason::NoEligibleTicket
    });
    Action::Keep
}

fn stand_still(view: &View, draft: &mut Draft, reason: Reason) -> Action {
    let action = if matches!(reason, Reason::Held { .. }) {
        Action::Hold
    } else {
        Action::Wait
    };
    if let Reason::BackingOff { until, .. } = reason {
        draft.recheck_at(view.now, until);
    }
    draft.reasons.push(reason);
    action
}

/// Why a volume that is wanted nowhere cannot be attached yet.
fn not_detached(view: &View) -> Option<Reason> {
    let status = &view.volume.status;
    match status.state {
        _ if status.is_detached() => None,
        VolumeState::Creating | VolumeState::Deleting => Some(Reason::VolumeNotReady {
            state: status.state,
        }),
        VolumeState::Detached
        | VolumeState::Attaching
        | VolumeState::Attached
        | VolumeState::Detaching => {
            let from = status
                .current_node
                .clone()
                .or_else(|| status.current_migration_node.clone());
            Some(Reason::Detaching { from })
        }
    }
}

/// The ticket that a detached volume is attached for, or why it stays detached although tickets ask for it.
fn choose<'a>(view: &View, tickets: &Tickets<'a>, draft: &Draft) -> Result<Choice<'a>, Reason> {
    if view.volume.is_faulted() {
        return Err(Reason::VolumeFaulted {
            volume: view.volume.name.clone(),
        });
    }
    let gate = match (&view.settings.breaker, &draft.attach) {
        (Some(policy), Some(record)) => policy.gate(record, view.now),
        _ => Gate::Open,
    };
    match gate {
        Gate::Held { failures, last } => Err(Reason::Held {
            failures,
            last: last.reason,
        }),
        Gate::BackingOff {
            until,
            failures,
            last,
        } => Err(Reason::BackingOff {
            failures,
            until,
            last: last.reason,
        }),
        Gate::Open => selection::select(view, tickets, draft.migration.as_ref()),
    }
}

/// Updates the attach record; yields the reason to let go when the attempt has failed.
fn look_at_last_attach(view: &View, draft: &mut Draft) -> Option<Reason> {
    let policy = view.settings.breaker.as_ref()?;
    match breaker::observe(view, policy) {
        Observation::Unchanged => None,
        Observation::Done => {
            draft.attach = None;
            None
        }
        Observation::Attached(record) => {
            draft.attach = Some(record);
            None
        }
        Observation::Reset(why) => {
            draft.reset_attach(view);
            draft.reasons.push(match why {
                Reset::Changed => Reason::BreakerReset,
                Reset::Resumed => Reason::BreakerResumed,
            });
            None
        }
        Observation::Failed { record, detach } => {
            let reason = record
                .last_failure
                .as_ref()
                .map(|failure| failure.reason.clone());
            draft.attach = Some(record);
            let reason = Reason::AttachFailed {
                reason: reason.unwrap_or_default(),
            };
            if detach {
                return Some(reason);
            }
            draft.reasons.push(reason);
            None
        }
    }
}

/// Times at which the attach record has something new to say although nothing else happens.
fn watch_attach(view: &View, draft: &mut Draft) {
    let (Some(policy), Some(record)) = (&view.settings.breaker, &draft.attach) else {
        return;
    };
    let Some(attempt) = &record.attempt else {
        return;
    };
    let due = match attempt.attached_since {
        Some(since) => since.checked_add(policy.stable_after),
        None => attempt.since.checked_add(policy.attach_deadline),
    };
    if let Ok(due) = due {
        draft.recheck_at(view.now, due);
    }
}

/// The volume is on its way to, or on, this node and no other.
fn is_settled_on(view: &View, node: &NodeName) -> bool {
    view.volume.status.is_attached_on(node) && view.volume.status.current_migration_node.is_none()
}
