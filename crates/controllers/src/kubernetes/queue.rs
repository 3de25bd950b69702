//! Keys that wait to be looked at.
//!
//! A key is worked on by one task at a time, whatever its lane; a key that changes meanwhile is looked at
//! once more. There is no pool of workers that slow calls could exhaust: each key is a task of its own, and
//! the bound of a lane is there only so that memory is bounded. Lanes do not wait for each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::{LaneStatus, Metrics, Rounds};

/// What became of one look at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// Look again after this long even if nothing changes.
    Again(Duration),
    /// Try again, later each time.
    Failed,
}

/// Delays of failing keys: `first`, doubled each time, at most `longest`.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pub first: Duration,
    pub longest: Duration,
}

impl Backoff {
    fn after(self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures.saturating_sub(1).min(31));
        self.first
            .saturating_mul(factor.unwrap_or(u32::MAX))
            .min(self.longest)
    }
}

/// One kind of work, which waits for no other.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    pub name: &'static str,
    pub in_flight_max: usize,
}

/// Clones are the same queue.
pub struct Queue<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    name: &'static str,
    lanes: Vec<Lane>,
    backoff: Backoff,
    state: Mutex<State<K>>,
    changed: Notify,
    rounds: Rounds,
}

struct State<K> {
    /// First come, first served, in each lane.
    order: Vec<VecDeque<K>>,
    waiting: BTreeMap<K, (usize, Instant)>,
    in_flight: BTreeMap<K, (usize, Instant)>,
    counts: Vec<usize>,
    /// Changed while in flight: the lane of the next look.
    dirty: BTreeMap<K, usize>,
    due: BTreeSet<(Instant, K)>,
    due_of: BTreeMap<K, (usize, Instant)>,
    failures: BTreeMap<K, u32>,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<K: Ord + Clone + fmt::Display + Send + Sync + 'static> Queue<K> {
    /// What becomes of its keys is counted under its name.
    pub fn new(name: &'static str, lanes: &[Lane], backoff: Backoff, metrics: &Metrics) -> Self {
        let state = State {
            order: lanes.iter().map(|_| VecDeque::new()).collect(),
            waiting: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            counts: vec![0; lanes.len()],
            dirty: BTreeMap::new(),
            due: BTreeSet::new(),
            due_of: BTreeMap::new(),
            failures: BTreeMap::new(),
        };
        let queue = Self {
            shared: Arc::new(Shared {
                name,
                lanes: lanes.to_vec(),
                backoff,
                state: Mutex::new(state),
                changed: Notify::new(),
                rounds: metrics.rounds(name),
            }),
        };
        let shared = Arc::downgrade(&queue.shared);
        metrics.queues.watch(name, move || {
            let shared = shared.upgrade()?;
            Some(Self { shared }.status())
        });
        queue
    }

    /// Asks for a look at the key now. A delay that it was under is over.
    pub fn add(&self, key: K, lane: usize) {
        self.lock().add(key, lane, Instant::now());
        self.shared.changed.notify_one();
    }

    /// Asks for a look at the key after a delay, unless one comes sooner.
    pub fn add_after(&self, key: K, lane: usize, delay: Duration) {
        self.lock().add_at(key, lane, Instant::now() + delay);
        self.shared.changed.notify_one();
    }

    pub fn status(&self) -> Vec<LaneStatus> {
        let now = Instant::now();
        let state = self.lock();
        let age = |entries: &BTreeMap<K, (usize, Instant)>, lane: usize| {
            entries
                .values()
                .filter(|(other, _)| *other == lane)
                .map(|(_, since)| now.duration_since(*since))
                .max()
                .unwrap_or_default()
        };
        let row = |(index, lane): (usize, &Lane)| LaneStatus {
            name: lane.name,
            waiting: state.order[index].len(),
            in_flight: state.counts[index],
            oldest_waiting: age(&state.waiting, index),
            oldest_in_flight: age(&state.in_flight, index),
        };
        self.shared.lanes.iter().enumerate().map(row).collect()
    }

