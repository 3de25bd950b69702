//! The middle of the chain: which ticket has the volume, and what the others wait for.

use attach_core::{Reason, Ticket, TicketId, Verdict as TicketVerdict};

use crate::evidence::{Evidence, ObjectRef};
use crate::findings::ticket_evidence;
use crate::index::{Case, Index};
use crate::verdict::Verdict;

use super::{Draft, life};

/// Follows one ticket; without one, the ticket that has most to say.
pub(super) fn of_volume(index: &Index<'_>, case: &Case<'_>, id: Option<&str>, draft: &mut Draft) {
    draft.volume = Some(case.name.to_owned());
    let (view, plan) = match &case.tickets {
        Ok(decided) => decided,
        Err(message) => {
            let object = ObjectRef::ours("volumes.longhorn.io", case.name);
            draft.stuck(
                "volume",
                format!(
                    "volume {} cannot be read, so nothing is decided about it: {message}",
                    case.name
                ),
                [Evidence::new(object, "", message)],
            );
            return;
        }
    };
    let ticket = match id {
        Some(id) => match view.tickets.get(&TicketId::from(id)) {
            Some(ticket) => ticket,
            None => return not_filed(index, case, id, draft),
        },
        None => match most_telling(view, plan) {
            Some(ticket) => ticket,
            None => return nobody(index, case, plan, draft),
        },
    };
    draft.nodes.insert(ticket.node.as_str().to_owned());
    let Some(judgement) = plan.verdicts.get(&ticket.id) else {
        return;
    };
    let evidence = [ticket_evidence(case, ticket)];
    let Some(reason) = &judgement.reason else {
        draft.fine(
            "ticket",
            format!("{ticket} has the volume on node {}", ticket.node),
            evidence,
        );
        draft.at_least(Verdict::Attached);
        return life::attached(index, case, draft);
    };
    draft.waits_since(evidence[0].since);
    let sentence = format!("{ticket} for node {} waits: {reason}", ticket.node);
    match reason {
        Reason::Attaching { .. } | Reason::VolumeNotReady { .. } | Reason::Detaching { .. } => {
            draft.waits("ticket", sentence, evidence);
            life::on_its_way(index, case, draft);
        }
        Reason::VolumeFaulted { .. } => {
            draft.stuck("ticket", sentence, evidence);
            life::on_its_way(index, case, draft);
            if let Some(advice) = reason.advice() {
                draft.suggest(advice);
            }
        }
        Reason::AttachedElsewhere { holder, .. } | Reason::AttachingElsewhere { holder, .. } => {
            draft.link("ticket", super::State::Waiting, sentence, evidence);
            let holder = holder
                .as_ref()
                .and_then(|holder| view.tickets.get(&holder.id));
            let interrupts = matches!(judgement.verdict, TicketVerdict::Interrupting);
            held_by(index, case, ticket, holder, interrupts, draft);
        }
        Reason::BackingOff { until, .. } => {
            draft.waits("ticket", sentence, evidence);
            draft.by_itself(format!("the next attempt is at {until}"));
            life::on_its_way(index, case, draft);
        }
        Reason::Migrating { .. }
        | Reason::MigrationPreparing { .. }
        | Reason::MigrationReady { .. }
        | Reason::MigrationSnapshotsDiffer { .. }
        | Reason::MigrationConfirmed { .. } => draft.waits("ticket", sentence, evidence),
        Reason::WaitingForShare { .. } => {
            draft.stuck("ticket", sentence, evidence);
            draft.suggest("see whether a share manager serves this volume; shared file systems are not served by every version");
        }
        other => {
            // The rest waits for somebody: whoever that is, is in the sentence and in its advice.
            draft.stuck("ticket", sentence, evidence);
            if let Some(advice) = other.advice() {
                draft.suggest(advice);
            }
        }
    }
}

/// Somebody who runs something waits for the volume.
pub(super) fn has_waiting_workload(case: &Case<'_>) -> bool {
    let Ok((view, plan)) = &case.tickets else {
        return false;
    };
    view.tickets.values().any(|ticket| {
        let judgement = plan.verdicts.get(&ticket.id);
        ticket.attacher.is_workload() && judgement.is_some_and(|one| one.reason.is_some())
    })
}

/// The first that is not served, of those that count most; else the holder.
fn most_telling<'v>(view: &'v attach_core::View, plan: &attach_core::Plan) -> Option<&'v Ticket> {
    let is_waiting = |ticket: &Ticket| {
        plan.verdicts
            .get(&ticket.id)
            .is_some_and(|judgement| judgement.reason.is_some())
    };
    view.tickets.values().max_by_key(|ticket| {
        (
            is_waiting(ticket) && ticket.attacher.is_workload(),
            is_waiting(ticket),
            ticket.attacher.is_workload(),
            ticket.attacher.priority(),
        )
    })
}

