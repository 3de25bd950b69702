//! `lariat ticket list` and `show`: who asks for which volume where, and what becomes of it.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use attach_core::{Judgement, Ticket, Verdict};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::Serialize;

use crate::inventory::Inventory;
use crate::output::human::lasting;
use crate::output::page::Page;
use crate::output::{Cell, Column, Row, Screen, Tone};

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TicketRow {
    pub volume: String,
    pub id: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub node: String,
    /// What becomes of it: holding, waiting, interrupted and so on.
    pub verdict: &'static str,
    pub satisfied: bool,
    /// What it waits for.
    pub reason: String,
    pub message: String,
    pub advice: String,
    pub priority: Option<u32>,
    pub generation: i64,
    pub disable_frontend: &'static str,
    /// `Kind.group/name` of whoever answers for it.
    pub owner: String,
    pub deadline: Option<Timestamp>,
}

impl Row for TicketRow {
    const COLUMNS: &'static [Column] = &[
        Column::new("VOLUME").shrinks(),
        Column::new("TICKET").shrinks(),
        Column::new("TYPE").shrinks(),
        Column::new("NODE"),
        Column::new("STATE"),
        Column::new("LEASE").spare(1),
        Column::new("WAITS FOR").shrinks().spare(2),
        Column::new("PRIORITY").wide(),
        Column::new("GENERATION").wide(),
        Column::new("FRONTEND").wide(),
        Column::new("OWNER").wide(),
    ];
    const NONE: &'static str = "There are no tickets: nobody asks for a volume.";

    fn name(&self) -> String {
        format!("ticket/{}/{}", self.volume, self.id)
    }

    fn cells(&self, now: Timestamp) -> Vec<Cell> {
        let priority = self.priority.map(|number| number.to_string());
        vec![
            Cell::new(&self.volume),
            Cell::new(&self.id),
            Cell::new(&self.kind),
            Cell::new(&self.node),
            Cell::toned(self.state(), self.tone()),
            Cell::new(self.lease(now)),
            Cell::new(&self.message),
            Cell::new(priority.unwrap_or_default()),
            Cell::new(self.generation.to_string()),
            Cell::new(match self.disable_frontend {
                "true" => "off",
                "any" => "any",
                _ => "on",
            }),
            Cell::new(&self.owner),
        ]
    }
}

impl TicketRow {
    fn state(&self) -> &'static str {
        if self.satisfied && self.verdict == Verdict::Holding.wire() {
            return "satisfied";
        }
        self.verdict
    }

    fn tone(&self) -> Tone {
        match self.verdict {
            "holding" | "coexisting" if self.satisfied => Tone::Good,
            "interrupted" | "unknown" => Tone::Bad,
            "stale" | "ignored" => Tone::Faint,
            _ => Tone::Busy,
        }
    }

    /// How long its holder still has.
    fn lease(&self, now: Timestamp) -> String {
        match self.deadline {
            Some(deadline) if deadline <= now => "expired".to_owned(),
            Some(deadline) => lasting(deadline.duration_since(now).as_secs()),
            None => String::new(),
        }
    }
}

/// The tickets of one volume, or of all; those that hold first, then by volume and id.
pub(crate) fn rows(inventory: &Inventory, volume: Option<&str>, now: Timestamp) -> Vec<TicketRow> {
    let mut rows = Vec::new();
    let volumes = inventory.volumes.iter();
    for object in volumes.filter(|object| volume.is_none_or(|name| object.name_any() == name)) {
        // A volume whose state cannot be read has tickets all the same.
        let Ok((view, plan)) = inventory.decided(object, now) else {
            let attachment = inventory.attachment(&object.name_any());
            let tickets = attachment
                .map(attach_core::wire::tickets)
                .unwrap_or_default();
            rows.extend(tickets.values().map(|ticket| {
                let judgement = Judgement {
                    verdict: Verdict::Unknown,
                    reason: None,
                };
                row(&object.name_any(), ticket, &judgement, false)
            }));
            continue;
        };
        for (id, judgement) in &plan.verdicts {
            let satisfied = plan
                .ticket_statuses
                .get(id)
                .is_some_and(|status| status.satisfied);
            if let Some(ticket) = view.tickets.get(id) {
                rows.push(row(&object.name_any(), ticket, judgement, satisfied));
            }
        }
    }
    rows.sort_by(|a, b| (&a.volume, &a.id).cmp(&(&b.volume, &b.id)));
    rows
}