    /// Works until it is told to stop. What is in flight then is dropped: every look starts from the
    /// objects, so the next process resumes it.
    pub async fn run<F, Work>(&self, work: F, stop: CancellationToken)
    where
        F: Fn(K, usize) -> Work,
        Work: Future<Output = Outcome> + Send + 'static,
    {
        let mut tasks: JoinSet<(K, Outcome)> = JoinSet::new();
        let mut keys: BTreeMap<tokio::task::Id, K> = BTreeMap::new();
        loop {
            let (ready, next_due) = self.lock().take_ready(&self.shared.lanes, Instant::now());
            for (key, lane) in ready {
                let look = work(key.clone(), lane);
                let task_key = key.clone();
                let handle = tasks.spawn(async move { (task_key, look.await) });
                keys.insert(handle.id(), key);
            }
            let until_due = async {
                match next_due {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                Some(finished) = tasks.join_next_with_id() => match finished {
                    Ok((id, (key, outcome))) => {
                        keys.remove(&id);
                        self.finish(&key, outcome);
                    }
                    Err(error) => {
                        // One object that makes us panic must not stop the others.
                        let Some(key) = keys.remove(&error.id()) else { continue };
                        tracing::error!(queue = self.shared.name, key = %key, "a look at this object panicked; it is tried again later");
                        self.finish(&key, Outcome::Failed);
                    }
                },
                () = self.shared.changed.notified() => {}
                () = until_due => {}
            }
        }
    }

    fn finish(&self, key: &K, outcome: Outcome) {
        let now = Instant::now();
        let mut state = self.lock();
        if let Some((_, began)) = state.in_flight.get(key) {
            let failed = outcome == Outcome::Failed;
            self.shared.rounds.ended(now.duration_since(*began), failed);
        }
        state.finish(key, outcome, self.shared.backoff, now);
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.shared.state.lock().expect("no holder panics")
    }
}

impl<K: Ord + Clone> State<K> {
    fn add(&mut self, key: K, lane: usize, now: Instant) {
        if let Some((_, at)) = self.due_of.remove(&key) {
            self.due.remove(&(at, key.clone()));
        }
        if self.in_flight.contains_key(&key) {
            self.dirty.insert(key, lane);
            return;
        }
        match self.waiting.get(&key) {
            Some((other, _)) if *other == lane => {}
            Some((other, since)) => {
                let (other, since) = (*other, *since);
                self.order[other].retain(|waiting| *waiting != key);
                self.order[lane].push_back(key.clone());
                self.waiting.insert(key, (lane, since));
            }
            None => {
                self.order[lane].push_back(key.clone());
                self.waiting.insert(key, (lane, now));
            }
        }
    }

    fn add_at(&mut self, key: K, lane: usize, at: Instant) {
        if self.waiting.contains_key(&key) || self.dirty.contains_key(&key) {
            return;
        }
        if let Some((_, earlier)) = self.due_of.get(&key) {
            if *earlier <= at {
                return;
            }
            self.due.remove(&(*earlier, key.clone()));
        }
        self.due.insert((at, key.clone()));
        self.due_of.insert(key, (lane, at));
    }

    /// Takes what may start now, and tells when to look again.
    fn take_ready(&mut self, lanes: &[Lane], now: Instant) -> (Vec<(K, usize)>, Option<Instant>) {
        while let Some((at, key)) = self.due.first().filter(|(at, _)| *at <= now).cloned() {
            self.due.remove(&(at, key.clone()));
            if let Some((lane, _)) = self.due_of.remove(&key) {
                self.add(key, lane, now);
            }
        }
        let mut ready = Vec::new();
        for (index, lane) in lanes.iter().enumerate() {
            while self.counts[index] < lane.in_flight_max {
                let Some(key) = self.order[index].pop_front() else {
                    break;
                };
                self.waiting.remove(&key);
                self.in_flight.insert(key.clone(), (index, now));
                self.counts[index] += 1;
                ready.push((key, index));
            }
        }
        (ready, self.due.first().map(|(at, _)| *at))
    }

    fn finish(&mut self, key: &K, outcome: Outcome, backoff: Backoff, now: Instant) {
        let Some((lane, _)) = self.in_flight.remove(key) else {
            return;
        };
        self.counts[lane] -= 1;
        let failures = match outcome {
            Outcome::Failed => {
                let failures = self.failures.entry(key.clone()).or_insert(0);
                *failures = failures.saturating_add(1);
                *failures
            }
            Outcome::Done | Outcome::Again(_) => {
                self.failures.remove(key);
                0
            }
        };
        if let Some(lane) = self.dirty.remove(key) {
            self.add(key.clone(), lane, now);
            return;
        }
        match outcome {
            Outcome::Done => {}
            Outcome::Again(delay) => self.add_at(key.clone(), lane, now + delay),
            Outcome::Failed => self.add_at(key.clone(), lane, now + backoff.after(failures)),
        }
    }
}

impl<K: Ord + Clone + fmt::Display + Send + Sync + 'static> fmt::Debug for Queue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("name", &self.shared.name)
            .field("lanes", &self.status())
            .finish()
    }
}

#[cfg(test)]
mod tests;
