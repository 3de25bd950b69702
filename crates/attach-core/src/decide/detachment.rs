//! Detachment: when a volume leaves the node it is on.

use crate::names::NodeName;
use crate::reasons::{Party, Reason};
use crate::view::VolumeSpec;

use super::tickets::Tickets;

/// Why the volume must leave `node`, if it must. Faulted volumes and migrations are decided before this.
pub(super) fn cause(tickets: &Tickets<'_>, spec: &VolumeSpec, node: &NodeName) -> Option<Reason> {
    if tickets.matching(spec).next().is_none() {
        return Some(Reason::NoMatchingTicket { node: node.clone() });
    }
    let workload = tickets.interruption(tickets.matching(spec), node)?;
    Some(Reason::InterruptedBy {
        workload: Party::from(workload),
        from: node.clone(),
    })
}
