//! Looking again before sleeping.

/// The longest that the loop looks again before it sleeps.
const SPIN_US_MAX: u64 = 60;

/// How long to look again before sleeping: longer while that finds something, and back to nothing when it does
/// not, with a try now and then to see whether times have changed.
#[derive(Debug, Default)]
pub(super) struct Spin {
    limit_us: u64,
    skipped: u32,
}

impl Spin {
    /// Tries again after this many sleeps.
    const PROBE_EVERY: u32 = 32;

    pub(super) fn limit_us(&mut self) -> u64 {
        if self.limit_us == 0 {
            self.skipped += 1;
            if self.skipped >= Self::PROBE_EVERY {
                self.skipped = 0;
                self.limit_us = SPIN_US_MAX / 2;
            }
        }
        self.limit_us
    }

    pub(super) fn paid_off(&mut self) {
        self.limit_us = (self.limit_us * 2).clamp(SPIN_US_MAX / 4, SPIN_US_MAX);
    }

    pub(super) fn was_in_vain(&mut self) {
        // One miss among hits is no reason to stop; several in a row are.
        self.limit_us = if self.limit_us <= SPIN_US_MAX / 8 {
            0
        } else {
            self.limit_us * 3 / 4
        };
    }
}
