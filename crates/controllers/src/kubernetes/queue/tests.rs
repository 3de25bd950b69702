use super::*;

const LANES: [Lane; 2] = [
    Lane {
        name: "attach",
        in_flight_max: 2,
    },
    Lane {
        name: "detach",
        in_flight_max: 1,
    },
];
const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(300),
};

fn state() -> State<&'static str> {
    State {
        order: vec![VecDeque::new(), VecDeque::new()],
        waiting: BTreeMap::new(),
        in_flight: BTreeMap::new(),
        counts: vec![0, 0],
        dirty: BTreeMap::new(),
        due: BTreeSet::new(),
        due_of: BTreeMap::new(),
        failures: BTreeMap::new(),
    }
}

fn take(state: &mut State<&'static str>, now: Instant) -> String {
    let (ready, _) = state.take_ready(&LANES, now);
    let words: Vec<String> = ready
        .iter()
        .map(|(key, lane)| format!("{key}@{lane}"))
        .collect();
    words.join(" ")
}

#[test]
fn lanes_are_bounded_apart_and_in_order() {
    let (mut state, now) = (state(), Instant::now());
    for key in ["c", "a", "b"] {
        state.add(key, 0, now);
    }
    state.add("a", 0, now);
    state.add("x", 1, now);
    assert_eq!(take(&mut state, now), "c@0 a@0 x@1");
    assert_eq!(take(&mut state, now), "");
    state.finish(&"c", Outcome::Done, BACKOFF, now);
    assert_eq!(take(&mut state, now), "b@0");
}

#[test]
fn a_key_is_worked_on_once_at_a_time_whatever_its_lane() {
    let (mut state, now) = (state(), Instant::now());
    state.add("a", 0, now);
    assert_eq!(take(&mut state, now), "a@0");
    state.add("a", 1, now);
    assert_eq!(
        take(&mut state, now),
        "",
        "its detach waits for its attach to end"
    );
    state.finish(&"a", Outcome::Failed, BACKOFF, now);
    assert_eq!(take(&mut state, now), "a@1");
}

#[test]
fn a_waiting_key_changes_lanes() {
    let (mut state, now) = (state(), Instant::now());
    state.add("a", 0, now);
    state.add("a", 1, now);
    assert_eq!(take(&mut state, now), "a@1");
}

#[test]
fn failures_wait_longer_each_time_and_success_forgets_them() {
    let (mut state, mut now) = (state(), Instant::now());
    state.add("a", 0, now);
    for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
        assert_eq!(take(&mut state, now), "a@0");
        state.finish(&"a", Outcome::Failed, BACKOFF, now);
        let (ready, due) = state.take_ready(&LANES, now);
        assert!(ready.is_empty());
        assert_eq!(due, Some(now + Duration::from_secs(seconds)));
        now += Duration::from_secs(seconds);
    }
    assert_eq!(take(&mut state, now), "a@0");
    state.finish(&"a", Outcome::Done, BACKOFF, now);
    assert!(state.failures.is_empty());
    assert_eq!(
        take(&mut state, now + Duration::from_secs(1000)),
        "",
        "nothing is left to do"
    );
}

#[test]
fn news_ends_a_delay() {
    let (mut state, now) = (state(), Instant::now());
    state.add_at("a", 0, now + Duration::from_secs(60));
    state.add_at("a", 0, now + Duration::from_secs(90));
    assert_eq!(state.due.len(), 1);
    state.add("a", 0, now);
    assert!(state.due.is_empty());
    assert_eq!(take(&mut state, now), "a@0");
}

#[tokio::test]
async fn one_panic_does_not_stop_the_others() {
    let queue: Queue<&'static str> = Queue::new("test", &LANES, BACKOFF, &Metrics::default());
    let (stop, seen) = (CancellationToken::new(), Arc::new(Mutex::new(Vec::new())));
    queue.add("bad", 0);
    queue.add("good", 0);
    let runner = {
        let (queue, stop, seen) = (queue.clone(), stop.clone(), Arc::clone(&seen));
        tokio::spawn(async move {
            let work = |key: &'static str, _| {
                let (seen, stop) = (Arc::clone(&seen), stop.clone());
                async move {
                    assert!(key != "bad", "as the test wants it");
                    seen.lock().expect("not poisoned").push(key);
                    stop.cancel();
                    Outcome::Done
                }
            };
            queue.run(work, stop.clone()).await;
        })
    };
    runner.await.expect("the loop outlives a panic of its work");
    assert_eq!(*seen.lock().expect("not poisoned"), ["good"]);
}
