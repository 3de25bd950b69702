//! Bringing the volume up on a node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::draft::{Draft, Fate};
use super::retire::wind_down;
use super::{is_wanted, jobs};
use crate::identity::{EngineName, NodeName, ReplicaName};
use crate::plan::{
    EngineDesired, EngineRole, EngineSpec, ReplicaDesired, ReplicaRole, Restarts, VolumeState,
};
use crate::reason::Reason;
use crate::view::{DataLocality, EngineObserved, ReplicaObserved};

/// The longest pause between engine starts that fail in a row.
const RESTART_WAIT_MAX: Duration = Duration::from_secs(60);

/// One step towards a running engine on `node`. Returns what the volume is now.
pub(super) fn toward(draft: &mut Draft<'_>, node: &NodeName) -> VolumeState {
    let keep: BTreeSet<EngineName> = draft
        .engines
        .iter()
        .filter(|(_, spec)| is_wanted(spec.desired) && draft.is_entitled(spec))
        .map(|(name, _)| name.clone())
        .collect();
    let is_here = |name: &&EngineName| {
        draft
            .engines
            .get(*name)
            .is_some_and(|spec| spec.node == *node)
    };
    let current = keep.iter().find(is_here).cloned();
    if !wind_down(draft, |name| keep.contains(name)) {
        return VolumeState::Detaching;
    }
    // The guest has moved already: an engine here would fence it, and the former one's end is no failure.
    if let Some(target) = handed_over_to(draft) {
        if let Some(former) = current {
            let_end(draft, &former);
        }
        draft.say(Reason::HandedOver { node: target });
        return VolumeState::Attached;
    }
    match current.filter(|name| !retire_if_failed(draft, name)) {
        Some(name) => watch(draft, &name),
        // Fenced or never started: nothing runs, and nothing starts on a silent node.
        None if !draft.view.is_ready(node) => {
            draft.say(Reason::NodeNotReady { node: node.clone() });
            VolumeState::Detached
        }
        None => start(draft, node),
    }
}

/// The migration's target, if the writer is there and has not ended.
pub(super) fn handed_over_to(draft: &Draft<'_>) -> Option<NodeName> {
    let (name, spec) = draft.writer()?;
    let is_target = draft.view.volume.migration_node.as_ref() == Some(&spec.node)
        && draft.view.volume.node.as_ref() != Some(&spec.node);
    let has_ended = matches!(draft.fate(name), Fate::Failed(_) | Fate::Stopped);
    (is_target && draft.is_entitled(spec) && !has_ended).then(|| spec.node.clone())
}

/// The replicas have ended the source's engine, or its node has: nothing follows from it.
fn let_end(draft: &mut Draft<'_>, name: &EngineName) {
    let has_ended = matches!(draft.fate(name), Fate::Failed(_) | Fate::Stopped);
    if let Some(spec) = draft.engines.get_mut(name).filter(|_| has_ended) {
        spec.desired = EngineDesired::Stopped;
    }
}

fn watch(draft: &mut Draft<'_>, name: &EngineName) -> VolumeState {
    let Some(spec) = draft.engines.get(name) else {
        return VolumeState::Attaching;
    };
    let (node, epoch) = (spec.node.clone(), spec.epoch);
    match draft.fate(name) {
        Fate::Starting => {
            list_served(draft, name);
            draft.say(Reason::EngineStarting { node, epoch });
            VolumeState::Attaching
        }
        Fate::Alive(running) => {
            let frontend = wants_frontend(draft);
            if let Some(spec) = draft.engines.get_mut(name) {
                spec.desired = EngineDesired::Running { frontend };
            }
            match (frontend, running.endpoint.is_some()) {
                (true, false) => {
                    draft.say(Reason::OpeningFrontend { node });
                    VolumeState::Attaching
                }
                (false, true) => {
                    draft.say(Reason::ClosingFrontend { node });
                    VolumeState::Attached
                }
                (true, true) | (false, false) => VolumeState::Attached,
            }
        }
        // Not lost for long enough, or not fenceable: where it was is still the best answer.
        Fate::Unreachable => draft.view.status.state,
        // Retired before this is asked.
        Fate::Failed(_) | Fate::Stopped => VolumeState::Attaching,
    }
}

/// A replica that is served nowhere any more has no address, and an engine does not start before it knows the addresses of all
/// that it is to use. So one that has no process yet is told to do without, and to use it after all when it is served again in
/// time: whoever is left behind at the start has to be rebuilt. An engine with a process sees for itself.
fn list_served(draft: &mut Draft<'_>, name: &EngineName) {
    let engine = draft.view.engines.get(name);
    if engine.is_some_and(|engine| engine.observed == EngineObserved::Starting) {
        return;
    }
    let is_running = |name: &ReplicaName| *draft.observed(name) == ReplicaObserved::Running;
    // A silent node's replica may answer the engine, and stays if it was counted on; nobody begins to count on it.
    let may_stay = |name: &ReplicaName| {
        let spec = draft.replicas.get(name);
        is_running(name) && spec.is_some_and(|spec| spec.failed_at.is_none())
    };
    let may_join = |name: &ReplicaName| is_running(name) && draft.is_available(name);
    let listed = draft.engines.get(name).map(|spec| &spec.replicas);
    let served: BTreeMap<ReplicaName, ReplicaRole> = draft
        .status
        .record
        .members
        .iter()
        .filter(|name| {
            let is_listed = listed.is_some_and(|listed| listed.contains_key(*name));
            may_join(name) || (is_listed && may_stay(name))
        })
        .map(|name| (name.clone(), ReplicaRole::InSync))
        .collect();
    // Without any there is no volume: those that it was told are waited for.
    if let Some(spec) = draft.engines.get_mut(name).filter(|_| !served.is_empty()) {
        spec.replicas = served;
    }
}

