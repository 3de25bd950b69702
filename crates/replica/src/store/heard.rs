//! When engines were last heard, for the newest of them.
//!
//! An engine may read for a while after a replica's last word to it. One that replaces it and cannot reach every
//! replica waits for that to be over; it waits less if it knows for how long the older one has been silent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Before anything was heard, moment 0: what an earlier process heard is not known, but all of it was heard before this one
/// opened the replica.
pub(super) struct Heard {
    opened: Instant,
    /// Microseconds from then until any engine was last heard.
    any_us: AtomicU64,
    /// The same of engines that are replaced by now.
    older_us: AtomicU64,
}

impl Heard {
    pub fn new() -> Self {
        Self {
            opened: Instant::now(),
            any_us: AtomicU64::new(0),
            older_us: AtomicU64::new(0),
        }
    }

    pub fn note(&self) {
        self.note_at(self.now_us());
    }

    fn note_at(&self, now_us: u64) {
        self.any_us.fetch_max(now_us, Ordering::AcqRel);
    }

    /// Everything heard so far came from engines that are older than the one which is accepted now. Called while nothing is
    /// under way: what an older one says from here on is refused, so it is no word that it could rely on.
    pub fn supersede(&self) {
        let heard_us = self.any_us.load(Ordering::Acquire);
        self.older_us.fetch_max(heard_us, Ordering::AcqRel);
    }

    pub fn older_silent_us(&self) -> u64 {
        self.older_silent_at(self.now_us())
    }

    fn older_silent_at(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.older_us.load(Ordering::Acquire))
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_heard_before_a_newer_engine_counts() {
        let heard = Heard::new();
        assert_eq!(
            heard.older_silent_at(70),
            70,
            "nobody since the replica opened"
        );
        heard.note_at(100);
        assert_eq!(heard.older_silent_at(130), 130, "it is the newest");
        heard.supersede();
        assert_eq!(heard.older_silent_at(130), 30);
        heard.note_at(500);
        assert_eq!(heard.older_silent_at(510), 410, "the newer one speaks");
        heard.supersede();
        assert_eq!(heard.older_silent_at(510), 10);
        // Two threads may note in another order than they looked at the clock.
        heard.note_at(400);
        heard.supersede();
        assert_eq!(heard.older_silent_at(510), 10);
    }
}
