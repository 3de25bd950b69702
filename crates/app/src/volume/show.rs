//! `lariat volume show`: one volume, its replicas, engines and tickets.

use anyhow::{Context as _, Result};
use api_types::{ReplicaMode, Volume};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::Serialize;

use super::list::{self, VolumeRow, health_tone, state_tone};
use crate::inventory::Inventory;
use crate::output::human::{age, size};
use crate::output::page::Page;
use crate::output::{Cell, Column, Row, Screen, Tone};
use crate::ticket::list::{TicketRow, rows as ticket_rows};

/// Everything that is shown of one volume.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeDetail {
    #[serde(flatten)]
    pub row: VolumeRow,
    pub frontend: String,
    pub data_locality: String,
    pub device: String,
    pub users: Vec<String>,
    pub replicas: Vec<ReplicaRow>,
    pub engines: Vec<EngineRow>,
    pub tickets: Vec<TicketRow>,
    /// Why it is where it is, in the attachment controller's words.
    pub reasons: Vec<String>,
    pub conditions: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReplicaRow {
    pub name: String,
    pub node: String,
    pub state: String,
    /// As the engine uses it: RW, WO while it is rebuilt, ERR.
    pub mode: String,
    pub in_sync: bool,
    pub allocated_bytes: i64,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EngineRow {
    pub name: String,
    pub node: String,
    pub state: String,
    pub epoch: i64,
    pub device: String,
    pub message: String,
}

/// What there is to say about the inventory's volume of that name.
pub(crate) fn detail(inventory: &Inventory, name: &str, now: Timestamp) -> Result<VolumeDetail> {
    let volume = inventory
        .volume(name)
        .with_context(|| format!("volume {name} is gone"))?;
    let status = volume.status.clone().unwrap_or_default();
    let engines: Vec<EngineRow> = inventory.engines_of(name).map(engine).collect();
    let device = engines
        .iter()
        .find(|engine| !engine.device.is_empty())
        .map(|engine| engine.device.clone());
    let tickets = ticket_rows(inventory, Some(name), now);
    let (_, plan) = inventory.decided(volume, now)?;
    let conditions = status.conditions.iter().filter_map(|condition| {
        let holds = condition.status.as_str();
        let says = [condition.reason.as_str(), condition.message.as_str()];
        let says: Vec<&str> = says.into_iter().filter(|text| !text.is_empty()).collect();
        (!says.is_empty())
            .then(|| format!("{} {holds}: {}", condition.condition_type, says.join(", ")))
    });
    let pods = status.kubernetes_status.workloads_status.iter();
    let is_past = !status.kubernetes_status.last_pod_ref_at.is_empty();
    let users = pods.filter(|_| !is_past).map(|pod| {
        let namespace = &status.kubernetes_status.namespace;
        format!("pod {namespace}/{} ({})", pod.pod_name, pod.pod_status)
    });
    Ok(VolumeDetail {
        row: list::row(inventory, volume),
        frontend: volume.spec.frontend.as_str().to_owned(),
        data_locality: volume.spec.data_locality.as_str().to_owned(),
        device: device.unwrap_or_default(),
        users: users.collect(),
        replicas: replicas(inventory, volume),
        engines,
        tickets,
        reasons: plan.reasons.iter().map(ToString::to_string).collect(),
        conditions: conditions.collect(),
    })
}

fn replicas(inventory: &Inventory, volume: &Volume) -> Vec<ReplicaRow> {
    let name = volume.name_any();
    let in_sync = volume
        .status
        .as_ref()
        .map(|status| status.in_sync_replicas.clone())
        .unwrap_or_default();
    let mode = |replica: &str| {
        let mut engines = inventory.engines_of(&name);
        let found = engines.find_map(|engine| {
            let modes = &engine.status.as_ref()?.replica_mode_map;
            modes.get(replica).cloned()
        });
        found.map(|mode: ReplicaMode| mode.as_str().to_owned())
    };
    let mut rows: Vec<ReplicaRow> = inventory
        .replicas_of(&name)
        .map(|replica| {
            let status = replica.status.clone().unwrap_or_default();
            ReplicaRow {
                name: replica.name_any(),
                node: replica.spec.node_id.clone(),
                state: status.current_state.as_str().to_owned(),
                mode: mode(&replica.name_any()).unwrap_or_default(),
                in_sync: in_sync.contains(&replica.name_any()),
                allocated_bytes: status.allocated_bytes,
                message: status.message,
            }
        })
        .collect();
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    rows
}

fn engine(engine: &api_types::Engine) -> EngineRow {
    let status = engine.status.clone().unwrap_or_default();
    EngineRow {
        name: engine.name_any(),
        node: engine.spec.node_id.clone(),
        state: status.current_state.as_str().to_owned(),
        epoch: engine.spec.epoch,
        device: status.endpoint,
        message: status.message,
    }
}

pub(crate) fn instance_tone(state: &str) -> Tone {
    match state {
        "running" => Tone::Good,
        "starting" | "stopping" => Tone::Busy,
        "error" | "unknown" => Tone::Bad,
        _ => Tone::Plain,
    }
}

pub(crate) fn render(detail: &VolumeDetail, screen: Screen, now: Timestamp) -> String {
    let mut page = Page::default();
    let row = &detail.row;
    let mut line = |label: &str, cell: Cell| page.line(label, &cell, screen);
    line("Name", Cell::new(&row.name));
    line("State", Cell::toned(&row.state, state_tone(&row.state)));
    line(
        "Health",
        Cell::toned(&row.robustness, health_tone(&row.robustness)),
    );
    line("Node", Cell::new(&row.node));
    line("Device", Cell::new(&detail.device));
    line(
        "Size",
        Cell::new(format!(
            "{} ({} used)",
            size(row.size_bytes),
            size(row.actual_bytes)
        )),
    );
    line(
        "Replicas",
        Cell::new(format!("{} of {} in sync", row.in_sync, row.wanted)),
    );
    line("Access", Cell::new(&row.access));
    line("Locality", Cell::new(&detail.data_locality));
    line("Epoch", Cell::new(row.epoch.to_string()));
    line("Claim", Cell::new(&row.claim));
    for user in &detail.users {
        line("Used by", Cell::new(user));
    }
    line("Age", Cell::new(age(row.created, now)));
    for reason in &detail.reasons {
        line("Because", Cell::new(reason));
    }
    for condition in &detail.conditions {
        line("Condition", Cell::new(condition));
    }
    let cells = detail
        .tickets
        .iter()
        .map(|ticket| ticket.cells(now).split_off(1));
    // Whose tickets they are is clear.
    page.table(
        "Tickets",
        &TicketRow::COLUMNS[1..],
        &cells.collect::<Vec<_>>(),
        screen,
    );
    let cells = detail.engines.iter().map(|engine| {
        vec![
            Cell::new(&engine.name),
            Cell::new(&engine.node),
            Cell::toned(&engine.state, instance_tone(&engine.state)),
            Cell::new(engine.epoch.to_string()),
            Cell::new(&engine.device),
            Cell::new(&engine.message),
        ]
    });
    const ENGINES: &[Column] = &[
        Column::new("NAME").shrinks(),
        Column::new("NODE"),
        Column::new("STATE"),
        Column::new("EPOCH"),
        Column::new("DEVICE").shrinks().spare(1),
        Column::new("MESSAGE").shrinks().spare(2),
    ];
    page.table("Engines", ENGINES, &cells.collect::<Vec<_>>(), screen);
    let cells = detail.replicas.iter().map(|replica| {
        vec![
            Cell::new(&replica.name),
            Cell::new(&replica.node),
            Cell::toned(&replica.state, instance_tone(&replica.state)),
            Cell::new(&replica.mode),
            Cell::toned(
                if replica.in_sync { "yes" } else { "no" },
                if replica.in_sync {
                    Tone::Good
                } else {
                    Tone::Busy
                },
            ),
            Cell::new(size(replica.allocated_bytes)),
            Cell::new(&replica.message),
        ]
    });
    const REPLICAS: &[Column] = &[
        Column::new("NAME").shrinks(),
        Column::new("NODE"),
        Column::new("STATE"),
        Column::new("MODE"),
        Column::new("IN SYNC"),
        Column::new("USED").spare(1),
        Column::new("MESSAGE").shrinks().spare(2),
    ];
    page.table("Replicas", REPLICAS, &cells.collect::<Vec<_>>(), screen);
    page.into_text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::sample;
    use crate::output::{Format, document, golden};

    #[test]
    fn volumes_are_shown() {
        let inventory = sample::cluster();
        for name in ["pvc-11111111", "pvc-22222222", "pvc-33333333", "scratch"] {
            let detail = detail(&inventory, name, sample::now()).unwrap();
            let screen = Screen {
                width: Some(110),
                ..Screen::default()
            };
            let text = render(&detail, screen, sample::now());
            golden::check(&format!("volume-show-{name}"), &text);
        }
        let detail = detail(&inventory, "pvc-22222222", sample::now()).unwrap();
        golden::check(
            "volume-show-json",
            &document(&detail, Format::Json).unwrap(),
        );
    }
}
