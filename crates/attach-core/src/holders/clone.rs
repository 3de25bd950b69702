//! A volume is filled from another one: both ends hold a ticket.

use std::collections::BTreeMap;

use crate::attacher::AttacherKind;
use crate::names::NodeName;
use crate::ticket::{Frontend, Ticket};

use super::facts::CloneRole;
use super::{HolderView, Subject};

/// Held by the target while it is filled, out of everybody's sight; by the source for each of its targets; and by a
/// linked clone that rebuilds a replica.
pub(super) fn desired_ticket(view: &HolderView<'_>) -> Option<Ticket> {
    let volume = view.volume;
    let (object, frontend) = match view.subject {
        Subject::Volume if volume.clone_copying => (&volume.name, Frontend::Disabled),
        Subject::Clone(CloneRole::Source { target }) => (target, Frontend::Any),
        Subject::Clone(CloneRole::LinkedRebuild { source }) => (source, Frontend::Any),
        _ => return None,
    };
    if volume.deleting {
        return None;
    }
    view.ticket(AttacherKind::Clone, object.as_str(), node(view), frontend)
}

/// Where most is already going on: where the volume is, else where most tickets want it, else with its owner.
fn node(view: &HolderView<'_>) -> Option<NodeName> {
    view.volume
        .current_node
        .clone()
        .or_else(|| majority(view))
        .or_else(|| view.volume.home())
}

fn majority(view: &HolderView<'_>) -> Option<NodeName> {
    let mut votes = BTreeMap::<&NodeName, usize>::new();
    for ticket in view
        .tickets
        .values()
        .filter(|ticket| !ticket.is(AttacherKind::Clone))
    {
        *votes.entry(&ticket.node).or_default() += 1;
    }
    // Of several with as many votes the first by name, whatever order the tickets are in.
    let most = *votes.values().max()?;
    votes
        .into_iter()
        .find(|(_, count)| *count == most)
        .map(|(node, _)| node.clone())
}
