//! What the store knows: the current objects, and the log of how they came to be.
//!
//! Older states need no versions per key. Each event carries the object that it replaced, so the
//! state at revision R is the current one with, for each key that changed after R, what the first such
//! event replaced. A read at R costs the events since R; lists are paged while they are young.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{BackendError, Compaction, Marks, Record, RecordChange};
use crate::range::{AsOf, Changed};
use crate::watch::{Channel, Subscriptions};
use crate::{Change, Event, Object, Options, Page, Range, ReadError, Revision};

#[derive(Default)]
pub(crate) struct State {
    objects: BTreeMap<Arc<str>, Arc<Object>>,
    /// Every event with `compacted < revision <= current`, in order.
    log: VecDeque<Arc<Event>>,
    current: Revision,
    compacted: Revision,
    object_bytes: u64,
    /// Bytes of the values that only the log still holds.
    history_bytes: u64,
    pub(crate) subscriptions: Subscriptions,
}

impl State {
    pub(crate) fn new(marks: Marks) -> Self {
        Self {
            current: marks.current,
            compacted: marks.compacted,
            ..Self::default()
        }
    }

    pub(crate) fn current(&self) -> Revision {
        self.current
    }

    pub(crate) fn compacted(&self) -> Revision {
        self.compacted
    }

    pub(crate) fn last_time_ms(&self) -> u64 {
        self.log.back().map_or(0, |event| event.time_ms)
    }

