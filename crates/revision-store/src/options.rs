//! Bounds and time of a store.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How large things may get, and how much history is kept.
///
/// History is the events that a watch can resume from and that reads at older revisions need. An event is
/// dropped as soon as any one of the three `history_*` bounds asks for it, oldest first.
#[derive(Clone, Debug)]
pub struct Options {
    /// A Kubernetes key (group, plural, namespace and name at their longest) is about 650 bytes.
    pub key_bytes_max: usize,
    /// Kubernetes takes bodies of 3 MiB; what is stored can be a little larger.
    pub value_bytes_max: usize,
    /// Operations in one transaction.
    pub transaction_operations_max: usize,
    /// About 80 bytes each in memory, beside the superseded values.
    pub history_events_max: usize,
    /// Superseded values: those that only history keeps in memory and on disk.
    pub history_bytes_max: u64,
    pub history_age_max: Duration,
    /// Events that a watcher takes out of the log at a time.
    pub watch_batch_events_max: usize,
    /// Writes that may wait for the writer; further ones wait for a place in the queue.
    pub queued_writes_max: usize,
    /// How often the writer looks for history that has become too old while nobody writes.
    pub maintenance_interval: Duration,
    pub clock: Clock,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            key_bytes_max: 1024,
            value_bytes_max: 4 << 20,
            transaction_operations_max: 128,
            history_events_max: 100_000,
            history_bytes_max: 64 << 20,
            history_age_max: Duration::from_secs(3600),
            watch_batch_events_max: 256,
            queued_writes_max: 1024,
            maintenance_interval: Duration::from_secs(5),
            clock: Clock::system(),
        }
    }
}

/// The wall clock by which history ages.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl Clock {
    pub fn system() -> Self {
        Self::new(SystemTime::now)
    }

    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub(crate) fn now_ms(&self) -> u64 {
        let since_epoch = (self.0)().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Clock")
    }
}
