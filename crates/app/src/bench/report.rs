//! Numbers as people read them.

use std::time::Duration;

/// One measured line: a name, a headline, and the spread where there is one.
pub(super) struct Line {
    name: String,
    headline: String,
    spread: String,
}

impl Line {
    pub(super) fn value(name: impl Into<String>, headline: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            headline: headline.into(),
            spread: String::new(),
        }
    }

    /// A rate and the latencies behind it.
    pub(super) fn rate(
        name: impl Into<String>,
        took: Duration,
        latencies: &mut [Duration],
    ) -> Self {
        let per_second = latencies.len() as f64 / took.as_secs_f64();
        Self {
            name: name.into(),
            headline: format!("{per_second:.0}/s"),
            spread: spread(latencies),
        }
    }

    pub(super) fn latency(name: impl Into<String>, latencies: &mut [Duration]) -> Self {
        let shown = spread(latencies);
        Self {
            name: name.into(),
            headline: String::new(),
            spread: shown,
        }
    }

    pub(super) fn print(&self) {
        println!("{:<44} {:>12}  {}", self.name, self.headline, self.spread);
    }
}

fn spread(latencies: &mut [Duration]) -> String {
    latencies.sort_unstable();
    format!(
        "p50 {}  p99 {}",
        shown(at(latencies, 50)),
        shown(at(latencies, 99))
    )
}

fn at(sorted: &[Duration], percent: usize) -> Duration {
    sorted
        .get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

pub(super) fn shown(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1000.0)
}