    pub(crate) fn object_count(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn object_bytes(&self) -> u64 {
        self.object_bytes
    }

    pub(crate) fn history_events(&self) -> usize {
        self.log.len()
    }

    pub(crate) fn history_bytes(&self) -> u64 {
        self.history_bytes
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Arc<Object>> {
        self.objects.get(key)
    }

    pub(crate) fn get_at(
        &self,
        key: &str,
        revision: Revision,
    ) -> Result<Option<&Arc<Object>>, ReadError> {
        self.check_readable(revision)?;
        let replaced = self
            .events_after(revision)
            .find(|event| &**event.key() == key);
        Ok(match replaced {
            Some(event) => event.previous(),
            None => self.get(key),
        })
    }

    pub(crate) fn range(&self, range: &Range<'_>) -> Result<Page, ReadError> {
        let revision = range.at.unwrap_or(self.current);
        self.check_readable(revision)?;
        let mut changed = BTreeMap::new();
        for event in self.events_after(revision) {
            if range.contains(event.key()) {
                // The first change after the revision replaced its state; the last one tells the present.
                let changed = changed.entry(&**event.key()).or_insert(Changed {
                    then: event.previous(),
                    exists_now: false,
                });
                changed.exists_now = event.object().is_some();
            }
        }
        let mut found = AsOf::new(self.present(range), changed);
        let limit = range.limit.unwrap_or(usize::MAX);
        Ok(Page {
            revision,
            objects: found.by_ref().take(limit).cloned().collect(),
            remaining: found.remaining(),
        })
    }

    pub(crate) fn count(&self, prefix: &str) -> usize {
        self.present(&Range::prefix(prefix)).count()
    }

    /// The current objects of a range, all of them.
    fn present(&self, range: &Range<'_>) -> impl Iterator<Item = &Arc<Object>> {
        let upper = range.upper_bound();
        let upper = upper.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let lower = range.lower_bound();
        // The tree panics on a range that ends before it begins.
        let is_inverted = matches!(
            (lower, upper),
            (Bound::Included(lower) | Bound::Excluded(lower), Bound::Excluded(upper)) if lower >= upper
        );
        let bounds = if is_inverted {
            (Bound::Included(""), Bound::Excluded(""))
        } else {
            (lower, upper)
        };
        self.objects
            .range::<str, _>(bounds)
            .map(|(_, object)| object)
    }

    pub(crate) fn check_readable(&self, requested: Revision) -> Result<(), ReadError> {
        if requested > self.current {
            return Err(ReadError::Future {
                requested,
                current: self.current,
            });
        }
        if requested < self.compacted {
            return Err(ReadError::Compacted {
                requested,
                oldest: self.compacted,
            });
        }
        Ok(())
    }

    pub(crate) fn events_after(&self, revision: Revision) -> impl Iterator<Item = &Arc<Event>> {
        log_after(&self.log, revision)
    }

    /// Joins the channel of a prefix, from a revision that is readable.
    pub(crate) fn subscribe(&mut self, prefix: &str, after: Revision) -> Arc<Channel> {
        let log = &self.log;
        self.subscriptions
            .subscribe(prefix, after, self.current, |revision| {
                log_after(log, revision)
            })
    }

    /// Takes in events that the back end holds durably.
    pub(crate) fn apply(&mut self, event: &Arc<Event>) {
        match &event.change {
            Change::Put { object, .. } => {
                self.object_bytes += bytes_of(object);
                self.objects.insert(object.key.clone(), object.clone());
            }
            Change::Delete { previous } => {
                self.objects.remove(&previous.key);
            }
        }
        if let Some(previous) = event.previous() {
            self.object_bytes -= bytes_of(previous);
        }
        if event.revision > self.compacted {
            self.history_bytes += event.previous().map_or(0, |previous| bytes_of(previous));
            self.log.push_back(event.clone());
        }
        self.current = self.current.max(event.revision);
    }

    /// Gives a record that was read back the meaning it had when it was written: the next event of this state.
    pub(crate) fn event_of(&self, record: Record) -> Result<Event, BackendError> {
        let id = record.id;
        let previous = self.get(&record.key).cloned();
        let change = match record.change {
            RecordChange::Put {
                value,
                create_revision,
                version,
            } => Change::Put {
                object: Arc::new(Object {
                    key: previous
                        .as_ref()
                        .map_or_else(|| record.key.into(), |object| object.key.clone()),
                    value,
                    create_revision,
                    mod_revision: id.revision,
                    version,
                    record_index: id.index,
                }),
                previous,
            },
            RecordChange::Delete => Change::Delete {
                previous: previous
                    .ok_or_else(|| BackendError::damaged(id, "it deletes a key that is absent"))?,
            },
        };
        Ok(Event {
            revision: id.revision,
            change,
            record_index: id.index,
            time_ms: record.time_ms,
        })
    }

    /// What to forget next, at most about `events_max` events of it, or none if nothing is due.
    ///
    /// `requested` is a compaction that somebody asked for: everything up to it is due.
    pub(crate) fn plan_compaction(
        &self,
        options: &Options,
        now_ms: u64,
        requested: Revision,
        events_max: usize,
    ) -> Option<Compaction> {
        let expired_ms = now_ms.saturating_sub(milliseconds(options.history_age_max));
        let mut events = 0;
        let mut freed_bytes = 0;
        let mut through = self.compacted;
        let mut superseded = Vec::new();
        for event in &self.log {
            let is_due = event.revision <= requested
                || event.time_ms < expired_ms
                || self.log.len() - events > options.history_events_max
                || self.history_bytes - freed_bytes > options.history_bytes_max;
            // The events of one transaction leave together.
            let is_split = event.revision == through;
            if !is_split && (!is_due || events >= events_max) {
                break;
            }
            events += 1;
            through = event.revision;
            if let Some(previous) = event.previous() {
                freed_bytes += bytes_of(previous);
                superseded.push(previous.record_id());
            }
            if let Change::Delete { .. } = event.change {
                superseded.push(event.record_id());
            }
        }
        (events > 0).then_some(Compaction {
            through,
            superseded,
        })
    }

    /// Takes in a compaction that the back end holds durably. Returns what left the log, so that the caller can
    /// free it outside the lock.
    pub(crate) fn apply_compaction(&mut self, through: Revision) -> Vec<Arc<Event>> {
        let events = self.log.partition_point(|event| event.revision <= through);
        let dropped: Vec<_> = self.log.drain(..events).collect();
        for event in &dropped {
            self.history_bytes -= event.previous().map_or(0, |previous| bytes_of(previous));
        }
        self.compacted = self.compacted.max(through);
        self.subscriptions.forget(through);
        dropped
    }
}

fn log_after(log: &VecDeque<Arc<Event>>, revision: Revision) -> impl Iterator<Item = &Arc<Event>> {
    let first = log.partition_point(|event| event.revision <= revision);
    log.range(first..)
}

fn bytes_of(object: &Object) -> u64 {
    object.value.len() as u64
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
