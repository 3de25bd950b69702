//! The lower half of the chain: the volume, its engine, its replicas and their nodes, in the words of `volume_core`.

use api_types::{VolumeRobustness, VolumeState, condition};
use volume_core::Reason;

use crate::evidence::{Evidence, ObjectRef};
use crate::findings::{engine_evidence, node_evidence};
use crate::index::{Case, Index};
use crate::verdict::Verdict;

use super::Draft;

/// What a reason means for whoever waits.
enum Meaning {
    /// It goes on by itself.
    Progress,
    /// Somebody has to do something.
    Stuck,
    /// It has nothing to do with attaching.
    Aside,
}

fn meaning(reason: &Reason, has_replicas: bool) -> Meaning {
    match reason {
        Reason::CreatingReplica { .. }
        | Reason::ReplicasStarting { .. }
        | Reason::StartingEngine { .. }
        | Reason::EngineStarting { .. }
        | Reason::OpeningFrontend { .. }
        | Reason::RestartBackoff { .. }
        | Reason::ClosingFrontend { .. }
        | Reason::StoppingEngine { .. }
        | Reason::StoppingReplicas { .. }
        | Reason::EngineUnreachable { .. }
        | Reason::Fencing { .. }
        | Reason::Fenced { .. }
        | Reason::EngineFailed { .. }
        | Reason::StandbyStarting { .. }
        | Reason::TookOver { .. }
        | Reason::HandedOver { .. }
        | Reason::Salvaged { .. }
        | Reason::Cloning { .. }
        | Reason::Restoring { .. }
        | Reason::Deleting => Meaning::Progress,
        Reason::NodeNotReady { .. }
        | Reason::StrictLocalElsewhere { .. }
        | Reason::NoReplicaAvailable { .. }
        | Reason::FenceImpossible { .. }
        | Reason::CommitRefused { .. }
        | Reason::TakeOverRefused { .. }
        | Reason::MigrationNeedsWriter { .. }
        | Reason::SalvageRefused { .. }
        | Reason::Faulted
        | Reason::CloneFailed { .. }
        | Reason::RestoreFailed { .. }
        | Reason::DiskKeepsReplica { .. } => Meaning::Stuck,
        // A volume with replicas attaches without this one.
        Reason::Unschedulable { .. } if !has_replicas => Meaning::Stuck,
        Reason::Unschedulable { .. }
        | Reason::ReplicaFailed { .. }
        | Reason::InSyncChanged { .. }
        | Reason::Rebuilding { .. }
        | Reason::RebuildQueued { .. }
        | Reason::WaitingForFailedReplica { .. }
        | Reason::Evicting { .. }
        | Reason::RemovingReplica { .. }
        | Reason::Expanding { .. }
        | Reason::ExpansionBlocked { .. }
        | Reason::ShrinkRefused { .. } => Meaning::Aside,
    }
}

/// The node, engine or replica that a reason is about.
fn layer(reason: &Reason) -> &'static str {
    match reason {
        Reason::NodeNotReady { .. } | Reason::EngineUnreachable { .. } => "node",
        Reason::NoReplicaAvailable { .. }
        | Reason::ReplicasStarting { .. }
        | Reason::StoppingReplicas { .. }
        | Reason::CreatingReplica { .. }
        | Reason::Unschedulable { .. }
        | Reason::ReplicaFailed { .. }
        | Reason::Salvaged { .. }
        | Reason::SalvageRefused { .. }
        | Reason::DiskKeepsReplica { .. }
        | Reason::Faulted => "replica",
        _ => "engine",
    }
}

