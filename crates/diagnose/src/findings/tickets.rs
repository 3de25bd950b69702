//! Tickets that nobody needs, that exclude each other, or that cannot be served.

use attach_core::reaper::{Cause, Policy, Removal};
use attach_core::ticket::Defect;
use attach_core::view::Sharing;
use attach_core::{Attacher, AttacherKind, Reason, Ticket, TicketId};
use serde_json::json;

use crate::codes::Code;
use crate::evidence::{Evidence, ObjectRef};
use crate::finding::{Finding, Severity};
use crate::index::{Case, Index, name};
use crate::repair::{Action, Precondition, Repair};

use super::ATTACHMENTS;
use super::nodes::is_manager_running;

/// The ticket as evidence, and since when it has not been satisfied.
pub(crate) fn ticket_evidence(case: &Case<'_>, ticket: &Ticket) -> Evidence {
    let since = case.tickets.as_ref().ok().and_then(|(view, _)| {
        let status = view.statuses.get(&ticket.id)?;
        status.condition.last_transition
    });
    let value = format!("{} for node {}", ticket.attacher, ticket.node);
    Evidence::new(
        ObjectRef::ours(ATTACHMENTS, case.name),
        &format!("spec.attachmentTickets[{}]", ticket.id),
        value,
    )
    .since(since)
}

fn finding(code: Code, case: &Case<'_>, id: &TicketId, sentence: String) -> Finding {
    Finding::new(code, ObjectRef::ours(ATTACHMENTS, case.name), sentence)
        .part(id.as_str())
        .volume(case.name)
}

/// LAR-101 to 104 and 109: what the reaper would take out, now and without its patience.
pub(super) fn abandoned(index: &Index<'_>, case: &Case<'_>, findings: &mut Vec<Finding>) {
    let Ok((view, _)) = &case.tickets else {
        return;
    };
    for removal in case.suspects {
        let Some(ticket) = view.tickets.get(&removal.ticket) else {
            continue;
        };
        let sentence = format!(
            "{} on volume {} is not needed by anybody: {}",
            ticket, case.name, removal.cause
        );
        let found = finding(code(&removal.cause), case, &ticket.id, sentence)
            .evidence([ticket_evidence(case, ticket)])
            .evidence(proof(index, case, ticket, &removal.cause))
            .by_itself(outlook(index, removal));
        findings.push(with_repair(index, case, ticket, &removal.cause, found));
    }
}

fn code(cause: &Cause) -> Code {
    match cause {
        Cause::AttachmentGone { .. } => Code::OrphanCsiTicket,
        Cause::Unclaimed { .. } => Code::UnclaimedManualTicket,
        Cause::ObjectGone { .. } | Cause::ObjectFinal { .. } | Cause::ObjectHopeless { .. } => {
            Code::HopelessJobTicket
        }
        Cause::NodeGone { .. } => Code::TicketToMissingNode,
        Cause::DeadlinePassed { .. } | Cause::OwnerGone { .. } | Cause::HeartbeatMissed { .. } => {
            Code::ExpiredTicket
        }
    }
}

fn proof(index: &Index<'_>, case: &Case<'_>, ticket: &Ticket, cause: &Cause) -> Vec<Evidence> {
    match cause {
        Cause::AttachmentGone { name } => vec![Evidence::missing(ObjectRef::named(
            "volumeattachments.storage.k8s.io",
            "",
            name.as_str(),
        ))],
        Cause::NodeGone { node } => {
            vec![Evidence::missing(ObjectRef::ours(
                "nodes.longhorn.io",
                node.as_str(),
            ))]
        }
        Cause::ObjectHopeless { name, .. } => backup_evidence(index, name),
        Cause::ObjectGone { what, name } => {
            vec![Evidence::missing(ObjectRef::ours(resource(what), name))]
        }
        Cause::ObjectFinal { what, name, result } => vec![Evidence::new(
            ObjectRef::ours(resource(what), name),
            "status",
            result,
        )],
        Cause::Unclaimed { .. } => vec![Evidence::new(
            ObjectRef::ours(ATTACHMENTS, case.name),
            &format!("spec.attachmentTickets[{}].parameters", ticket.id),
            "no owner, no deadline, no heartbeat",
        )],
        Cause::DeadlinePassed { .. } | Cause::OwnerGone { .. } | Cause::HeartbeatMissed { .. } => {
            Vec::new()
        }
    }
}

fn resource(what: &str) -> &'static str {
    if what == "backup" {
        "backups.longhorn.io"
    } else {
        "snapshots.longhorn.io"
    }
}

