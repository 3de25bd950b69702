//! The volume's tickets, and the questions that every rule asks of them.

use std::cmp::Reverse;

use crate::attacher::{AttacherKind, Priority};
use crate::names::{NodeName, TicketId};
use crate::ticket::Ticket;
use crate::view::{Sharing, View, VolumeSpec};

pub(super) struct Tickets<'a> {
    all: Vec<&'a Ticket>,
    sharing: Sharing,
    clone_copied: bool,
}

impl<'a> Tickets<'a> {
    /// All tickets but those that are being removed.
    pub fn new(view: &'a View, removed: &[TicketId]) -> Self {
        Self {
            all: view
                .tickets
                .values()
                .filter(|ticket| !removed.contains(&ticket.id))
                .collect(),
            sharing: view.volume.sharing,
            clone_copied: view.volume.status.clone_copied,
        }
    }

    pub fn all(&self) -> impl Iterator<Item = &'a Ticket> + '_ {
        self.all.iter().copied()
    }

    /// The share manager's ticket stands for the CSI tickets of a shared volume: they are neither selected nor counted.
    pub fn is_summed_up(&self, ticket: &Ticket) -> bool {
        self.sharing == Sharing::Shared && ticket.is(AttacherKind::Csi)
    }

    /// Tickets that may be selected.
    pub fn candidates(&self) -> impl Iterator<Item = &'a Ticket> + '_ {
        self.all()
            .filter(|ticket| ticket.is_eligible() && !self.is_summed_up(ticket))
    }

    /// Tickets that the volume, attached as `spec` says, serves; tickets that we do not understand included.
    pub fn matching<'s>(&'s self, spec: &'s VolumeSpec) -> impl Iterator<Item = &'a Ticket> + 's {
        self.all().filter(move |ticket| {
            spec.node.as_ref() == Some(&ticket.node)
                && ticket.frontend.accepts(spec.disable_frontend)
                && !self.is_summed_up(ticket)
        })
    }

    /// The ticket that a person would name when asked who holds the volume.
    pub fn leader(&self, spec: &VolumeSpec) -> Option<&'a Ticket> {
        first(self.matching(spec).filter(|ticket| ticket.is_eligible()))
    }

    /// Whoever keeps the volume where it is, even if we do not know what it is.
    pub fn holder(&self, spec: &VolumeSpec) -> Option<&'a Ticket> {
        self.leader(spec).or_else(|| self.matching(spec).next())
    }

    pub fn is_interruptible(&self, ticket: &Ticket) -> bool {
        ticket.attacher.is_interruptible(self.clone_copied)
    }

    /// The first workload in line that wants a node other than this one.
    pub fn workload_elsewhere(&self, node: &NodeName) -> Option<&'a Ticket> {
        first(
            self.candidates()
                .filter(|ticket| ticket.attacher.is_workload() && ticket.node != *node),
        )
    }

    /// Everything that holds the volume on `node` gives way to a workload.
    pub fn interruption(
        &self,
        holders: impl Iterator<Item = &'a Ticket>,
        node: &NodeName,
    ) -> Option<&'a Ticket> {
        let mut holders = holders.peekable();
        holders.peek()?;
        let workload = self.workload_elsewhere(node)?;
        holders
            .all(|holder| self.is_interruptible(holder))
            .then_some(workload)
    }

    /// CSI tickets that could take part in a migration.
    pub fn csi(&self) -> impl Iterator<Item = &'a Ticket> + '_ {
        self.all()
            .filter(|ticket| ticket.is_eligible() && ticket.is(AttacherKind::Csi))
    }

    pub fn csi_on(&self, node: &NodeName, disable_frontend: bool) -> Option<&'a Ticket> {
        self.csi()
            .find(|ticket| ticket.node == *node && ticket.frontend.accepts(disable_frontend))
    }
}

/// The order of selection: highest priority, then smallest id.
pub(super) fn first<'a>(tickets: impl Iterator<Item = &'a Ticket>) -> Option<&'a Ticket> {
    tickets.min_by_key(|ticket| (Reverse(rank(ticket)), &ticket.id))
}

fn rank(ticket: &Ticket) -> Option<Priority> {
    ticket.attacher.priority()
}
