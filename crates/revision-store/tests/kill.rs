//! A real process, killed for real, hundreds of times.
//!
//! The test runs itself as a child that writes and prints what was acknowledged, kills it at some moment with
//! SIGKILL, opens what it left behind and compares. All rounds use one folder, so the store has to survive all of
//! them in a row.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use revision_store::{OpenError, Operation, Options, Precondition, Revision, Store};

const ROUNDS: u64 = 220;
const WRITERS: u64 = 6;
/// Each writer goes round this many keys.
const KEYS: u64 = 5;
const FOLDER_VARIABLE: &str = "REVISION_STORE_KILL_TEST_FOLDER";
const TEST_NAME: &str = "a_killed_process_loses_nothing_it_has_acknowledged";

#[test]
fn a_killed_process_loses_nothing_it_has_acknowledged() {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        write_until_killed(Path::new(&folder));
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut known = Known::default();
    let mut killed_before_writing = 0;
    for round in 0..ROUNDS {
        let acknowledged = run_and_kill(folder.path(), lines_before_kill(round));
        killed_before_writing += u64::from(acknowledged.is_empty());
        known.add(&acknowledged);
        known.check(folder.path(), round);
    }
    assert!(killed_before_writing >= 5, "some died while opening");
    assert!(known.current > Revision(ROUNDS), "{:?}", known.current);
}

/// When to kill: as soon as the child says that it opens, that it has opened, or after some writes.
fn lines_before_kill(round: u64) -> u64 {
    match round % 8 {
        0 => 1,
        1 => 2,
        other => 2 + (round * 7 + other * 13) % 61,
    }
}

fn options() -> Options {
    Options {
        // Short, so that the kill also hits compaction.
        history_events_max: 200,
        ..Options::default()
    }
}

#[derive(Debug)]
struct Acknowledged {
    writer: u64,
    sequence: u64,
    revision: Revision,
}

fn run_and_kill(folder: &Path, lines_before_kill: u64) -> Vec<Acknowledged> {
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args([TEST_NAME, "--exact", "--nocapture", "--test-threads=1"])
        .env(FOLDER_VARIABLE, folder)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the test runs itself");
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    let mut acknowledged = Vec::new();
    let mut lines = 0;
    let mut line = String::new();
    // After the kill this reads on: what is in the pipe was acknowledged as well.
    while output.read_line(&mut line).expect("text") > 0 {
        // The harness prints lines of its own, and the kill can cut the last one short.
        if let Some(("store", words)) = line.strip_suffix('\n').and_then(|l| l.split_once(':')) {
            lines += 1;
            if let [writer, sequence, revision] = words
                .split(' ')
                .filter_map(|word| word.parse().ok())
                .collect::<Vec<u64>>()[..]
            {
                acknowledged.push(Acknowledged {
                    writer,
                    sequence,
                    revision: Revision(revision),
                });
            }
            if lines == lines_before_kill {
                if lines > 1 {
                    let second = Store::open(folder, options());
                    let error = second.expect_err("the child has the folder");
                    assert!(matches!(error, OpenError::Locked { .. }), "{error:?}");
                }
                child.kill().expect("SIGKILL");
            }
        }
        line.clear();
    }
    let status = child.wait().expect("a status");
    assert_eq!(status.code(), None, "killed, not ended by itself: {status}");
    acknowledged
}

/// What the children have said, over all rounds.
#[derive(Default)]
struct Known {
    /// The last sequence number that each writer was told is durable.
    last: BTreeMap<u64, u64>,
    /// The newest revision, acknowledged or found.
    current: Revision,
    revisions: BTreeMap<Revision, (u64, u64)>,
}

impl Known {
    fn add(&mut self, acknowledged: &[Acknowledged]) {
        for ack in acknowledged {
            let last = self.last.insert(ack.writer, ack.sequence);
            assert!(last.is_none_or(|last| last < ack.sequence), "{ack:?}");
            let twice = self
                .revisions
                .insert(ack.revision, (ack.writer, ack.sequence));
            assert_eq!(twice, None, "revision given twice: {ack:?}");
            self.current = self.current.max(ack.revision);
        }
    }

