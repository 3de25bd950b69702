//! The share manager needs a volume that many nodes share, where its pod is.

use crate::attacher::AttacherKind;
use crate::ticket::{Frontend, Ticket};
use crate::view::{Robustness, Sharing};

use super::{HolderView, Subject};

/// Held while pods want the volume and the share's pod has a node. It follows the pod: this ticket alone decides
/// where the volume is.
pub(super) fn desired_ticket(view: &HolderView<'_>) -> Option<Ticket> {
    let Subject::SharePod(pod) = view.subject else {
        return None;
    };
    let volume = view.volume;
    let wanted = view
        .tickets
        .values()
        .any(|ticket| ticket.is(AttacherKind::Csi));
    let usable = volume.robustness != Robustness::Faulted
        && !volume.restore_required
        && !volume.frontend_disabled
        && !volume.standby;
    if volume.sharing != Sharing::Shared
        || !wanted
        || !usable
        || !pod.alive
        || !pod.owner_schedulable
    {
        return None;
    }
    let id = Ticket::id_for(AttacherKind::ShareManager, volume.name.as_str());
    let ticket = Ticket::new(AttacherKind::ShareManager, id, pod.node.clone()?);
    Some(Ticket {
        frontend: Frontend::Enabled,
        ..ticket
    })
}
