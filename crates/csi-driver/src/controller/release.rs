//! Is a volume off a node? Is a ticket answered? Pure.

use std::collections::BTreeMap;

use api_types::{
    AccessMode, AttachmentTicket, Engine, InstanceState, SATISFIED_CONDITION, Volume,
    VolumeAttachment, condition,
};
use attach_core::{AttacherKind, Ticket, wire};
use kube::ResourceExt as _;

use super::observed::{View, revision};

/// What became of a ticket that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TicketState {
    Satisfied,
    /// Not yet, and why.
    Waiting(String),
    /// Not before somebody lets go who does not do that by himself, and who that is.
    Held(String),
    /// Somebody removed or replaced it: whoever waits for it should ask again.
    Withdrawn,
    VolumeGone,
}

/// Looks at a ticket in a view that is at least as new as the write, which made `written_revision`.
pub fn ticket_state(view: &View, ticket: &AttachmentTicket, written_revision: u64) -> TicketState {
    let Some(attachment) = &view.attachment else {
        return match view.volume {
            None => TicketState::VolumeGone,
            Some(_) => TicketState::Waiting("its attachment is not visible yet".to_owned()),
        };
    };
    if revision(attachment.as_ref()) < written_revision {
        return TicketState::Waiting("the ticket is not visible yet".to_owned());
    }
    let filed = attachment.spec.attachment_tickets.get(&ticket.id);
    if filed.is_none_or(|filed| {
        filed.generation != ticket.generation || filed.node_id != ticket.node_id
    }) {
        return TicketState::Withdrawn;
    }
    let Some(status) = &attachment.status else {
        return TicketState::Waiting("no controller has looked at the ticket yet".to_owned());
    };
    if status.satisfies(ticket) {
        return TicketState::Satisfied;
    }
    let answer = status
        .attachment_ticket_statuses
        .get(&ticket.id)
        .filter(|answer| answer.generation == ticket.generation);
    let Some(answer) = answer else {
        return TicketState::Waiting("no controller has looked at the ticket yet".to_owned());
    };
    if let Some(sentence) = held_by_hand(view, attachment, &ticket.node_id) {
        return TicketState::Held(sentence);
    }
    TicketState::Waiting(
        condition::find(&answer.conditions, SATISFIED_CONDITION)
            .map(|condition| condition.message.clone())
            .filter(|message| !message.is_empty())
            .unwrap_or_else(|| "the ticket is not satisfied, and no reason is given".to_owned()),
    )
}

/// Says who has the volume on another node until a person ends it. A ticket with a deadline, a heartbeat or an owner
/// may end by itself, and is waited for.
fn held_by_hand(view: &View, attachment: &VolumeAttachment, node: &str) -> Option<String> {
    let volume = view.volume.as_ref()?;
    let tickets = wire::tickets(attachment);
    let holders: Vec<&Ticket> = tickets
        .values()
        .filter(|ticket| {
            ticket.attacher.is(AttacherKind::Manual)
                && ticket.defect.is_none()
                && ticket.lease.is_empty()
                && ticket.node.as_str() != node
                && !is_fenced_node(volume, &view.engines, ticket.node.as_str())
        })
        .collect();
    if holders.len() <= others_max(volume) {
        return None;
    }
    let holders: Vec<String> = holders
        .iter()
        .map(|ticket| format!("node {} by ticket {}", ticket.node, ticket.id))
        .collect();
    Some(format!(
        "volume {} is attached by hand to {}; detach it there first",
        volume.name_any(),
        holders.join(" and ")
    ))
}

/// On how many other nodes a volume may be beside the one that is asked for.
fn others_max(volume: &Volume) -> usize {
    match (&volume.spec.access_mode, volume.spec.migratable) {
        (AccessMode::ReadWriteMany, true) => 1,
        (AccessMode::ReadWriteMany, false) => usize::MAX,
        _ => 0,
    }
}

/// Where the volume still is, in the way of `node`, whoever wanted it there: for a caller who has waited long enough.
pub fn elsewhere(view: &View, node: &str) -> Option<String> {
    let volume = view.volume.as_ref()?;
    let mut others: BTreeMap<&str, &str> = BTreeMap::new();
    for engine in &view.engines {
        let on = engine.spec.node_id.as_str();
        if !on.is_empty()
            && on != node
            && !is_fenced(volume, engine)
            && let Some(reason) = still_there(engine)
        {
            others.insert(on, reason);
        }
    }
    if others.len() <= others_max(volume) {
        return None;
    }
    let others: Vec<String> = others
        .iter()
        .map(|(on, reason)| format!("node {on}, where its engine {reason}"))
        .collect();
    Some(format!(
        "volume {} is on {}",
        volume.name_any(),
        others.join(", and on ")
    ))
}

/// May a CSI ticket for `node` be filed? If not, the sentence that says where the volume is.
///
/// Kubernetes forgets attachments that it is unsure of, and then asks for a second one. The driver is the last who can
/// refuse, so that it does, until the other node is shut out.
pub fn admit(view: &View, node: &str) -> Result<(), String> {
    let (Some(volume), Some(attachment)) = (&view.volume, &view.attachment) else {
        return Ok(());
    };
    let others: Vec<&str> = attachment
        .spec
        .attachment_tickets
        .values()
        .filter(|ticket| is_csi(ticket) && ticket.node_id != node)
        .map(|ticket| ticket.node_id.as_str())
        .filter(|other| !is_fenced_node(volume, &view.engines, other))
        .collect();
    let others_max = others_max(volume);
    if others.len() <= others_max {
        return Ok(());
    }
    let why = if others_max == 0 {
        "it can be on one node only"
    } else {
        "it can be on two nodes at once, for a migration"
    };
    Err(format!(
        "volume {} is published to node {}, and {why}; unpublish it there first, or wait until that node is fenced",
        volume.name_any(),
        others.join(" and node "),
    ))
}

