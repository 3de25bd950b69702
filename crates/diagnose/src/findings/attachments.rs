//! Kubernetes' own VolumeAttachments, compared with what they stand for.

use std::collections::BTreeMap;

use api_types::InstanceState;
use api_types::names::DRIVER;
use attach_core::view::Sharing;
use attach_core::{AttacherKind, Ticket, TicketId};
use cluster_core::attachment_index::{Finding as Contradiction, rebuild};
use cluster_core::names::{OUT_OF_SERVICE_TAINT, attached_at_annotation, attached_node_annotation};
use cluster_core::{DriverName, NodeName, Reason};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::json;

use crate::codes::Code;
use crate::evidence::{Evidence, ObjectRef, time};
use crate::finding::Finding;
use crate::index::{Case, Index, handle, name};
use crate::repair::{Action, Precondition, Repair};

use super::tickets::{has_pod, ticket_evidence};
use super::{ATTACHMENTS, KUBERNETES_ATTACHMENTS};

/// Anything that takes longer than this is not merely on its way: a detach or an attach takes seconds.
const SETTLED_AFTER: SignedDuration = SignedDuration::from_secs(60);

pub(super) fn has_lasted(index: &Index<'_>, since: Option<Timestamp>) -> bool {
    since.is_some_and(|since| index.now.duration_since(since) >= SETTLED_AFTER)
}

/// The engine of the volume runs on this node, as far as that node says.
pub(super) fn engine_runs(case: &Case<'_>, node: &str) -> bool {
    case.engines.iter().any(|engine| {
        engine.spec.node_id == node
            && engine
                .status
                .as_ref()
                .is_some_and(|status| status.current_state == InstanceState::Running)
    })
}

/// LAR-112: the pod's node believes that it has the volume.
pub(super) fn attached_in_kubernetes_only(
    index: &Index<'_>,
    case: &Case<'_>,
    findings: &mut Vec<Finding>,
) {
    let Ok((view, plan)) = &case.tickets else {
        return;
    };
    if view.volume.sharing == Sharing::Shared {
        return;
    }
    for attachment in &case.kubernetes {
        let is_attached = attachment
            .status
            .as_ref()
            .is_some_and(|status| status.attached);
        if !is_attached || attachment.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let node = attachment.spec.node_name.as_str();
        let id = TicketId::from(name(&attachment.metadata));
        let ticket = view.tickets.get(&id);
        let unsatisfied_since = view
            .statuses
            .get(&id)
            .filter(|status| !status.satisfied)
            .and_then(|status| status.condition.last_transition);
        let lacks_engine = !engine_runs(case, node) && has_lasted(index, unsatisfied_since);
        if ticket.is_some() && !lacks_engine {
            continue;
        }
        let why = match ticket {
            None => "its ticket is gone, so that nothing holds the volume there".to_owned(),
            Some(_) => {
                let judgement = plan.verdicts.get(&id);
                let reason = judgement.and_then(|judgement| judgement.reason.as_ref());
                reason.map_or_else(|| "no engine runs there".to_owned(), ToString::to_string)
            }
        };
        let status = case.volume.status.clone().unwrap_or_default();
        let place = Evidence::new(
            ObjectRef::ours("volumes.longhorn.io", case.name),
            "status.currentNodeID",
            status.current_node_id,
        );
        let attached = Evidence::new(
            ObjectRef::new(KUBERNETES_ATTACHMENTS, &attachment.metadata),
            "status.attached",
            true,
        )
        .since_time(attachment.metadata.creation_timestamp.as_ref());
        let mut found = Finding::new(
            Code::AttachedInKubernetesOnly,
            ObjectRef::new(KUBERNETES_ATTACHMENTS, &attachment.metadata),
            format!(
                "for Kubernetes volume {} is attached to node {node}, but it is not: {why}",
                case.name
            ),
        )
        .volume(case.name)
        .evidence([attached, place])
        .evidence(ticket.map(|ticket| ticket_evidence(case, ticket)));
        if ticket.is_none() {
            found = found
                .by_itself("the attacher compares once a minute and asks for the volume again")
                .repair(file_again(case, attachment, view));
        }
        if has_pod(case, node) {
            found = found.advice(format!(
                "a pod on node {node} that had the volume mounted meanwhile sees I/O errors: start it again afterwards"
            ));
        }
        findings.push(found);
    }
}

