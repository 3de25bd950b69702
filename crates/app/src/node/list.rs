//! `lariat node list` and `show`.

use api_types::condition::{self, ConditionStatus};
use api_types::{Node, node_condition};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::Serialize;

use crate::disk::list::{DiskRow, disks_of};
use crate::inventory::{Inventory, created};
use crate::output::human::{age, size};
use crate::output::page::Page;
use crate::output::{Cell, Column, Row, Screen, Tone};
use crate::volume;

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeRow {
    pub name: String,
    pub ready: bool,
    /// Why it is not ready, and since when.
    pub message: String,
    pub since: Option<Timestamp>,
    pub cordoned: bool,
    pub allow_scheduling: bool,
    pub disks: usize,
    /// Volumes that are attached to it.
    pub volumes: usize,
    pub replicas: usize,
    pub free_bytes: i64,
    pub total_bytes: i64,
    pub zone: String,
    pub created: Option<Timestamp>,
}

impl Row for NodeRow {
    const COLUMNS: &'static [Column] = &[
        Column::new("NAME").shrinks(),
        Column::new("STATUS"),
        Column::new("VOLUMES"),
        Column::new("REPLICAS").spare(2),
        Column::new("FREE"),
        Column::new("TOTAL").spare(1),
        Column::new("AGE").spare(3),
        Column::new("DISKS").wide(),
        Column::new("ZONE").wide(),
        Column::new("MESSAGE").wide().shrinks(),
    ];
    const NONE: &'static str = "There are no nodes. Start one with: lariat node run --name NAME, or a whole cluster with: lariat up";

    fn name(&self) -> String {
        format!("node/{}", self.name)
    }

    fn cells(&self, now: Timestamp) -> Vec<Cell> {
        vec![
            Cell::new(&self.name),
            self.status(),
            Cell::new(self.volumes.to_string()),
            Cell::new(self.replicas.to_string()),
            Cell::new(size(self.free_bytes)),
            Cell::new(size(self.total_bytes)),
            Cell::new(age(self.created, now)),
            Cell::new(self.disks.to_string()),
            Cell::new(&self.zone),
            Cell::new(&self.message),
        ]
    }
}

impl NodeRow {
    pub(crate) fn status(&self) -> Cell {
        let word = if self.ready { "Ready" } else { "NotReady" };
        let tone = match (self.ready, self.cordoned || !self.allow_scheduling) {
            (false, _) => Tone::Bad,
            (true, true) => Tone::Busy,
            (true, false) => Tone::Good,
        };
        let mut text = word.to_owned();
        if self.cordoned {
            text.push_str(",Cordoned");
        }
        if !self.allow_scheduling {
            text.push_str(",NoReplicas");
        }
        Cell::toned(text, tone)
    }
}

pub(crate) fn rows(inventory: &Inventory) -> Vec<NodeRow> {
    let mut rows: Vec<NodeRow> = inventory
        .nodes
        .iter()
        .map(|node| row(inventory, node))
        .collect();
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    rows
}

pub(crate) fn row(inventory: &Inventory, node: &Node) -> NodeRow {
    let name = node.name_any();
    let status = node.status.clone().unwrap_or_default();
    let ready = condition::find(&status.conditions, node_condition::READY);
    let is_ready = ready.is_some_and(|ready| ready.status == ConditionStatus::True);
    let disks = status.disk_status.values();
    let attached = inventory.volumes.iter().filter(|volume| {
        let status = volume.status.as_ref();
        status.is_some_and(|status| status.current_node_id == name)
    });
    NodeRow {
        ready: is_ready,
        message: match ready {
            Some(ready) if !is_ready && ready.message.is_empty() => ready.reason.clone(),
            Some(ready) if !is_ready => ready.message.clone(),
            Some(_) => String::new(),
            None => "nobody has heard from its agent yet".to_owned(),
        },
        since: ready.and_then(|ready| ready.last_transition_time.parse().ok()),
        cordoned: attach_core::wire::node(node).cordoned,
        allow_scheduling: node.spec.allow_scheduling,
        disks: status.disk_status.len(),
        volumes: attached.count(),
        replicas: inventory
            .replicas
            .iter()
            .filter(|replica| replica.spec.node_id == name)
            .count(),
        free_bytes: disks.clone().map(|disk| disk.storage_available).sum(),
        total_bytes: disks.map(|disk| disk.storage_maximum).sum(),
        zone: status.zone,
        created: created(node),
        name,
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeDetail {
    #[serde(flatten)]
    pub row: NodeRow,
    pub tags: Vec<String>,
    pub disks: Vec<DiskRow>,
    pub attached: Vec<volume::list::VolumeRow>,
}

pub(crate) fn detail(inventory: &Inventory, node: &Node) -> NodeDetail {
    let name = node.name_any();
    let mut attached = volume::list::rows(inventory);
    attached.retain(|volume| volume.node == name);
    NodeDetail {
        row: row(inventory, node),
        tags: node.spec.tags.clone(),
        disks: disks_of(node),
        attached,
    }
}

pub(crate) fn render(detail: &NodeDetail, screen: Screen, now: Timestamp) -> String {
    let mut page = Page::default();
    let row = &detail.row;
    let mut line = |label: &str, cell: Cell| page.line(label, &cell, screen);
    line("Name", Cell::new(&row.name));
    line("Status", row.status());
    line("Message", Cell::new(&row.message));
    let since = row.since.filter(|_| !row.ready);
    line(
        "Since",
        Cell::new(
            since
                .map(|_| format!("{} ago", age(since, now)))
                .unwrap_or_default(),
        ),
    );
    line("Zone", Cell::new(&row.zone));
    line("Tags", Cell::new(detail.tags.join(", ")));
    line("Replicas", Cell::new(row.replicas.to_string()));
    line("Age", Cell::new(age(row.created, now)));
    let cells = detail.disks.iter().map(|disk| disk.cells(now));
    page.table(
        "Disks",
        DiskRow::COLUMNS,
        &cells.collect::<Vec<_>>(),
        screen,
    );
    let cells = detail.attached.iter().map(|volume| volume.cells(now));
    let columns = volume::list::VolumeRow::COLUMNS;
    page.table("Volumes", columns, &cells.collect::<Vec<_>>(), screen);
    page.into_text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::sample;
    use crate::output::{Format, document, golden, list};

    #[test]
    fn nodes_are_listed_and_shown() {
        let inventory = sample::cluster();
        let rows = rows(&inventory);
        let screen = Screen::default();
        let check = |name: &str, format| {
            golden::check(name, &list(&rows, format, screen, sample::now()).unwrap());
        };
        check("node-list", None);
        check("node-list-wide", Some(Format::Wide));
        check("node-list-name", Some(Format::Name));
        check("node-list-yaml", Some(Format::Yaml));
        for node in &inventory.nodes {
            let detail = detail(&inventory, node);
            let text = render(&detail, screen, sample::now());
            golden::check(&format!("node-show-{}", node.name_any()), &text);
        }
        let detail = detail(&inventory, &inventory.nodes[0]);
        golden::check("node-show-json", &document(&detail, Format::Json).unwrap());
    }
}
