//! `lariat volume history`: what happened to a volume, who decided it and why.

use std::fmt::Write as _;

use anyhow::Result;
use clap::Args;
use controllers::history::{self, Entry, KEY, object_name};
use controllers::timeline::{Direction, Passage};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use serde::Serialize;

use super::timeline;
use crate::client::ApiArguments;
use crate::complete;
use crate::inventory::{api_error, inside};
use crate::output::{self, Format, OutputArgument, Screen, Terminal, Tone};

#[derive(Args)]
pub(crate) struct HistoryArguments {
    #[arg(add = complete::volumes())]
    pub volume: String,

    /// Only the newest entries
    #[arg(long, value_name = "N")]
    pub last: Option<usize>,

    #[command(flatten)]
    pub api: ApiArguments,

    #[command(flatten)]
    pub output: OutputArgument,
}

/// One line of the story: a decision, or a whole way from node to node with the time of each hop.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Line {
    pub at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Entry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passage: Option<Passage>,
}

pub(crate) async fn show(arguments: HistoryArguments) -> Result<()> {
    let client = arguments.api.open().await?;
    let name = &arguments.volume;
    // Also says so if there is no such volume.
    let passages = timeline::passages(&client, name).await?;
    let entries = read(&client, name).await?;
    let mut lines = story(entries, passages);
    if let Some(last) = arguments.last {
        lines.drain(..lines.len().saturating_sub(last));
    }
    match arguments.output.output {
        Some(format @ (Format::Json | Format::Yaml)) => {
            output::say(&output::document(&lines, format)?)
        }
        format @ (None | Some(Format::Wide | Format::Name)) => {
            if let Some(nothing) = nothing(name, &lines) {
                eprintln!("{nothing}");
                return Ok(());
            }
            let mut screen = Terminal::of_stdout().screen;
            screen.wide = format.is_some();
            output::say(&render(&lines, screen))
        }
    }
}

fn nothing(volume: &str, lines: &[Line]) -> Option<String> {
    lines
        .is_empty()
        .then(|| format!("Nothing has happened to volume {volume} since its history is kept."))
}

/// The entries that are kept of a volume, oldest first.
pub(crate) async fn read(client: &Client, volume: &str) -> Result<Vec<Entry>> {
    let api: Api<ConfigMap> = inside(client);
    let found = api.get_opt(&object_name(volume)).await;
    let found = found.map_err(|error| api_error(error, "read the history of volume", volume))?;
    let text = found.and_then(|object| object.data?.remove(KEY));
    Ok(history::read(&text.unwrap_or_default()))
}

/// Decisions and ways in the order of time. A way is told when it has ended.
fn story(entries: Vec<Entry>, passages: Vec<Passage>) -> Vec<Line> {
    let decisions = entries.into_iter().map(|entry| Line {
        at: entry.at,
        decision: Some(entry),
        passage: None,
    });
    let ways = passages.into_iter().filter_map(|passage| {
        let took_ms = passage.hops.last().map_or(0, |stamp| stamp.after_us / 1000);
        let ended = i64::try_from(passage.started_ms + took_ms).ok()?;
        Some(Line {
            at: Timestamp::from_millisecond(ended).ok()?,
            decision: None,
            passage: Some(passage),
        })
    });
    let mut lines: Vec<Line> = decisions.chain(ways).collect();
    lines.sort_by_key(|line| line.at);
    lines
}

/// A paragraph a line: when, how long after the one before, who, what, and why.
pub(crate) fn render(lines: &[Line], screen: Screen) -> String {
    let mut text = String::new();
    let mut before: Option<Timestamp> = None;
    for line in lines {
        let passed = before.map_or_else(String::new, |before| {
            passed(line.at.duration_since(before).as_millis())
        });
        before = Some(line.at);
        let at = line.at.strftime("%Y-%m-%d %H:%M:%S%.3f");
        // Writing to a String cannot fail.
        let _ = write!(text, "{at}  {passed:>8}  ");
        if let Some(entry) = &line.decision {
            decision(&mut text, entry, screen);
        }
        if let Some(passage) = &line.passage {
            way(&mut text, passage, screen);
        }
    }
    text
}

