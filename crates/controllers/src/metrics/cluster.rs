//! What can be read off the objects of a cluster: computed at every question, from what is watched anyway.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use api_types::names::DRIVER;
use api_types::{Volume, condition, node_condition};
use attach_core::breaker::{self, AttachRecord, BreakerPolicy, Gate};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use telemetry::Rows;

use super::tickets::{FirstSeen, unsatisfied};
use crate::runtime::Objects;

/// Every manager shows the same, whether it leads or not.
pub struct ClusterMetrics {
    objects: Objects,
    first_seen: Mutex<FirstSeen>,
}

impl ClusterMetrics {
    #[must_use]
    pub fn new(objects: Objects) -> Self {
        Self {
            objects,
            first_seen: Mutex::default(),
        }
    }

    fn tickets(&self, rows: &mut Rows<'_>, now: Timestamp) -> fmt::Result {
        let attachments = self.objects.attachments.all();
        let mut seen = self
            .first_seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let waits = unsatisfied(attachments.iter().map(AsRef::as_ref), &mut seen, now);
        drop(seen);
        let labelled = |value: fn(&super::tickets::Waits) -> f64| {
            waits.iter().map(move |((kind, reason), waits)| {
                let labels = [("type", kind.clone()), ("reason", reason.clone())];
                (labels, value(waits))
            })
        };
        rows.gauges(
            "lariat_unsatisfied_tickets",
            "Tickets that are not satisfied, by their type and the reason that they are given",
            labelled(|waits| waits.count as f64),
        )?;
        rows.gauges(
            "lariat_unsatisfied_ticket_seconds",
            "How long all tickets that are not satisfied have waited, added up",
            labelled(|waits| waits.sum_seconds),
        )?;
        rows.gauges(
            "lariat_unsatisfied_ticket_oldest_seconds",
            "How long the oldest ticket that is not satisfied has waited",
            labelled(|waits| waits.oldest_seconds),
        )
    }

    /// Kubernetes' own VolumeAttachments that are on their way.
    fn pending(&self, rows: &mut Rows<'_>, now: Timestamp) -> fmt::Result {
        let mut waits: BTreeMap<&str, (u64, f64)> =
            [("attach", (0, 0.0)), ("detach", (0, 0.0))].into();
        for attachment in self.objects.kubernetes_attachments.all() {
            if attachment.spec.attacher != DRIVER {
                continue;
            }
            let metadata = &attachment.metadata;
            let is_attached = attachment
                .status
                .as_ref()
                .is_some_and(|status| status.attached);
            let (direction, since) = match (&metadata.deletion_timestamp, is_attached) {
                (Some(deleted), _) => ("detach", Some(deleted)),
                (None, false) => ("attach", metadata.creation_timestamp.as_ref()),
                (None, true) => continue,
            };
            let (count, oldest) = waits.entry(direction).or_default();
            *count += 1;
            *oldest = oldest.max(age(since, now));
        }
        let labels = |direction: &&str| [("direction", (*direction).to_owned())];
        rows.gauges(
            "lariat_pending_attachments",
            "Kubernetes VolumeAttachments of our driver that are being attached or detached",
            waits
                .iter()
                .map(|(direction, (count, _))| (labels(direction), *count as f64)),
        )?;
        rows.gauges(
            "lariat_pending_attachment_oldest_seconds",
            "How long the oldest of them has been on its way",
            waits
                .iter()
                .map(|(direction, (_, oldest))| (labels(direction), *oldest)),
        )
    }