/// The attacher has been asked and has not filed a ticket.
fn not_filed(index: &Index<'_>, case: &Case<'_>, id: &str, draft: &mut Draft) {
    let object = ObjectRef::ours("volumeattachments.longhorn.io", case.name);
    let evidence = Evidence::new(
        object,
        &format!("spec.attachmentTickets[{id}]"),
        "does not exist",
    );
    let Some(attachment) = index.attachment(id) else {
        return;
    };
    let created = attachment
        .metadata
        .creation_timestamp
        .as_ref()
        .map(|time| time.0);
    let is_young = created.is_some_and(|created| index.now.duration_since(created).as_secs() < 30);
    let is_leaving = attachment.metadata.deletion_timestamp.is_some();
    if is_leaving {
        draft.waits(
            "ticket",
            "its ticket is gone already; the attacher follows",
            [evidence],
        );
    } else if is_young {
        draft.waits(
            "ticket",
            "the driver has not filed a ticket for it yet",
            [evidence],
        );
    } else {
        draft.stuck(
            "ticket",
            "there is no ticket for it, so that nothing holds the volume there",
            [evidence],
        );
        draft.suggest("see whether the attacher and the CSI controller run (`lariat manager`), and read their log");
    }
}

fn nobody(index: &Index<'_>, case: &Case<'_>, plan: &attach_core::Plan, draft: &mut Draft) {
    if case.volume.metadata.deletion_timestamp.is_some() {
        return life::on_its_way(index, case, draft);
    }
    let status = case.volume.status.clone().unwrap_or_default();
    let evidence = life::state_evidence(case);
    let is_detached = status.state == api_types::VolumeState::Detached;
    let reason = plan.reasons.first().map_or_else(
        || "nobody asks for the volume".to_owned(),
        ToString::to_string,
    );
    if is_detached {
        draft.fine("ticket", reason, [evidence]);
        draft.at_least(Verdict::Idle);
        // Whoever asks for it next would be stuck.
        if status.robustness == api_types::VolumeRobustness::Faulted {
            life::on_its_way(index, case, draft);
        }
    } else {
        draft.waits(
            "volume",
            format!("nobody asks for the volume, and it is {}", status.state),
            [evidence],
        );
        draft.by_itself("the volume is detached");
    }
}

/// Who has it, whether anybody needs that, and how it ends.
fn held_by(
    index: &Index<'_>,
    case: &Case<'_>,
    waiting: &Ticket,
    holder: Option<&Ticket>,
    interrupts: bool,
    draft: &mut Draft,
) {
    let Some(holder) = holder else {
        draft.stuck("ticket", "whoever holds it is not understood here", []);
        return;
    };
    draft.nodes.insert(holder.node.as_str().to_owned());
    let evidence = [ticket_evidence(case, holder)];
    if let Some(suspect) = case.suspects.iter().find(|one| one.ticket == holder.id) {
        let sentence = format!(
            "nobody needs {holder} on node {}: {}",
            holder.node, suspect.cause
        );
        let is_slow = matches!(suspect.cause, attach_core::reaper::Cause::Unclaimed { .. });
        if is_slow {
            draft.stuck("ticket", sentence, evidence);
        } else {
            draft.waits("ticket", sentence, evidence);
        }
        // What happens to it, and when, is said by the finding about it.
        return;
    }
    if interrupts {
        draft.waits("ticket", format!("{holder} gives way to it"), evidence);
        draft.by_itself(format!(
            "the volume is detached from node {} and attached to node {}",
            holder.node, waiting.node
        ));
        return life::on_its_way(index, case, draft);
    }
    let users: Vec<String> = case
        .pods
        .iter()
        .filter(|pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            node == Some(holder.node.as_str())
        })
        .map(|pod| {
            let metadata = &pod.metadata;
            format!(
                "{}/{}",
                crate::index::namespace(metadata),
                crate::index::name(metadata)
            )
        })
        .collect();
    let by = if users.is_empty() {
        String::new()
    } else {
        format!(" for pod {}", users.join(", "))
    };
    let until = holder
        .lease
        .deadline
        .map(|deadline| format!("; its deadline is {deadline}"))
        .unwrap_or_default();
    draft.stuck(
        "ticket",
        format!("{holder} holds it on node {}{by}{until}", holder.node),
        evidence,
    );
    if let Some(deadline) = holder.lease.deadline {
        draft.by_itself(format!("the ticket that holds it ends at {deadline}"));
    } else if !holder.attacher.is_workload() {
        draft.by_itself(format!("the volume follows when {holder} is done"));
    }
    let reason = Reason::AttachedElsewhere {
        node: holder.node.clone(),
        holder: Some(holder.into()),
    };
    if let Some(advice) = reason.advice() {
        draft.suggest(advice);
    }
}
