//! What the controllers count.
//!
//! One [`Metrics`] a process, cloned to whoever has something to count. Counting never waits and never fails. What can be
//! read off the objects is not counted but computed when it is asked for, by [`ClusterMetrics`].
//!
//! Labels are bounded: names of queues, controllers, hops, codes and nodes; never volumes.

mod cluster;
mod queues;
mod tickets;

use std::time::Duration;

use cluster_core::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

pub use cluster::ClusterMetrics;
pub use queues::{LaneStatus, Queues};

use crate::kubernetes::attacher::CallMetrics;
use crate::timeline::{Direction, Passage};

/// From a decision that finds nothing to do to one that waits for the API.
const ROUND_BUCKETS_SECONDS: [f64; 12] = [
    0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0, 10.0,
];
/// A hop takes milliseconds when all is well, and minutes when somebody is dead.
const HOP_BUCKETS_SECONDS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0,
];

type Labels<const N: usize> = [(&'static str, &'static str); N];
type Seconds<const N: usize> = Family<Labels<N>, Histogram, fn() -> Histogram>;

/// Clones count into the same place.
#[derive(Clone)]
pub struct Metrics {
    pub queues: Queues,
    pub calls: CallMetrics,
    rounds: Seconds<1>,
    errors: Family<Labels<1>, Counter>,
    hops: Seconds<2>,
    passages: Seconds<1>,
    fences: Counter,
    failovers: Counter,
    leading: Gauge,
    attached: Gauge,
    migrating: Gauge,
    migration_oldest: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            queues: Queues::default(),
            calls: CallMetrics::default(),
            rounds: Family::new_with_constructor(|| Histogram::new(ROUND_BUCKETS_SECONDS)),
            errors: Family::default(),
            hops: Family::new_with_constructor(|| Histogram::new(HOP_BUCKETS_SECONDS)),
            passages: Family::new_with_constructor(|| Histogram::new(HOP_BUCKETS_SECONDS)),
            fences: Counter::default(),
            failovers: Counter::default(),
            leading: Gauge::default(),
            attached: Gauge::default(),
            migrating: Gauge::default(),
            migration_oldest: Gauge::default(),
        }
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

/// What one controller's rounds are counted into.
#[derive(Clone)]
pub struct Rounds {
    seconds: Histogram,
    errors: Counter,
}

impl Rounds {
    /// `failed`: it is tried again, because the API refused a write or somebody else was faster.
    pub fn ended(&self, took: Duration, failed: bool) {
        self.seconds.observe(took.as_secs_f64());
        if failed {
            self.errors.inc();
        }
    }
}

