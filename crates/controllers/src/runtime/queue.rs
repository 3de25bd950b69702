//! A work queue of keys: each key is worked on by one task at a time, at once, and again if it was added meanwhile.
//!
//! There is no debounce: a key that is added while nobody works on it starts in the same instant.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::{LaneStatus, Metrics, Rounds};

/// How soon a key that failed is tried again: at first and at most.
const RETRY_MIN: Duration = Duration::from_millis(2);
const RETRY_MAX: Duration = Duration::from_secs(15);

/// What is to be done next with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing, until something changes.
    Wait,
    /// Look again after this long even if nothing changes.
    After(Duration),
    /// It failed, or what was decided on has changed meanwhile: try again, later each time.
    Retry,
}

/// Shared by those who add and the one who runs; cheap to clone.
#[derive(Clone, Default)]
pub struct Queue {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
    rounds: Option<Rounds>,
}

#[derive(Default)]
struct State {
    /// With the time since when, so that the first is the oldest.
    waiting: VecDeque<(String, Instant)>,
    /// What is in `waiting`, or must be put there when its work ends.
    dirty: HashSet<String>,
    active: HashMap<String, Instant>,
    due: BTreeSet<(Instant, String)>,
    due_of: HashMap<String, Instant>,
    failures: BTreeMap<String, u32>,
}

impl Queue {
    /// What becomes of its keys is counted under this name.
    #[must_use]
    pub fn named(name: &'static str, metrics: &Metrics) -> Self {
        let shared = Arc::new(Shared {
            rounds: Some(metrics.rounds(name)),
            ..Shared::default()
        });
        let counted = Arc::downgrade(&shared);
        metrics.queues.watch(name, move || {
            let shared = counted.upgrade()?;
            let status = Self { shared }.state().status(name, Instant::now());
            Some(vec![status])
        });
        Self { shared }
    }

    pub fn add(&self, key: impl Into<String>) {
        self.state().add(key.into(), Instant::now());
        self.shared.changed.notify_one();
    }

    /// Adds the key after a while, or sooner if it is due sooner already.
    pub fn add_after(&self, key: impl Into<String>, wait: Duration) {
        self.state().add_at(key.into(), Instant::now() + wait);
        self.shared.changed.notify_one();
    }

