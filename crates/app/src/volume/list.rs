//! `lariat volume list`: one line a volume.

use api_types::{AccessMode, Volume, VolumeRobustness, VolumeState};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::Serialize;

use crate::inventory::{Inventory, created};
use crate::output::human::{age, size};
use crate::output::{Cell, Column, Row, Tone};

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeRow {
    pub name: String,
    pub state: String,
    pub robustness: String,
    pub size_bytes: i64,
    pub actual_bytes: i64,
    /// Replicas with all the data, and how many there should be.
    pub in_sync: usize,
    pub wanted: i64,
    /// Where it is, or is on its way to.
    pub node: String,
    /// `NAMESPACE/NAME` of its claim.
    pub claim: String,
    pub tickets: usize,
    /// Tickets that have not got what they ask for.
    pub waiting: usize,
    pub access: String,
    pub epoch: i64,
    pub created: Option<Timestamp>,
}

impl Row for VolumeRow {
    const COLUMNS: &'static [Column] = &[
        Column::new("NAME").shrinks(),
        Column::new("STATE"),
        Column::new("HEALTH"),
        Column::new("SIZE"),
        Column::new("REPLICAS").spare(2),
        Column::new("NODE").shrinks(),
        Column::new("CLAIM").shrinks().spare(3),
        Column::new("AGE").spare(1),
        Column::new("USED").wide(),
        Column::new("TICKETS").wide(),
        Column::new("WAITING").wide(),
        Column::new("ACCESS").wide(),
        Column::new("EPOCH").wide(),
    ];
    const NONE: &'static str =
        "There are no volumes. Make one with: lariat volume create NAME --size 10Gi";

    fn name(&self) -> String {
        format!("volume/{}", self.name)
    }

    fn cells(&self, now: Timestamp) -> Vec<Cell> {
        let waiting = if self.waiting > 0 {
            Tone::Busy
        } else {
            Tone::Plain
        };
        vec![
            Cell::new(&self.name),
            Cell::toned(&self.state, state_tone(&self.state)),
            Cell::toned(&self.robustness, health_tone(&self.robustness)),
            Cell::new(size(self.size_bytes)),
            Cell::new(format!("{}/{}", self.in_sync, self.wanted)),
            Cell::new(&self.node),
            Cell::new(&self.claim),
            Cell::new(age(self.created, now)),
            Cell::new(size(self.actual_bytes)),
            Cell::new(self.tickets.to_string()),
            Cell::toned(self.waiting.to_string(), waiting),
            Cell::new(&self.access),
            Cell::new(self.epoch.to_string()),
        ]
    }
}

pub(crate) fn state_tone(state: &str) -> Tone {
    match state {
        "attached" => Tone::Good,
        "attaching" | "detaching" | "creating" | "deleting" => Tone::Busy,
        _ => Tone::Plain,
    }
}

pub(crate) fn health_tone(robustness: &str) -> Tone {
    match robustness {
        "healthy" => Tone::Good,
        "degraded" => Tone::Busy,
        "faulted" => Tone::Bad,
        _ => Tone::Plain,
    }
}

/// One row a volume, in the order of names.
pub(crate) fn rows(inventory: &Inventory) -> Vec<VolumeRow> {
    let mut rows: Vec<VolumeRow> = inventory
        .volumes
        .iter()
        .map(|volume| row(inventory, volume))
        .collect();
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    rows
}

pub(crate) fn row(inventory: &Inventory, volume: &Volume) -> VolumeRow {
    let (name, spec) = (volume.name_any(), &volume.spec);
    let status = volume.status.clone().unwrap_or_default();
    let attachment = inventory.attachment(&name);
    let statuses = attachment.and_then(|attachment| attachment.status.as_ref());
    let tickets = attachment.map(|attachment| &attachment.spec.attachment_tickets);
    let waiting = tickets.map_or(0, |tickets| {
        let is_waiting = |ticket: &&api_types::AttachmentTicket| {
            !statuses.is_some_and(|statuses| statuses.satisfies(ticket))
        };
        tickets.values().filter(is_waiting).count()
    });
    let state = if volume.metadata.deletion_timestamp.is_some() {
        VolumeState::Deleting
    } else {
        status.state.clone()
    };
    // Where it is; else where it is going.
    let node = [&status.current_node_id, &spec.node_id]
        .into_iter()
        .find(|node| !node.is_empty());
    let wanted = if spec.number_of_replicas == 0 {
        let setting = &api_types::settings::DEFAULT_REPLICA_COUNT;
        inventory.settings().whole_number(setting)
    } else {
        spec.number_of_replicas
    };
    let claim = &status.kubernetes_status;
    VolumeRow {
        name,
        state: state.as_str().to_owned(),
        robustness: match &status.robustness {
            VolumeRobustness::Unknown => String::new(),
            other => other.as_str().to_owned(),
        },
        size_bytes: spec.size.bytes(),
        actual_bytes: status.actual_size,
        in_sync: status.in_sync_replicas.len(),
        wanted,
        node: node.cloned().unwrap_or_default(),
        claim: if claim.pvc_name.is_empty() || !claim.last_pvc_ref_at.is_empty() {
            String::new()
        } else {
            format!("{}/{}", claim.namespace, claim.pvc_name)
        },
        tickets: tickets.map_or(0, std::collections::BTreeMap::len),
        waiting,
        access: access(spec),
        epoch: status.epoch,
        created: created(volume),
    }
}

fn access(spec: &api_types::VolumeSpec) -> String {
    match (&spec.access_mode, spec.migratable) {
        (AccessMode::ReadWriteMany, true) => "rwx, migratable".to_owned(),
        (mode, _) => mode.as_str().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::sample;
    use crate::output::{Format, golden, list, table::Screen};

    #[test]
    fn volumes_are_listed() {
        let rows = rows(&sample::cluster());
        let check = |name: &str, format, width, colour| {
            let screen = Screen {
                width,
                colour,
                wide: false,
            };
            let text = list(&rows, format, screen, sample::now()).unwrap();
            golden::check(name, &text);
        };
        check("volume-list", None, None, false);
        check("volume-list-60-columns", None, Some(60), false);
        check("volume-list-colour", None, None, true);
        check("volume-list-wide", Some(Format::Wide), None, false);
        check("volume-list-json", Some(Format::Json), None, false);
        check("volume-list-yaml", Some(Format::Yaml), None, false);
        check("volume-list-name", Some(Format::Name), None, false);
    }
}