/// The ticket that a publish of this attachment would file.
fn file_again(
    case: &Case<'_>,
    attachment: &VolumeAttachment,
    view: &attach_core::View,
) -> Option<Repair> {
    let object = case.attachment?;
    let node = attachment.spec.node_name.as_str();
    let elsewhere = view
        .tickets
        .values()
        .any(|ticket| ticket.attacher.is_workload() && ticket.node.as_str() != node);
    if elsewhere && view.volume.sharing == Sharing::Exclusive {
        return None;
    }
    let id = name(&attachment.metadata);
    let mut ticket = Ticket::new(AttacherKind::Csi, id, node);
    ticket.generation = Ticket::generation_after(&ticket, None, view.statuses.get(&ticket.id));
    let wire = attach_core::wire::ticket_to_wire(&ticket);
    Some(Repair {
        summary: format!("file the ticket for node {node} again"),
        actions: vec![Action::Patch {
            object: ObjectRef::new(ATTACHMENTS, &object.metadata),
            patch: json!({"spec": {"attachmentTickets": {(id): wire}}}),
            when: Precondition::unchanged(&object.metadata),
        }],
    })
}

/// LAR-113: the reverse.
pub(super) fn attached_in_engine_only(
    index: &Index<'_>,
    case: &Case<'_>,
    findings: &mut Vec<Finding>,
) {
    let Ok((view, _)) = &case.tickets else {
        return;
    };
    for attachment in &case.kubernetes {
        let status = attachment.status.as_ref();
        let is_silent =
            status.is_none_or(|status| !status.attached && status.attach_error.is_none());
        let id = TicketId::from(name(&attachment.metadata));
        let satisfied = view.statuses.get(&id).filter(|status| {
            view.tickets
                .get(&id)
                .is_some_and(|ticket| status.satisfies(ticket))
        });
        let since = satisfied.and_then(|status| status.condition.last_transition);
        let is_deleting = attachment.metadata.deletion_timestamp.is_some();
        if !is_silent || is_deleting || !has_lasted(index, since) {
            continue;
        }
        let object = ObjectRef::new(KUBERNETES_ATTACHMENTS, &attachment.metadata);
        let node = &attachment.spec.node_name;
        let found = Finding::new(
            Code::AttachedInEngineOnly,
            object.clone(),
            format!(
                "volume {} is attached to node {node}, but Kubernetes has not been told",
                case.name
            ),
        )
        .volume(case.name)
        .evidence([Evidence::new(object, "status.attached", false)])
        .evidence(
            view.tickets
                .get(&id)
                .map(|ticket| ticket_evidence(case, ticket)),
        )
        .advice("see whether the attacher runs: it is the one who writes status.attached");
        findings.push(found);
    }
    let status = case.volume.status.clone().unwrap_or_default();
    let is_detached = status.state == api_types::VolumeState::Detached;
    for engine in &case.engines {
        let node = engine.spec.node_id.as_str();
        let running = engine
            .status
            .as_ref()
            .filter(|status| status.current_state == InstanceState::Running);
        if running.is_none() || !is_detached || !index.is_node_ready(node) {
            continue;
        }
        let object = ObjectRef::new("engines.longhorn.io", &engine.metadata);
        let found = Finding::new(
            Code::AttachedInEngineOnly,
            object.clone(),
            format!(
                "the engine of volume {} runs on node {node} although the volume is detached",
                case.name
            ),
        )
        .volume(case.name)
        .evidence([
            Evidence::new(object, "status.currentState", "running"),
            Evidence::new(
                ObjectRef::ours("volumes.longhorn.io", case.name),
                "status.state",
                status.state.clone(),
            ),
        ])
        .by_itself("the manager stops the engine when it looks at the volume next");
        findings.push(found);
    }
}