fn backup_evidence(index: &Index<'_>, name: &str) -> Vec<Evidence> {
    let Some(backup) = index
        .dump
        .backups
        .iter()
        .find(|backup| self::name(&backup.metadata) == name)
    else {
        return Vec::new();
    };
    let object = || ObjectRef::new("backups.longhorn.io", &backup.metadata);
    let status = backup.status.clone().unwrap_or_default();
    let created = backup.metadata.creation_timestamp.as_ref();
    let mut evidence = vec![
        Evidence::new(object(), "status.state", status.state).since_time(created),
        Evidence::missing(ObjectRef::ours(
            "snapshots.longhorn.io",
            &backup.spec.snapshot_name,
        )),
    ];
    if !status.message.is_empty() {
        evidence.push(Evidence::new(object(), "status.message", status.message));
    }
    evidence
}

/// What the reaper does about it, and when.
fn outlook(index: &Index<'_>, removal: &Removal) -> String {
    if !is_manager_running(index) {
        return "nothing: no manager is at work".to_owned();
    }
    if removal.in_use {
        return "the manager removes the ticket when its node has the volume in use no more"
            .to_owned();
    }
    let policy = Policy::default();
    match removal.cause {
        Cause::Unclaimed { .. } => format!(
            "the manager removes the ticket when it has kept a workload waiting for {} h",
            policy.unclaimed_grace.as_hours()
        ),
        _ => format!(
            "the manager removes the ticket when it has looked abandoned for {} min",
            policy.grace.as_mins()
        ),
    }
}

fn with_repair(
    index: &Index<'_>,
    case: &Case<'_>,
    ticket: &Ticket,
    cause: &Cause,
    found: Finding,
) -> Finding {
    let Some(attachment) = case.attachment else {
        return found;
    };
    if let Cause::ObjectHopeless { name, .. } = cause
        && let Some(backup) = index
            .dump
            .backups
            .iter()
            .find(|backup| self::name(&backup.metadata) == &**name)
    {
        // The ticket alone would be filed again at once: the backup wants it.
        return found.repair(Some(Repair {
            summary: format!(
                "remove backup {name}, which can never be made; its ticket goes with it"
            ),
            actions: vec![Action::Delete {
                object: ObjectRef::new("backups.longhorn.io", &backup.metadata),
                when: Precondition::same_object(&backup.metadata),
            }],
        }));
    }
    let is_workload = ticket.attacher.is_workload();
    let node = ticket.node.as_str();
    if is_workload && index.is_in_use(case.name, node) && index.node(node).is_some() {
        return found.advice(format!(
            "node {node} still has the volume mounted: stop what uses it there first (`kubectl get pods -A --field-selector \
             spec.nodeName={node}`)"
        ));
    }
    found.repair(Some(Repair {
        summary: format!(
            "take ticket {:?} out of volume {}",
            ticket.id.as_str(),
            case.name
        ),
        actions: vec![Action::remove_ticket(attachment, ticket.id.as_str())],
    }))
}

/// LAR-105: two workloads, two nodes, one volume.
pub(super) fn conflicting(_: &Index<'_>, case: &Case<'_>, findings: &mut Vec<Finding>) {
    let Ok((view, plan)) = &case.tickets else {
        return;
    };
    if view.volume.sharing != Sharing::Exclusive {
        return;
    }
    let is_abandoned = |id: &TicketId| case.suspects.iter().any(|suspect| suspect.ticket == *id);
    let workloads: Vec<&Ticket> = view
        .tickets
        .values()
        .filter(|ticket| ticket.attacher.is_workload() && !is_abandoned(&ticket.id))
        .collect();
    let Some(first) = workloads.first() else {
        return;
    };
    if workloads.iter().all(|ticket| ticket.node == first.node) {
        return;
    }
    let list: Vec<String> = workloads
        .iter()
        .map(|ticket| format!("{ticket} on node {}", ticket.node))
        .collect();
    let advice = workloads.iter().filter_map(|ticket| {
        let judgement = plan.verdicts.get(&ticket.id)?;
        judgement.reason.as_ref()?.advice()
    });
    let mut found = Finding::new(
        Code::ConflictingTickets,
        ObjectRef::ours(ATTACHMENTS, case.name),
        format!(
            "volume {} can be on one node only, and is wanted on several: {}",
            case.name,
            list.join(", ")
        ),
    )
    .volume(case.name)
    .evidence(workloads.iter().map(|ticket| ticket_evidence(case, ticket)))
    .by_itself("the ones that wait get the volume when those before them are removed");
    found.advice = advice.collect();
    found.advice.dedup();
    findings.push(found);
}

