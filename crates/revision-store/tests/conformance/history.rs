//! The retained window: what is kept, what is forgotten, and why.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use revision_store::{Clock, CompactError, Options, Range, ReadError, Revision, Store};

use crate::{Fixture, at, behaviours, delete, drained, listed, put};

behaviours!(
    compaction_forgets_the_past_and_keeps_the_present,
    compaction_of_the_future_is_refused,
    compaction_works_through_a_long_history,
    the_window_is_bounded_by_count,
    the_window_is_bounded_by_bytes,
    the_window_is_bounded_by_age,
    a_clock_set_back_does_no_harm,
    statistics_add_up,
);

async fn compaction_forgets_the_past_and_keeps_the_present(fixture: Fixture) {
    let store = fixture.store();
    put(&store, "/a", "1").await;
    put(&store, "/b", "2").await;
    put(&store, "/a", "3").await;
    delete(&store, "/b").await;
    put(&store, "/a", "5").await;
    store.compact(Revision(3)).await.expect("compaction");
    for requested in [0, 1, 2] {
        let expected = ReadError::Compacted {
            requested: Revision(requested),
            oldest: Revision(3),
        };
        assert_eq!(store.range(&at("/", requested)).unwrap_err(), expected);
        assert_eq!(store.watch("/", Revision(requested)).err(), Some(expected));
        let got = store.get_at("/a", Revision(requested));
        assert_eq!(got.unwrap_err(), expected);
    }
    assert_eq!(listed(&store, &at("/", 3)), "/a=3 /b=2");
    assert_eq!(listed(&store, &at("/", 4)), "/a=3");
    assert_eq!(listed(&store, &at("/", 5)), "/a=5");
    // The events after the compaction still know what they replaced.
    let mut watcher = store.watch("/", Revision(3)).expect("the oldest state");
    assert_eq!(
        drained(&mut watcher),
        ["4 delete /b (was 2)", "5 put /a=5 (was 3)"]
    );
    // Again, and less: nothing to do. All of it: only the present is left.
    store.compact(Revision(3)).await.expect("compaction");
    store.compact(Revision(1)).await.expect("compaction");
    store.compact(Revision(5)).await.expect("compaction");
    assert_eq!(store.statistics().history_events, 0);
    assert_eq!(listed(&store, &Range::default()), "/a=5");
    assert_eq!(put(&store, "/b", "6").await, Revision(6));
}

async fn compaction_of_the_future_is_refused(fixture: Fixture) {
    let store = fixture.store();
    put(&store, "/a", "1").await;
    let error = store.compact(Revision(2)).await.unwrap_err();
    assert!(matches!(error, CompactError::Future { .. }), "{error:?}");
    assert_eq!(store.compacted_revision(), Revision::EMPTY);
}

async fn compaction_works_through_a_long_history(fixture: Fixture) {
    let store = fixture.store();
    let writes = 2_000;
    let mut tasks = tokio::task::JoinSet::new();
    for index in 0..writes {
        let store = store.clone();
        tasks.spawn(async move { put(&store, &format!("/{}", index % 7), "x").await });
    }
    tasks.join_all().await;
    // Several chunks, with writes in between.
    let (compacted, revision) = tokio::join!(
        store.compact(Revision(writes - 10)),
        put(&store, "/late", "x")
    );
    compacted.expect("compaction");
    assert_eq!(revision, Revision(writes + 1));
    assert_eq!(store.compacted_revision(), Revision(writes - 10));
    assert_eq!(store.statistics().history_events, 11);
    assert_eq!(store.count("/"), 8);
}

/// Waits for what the writer does in its own time.
async fn wait_until(store: &Store, what: &str, condition: impl Fn(&Store) -> bool) {
    let waiting = async {
        while !condition(store) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting)
        .await
        .unwrap_or_else(|_| panic!("{what}: {:?}", store.statistics()));
}