    /// Works until cancelled, on at most `workers` keys at a time. Work that is under way is dropped then.
    pub async fn run<F, W>(&self, workers: usize, stop: CancellationToken, work: F)
    where
        F: Fn(String) -> W,
        W: Future<Output = Next> + Send + 'static,
    {
        let mut tasks: JoinSet<(String, Next)> = JoinSet::new();
        loop {
            while tasks.len() < workers
                && let Some(key) = self.state().take(Instant::now())
            {
                let result = work(key.clone());
                tasks.spawn(async move { (key, result.await) });
            }
            let next_due = self.state().next_due();
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.shared.changed.notified() => {}
                Some(ended) = tasks.join_next() => match ended {
                    Ok((key, next)) => self.done(&key, next),
                    Err(error) => {
                        if let Some(rounds) = &self.shared.rounds {
                            rounds.ended(Duration::ZERO, true);
                        }
                        // A key whose work panicked stays active for ever, which is what we want of it: it fails alone.
                        tracing::error!(error = &error as &dyn std::error::Error, "a controller's work ended by a defect; its object is left alone");
                    }
                },
                () = sleep_until(next_due) => {}
            }
        }
    }

    fn done(&self, key: &str, next: Next) {
        let now = Instant::now();
        let mut state = self.state();
        if let (Some(rounds), Some(began)) = (&self.shared.rounds, state.active.get(key)) {
            rounds.ended(now.duration_since(*began), next == Next::Retry);
        }
        state.done(key, next, now);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

impl State {
    fn add(&mut self, key: String, now: Instant) {
        if self.dirty.insert(key.clone()) && !self.active.contains_key(&key) {
            self.waiting.push_back((key, now));
        }
    }

    fn status(&self, name: &'static str, now: Instant) -> LaneStatus {
        let age = |since: Option<&Instant>| {
            since.map_or(Duration::ZERO, |since| now.duration_since(*since))
        };
        LaneStatus {
            name,
            waiting: self.waiting.len(),
            in_flight: self.active.len(),
            oldest_waiting: age(self.waiting.front().map(|(_, since)| since)),
            oldest_in_flight: age(self.active.values().min()),
        }
    }

    fn add_at(&mut self, key: String, at: Instant) {
        if let Some(known) = self.due_of.get(&key).copied() {
            if known <= at {
                return;
            }
            self.due.remove(&(known, key.clone()));
        }
        self.due_of.insert(key.clone(), at);
        self.due.insert((at, key));
    }

    fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    fn take(&mut self, now: Instant) -> Option<String> {
        while let Some((at, _)) = self.due.first()
            && *at <= now
            && let Some((_, key)) = self.due.pop_first()
        {
            self.due_of.remove(&key);
            self.add(key, now);
        }
        let (key, _) = self.waiting.pop_front()?;
        self.dirty.remove(&key);
        self.active.insert(key.clone(), now);
        Some(key)
    }

    fn done(&mut self, key: &str, next: Next, now: Instant) {
        self.active.remove(key);
        if next != Next::Retry {
            self.failures.remove(key);
        }
        match next {
            Next::Wait => {}
            Next::After(wait) => self.add_at(key.to_owned(), now + wait),
            Next::Retry => {
                let failures = self.failures.entry(key.to_owned()).or_default();
                let doublings = (*failures).min(16);
                *failures += 1;
                let wait = RETRY_MIN.saturating_mul(1 << doublings).min(RETRY_MAX);
                self.add_at(key.to_owned(), now + wait);
            }
        }
        if self.dirty.contains(key) {
            self.waiting.push_back((key.to_owned(), now));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_key_that_is_added_during_its_work_is_worked_on_once_more() {
        let (mut state, now) = (State::default(), Instant::now());
        state.add("a".into(), now);
        state.add("a".into(), now);
        assert_eq!(state.take(now).as_deref(), Some("a"));
        state.add("a".into(), now);
        assert_eq!(state.take(now), None, "one at a time");
        state.done("a", Next::Wait, now);
        assert_eq!(state.take(now).as_deref(), Some("a"));
        state.done("a", Next::Wait, now);
        assert_eq!(state.take(now), None);
    }

    #[test]
    fn the_sooner_of_two_times_counts() {
        let (mut state, now) = (State::default(), Instant::now());
        let second = Duration::from_secs(1);
        state.add_at("a".into(), now + 3 * second);
        state.add_at("a".into(), now + second);
        state.add_at("a".into(), now + 2 * second);
        assert_eq!(state.next_due(), Some(now + second));
        assert_eq!(state.take(now), None);
        assert_eq!(state.take(now + second).as_deref(), Some("a"));
        assert_eq!(state.next_due(), None);
    }

    #[test]
    fn failures_wait_longer_each_time_and_a_success_forgets_them() {
        let (mut state, mut now) = (State::default(), Instant::now());
        let mut waits = Vec::new();
        state.add("a".into(), now);
        for next in [
            Next::Retry,
            Next::Retry,
            Next::Retry,
            Next::Wait,
            Next::Retry,
        ] {
            state.take(now).expect("a key");
            state.done("a", next, now);
            match state.next_due() {
                Some(due) => {
                    waits.push((due - now).as_millis());
                    now = due;
                }
                None => state.add("a".into(), now),
            }
        }
        assert_eq!(waits, [2, 4, 8, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn every_key_is_worked_on_and_none_twice_at_once() {
        let queue = Queue::default();
        let (done, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for key in 0..20 {
            queue.add(key.to_string());
        }
        let stop = CancellationToken::new();
        let (count, highest, end) = (Arc::clone(&done), Arc::clone(&most), stop.clone());
        let busy = Arc::new(AtomicUsize::new(0));
        queue
            .run(4, stop, move |_| {
                let (count, highest) = (Arc::clone(&count), Arc::clone(&highest));
                let (busy, end) = (Arc::clone(&busy), end.clone());
                async move {
                    let now = busy.fetch_add(1, Ordering::SeqCst) + 1;
                    highest.fetch_max(now, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    busy.fetch_sub(1, Ordering::SeqCst);
                    if count.fetch_add(1, Ordering::SeqCst) + 1 == 20 {
                        end.cancel();
                    }
                    Next::Wait
                }
            })
            .await;
        assert_eq!(done.load(Ordering::SeqCst), 20);
        assert_eq!(most.load(Ordering::SeqCst), 4);
    }
}
