//! Many writers, many watchers, all at once: no event is lost, doubled or out of order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use revision_store::{Event, Options, Precondition, Range, Revision, Store, Watcher, WriteError};
use tokio::task::JoinSet;

const WRITERS: u64 = 16;
const WRITES_EACH: u64 = 100;
const KEYS: u64 = 10;

fn check(store: Store) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let run = tokio::time::timeout(Duration::from_secs(120), storm(&store));
        run.await.expect("everything arrives");
        store.close().await;
    });
}

#[test]
fn memory() {
    check(Store::in_memory(Options::default()).expect("a store"));
}

#[test]
fn durable() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    check(Store::open(folder.path(), Options::default()).expect("a store"));
}

async fn storm(store: &Store) {
    let last = Revision(WRITERS * WRITES_EACH);
    let mut watchers = JoinSet::new();
    // From the beginning, before anything is written.
    for prefix in ["", "/1", "/shared", "/none"] {
        for _ in 0..8 {
            let watcher = store.watch(prefix, Revision::EMPTY).expect("retained");
            watchers.spawn(follow(watcher, prefix, last));
        }
    }
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn(write(store.clone(), writer));
    }
    let mut joiners = JoinSet::new();
    for joiner in 0..16 {
        joiners.spawn(join_late(store.clone(), joiner, last));
    }
    // What every writer was told, in revision order: the one truth that all watchers must have seen.
    let mut written = BTreeMap::new();
    for acknowledged in writers.join_all().await {
        for (revision, key) in acknowledged {
            assert_eq!(written.insert(revision, key), None, "a revision twice");
        }
    }
    let revisions: Vec<_> = written.keys().map(|revision| revision.0).collect();
    assert_eq!(revisions, (1..=last.0).collect::<Vec<_>>());

    while let Some(watched) = watchers.join_next().await {
        let (prefix, events) = watched.expect("a watcher");
        assert_same(&events, &written, prefix, Revision::EMPTY);
    }
    while let Some(joined) = joiners.join_next().await {
        let (prefix, after, events) = joined.expect("a joiner");
        assert_same(&events, &written, prefix, after);
    }
    assert_eq!(store.statistics().watchers, 0);
}

/// Writes to its own keys, and with retries to keys that all writers share.
async fn write(store: Store, writer: u64) -> Vec<(Revision, String)> {
    let mut acknowledged = Vec::new();
    for write in 0..WRITES_EACH {
        let is_shared = write % 3 == 0;
        let key = if is_shared {
            format!("/shared/{}", write % KEYS)
        } else {
            format!("/{writer}/{}", write % KEYS)
        };
        let revision = if is_shared {
            compare_and_swap(&store, &key, writer).await
        } else {
            let put = store.put(key.as_str(), "x", Precondition::Any).await;
            put.expect("no precondition").mod_revision
        };
        acknowledged.push((revision, key));
    }
    acknowledged
}

async fn compare_and_swap(store: &Store, key: &str, writer: u64) -> Revision {
    let mut expected = store.get(key);
    loop {
        let precondition = expected.as_ref().map_or(Precondition::Absent, |object| {
            Precondition::ModRevision(object.mod_revision)
        });
        match store.put(key, writer.to_string(), precondition).await {
            Ok(object) => {
                let version = expected.map_or(1, |expected| expected.version + 1);
                assert_eq!(object.version, version, "nobody came between");
                return object.mod_revision;
            }
            Err(WriteError::Conflict { current, .. }) => expected = current,
            Err(error) => panic!("{key}: {error}"),
        }
    }
}

async fn follow(
    mut watcher: Watcher,
    prefix: &'static str,
    last: Revision,
) -> (&'static str, Vec<Arc<Event>>) {
    (prefix, until(&mut watcher, prefix, last).await)
}

/// Lists in the middle of it all and watches from there: the list and the events together are the final state.
async fn join_late(
    store: Store,
    joiner: u64,
    last: Revision,
) -> (&'static str, Revision, Vec<Arc<Event>>) {
    let prefix = ["", "/1", "/shared", "/2/"][usize::try_from(joiner % 4).expect("small")];
    let mut clock = store.watch("", Revision::EMPTY).expect("retained");
    for _ in 0..=joiner * 90 {
        clock.next().await.expect("a live watch");
    }
    let page = store.range(&Range::prefix(prefix)).expect("the present");
    let mut watcher = store.watch(prefix, page.revision).expect("retained");
    let events = until(&mut watcher, prefix, last).await;
    let mut objects: BTreeMap<_, _> = page
        .objects
        .into_iter()
        .map(|object| (object.key.clone(), object))
        .collect();
    for event in &events {
        let before = match event.object() {
            Some(object) => objects.insert(object.key.clone(), object.clone()),
            None => objects.remove(event.key()),
        };
        assert_eq!(before.as_ref(), event.previous(), "{event:?}");
    }
    let now = store.range(&Range {
        at: Some(last),
        ..Range::prefix(prefix)
    });
    let now = now.expect("retained").objects;
    assert_eq!(objects.into_values().collect::<Vec<_>>(), now);
    (prefix, page.revision, events)
}

/// All events until the watcher knows that it has seen everything.
async fn until(watcher: &mut Watcher, prefix: &str, last: Revision) -> Vec<Arc<Event>> {
    let mut events = Vec::new();
    while watcher.progress() < last {
        let next = if prefix.is_empty() {
            // It sees the last write itself: it must be woken without ever asking again.
            Ok(watcher.next().await)
        } else {
            // A quiet prefix learns of progress only by asking.
            tokio::time::timeout(Duration::from_millis(5), watcher.next()).await
        };
        if let Ok(event) = next {
            events.push(event.expect("a live watch"));
        }
    }
    assert_eq!(watcher.try_next().expect("a live watch"), None);
    events
}

fn assert_same(
    events: &[Arc<Event>],
    written: &BTreeMap<Revision, String>,
    prefix: &str,
    after: Revision,
) {
    let seen: Vec<_> = events
        .iter()
        .map(|event| (event.revision, event.key().to_string()))
        .collect();
    let expected: Vec<_> = written
        .iter()
        .filter(|(revision, key)| **revision > after && key.starts_with(prefix))
        .map(|(revision, key)| (*revision, key.clone()))
        .collect();
    assert_eq!(seen, expected, "{prefix:?} after {after}");
}