/// LAR-114: with what is known about the fence.
pub(super) fn waits_for_dead_node(index: &Index<'_>, case: &Case<'_>, findings: &mut Vec<Finding>) {
    for reason in case.cluster_reasons {
        let Reason::WaitingForDetach { holder, wanted, .. } = reason else {
            continue;
        };
        let dead = index
            .cluster
            .nodes
            .get(holder)
            .is_none_or(|node| !node.ready);
        if !dead {
            continue;
        }
        let hold = case.cluster_reasons.iter().find_map(|reason| match reason {
            Reason::DetachHeld { hold, node, .. } if node == holder => Some(hold.to_string()),
            _ => None,
        });
        let released = case
            .cluster_reasons
            .iter()
            .find(|reason| matches!(reason, Reason::Detaching { node, .. } if node == holder));
        let fence = fence_state(case);
        let mut found = Finding::new(
            Code::WaitsForDeadNode,
            ObjectRef::ours("volumes.longhorn.io", case.name),
            format!("{reason}, which does not answer; {}", fence.0),
        )
        .part(wanted.as_str())
        .volume(case.name)
        .evidence(node_evidence(index, holder.as_str()))
        .evidence(fence.1);
        if let Some(outlook) = released.map(ToString::to_string).or(hold) {
            found = found.by_itself(outlook);
        }
        findings.push(found.advice(format!(
            "when node {holder} is certainly powered off: kubectl taint node {holder} {OUT_OF_SERVICE_TAINT}=nodeshutdown:NoExecute"
        )));
    }
}

/// Whether whatever still runs on the old node is shut out.
fn fence_state(case: &Case<'_>) -> (String, Vec<Evidence>) {
    use volume_core::Reason;
    let status = case.volume.status.clone().unwrap_or_default();
    let object = || ObjectRef::ours("volumes.longhorn.io", case.name);
    if let Some(proof) = case.volume.fenced_node().and(status.fence_proof) {
        let value = format!(
            "epoch {} accepted by {}",
            proof.epoch,
            proof.replicas.join(", ")
        );
        let evidence = Evidence::new(object(), "status.fenceProof", value).since(time(&proof.time));
        return ("it is fenced".to_owned(), vec![evidence]);
    }
    let reasons = case.life.iter().flat_map(|(_, plan)| &plan.reasons);
    let fence = reasons.clone().find(|reason| {
        matches!(
            reason,
            Reason::Fencing { .. } | Reason::Fenced { .. } | Reason::FenceImpossible { .. }
        )
    });
    let reason = fence.or_else(|| {
        let mut reasons = reasons;
        reasons.find(|reason| matches!(reason, Reason::EngineUnreachable { .. }))
    });
    let text = reason.map_or_else(
        || "it is not fenced yet".to_owned(),
        |reason| format!("not fenced yet: {reason}"),
    );
    let epoch = Evidence::new(object(), "status.epoch", status.epoch);
    (text, vec![epoch])
}

/// The node's own word on whether it is ready.
pub(crate) fn node_evidence(index: &Index<'_>, node: &str) -> Vec<Evidence> {
    let kubernetes = index.node(node).map_or_else(
        || Evidence::missing(ObjectRef::named("nodes", "", node)),
        ready_evidence,
    );
    let ours = index.longhorn_node(node).and_then(|object| {
        let conditions = &object.status.as_ref()?.conditions;
        let ready = api_types::condition::find(conditions, api_types::node_condition::READY)?;
        let value = format!("{} ({})", ready.status, ready.reason);
        let object = ObjectRef::new("nodes.longhorn.io", &object.metadata);
        Some(
            Evidence::new(object, "status.conditions[Ready]", value)
                .since(time(&ready.last_transition_time)),
        )
    });
    std::iter::once(kubernetes).chain(ours).collect()
}

fn ready_evidence(node: &Node) -> Evidence {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let ready = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "Ready");
    let object = ObjectRef::new("nodes", &node.metadata);
    match ready {
        Some(ready) => Evidence::new(object, "status.conditions[Ready]", &ready.status)
            .since_time(ready.last_transition_time.as_ref()),
        None => Evidence::new(object, "status.conditions[Ready]", "never reported"),
    }
}