/// LAR-106: on the right node, in the wrong way.
pub(super) fn incompatible(_: &Index<'_>, case: &Case<'_>, findings: &mut Vec<Finding>) {
    let Ok((view, plan)) = &case.tickets else {
        return;
    };
    for (id, judgement) in &plan.verdicts {
        let (Some(reason @ Reason::IncompatibleParameters { .. }), Some(ticket)) =
            (&judgement.reason, view.tickets.get(id))
        else {
            continue;
        };
        let spec = Evidence::new(
            ObjectRef::ours("volumes.longhorn.io", case.name),
            "spec.disableFrontend",
            view.volume.spec.disable_frontend,
        );
        let mut found = finding(
            Code::IncompatibleParameters,
            case,
            id,
            format!("{ticket} cannot be served: {reason}"),
        )
        .evidence([ticket_evidence(case, ticket), spec])
        .by_itself("the volume is attached anew when the present holder lets go");
        found.advice = reason.advice().into_iter().collect();
        findings.push(found);
    }
}

/// LAR-107: nothing says which of several nodes has the workload.
pub(super) fn dead_migration(_: &Index<'_>, case: &Case<'_>, findings: &mut Vec<Finding>) {
    let Ok((view, plan)) = &case.tickets else {
        return;
    };
    let Some(reason) = plan.reasons.iter().find(|reason| {
        matches!(
            reason,
            Reason::AmbiguousMigration { .. } | Reason::MigrationInterrupted { .. }
        )
    }) else {
        return;
    };
    let csi: Vec<&Ticket> = view
        .tickets
        .values()
        .filter(|ticket| ticket.is(AttacherKind::Csi))
        .collect();
    if csi.len() < 2 {
        return;
    }
    let mut found = Finding::new(
        Code::DeadMigration,
        ObjectRef::ours(ATTACHMENTS, case.name),
        format!(
            "the migration of volume {} cannot be finished: {reason}",
            case.name
        ),
    )
    .volume(case.name)
    .evidence(csi.iter().map(|ticket| ticket_evidence(case, ticket)));
    found.advice = reason.advice().into_iter().collect();
    findings.push(found.repair(one_workload_left(case, &csi)));
}

/// The tickets of nodes without a pod, if exactly one of the nodes has one.
fn one_workload_left(case: &Case<'_>, csi: &[&Ticket]) -> Option<Repair> {
    let attachment = case.attachment?;
    let (with, without): (Vec<&Ticket>, Vec<&Ticket>) = csi
        .iter()
        .copied()
        .partition(|ticket| has_pod(case, ticket.node.as_str()));
    let [keeper] = with[..] else {
        return None;
    };
    let gone: serde_json::Map<String, serde_json::Value> = without
        .iter()
        .map(|ticket| (ticket.id.as_str().to_owned(), serde_json::Value::Null))
        .collect();
    Some(Repair {
        summary: format!(
            "keep node {}, which alone has a pod of this volume",
            keeper.node
        ),
        actions: vec![Action::Patch {
            object: ObjectRef::new(ATTACHMENTS, &attachment.metadata),
            patch: json!({"spec": {"attachmentTickets": gone}}),
            when: Precondition::unchanged(&attachment.metadata),
        }],
    })
}

/// A pod that uses the volume is on this node, and is not over.
pub(super) fn has_pod(case: &Case<'_>, node: &str) -> bool {
    case.pods.iter().any(|pod| {
        let on = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        on == Some(node) && !matches!(phase, Some("Succeeded" | "Failed"))
    })
}

/// LAR-108: kept, shown, and never served.
pub(super) fn unusable(_: &Index<'_>, case: &Case<'_>, findings: &mut Vec<Finding>) {
    let (Ok((view, _)), Some(attachment)) = (&case.tickets, case.attachment) else {
        return;
    };
    for ticket in view.tickets.values() {
        let reason = match (&ticket.defect, &ticket.attacher) {
            (Some(defect), _) => Reason::InvalidTicket(defect.clone()),
            (None, attacher @ Attacher::Foreign(_)) => Reason::UnknownAttacher {
                attacher: attacher.clone(),
            },
            (None, Attacher::Known(_)) => continue,
        };
        let key = ticket.id.as_str();
        let repair = matches!(ticket.defect, Some(Defect::IdIsNotKey { .. })).then(|| Repair {
            summary: format!("give the ticket the id {key:?}, under which it is filed"),
            actions: vec![Action::Patch {
                object: ObjectRef::new(ATTACHMENTS, &attachment.metadata),
                patch: json!({"spec": {"attachmentTickets": {(key): {"id": key}}}}),
                when: Precondition::unchanged(&attachment.metadata),
            }],
        });
        let mut found = finding(
            Code::UnusableTicket,
            case,
            &ticket.id,
            format!("{ticket} on volume {} is never served: {reason}", case.name),
        )
        .evidence([ticket_evidence(case, ticket)])
        .repair(repair);
        found.advice = reason.advice().into_iter().collect();
        if ticket.attacher.is_workload() {
            found.severity = Severity::Error;
        }
        findings.push(found);
    }
}
