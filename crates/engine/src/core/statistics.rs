//! Counts and latencies of one volume's requests.

use serde::{Deserialize, Serialize};

/// Each power of two of microseconds has four buckets: a reported latency is at most a fifth too large.
const BUCKETS_PER_DOUBLING: usize = 4;
const BUCKETS: usize = 30 * BUCKETS_PER_DOUBLING;

/// A histogram of latencies from 1 µs to 18 minutes, in a kilobyte.
#[derive(Clone, Debug)]
pub struct LatencyHistogram {
    counts: [u64; BUCKETS],
    total: u64,
    max_us: u64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self {
            counts: [0; BUCKETS],
            total: 0,
            max_us: 0,
        }
    }
}

impl LatencyHistogram {
    pub fn record(&mut self, latency_us: u64) {
        self.counts[bucket_of(latency_us)] += 1;
        self.total += 1;
        self.max_us = self.max_us.max(latency_us);
    }

    /// The latency that `per_mille` of the requests did not exceed; 0 when there were none.
    #[must_use]
    pub fn quantile_us(&self, per_mille: u64) -> u64 {
        let wanted = (self.total * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper_bound_us(bucket).min(self.max_us);
            }
        }
        self.max_us
    }

    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }
}

fn bucket_of(latency_us: u64) -> usize {
    let latency = latency_us.max(1);
    let doubling = latency.ilog2() as usize;
    // The two bits behind the leading one choose the quarter.
    let quarter = if doubling >= 2 {
        (latency >> (doubling - 2)) as usize & 3
    } else {
        (latency << (2 - doubling)) as usize & 3
    };
    (doubling * BUCKETS_PER_DOUBLING + quarter).min(BUCKETS - 1)
}

fn upper_bound_us(bucket: usize) -> u64 {
    let (doubling, quarter) = (bucket / BUCKETS_PER_DOUBLING, bucket % BUCKETS_PER_DOUBLING);
    ((4 + quarter as u64 + 1) << doubling) / 4
}

/// Of one kind of request.
#[derive(Clone, Debug, Default)]
pub struct OperationStatistics {
    pub count: u64,
    pub bytes: u64,
    pub failed: u64,
    pub latency: LatencyHistogram,
}

impl OperationStatistics {
    pub fn record(&mut self, bytes: u64, latency_us: u64, failed: bool) {
        self.count += 1;
        self.bytes += bytes;
        self.failed += u64::from(failed);
        self.latency.record(latency_us);
    }

    #[must_use]
    pub fn report(&self) -> OperationReport {
        OperationReport {
            count: self.count,
            bytes: self.bytes,
            failed: self.failed,
            p50_us: self.latency.quantile_us(500),
            p99_us: self.latency.quantile_us(990),
            p999_us: self.latency.quantile_us(999),
            max_us: self.latency.max_us,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Statistics {
    pub read: OperationStatistics,
    pub write: OperationStatistics,
    /// Zeroes and discards.
    pub unmap: OperationStatistics,
    pub flush: OperationStatistics,
    /// How long snapshots held writes back.
    pub barrier: LatencyHistogram,
}

/// The same for people and programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperationReport {
    pub count: u64,
    pub bytes: u64,
    pub failed: u64,
    pub p50_us: u64,
    pub p99_us: u64,
    pub p999_us: u64,
    pub max_us: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_close_above() {
        let mut histogram = LatencyHistogram::default();
        for latency in 1..=10_000u64 {
            histogram.record(latency);
        }
        for (per_mille, exact) in [(500, 5_000), (990, 9_900), (1000, 10_000)] {
            let found = histogram.quantile_us(per_mille);
            assert!(
                found >= exact && found <= exact * 5 / 4,
                "{per_mille}: {found}"
            );
        }
        assert_eq!(LatencyHistogram::default().quantile_us(500), 0);
    }
}
