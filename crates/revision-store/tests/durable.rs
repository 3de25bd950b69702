//! What only a store on disk can show: that it comes back.

use std::os::unix::fs::PermissionsExt;

use revision_store::{
    Event, OpenError, Operation, Options, Precondition, Range, Revision, Store, Watcher,
};

async fn put(store: &Store, key: &str, value: &str) -> Revision {
    let put = store.put(key, value, Precondition::Any).await;
    put.expect("a put").mod_revision
}

/// Objects and events with all their fields.
fn content(store: &Store) -> String {
    let page = store.range(&Range::default()).expect("the present");
    let mut watcher = store
        .watch("", store.compacted_revision())
        .expect("the oldest state");
    format!(
        "{page:?} {:?} {:?}",
        drain(&mut watcher),
        store.statistics()
    )
}

fn drain(watcher: &mut Watcher) -> Vec<std::sync::Arc<Event>> {
    std::iter::from_fn(|| watcher.try_next().expect("a live watch")).collect()
}

#[tokio::test]
async fn reopening_changes_nothing_at_any_stage_of_compaction() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = || Store::open(folder.path(), Options::default()).expect("a store");
    let mut store = open();
    put(&store, "/a", "1").await;
    put(&store, "/b", "2").await;
    put(&store, "/a", "3").await;
    let delete = Operation::Delete {
        key: "/b".into(),
        precondition: Precondition::Any,
    };
    let create = Operation::Put {
        key: "/c".into(),
        value: "4".into(),
        precondition: Precondition::Absent,
    };
    store.transact(vec![delete, create]).await.expect("written");
    put(&store, "/b", "5").await;
    let deleted = store.delete("/b", Precondition::Any).await;
    assert_eq!(deleted.expect("there").revision, Revision(6));
    for through in 0..=6 {
        store.compact(Revision(through)).await.expect("compacted");
        let before = content(&store);
        store.close().await;
        store = open();
        assert_eq!(content(&store), before, "compacted through {through}");
    }
    // The newest record is forgotten, its revision is not.
    assert_eq!(store.statistics().history_events, 0);
    assert_eq!(put(&store, "/b", "7").await, Revision(7));
    let created = store.get("/b").expect("just written");
    assert_eq!((created.create_revision, created.version), (Revision(7), 1));
}

#[tokio::test]
async fn a_watch_resumes_over_a_restart() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let open = || Store::open(folder.path(), Options::default()).expect("a store");
    let store = open();
    let mut watcher = store.watch("/", Revision::EMPTY).expect("retained");
    for index in 0..10 {
        put(&store, &format!("/{}", index % 3), &index.to_string()).await;
    }
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(watcher.next().await.expect("a live watch"));
    }
    let resume_from = seen.last().expect("four events").revision;
    assert_eq!(watcher.progress(), resume_from);
    store.close().await;

    let store = open();
    put(&store, "/0", "after").await;
    let mut watcher = store.watch("/", resume_from).expect("retained");
    seen.extend(drain(&mut watcher));
    let revisions: Vec<_> = seen.iter().map(|event| event.revision.0).collect();
    assert_eq!(revisions, (1..=11).collect::<Vec<_>>());
    let previous: Vec<_> = seen
        .iter()
        .map(|event| event.previous().map_or(0, |object| object.mod_revision.0))
        .collect();
    assert_eq!(previous, [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 10]);
}

#[tokio::test]
async fn one_folder_has_one_store() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::open(folder.path(), Options::default()).expect("a new store");
    let error =
        Store::open(folder.path(), Options::default()).expect_err("a second store in one folder");
    assert!(matches!(error, OpenError::Locked { .. }), "{error:?}");
    assert!(error.to_string().contains("in use by another process"));
    put(&store, "/a", "unharmed").await;
    store.close().await;
    let store = Store::open(folder.path(), Options::default()).expect("free again");
    assert_eq!(store.count("/"), 1);
}

#[tokio::test]
async fn only_the_owner_can_read() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let folder = parent.path().join("deep/store");
    let store = Store::open(&folder, Options::default()).expect("a new store");
    put(&store, "/secret", "x").await;
    let mode = |path: &std::path::Path| {
        let metadata = std::fs::metadata(path).expect("it exists");
        metadata.permissions().mode() & 0o777
    };
    assert_eq!(mode(&folder), 0o700);
    let mut files = 0;
    for entry in std::fs::read_dir(&folder).expect("a folder") {
        assert_eq!(mode(&entry.expect("an entry").path()), 0o600);
        files += 1;
    }
    assert_eq!(files, 2, "the database and the lock");
}

#[tokio::test]
async fn a_folder_that_cannot_be_made_is_named() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let file = parent.path().join("file");
    std::fs::write(&file, "in the way").expect("a file");
    let error =
        Store::open(file.join("store"), Options::default()).expect_err("a file is in the way");
    assert!(matches!(error, OpenError::Folder { .. }), "{error:?}");
    assert!(error.to_string().contains("file/store"), "{error}");
}

#[tokio::test]
async fn dropping_every_handle_frees_the_folder() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::open(folder.path(), Options::default()).expect("a new store");
    let mut watcher = store.watch("/", Revision::EMPTY).expect("retained");
    put(&store, "/a", "1").await;
    drop(store);
    watcher.next().await.expect("durable before the end");
    assert!(watcher.next().await.is_err(), "the end");
    // The watch ends after the folder is free.
    let store = Store::open(folder.path(), Options::default()).expect("free again");
    assert_eq!(store.count("/"), 1);
}

#[tokio::test]
async fn overwriting_for_ever_takes_no_more_space() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options {
        history_events_max: 100,
        ..Options::default()
    };
    let store = Store::open(folder.path(), options).expect("a new store");
    let value = "x".repeat(1024);
    for _ in 0..60 {
        let mut writes = tokio::task::JoinSet::new();
        for key in 0..100 {
            let (store, value) = (store.clone(), value.clone());
            writes.spawn(async move { put(&store, &format!("/{key}"), &value).await });
        }
        writes.join_all().await;
    }
    // 6 MB were written; 100 objects and 100 superseded values are left.
    let file = std::fs::metadata(folder.path().join("store.redb")).expect("the database");
    assert!(file.len() < 3 << 20, "{} bytes", file.len());
}