/// The volume is being attached or detached, or cannot be.
pub(super) fn on_its_way(index: &Index<'_>, case: &Case<'_>, draft: &mut Draft) {
    let (view, plan) = match &case.life {
        Ok(decided) => decided,
        Err(message) => {
            let object = ObjectRef::ours("volumes.longhorn.io", case.name);
            let evidence = Evidence::new(object, "", message);
            draft.stuck(
                "volume",
                format!("the volume cannot be read: {message}"),
                [evidence],
            );
            return;
        }
    };
    volume_link(case, draft);
    let has_replicas = !view.status.record.members.is_empty();
    let mut told: Vec<(&Reason, Meaning)> = plan
        .reasons
        .iter()
        .map(|reason| (reason, meaning(reason, has_replicas)))
        .filter(|(_, meaning)| !matches!(meaning, Meaning::Aside))
        .collect();
    // The most specific last: what goes on first, then what stands in the way, and why nothing is done about it.
    told.sort_by_key(|(reason, meaning)| {
        let is_stuck = matches!(meaning, Meaning::Stuck);
        (is_stuck, is_stuck && !matches!(reason, Reason::Faulted))
    });
    let has_refusal = told
        .iter()
        .any(|(reason, _)| matches!(reason, Reason::SalvageRefused { .. }));
    for (reason, meaning) in told {
        let evidence = match reason {
            // The same replicas are the evidence of the refusal.
            Reason::Faulted if has_refusal => Vec::new(),
            _ => evidence(index, case, reason),
        };
        match meaning {
            Meaning::Stuck => draft.stuck(layer(reason), reason.to_string(), evidence),
            Meaning::Progress | Meaning::Aside => {
                draft.waits(layer(reason), reason.to_string(), evidence);
            }
        }
        to_do(case, reason, draft);
    }
    if let Some(after) = plan.recheck_after {
        draft.by_itself(format!(
            "the manager looks again within {} s",
            after.as_secs().max(1)
        ));
    }
}

fn volume_link(case: &Case<'_>, draft: &mut Draft) {
    let status = case.volume.status.clone().unwrap_or_default();
    let node = if status.current_node_id.is_empty() {
        &case.volume.spec.node_id
    } else {
        &status.current_node_id
    };
    let place = if node.is_empty() {
        String::new()
    } else {
        format!(", node {node}")
    };
    draft.link(
        "volume",
        super::State::Waiting,
        format!(
            "volume {} is {}{place}, robustness {}",
            case.name, status.state, status.robustness
        ),
        [state_evidence(case)],
    );
}

/// An attached volume is so for as long as its engine runs. When another state began is not recorded, and conditions are of
/// other things.
pub(super) fn state_evidence(case: &Case<'_>) -> Evidence {
    let status = case.volume.status.clone().unwrap_or_default();
    let since = match status.state {
        VolumeState::Attached => crate::evidence::time(&status.running_since),
        _ => None,
    };
    let object = ObjectRef::ours("volumes.longhorn.io", case.name);
    Evidence::new(object, "status.state", &status.state).since(since)
}

fn evidence(index: &Index<'_>, case: &Case<'_>, reason: &Reason) -> Vec<Evidence> {
    match reason {
        Reason::NodeNotReady { node }
        | Reason::EngineUnreachable { node, .. }
        | Reason::FenceImpossible { node } => node_evidence(index, node.as_str()),
        Reason::StartingEngine { .. }
        | Reason::EngineStarting { .. }
        | Reason::OpeningFrontend { .. }
        | Reason::EngineFailed { .. }
        | Reason::StoppingEngine { .. }
        | Reason::ClosingFrontend { .. } => engine_evidence(case),
        Reason::NoReplicaAvailable { members } => replica_evidence(case, |name| {
            members.iter().any(|member| member.as_str() == name)
        }),
        Reason::ReplicasStarting { replicas } | Reason::StoppingReplicas { replicas } => {
            replica_evidence(case, |name| {
                replicas.iter().any(|replica| replica.as_str() == name)
            })
        }
        Reason::DiskKeepsReplica { replica, .. } => {
            replica_evidence(case, |name| replica.as_str() == name)
        }
        Reason::Faulted | Reason::SalvageRefused { .. } => replica_evidence(case, |_| true),
        Reason::Unschedulable { failure } => failure
            .excluded
            .iter()
            .map(|(place, rules)| {
                let rules: Vec<String> = rules.iter().map(ToString::to_string).collect();
                Evidence::new(
                    ObjectRef::ours("nodes.longhorn.io", place.node.as_str()),
                    &format!("status.diskStatus[{}]", place.disk),
                    rules.join("; "),
                )
            })
            .collect(),
        Reason::Fencing { .. } | Reason::Fenced { .. } => {
            let status = case.volume.status.clone().unwrap_or_default();
            let object = ObjectRef::ours("volumes.longhorn.io", case.name);
            vec![Evidence::new(object, "status.epoch", status.epoch)]
        }
        _ => Vec::new(),
    }
}

