//! Where events go to survive: the one seam between the store and its storage.

mod memory;
mod record;
mod redb;

use std::sync::Arc;

pub(crate) use memory::MemoryBackend;
pub(crate) use record::{Record, RecordChange};
pub(crate) use redb::RedbBackend;

use crate::{Event, Revision};

/// Names a record: its revision, and which change of that revision it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RecordId {
    pub(crate) revision: Revision,
    pub(crate) index: u32,
}

/// The ends of the log, as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) current: Revision,
    pub(crate) compacted: Revision,
}

/// The part of the history that one commit forgets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compaction {
    /// Afterwards this is the oldest state that can still be read.
    pub(crate) through: Revision,
    /// Versions superseded, and deletions made, at or before `through`.
    pub(crate) superseded: Vec<RecordId>,
}

/// Storage of records. It knows nothing of keys or preconditions, only of order and durability.
///
/// The writer thread owns it; nobody else calls it.
pub(crate) trait Backend: Send {
    fn marks(&mut self) -> Result<Marks, BackendError>;

    /// Hands out every record later than `after`, in order.
    fn scan(
        &mut self,
        after: Revision,
        sink: &mut dyn FnMut(Record) -> Result<(), BackendError>,
    ) -> Result<(), BackendError>;

    /// Appends and forgets, all or nothing; durable when it returns. After an error the outcome is unknown until
    /// `reopen` has succeeded and `marks` has told it.
    fn commit(
        &mut self,
        events: &[Arc<Event>],
        compaction: Option<&Compaction>,
    ) -> Result<(), BackendError>;

    /// Starts afresh from what the storage really holds.
    fn reopen(&mut self) -> Result<(), BackendError>;
}

/// What the storage reports.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error("the database failed")]
    Database {
        // Boxed: the database's error is several times larger than everything beside it.
        #[source]
        source: Box<::redb::Error>,
    },
    #[error("cannot open the database file")]
    File {
        #[source]
        source: std::io::Error,
    },
    #[error("the database has format {found}, this version reads {expected}")]
    Format { found: u64, expected: u64 },
    #[error("the record of revision {revision}, change {index}, is damaged: {reason}")]
    Damaged {
        revision: Revision,
        index: u32,
        reason: &'static str,
    },
    /// The storage was exchanged or rolled back under a running store.
    #[error("the database is at revision {found}, but {expected} was already durable")]
    WentBack { found: Revision, expected: Revision },
    /// A reopening failed earlier and has not succeeded since.
    #[error("the database is not open")]
    NotOpen,
}

impl BackendError {
    pub(crate) fn damaged(id: RecordId, reason: &'static str) -> Self {
        Self::Damaged {
            revision: id.revision,
            index: id.index,
            reason,
        }
    }
}
