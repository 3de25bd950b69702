//! One picture of the cluster, from objects to lines. Pure.

use jiff::Timestamp;

use crate::inventory::Inventory;
use crate::node::list::{NodeRow, rows as node_rows};
use crate::output::human::size;
use crate::output::table::{self, Cell, Column};
use crate::output::{Row, Screen, Tone};
use crate::ticket::list::{TicketRow, rows as ticket_rows};
use crate::volume::list::{VolumeRow, rows as volume_rows};

/// Lines beside the volumes: the summary, titles and blanks.
const SUMMARY_LINES: usize = 2;

/// Between the parts of the summary.
const GAP: &str = "   ";
/// Its end, where there is a key to press.
pub(super) const QUITS: &str = "   q quits";

const VOLUMES: [Column; 7] = [
    Column::new("VOLUME").shrinks(),
    Column::new("STATE"),
    Column::new("HEALTH"),
    Column::new("NODE"),
    Column::new("REPLICAS").spare(3),
    Column::new("SIZE").spare(2),
    Column::new("WAITS FOR").shrinks().spare(1),
];

/// The lines to show, at most `rows` of them. Volumes that somebody should look at come first.
pub(super) fn render(
    inventory: &Inventory,
    screen: Screen,
    rows: usize,
    now: Timestamp,
) -> Vec<String> {
    let volumes = volume_rows(inventory);
    let nodes = node_rows(inventory);
    let tickets = ticket_rows(inventory, None, now);
    let mut lines = vec![
        summary(&volumes, &nodes, &tickets, screen, now),
        String::new(),
    ];
    let cells: Vec<Vec<Cell>> = nodes.iter().map(|node| node.cells(now)).collect();
    // Many nodes must not push the volumes off the screen.
    let nodes_max = rows.saturating_sub(SUMMARY_LINES) / 2;
    lines.extend(cut(
        &table::render(NodeRow::COLUMNS, &cells, screen),
        nodes_max,
    ));
    lines.push(String::new());
    let mut shown: Vec<(&VolumeRow, String)> = volumes
        .iter()
        .map(|volume| (volume, waits_for(volume, &tickets)))
        .collect();
    shown.sort_by_key(|(volume, _)| (importance(volume), volume.name.clone()));
    let cells: Vec<Vec<Cell>> = shown
        .iter()
        .map(|(volume, waits)| cells_of(volume, waits, now))
        .collect();
    let left = rows.saturating_sub(lines.len());
    lines.extend(cut(&table::render(&VOLUMES, &cells, screen), left));
    lines.truncate(rows);
    lines
}

/// At most so many lines; the last says how many more there are.
fn cut(text: &str, lines_max: usize) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    if lines.len() > lines_max {
        let hidden = lines.len() - lines_max.saturating_sub(1);
        lines.truncate(lines_max.saturating_sub(1));
        lines.push(format!("… and {hidden} more"));
    }
    lines
}

fn importance(volume: &VolumeRow) -> u8 {
    match (volume.robustness.as_str(), volume.state.as_str()) {
        ("faulted", _) => 0,
        _ if volume.waiting > 0 => 1,
        (_, "attaching" | "detaching" | "creating" | "deleting") => 2,
        ("degraded", _) => 3,
        (_, "attached") => 4,
        _ => 5,
    }
}

fn waits_for(volume: &VolumeRow, tickets: &[TicketRow]) -> String {
    let waiting = tickets.iter().find(|ticket| {
        ticket.volume == volume.name && !ticket.satisfied && !ticket.message.is_empty()
    });
    waiting
        .map(|ticket| ticket.message.clone())
        .unwrap_or_default()
}

fn cells_of(volume: &VolumeRow, waits: &str, now: Timestamp) -> Vec<Cell> {
    let all = volume.cells(now);
    vec![
        all[0].clone(),
        all[1].clone(),
        all[2].clone(),
        Cell::new(&volume.node),
        all[4].clone(),
        Cell::new(size(volume.size_bytes)),
        Cell::new(waits),
    ]
}

fn summary(
    volumes: &[VolumeRow],
    nodes: &[NodeRow],
    tickets: &[TicketRow],
    screen: Screen,
    now: Timestamp,
) -> String {
    let states = ["attached", "attaching", "detaching", "detached"];
    let counted = states.map(|state| {
        let number = volumes
            .iter()
            .filter(|volume| volume.state == state)
            .count();
        (number, state)
    });
    let counted = counted.iter().filter(|(number, _)| *number > 0);
    let counted: Vec<String> = counted
        .map(|(number, state)| format!("{number} {state}"))
        .collect();
    let ready = nodes.iter().filter(|node| node.ready).count();
    let waiting = tickets.iter().filter(|ticket| !ticket.satisfied).count();
    let faulted = volumes
        .iter()
        .filter(|volume| volume.robustness == "faulted")
        .count();
    let degraded = volumes
        .iter()
        .filter(|volume| volume.robustness == "degraded")
        .count();
    let mut parts = vec![
        format!("lariat {}", now.strftime("%H:%M:%S")),
        Tone::paint(
            if ready < nodes.len() {
                Tone::Bad
            } else {
                Tone::Plain
            },
            &format!("nodes {ready}/{} ready", nodes.len()),
            screen.colour,
        ),
        if counted.is_empty() {
            format!("volumes {}", volumes.len())
        } else {
            format!("volumes {} ({})", volumes.len(), counted.join(", "))
        },
    ];
    let mut warn = |number: usize, word: &str, tone: Tone| {
        if number > 0 {
            parts.push(tone.paint(&format!("{number} {word}"), screen.colour));
        }
    };
    warn(faulted, "faulted", Tone::Bad);
    warn(degraded, "degraded", Tone::Busy);
    warn(waiting, "waiting", Tone::Busy);
    let text = parts.join(GAP) + QUITS;
    // With colours the letters cannot be counted; a terminal wraps nothing that matters here.
    match screen.width.filter(|_| !screen.colour) {
        Some(width) => table::cut(&text, width),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::sample;
    use crate::output::golden;

    #[test]
    fn a_frame_fits_its_screen() {
        let inventory = sample::cluster();
        let screen = |width| Screen {
            width: Some(width),
            ..Screen::default()
        };
        let text =
            |width, rows| render(&inventory, screen(width), rows, sample::now()).join("\n") + "\n";
        golden::check("top", &text(120, 40));
        golden::check("top-small", &text(60, 9));
        for rows in 0..20 {
            for width in [50, 70, 200] {
                let lines = render(&inventory, screen(width), rows, sample::now());
                assert!(lines.len() <= rows, "{rows}: {lines:?}");
                assert!(
                    lines.iter().all(|line| line.chars().count() <= width),
                    "{width}: {lines:?}"
                );
            }
        }
    }
}
