//! The store on a disk that fails at every possible moment.

use std::collections::BTreeMap;
use std::time::Duration;

use super::faulty_disk::{Chance, Fault, FaultyDisk};
use super::*;
use crate::store::load;
use crate::{Object, OpenError, Operation, Options, Precondition, Range, Store, WriteError};

/// What the clients know: which revision wrote what, and which writes they were not told about.
#[derive(Default)]
struct Told {
    acknowledged: BTreeMap<Revision, Step>,
    failed: Vec<Step>,
    uncertain: Vec<Step>,
}

/// The n-th step of the script: it puts its own number under two of seven keys at once, and now and then deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step(u64);

impl Step {
    fn operations(self, store: &Store) -> Vec<Operation> {
        let put = |key: String| Operation::Put {
            key,
            value: self.value().into(),
            precondition: Precondition::Any,
        };
        let doomed = format!("/once/{}", self.0.saturating_sub(2));
        let mut operations = vec![
            put(format!("/many/{}", self.0 % 7)),
            put(format!("/once/{}", self.0)),
        ];
        if self.0.is_multiple_of(3) && store.get(&doomed).is_some() {
            operations.push(Operation::Delete {
                key: doomed,
                precondition: Precondition::Any,
            });
        }
        operations
    }

    /// Large enough that a page holds few of them.
    fn value(self) -> String {
        format!("{:0>600}", self.0)
    }
}

impl Told {
    async fn tell(&mut self, store: &Store, steps: std::ops::Range<u64>) {
        for step in steps.map(Step) {
            match store.transact(step.operations(store)).await {
                Ok(committed) => {
                    let before = self.acknowledged.insert(committed.revision, step);
                    assert_eq!(before, None, "revision {} twice", committed.revision);
                }
                Err(WriteError::Failed { .. }) => self.failed.push(step),
                Err(WriteError::Uncertain { .. }) => self.uncertain.push(step),
                Err(error) => panic!("{step:?}: {error:?}"),
            }
        }
    }

    /// Everything acknowledged is in the store, nothing that failed is, and no write is there in part.
    fn check(&self, store: &Store, context: &str) {
        for (revision, step) in &self.acknowledged {
            assert!(*revision <= store.current_revision(), "{context}");
            if *revision > store.compacted_revision() {
                let once = store.get_at(&format!("/once/{}", step.0), *revision);
                let once = once.unwrap_or_else(|error| panic!("{context}: {error}"));
                let once = once.unwrap_or_else(|| panic!("{context}: {step:?} is lost"));
                assert_eq!(once.mod_revision, *revision, "{context}");
                assert_eq!(once.value, step.value(), "{context}");
            }
        }
        for step in &self.failed {
            let once = store.get(&format!("/once/{}", step.0));
            assert_eq!(once, None, "{context}: {step:?} failed but happened");
        }
        // Both puts of a step have its revision.
        let oldest = store.compacted_revision();
        let mut watcher = store.watch("/", oldest).expect("the oldest state");
        let mut revision = oldest;
        let mut keys = Vec::new();
        while let Some(event) = watcher.try_next().expect("a live watch") {
            if event.revision != revision {
                assert_eq!(event.revision, revision.next(), "{context}: a hole");
                assert!(keys.len() != 1, "{context}: {keys:?} is torn");
                revision = event.revision;
                keys.clear();
            }
            keys.push(event.key().clone());
        }
        assert_eq!(revision, store.current_revision(), "{context}");
    }
}

fn options() -> Options {
    Options {
        // Short, so that compaction is part of the script.
        history_events_max: 16,
        ..Options::default()
    }
}

fn open(disk: &FaultyDisk) -> Result<Store, BackendError> {
    let disk = disk.clone();
    let backend = RedbBackend::with_open(Box::new(move || {
        Ok(builder().create_with_backend(disk.clone())?)
    }))?;
    let (state, backend) = load(Box::new(backend))?;
    Ok(Store::start(state, backend, None, options()).expect("a thread"))
}

/// Waits for the writer to forget what is due, so that the window stands still.
async fn settle(store: &Store) {
    let settled = async {
        while store.statistics().history_events > options().history_events_max {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), settled)
        .await
        .expect("compaction comes to an end");
}