fn row(volume: &str, ticket: &Ticket, judgement: &Judgement, satisfied: bool) -> TicketRow {
    let reason = judgement.reason.as_ref();
    let owner = ticket.lease.owner.as_ref();
    TicketRow {
        volume: volume.to_owned(),
        id: ticket.id.as_str().to_owned(),
        kind: ticket.attacher.wire().to_owned(),
        node: ticket.node.as_str().to_owned(),
        verdict: judgement.verdict.wire(),
        satisfied,
        reason: reason
            .map(attach_core::Reason::code)
            .unwrap_or_default()
            .to_owned(),
        message: reason.map(ToString::to_string).unwrap_or_default(),
        advice: reason
            .and_then(attach_core::Reason::advice)
            .unwrap_or_default(),
        priority: ticket.attacher.priority().map(|priority| priority.0),
        generation: ticket.generation.0,
        disable_frontend: ticket.frontend.wire(),
        owner: owner.map_or_else(
            || ticket.last_attached_by.to_string(),
            |owner| format!("{}/{}", owner.kind, owner.name),
        ),
        deadline: ticket.lease.deadline,
    }
}

/// One ticket of a volume, or an error that names the ones that are there.
pub(crate) fn find(rows: &[TicketRow], volume: &str, id: &str) -> Result<TicketRow> {
    let found = rows.iter().find(|row| row.id == id).cloned();
    found.ok_or_else(|| {
        let known = rows.iter().map(|row| row.id.as_str());
        let list_with = format!("lariat ticket list {volume}");
        crate::suggest::unknown(&format!("ticket of volume {volume}"), id, known, &list_with)
    })
}

pub(crate) fn render(row: &TicketRow, screen: Screen, now: Timestamp) -> String {
    let mut page = Page::default();
    let mut line = |label: &str, cell: Cell| page.line(label, &cell, screen);
    line("Ticket", Cell::new(&row.id));
    line("Volume", Cell::new(&row.volume));
    line("Type", Cell::new(&row.kind));
    line("Node", Cell::new(&row.node));
    line("State", Cell::toned(row.state(), row.tone()));
    line("Waits for", Cell::new(&row.message));
    line("To do", Cell::new(&row.advice));
    let priority = row.priority.map(|number| number.to_string());
    line(
        "Priority",
        Cell::new(priority.unwrap_or_else(|| "none: the type is not known here".to_owned())),
    );
    line("Generation", Cell::new(row.generation.to_string()));
    line(
        "Frontend",
        Cell::new(format!("disableFrontend={}", row.disable_frontend)),
    );
    line("Owner", Cell::new(&row.owner));
    let mut until = row.deadline.map(|at| at.to_string()).unwrap_or_default();
    if row.deadline.is_some() {
        // Writing to a String cannot fail.
        let _ = write!(until, " ({})", row.lease(now));
    }
    line("Until", Cell::new(until));
    page.into_text()
}

/// The rows of one volume, which must exist.
pub(crate) fn of_volume(
    inventory: &Inventory,
    volume: &str,
    now: Timestamp,
) -> Result<Vec<TicketRow>> {
    inventory
        .volume(volume)
        .with_context(|| format!("volume {volume} is gone"))?;
    Ok(rows(inventory, Some(volume), now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::sample;
    use crate::output::{Format, golden, list};

    #[test]
    fn tickets_are_listed_and_shown() {
        let rows = rows(&sample::cluster(), None, sample::now());
        let check = |name: &str, format, width| {
            let screen = Screen {
                width,
                ..Screen::default()
            };
            golden::check(name, &list(&rows, format, screen, sample::now()).unwrap());
        };
        check("ticket-list", None, None);
        check("ticket-list-100-columns", None, Some(100));
        check("ticket-list-wide", Some(Format::Wide), None);
        check("ticket-list-json", Some(Format::Json), None);
        check("ticket-list-name", Some(Format::Name), None);
        for id in ["longhorn-api-alice-node-2", "csi-ffffffff", "teleport-1"] {
            let row = rows.iter().find(|row| row.id == id).unwrap();
            let text = render(row, Screen::default(), sample::now());
            golden::check(&format!("ticket-show-{id}"), &text);
        }
        let error = find(&rows[2..4], "pvc-22222222", "csi-fffffff").unwrap_err();
        golden::check("ticket-unknown", &format!("{error}\n"));
    }
}
