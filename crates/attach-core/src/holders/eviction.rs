//! A replica leaves its disk or node.

use crate::attacher::AttacherKind;
use crate::ticket::{Frontend, Ticket};
use crate::view::Robustness;

use super::{HolderView, Subject};

/// Held while a replica should leave and has somewhere to go. Without a disk that has room nothing would
/// happen, so nothing is held. Whoever comes with a higher priority takes over: a replica leaves an attached volume
/// wherever that is, and a ticket that stays on its node would keep the volume there when the node dies.
///
/// A replica whose disk cannot be read has left as soon as the volume is attached without it, long before another one has
/// taken its place: a ticket that is filed is held until then.
pub(super) fn desired_ticket(view: &HolderView<'_>) -> Option<Ticket> {
    let volume = view.volume;
    let id = Ticket::id_for(AttacherKind::Eviction, volume.name.as_str());
    let is_replacing = volume.replacement_possible
        && volume.robustness != Robustness::Faulted
        && view.tickets.contains_key(&id);
    let wanted = *view.subject == Subject::Volume
        && (volume.eviction_possible || is_replacing)
        && !volume.deleting
        && !view.has_higher_ticket_than(AttacherKind::Eviction);
    if !wanted {
        return None;
    }
    view.ticket(
        AttacherKind::Eviction,
        volume.name.as_str(),
        volume.home(),
        Frontend::Any,
    )
}
