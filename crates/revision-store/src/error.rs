//! One error per operation of the store.

use std::path::PathBuf;
use std::sync::Arc;

use crate::{BackendError, Object, Revision};

/// Why [`Store::open`](crate::Store::open) failed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the store in {} is in use by another process; stop that one first", folder.display())]
    Locked { folder: PathBuf },
    #[error("cannot prepare the store's folder {}", folder.display())]
    Folder {
        folder: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot start the store's writer thread")]
    Thread {
        #[source]
        source: std::io::Error,
    },
    #[error("cannot read the store in {}", folder.display())]
    Backend {
        folder: PathBuf,
        #[source]
        source: BackendError,
    },
}

/// Why a write was not acknowledged.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// A precondition did not hold. Nothing was written.
    #[error("{key} is not as the write expects it: {}", describe(current.as_deref()))]
    Conflict {
        key: Arc<str>,
        current: Option<Arc<Object>>,
    },
    #[error("the key is empty")]
    KeyEmpty,
    #[error("the key has {bytes} bytes, at most {bytes_max} are allowed")]
    KeyTooLong { bytes: usize, bytes_max: usize },
    #[error("the value of {key} has {bytes} bytes, at most {bytes_max} are allowed")]
    ValueTooLarge {
        key: String,
        bytes: usize,
        bytes_max: usize,
    },
    #[error("the transaction writes nothing")]
    TransactionEmpty,
    #[error("the transaction has {operations} operations, at most {operations_max} are allowed")]
    TransactionTooLarge {
        operations: usize,
        operations_max: usize,
    },
    #[error("the transaction names {key} twice")]
    TransactionKeyTwice { key: String },
    /// The disk refused. Nothing was written, and a later attempt may succeed.
    #[error("the store could not write to its disk; nothing was changed")]
    Failed {
        #[source]
        source: Arc<BackendError>,
    },
    /// The disk failed while the write was under way: it may or may not have happened. Read before
    /// trying again.
    #[error("the store's disk failed during the write; it may or may not have happened")]
    Uncertain {
        #[source]
        source: Arc<BackendError>,
    },
    #[error("the store is closed")]
    Closed,
}

/// Why [`Store::compact`](crate::Store::compact) did not do it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CompactError {
    #[error("revision {requested} does not exist yet; the store is at {current}")]
    Future {
        requested: Revision,
        current: Revision,
    },
    /// The history is still there, or part of it.
    #[error("the store could not write to its disk")]
    Failed {
        #[source]
        source: Arc<BackendError>,
    },
    #[error("the store is closed")]
    Closed,
}

/// Why the state at a revision cannot be read, or watched from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("revision {requested} is no longer kept; the oldest is {oldest}")]
    Compacted {
        requested: Revision,
        oldest: Revision,
    },
    #[error("revision {requested} does not exist yet; the store is at {current}")]
    Future {
        requested: Revision,
        current: Revision,
    },
}

/// Why a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// The watcher read too slowly: events that it has not seen are no longer kept.
    #[error("the watch stopped at revision {seen} and events up to {dropped} are no longer kept")]
    Lagged { seen: Revision, dropped: Revision },
    #[error("the store is closed")]
    Closed,
}

fn describe(current: Option<&Object>) -> String {
    current.map_or_else(
        || "it does not exist".to_owned(),
        |object| format!("it is at revision {}", object.mod_revision),
    )
}
