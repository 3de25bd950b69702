//! The durable back end: one redb file.
//!
//! Two tables. `records` maps (revision, index) to a [record]: the writes of a store land at its right
//! edge and each value is written once. There is no table by key: opening reads every record in
//! order anyway, because the index of current objects is in memory. `marks` has the format's version and the
//! two ends of the log. The newest revision needs its own mark, because compaction may forget the
//! last record, and a revision must not be given twice.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use redb::{Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};

use super::{Backend, BackendError, Compaction, Marks, Record, RecordId, record};
use crate::{Event, Revision};

const RECORDS: TableDefinition<(u64, u32), &[u8]> = TableDefinition::new("records");
const MARKS: TableDefinition<&str, u64> = TableDefinition::new("marks");

const MARK_FORMAT: &str = "format";
const MARK_CURRENT: &str = "current";
const MARK_COMPACTED: &str = "compacted";

/// Versions of the layout: 1 is the first.
const FORMAT: u64 = 1;

/// The database is read once, at opening, so its own cache only has to hold the pages that commits touch: the edges
/// of the records table. redb's default of 1 GiB would be filled by that one reading.
const CACHE_BYTES: usize = 8 << 20;

const FILE_NAME: &str = "store.redb";
const NEW_FILE_NAME: &str = "store.redb.new";

/// How a database is opened; called again after an I/O error, because redb then refuses all writes until
/// it has been reopened.
type OpenDatabase = Box<dyn Fn() -> Result<Database, BackendError> + Send>;

pub(crate) struct RedbBackend {
    open: OpenDatabase,
    /// None only after a reopening that failed.
    database: Option<Database>,
}

impl RedbBackend {
    /// Opens the database in `folder`, which exists and which the caller has locked.
    pub(crate) fn in_folder(folder: &Path) -> Result<Self, BackendError> {
        let folder = folder.to_owned();
        Self::with_open(Box::new(move || open_file(&folder)))
    }

    pub(crate) fn with_open(open: OpenDatabase) -> Result<Self, BackendError> {
        let mut backend = Self {
            open,
            database: None,
        };
        backend.reopen()?;
        Ok(backend)
    }

    fn database(&self) -> Result<&Database, BackendError> {
        self.database.as_ref().ok_or(BackendError::NotOpen)
    }

    /// Makes the tables of a new database, checks the format of an old one.
    fn prepare(database: &Database) -> Result<(), BackendError> {
        let transaction = database.begin_write()?;
        let found = {
            transaction.open_table(RECORDS)?;
            let mut marks = transaction.open_table(MARKS)?;
            let found = marks.get(MARK_FORMAT)?.map(|found| found.value());
            if found.is_none() {
                marks.insert(MARK_FORMAT, FORMAT)?;
            }
            found
        };
        match found {
            None => transaction.commit()?,
            Some(FORMAT) => transaction.abort()?,
            Some(found) => {
                return Err(BackendError::Format {
                    found,
                    expected: FORMAT,
                });
            }
        }
        Ok(())
    }
}

impl Backend for RedbBackend {
    fn marks(&mut self) -> Result<Marks, BackendError> {
        let transaction = self.database()?.begin_read()?;
        let marks = transaction.open_table(MARKS)?;
        let mark = |name| -> Result<Revision, BackendError> {
            Ok(Revision(marks.get(name)?.map_or(0, |mark| mark.value())))
        };
        Ok(Marks {
            current: mark(MARK_CURRENT)?,
            compacted: mark(MARK_COMPACTED)?,
        })
    }

    fn scan(
        &mut self,
        after: Revision,
        sink: &mut dyn FnMut(Record) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let transaction = self.database()?.begin_read()?;
        let records = transaction.open_table(RECORDS)?;
        for entry in records.range((after.next().0, 0)..)? {
            let (id, bytes) = entry?;
            let (revision, index) = id.value();
            let id = RecordId {
                revision: Revision(revision),
                index,
            };
            sink(record::decode(id, bytes.value())?)?;
        }
        Ok(())
    }

    fn commit(
        &mut self,
        events: &[Arc<Event>],
        compaction: Option<&Compaction>,
    ) -> Result<(), BackendError> {
        // Durability::Immediate is redb's default: commit returns after fdatasync. Quick repair stays off: it
        // syncs twice and measured 2.4 to 3.5 times slower commits, to save the repair after a crash, which for
        // 100,000 objects of 1 KiB took 0.2 s on top of the 0.4 s that reading them takes anyway.
        let transaction = self.database()?.begin_write()?;
        {
            let mut records = transaction.open_table(RECORDS)?;
            let mut marks = transaction.open_table(MARKS)?;
            for event in events {
                let id = (event.revision.0, event.record_index);
                let mut space = records.insert_reserve(id, record::encoded_bytes(event))?;
                record::encode(event, space.as_mut());
            }
            if let Some(last) = events.last() {
                marks.insert(MARK_CURRENT, last.revision.0)?;
            }
            if let Some(compaction) = compaction {
                for id in &compaction.superseded {
                    records.remove((id.revision.0, id.index))?;
                }
                marks.insert(MARK_COMPACTED, compaction.through.0)?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), BackendError> {
        // Closed first: redb allows one handle of a file at a time.
        self.database = None;
        let database = (self.open)()?;
        Self::prepare(&database)?;
        self.database = Some(database);
        Ok(())
    }
}

fn open_file(folder: &Path) -> Result<Database, BackendError> {
    let path = folder.join(FILE_NAME);
    let file_error = |source| BackendError::File { source };
    if !path.try_exists().map_err(file_error)? {
        create_file(folder, &path)?;
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .map_err(file_error)?;
    Ok(builder().create_file(file)?)
}

/// Makes an empty database under another name and moves it into place: redb does not recover a file that a crash
/// left half-initialised.
fn create_file(folder: &Path, path: &Path) -> Result<(), BackendError> {
    let new_path = folder.join(NEW_FILE_NAME);
    let create = || {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            // What an earlier attempt left behind.
            .truncate(true)
            // Objects can be secrets: nobody but the owner reads them.
            .mode(0o600)
            .open(&new_path)
    };
    let file_error = |source| BackendError::File { source };
    let file = create().map_err(file_error)?;
    let database = builder().create_file(file.try_clone().map_err(file_error)?)?;
    RedbBackend::prepare(&database)?;
    drop(database);
    // The folder is synced too: until then the new name can vanish with everything durable under it.
    file.sync_all()
        .and_then(|()| fs::rename(&new_path, path))
        .and_then(|()| File::open(folder)?.sync_all())
        .map_err(file_error)
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

macro_rules! from_redb {
    ($($error:ty),+) => {$(
        impl From<$error> for BackendError {
            fn from(source: $error) -> Self {
                Self::Database { source: Box::new(source.into()) }
            }
        }
    )+};
}

from_redb!(
    redb::CommitError,
    redb::StorageError,
    redb::TableError,
    redb::TransactionError,
    DatabaseError
);

#[cfg(test)]
mod faulty_disk;
#[cfg(test)]
mod tests;
