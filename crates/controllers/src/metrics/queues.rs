//! How long every queue is, and how old.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use telemetry::Rows;

/// How a lane of a queue is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneStatus {
    pub name: &'static str,
    pub waiting: usize,
    pub in_flight: usize,
    /// How long the oldest key that waits for its turn has waited.
    pub oldest_waiting: Duration,
    /// How long the oldest call has been in flight.
    pub oldest_in_flight: Duration,
}

/// None when the queue is gone.
type Status = Box<dyn Fn() -> Option<Vec<LaneStatus>> + Send + Sync>;

/// All queues of a process, by name. Asked when somebody wants to know, so that a stuck queue grows older by itself.
#[derive(Clone, Default)]
pub struct Queues(Arc<Mutex<BTreeMap<&'static str, Status>>>);

impl Queues {
    /// A queue of the same name takes the place of the one before: controllers start anew when they lead anew.
    pub fn watch(
        &self,
        name: &'static str,
        status: impl Fn() -> Option<Vec<LaneStatus>> + Send + Sync + 'static,
    ) {
        self.lock().insert(name, Box::new(status));
    }

    fn rows(&self) -> Vec<([(&'static str, String); 2], LaneStatus)> {
        let queues = self.lock();
        let lanes = queues
            .iter()
            .filter_map(|(name, status)| Some((*name, status()?)));
        lanes
            .flat_map(|(name, lanes)| lanes.into_iter().map(move |lane| (name, lane)))
            .map(|(name, lane)| {
                let labels = [("queue", name.to_owned()), ("lane", lane.name.to_owned())];
                (labels, lane)
            })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Status>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queues")
    }
}

impl Collector for Queues {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        type Value = fn(&LaneStatus) -> f64;
        let families: [(&str, &str, Value); 4] = [
            (
                "lariat_queue_waiting",
                "Objects that wait for their turn",
                |lane| lane.waiting as f64,
            ),
            (
                "lariat_queue_in_flight",
                "Objects that are being worked on",
                |lane| lane.in_flight as f64,
            ),
            (
                "lariat_queue_oldest_waiting_seconds",
                "How long the oldest object has waited for its turn",
                |lane| lane.oldest_waiting.as_secs_f64(),
            ),
            (
                "lariat_queue_oldest_in_flight_seconds",
                "How long the oldest work has been under way",
                |lane| lane.oldest_in_flight.as_secs_f64(),
            ),
        ];
        let (status, mut rows) = (self.rows(), Rows::new(encoder));
        for (name, help, value) in families {
            let lanes = status.iter();
            rows.gauges(
                name,
                help,
                lanes.map(|(labels, lane)| (labels.clone(), value(lane))),
            )?;
        }
        Ok(())
    }
}
