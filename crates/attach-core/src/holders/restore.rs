//! The volume is filled from a backup.

use crate::attacher::AttacherKind;
use crate::ticket::{Frontend, Ticket};

use super::{HolderView, Subject};

/// Held while the volume lacks the backup's content. Nobody may see a volume that is half filled.
pub(super) fn desired_ticket(view: &HolderView<'_>) -> Option<Ticket> {
    let wanted =
        *view.subject == Subject::Volume && view.volume.restore_required && !view.volume.deleting;
    if !wanted {
        return None;
    }
    view.ticket(
        AttacherKind::Restore,
        view.volume.name.as_str(),
        view.volume.home(),
        Frontend::Disabled,
    )
}
