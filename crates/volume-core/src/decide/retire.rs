//! Stopping: engine, then replicas. An engine that ends closes its front end itself, before it flushes.

use std::collections::BTreeSet;

use super::draft::{Draft, Fate};
use crate::identity::{EngineName, NodeName, ReplicaName};
use crate::plan::{EngineDesired, EngineRole, ReplicaDesired, ReplicaSpec, Restarts, VolumeState};
use crate::reason::Reason;
use crate::view::{Disk, EngineRunning, ReplicaObserved};

/// Takes the volume from its node. Returns what it is now.
pub(super) fn detach(draft: &mut Draft<'_>) -> VolumeState {
    if !wind_down(draft, |_| false) {
        return VolumeState::Detaching;
    }
    let stopping = stop_replicas(draft);
    if !stopping.is_empty() {
        draft.say(Reason::StoppingReplicas { replicas: stopping });
        return VolumeState::Detaching;
    }
    // Whoever attaches it again has a patience of his own; two pauses on top of each other would be neither's.
    draft.status.restarts = Restarts::default();
    VolumeState::Detached
}

/// Takes one step towards stopping every engine that `keep` does not name; true when none of them can
/// acknowledge anything more.
pub(super) fn wind_down(draft: &mut Draft<'_>, keep: impl Fn(&EngineName) -> bool) -> bool {
    let names: Vec<EngineName> = draft
        .engines
        .keys()
        .filter(|name| !keep(name))
        .cloned()
        .collect();
    for name in &names {
        step_down(draft, name);
    }
    names.iter().all(|name| draft.is_released(name))
}

/// Drops the objects of engines that are known to have ended, except the newest engine's:
/// `kubectl get engines` shows a detached volume's engine as stopped.
pub(super) fn drop_ended(draft: &mut Draft<'_>) {
    let newest = draft.engines.values().map(|spec| spec.epoch).max();
    let ended: Vec<EngineName> = draft
        .engines
        .iter()
        .filter(|(name, spec)| {
            spec.desired == EngineDesired::Stopped
                && Some(spec.epoch) != newest
                && has_ended(draft, name, &spec.node)
        })
        .map(|(name, _)| name.clone())
        .collect();
    for name in ended {
        draft.engines.remove(&name);
    }
}

fn has_ended(draft: &Draft<'_>, name: &EngineName, node: &NodeName) -> bool {
    match draft.fate(name) {
        Fate::Stopped | Fate::Failed(_) => true,
        // A node that is gone will never report; with a proof there is nothing to wait for.
        Fate::Unreachable => draft.is_released(name) && !draft.view.nodes.contains_key(node),
        Fate::Starting | Fate::Alive(_) => false,
    }
}

/// One step of one engine.
fn step_down(draft: &mut Draft<'_>, name: &EngineName) {
    let Some(spec) = draft.engines.get(name) else {
        return;
    };
    let (node, epoch, role) = (spec.node.clone(), spec.epoch, spec.role);
    let reason = match draft.fate(name) {
        Fate::Stopped | Fate::Failed(_) => None,
        Fate::Alive(running) if has_unread_answer(draft, running) => {
            draft.say(Reason::StoppingEngine { node, epoch });
            return;
        }
        Fate::Alive(_) | Fate::Starting => Some(Reason::StoppingEngine { node, epoch }),
        Fate::Unreachable => {
            let silent = role != EngineRole::Standby && !draft.is_fenced(epoch);
            silent.then_some(Reason::EngineUnreachable { node, epoch })
        }
    };
    if let Some(spec) = draft.engines.get_mut(name) {
        spec.desired = EngineDesired::Stopped;
    }
    if let Some(reason) = reason {
        draft.say(reason);
    }
}

/// Whether its proposal was recorded and it does not know yet. One that is told to stop may still learn of it, but only if its node
/// asks in time: an engine whose proposal is open when its front end has closed does not end in order, and the next one has to
/// compare all replicas.
fn has_unread_answer(draft: &Draft<'_>, running: &EngineRunning) -> bool {
    let record = &draft.status.record;
    running.proposal.as_ref().is_some_and(|proposal| {
        proposal.epoch == record.epoch && proposal.based_on < record.version
    })
}

/// Asks every replica to stop; returns those that have yet to and can be heard.
fn stop_replicas(draft: &mut Draft<'_>) -> BTreeSet<ReplicaName> {
    for spec in draft.replicas.values_mut() {
        spec.desired = ReplicaDesired::Stopped;
    }
    let is_running = |name: &&ReplicaName| *draft.observed(name) == ReplicaObserved::Running;
    let is_heard = |name: &&ReplicaName| {
        draft
            .replicas
            .get(*name)
            .is_some_and(|spec| draft.view.is_place_ready(spec))
    };
    draft
        .replicas
        .keys()
        .filter(is_running)
        .filter(is_heard)
        .cloned()
        .collect()
}

/// Deletes the volume's objects in stop order. A silent node is not waited for: its data is to be
/// destroyed anyway, and its agent removes whatever has no object when it comes back.
pub(super) fn delete_everything(draft: &mut Draft<'_>) {
    draft.status.state = VolumeState::Deleting;
    draft.say(Reason::Deleting);
    wind_down(draft, |_| false);
    let is_over = |name: &EngineName| {
        matches!(
            draft.fate(name),
            Fate::Stopped | Fate::Failed(_) | Fate::Unreachable
        ) || !draft.view.engines.contains_key(name)
    };
    if !draft.engines.keys().all(is_over) {
        return;
    }
    for (name, replica) in &draft.view.replicas {
        let ReplicaSpec { node, disk, .. } = &replica.spec;
        // One that was taken from its node keeps nothing.
        let keeps = |disk: &&Disk| disk.listed && !disk.ready;
        let known = draft.view.disk(node, disk).filter(keeps);
        if let Some(disk) = known.filter(|_| draft.view.is_ready(node)) {
            draft.say(Reason::DiskKeepsReplica {
                replica: name.clone(),
                node: node.clone(),
                disk: disk.name.clone(),
            });
        }
    }
    // Engines come before replicas in the list of changes.
    draft.engines.clear();
    draft.replicas.clear();
    draft.status.current_node = None;
    draft.status.current_migration_node = None;
}