async fn the_window_is_bounded_by_count(fixture: Fixture) {
    let store = fixture.store_with(Options {
        history_events_max: 10,
        ..Options::default()
    });
    for index in 0..100 {
        put(&store, &format!("/{index}"), "x").await;
    }
    wait_until(&store, "ten events are left", |store| {
        store.statistics().history_events == 10
    })
    .await;
    assert_eq!(store.compacted_revision(), Revision(90));
    assert_eq!(store.count("/"), 100);
}

async fn the_window_is_bounded_by_bytes(fixture: Fixture) {
    let store = fixture.store_with(Options {
        history_bytes_max: 10_000,
        ..Options::default()
    });
    let value = "x".repeat(1_000);
    // New keys supersede nothing.
    for index in 0..50 {
        put(&store, &format!("/{index}"), &value).await;
    }
    assert_eq!(store.statistics().history_events, 50);
    for index in 0..50 {
        put(&store, &format!("/{index}"), &value).await;
    }
    wait_until(&store, "ten superseded values are left", |store| {
        store.statistics().history_bytes == 10_000
    })
    .await;
    assert_eq!(store.statistics().history_events, 10);
}

async fn the_window_is_bounded_by_age(fixture: Fixture) {
    let (seconds, clock) = manual_clock();
    let store = fixture.store_with(Options {
        history_age_max: Duration::from_secs(60),
        maintenance_interval: Duration::from_millis(1),
        clock,
        ..Options::default()
    });
    put(&store, "/a", "at 1000").await;
    seconds.store(1_030, Ordering::Relaxed);
    put(&store, "/a", "at 1030").await;
    seconds.store(1_060, Ordering::Relaxed);
    put(&store, "/a", "at 1060").await;
    assert_eq!(store.compacted_revision(), Revision::EMPTY);
    // Time passes, and nobody writes.
    for (now, compacted) in [(1_061, 1), (1_091, 2), (2_000, 3)] {
        seconds.store(now, Ordering::Relaxed);
        wait_until(&store, "old history is gone", |store| {
            store.compacted_revision() == Revision(compacted)
        })
        .await;
    }
    assert_eq!(listed(&store, &Range::default()), "/a=at 1060");
}

async fn a_clock_set_back_does_no_harm(fixture: Fixture) {
    let (seconds, clock) = manual_clock();
    let store = fixture.store_with(Options {
        history_age_max: Duration::from_secs(60),
        maintenance_interval: Duration::from_millis(1),
        clock,
        ..Options::default()
    });
    put(&store, "/a", "1").await;
    seconds.store(10, Ordering::Relaxed);
    put(&store, "/a", "2").await;
    // The second write counts as no older than the first, so both expire in order.
    seconds.store(1_059, Ordering::Relaxed);
    put(&store, "/a", "3").await;
    assert_eq!(store.compacted_revision(), Revision::EMPTY);
    seconds.store(1_061, Ordering::Relaxed);
    wait_until(&store, "the first two are gone", |store| {
        store.compacted_revision() == Revision(2)
    })
    .await;
}

fn manual_clock() -> (Arc<AtomicU64>, Clock) {
    let seconds = Arc::new(AtomicU64::new(1_000));
    let reading = seconds.clone();
    let clock =
        Clock::new(move || UNIX_EPOCH + Duration::from_secs(reading.load(Ordering::Relaxed)));
    (seconds, clock)
}

async fn statistics_add_up(fixture: Fixture) {
    let store = fixture.store();
    put(&store, "/a", "12345").await;
    put(&store, "/b", "123").await;
    put(&store, "/a", "1").await;
    delete(&store, "/b").await;
    let _watcher = store.watch("/", Revision::EMPTY).expect("retained");
    let statistics = store.statistics();
    assert_eq!(statistics.current_revision, Revision(4));
    assert_eq!(statistics.compacted_revision, Revision::EMPTY);
    assert_eq!((statistics.objects, statistics.object_bytes), (1, 1));
    assert_eq!(
        (statistics.history_events, statistics.history_bytes),
        (4, 8)
    );
    assert_eq!(statistics.watchers, 1);
}
