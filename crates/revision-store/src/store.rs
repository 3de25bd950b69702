//! The handle that everybody uses.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::backend::{Backend, BackendError, MemoryBackend, RedbBackend};
use crate::state::State;
use crate::write::validate;
use crate::writer::{Command, Writer};
use crate::{
    Change, Committed, CompactError, Deleted, Object, OpenError, Operation, Options, Page,
    Precondition, Range, ReadError, Revision, Watcher, WriteError,
};

const LOCK_FILE_NAME: &str = "lock";

/// A handle of the store; clones are handles of the same one.
///
/// Reads answer from memory without waiting and may be called from async code. Writes resolve when they are
/// durable. A write whose future is dropped may still happen.
///
/// The store closes when [`Store::close`] is called or the last handle is dropped.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
}

/// What the handles, the watchers and the writer have in common.
pub(crate) struct Shared {
    state: RwLock<State>,
    /// The newest revision whose events are in the state and in every channel.
    published: AtomicU64,
    pub(crate) is_closed: AtomicBool,
    pub(crate) options: Options,
}

/// How large the store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    pub current_revision: Revision,
    pub compacted_revision: Revision,
    pub objects: usize,
    pub object_bytes: u64,
    pub history_events: usize,
    /// Superseded values that history still holds.
    pub history_bytes: u64,
    pub watchers: usize,
}

impl Store {
    /// Opens the durable store in `folder`, which is made if it is missing.
    ///
    /// Reads everything into memory before it returns: call it outside async code.
    pub fn open(folder: impl AsRef<Path>, options: Options) -> Result<Self, OpenError> {
        let folder = folder.as_ref();
        let lock = lock_folder(folder)?;
        let backend = |source| OpenError::Backend {
            folder: folder.to_owned(),
            source,
        };
        let storage = RedbBackend::in_folder(folder).map_err(backend)?;
        let (state, storage) = load(Box::new(storage)).map_err(backend)?;
        Self::start(state, storage, Some(lock), options)
    }

    /// A store that lives as long as its handles.
    pub fn in_memory(options: Options) -> Result<Self, OpenError> {
        Self::start(State::default(), Box::new(MemoryBackend), None, options)
    }

    pub(crate) fn start(
        state: State,
        backend: Box<dyn Backend>,
        lock: Option<File>,
        options: Options,
    ) -> Result<Self, OpenError> {
        let (commands, queue) = mpsc::channel(options.queued_writes_max.max(1));
        let shared = Arc::new(Shared {
            published: AtomicU64::new(state.current().0),
            state: RwLock::new(state),
            is_closed: AtomicBool::new(false),
            options,
        });
        Writer::start(shared.clone(), backend, lock, queue)
            .map_err(|source| OpenError::Thread { source })?;
        Ok(Self { shared, commands })
    }

    /// Writes `value` under `key` if the precondition holds, and returns the new version.
    pub async fn put(
        &self,
        key: impl Into<String>,
        value: impl AsRef<[u8]>,
        precondition: Precondition,
    ) -> Result<Arc<Object>, WriteError> {
        let put = Operation::Put {
            key: key.into(),
            value: Bytes::copy_from_slice(value.as_ref()),
            precondition,
        };
        let committed = self.submit(vec![put]).await?;
        match &committed.events[0].change {
            Change::Put { object, .. } => Ok(object.clone()),
            Change::Delete { .. } => unreachable!("a put is answered with a put"),
        }
    }

    /// Deletes `key` if it exists and the precondition holds.
    pub async fn delete(
        &self,
        key: impl Into<String>,
        precondition: Precondition,
    ) -> Result<Deleted, WriteError> {
        let delete = Operation::Delete {
            key: key.into(),
            precondition,
        };
        let committed = self.submit(vec![delete]).await?;
        match &committed.events[0].change {
            Change::Delete { previous } => Ok(Deleted {
                revision: committed.revision,
                previous: previous.clone(),
            }),
            Change::Put { .. } => unreachable!("a delete is answered with a delete"),
        }
    }

    /// Does all the operations in one revision if all their preconditions hold, else none of them. Each key may be
    /// named once.
    pub async fn transact(&self, operations: Vec<Operation>) -> Result<Committed, WriteError> {
        let mut operations = operations;
        for operation in &mut operations {
            if let Operation::Put { value, .. } = operation {
                // A slice would keep alive the whole buffer it was cut from, such as a request's body,
                // for as long as the object lives.
                *value = Bytes::copy_from_slice(value);
            }
        }
        self.submit(operations).await
    }

