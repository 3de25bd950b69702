//! Holders: which tickets the operations of the system need, and until when.
//!
//! One file for each operation, one line in [`ALL`]; a single generic controller runs them all: it gathers what a
//! volume's operations are doing ([`Subject`]), asks [`plan`], and files or removes tickets. To add an operation: a file
//! with a `desired_ticket`, a [`Subject`] if none fits, and a line here.

mod backing_image;
mod backup;
mod clone;
mod csi;
mod eviction;
mod expansion;
mod facts;
mod manual;
mod rebuilding;
mod restore;
mod salvage;
mod share_manager;
mod snapshot;

use std::collections::BTreeMap;

use crate::attacher::AttacherKind;
use crate::lease::Lease;
use crate::names::{NodeName, TicketId};
use crate::ticket::{Frontend, Ticket, TicketStatus};

pub use facts::{
    BackingImageExport, Backup, CloneRole, ManualRequest, Publication, SharePod, Snapshot, Subject,
    VolumeFacts,
};

/// An operation that holds tickets.
#[derive(Clone, Copy)]
pub struct Holder {
    pub kind: AttacherKind,
    /// The ticket that the operation needs for this subject, if it needs one.
    pub desired_ticket: fn(&HolderView<'_>) -> Option<Ticket>,
    /// Who takes the ticket back.
    pub ends: Ends,
    /// What the operation waits for before it goes to work, for people to read.
    pub waits_for: &'static str,
}

/// Who takes a ticket back when it is not desired any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The generic controller, as soon as no subject desires it.
    WithItsSubject,
    /// Whoever asked for it, by another request.
    OnRequest,
}

/// What one operation sees.
#[derive(Clone, Copy, Debug)]
pub struct HolderView<'a> {
    pub volume: &'a VolumeFacts,
    pub tickets: &'a BTreeMap<TicketId, Ticket>,
    pub subject: &'a Subject,
}

/// One row for each attacher type.
#[rustfmt::skip]
pub const ALL: [Holder; 12] = {
    use AttacherKind as Kind;
    use Ends::{OnRequest, WithItsSubject};
    const fn row(
        kind: Kind,
        desired_ticket: fn(&HolderView<'_>) -> Option<Ticket>,
        ends: Ends,
        waits_for: &'static str,
    ) -> Holder {
        Holder { kind, desired_ticket, ends, waits_for }
    }
    [
        row(Kind::Csi,          csi::desired_ticket,           OnRequest,      "its ticket to be satisfied and the device to exist"),
        row(Kind::Manual,       manual::desired_ticket,        OnRequest,      "its ticket to be satisfied"),
        row(Kind::Snapshot,     snapshot::desired_ticket,      WithItsSubject, "the engine to run"),
        row(Kind::Backup,       backup::desired_ticket,        WithItsSubject, "its ticket to be satisfied on the volume's node"),
        row(Kind::Restore,      restore::desired_ticket,       WithItsSubject, "the volume to have the backup's content"),
        row(Kind::Clone,        clone::desired_ticket,         WithItsSubject, "its tickets on both volumes to be satisfied"),
        row(Kind::ShareManager, share_manager::desired_ticket, WithItsSubject, "its ticket to be satisfied"),
        row(Kind::Expansion,    expansion::desired_ticket,     WithItsSubject, "the engine to have the new size"),
        row(Kind::Rebuilding,   rebuilding::desired_ticket,    WithItsSubject, "its ticket to be satisfied"),
        row(Kind::Salvage,      salvage::desired_ticket,       WithItsSubject, "nothing: it needs no attachment"),
        row(Kind::Eviction,     eviction::desired_ticket,      WithItsSubject, "a replica on another disk"),
        row(Kind::BackingImage, backing_image::desired_ticket, WithItsSubject, "its ticket to be satisfied"),
    ]
};

/// The changes that bring a volume's tickets in line with its operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TicketChanges {
    /// Tickets to write under their id, generation set.
    pub file: Vec<Ticket>,
    pub remove: Vec<TicketId>,
}

/// Compares the tickets that the volume's operations need with those that are filed. `subjects` must be all of them: a
/// ticket that no subject desires is removed.
#[must_use]
pub fn plan(
    volume: &VolumeFacts,
    tickets: &BTreeMap<TicketId, Ticket>,
    statuses: &BTreeMap<TicketId, TicketStatus>,
    subjects: &[Subject],
) -> TicketChanges {
    let mut desired = BTreeMap::new();
    for subject in subjects {
        let view = HolderView {
            volume,
            tickets,
            subject,
        };
        let wanted = ALL
            .iter()
            .filter_map(|holder| (holder.desired_ticket)(&view));
        desired.extend(wanted.map(|ticket| (ticket.id.clone(), ticket)));
    }
    let undesired = tickets
        .values()
        .filter(|ticket| ends_with_subject(ticket) && !desired.contains_key(&ticket.id));
    let remove = undesired.map(|ticket| ticket.id.clone()).collect();
    let file = desired
        .into_values()
        .filter_map(|ticket| {
            let filed = tickets.get(&ticket.id);
            let generation = Ticket::generation_after(&ticket, filed, statuses.get(&ticket.id));
            let ticket = Ticket {
                generation,
                ..ticket
            };
            (filed != Some(&ticket)).then_some(ticket)
        })
        .collect();
    TicketChanges { file, remove }
}

fn ends_with_subject(ticket: &Ticket) -> bool {
    let kind = ticket.attacher.kind();
    ALL.iter()
        .any(|holder| Some(holder.kind) == kind && holder.ends == Ends::WithItsSubject)
}

impl HolderView<'_> {
    /// A ticket for `object`, on the given node.
    fn ticket(
        &self,
        kind: AttacherKind,
        object: &str,
        node: Option<NodeName>,
        frontend: Frontend,
    ) -> Option<Ticket> {
        let id = Ticket::id_for(kind, object);
        // A filed ticket stays on its node: following every change of mind would move the volume for nothing.
        let filed = self
            .tickets
            .get(&id)
            .filter(|ticket| ticket.is(kind))
            .map(|ticket| ticket.node.clone());
        let node = filed.or(node)?;
        Some(Ticket {
            frontend,
            ..Ticket::new(kind, id, node)
        })
    }

    /// Does somebody of a higher priority want the volume? A ticket that can never get it is nobody to give way to.
    fn has_higher_ticket_than(&self, kind: AttacherKind) -> bool {
        let ours = kind.row().priority;
        let mut eligible = self.tickets.values().filter(|ticket| ticket.is_eligible());
        eligible.any(|ticket| {
            ticket
                .attacher
                .priority()
                .is_some_and(|priority| priority > ours)
        })
    }

    /// Like [`HolderView::ticket`], with the object as the ticket's owner.
    fn leased_ticket(
        &self,
        kind: AttacherKind,
        owner_kind: &str,
        object: &str,
        frontend: Frontend,
    ) -> Option<Ticket> {
        let ticket = self.ticket(kind, object, self.volume.home(), frontend)?;
        Some(Ticket {
            lease: Lease::owned_by(owner_kind, object),
            ..ticket
        })
    }
}

#[cfg(test)]
mod tests;