/// An engine that ended by itself is retired at once, and a new incarnation may start.
fn retire_if_failed(draft: &mut Draft<'_>, name: &EngineName) -> bool {
    let message = match draft.fate(name) {
        Fate::Failed(message) => message.to_owned(),
        Fate::Stopped => "it stopped by itself".to_owned(),
        Fate::Starting | Fate::Alive(_) | Fate::Unreachable => return false,
    };
    if let Some(spec) = draft.engines.get_mut(name) {
        spec.desired = EngineDesired::Stopped;
        let (node, epoch) = (spec.node.clone(), spec.epoch);
        draft.say(Reason::EngineFailed {
            node,
            epoch,
            message,
        });
    }
    if draft.view.status.state == VolumeState::Attached {
        draft.status.remount_requested_at = Some(draft.now);
    }
    let count = draft.status.restarts.count.saturating_add(1);
    draft.status.restarts = Restarts {
        count,
        last_at: Some(draft.now),
    };
    true
}

/// Starts the replicas, and once they run the engine, with an epoch of its own.
fn start(draft: &mut Draft<'_>, node: &NodeName) -> VolumeState {
    if let Some(reason) = strict_local_elsewhere(draft, node) {
        draft.say(reason);
        return VolumeState::Detached;
    }
    let members = draft.status.record.members.clone();
    let available: BTreeSet<ReplicaName> = members
        .iter()
        .filter(|name| draft.is_available(name))
        .cloned()
        .collect();
    if available.is_empty() {
        draft.say(Reason::NoReplicaAvailable { members });
        return VolumeState::Attaching;
    }
    for name in &available {
        if let Some(spec) = draft.replicas.get_mut(name) {
            spec.desired = ReplicaDesired::Running;
        }
    }
    let is_running = |name: &&ReplicaName| *draft.observed(name) == ReplicaObserved::Running;
    let starting: BTreeSet<ReplicaName> = available
        .iter()
        .filter(|name| !is_running(name))
        .cloned()
        .collect();
    if !starting.is_empty() {
        draft.say(Reason::ReplicasStarting { replicas: starting });
        return VolumeState::Attaching;
    }
    if let Some(wait) = restart_wait(draft) {
        draft.say(Reason::RestartBackoff {
            attempts: draft.status.restarts.count,
            wait,
        });
        draft.recheck(wait);
        return VolumeState::Attaching;
    }
    draft.status.record = draft.status.record.issue();
    let epoch = draft.status.record.epoch;
    draft.say(Reason::StartingEngine {
        node: node.clone(),
        epoch,
        replicas: available.clone(),
    });
    let frontend = wants_frontend(draft);
    let spec = engine_spec(draft, node, EngineRole::Writer, frontend, &available);
    draft
        .engines
        .insert(EngineName::of(&draft.view.volume.name, epoch), spec);
    VolumeState::Attaching
}

/// A new engine's spec. Its epoch is the last one issued.
pub(super) fn engine_spec(
    draft: &Draft<'_>,
    node: &NodeName,
    role: EngineRole,
    frontend: bool,
    replicas: &BTreeSet<ReplicaName>,
) -> EngineSpec {
    let replicas: BTreeMap<_, _> = replicas
        .iter()
        .map(|name| (name.clone(), ReplicaRole::InSync))
        .collect();
    // The size that the replicas have: growing is a step of its own.
    let size_bytes = if draft.status.size_bytes == 0 {
        draft.view.volume.size_bytes
    } else {
        draft.status.size_bytes
    };
    EngineSpec {
        node: node.clone(),
        epoch: draft.status.record.issued,
        role,
        desired: EngineDesired::Running { frontend },
        record: draft.status.record.clone(),
        replicas,
        size_bytes,
        job: None,
    }
}

pub(super) fn wants_frontend(draft: &Draft<'_>) -> bool {
    !draft.view.volume.disable_frontend && !jobs::is_filling(&draft.status)
}

fn strict_local_elsewhere(draft: &Draft<'_>, node: &NodeName) -> Option<Reason> {
    if draft.view.volume.data_locality != DataLocality::StrictLocal {
        return None;
    }
    let is_local = |spec: &crate::plan::ReplicaSpec| spec.node == *node;
    let members = || {
        draft
            .status
            .record
            .members
            .iter()
            .filter_map(|name| Some((name, draft.replicas.get(name)?)))
    };
    if members().any(|(_, spec)| is_local(spec)) {
        return None;
    }
    let (replica, spec) = members().next()?;
    Some(Reason::StrictLocalElsewhere {
        wanted: node.clone(),
        replica: replica.clone(),
        node: spec.node.clone(),
    })
}

/// Doubling from one second, so that a broken start does not become a loop.
fn restart_wait(draft: &Draft<'_>) -> Option<Duration> {
    let Restarts { count, last_at } = draft.status.restarts;
    let last_at = last_at?;
    // The first restart is free: most crashes are a single accident.
    let doublings = count.checked_sub(2)?;
    let wait =
        Duration::from_secs(1).saturating_mul(1u32.checked_shl(doublings).unwrap_or(u32::MAX));
    let left = wait
        .min(RESTART_WAIT_MAX)
        .saturating_sub(draft.now.since(last_at));
    (!left.is_zero()).then_some(left)
}
