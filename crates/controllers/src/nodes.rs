//! The node monitor: which nodes answer, judged from their leases.
//!
//! A node's agent renews the Lease `lariat-node-NAME`. The monitor never compares clocks: it notes when *it* sees the lease
//! change. Silence counts only while the same watch brings other changes: the manager's own lease, renewed every second,
//! is among them. When the watch itself was silent (the API was down, this process was paused), or when the monitor has
//! just started, every node gets a whole new period.
//!
//! It is the only author of `nodes.longhorn.io` `status.conditions`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api_types::condition::{self, ConditionStatus};
use api_types::names::{NAMESPACE, event_reason};
use api_types::node_condition;
use events::EventKind;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::runtime::{Context, Next, Queue, Stop, reference};

/// What the names of nodes' leases begin with.
pub const LEASE_PREFIX: &str = "lariat-node-";
const WORKERS: usize = 8;

/// What is known of all leases.
struct Monitor {
    period: Duration,
    /// The last change of any lease: the watch lives.
    heard: Instant,
    /// Everybody has a whole period from here.
    since: Instant,
    nodes: HashMap<String, Seen>,
}

/// A node's lease, as last seen.
struct Seen {
    beat: String,
    /// When it changed, if it has since we began to look.
    changed: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judgement {
    Ready {
        until: Instant,
    },
    /// Not enough has been seen: what was said of the node last still stands.
    Undecided {
        until: Instant,
    },
    Lost,
}

impl Monitor {
    fn new(period: Duration, now: Instant) -> Self {
        Self {
            period,
            heard: now,
            since: now,
            nodes: HashMap::new(),
        }
    }

    /// Any lease has changed. True when the watch had been silent, so that all judgements start anew.
    fn hear(&mut self, now: Instant) -> bool {
        let silence = now.saturating_duration_since(self.heard);
        self.heard = now;
        let was_deaf = silence >= self.period * 3 / 4;
        if was_deaf {
            self.since = now;
        }
        was_deaf
    }

    fn see(&mut self, node: &str, beat: &str, now: Instant) {
        match self.nodes.get_mut(node) {
            Some(seen) if seen.beat == beat => {}
            Some(seen) => {
                beat.clone_into(&mut seen.beat);
                seen.changed = Some(now);
            }
            None => {
                let seen = Seen {
                    beat: beat.to_owned(),
                    changed: Some(now),
                };
                self.nodes.insert(node.to_owned(), seen);
            }
        }
    }

    /// A lease that was there when we began to look: it may be old.
    fn remember(&mut self, node: &str, beat: &str) {
        let seen = Seen {
            beat: beat.to_owned(),
            changed: None,
        };
        self.nodes.insert(node.to_owned(), seen);
    }

