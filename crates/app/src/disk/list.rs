//! `lariat disk list`.

use api_types::{Node, condition, disk_condition};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::Serialize;

use crate::inventory::Inventory;
use crate::output::human::size;
use crate::output::{Cell, Column, Row, Tone};

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DiskRow {
    pub node: String,
    pub name: String,
    pub path: String,
    pub ready: bool,
    /// The node's agent has not reported it.
    pub unseen: bool,
    pub allow_scheduling: bool,
    pub schedulable: bool,
    pub evicting: bool,
    pub replicas: usize,
    pub free_bytes: i64,
    pub scheduled_bytes: i64,
    pub reserved_bytes: i64,
    pub total_bytes: i64,
    pub uuid: String,
    pub tags: Vec<String>,
    pub message: String,
}

impl Row for DiskRow {
    const COLUMNS: &'static [Column] = &[
        Column::new("NODE").shrinks(),
        Column::new("DISK").shrinks(),
        Column::new("STATUS"),
        Column::new("REPLICAS"),
        Column::new("FREE"),
        Column::new("PROMISED").spare(1),
        Column::new("TOTAL"),
        Column::new("PATH").shrinks().spare(2),
        Column::new("RESERVED").wide(),
        Column::new("TAGS").wide(),
        Column::new("UUID").wide(),
        Column::new("MESSAGE").wide().shrinks(),
    ];
    const NONE: &'static str = "There are no disks. Add one with: lariat disk add NODE NAME PATH";

    fn name(&self) -> String {
        format!("disk/{}/{}", self.node, self.name)
    }

    fn cells(&self, _: Timestamp) -> Vec<Cell> {
        vec![
            Cell::new(&self.node),
            Cell::new(&self.name),
            self.status(),
            Cell::new(self.replicas.to_string()),
            Cell::new(size(self.free_bytes)),
            Cell::new(size(self.scheduled_bytes)),
            Cell::new(size(self.total_bytes)),
            Cell::new(&self.path),
            Cell::new(size(self.reserved_bytes)),
            Cell::new(self.tags.join(",")),
            Cell::new(&self.uuid),
            Cell::new(&self.message),
        ]
    }
}

impl DiskRow {
    fn status(&self) -> Cell {
        if self.unseen {
            return Cell::toned("Unseen", Tone::Bad);
        }
        let (mut text, mut tone) = if self.ready {
            ("Ready".to_owned(), Tone::Good)
        } else {
            ("NotReady".to_owned(), Tone::Bad)
        };
        if self.evicting {
            text.push_str(",Evicting");
            tone = Tone::Busy;
        }
        if !self.allow_scheduling {
            text.push_str(",NoReplicas");
        } else if self.ready && !self.schedulable {
            text.push_str(",Full");
            tone = Tone::Busy;
        }
        Cell::toned(text, tone)
    }
}

/// All disks, by node and name; of one node if it is given.
pub(crate) fn rows(inventory: &Inventory, node: Option<&str>) -> Vec<DiskRow> {
    let nodes = inventory.nodes.iter();
    let mut rows: Vec<DiskRow> = nodes
        .filter(|object| node.is_none_or(|name| object.name_any() == name))
        .flat_map(disks_of)
        .collect();
    rows.sort_by(|a, b| (&a.node, &a.name).cmp(&(&b.node, &b.name)));
    rows
}

/// The disks that a node should have, and those that it still reports.
pub(crate) fn disks_of(node: &Node) -> Vec<DiskRow> {
    let status = node.status.clone().unwrap_or_default();
    let known = node.spec.disks.keys().chain(
        status
            .disk_status
            .keys()
            .filter(|name| !node.spec.disks.contains_key(*name)),
    );
    known
        .map(|name| {
            let spec = node.spec.disks.get(name);
            let seen = status.disk_status.get(name);
            let disk = seen.cloned().unwrap_or_default();
            let holds = |kind: &str| condition::is_true(&disk.conditions, kind);
            let told = disk
                .conditions
                .iter()
                .find(|condition| !condition.message.is_empty());
            DiskRow {
                node: node.name_any(),
                name: name.clone(),
                path: spec.map_or_else(|| disk.disk_path.clone(), |spec| spec.path.clone()),
                ready: holds(disk_condition::READY),
                unseen: seen.is_none(),
                allow_scheduling: spec.is_some_and(|spec| spec.allow_scheduling),
                schedulable: holds(disk_condition::SCHEDULABLE),
                // What is on one that was taken from its node leaves it.
                evicting: spec.is_none_or(|spec| spec.eviction_requested),
                replicas: disk.scheduled_replica.len(),
                free_bytes: disk.storage_available,
                scheduled_bytes: disk.storage_scheduled,
                reserved_bytes: spec.map_or(0, |spec| spec.storage_reserved),
                total_bytes: disk.storage_maximum,
                message: if seen.is_none() {
                    "the node's agent has not reported this disk".to_owned()
                } else {
                    told.map(|condition| condition.message.clone())
                        .unwrap_or_default()
                },
                uuid: disk.disk_uuid,
                tags: spec.map(|spec| spec.tags.clone()).unwrap_or_default(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::sample;
    use crate::output::{Format, golden, list, table::Screen};

    #[test]
    fn disks_are_listed() {
        let mut inventory = sample::cluster();
        let disks = &mut inventory.nodes[1].spec.disks;
        let mut added = disks["default"].clone();
        added.path = "/srv/new".to_owned();
        disks.insert("new".to_owned(), added);
        let leaving = disks.get_mut("default").unwrap();
        leaving.allow_scheduling = false;
        leaving.eviction_requested = true;
        let rows = rows(&inventory, None);
        let check = |name: &str, format, width| {
            let screen = Screen {
                width,
                ..Screen::default()
            };
            golden::check(name, &list(&rows, format, screen, sample::now()).unwrap());
        };
        check("disk-list", None, None);
        check("disk-list-70-columns", None, Some(70));
        check("disk-list-wide", Some(Format::Wide), None);
        check("disk-list-json", Some(Format::Json), None);
    }
}
