//! Random histories against a slow, obvious oracle.

mod model;

use model::{Change, Entry, KEYS, Model, PREFIXES, Resolved, Step, Write, text};
use proptest::prelude::*;
use proptest::test_runner::Config;
use revision_store::{
    Event, Object, Operation, Options, Precondition, Range, ReadError, Revision, Store, WatchError,
    Watcher, WriteError,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

proptest! {
    #![proptest_config(Config { cases: 200, ..Config::default() })]

    #[test]
    fn memory(steps in prop::collection::vec(model::step(), 1..60)) {
        Run::new(None).steps(&steps);
    }
}

proptest! {
    #![proptest_config(Config { cases: 40, ..Config::default() })]

    #[test]
    fn durable(steps in prop::collection::vec(model::step(), 1..60)) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Run::new(Some(folder)).steps(&steps);
    }
}

struct Run {
    runtime: Runtime,
    folder: Option<TempDir>,
    store: Store,
    model: Model,
    watches: Vec<Watch>,
}

/// A watcher, and up to where it has certainly looked.
struct Watch {
    watcher: Watcher,
    prefix: &'static str,
    seen: u64,
}

fn open(folder: Option<&TempDir>) -> Store {
    let options = Options {
        // Small, so that catching up takes several batches.
        watch_batch_events_max: 3,
        ..Options::default()
    };
    match folder {
        None => Store::in_memory(options),
        Some(folder) => Store::open(folder.path(), options),
    }
    .expect("a store")
}

impl Run {
    fn new(folder: Option<TempDir>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        Self {
            runtime,
            store: open(folder.as_ref()),
            folder,
            model: Model::new(),
            watches: Vec::new(),
        }
    }

