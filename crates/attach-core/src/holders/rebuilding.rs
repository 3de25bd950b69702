//! A detached volume gets its missing replicas back.

use crate::attacher::AttacherKind;
use crate::names::TicketId;
use crate::ticket::{Frontend, Ticket};
use crate::view::{Robustness, VolumeState};

use super::{HolderView, Subject};

/// Held by a volume that nobody else wants, until it has all its replicas. Whoever comes with a higher priority takes over:
/// an attached volume rebuilds anyway.
pub(super) fn desired_ticket(view: &HolderView<'_>) -> Option<Ticket> {
    let volume = view.volume;
    let id = Ticket::id_for(AttacherKind::Rebuilding, volume.name.as_str());
    let wanted = *view.subject == Subject::Volume
        && volume.offline_rebuilding
        && volume.lacks_replicas
        && volume.robustness != Robustness::Faulted
        && !volume.deleting
        && !view.has_higher_ticket_than(AttacherKind::Rebuilding);
    if !wanted || !is_ours_to_attach(view, &id) {
        return None;
    }
    view.ticket(
        AttacherKind::Rebuilding,
        volume.name.as_str(),
        volume.home(),
        Frontend::Any,
    )
}

/// Detached, or attached because of this very ticket.
fn is_ours_to_attach(view: &HolderView<'_>, id: &TicketId) -> bool {
    view.volume.state == VolumeState::Detached || view.tickets.contains_key(id)
}
