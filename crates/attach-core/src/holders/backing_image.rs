//! A backing image is made from the volume.

use crate::attacher::AttacherKind;
use crate::ticket::{Frontend, Ticket};

use super::{HolderView, Subject};

/// Held until the file is where it should be, or can never be.
pub(super) fn desired_ticket(view: &HolderView<'_>) -> Option<Ticket> {
    let Subject::BackingImageExport(export) = view.subject else {
        return None;
    };
    if export.transferred || export.failed || export.deleting || view.volume.deleting {
        return None;
    }
    view.leased_ticket(
        AttacherKind::BackingImage,
        "BackingImageDataSource.longhorn.io",
        &export.name,
        Frontend::Any,
    )
}