    fn steps(mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Transact(writes) => self.transact(writes),
                Step::Together(writes) => self.together(writes),
                Step::List { prefix, at, limit } => self.list(PREFIXES[*prefix], *at, *limit),
                Step::Get { key, at } => self.get(KEYS[*key], *at),
                Step::Watch { prefix, after } => self.watch(PREFIXES[*prefix], *after),
                Step::Drain => self.drain(),
                Step::Compact(through) => self.compact(*through),
                Step::Reopen => self.reopen(),
            }
            self.check_present();
        }
        self.drain();
        self.reopen();
        self.check_present();
        self.watch("", u16::try_from(self.model.compacted).expect("small"));
        self.drain();
    }

    /// A revision that exists, or is one beyond the newest.
    fn revision(&self, number: u16) -> u64 {
        u64::from(number) % (self.model.current() + 2)
    }

    fn transact(&mut self, writes: &[Write]) {
        let operations = writes.iter().map(|write| self.operation(write)).collect();
        let answer = self.runtime.block_on(self.store.transact(operations));
        let expected = self.model.write(writes);
        self.compare(answer.map(|committed| committed.revision), expected);
    }

    fn together(&mut self, writes: &[Write]) {
        let answers: Vec<_> = self.runtime.block_on(async {
            // Preconditions that depend on the state are those of the state before all of them.
            let tasks: Vec<_> = writes
                .iter()
                .map(|write| {
                    let store = self.store.clone();
                    let operation = self.operation(write);
                    tokio::spawn(async move { store.transact(vec![operation]).await })
                })
                .collect();
            let mut answers = Vec::new();
            for task in tasks {
                answers.push(task.await.expect("no panic"));
            }
            answers
        });
        let before = self.model.objects().clone();
        let current = self.model.current();
        for (write, answer) in writes.iter().zip(answers) {
            // Fixed for the model as they were for the store.
            let entry = before.get(write.key());
            let write = write.fixed(write.condition.resolve(entry, current));
            let expected = self.model.write(&[write]);
            self.compare(answer.map(|committed| committed.revision), expected);
        }
    }

    fn operation(&self, write: &Write) -> Operation {
        let entry = self.model.objects().get(write.key());
        let precondition = match write.condition.resolve(entry, self.model.current()) {
            Resolved::Any => Precondition::Any,
            Resolved::Absent => Precondition::Absent,
            Resolved::Modified(revision) => Precondition::ModRevision(Revision(revision)),
        };
        let key = write.key().to_owned();
        match write.value {
            Some(value) => Operation::Put {
                key,
                value: text(value).into(),
                precondition,
            },
            None => Operation::Delete { key, precondition },
        }
    }

    fn compare(&self, answer: Result<Revision, WriteError>, expected: Result<u64, String>) {
        match (answer, expected) {
            (Ok(revision), Ok(expected)) => assert_eq!(revision.0, expected),
            (Err(WriteError::Conflict { key, current }), Err(expected)) => {
                assert_eq!(&*key, expected);
                let entry = self.model.objects().get(&*key);
                assert_eq!(current.map(|object| entry_of(&object)).as_ref(), entry);
            }
            (answer, expected) => panic!("answered {answer:?}, expected {expected:?}"),
        }
    }

    fn list(&self, prefix: &str, at: Option<u16>, limit: usize) {
        let at = at.map(|number| self.revision(number));
        let expected = self.model.at(at.unwrap_or(self.model.current()));
        let mut found = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let page = self.store.range(&Range {
                prefix,
                after: after.as_deref(),
                limit: Some(limit),
                at: at.map(Revision),
            });
            let page = match page {
                Ok(page) => page,
                Err(error) => return self.compare_error(error, expected.map(drop)),
            };
            assert!(page.objects.len() <= limit);
            found.extend(
                page.objects
                    .iter()
                    .map(|object| (object.key.to_string(), entry_of(object))),
            );
            if let Ok(expected) = expected {
                let matching = expected.keys().filter(|key| key.starts_with(prefix));
                assert_eq!(found.len() + page.remaining, matching.count());
            }
            if page.remaining == 0 {
                break;
            }
            assert_eq!(
                page.objects.len(),
                limit,
                "a page is full unless it is the last"
            );
            after = found.last().map(|(key, _)| key.clone());
        }
        let expected = expected.expect("readable");
        let expected: Vec<_> = expected
            .iter()
            .filter(|(key, _)| key.starts_with(prefix))
            .map(|(key, entry)| (key.clone(), entry.clone()))
            .collect();
        assert_eq!(found, expected);
        if at.is_none() {
            assert_eq!(self.store.count(prefix), expected.len());
        }
    }

    fn get(&self, key: &str, at: u16) {
        let at = self.revision(at);
        let expected = self.model.at(at).map(|objects| objects.get(key).cloned());
        match self.store.get_at(key, Revision(at)) {
            Ok(object) => assert_eq!(Ok(object.map(|object| entry_of(&object))), expected),
            Err(error) => self.compare_error(error, expected.map(drop)),
        }
    }

    fn compare_error(&self, error: ReadError, expected: Result<(), bool>) {
        match error {
            ReadError::Compacted { oldest, .. } => {
                assert_eq!(expected, Err(true));
                assert_eq!(oldest.0, self.model.compacted);
            }
            ReadError::Future { current, .. } => {
                assert_eq!(expected, Err(false));
                assert_eq!(current.0, self.model.current());
            }
        }
    }

    fn watch(&mut self, prefix: &'static str, after: u16) {
        let after = self.revision(after);
        let expected = self.model.at(after).map(drop);
        match self.store.watch(prefix, Revision(after)) {
            Ok(watcher) => {
                assert_eq!(expected, Ok(()));
                self.watches.push(Watch {
                    watcher,
                    prefix,
                    seen: after,
                });
            }
            Err(error) => self.compare_error(error, expected),
        }
    }

    fn drain(&mut self) {
        let model = &self.model;
        self.watches.retain_mut(|watch| watch.drain(model));
    }

    fn compact(&mut self, through: u16) {
        let through = self.revision(through);
        let answer = self.runtime.block_on(self.store.compact(Revision(through)));
        assert_eq!(answer.is_ok(), through <= self.model.current());
        if answer.is_ok() {
            self.model.compacted = self.model.compacted.max(through);
        }
    }

    fn reopen(&mut self) {
        if self.folder.is_none() {
            return;
        }
        self.watches.clear();
        self.runtime.block_on(self.store.clone().close());
        self.store = open(self.folder.as_ref());
    }

    fn check_present(&self) {
        let statistics = self.store.statistics();
        assert_eq!(statistics.current_revision.0, self.model.current());
        assert_eq!(statistics.compacted_revision.0, self.model.compacted);
        assert_eq!(statistics.objects, self.model.objects().len());
        let bytes: usize = self.model.objects().values().map(|e| e.value.len()).sum();
        assert_eq!(statistics.object_bytes, bytes as u64);
        let kept = self
            .model
            .changes("", self.model.compacted, self.model.current());
        assert_eq!(statistics.history_events, kept.len());
        let superseded = kept.iter().filter_map(|change| change.before.as_ref());
        let bytes: usize = superseded.map(|entry| entry.value.len()).sum();
        assert_eq!(statistics.history_bytes, bytes as u64);
        assert_eq!(statistics.watchers, self.watches.len());
    }
}

impl Watch {
    /// Reads everything there is. False when the watch has ended.
    fn drain(&mut self, model: &Model) -> bool {
        let expected = model.changes(self.prefix, self.seen, model.current());
        let is_lagged = expected
            .first()
            .is_some_and(|change| change.revision <= model.compacted);
        let before = self.watcher.progress();
        if is_lagged {
            assert_eq!(before.0, self.seen);
            let error = self.watcher.try_next().expect_err("events are missing");
            assert!(matches!(error, WatchError::Lagged { .. }), "{error:?}");
            return false;
        }
        let next = expected.first().map(|change| change.revision - 1);
        assert_eq!(before.0, next.unwrap_or(model.current()));
        let mut found = Vec::new();
        while let Some(event) = self.watcher.try_next().expect("a live watch") {
            found.push(change_of(&event));
        }
        assert_eq!(found, expected);
        self.seen = model.current();
        assert_eq!(self.watcher.progress().0, self.seen);
        true
    }
}

fn entry_of(object: &Object) -> Entry {
    Entry {
        value: String::from_utf8(object.value.to_vec()).expect("text"),
        create: object.create_revision.0,
        modified: object.mod_revision.0,
        version: object.version,
    }
}

fn change_of(event: &Event) -> Change {
    Change {
        revision: event.revision.0,
        key: event.key().to_string(),
        before: event.previous().map(|object| entry_of(object)),
        after: event.object().map(|object| entry_of(object)),
    }
}
