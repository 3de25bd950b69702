//! How fast, how large: `cargo bench -p revision-store`.
//!
//! Prints a table; compare runs on the same machine only. Durable numbers depend on how fast the disk under
//! the temporary folder answers fdatasync (set `TMPDIR` to measure another one).

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use revision_store::{Options, Precondition, Range, Revision, Store, Watcher};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

const VALUE_BYTES: usize = 1024;
const OBJECTS: u64 = 100_000;
const WATCHERS: usize = 1_000;
/// Set for the child processes that measure opening: time and memory of a fresh process.
const CHILD_FOLDER: &str = "REVISION_STORE_BENCH_FOLDER";
const CHILD_DIRTY: &str = "REVISION_STORE_BENCH_DIRTY";

fn main() {
    if let Some(folder) = std::env::var_os(CHILD_FOLDER) {
        open_and_report(Path::new(&folder));
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    println!("{:<44} {:>12} {:>10} {:>10}", "", "rate", "p50", "p99");
    for writers in [1, 16, 64] {
        puts(&runtime, writers);
    }
    fan_out(&runtime);
    large_store(&runtime);
}

fn key(index: u64) -> String {
    format!("/registry/longhorn.io/volumes/longhorn-system/volume-{index:08}")
}

/// Incompressible enough, and different for each object.
fn value(index: u64) -> Vec<u8> {
    let mut state = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::from_fn(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        Some(state.to_le_bytes())
    });
    words.flatten().take(VALUE_BYTES).collect()
}

/// Durable creates by writers that each wait for their answer.
fn puts(runtime: &Runtime, writers: u64) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::open(folder.path(), Options::default()).expect("a store");
    let started = Instant::now();
    let latencies = runtime.block_on(create(&store, writers, Duration::from_secs(3), u64::MAX));
    let rate = latencies.len() as f64 / started.elapsed().as_secs_f64();
    let title = format!("durable creates of 1 KiB, {writers} writers");
    print_row(&title, &format!("{rate:.0}/s"), latencies);
    runtime.block_on(store.close());
}

async fn create(
    store: &Store,
    writers: u64,
    duration_max: Duration,
    count_max: u64,
) -> Vec<Duration> {
    let next = Arc::new(AtomicU64::new(0));
    let deadline = Instant::now() + duration_max;
    let mut tasks = JoinSet::new();
    for _ in 0..writers {
        let store = store.clone();
        let next = next.clone();
        tasks.spawn(async move {
            let mut latencies = Vec::new();
            while Instant::now() < deadline {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count_max {
                    break;
                }
                let started = Instant::now();
                let put = store.put(key(index), value(index), Precondition::Absent);
                put.await.expect("a durable create");
                latencies.push(started.elapsed());
            }
            latencies
        });
    }
    tasks.join_all().await.concat()
}

/// One durable change until the last of many watchers has it.
fn fan_out(runtime: &Runtime) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::open(folder.path(), Options::default()).expect("a store");
    let latencies = runtime.block_on(async {
        let (seen, mut arrivals) = mpsc::unbounded_channel();
        for _ in 0..WATCHERS {
            let watcher = store
                .watch("/registry/", Revision::EMPTY)
                .expect("retained");
            tokio::spawn(follow(watcher, seen.clone()));
        }
        let mut latencies = Vec::new();
        for round in 0..200 {
            let started = Instant::now();
            let put = store.put(key(round % 10), value(round), Precondition::Any);
            let revision = put.await.expect("a durable put").mod_revision;
            for _ in 0..WATCHERS {
                assert_eq!(arrivals.recv().await, Some(revision));
            }
            latencies.push(started.elapsed());
        }
        latencies
    });
    let title = format!("one put seen by {WATCHERS} watchers");
    let events = WATCHERS as f64 * latencies.len() as f64;
    let rate = events / latencies.iter().sum::<Duration>().as_secs_f64();
    print_row(&title, &format!("{rate:.0} ev/s"), latencies);
    runtime.block_on(store.close());
}

async fn follow(mut watcher: Watcher, seen: mpsc::UnboundedSender<Revision>) {
    while let Ok(event) = watcher.next().await {
        let _ = seen.send(event.revision);
    }
}

/// Opening and listing with many objects.
fn large_store(runtime: &Runtime) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::open(folder.path(), Options::default()).expect("a store");
    let started = Instant::now();
    let latencies = runtime.block_on(create(&store, 256, Duration::from_secs(600), OBJECTS));
    let rate = latencies.len() as f64 / started.elapsed().as_secs_f64();
    print_row(
        "filling with 100,000 objects, 256 writers",
        &format!("{rate:.0}/s"),
        latencies,
    );

    let timed = |range: &Range<'_>, rounds: usize| -> Vec<Duration> {
        let list = |_| {
            let started = Instant::now();
            std::hint::black_box(store.range(range).expect("the present"));
            started.elapsed()
        };
        (0..rounds).map(list).collect()
    };
    let all = Range::prefix("/registry/");
    print_row("list of 100,000", "", timed(&all, 20));
    let ten_thousand = key(10_000);
    let prefix = &ten_thousand[..ten_thousand.len() - 4];
    let page = store.range(&Range::prefix(prefix)).expect("the present");
    assert_eq!(page.objects.len(), 10_000);
    print_row("list of 10,000", "", timed(&Range::prefix(prefix), 50));
    let page = Range {
        limit: Some(500),
        ..all
    };
    print_row("page of 500 out of 100,000", "", timed(&page, 50));
    let past = Range {
        at: Some(Revision(OBJECTS - 5_000)),
        ..page
    };
    print_row("page of 500, 5,000 writes ago", "", timed(&past, 50));
    runtime.block_on(store.close());

    let bytes = std::fs::metadata(folder.path().join("store.redb"))
        .expect("the database")
        .len();
    println!("database file: {} MiB", bytes >> 20);
    for title in ["open after a clean close", "open again"] {
        run_child(title, folder.path(), false);
    }
    // Writes a little and aborts without closing, as a kill would.
    run_child("open, then abort", folder.path(), true);
    run_child("open after the abort", folder.path(), false);
}

fn run_child(title: &str, folder: &Path, is_dirty: bool) {
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child.env(CHILD_FOLDER, folder);
    if is_dirty {
        child.env(CHILD_DIRTY, "1");
    }
    let output = child.output().expect("this program runs itself");
    let report = String::from_utf8_lossy(&output.stdout);
    println!("{title:<44} {}", report.trim());
}

fn open_and_report(folder: &Path) {
    let started = Instant::now();
    let store = Store::open(folder, Options::default()).expect("a store");
    let elapsed = started.elapsed();
    let objects = store.count("/");
    println!(
        "{objects} objects in {elapsed:.0?}, resident {}",
        resident()
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        if std::env::var_os(CHILD_DIRTY).is_some() {
            for index in 0..100 {
                let put = store.put(key(index), value(index + 1), Precondition::Any);
                put.await.expect("a durable put");
            }
            std::process::abort();
        }
        store.close().await;
    });
}

fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok())
            .map_or_else(|| "?".to_owned(), |kib| format!("{} MiB", kib >> 10))
    };
    format!("{} (peak {})", field("VmRSS:"), field("VmHWM:"))
}

fn print_row(title: &str, rate: &str, mut latencies: Vec<Duration>) {
    latencies.sort();
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];
    println!(
        "{title:<44} {rate:>12} {:>10} {:>10}",
        format!("{:.2?}", at(0.50)),
        format!("{:.2?}", at(0.99))
    );
}
