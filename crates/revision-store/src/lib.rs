//! Durable, revisioned objects with a watch log, in the manner of etcd.
//!
//! One 64-bit [`Revision`] counts the writes of the whole store. Every object carries the revision that
//! created it and the one that last changed it, so a client can write on condition that nothing has
//! changed ([`Precondition`]), page through a list as it was at one revision ([`Store::range`]) and
//! follow every later change without missing one ([`Store::watch`]).
//!
//! ```text
//!  put, delete, transact ──► queue ──► writer thread ──► back end: one durable commit per group
//!                                          │ publishes what is durable, then answers
//!                                          ▼
//!  get, range ◄───────── state: current objects + log of the retained window ─────► watchers
//! ```
//!
//! - The **writer** is one thread and the only author of the state. All writes that wait while a commit
//!   is under way share the next one, and each still gets its own revision.
//! - The **state** is in memory and never ahead of the disk: nobody reads or watches a write that a
//!   crash could take back.
//! - A **watcher** holds a position in the log, not a queue of its own. A thousand watchers of one prefix cost
//!   a thousand positions, and one that sleeps too long finds its position gone ([`WatchError::Lagged`]).
//! - The **back end** stores one record per change, keyed by revision, and is read only when the store opens.
//!
//! ```
//! use revision_store::{Options, Precondition, Range, Store, WriteError};
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let store = Store::in_memory(Options::default())?;
//! let created = store.put("/pets/tom", "cat", Precondition::Absent).await?;
//!
//! let list = store.range(&Range::prefix("/pets/"))?;
//! let mut watcher = store.watch("/pets/", list.revision)?;
//!
//! let unchanged = Precondition::ModRevision(created.mod_revision);
//! store.put("/pets/tom", "old cat", unchanged).await?;
//! let event = watcher.next().await?;
//! assert_eq!(event.object().unwrap().value, "old cat");
//! assert_eq!(event.previous().unwrap().value, "cat");
//!
//! let late = store.put("/pets/tom", "dog", unchanged).await;
//! assert!(matches!(late, Err(WriteError::Conflict { current: Some(_), .. })));
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The crate knows nothing of Kubernetes, JSON or HTTP: keys are strings, values are bytes.

mod backend;
mod error;
mod object;
mod options;
mod range;
mod revision;
mod state;
mod store;
mod watch;
mod write;
mod writer;

pub use backend::BackendError;
pub use error::{CompactError, OpenError, ReadError, WatchError, WriteError};
pub use object::{Change, Event, Object};
pub use options::{Clock, Options};
pub use range::{Page, Range};
pub use revision::Revision;
pub use store::{Statistics, Store};
pub use watch::Watcher;
pub use write::{Committed, Deleted, Operation, Precondition};
