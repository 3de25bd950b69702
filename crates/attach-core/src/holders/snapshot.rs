//! A snapshot is taken or removed.

use crate::attacher::AttacherKind;
use crate::ticket::{Frontend, Ticket};

use super::{HolderView, Subject};

/// Held until the snapshot is taken, or until it is gone. One that cannot be taken or removed now is not waited for: it would
/// pin the volume for as long as the live data builds upon it, or until somebody makes room.
pub(super) fn desired_ticket(view: &HolderView<'_>) -> Option<Ticket> {
    let Subject::Snapshot(snapshot) = view.subject else {
        return None;
    };
    let taking = snapshot.create && !snapshot.created && !snapshot.deleting && !snapshot.refused;
    let removing = snapshot.deleting
        && (snapshot.created || snapshot.requested)
        && !snapshot.purged
        && !snapshot.is_head_parent
        && !snapshot.has_branches
        && !snapshot.purge_disabled;
    if view.volume.deleting || !(taking || removing) {
        return None;
    }
    view.leased_ticket(
        AttacherKind::Snapshot,
        "Snapshot.longhorn.io",
        &snapshot.name,
        Frontend::Any,
    )
}
