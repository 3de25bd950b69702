//! What is stored, and what happens to it.

use std::sync::Arc;

use bytes::Bytes;

use crate::Revision;
use crate::backend::RecordId;

/// One version of one key's value. Immutable, and shared between the index, the log and every reader.
#[derive(Debug, PartialEq, Eq)]
pub struct Object {
    pub key: Arc<str>,
    pub value: Bytes,
    /// The write that made the key exist; a key deleted and written again gets a new one.
    pub create_revision: Revision,
    /// The write that made this version.
    pub mod_revision: Revision,
    /// 1 for the version that `create_revision` wrote, and one more for each put since.
    pub version: u64,
    /// Which change of its revision this is: together they name its record in the back end.
    pub(crate) record_index: u32,
}

impl Object {
    pub(crate) fn record_id(&self) -> RecordId {
        RecordId {
            revision: self.mod_revision,
            index: self.record_index,
        }
    }
}

/// One change of one key. The changes of a transaction share their revision.
#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    pub revision: Revision,
    pub change: Change,
    pub(crate) record_index: u32,
    /// Wall clock of the write in milliseconds since 1970; never decreases along the log.
    pub(crate) time_ms: u64,
}

/// What an [`Event`] did to its key, with the value before it: a watcher that selects by content needs
/// both to tell an update from an arrival or a departure.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    Put {
        object: Arc<Object>,
        previous: Option<Arc<Object>>,
    },
    Delete {
        previous: Arc<Object>,
    },
}

impl Event {
    pub fn key(&self) -> &Arc<str> {
        match &self.change {
            Change::Put { object, .. } => &object.key,
            Change::Delete { previous } => &previous.key,
        }
    }

    /// The key's object after the event, if it still exists.
    pub fn object(&self) -> Option<&Arc<Object>> {
        match &self.change {
            Change::Put { object, .. } => Some(object),
            Change::Delete { .. } => None,
        }
    }

    /// The key's object before the event, if it existed.
    pub fn previous(&self) -> Option<&Arc<Object>> {
        match &self.change {
            Change::Put { previous, .. } => previous.as_ref(),
            Change::Delete { previous } => Some(previous),
        }
    }

    pub(crate) fn record_id(&self) -> RecordId {
        RecordId {
            revision: self.revision,
            index: self.record_index,
        }
    }
}