/// LAR-115: somebody may believe it.
pub(super) fn stale_annotations(index: &Index<'_>, findings: &mut Vec<Finding>) {
    let driver = DriverName::from(DRIVER);
    let view = &index.cluster;
    let (node_key, time_key) = (
        attached_node_annotation(&driver),
        attached_at_annotation(&driver),
    );
    for found in rebuild(&driver, &view.attachments, &view.volumes).findings() {
        let Contradiction::AnnotationMismatch {
            volume,
            annotated,
            actual,
        } = &found
        else {
            continue;
        };
        let Some(object) = index.persistent_volume(volume.as_str()) else {
            continue;
        };
        if is_untold(index, object, annotated) {
            continue;
        }
        let value = match &actual[..] {
            [node] => Some(node.as_str()),
            _ => None,
        };
        let evidence = Evidence::new(
            ObjectRef::new("persistentvolumes", &object.metadata),
            &format!("metadata.annotations[{node_key}]"),
            annotated,
        );
        let repair = Repair {
            summary: value.map_or_else(
                || "remove the annotation".to_owned(),
                |node| format!("write node {node} into the annotation"),
            ),
            actions: vec![Action::annotate(
                "persistentvolumes",
                &object.metadata,
                &[(&node_key, value), (&time_key, None)],
            )],
        };
        let mut finding = Finding::new(
            Code::StaleAnnotation,
            ObjectRef::new("persistentvolumes", &object.metadata),
            found.to_string(),
        )
        .evidence([evidence])
        .repair(Some(repair));
        finding.volumes = handle(object).map(str::to_owned).into_iter().collect();
        findings.push(finding);
    }
}

/// The volume is where the annotation says, and Kubernetes has only not been told: that is LAR-113.
fn is_untold(index: &Index<'_>, volume: &PersistentVolume, node: &NodeName) -> bool {
    let mut attachments = index.dump.attachments.iter();
    let is_asked_for = attachments.any(|attachment| {
        let source = &attachment.spec.source.persistent_volume_name;
        source.as_deref() == Some(name(&volume.metadata))
            && attachment.spec.node_name == node.as_str()
            && attachment.metadata.deletion_timestamp.is_none()
    });
    let place = handle(volume)
        .and_then(|volume| index.volume(volume))
        .and_then(|volume| volume.status.as_ref())
        .map(|status| status.current_node_id.as_str());
    is_asked_for && place == Some(node.as_str())
}

/// LAR-116: pods that are placed on a full node.
pub(super) fn full_nodes(index: &Index<'_>, findings: &mut Vec<Finding>) {
    let mut full: BTreeMap<(&str, &str), (Vec<String>, String)> = BTreeMap::new();
    for reason in &index.cluster_plan.reasons {
        if let Reason::NodeFull {
            volume,
            node,
            driver,
            full: limit,
        } = reason
        {
            let entry = full.entry((node.as_str(), driver.as_str())).or_default();
            entry.0.push(volume.as_str().to_owned());
            entry.1 = format!("{} of {}", limit.volumes, limit.volumes_max);
        }
    }
    for ((node, driver), (waiting, count)) in full {
        let leaving = index.dump.attachments.iter().filter(|attachment| {
            attachment.spec.node_name == node
                && attachment.spec.attacher == driver
                && attachment.metadata.deletion_timestamp.is_some()
        });
        let leaving = leaving.count();
        let limit = Evidence::new(
            ObjectRef::named("csinodes.storage.k8s.io", "", node),
            &format!("spec.drivers[{driver}].allocatable.count"),
            &count,
        );
        let mut found = Finding::new(
            Code::NodeFull,
            ObjectRef::named("csinodes.storage.k8s.io", "", node),
            format!(
                "node {node} has {count} volumes of {driver}, and {} wait for a place there: {}",
                waiting.len(),
                waiting.join(", ")
            ),
        )
        .part(driver)
        .evidence([limit])
        .by_itself(if leaving == 0 {
            "nothing until a pod with a volume leaves the node".to_owned()
        } else {
            format!("{leaving} volumes are leaving the node")
        })
        .advice(format!(
            "move a pod to another node: kubectl cordon {node}, delete the pod that waits, kubectl uncordon {node}"
        ));
        found.volumes = waiting;
        findings.push(found);
    }
}