    async fn submit(&self, operations: Vec<Operation>) -> Result<Committed, WriteError> {
        validate(&operations, &self.shared.options)?;
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(Command::Write { operations, reply })
            .await
            .map_err(|_| WriteError::Closed)?;
        answer.await.map_err(|_| WriteError::Closed)?
    }

    /// The current object of `key`.
    pub fn get(&self, key: &str) -> Option<Arc<Object>> {
        self.shared.read_state().get(key).cloned()
    }

    /// The object of `key` as it was at a revision.
    pub fn get_at(&self, key: &str, revision: Revision) -> Result<Option<Arc<Object>>, ReadError> {
        Ok(self.shared.read_state().get_at(key, revision)?.cloned())
    }

    /// Lists objects in key order.
    pub fn range(&self, range: &Range<'_>) -> Result<Page, ReadError> {
        self.shared.read_state().range(range)
    }

    /// How many objects there are under a prefix.
    pub fn count(&self, prefix: &str) -> usize {
        self.shared.read_state().count(prefix)
    }

    /// Follows the changes under `prefix` that are later than revision `after`, from history and then live.
    ///
    /// To list and then watch, pass the revision of the list's [`Page`].
    pub fn watch(&self, prefix: &str, after: Revision) -> Result<Watcher, ReadError> {
        let mut state = self.shared.write_state();
        state.check_readable(after)?;
        let channel = state.subscribe(prefix, after);
        Ok(Watcher::new(self.shared.clone(), channel, after))
    }

    pub fn current_revision(&self) -> Revision {
        self.shared.published()
    }

    /// The oldest state that can still be read, and watched from.
    pub fn compacted_revision(&self) -> Revision {
        self.shared.read_state().compacted()
    }

    /// Forgets the history before `through`, so that it becomes the oldest state that can be read.
    ///
    /// Resolves when that is durable. Writes go on meanwhile.
    pub async fn compact(&self, through: Revision) -> Result<(), CompactError> {
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(Command::Compact { through, reply })
            .await
            .map_err(|_| CompactError::Closed)?;
        answer.await.map_err(|_| CompactError::Closed)?
    }

    pub fn statistics(&self) -> Statistics {
        let state = self.shared.read_state();
        Statistics {
            current_revision: state.current(),
            compacted_revision: state.compacted(),
            objects: state.object_count(),
            object_bytes: state.object_bytes(),
            history_events: state.history_events(),
            history_bytes: state.history_bytes(),
            watchers: state.subscriptions.watchers(),
        }
    }

    /// Finishes the writes that are queued, ends every watch and releases the folder. Later writes are answered
    /// [`WriteError::Closed`]; reads of other handles go on.
    pub async fn close(self) {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::Close { reply }).await.is_ok() {
            // An error means that the writer is gone already, which is what was asked for.
            let _ = answer.await;
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Store")
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}

impl Shared {
    // Poisoned locks are taken as they are: the only author is the writer, and when it panics the store is closed.

    pub(crate) fn read_state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write_state(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn published(&self) -> Revision {
        Revision(self.published.load(Ordering::Acquire))
    }

    pub(crate) fn set_published(&self, revision: Revision) {
        self.published.store(revision.0, Ordering::Release);
    }
}

/// Rebuilds the state from everything that a back end holds.
pub(crate) fn load(
    mut backend: Box<dyn Backend>,
) -> Result<(State, Box<dyn Backend>), BackendError> {
    let mut state = State::new(backend.marks()?);
    backend.scan(Revision::EMPTY, &mut |record| {
        let event = Arc::new(state.event_of(record)?);
        state.apply(&event);
        Ok(())
    })?;
    Ok((state, backend))
}

/// Takes the folder for this process.
///
/// redb locks its file too, but the store closes and reopens that file after an I/O error, and nobody may slip
/// in between.
fn lock_folder(folder: &Path) -> Result<File, OpenError> {
    let failed = |source| OpenError::Folder {
        folder: folder.to_owned(),
        source,
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(failed)?;
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(folder.join(LOCK_FILE_NAME))
        .map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked {
            folder: folder.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}