fn decision(text: &mut String, entry: &Entry, screen: Screen) {
    let again = match entry.repeated {
        0 => String::new(),
        1 => ", and once more before this".to_owned(),
        times => format!(", and {times} times more before this"),
    };
    let who = Tone::Busy.paint(&entry.who, screen.colour);
    let _ = writeln!(text, "{who}{again}");
    for change in &entry.changes {
        let said = match (change.from.as_str(), change.to.as_str()) {
            ("", "") => change.what.clone(),
            // An object has come or gone; a field has got a value.
            ("", to) if change.what.contains(' ') => format!("{}: {to}", change.what),
            ("", to) => format!("{}: none → {to}", change.what),
            (from, "") => format!("{}: {from} → none", change.what),
            (from, to) => format!("{}: {from} → {to}", change.what),
        };
        let _ = writeln!(text, "    {said}");
    }
    for reason in &entry.reasons {
        let because = format!("because {reason}");
        let _ = writeln!(text, "    {}", Tone::Faint.paint(&because, screen.colour));
    }
}

fn way(text: &mut String, passage: &Passage, screen: Screen) {
    let total = passage.hops.last().map_or(0, |stamp| stamp.after_us);
    let word = match passage.direction {
        Direction::Attach => "attached to",
        Direction::Detach => "detached from",
    };
    let said = format!("{word} {} in {}", passage.node, milliseconds(total));
    let _ = writeln!(text, "{}", Tone::Good.paint(&said, screen.colour));
    let mut before = 0;
    for stamp in &passage.hops {
        let took = stamp.after_us.saturating_sub(before);
        before = stamp.after_us;
        let _ = writeln!(
            text,
            "    {:>10}  {}",
            format!("+{}", milliseconds(took)),
            stamp.hop.sentence()
        );
    }
}

fn milliseconds(us: u64) -> String {
    format!("{}.{} ms", us / 1000, us % 1000 / 100)
}

/// The time between two lines, in as few letters as make sense.
fn passed(milliseconds: i128) -> String {
    match milliseconds {
        ..0 => String::new(),
        0..10_000 => format!("+{milliseconds}ms"),
        _ => {
            let seconds = i64::try_from(milliseconds / 1000).unwrap_or(i64::MAX);
            format!("+{}", output::human::lasting(seconds))
        }
    }
}

#[cfg(test)]
mod tests {
    use controllers::history::Change;
    use controllers::timeline::{Hop, Stamp};

    use super::*;
    use crate::output::{document, golden};

    #[test]
    fn a_history_reads_as_a_story() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let entry =
            |at: Timestamp, who: &str, changes: &[(&str, &str, &str)], reasons: &[&str]| Entry {
                at,
                who: who.to_owned(),
                changes: changes
                    .iter()
                    .map(|(what, from, to)| Change::new(*what, *from, *to))
                    .collect(),
                reasons: reasons.iter().map(|&reason| reason.to_owned()).collect(),
                repeated: u32::from(who == "volume-controller") * 12,
                note: None,
            };
        let entries = vec![
            entry(
                at("2026-03-01T11:00:00.100Z"),
                "attachment-controller",
                &[
                    ("spec.nodeID", "", "node-1"),
                    (
                        "ticket csi-1 (csi-attacher for node-1)",
                        "filed",
                        "waiting: Attaching",
                    ),
                ],
                &[
                    "csi-attacher ticket \"csi-1\" is the first in line and wants the volume on node node-1",
                ],
            ),
            entry(
                at("2026-03-01T11:00:00.140Z"),
                "volume-controller",
                &[
                    ("state", "detached", "attaching"),
                    ("epoch", "2", "3"),
                    ("engine v1-e-3", "", "created"),
                ],
                &["starting engine v1-e-3 on node node-1"],
            ),
            entry(
                at("2026-03-01T11:40:00Z"),
                "alice@desk",
                &[("removed ticket \"csi-1\"", "", "")],
                &["the node is scrap"],
            ),
            entry(
                at("2026-03-01T11:40:00.020Z"),
                "attachment-controller",
                &[("spec.nodeID", "node-1", "")],
                &[],
            ),
        ];
        let passage = Passage {
            node: "node-1".to_owned(),
            direction: Direction::Attach,
            started_ms: u64::try_from(at("2026-03-01T11:00:00Z").as_millisecond()).unwrap(),
            hops: vec![
                Stamp {
                    hop: Hop::TicketFiled,
                    after_us: 0,
                },
                Stamp {
                    hop: Hop::NodeChosen,
                    after_us: 101_000,
                },
                Stamp {
                    hop: Hop::TicketSatisfied,
                    after_us: 404_500,
                },
            ],
        };
        let lines = story(entries, vec![passage]);
        assert_eq!(nothing("v1", &lines), None);
        golden::check("volume-history", &render(&lines, Screen::default()));
        let said = nothing("v1", &story(Vec::new(), Vec::new())).expect("no story");
        golden::check("volume-history-none", &format!("{said}\n"));
        golden::check(
            "volume-history-json",
            &document(&lines, Format::Json).unwrap(),
        );
    }
}
