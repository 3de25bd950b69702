//! Watches from history into the present.

use revision_store::{Operation, Options, Precondition, Revision, WatchError};

use crate::{Fixture, behaviours, delete, drained, put, shown};

behaviours!(
    a_watch_tells_history_then_news,
    a_watch_sees_only_its_prefix,
    a_watch_waits_for_the_next_event,
    a_transaction_arrives_whole,
    progress_follows_the_whole_store,
    progress_never_passes_an_unseen_event,
    a_sleeper_with_nothing_to_see_is_not_lagged,
    a_slow_watcher_is_told_that_it_lagged,
    watchers_of_one_prefix_may_start_anywhere,
    a_dropped_watch_leaves_nothing,
    closing_ends_every_watch,
);

async fn a_watch_tells_history_then_news(fixture: Fixture) {
    let store = fixture.store();
    put(&store, "/a", "1").await;
    put(&store, "/a", "2").await;
    delete(&store, "/a").await;
    put(&store, "/a", "4").await;
    let all = [
        "1 put /a=1 (new)",
        "2 put /a=2 (was 1)",
        "3 delete /a (was 2)",
        "4 put /a=4 (new)",
        "5 put /a=5 (was 4)",
    ];
    let mut watchers: Vec<_> = (0..=4)
        .map(|after| store.watch("/a", Revision(after)).expect("retained"))
        .collect();
    put(&store, "/a", "5").await;
    for (after, watcher) in watchers.iter_mut().enumerate() {
        assert_eq!(drained(watcher), all[after..], "after {after}");
        assert_eq!(drained(watcher), [""; 0], "nothing twice");
    }
}

async fn a_watch_sees_only_its_prefix(fixture: Fixture) {
    let store = fixture.store();
    let mut watchers = ["", "/a/", "/a/1", "/none"]
        .map(|prefix| store.watch(prefix, Revision::EMPTY).expect("retained"));
    for key in ["/a", "/a/1", "/a/10", "/b/1"] {
        put(&store, key, "x").await;
    }
    let seen = watchers.each_mut().map(|watcher| {
        let events = drained(watcher);
        let revisions: Vec<_> = events.iter().map(|event| &event[..1]).collect();
        revisions.join(" ")
    });
    assert_eq!(seen, ["1 2 3 4", "2 3", "2 3", ""]);
}

async fn a_watch_waits_for_the_next_event(fixture: Fixture) {
    let store = fixture.store();
    let mut watcher = store.watch("/a", Revision::EMPTY).expect("retained");
    let waiting = tokio::spawn(async move { watcher.next().await });
    tokio::task::yield_now().await;
    put(&store, "/b", "not this").await;
    put(&store, "/a", "this").await;
    let event = waiting.await.unwrap().expect("a live watch");
    assert_eq!(shown(&event), "2 put /a=this (new)");
}

async fn a_transaction_arrives_whole(fixture: Fixture) {
    // A batch of one event still hands out whole revisions.
    let store = fixture.store_with(Options {
        watch_batch_events_max: 1,
        ..Options::default()
    });
    let mut watcher = store.watch("/", Revision::EMPTY).expect("retained");
    let puts = ["/c", "/a", "/b"].map(|key| Operation::Put {
        key: key.into(),
        value: "1".into(),
        precondition: Precondition::Absent,
    });
    store.transact(puts.into()).await.expect("all are absent");
    let first = watcher.next().await.expect("a live watch");
    assert_eq!(shown(&first), "1 put /c=1 (new)");
    assert_eq!(
        watcher.progress(),
        Revision::EMPTY,
        "two of three are unseen"
    );
    assert_eq!(
        drained(&mut watcher),
        ["1 put /a=1 (new)", "1 put /b=1 (new)"]
    );
    assert_eq!(watcher.progress(), Revision(1));
}

async fn progress_follows_the_whole_store(fixture: Fixture) {
    let store = fixture.store();
    let watcher = store.watch("/quiet/", Revision::EMPTY).expect("retained");
    assert_eq!(watcher.progress(), Revision::EMPTY);
    for revision in 1..=5 {
        put(&store, "/busy", "x").await;
        assert_eq!(watcher.progress(), Revision(revision));
    }
}