/// Why a node cannot be said to have let go of a volume yet; `Ok` when it has, or is shut out. `None` for the node
/// means every node; `removed` are the tickets that were taken away.
///
/// A ticket of another kind for the same node (a backup that runs) does not hold this up: it keeps the engine there in its own
/// right, and no other node gets the volume before that engine is gone or fenced.
pub fn released(view: &View, node: Option<&str>, removed: &[String]) -> Result<(), String> {
    let Some(volume) = &view.volume else {
        return Ok(());
    };
    let concerns = |other: &str| !other.is_empty() && node.is_none_or(|node| node == other);
    let mut held_by_others: Vec<&str> = Vec::new();
    if let Some(attachment) = &view.attachment {
        for ticket in attachment.spec.attachment_tickets.values() {
            if !concerns(&ticket.node_id) {
                continue;
            }
            if is_csi(ticket) {
                return Err(format!(
                    "a ticket for node {} is still there",
                    ticket.node_id
                ));
            }
            held_by_others.push(&ticket.node_id);
        }
        // Its controller drops a status when it has seen that the ticket is gone. Before that it may still attach.
        let statuses = attachment
            .status
            .iter()
            .flat_map(|status| &status.attachment_ticket_statuses);
        if let Some((id, _)) = statuses.into_iter().find(|(id, _)| removed.contains(id)) {
            return Err(format!(
                "the attachment controller has not seen yet that ticket {id} is gone"
            ));
        }
    }
    let concerns = |other: &str| concerns(other) && !held_by_others.contains(&other);
    for engine in &view.engines {
        let on = engine.spec.node_id.as_str();
        if concerns(on)
            && !is_fenced(volume, engine)
            && let Some(reason) = still_there(engine)
        {
            let name = engine.name_any();
            return Err(format!("engine {name} on node {on} {reason}"));
        }
    }
    for wanted in [&volume.spec.node_id, &volume.spec.migration_node_id] {
        if concerns(wanted) {
            return Err(format!("the volume is still meant to be on node {wanted}"));
        }
    }
    let Some(status) = &volume.status else {
        return Ok(());
    };
    let former = status
        .fence_proof
        .as_ref()
        .map(|proof| proof.former_node_id.as_str());
    for current in [&status.current_node_id, &status.current_migration_node_id] {
        if concerns(current) && former != Some(current) {
            return Err(format!("the volume is still reported on node {current}"));
        }
    }
    Ok(())
}

/// The nodes whose CSI ticket is satisfied now.
pub fn published_nodes(view: &View) -> Vec<String> {
    let Some(attachment) = &view.attachment else {
        return Vec::new();
    };
    let Some(status) = &attachment.status else {
        return Vec::new();
    };
    let tickets = attachment.spec.attachment_tickets.values();
    let mut nodes: Vec<String> = tickets
        .filter(|ticket| is_csi(ticket) && status.satisfies(ticket))
        .map(|ticket| ticket.node_id.clone())
        .collect();
    nodes.sort();
    nodes.dedup();
    nodes
}

/// Whether a CSI ticket wants the volume on this node.
pub fn has_csi_ticket(attachment: &VolumeAttachment, node: &str) -> bool {
    let mut tickets = attachment.spec.attachment_tickets.values();
    tickets.any(|ticket| is_csi(ticket) && ticket.node_id == node)
}

/// The CSI tickets that are answered, whether they are still filed or not: their ids tell what they are.
pub fn answered_csi(attachment: &VolumeAttachment) -> Vec<String> {
    let statuses = attachment
        .status
        .iter()
        .flat_map(|status| status.attachment_ticket_statuses.keys());
    statuses
        .filter(|id| id.starts_with("csi-"))
        .cloned()
        .collect()
}

pub fn is_csi(ticket: &AttachmentTicket) -> bool {
    ticket.attacher_type == AttacherKind::Csi.wire()
}

/// Why an engine may still serve its node; None when it certainly does not.
fn still_there(engine: &Engine) -> Option<&'static str> {
    let Some(status) = engine
        .status
        .as_ref()
        .filter(|status| !status.owner_id.is_empty())
    else {
        return Some("has not reported anything yet");
    };
    if !status.endpoint.is_empty() {
        return Some("still offers its device and is not fenced");
    }
    match status.current_state {
        InstanceState::Stopped | InstanceState::Error => None,
        InstanceState::Stopping => Some("is being stopped"),
        InstanceState::Running | InstanceState::Starting => Some("still runs and is not fenced"),
        InstanceState::Unknown | InstanceState::Other(_) => {
            Some("is on a node that does not answer, and is not fenced")
        }
    }
}

fn is_fenced(volume: &Volume, engine: &Engine) -> bool {
    let proof = volume
        .status
        .as_ref()
        .and_then(|status| status.fence_proof.as_ref());
    proof.is_some_and(|proof| engine.spec.epoch < proof.epoch)
}

/// A node is shut out when a proof names it and none of its engines is newer than the proof.
fn is_fenced_node(volume: &Volume, engines: &[std::sync::Arc<Engine>], node: &str) -> bool {
    let proof = volume
        .status
        .as_ref()
        .and_then(|status| status.fence_proof.as_ref());
    proof.is_some_and(|proof| proof.former_node_id == node)
        && engines
            .iter()
            .filter(|engine| engine.spec.node_id == node)
            .all(|engine| is_fenced(volume, engine))
}

#[cfg(test)]
mod tests;
