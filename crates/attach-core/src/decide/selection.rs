//! Selection: which ticket gets a fully detached volume.

use crate::migration::MigrationRecord;
use crate::names::NodeName;
use crate::reasons::Reason;
use crate::ticket::Ticket;
use crate::view::{Sharing, View};

use super::tickets::{Tickets, first};

pub(super) struct Choice<'a> {
    pub winner: &'a Ticket,
    /// Set when the migration record decided and not the order of tickets.
    pub recovery: Option<Reason>,
}

/// The ticket to attach for, or why there is none. The volume is fully detached and not faulted.
pub(super) fn select<'a>(
    view: &View,
    tickets: &Tickets<'a>,
    record: Option<&MigrationRecord>,
) -> Result<Choice<'a>, Reason> {
    if view.volume.sharing == Sharing::Migratable && tickets.csi().nth(1).is_some() {
        return recover(view, tickets, record);
    }
    match first(tickets.candidates()) {
        Some(winner) => Ok(Choice {
            winner,
            recovery: None,
        }),
        None => Err(Reason::NoEligibleTicket),
    }
}

/// A migratable volume with several CSI tickets was lost in the middle of a migration. The tickets alone do not
/// tell which node has the workload; the record does.
fn recover<'a>(
    view: &View,
    tickets: &Tickets<'a>,
    record: Option<&MigrationRecord>,
) -> Result<Choice<'a>, Reason> {
    let Some(record) = record else {
        let nodes = tickets.csi().map(|ticket| ticket.node.clone()).collect();
        return Err(Reason::AmbiguousMigration { nodes });
    };
    // The source first: its workload ran there and was never told to move for good.
    let winner = [&record.source, &record.target]
        .into_iter()
        .find_map(|node| {
            let up = !view.nodes.condition(node).is_down();
            tickets.csi().find(|ticket| up && ticket.node == *node)
        });
    match winner {
        Some(winner) => Ok(Choice {
            winner,
            recovery: Some(recovery(record, &winner.node)),
        }),
        None => Err(Reason::MigrationInterrupted {
            target: record.target.clone(),
        }),
    }
}

fn recovery(record: &MigrationRecord, chosen: &NodeName) -> Reason {
    Reason::MigrationRecovery {
        source_node: record.source.clone(),
        target: record.target.clone(),
        chosen: chosen.clone(),
    }
}