async fn progress_never_passes_an_unseen_event(fixture: Fixture) {
    let store = fixture.store();
    let mut watcher = store.watch("/a", Revision::EMPTY).expect("retained");
    put(&store, "/b", "1").await;
    put(&store, "/a", "2").await;
    put(&store, "/b", "3").await;
    put(&store, "/a", "4").await;
    put(&store, "/b", "5").await;
    assert_eq!(watcher.progress(), Revision(1));
    watcher.next().await.expect("a live watch");
    assert_eq!(watcher.progress(), Revision(3));
    watcher.next().await.expect("a live watch");
    assert_eq!(watcher.progress(), Revision(5));
    assert!(watcher.try_next().unwrap().is_none());
}

fn short_history() -> Options {
    Options {
        history_events_max: 10,
        watch_batch_events_max: 2,
        ..Options::default()
    }
}

async fn a_sleeper_with_nothing_to_see_is_not_lagged(fixture: Fixture) {
    let store = fixture.store_with(short_history());
    let mut watcher = store.watch("/quiet/", Revision::EMPTY).expect("retained");
    for _ in 0..100 {
        put(&store, "/busy", "x").await;
    }
    assert!(store.compacted_revision() > Revision(80));
    put(&store, "/quiet/a", "1").await;
    assert_eq!(drained(&mut watcher), ["101 put /quiet/a=1 (new)"]);
}

async fn a_slow_watcher_is_told_that_it_lagged(fixture: Fixture) {
    let store = fixture.store_with(short_history());
    let mut watcher = store.watch("/", Revision::EMPTY).expect("retained");
    for revision in 1..=4 {
        put(&store, "/a", &revision.to_string()).await;
    }
    watcher.next().await.expect("a live watch");
    for _ in 0..100 {
        put(&store, "/a", "x").await;
    }
    assert_eq!(watcher.progress(), Revision(1));
    // What it had taken already, it still gets; then the gap is reported, again and again.
    let event = watcher.next().await.expect("taken before the gap");
    assert_eq!(shown(&event), "2 put /a=2 (was 1)");
    for _ in 0..2 {
        let error = watcher.next().await.unwrap_err();
        let WatchError::Lagged { seen, dropped } = error else {
            panic!("expected to have lagged, got {error:?}");
        };
        assert_eq!(seen, Revision(2));
        assert!(dropped > Revision(80), "{dropped}");
    }
    assert_eq!(watcher.progress(), Revision(2));
}

async fn watchers_of_one_prefix_may_start_anywhere(fixture: Fixture) {
    let store = fixture.store();
    for revision in 1..=6 {
        let key = if revision % 2 == 0 { "/a" } else { "/b" };
        put(&store, key, &revision.to_string()).await;
    }
    // Each joins the channel that the one before has opened; some reach further back, some less far.
    let mut watchers = [6, 4, 5, 1, 0, 3]
        .map(|after| (after, store.watch("/a", Revision(after)).expect("retained")));
    put(&store, "/a", "7").await;
    for (after, watcher) in &mut watchers {
        let expected = [2_u64, 4, 6, 7].iter().filter(|r| *r > after).count();
        assert_eq!(drained(watcher).len(), expected, "after {after}");
    }
}

async fn a_dropped_watch_leaves_nothing(fixture: Fixture) {
    let store = fixture.store();
    let first = store.watch("/a", Revision::EMPTY).expect("retained");
    let second = store.watch("/a", Revision::EMPTY).expect("retained");
    assert_eq!(store.statistics().watchers, 2);
    drop(first);
    put(&store, "/a", "1").await;
    drop(second);
    assert_eq!(store.statistics().watchers, 0);
    let mut third = store.watch("/a", Revision::EMPTY).expect("retained");
    assert_eq!(drained(&mut third), ["1 put /a=1 (new)"]);
}

async fn closing_ends_every_watch(fixture: Fixture) {
    let store = fixture.store();
    let mut behind = store.watch("/", Revision::EMPTY).expect("retained");
    put(&store, "/a", "1").await;
    let mut waiting = store.watch("/", Revision(1)).expect("retained");
    let waiting = tokio::spawn(async move { waiting.next().await });
    tokio::task::yield_now().await;
    store.clone().close().await;
    assert_eq!(waiting.await.unwrap(), Err(WatchError::Closed));
    // What was durable before the end is still told.
    assert!(behind.next().await.is_ok());
    assert_eq!(behind.next().await, Err(WatchError::Closed));
    let mut late = store.watch("/", Revision(1)).expect("retained");
    assert_eq!(late.next().await, Err(WatchError::Closed));
}