impl Metrics {
    /// What every process with controllers has: queues, rounds, and calls of drivers.
    pub fn register_work(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.queues.clone()));
        registry.register_with_unit(
            "lariat_reconcile",
            "How long a controller's look at one object takes, with its writes",
            Unit::Seconds,
            self.rounds.clone(),
        );
        registry.register(
            "lariat_reconcile_errors",
            "Looks that ended early and are repeated: the API refused, or somebody else wrote first",
            self.errors.clone(),
        );
        self.calls.register(registry);
    }

    /// What the manager has besides.
    pub fn register_manager(&self, registry: &mut Registry) {
        self.register_work(registry);
        registry.register_with_unit(
            "lariat_hop",
            "From one hop of an attach or detach to the next; the hops are those of `lariat volume timeline`",
            Unit::Seconds,
            self.hops.clone(),
        );
        registry.register_with_unit(
            "lariat_passage",
            "From the first hop of an attach or detach to its last",
            Unit::Seconds,
            self.passages.clone(),
        );
        registry.register(
            "lariat_fences",
            "Engines on lost nodes that were proven unable to write any more",
            self.fences.clone(),
        );
        registry.register(
            "lariat_failovers",
            "Volumes that were attached to another node after their engine was fenced",
            self.failovers.clone(),
        );
        registry.register(
            "lariat_manager_leading",
            "1 while this manager is the one that works",
            self.leading.clone(),
        );
        registry.register(
            "lariat_attached_volumes",
            "Volumes that some node has, by Kubernetes' VolumeAttachments",
            self.attached.clone(),
        );
        registry.register(
            "lariat_migrating_volumes",
            "Volumes that two nodes have, by Kubernetes' VolumeAttachments",
            self.migrating.clone(),
        );
        registry.register_with_unit(
            "lariat_migration_oldest_timestamp",
            "Since when the oldest of these has been attached to the first of its nodes; 0 if there is none",
            Unit::Seconds,
            self.migration_oldest.clone(),
        );
    }

    #[must_use]
    pub fn rounds(&self, controller: &'static str) -> Rounds {
        let labels = [("controller", controller)];
        Rounds {
            seconds: self.rounds.get_or_create(&labels).clone(),
            errors: self.errors.get_or_create(&labels).clone(),
        }
    }

    /// A finished passage: each hop counts from the one before it.
    pub fn passed(&self, passage: &Passage) {
        let direction = match passage.direction {
            Direction::Attach => "attach",
            Direction::Detach => "detach",
        };
        let seconds = |microseconds: u64| Duration::from_micros(microseconds).as_secs_f64();
        for pair in passage.hops.windows(2) {
            let labels = [("direction", direction), ("hop", pair[1].hop.name())];
            let took = pair[1].after_us.saturating_sub(pair[0].after_us);
            self.hops.get_or_create(&labels).observe(seconds(took));
        }
        if let Some(last) = passage.hops.last() {
            let passages = self.passages.get_or_create(&[("direction", direction)]);
            passages.observe(seconds(last.after_us));
        }
    }

    /// What became true of a volume.
    pub(crate) fn volume_changed(
        &self,
        before: &volume_core::VolumeStatus,
        after: &volume_core::VolumeStatus,
    ) {
        let Some(proof) = &after.fence_proof else {
            return;
        };
        if before.fence_proof.as_ref().map(|proof| proof.epoch) != Some(proof.epoch) {
            self.fences.inc();
        }
        let attached = volume_core::VolumeState::Attached;
        let moved = after
            .current_node
            .as_ref()
            .is_some_and(|node| *node != proof.node);
        // The fence took one epoch, and the next engine the one after it: later ones attach for other reasons.
        if before.state != attached
            && after.state == attached
            && moved
            && after.record.epoch.0 == proof.epoch.0 + 1
        {
            self.failovers.inc();
        }
    }

    pub(crate) fn set_attached(&self, held: usize, migrating: usize, oldest: Option<Timestamp>) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.attached.set(number(held));
        self.migrating.set(number(migrating));
        let seconds = oldest.map_or(0, |Timestamp(milliseconds)| milliseconds / 1000);
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        self.migration_oldest.set(seconds);
    }

    pub(crate) fn set_leading(&self, leading: bool) {
        self.leading.set(i64::from(leading));
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;
    use crate::timeline::{Hop, Stamp};

    #[test]
    fn each_hop_counts_from_the_one_before() {
        let metrics = Metrics::default();
        let stamp = |hop, after_us| Stamp { hop, after_us };
        metrics.passed(&Passage {
            node: "n1".to_owned(),
            direction: Direction::Attach,
            started_ms: 0,
            hops: vec![
                stamp(Hop::AttachmentCreated, 0),
                stamp(Hop::TicketFiled, 250_000),
                stamp(Hop::AttachmentDone, 1_250_000),
            ],
        });
        let mut registry = Registry::default();
        metrics.register_manager(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).expect("written");
        for line in [
            "lariat_hop_seconds_sum{direction=\"attach\",hop=\"ticket-filed\"} 0.25",
            "lariat_hop_seconds_sum{direction=\"attach\",hop=\"attachment-done\"} 1.0",
            "lariat_passage_seconds_sum{direction=\"attach\"} 1.25",
            "lariat_manager_leading 0",
            "lariat_fences_total 0",
        ] {
            assert!(text.contains(line), "no {line:?} in {text}");
        }
        assert!(!text.contains("hop=\"attachment-created\""), "{text}");
    }
}