fn replica_evidence(case: &Case<'_>, wanted: impl Fn(&str) -> bool) -> Vec<Evidence> {
    case.replicas
        .iter()
        .filter(|replica| wanted(crate::index::name(&replica.metadata)))
        .map(|replica| {
            let status = replica.status.clone().unwrap_or_default();
            let mut value = format!("{} on node {}", status.current_state, replica.spec.node_id);
            if !status.message.is_empty() {
                value = format!("{value}: {}", status.message);
            }
            Evidence::new(
                ObjectRef::new("replicas.longhorn.io", &replica.metadata),
                "status.currentState",
                value,
            )
            .since(crate::evidence::time(&replica.spec.failed_at))
        })
        .collect()
}

fn to_do(case: &Case<'_>, reason: &Reason, draft: &mut Draft) {
    match reason {
        Reason::NodeNotReady { node } => {
            draft.nodes.insert(node.as_str().to_owned());
            draft.suggest(format!("start the agent of node {node}, or move the pod: kubectl cordon {node}, then delete the pod"));
        }
        Reason::EngineFailed { node, .. } => draft.suggest(format!(
            "read the engine's log on node {node}: run/{}.log in the node's folder",
            case.name
        )),
        Reason::NoReplicaAvailable { .. } | Reason::FenceImpossible { .. } => {
            if matches!(reason, Reason::FenceImpossible { .. }) {
                draft.by_itself(
                    "the engine is fenced as soon as a node with an in-sync replica answers",
                );
            }
            draft.suggest(format!(
                "bring back a node that has one of the replicas: kubectl -n longhorn-system get replicas.longhorn.io -l longhornvolume={}",
                case.name
            ));
        }
        Reason::DiskKeepsReplica { node, disk, .. } => draft.suggest(format!(
            "on node {node}: mount disk {disk} again; or, if it is dead: lariat disk remove {node} {disk} --dead"
        )),
        Reason::StrictLocalElsewhere { node, .. } => {
            draft.suggest(format!(
                "run the pod on node {node}, where the only replica is"
            ));
        }
        _ => {}
    }
}

/// Everything is as it should be: where, on what, with how many replicas.
pub(super) fn attached(index: &Index<'_>, case: &Case<'_>, draft: &mut Draft) {
    // What a node said last is no news once it does not answer.
    if is_unreachable(case) {
        return on_its_way(index, case, draft);
    }
    let status = case.volume.status.clone().unwrap_or_default();
    let engines = engine_evidence(case);
    draft.fine("engine", "its engine runs there", engines);
    let wanted = case.volume.spec.number_of_replicas;
    let count = status.in_sync_replicas.len();
    let object = ObjectRef::ours("volumes.longhorn.io", case.name);
    let since = match status.robustness {
        VolumeRobustness::Degraded => crate::evidence::time(&status.last_degraded_at),
        // When it became anything else is not recorded.
        _ => None,
    };
    let evidence = Evidence::new(object, "status.robustness", &status.robustness).since(since);
    draft.fine(
        "replica",
        format!("{count} of {wanted} replicas have all the data"),
        [evidence],
    );
    let scheduled = condition::find(&status.conditions, api_types::volume_condition::SCHEDULED);
    if let Some(scheduled) = scheduled.filter(|one| one.status == condition::ConditionStatus::False)
    {
        draft.by_itself(format!(
            "a replica is added when a disk can take it: {}",
            scheduled.message
        ));
    }
    draft.at_least(Verdict::Attached);
}

fn is_unreachable(case: &Case<'_>) -> bool {
    let reasons = case.life.iter().flat_map(|(_, plan)| &plan.reasons);
    reasons
        .into_iter()
        .any(|reason| matches!(reason, Reason::EngineUnreachable { .. }))
}

/// How far the fence of a dead node has come.
pub(super) fn fence(case: &Case<'_>, draft: &mut Draft) {
    let Ok((_, plan)) = &case.life else {
        return;
    };
    for reason in &plan.reasons {
        match reason {
            Reason::Fencing { .. } | Reason::Fenced { .. } | Reason::EngineUnreachable { .. } => {
                draft.waits("engine", reason.to_string(), []);
            }
            Reason::FenceImpossible { .. } => draft.stuck("engine", reason.to_string(), []),
            _ => {}
        }
    }
}
