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

pub use changes::{Decision, Facts, of_attachment, of_removal, of_snapshot, of_volume};
pub use notes::{NOTES, NOTES_MAX, Note, notes, with_note};
pub use recorder::{Recorder, run};

/// The one key of the ConfigMap.
pub const KEY: &str = "history";
/// How many entries a volume keeps: weeks of a quiet volume, the last hours of a troubled one.
pub const ENTRIES_MAX: usize = 200;
/// And how many bytes, so that no object grows beyond what lists and watches carry easily.
pub const BYTES_MAX: usize = 96 * 1024;
/// Of the same thing again and again within this many entries, so many are kept.
const LOOK_BACK: usize = 12;
const REPEATS_KEPT: usize = 3;
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
    /// How many more times the same happened shortly before, and is not kept.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeated: u32,
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
            repeated: 0,
            note: None,
        })
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
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

/// The kept text with these entries more, and the oldest ones gone. A note that is there already is not added again, and
/// of what happens over and over the first times and the last are kept, with a count: a loop must not push out how it began.
#[must_use]
pub fn append(kept: &str, fresh: &[Entry]) -> String {
    let mut lines: Vec<Line> = kept
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(Line::read)
        .collect();
    for entry in fresh {
        push(&mut lines, entry);
    }
    let mut first = lines.len().saturating_sub(ENTRIES_MAX);
    let mut bytes: usize = lines[first..].iter().map(|line| line.text.len() + 1).sum();
    while bytes > BYTES_MAX && first + 1 < lines.len() {
        bytes -= lines[first].text.len() + 1;
        first += 1;
    }
    lines[first..]
        .iter()
        .map(|line| format!("{}\n", line.text))
        .collect()
}

/// A line as it is kept, and what it says, if that can be read.
struct Line {
    text: String,
    entry: Option<Entry>,
}

impl Line {
    fn read(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            entry: serde_json::from_str(text).ok(),
        }
    }
}

fn push(lines: &mut Vec<Line>, entry: &Entry) {
    let mut entry = entry.clone();
    if let Some(id) = &entry.note {
        let is_known = |line: &Line| {
            line.entry
                .as_ref()
                .is_some_and(|old| old.note.as_ref() == Some(id))
        };
        if lines.iter().any(is_known) {
            return;
        }
    } else {
        let (shape, from) = (shape(&entry), lines.len().saturating_sub(LOOK_BACK));
        let alike = |line: &Line| {
            let old = line.entry.as_ref().filter(|old| old.note.is_none());
            old.is_some_and(|old| self::shape(old) == shape)
        };
        let same: Vec<usize> = (from..lines.len())
            .filter(|&place| alike(&lines[place]))
            .collect();
        if same.len() >= REPEATS_KEPT
            && let Some(&last) = same.last()
        {
            let old = lines.remove(last).entry;
            entry.repeated = old.map_or(0, |old| old.repeated).saturating_add(1);
        }
    }
    // An entry is text, numbers and times, all of which JSON has.
    if let Ok(text) = serde_json::to_string(&entry) {
        lines.push(Line {
            text,
            entry: Some(entry),
        });
    }
}

/// What an entry says without the numbers and hexadecimal names in it: two with the same shape are the same thing again.
fn shape(entry: &Entry) -> String {
    let mut text = entry.who.clone();
    for change in &entry.changes {
        for part in [&change.what, &change.from, &change.to] {
            text.push('\n');
            text.push_str(part);
        }
    }
    for reason in &entry.reasons {
        text.push('\n');
        text.push_str(reason);
    }
    let mut masked = String::with_capacity(text.len());
    let mut word = String::new();
    for letter in text.chars().chain(['\n']) {
        if letter.is_ascii_hexdigit() {
            word.push(letter);
            continue;
        }
        if word.bytes().any(|byte| byte.is_ascii_digit()) {
            masked.push('#');
        } else {
            masked.push_str(&word);
        }
        word.clear();
        masked.push(letter);
    }
    masked
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
