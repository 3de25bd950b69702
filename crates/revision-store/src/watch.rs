//! Watches: positions in the log.
//!
//! All watchers of one prefix share a [`Channel`]: the log's events under that prefix, filtered once. A
//! watcher is a revision up to which it has seen everything; it takes what is later, and sleeps when there is nothing.
//! History and live events are the same list, so there is no seam between them at which one could be lost or
//! doubled. Events leave a channel when compaction drops them from the log; a watcher that had not seen them is
//! lagged. One that had nothing to see is not, however long it slept.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::store::Shared;
use crate::{Event, Revision, WatchError};

/// A stream of the changes under one prefix, in revision order.
pub struct Watcher {
    shared: Arc<Shared>,
    channel: Arc<Channel>,
    /// Taken from the channel, not yet handed out. Always whole revisions.
    pending: VecDeque<Arc<Event>>,
    /// Everything up to here is in `pending` or has been handed out.
    taken: Revision,
}

impl Watcher {
    /// Subscribes to `prefix`; the caller has checked that `after` is in the retained window.
    pub(crate) fn new(shared: Arc<Shared>, channel: Arc<Channel>, after: Revision) -> Self {
        Self {
            shared,
            channel,
            pending: VecDeque::new(),
            taken: after,
        }
    }

    /// The next event; waits until there is one. Dropping the future before it is ready loses nothing.
    pub async fn next(&mut self) -> Result<Arc<Event>, WatchError> {
        let channel = self.channel.clone();
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(event);
            }
            // Made before looking: it counts from here on, so an event between looking and sleeping wakes us.
            let notified = channel.changed.notified();
            self.take()?;
            if self.pending.is_empty() {
                notified.await;
            }
        }
    }

    /// The next event if one is there already.
    pub fn try_next(&mut self) -> Result<Option<Arc<Event>>, WatchError> {
        if self.pending.is_empty() {
            self.take()?;
        }
        Ok(self.pending.pop_front())
    }

    /// The revision up to which this watcher has handed out every change under its prefix.
    ///
    /// It advances with the whole store, also while nothing under the prefix changes: a client that is told this
    /// revision can resume from it.
    pub fn progress(&self) -> Revision {
        if let Some(next) = self.pending.front() {
            return next.revision.previous();
        }
        // Read before the channel: everything published by then is in the channel by now.
        let published = self.shared.published();
        let log = self.channel.lock();
        if log.dropped > self.taken {
            return self.taken;
        }
        match log.events.get(log.first_after(self.taken)) {
            Some(next) => next.revision.previous(),
            None => published.max(self.taken),
        }
    }

    /// Moves the next few revisions from the channel to `pending`.
    fn take(&mut self) -> Result<(), WatchError> {
        let published = self.shared.published();
        let log = self.channel.lock();
        if log.dropped > self.taken {
            return Err(WatchError::Lagged {
                seen: self.taken,
                dropped: log.dropped,
            });
        }
        let first = log.first_after(self.taken);
        let mut events = log.events.range(first..).peekable();
        while let Some(event) = events.next() {
            self.taken = event.revision;
            self.pending.push_back(event.clone());
            let is_whole = events
                .peek()
                .is_none_or(|next| next.revision != event.revision);
            if is_whole && self.pending.len() >= self.shared.options.watch_batch_events_max {
                break;
            }
        }
        if events.peek().is_none() {
            self.taken = self.taken.max(published);
        }
        if self.pending.is_empty() && self.shared.is_closed.load(Ordering::Acquire) {
            return Err(WatchError::Closed);
        }
        Ok(())
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Watcher")
            .field("prefix", &self.channel.prefix)
            .field("progress", &self.progress())
            .finish_non_exhaustive()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared
            .write_state()
            .subscriptions
            .unsubscribe(&self.channel);
    }
}

/// The events of one prefix, and those who wait for more.
pub(crate) struct Channel {
    prefix: Arc<str>,
    changed: Notify,
    log: Mutex<ChannelLog>,
}

struct ChannelLog {
    /// Every retained event under the prefix that is later than `covers_after`.
    events: VecDeque<Arc<Event>>,
    covers_after: Revision,
    /// The latest event that left through compaction.
    dropped: Revision,
}

impl ChannelLog {
    fn first_after(&self, revision: Revision) -> usize {
        self.events
            .partition_point(|event| event.revision <= revision)
    }
}

impl Channel {
    fn lock(&self) -> MutexGuard<'_, ChannelLog> {
        // Nothing that holds this lock can panic half-way through a change.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wake(&self) {
        self.changed.notify_waiters();
    }
}

/// All channels that somebody watches.
#[derive(Default)]
pub(crate) struct Subscriptions {
    channels: HashMap<Arc<str>, Subscription>,
    watchers: usize,
}

struct Subscription {
    channel: Arc<Channel>,
    watchers: usize,
}

impl Subscriptions {
    pub(crate) fn watchers(&self) -> usize {
        self.watchers
    }

    /// Joins the channel of `prefix`, and extends it back to `after` if nobody has watched from that far.
    ///
    /// `history` gives the log's events later than a revision.
    pub(crate) fn subscribe<'l, H: Iterator<Item = &'l Arc<Event>>>(
        &mut self,
        prefix: &str,
        after: Revision,
        current: Revision,
        history: impl FnOnce(Revision) -> H,
    ) -> Arc<Channel> {
        self.watchers += 1;
        let subscription = self
            .channels
            .entry(prefix.into())
            .or_insert_with_key(|prefix| Subscription {
                channel: Arc::new(Channel {
                    prefix: prefix.clone(),
                    changed: Notify::new(),
                    log: Mutex::new(ChannelLog {
                        events: VecDeque::new(),
                        covers_after: current,
                        dropped: Revision::EMPTY,
                    }),
                }),
                watchers: 0,
            });
        subscription.watchers += 1;
        let mut log = subscription.channel.lock();
        if after < log.covers_after {
            let missing: Vec<_> = history(after)
                .take_while(|event| event.revision <= log.covers_after)
                .filter(|event| event.key().starts_with(prefix))
                .cloned()
                .collect();
            for event in missing.into_iter().rev() {
                log.events.push_front(event);
            }
            log.covers_after = after;
        }
        drop(log);
        subscription.channel.clone()
    }

    fn unsubscribe(&mut self, channel: &Channel) {
        self.watchers -= 1;
        let subscription = self
            .channels
            .get_mut(&channel.prefix)
            .expect("a channel lives as long as its watchers");
        subscription.watchers -= 1;
        if subscription.watchers == 0 {
            self.channels.remove(&channel.prefix);
        }
    }

    /// Appends new events to the channels they belong to. Returns those channels, for waking after the state's
    /// lock is released.
    pub(crate) fn publish(&self, events: &[Arc<Event>]) -> Vec<Arc<Channel>> {
        let mut changed = Vec::new();
        for Subscription { channel, .. } in self.channels.values() {
            let mut matching = events
                .iter()
                .filter(|event| event.key().starts_with(&*channel.prefix))
                .peekable();
            if matching.peek().is_some() {
                channel.lock().events.extend(matching.cloned());
                changed.push(channel.clone());
            }
        }
        changed
    }

    pub(crate) fn forget(&self, through: Revision) {
        for Subscription { channel, .. } in self.channels.values() {
            let mut log = channel.lock();
            let dropped = log.first_after(through);
            let last = log.events.drain(..dropped).next_back();
            if let Some(last) = last {
                log.dropped = last.revision;
            }
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Channel>> {
        self.channels
            .values()
            .map(|subscription| subscription.channel.clone())
            .collect()
    }
}