/// All objects and all events that are left, comparable.
fn content(store: &Store) -> Vec<String> {
    let shown = |object: &Object| {
        let value = std::str::from_utf8(&object.value).expect("digits");
        format!(
            "{}={} {} {} {} {}",
            object.key,
            value.trim_start_matches('0'),
            object.create_revision,
            object.mod_revision,
            object.version,
            object.record_index
        )
    };
    let page = store.range(&Range::default()).expect("the present");
    let mut watcher = store
        .watch("", store.compacted_revision())
        .expect("the oldest state");
    let events = std::iter::from_fn(|| watcher.try_next().expect("a live watch"));
    let objects = page.objects.iter().map(|object| shown(object));
    let events = events.map(|event| {
        let [object, previous] = [event.object(), event.previous()]
            .map(|object| object.map_or_else(|| "none".to_owned(), |object| shown(object)));
        format!(
            "{} {} {object} was {previous}",
            event.revision, event.time_ms
        )
    });
    objects.chain(events).collect()
}

const STEPS: u64 = 15;

/// A disk with an empty store, and faults counted from now on. Making a store is atomic by another means: see
/// [`create_file`].
async fn new_disk() -> FaultyDisk {
    let disk = FaultyDisk::default();
    open(&disk).expect("an empty disk").close().await;
    disk.restart_count();
    disk
}

/// How many disk operations the undisturbed script needs, from opening to closing.
async fn operations_of_script() -> u64 {
    let disk = new_disk().await;
    let store = open(&disk).expect("an empty store");
    let mut told = Told::default();
    told.tell(&store, 0..STEPS).await;
    assert_eq!(told.acknowledged.len() as u64, STEPS);
    settle(&store).await;
    assert!(store.compacted_revision() > Revision::EMPTY);
    told.check(&store, "undisturbed");
    store.close().await;
    disk.operations()
}

#[tokio::test]
async fn a_power_cut_at_any_moment_loses_nothing_acknowledged() {
    let mut cut_while_writing = 0;
    for from in 0..operations_of_script().await {
        let disk = new_disk().await;
        disk.set_fault(Some(Fault::PowerCut { from }));
        let mut told = Told::default();
        if let Ok(store) = open(&disk) {
            told.tell(&store, 0..STEPS).await;
            cut_while_writing += u64::from(!told.uncertain.is_empty());
            store.close().await;
        }
        for seed in 0..3 {
            let context = format!("power cut after {from} operations, seed {seed}");
            let left = disk.after_crash(&mut Chance(seed ^ (from << 8)));
            let store = open(&left).unwrap_or_else(|error| panic!("{context}: {error:?}"));
            // A write in doubt may have happened, but nothing behind it.
            let known = told.acknowledged.len() as u64;
            let in_doubt = told.uncertain.len() as u64;
            assert!(
                in_doubt <= 1,
                "{context}: after the first error nothing is tried"
            );
            let found = store.current_revision().0;
            assert!((known..=known + in_doubt).contains(&found), "{context}");
            settle(&store).await;
            told.check(&store, &context);
            // And it goes on from there.
            told.tell(&store, 100..102).await;
            store.close().await;
            let store = open(&left).unwrap_or_else(|error| panic!("{context}: {error:?}"));
            settle(&store).await;
            told.check(&store, &context);
            for revision in [found + 1, found + 2] {
                assert!(told.acknowledged.remove(&Revision(revision)).is_some());
            }
            store.close().await;
        }
    }
    assert!(cut_while_writing > STEPS, "the hard path was taken");
}

/// Breaks the disk at every moment of the script, repairs it, and expects the same store to go on.
async fn check_recovery(fault: impl Fn(u64) -> Fault, expect_uncertain: bool) {
    let mut failed = 0;
    let mut uncertain = 0;
    for from in 0..operations_of_script().await {
        let context = format!("{:?}", fault(from));
        let disk = new_disk().await;
        disk.set_fault(Some(fault(from)));
        let Ok(store) = open(&disk) else {
            // Refused at the door: nothing to lose. Repaired, it opens.
            disk.set_fault(None);
            let store = open(&disk).unwrap_or_else(|error| panic!("{context}: {error:?}"));
            assert_eq!(store.current_revision(), Revision::EMPTY, "{context}");
            continue;
        };
        let mut watcher = store.watch("/once/", Revision::EMPTY).expect("retained");
        let mut told = Told::default();
        told.tell(&store, 0..STEPS).await;
        failed += told.failed.len();
        uncertain += told.uncertain.len();
        // Reads go on while writes fail.
        told.check(&store, &context);

        disk.set_fault(None);
        let before = told.acknowledged.len();
        told.tell(&store, STEPS..STEPS + 3).await;
        assert_eq!(
            told.acknowledged.len(),
            before + 3,
            "{context}: not repaired"
        );
        settle(&store).await;
        told.check(&store, &context);
        // The watch saw what the store has, or says that it did not.
        let mut seen = Revision::EMPTY;
        while let Ok(Some(event)) = watcher.try_next() {
            assert!(event.revision >= seen, "{context}");
            seen = event.revision;
        }
        let in_memory = content(&store);
        drop(watcher);
        store.close().await;
        let store = open(&disk).unwrap_or_else(|error| panic!("{context}: {error:?}"));
        settle(&store).await;
        let on_disk = content(&store);
        assert_eq!(on_disk, in_memory, "{context}");
    }
    assert!(failed > 0, "some writes were refused");
    assert_eq!(uncertain > 0, expect_uncertain, "{uncertain} in doubt");
}

