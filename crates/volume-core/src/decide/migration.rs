//! Live migration: a second engine that is open on the target before it may write.
//!
//! The standby gets an epoch of its own but does not show it to the replicas, so the source goes on
//! undisturbed. The first write on the target, or the confirmation, makes the standby the writer
//! ([`take_over`]); only then do the replicas learn the larger epoch, which fences the source. Who may
//! write is therefore never inferred from tickets, and is not lost when an engine dies.

use super::attach::{engine_spec, wants_frontend};
use super::draft::{Draft, Fate};
use super::is_wanted;
use crate::epoch::take_over;
use crate::identity::{EngineName, NodeName, ReplicaName};
use crate::plan::{EngineDesired, EngineRole, EngineSpec};
use crate::reason::Reason;

/// A hand-over is recorded before the engines are told, and whoever writes that may be cut off in between: the record then has the
/// epoch of a standby, which is the writer.
pub(super) fn finish_hand_over(draft: &mut Draft<'_>) {
    let epoch = draft.status.record.epoch;
    let standby = draft
        .engines
        .iter()
        .find(|(_, spec)| spec.role == EngineRole::Standby && spec.epoch == epoch);
    if let Some(name) = standby.map(|(name, _)| name.clone()) {
        make_writer(draft, &name);
    }
}

/// Makes a standby the writer when it has been written to, or when the migration was confirmed and its
/// node has become the volume's.
pub(super) fn hand_over_if_wanted(draft: &mut Draft<'_>) {
    let volume = &draft.view.volume;
    let record_epoch = draft.status.record.epoch;
    let is_due = |name: &EngineName, spec: &EngineSpec| match draft.fate(name) {
        Fate::Alive(running) => {
            let confirmed = volume.node.as_ref() == Some(&spec.node);
            let written =
                volume.migration_node.as_ref() == Some(&spec.node) && running.wants_take_over;
            volume.node.is_some() && (confirmed || written)
        }
        Fate::Starting | Fate::Failed(_) | Fate::Stopped | Fate::Unreachable => false,
    };
    let standby = draft.engines.iter().find(|(name, spec)| {
        spec.role == EngineRole::Standby
            && spec.epoch > record_epoch
            && is_wanted(spec.desired)
            && is_due(name, spec)
    });
    if let Some(name) = standby.map(|(name, _)| name.clone()) {
        hand_over(draft, &name);
    }
}

/// Keeps the second engine of a running migration.
pub(super) fn follow(draft: &mut Draft<'_>) {
    let (Some(source), Some(target)) = (&draft.view.volume.node, &draft.view.volume.migration_node)
    else {
        return;
    };
    if source == target {
        return;
    }
    let partner = draft
        .engines
        .iter()
        // One that ended on our word is of a migration that was rolled back: this is another.
        .filter(|(name, spec)| {
            is_wanted(spec.desired) || !matches!(draft.fate(name), Fate::Stopped)
        })
        .find(|(_, spec)| is_partner(draft, spec));
    match partner.map(|(name, _)| name.clone()) {
        Some(name) => attend(draft, &name),
        None => begin(draft, target),
    }
}

/// Is this the engine on the migration's target, running or not?
fn is_partner(draft: &Draft<'_>, spec: &EngineSpec) -> bool {
    Some(&spec.node) == draft.view.volume.migration_node.as_ref() && draft.is_entitled(spec)
}

/// The node of the second engine, once it is open there.
pub(super) fn other_node(draft: &Draft<'_>) -> Option<NodeName> {
    let target = draft.view.volume.migration_node.as_ref()?;
    let is_open = |name: &EngineName| matches!(draft.fate(name), Fate::Alive(_));
    draft
        .engines
        .iter()
        .any(|(name, spec)| is_partner(draft, spec) && is_wanted(spec.desired) && is_open(name))
        .then(|| target.clone())
}

fn begin(draft: &mut Draft<'_>, target: &NodeName) {
    if !draft.view.is_ready(target) {
        draft.say(Reason::NodeNotReady {
            node: target.clone(),
        });
        return;
    }
    if draft.running_writer().is_none() {
        draft.say(Reason::MigrationNeedsWriter {
            node: target.clone(),
        });
        return;
    }
    draft.status.record = draft.status.record.reserve();
    let epoch = draft.status.record.issued;
    let replicas: std::collections::BTreeSet<ReplicaName> = draft
        .status
        .record
        .members
        .iter()
        .filter(|name| draft.is_available(name))
        .cloned()
        .collect();
    let spec = engine_spec(
        draft,
        target,
        EngineRole::Standby,
        wants_frontend(draft),
        &replicas,
    );
    draft
        .engines
        .insert(EngineName::of(&draft.view.volume.name, epoch), spec);
    draft.say(Reason::StandbyStarting {
        node: target.clone(),
        epoch,
    });
}

fn attend(draft: &mut Draft<'_>, name: &EngineName) {
    let Some(spec) = draft.engines.get(name) else {
        return;
    };
    let (node, epoch) = (spec.node.clone(), spec.epoch);
    match draft.fate(name) {
        Fate::Starting => draft.say(Reason::StandbyStarting { node, epoch }),
        Fate::Alive(_) => {}
        // What becomes of the migration is decided with its tickets; here the engine only ends.
        Fate::Failed(message) => {
            let message = message.to_owned();
            draft.say(Reason::EngineFailed {
                node,
                epoch,
                message,
            });
            stop(draft, name);
        }
        Fate::Stopped => stop(draft, name),
        Fate::Unreachable => draft.say(Reason::EngineUnreachable { node, epoch }),
    }
}

/// The standby becomes the writer, and the writer a former one.
fn hand_over(draft: &mut Draft<'_>, name: &EngineName) {
    let Some(spec) = draft.engines.get(name) else {
        return;
    };
    let (node, epoch) = (spec.node.clone(), spec.epoch);
    match take_over(&draft.status.record, epoch) {
        Ok(record) => {
            draft.status.record = record;
            make_writer(draft, name);
            draft.say(Reason::TookOver { node, epoch });
        }
        Err(error) => draft.say(Reason::TakeOverRefused { error }),
    }
}

fn make_writer(draft: &mut Draft<'_>, name: &EngineName) {
    for (other, spec) in &mut draft.engines {
        spec.role = match spec.role {
            _ if other == name => EngineRole::Writer,
            EngineRole::Writer | EngineRole::Former => EngineRole::Former,
            EngineRole::Standby => EngineRole::Standby,
        };
    }
}

fn stop(draft: &mut Draft<'_>, name: &EngineName) {
    if let Some(spec) = draft.engines.get_mut(name) {
        spec.desired = EngineDesired::Stopped;
    }
}
