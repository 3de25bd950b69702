//! Cordon: a person who cordons a node means manual attachments too, if the setting says so.

use crate::attacher::AttacherKind;
use crate::names::TicketId;
use crate::reasons::{Party, Reason};
use crate::view::View;

use super::draft::Draft;

/// Marks manual tickets on cordoned nodes for removal, or says why they stay.
pub(super) fn sweep<'d>(view: &View, draft: &'d mut Draft) -> &'d [TicketId] {
    for ticket in view.tickets.values() {
        if !ticket.is(AttacherKind::Manual) || !view.nodes.is_cordoned(&ticket.node) {
            continue;
        }
        let party = Party::from(ticket);
        if view.settings.detach_manual_when_cordoned {
            draft.tickets_to_remove.push(ticket.id.clone());
            draft
                .reasons
                .push(Reason::RemovedByCordon { ticket: party });
        } else {
            draft
                .reasons
                .push(Reason::KeptDespiteCordon { ticket: party });
        }
    }
    &draft.tickets_to_remove
}