#[tokio::test]
async fn a_full_disk_fails_writes_until_there_is_space() {
    check_recovery(|from| Fault::Full { from }, false).await;
}

#[tokio::test]
async fn a_read_only_disk_fails_writes_until_it_is_writable() {
    // redb marks a file that it opens, so what became of the failed commit cannot be known before the repair.
    check_recovery(|from| Fault::ReadOnly { from }, true).await;
}

#[tokio::test]
async fn a_failed_sync_leaves_the_write_in_doubt() {
    check_recovery(|from| Fault::SyncFails { from }, true).await;
}

#[tokio::test]
async fn compaction_leaves_one_record_per_object() {
    let disk = new_disk().await;
    let store = open(&disk).expect("an empty store");
    Told::default().tell(&store, 0..STEPS).await;
    settle(&store).await;
    let objects = store.statistics().objects;
    // Half-way: what is left is the objects as they were then, and every event since.
    let oldest = store.compacted_revision();
    let then = store.range(&Range {
        at: Some(oldest),
        ..Range::default()
    });
    let expected =
        then.expect("the oldest state").objects.len() + store.statistics().history_events;
    store.close().await;
    assert_eq!(records(&disk), expected);

    let store = open(&disk).expect("a store");
    let current = store.current_revision();
    store.compact(current).await.expect("compaction");
    store.close().await;
    assert_eq!(records(&disk), objects);
}

fn records(disk: &FaultyDisk) -> usize {
    let database = builder().create_with_backend(disk.clone()).expect("closed");
    let transaction = database.begin_read().expect("a transaction");
    let records = transaction.open_table(RECORDS).expect("a table");
    records.iter().expect("records").count()
}

#[tokio::test]
async fn other_formats_are_refused() {
    let disk = FaultyDisk::default();
    open(&disk).expect("an empty disk").close().await;
    let database = builder().create_with_backend(disk.clone()).expect("closed");
    let transaction = database.begin_write().expect("a transaction");
    transaction
        .open_table(MARKS)
        .and_then(|mut marks| Ok(marks.insert(MARK_FORMAT, 7).map(drop)?))
        .expect("a mark");
    transaction.commit().expect("a commit");
    drop(database);
    let error = open(&disk).expect_err("a format of the future");
    assert_eq!(
        error.to_string(),
        "the database has format 7, this version reads 1"
    );
}

#[tokio::test]
async fn a_crash_while_the_store_is_made_does_no_harm() {
    for left_behind in [&b""[..], b"half a data", &[0; 100_000]] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join(NEW_FILE_NAME), left_behind).expect("a file");
        let store = Store::open(folder.path(), options()).expect("made afresh");
        store
            .put("/a", "1", Precondition::Any)
            .await
            .expect("a put");
        store.close().await;
        assert!(!folder.path().join(NEW_FILE_NAME).exists());
        let store = Store::open(folder.path(), options()).expect("an old one");
        assert_eq!(store.count("/"), 1);
    }
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join(FILE_NAME), [7; 10_000]).expect("a file");
    let error = Store::open(folder.path(), options()).expect_err("garbage");
    let OpenError::Backend { source, .. } = error else {
        panic!("expected the back end to refuse, got {error:?}");
    };
    assert!(
        matches!(source, BackendError::Database { .. }),
        "{source:?}"
    );
    let unchanged = std::fs::read(folder.path().join(FILE_NAME)).expect("still there");
    assert_eq!(unchanged, [7; 10_000], "nothing was overwritten");
}

#[tokio::test]
async fn a_record_that_contradicts_the_log_is_refused() {
    let disk = FaultyDisk::default();
    let store = open(&disk).expect("an empty disk");
    store
        .put("/a", "1", Precondition::Any)
        .await
        .expect("a put");
    store.delete("/a", Precondition::Any).await.expect("there");
    store.close().await;
    let database = builder().create_with_backend(disk.clone()).expect("closed");
    let transaction = database.begin_write().expect("a transaction");
    transaction
        .open_table(RECORDS)
        .and_then(|mut records| Ok(records.remove((1, 0)).map(drop)?))
        .expect("a removal");
    transaction.commit().expect("a commit");
    drop(database);
    let error = open(&disk).expect_err("a deletion of nothing");
    assert!(matches!(error, BackendError::Damaged { .. }), "{error:?}");
}
