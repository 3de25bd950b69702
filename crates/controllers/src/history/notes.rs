//! Notes: what a person did to a volume's tickets, left where it was done.

use api_types::VolumeAttachment;
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};

use super::{Change, Entry};

/// On a longhorn VolumeAttachment: the latest notes, as JSON. Written by whoever acts, together with the act.
pub const NOTES: &str = "lariat.io/notes";
/// The manager takes a note within moments; more are never there at once.
pub const NOTES_MAX: usize = 16;

/// Who did what, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Unique; a note is recorded once.
    pub id: String,
    pub at: Timestamp,
    pub who: String,
    /// In the past tense, such as `removed ticket "csi-1"`.
    pub did: String,
    pub why: String,
}

/// The annotation with one note more.
#[must_use]
pub fn with_note(attachment: &VolumeAttachment, note: Note) -> String {
    let mut all = of(attachment);
    all.push(note);
    let surplus = all.len().saturating_sub(NOTES_MAX);
    all.drain(..surplus);
    serde_json::to_string(&all).unwrap_or_default()
}

/// The notes as entries.
#[must_use]
pub fn notes(attachment: &VolumeAttachment) -> Vec<Entry> {
    let entry = |note: Note| {
        let changes = vec![Change::new(note.did, "", "")];
        let entry = Entry::new(note.at, &note.who, changes, [note.why])?;
        Some(Entry {
            note: Some(note.id),
            ..entry
        })
    };
    of(attachment).into_iter().filter_map(entry).collect()
}

fn of(attachment: &VolumeAttachment) -> Vec<Note> {
    let text = attachment.annotations().get(NOTES);
    text.and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}
