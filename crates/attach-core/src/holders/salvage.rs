//! A volume's replicas are being recovered.

use crate::ticket::Ticket;

use super::HolderView;

/// Never held. The type exists, and tickets of it that others file are served; but salvage works on replicas of a detached
/// volume, and an attachment would only be in its way.
pub(super) fn desired_ticket(_view: &HolderView<'_>) -> Option<Ticket> {
    None
}
