//! A person needs the volume.

use crate::attacher::AttacherKind;
use crate::ticket::{Frontend, Ticket};

use super::{HolderView, Subject};

/// Filed by an attach request, removed by a detach request, by the reaper at its deadline, or when its node is cordoned.
pub(super) fn desired_ticket(view: &HolderView<'_>) -> Option<Ticket> {
    let Subject::Manual(request) = view.subject else {
        return None;
    };
    Some(Ticket {
        frontend: if request.disable_frontend {
            Frontend::Disabled
        } else {
            Frontend::Enabled
        },
        last_attached_by: request.by.clone(),
        lease: request.lease.clone(),
        ..Ticket::new(
            AttacherKind::Manual,
            request.id.clone(),
            request.node.clone(),
        )
    })
}
