//! Superseding an engine on a node that no longer answers, and recording the proof.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::{Draft, Fate};
use crate::epoch::{FenceProof, fenced_by};
use crate::identity::{EngineName, Epoch, NodeName, ReplicaName};
use crate::plan::{EngineDesired, EngineRole};
use crate::reason::Reason;
use crate::view::NodeHealth;

/// Issues the next epoch when the writer's node is lost. No engine has that epoch: the replicas'
/// agents make it known to them, which is enough to end the old engine's writing.
pub(super) fn supersede_lost_engine(draft: &mut Draft<'_>) {
    let Some((name, spec)) = writer_of_record(draft) else {
        return;
    };
    if !matches!(draft.fate(&name), Fate::Unreachable) {
        return;
    }
    let (node, epoch) = spec;
    draft.say(Reason::EngineUnreachable {
        node: node.clone(),
        epoch,
    });
    if !is_lost_long_enough(draft, &node) {
        return;
    }
    let has_witness = draft.status.record.members.iter().any(|member| {
        draft.is_available(member)
            && draft
                .replicas
                .get(member)
                .is_some_and(|spec| spec.node != node)
    });
    if !has_witness {
        draft.say(Reason::FenceImpossible { node });
        return;
    }
    draft.status.record = draft.status.record.issue();
    // Whatever was mounted there is dead, also if the node comes back and gets the volume again.
    draft.status.remount_requested_at = Some(draft.now);
    if let Some(spec) = draft.engines.get_mut(&name) {
        spec.desired = EngineDesired::Stopped;
    }
}

/// Writes down that every engine before the record's epoch is fenced, once its replicas say so.
pub(super) fn record_proof(draft: &mut Draft<'_>) {
    let epoch = draft.status.record.epoch;
    let Some((node, superseded)) = superseded_engine(draft) else {
        return;
    };
    let accepted: BTreeMap<ReplicaName, Epoch> = draft
        .view
        .replicas
        .iter()
        .map(|(name, replica)| (name.clone(), replica.accepted))
        .collect();
    if let Some(replicas) = fenced_by(
        &draft.status.record,
        |name| draft.is_available(name),
        &accepted,
    ) {
        draft.say(Reason::Fenced {
            node: node.clone(),
            epoch,
            replicas: replicas.clone(),
        });
        draft.status.fence_proof = Some(FenceProof {
            epoch,
            replicas,
            node,
            at: draft.now,
        });
        return;
    }
    let waiting_for: BTreeSet<ReplicaName> = draft
        .status
        .record
        .members
        .iter()
        .filter(|name| {
            draft.is_available(name) && accepted.get(*name).is_none_or(|stored| *stored < epoch)
        })
        .cloned()
        .collect();
    debug_assert!(superseded < epoch);
    draft.say(Reason::Fencing {
        node,
        epoch,
        waiting_for,
    });
}

/// The newest engine that lost the record's epoch, may be alive, and is not fenced yet.
fn superseded_engine(draft: &Draft<'_>) -> Option<(NodeName, Epoch)> {
    let epoch = draft.status.record.epoch;
    draft
        .engines
        .iter()
        .filter(|(name, spec)| {
            spec.role != EngineRole::Standby
                && spec.epoch < epoch
                && !draft.is_fenced(spec.epoch)
                && matches!(draft.fate(name), Fate::Unreachable)
        })
        .max_by_key(|(_, spec)| spec.epoch)
        .map(|(_, spec)| (spec.node.clone(), spec.epoch))
}

/// The engine with the record's epoch, whatever is wanted of it: one that was told to stop and then
/// fell silent may still be writing.
fn writer_of_record(draft: &Draft<'_>) -> Option<(EngineName, (NodeName, Epoch))> {
    let epoch = draft.status.record.epoch;
    draft
        .engines
        .iter()
        .find(|(_, spec)| spec.epoch == epoch && spec.role == EngineRole::Writer)
        .map(|(name, spec)| (name.clone(), (spec.node.clone(), spec.epoch)))
}

fn is_lost_long_enough(draft: &mut Draft<'_>, node: &NodeName) -> bool {
    match draft.view.nodes.get(node).map(|node| node.health) {
        None | Some(NodeHealth::OutOfService) => true,
        Some(NodeHealth::Ready) => false,
        Some(NodeHealth::Lost { since }) => {
            let (silent, wanted) = (draft.now.since(since), draft.view.settings.fence_after);
            if silent < wanted {
                draft.recheck(wanted.saturating_sub(silent));
            }
            silent >= wanted
        }
    }
}
