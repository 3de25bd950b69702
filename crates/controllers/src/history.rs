//! The flight recorder: what was decided about a volume and why, kept for people who come later.
//!
//! Every decision of the attachment and volume controllers that changed something, every ticket that the reaper took out
//! and every note that a person left is one [`Entry`]. A volume's entries are one ConfigMap of its own, a line of JSON
//! each, oldest first: `kubectl -n longhorn-system get configmap lariat-history-VOLUME -o yaml` shows what
//! `lariat volume history` does. It belongs to the Volume and goes with it. The leading manager is its only author:
//! what people do is noted on the VolumeAttachment ([`NOTES`]), in the same write that does it, and taken from there.
//!
//! Nothing waits for the recorder ([`Recorder`]): entries are gathered for a moment and written together. A manager
//! that is killed loses at most that moment.

mod changes;
mod notes;
mod recorder;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use changes::{Decision, Facts, of_attachment, of_removal, of_volume};
pub use notes::{NOTES, NOTES_MAX, Note, notes, with_note};
pub use recorder::{Recorder, run};

/// The one key of the ConfigMap.
pub const KEY: &str = "history";
/// How many entries a volume keeps: weeks of a quiet volume, the last hours of a troubled one.
pub const ENTRIES_MAX: usize = 200;
/// And how many bytes, so that no object grows beyond what lists and watches carry easily.
pub const BYTES_MAX: usize = 96 * 1024;
/// One decision may have many reasons; the first ones are the ones that count.
const REASONS_MAX: usize = 8;
const TEXT_BYTES_MAX: usize = 512;

/// One thing that happened to a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When it was written, by the manager's clock.
    pub at: Timestamp,
    /// Who decided or did it.
    pub who: String,
    pub changes: Vec<Change>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// The note that it was made from, so that it is not taken twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// One value, before and after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub what: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub from: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub to: String,
}

impl Change {
    #[must_use]
    pub fn new(what: impl Into<String>, from: impl Into<String>, to: impl Into<String>) -> Self {
        Self {
            what: short(&what.into()),
            from: short(&from.into()),
            to: short(&to.into()),
        }
    }
}

impl Entry {
    /// None if nothing changed: what stays as it is is not history.
    fn new(
        at: Timestamp,
        who: &str,
        changes: Vec<Change>,
        reasons: impl IntoIterator<Item = String>,
    ) -> Option<Self> {
        if changes.is_empty() {
            return None;
        }
        let reasons = reasons.into_iter().take(REASONS_MAX);
        Some(Self {
            at,
            who: short(who),
            changes,
            reasons: reasons.map(|reason| short(&reason)).collect(),
            note: None,
        })
    }
}

/// At most so many bytes of a text, ending between characters.
fn short(text: &str) -> String {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// The name of the ConfigMap with a volume's history.
#[must_use]
pub fn object_name(volume: &str) -> String {
    format!("lariat-history-{volume}")
}

/// The kept text with these entries more, and the oldest ones gone. A note that is there already is not added again.
#[must_use]
pub fn append(kept: &str, fresh: &[Entry]) -> String {
    let known: Vec<String> = read(kept)
        .into_iter()
        .filter_map(|entry| entry.note)
        .collect();
    let mut lines: Vec<String> = kept
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(str::to_owned)
        .collect();
    let is_new = |entry: &&Entry| entry.note.as_ref().is_none_or(|id| !known.contains(id));
    // An entry is text and times, all of which JSON has.
    lines.extend(
        fresh
            .iter()
            .filter(is_new)
            .filter_map(|entry| serde_json::to_string(entry).ok()),
    );
    let mut first = lines.len().saturating_sub(ENTRIES_MAX);
    let mut bytes: usize = lines[first..].iter().map(|line| line.len() + 1).sum();
    while bytes > BYTES_MAX && first + 1 < lines.len() {
        bytes -= lines[first].len() + 1;
        first += 1;
    }
    lines[first..]
        .iter()
        .map(|line| format!("{line}\n"))
        .collect()
}

/// The entries of a kept text, oldest first. A line that cannot be read is passed over: it is for people.
#[must_use]
pub fn read(kept: &str) -> Vec<Entry> {
    kept.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

#[cfg(test)]
mod tests;