    fn check(&mut self, folder: &Path, round: u64) {
        // Without a bound of its own, so that the window stands still while it is read.
        let unbounded = Options {
            history_events_max: usize::MAX,
            ..Options::default()
        };
        let store = Store::open(folder, unbounded)
            .unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        assert!(store.current_revision() >= self.current, "round {round}");
        self.current = store.current_revision();
        for writer in 0..WRITERS {
            let last = self.last.get(&writer).copied().unwrap_or(0);
            let found = sequence_of(&store, writer);
            // One write was under way at most.
            assert!(
                found == last || found == last + 1,
                "round {round}: writer {writer} has {found}, was told {last}"
            );
            self.last.insert(writer, found);
            for sequence in (found + 1).saturating_sub(KEYS).max(1)..=found {
                let object = store
                    .get(&key(writer, sequence))
                    .unwrap_or_else(|| panic!("round {round}: {writer} {sequence} is lost"));
                assert_eq!(object.value, value(writer, sequence), "round {round}");
                // Counts every put since the first round, so none is missing in between.
                assert_eq!(object.version, (sequence - 1) / KEYS + 1, "round {round}");
            }
        }
        self.check_log(&store, round);
        let runtime = runtime();
        runtime.block_on(store.close());
    }

    /// The log has every revision of its window, whole, and as it was acknowledged.
    fn check_log(&self, store: &Store, round: u64) {
        let mut revision = store.compacted_revision();
        let mut watcher = store.watch("", revision).expect("the oldest state");
        let mut keys = Vec::new();
        loop {
            let event = watcher.try_next().expect("a live watch");
            let is_same = event
                .as_ref()
                .is_some_and(|event| event.revision == revision);
            if !is_same && !keys.is_empty() {
                assert_eq!(keys.len(), 2, "round {round}: {revision} is torn: {keys:?}");
                keys.clear();
            }
            let Some(event) = event else {
                assert_eq!(revision, store.current_revision(), "round {round}");
                return;
            };
            if !is_same {
                assert_eq!(event.revision.0, revision.0 + 1, "round {round}: a hole");
                revision = event.revision;
            }
            let object = event.object().expect("nothing is deleted");
            if let Some((writer, sequence)) = self.revisions.get(&event.revision)
                && !object.key.ends_with("/sequence")
            {
                assert_eq!(&*object.key, key(*writer, *sequence), "round {round}");
                assert_eq!(object.value, value(*writer, *sequence), "round {round}");
            }
            keys.push(event.key().clone());
        }
    }
}

fn key(writer: u64, sequence: u64) -> String {
    format!("/{writer}/{}", sequence % KEYS)
}

/// Says what it should be, and is long enough to be torn: between a few bytes and several pages.
fn value(writer: u64, sequence: u64) -> String {
    let length = (writer * 7_919 + sequence * 104_729) % 9_000;
    let word = format!("{writer}.{sequence} ");
    word.repeat(usize::try_from(length).expect("small") / word.len() + 1)
}

fn sequence_of(store: &Store, writer: u64) -> u64 {
    store
        .get(&format!("/{writer}/sequence"))
        .map_or(0, |object| {
            let text = std::str::from_utf8(&object.value).expect("digits");
            text.parse().expect("a number")
        })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime")
}

/// The child.
fn write_until_killed(folder: &Path) -> ! {
    say("store:opening");
    let store = Store::open(folder, options()).expect("what the last child left");
    say("store:open");
    runtime().block_on(async {
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            writers.spawn(write_for_ever(store.clone(), writer));
        }
        writers.join_next().await;
    });
    panic!("a writer ended");
}

async fn write_for_ever(store: Store, writer: u64) {
    let mut sequence = sequence_of(&store, writer);
    loop {
        sequence += 1;
        let put = |key: String, value: String| Operation::Put {
            key,
            value: value.into(),
            precondition: Precondition::Any,
        };
        let committed = store
            .transact(vec![
                put(key(writer, sequence), value(writer, sequence)),
                put(format!("/{writer}/sequence"), sequence.to_string()),
            ])
            .await
            .expect("a durable write");
        say(&format!("store:{writer} {sequence} {}", committed.revision));
    }
}

/// One line in one system call, so that lines are whole unless the kill cuts one.
fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    let said = output
        .write_all(format!("{line}\n").as_bytes())
        .and_then(|()| output.flush());
    // The parent may have gone first.
    if said.is_err() {
        std::process::exit(1);
    }
}
