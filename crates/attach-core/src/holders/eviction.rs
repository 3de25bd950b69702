//! A replica leaves its disk or node.

use crate::attacher::AttacherKind;
use crate::ticket::{Frontend, Ticket};

use super::{HolderView, Subject};

/// Held while a replica should leave and has somewhere to go. Without a disk that has room nothing would
/// happen, so nothing is held. Whoever comes with a higher priority takes over: a replica leaves an attached volume
/// wherever that is, and a ticket that stays on its node would keep the volume there when the node dies.
pub(super) fn desired_ticket(view: &HolderView<'_>) -> Option<Ticket> {
    let wanted = *view.subject == Subject::Volume
        && view.volume.eviction_possible
        && !view.volume.deleting
        && !view.has_higher_ticket_than(AttacherKind::Eviction);
    if !wanted {
        return None;
    }
    view.ticket(
        AttacherKind::Eviction,
        view.volume.name.as_str(),
        view.volume.home(),
        Frontend::Any,
    )
}
