//! A pod needs the volume, through the CSI driver.

use crate::attacher::AttacherKind;
use crate::lease::Lease;
use crate::ticket::Ticket;

use super::{HolderView, Subject};

/// Filed by `ControllerPublishVolume`, removed by `ControllerUnpublishVolume`.
pub(super) fn desired_ticket(view: &HolderView<'_>) -> Option<Ticket> {
    let Subject::Publication(publication) = view.subject else {
        return None;
    };
    let ticket = Ticket::new(
        AttacherKind::Csi,
        &*publication.attachment,
        publication.node.clone(),
    );
    let lease = Lease::owned_by("VolumeAttachment.storage.k8s.io", &publication.attachment);
    Some(Ticket { lease, ..ticket })
}
