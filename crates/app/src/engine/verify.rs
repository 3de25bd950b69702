//! `lariat engine verify`: bits that a disk has changed by itself.

use std::process::ExitCode;

use anyhow::Result;
use block_core::ReplicaName;
use block_core::verification::SnapshotVerdict;
use clap::Args;
use engine::inspect::Verification;
use jiff::Timestamp;
use serde::Serialize;

use super::LineArguments;
use crate::output::{self, Cell, Column, OutputArgument, Row, Tone};

#[derive(Args)]
pub(crate) struct VerifyArguments {
    #[arg(long)]
    volume: String,

    /// A replica's server, as NAME=HOST:PORT; give it once for each replica
    #[arg(long = "replica", required = true, value_name = "NAME=HOST:PORT")]
    replicas: Vec<String>,

    #[command(flatten)]
    line: LineArguments,

    #[command(flatten)]
    output: OutputArgument,
}

/// What `help exit-codes` says of this command.
const DAMAGED: u8 = 4;
const INCOMPLETE: u8 = crate::exit::Outcome::Incomplete as u8;

pub(crate) fn run(arguments: &VerifyArguments) -> Result<ExitCode> {
    let line = &arguments.line;
    let inspection = line.inspection(&arguments.volume, &arguments.replicas)?;
    let found =
        inspection.verify(|step| eprintln!("{} has read {}", step.replica, step.snapshot))?;
    output::show(&rows(&found), arguments.output.output)?;
    Ok(match (found.is_wrong(), found.is_incomplete()) {
        (true, _) => ExitCode::from(DAMAGED),
        (false, true) => ExitCode::from(INCOMPLETE),
        (false, false) => ExitCode::SUCCESS,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Word {
    AsItWas,
    FirstTime,
    ChangedOnDisk,
    DiffersFromOthers,
    Missing,
    Unread,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct VerdictRow {
    /// None for a replica that could not say which it has.
    snapshot: Option<String>,
    replica: String,
    verdict: Word,
    detail: String,
}

impl Row for VerdictRow {
    const COLUMNS: &'static [Column] = &[
        Column::new("SNAPSHOT").shrinks(),
        Column::new("REPLICA"),
        Column::new("VERDICT"),
        Column::new("DETAIL").shrinks().spare(1),
    ];
    const NONE: &'static str = "No replica has a snapshot: there is nothing to verify.";

    fn name(&self) -> String {
        let snapshot = self.snapshot.as_deref().unwrap_or("*");
        format!("replica/{}/snapshot/{snapshot}", self.replica)
    }

    fn cells(&self, _: Timestamp) -> Vec<Cell> {
        let (word, tone) = match self.verdict {
            Word::AsItWas => ("as it was", Tone::Good),
            Word::FirstTime => ("first time", Tone::Plain),
            Word::ChangedOnDisk => ("CHANGED ON DISK", Tone::Bad),
            Word::DiffersFromOthers => ("DIFFERS FROM OTHERS", Tone::Bad),
            Word::Missing => ("not there", Tone::Busy),
            Word::Unread => ("not read", Tone::Busy),
        };
        vec![
            Cell::new(self.snapshot.as_deref().unwrap_or_default()),
            Cell::new(&self.replica),
            Cell::toned(word, tone),
            Cell::new(&self.detail),
        ]
    }
}

fn rows(found: &Verification) -> Vec<VerdictRow> {
    let silent = found.silent.iter().map(|(replica, why)| VerdictRow {
        snapshot: None,
        replica: replica.to_string(),
        verdict: Word::Unread,
        detail: why.clone(),
    });
    let read = found.snapshots.iter().flat_map(|snapshot| {
        let row = |(replica, verdict): (&ReplicaName, &SnapshotVerdict)| {
            let (verdict, detail) = words(verdict);
            VerdictRow {
                snapshot: Some(snapshot.name.to_string()),
                replica: replica.to_string(),
                verdict,
                detail,
            }
        };
        snapshot.verdicts.iter().map(row)
    });
    read.chain(silent).collect()
}

fn words(verdict: &SnapshotVerdict) -> (Word, String) {
    match verdict {
        SnapshotVerdict::AsItWas => (Word::AsItWas, String::new()),
        SnapshotVerdict::FirstTime => (Word::FirstTime, "kept for the next time".to_owned()),
        SnapshotVerdict::ChangedOnDisk { why } => (Word::ChangedOnDisk, why.clone()),
        SnapshotVerdict::DiffersFromOthers => (
            Word::DiffersFromOthers,
            "not what most other replicas have".to_owned(),
        ),
        SnapshotVerdict::Missing => (Word::Missing, "other replicas have it".to_owned()),
        SnapshotVerdict::Unread { why } => (Word::Unread, why.clone()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use block_core::SnapshotName;
    use engine::inspect::VerifiedSnapshot;

    use super::*;
    use crate::output::{Format, Screen, golden, list};

    fn found() -> Verification {
        let replica = |name: &str| ReplicaName::new(name).unwrap();
        let snapshot = |name: &str, verdicts: &[(&str, SnapshotVerdict)]| VerifiedSnapshot {
            name: SnapshotName::new(name).unwrap(),
            verdicts: verdicts
                .iter()
                .map(|(name, verdict)| (replica(name), verdict.clone()))
                .collect(),
        };
        let changed = "snapshot monday is not what it was: its digest was 1a2b, is 3c4d".to_owned();
        let unread = "cannot read layer 2: input/output error".to_owned();
        Verification {
            snapshots: vec![
                snapshot(
                    "monday",
                    &[
                        ("r0", SnapshotVerdict::AsItWas),
                        ("r1", SnapshotVerdict::ChangedOnDisk { why: changed }),
                        ("r2", SnapshotVerdict::DiffersFromOthers),
                    ],
                ),
                snapshot(
                    "tuesday",
                    &[
                        ("r0", SnapshotVerdict::FirstTime),
                        ("r1", SnapshotVerdict::Missing),
                        ("r2", SnapshotVerdict::Unread { why: unread }),
                    ],
                ),
            ],
            silent: [(replica("r3"), "connection refused".to_owned())].into(),
        }
    }

    #[test]
    fn verdicts_are_shown_one_a_line() {
        let rows = rows(&found());
        let check = |name: &str, format, width| {
            let screen = Screen {
                width,
                ..Screen::default()
            };
            let text = list(&rows, format, screen, Timestamp::UNIX_EPOCH);
            golden::check(name, &text.unwrap());
        };
        check("engine-verify", None, None);
        check("engine-verify-70-columns", None, Some(70));
        check("engine-verify-json", Some(Format::Json), None);
        check("engine-verify-name", Some(Format::Name), None);
    }

    #[test]
    fn without_snapshots_there_is_nothing_to_verify() {
        let nothing = Verification {
            snapshots: Vec::new(),
            silent: BTreeMap::new(),
        };
        assert!(rows(&nothing).is_empty());
        golden::check("engine-verify-none", &format!("{}\n", VerdictRow::NONE));
    }
}
