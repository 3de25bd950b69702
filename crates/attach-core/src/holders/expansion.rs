//! The volume grows.

use crate::attacher::AttacherKind;
use crate::ticket::{Frontend, Ticket};

use super::{HolderView, Subject};

/// Held while the engine is smaller than the volume should be. The device is open, because its file system grows too.
pub(super) fn desired_ticket(view: &HolderView<'_>) -> Option<Ticket> {
    let wanted =
        *view.subject == Subject::Volume && view.volume.expansion_required && !view.volume.deleting;
    if !wanted {
        return None;
    }
    view.ticket(
        AttacherKind::Expansion,
        view.volume.name.as_str(),
        view.volume.home(),
        Frontend::Enabled,
    )
}
