//! A snapshot is copied to the backup target.

use crate::attacher::AttacherKind;
use crate::ticket::{Frontend, Ticket};

use super::{HolderView, Subject};

/// Held until the backup is done, one way or another. A backup whose snapshot does not exist can never be done and gets
/// no ticket at all: upstream lets it hold the volume for ever (longhorn #10090).
pub(super) fn desired_ticket(view: &HolderView<'_>) -> Option<Ticket> {
    let Subject::Backup(backup) = view.subject else {
        return None;
    };
    if backup.is_final
        || backup.synced
        || backup.deleting
        || !backup.snapshot_exists
        || view.volume.deleting
    {
        return None;
    }
    view.leased_ticket(
        AttacherKind::Backup,
        "Backup.longhorn.io",
        &backup.name,
        Frontend::Any,
    )
}