    fn volumes(&self, rows: &mut Rows<'_>) -> fmt::Result {
        let mut counts: BTreeMap<(String, String), u64> = BTreeMap::new();
        for volume in self.objects.volumes.all() {
            let status = volume.status.clone().unwrap_or_default();
            let key = (status.state.to_string(), status.robustness.to_string());
            *counts.entry(key).or_default() += 1;
        }
        rows.gauges(
            "lariat_volumes",
            "Volumes by their state and robustness",
            counts.into_iter().map(|((state, robustness), count)| {
                let labels = [("state", state), ("robustness", robustness)];
                (labels, count as f64)
            }),
        )?;
        let rebuilding = |engine: &api_types::Engine| {
            let status = engine.status.as_ref();
            let rebuilds = status.into_iter().flat_map(|status| &status.rebuild_status);
            rebuilds
                .filter(|(_, rebuild)| rebuild.is_rebuilding)
                .count()
        };
        let engines = self.objects.engines.all();
        let rebuilding: usize = engines.iter().map(|engine| rebuilding(engine)).sum();
        rows.gauge(
            "lariat_replicas_rebuilding",
            "Replicas that are being rebuilt",
            rebuilding as f64,
        )
    }

    /// Nodes, and volumes whose attaching is held back on them.
    fn nodes(&self, rows: &mut Rows<'_>, now: Timestamp) -> fmt::Result {
        let mut ready: BTreeMap<bool, u64> = [(true, 0), (false, 0)].into();
        let mut breakers: BTreeMap<(String, &'static str), u64> = BTreeMap::new();
        for node in self.objects.nodes.all() {
            let conditions = node.status.as_ref().map(|status| &status.conditions);
            let is_ready = conditions
                .is_some_and(|conditions| condition::is_true(conditions, node_condition::READY));
            *ready.entry(is_ready).or_default() += 1;
            for state in BREAKER_STATES {
                breakers.insert((node.name_any(), state), 0);
            }
        }
        for volume in self.objects.volumes.all() {
            // Of a node that is gone nothing is shown: its name would stay for ever.
            let open = breaker_of(&volume, now);
            if let Some(count) = open.and_then(|key| breakers.get_mut(&key)) {
                *count += 1;
            }
        }
        rows.gauges(
            "lariat_nodes",
            "Nodes with an agent, by whether it answers",
            ready
                .into_iter()
                .map(|(ready, count)| ([("ready", ready.to_string())], count as f64)),
        )?;
        rows.gauges(
            "lariat_attach_breakers",
            "Volumes whose attach to a node is held back because it failed before",
            breakers.into_iter().map(|((node, state), count)| {
                let labels = [("node", node), ("state", state.to_owned())];
                (labels, count as f64)
            }),
        )
    }
}

/// A person must act; the next attempt comes by itself; the engine is restarted where it was.
const BREAKER_STATES: [&str; 3] = ["held", "backing-off", "restarting"];

/// Where a volume's attach is held back, and how.
fn breaker_of(volume: &Volume, now: Timestamp) -> Option<(String, &'static str)> {
    let [held, backing_off, restarting] = BREAKER_STATES;
    let record = volume
        .annotations()
        .get(breaker::ANNOTATION)
        .and_then(|text| serde_json::from_str::<AttachRecord>(text).ok());
    match record.map(|record| BreakerPolicy::default().gate(&record, now)) {
        Some(Gate::Held { last, .. }) => return Some((last.node.to_string(), held)),
        Some(Gate::BackingOff { last, .. }) => return Some((last.node.to_string(), backing_off)),
        Some(Gate::Open) | None => {}
    }
    let restarts = volume.status.as_ref().map(|status| status.engine_restarts);
    (restarts > Some(0)).then(|| (volume.spec.node_id.clone(), restarting))
}

fn age(since: Option<&Time>, now: Timestamp) -> f64 {
    since.map_or(0.0, |since| {
        now.duration_since(since.0).as_secs_f64().max(0.0)
    })
}

impl fmt::Debug for ClusterMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterMetrics")
    }
}

impl Collector for ClusterMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Half of the world would be read as the whole of it.
        if !self.objects.is_ready() {
            return Ok(());
        }
        let (now, mut rows) = (Timestamp::now(), Rows::new(encoder));
        self.tickets(&mut rows, now)?;
        self.pending(&mut rows, now)?;
        self.volumes(&mut rows)?;
        self.nodes(&mut rows, now)
    }
}