    fn judge(&self, node: &str, now: Instant) -> Judgement {
        let changed = self.nodes.get(node).and_then(|seen| seen.changed);
        let until = changed.map_or(self.since, |changed| changed.max(self.since)) + self.period;
        // The time is up only when something was heard after it: else it is us who are deaf.
        if now >= until && self.heard >= until {
            return Judgement::Lost;
        }
        let until = until.max(now + self.period / 8);
        match changed {
            Some(changed) if changed >= self.since => Judgement::Ready { until },
            _ => Judgement::Undecided { until },
        }
    }
}

/// Runs until cancelled. `own_lease` is the leader's.
pub async fn run(
    context: Context,
    lost_after: Duration,
    own_lease: String,
    stop: CancellationToken,
) {
    let queue = Queue::named("nodes", &context.metrics);
    let objects = &context.objects;
    let monitor = Arc::new(Mutex::new(Monitor::new(lost_after, Instant::now())));
    for lease in objects.leases.all() {
        if let Some(node) = lease.name_any().strip_prefix(LEASE_PREFIX) {
            lock(&monitor).remember(node, &beat(&lease));
        }
    }
    let (add, seen, nodes) = (queue.clone(), Arc::clone(&monitor), objects.nodes.clone());
    let _leases = objects.leases.subscribe(move |lease| {
        let (name, now) = (lease.name_any(), Instant::now());
        let Some(node) = name.strip_prefix(LEASE_PREFIX) else {
            if name == own_lease && lock(&seen).hear(now) {
                for node in nodes.all() {
                    add.add(node.name_any());
                }
            }
            return;
        };
        let mut monitor = lock(&seen);
        monitor.hear(now);
        monitor.see(node, &beat(lease), now);
        drop(monitor);
        add.add(node);
    });
    let add = queue.clone();
    let _nodes = objects
        .nodes
        .subscribe(move |node| add.add(node.name_any()));
    let add = queue.clone();
    let _kubernetes_nodes = objects
        .kubernetes_nodes
        .subscribe(move |node| add.add(node.name_any()));
    for node in objects.nodes.all() {
        queue.add(node.name_any());
    }
    queue
        .run(WORKERS, stop, |name| {
            let (context, monitor) = (context.clone(), Arc::clone(&monitor));
            let span = tracing::info_span!("node", node.name = %name);
            async move {
                let result = reconcile(&context, &monitor, &name, lost_after).await;
                result.unwrap_or_else(|stop| stop.next())
            }
            .instrument(span)
        })
        .await;
}

fn lock(monitor: &Mutex<Monitor>) -> MutexGuard<'_, Monitor> {
    monitor.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whatever changes when the agent renews, or when another agent takes its place.
fn beat(lease: &Lease) -> String {
    let spec = lease.spec.clone().unwrap_or_default();
    let time = spec.renew_time.map(|time| time.0.to_string());
    format!(
        "{} {}",
        spec.holder_identity.unwrap_or_default(),
        time.unwrap_or_default()
    )
}

async fn reconcile(
    context: &Context,
    monitor: &Mutex<Monitor>,
    name: &str,
    lost_after: Duration,
) -> Result<Next, Stop> {
    let Some(node) = context.objects.nodes.get(NAMESPACE, name) else {
        return Ok(Next::Wait);
    };
    let now = Instant::now();
    let judgement = lock(monitor).judge(name, now);
    let before = node
        .status
        .as_ref()
        .map(|status| status.conditions.clone())
        .unwrap_or_default();
    let mut after = before.clone();
    let at = Timestamp::now().to_string();
    let silent = format!(
        "the node's agent has not renewed its lease {LEASE_PREFIX}{name} for {} s: see whether the agent runs and reaches the API",
        lost_after.as_secs_f64()
    );
    let ready = match judgement {
        Judgement::Ready { .. } => Some((ConditionStatus::True, "LeaseRenewed", "")),
        Judgement::Lost => Some((ConditionStatus::False, "LeaseExpired", silent.as_str())),
        Judgement::Undecided { .. } => None,
    };
    if let Some((status, reason, message)) = ready {
        condition::set(
            &mut after,
            node_condition::READY,
            status,
            reason,
            message,
            &at,
        );
    }
    write_cordon(context, name, &mut after, &at);
    if after != before {
        let patch = json!({
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "status": {"conditions": after},
        });
        context
            .writer(&context.objects.nodes)
            .merge_status(name, &patch)
            .await?;
        tell(context, &node, &before, &after);
    }
    Ok(match judgement {
        Judgement::Ready { until } | Judgement::Undecided { until } => {
            Next::After(until.saturating_duration_since(now))
        }
        Judgement::Lost => Next::Wait,
    })
}

/// A cordoned Kubernetes node gets no new replicas.
fn write_cordon(
    context: &Context,
    name: &str,
    conditions: &mut Vec<api_types::Condition>,
    at: &str,
) {
    let Some(node) = context.objects.kubernetes_nodes.get_cluster_wide(name) else {
        return;
    };
    let is_cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    let (reason, message) = if is_cordoned {
        (
            "KubernetesNodeCordoned",
            "the Kubernetes node is cordoned: uncordon it to place replicas on it",
        )
    } else {
        ("", "")
    };
    condition::set(
        conditions,
        node_condition::SCHEDULABLE,
        (!is_cordoned).into(),
        reason,
        message,
        at,
    );
}

fn tell(
    context: &Context,
    node: &api_types::Node,
    before: &[api_types::Condition],
    after: &[api_types::Condition],
) {
    let status = |conditions: &[api_types::Condition]| {
        condition::find(conditions, node_condition::READY).map(|found| found.status.clone())
    };
    if status(before) == status(after) {
        return;
    }
    let Some(ready) = condition::find(after, node_condition::READY) else {
        return;
    };
    if ready.status == ConditionStatus::True {
        tracing::info!("ready");
        context.tell(
            reference(node),
            EventKind::Normal,
            "Ready",
            "the node answers",
        );
    } else {
        tracing::warn!(message = ready.message, "lost");
        let (kind, reason) = (EventKind::Warning, event_reason::LOST);
        context.tell(reference(node), kind, reason, &ready.message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds after the start: `N node BEAT` is a renewal, `N other` another lease's change. Then judged at `at`.
    fn check(remembered: bool, steps: &str, at: f64, expected: &str) {
        let start = Instant::now();
        let time = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let mut monitor = Monitor::new(Duration::from_secs(4), start);
        if remembered {
            monitor.remember("n", "old");
        }
        for step in steps
            .split(',')
            .map(str::trim)
            .filter(|step| !step.is_empty())
        {
            let words: Vec<&str> = step.split_whitespace().collect();
            let now = time(words[0].parse().expect("a time"));
            monitor.hear(now);
            if words[1] == "node" {
                monitor.see("n", words[2], now);
            }
        }
        let judged = match monitor.judge("n", time(at)) {
            Judgement::Ready { .. } => "ready",
            Judgement::Undecided { .. } => "undecided",
            Judgement::Lost => "lost",
        };
        assert_eq!(judged, expected, "{steps} at {at}");
    }

    const OTHERS: &str = "1 other, 2 other, 3 other, 4 other, 5 other";

    #[test]
    fn silence_counts_from_the_last_change_that_was_seen() {
        check(true, "1 node a, 2 other, 3 other, 4 other", 4.5, "ready");
        check(
            true,
            "1 node a, 2 other, 3 other, 4 other, 5 other",
            5.0,
            "lost",
        );
        check(true, "1 node old, 2 other, 3 other, 4 other", 4.0, "lost");
        check(false, "0.1 node a, 1 other, 2 other", 2.0, "ready");
    }

    #[test]
    fn a_new_monitor_gives_everybody_a_whole_period() {
        check(true, "", 0.0, "undecided");
        check(true, OTHERS, 3.9, "undecided");
        check(true, OTHERS, 4.0, "lost");
        check(false, OTHERS, 4.0, "lost");
    }

    #[test]
    fn a_deaf_monitor_condemns_nobody() {
        check(true, "1 node a", 30.0, "ready");
        check(true, "1 node a, 30 other", 30.0, "undecided");
        check(true, "1 node a, 30 other, 31 node b", 31.0, "ready");
        check(
            true,
            "1 node a, 30 other, 31 other, 32 other, 33 other, 34 other",
            34.0,
            "lost",
        );
    }
}
