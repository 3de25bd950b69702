//! The circuit breaker: an attach that keeps failing backs off, and is then held with its last reason.
//!
//! Upstream retries for ever and keeps no reason (longhorn #5001, #12728), which leaves a person no quiet
//! moment to repair anything. Here the count and the last failure are an annotation of the Volume,
//! so they survive the controller; the volume is released when something that the attach depends on changes, or when
//! a person resumes it.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::names::{NodeName, TicketId};
use crate::view::{View, VolumeState};

/// The Volume's annotation that holds the record, as JSON.
pub const ANNOTATION: &str = "lariat.io/attach-record";
/// The Volume's annotation that a person sets to a new value to resume a held volume.
pub const RESUME_ANNOTATION: &str = "lariat.io/resume";

/// How attach attempts of one volume have fared. Absent when the last one succeeded and stayed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AttachRecord {
    /// Failures in a row.
    pub failures: u32,
    /// The attempt that is under way, or that succeeded and is still watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<Failure>,
    /// What the attempts depended on when the last one failed; see [`fingerprint`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
    /// The value of [`RESUME_ANNOTATION`] that is already taken into account.
    #[serde(default)]
    pub resumed: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Attempt {
    pub ticket: TicketId,
    pub node: NodeName,
    pub since: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached_since: Option<Timestamp>,
    /// It was attached, and its engine is restarted where it was: the engine's errors are for whoever restarts it, and
    /// only the time that it takes counts here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restarting: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Failure {
    pub at: Timestamp,
    pub node: NodeName,
    pub reason: Arc<str>,
}

/// A number that differs when something the attach depends on differs. Text, because JSON numbers lose bits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(pub Arc<str>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BreakerPolicy {
    /// This many failures in a row hold the volume.
    pub failures_max: u32,
    pub backoff_first: SignedDuration,
    pub backoff_max: SignedDuration,
    /// An attach that takes longer has failed.
    pub attach_deadline: SignedDuration,
    /// An attachment that lasts this long was a success.
    pub stable_after: SignedDuration,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            // 1 + 2 + 4 + 8 + 16 seconds of backoff: most passing troubles pass within half a minute.
            failures_max: 6,
            backoff_first: SignedDuration::from_secs(1),
            backoff_max: SignedDuration::from_mins(5),
            // Twice what a healthy attach of a large volume may need to open its replicas.
            attach_deadline: SignedDuration::from_mins(3),
            stable_after: SignedDuration::from_secs(60),
        }
    }
}

/// What the record says about the next attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    Open,
    BackingOff {
        until: Timestamp,
        failures: u32,
        last: Failure,
    },
    Held {
        failures: u32,
        last: Failure,
    },
}

impl BreakerPolicy {
    #[must_use]
    pub fn gate(&self, record: &AttachRecord, now: Timestamp) -> Gate {
        let Some(last) = &record.last_failure else {
            return Gate::Open;
        };
        let failures = record.failures;
        if failures >= self.failures_max {
            return Gate::Held {
                failures,
                last: last.clone(),
            };
        }
        match last.at.checked_add(self.backoff(failures)) {
            Ok(until) if now < until => Gate::BackingOff {
                until,
                failures,
                last: last.clone(),
            },
            _ => Gate::Open,
        }
    }

    fn backoff(&self, failures: u32) -> SignedDuration {
        let doublings = failures.saturating_sub(1).min(30);
        self.backoff_first
            .checked_mul(1 << doublings)
            .map_or(self.backoff_max, |wait| wait.min(self.backoff_max))
    }
}

/// What the world says about the attempt of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// Nothing new, or nothing to watch.
    Unchanged,
    /// Something the attempts depended on has changed, or a person resumed: start counting afresh.
    Reset(Reset),
    /// The volume is attached; watch whether it stays.
    Attached(AttachRecord),
    /// Attached long enough, or no longer wanted there: the record has served its purpose.
    Done,
    /// The attempt failed. `detach`: the volume must let go before the next one.
    Failed { record: AttachRecord, detach: bool },
}

/// Why counting starts afresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    Changed,
    Resumed,
}

/// Compares the volume's record with the world.
#[must_use]
pub fn observe(view: &View, policy: &BreakerPolicy) -> Observation {
    let Some(record) = &view.volume.attach else {
        return Observation::Unchanged;
    };
    if record.failures > 0 {
        if record.resumed != view.volume.resume {
            return Observation::Reset(Reset::Resumed);
        }
        if record.fingerprint.as_ref() != Some(&fingerprint(view)) {
            return Observation::Reset(Reset::Changed);
        }
    }
    let Some(attempt) = &record.attempt else {
        return Observation::Unchanged;
    };
    if view.volume.spec.node.as_ref() != Some(&attempt.node) {
        return abandoned(record);
    }
    // An engine that fails is restarted where it was, and its users may not even notice; only an exhausted budget takes
    // the volume off.
    let exhausted = record.failures + 1 >= policy.failures_max;
    if let Some(reason) = failure_of(view, attempt, policy) {
        let detach = exhausted || attempt.attached_since.is_none() || view.volume.is_faulted();
        return failed(view, record, attempt, reason, detach);
    }
    let attached = view.volume.status.is_attached_on(&attempt.node);
    match (attached, attempt.attached_since) {
        (true, None) => {
            let attempt = Attempt {
                attached_since: Some(view.now),
                restarting: false,
                ..attempt.clone()
            };
            Observation::Attached(AttachRecord {
                attempt: Some(attempt),
                ..record.clone()
            })
        }
        (true, Some(since)) if view.now.duration_since(since) >= policy.stable_after => {
            Observation::Done
        }
        (false, Some(_)) => {
            let reason = format!(
                "the volume was attached to node {} and fell off again",
                attempt.node
            );
            failed(view, record, attempt, reason, exhausted)
        }
        (true, Some(_)) | (false, None) => Observation::Unchanged,
    }
}

/// The volume was sent elsewhere or let go on purpose: that is no failure.
fn abandoned(record: &AttachRecord) -> Observation {
    if record.failures == 0 {
        return Observation::Done;
    }
    Observation::Attached(AttachRecord {
        attempt: None,
        ..record.clone()
    })
}

fn failure_of(view: &View, attempt: &Attempt, policy: &BreakerPolicy) -> Option<String> {
    let node = &attempt.node;
    if view.volume.is_faulted() {
        return Some(format!(
            "the volume faulted while it was attached to node {node}"
        ));
    }
    if view.volume.status.is_attached_on(node) {
        return None;
    }
    // Until the volume has begun to attach, an engine's error is that of the attempt before.
    let begun = view.volume.status.state != VolumeState::Detached;
    let counts = begun && !attempt.restarting;
    let engine = view.engines.on(node).filter(|_| counts);
    if let Some(error) = engine.and_then(|engine| engine.error.as_ref()) {
        return Some(format!("its engine on node {node} failed: {error}"));
    }
    // A failed engine gives way to the next one at once, so that its error may never be seen here.
    let failed_at = view.volume.status.engine_failed_at.filter(|_| counts);
    if failed_at.is_some_and(|at| at >= attempt.since) {
        return Some(format!("its engine on node {node} failed"));
    }
    let overdue = attempt.attached_since.is_none()
        && view.now.duration_since(attempt.since) >= policy.attach_deadline;
    overdue.then(|| {
        let seconds = policy.attach_deadline.as_secs();
        let state = view.volume.status.state.wire();
        format!("it was not attached to node {node} within {seconds} s and is {state}")
    })
}

fn failed(
    view: &View,
    record: &AttachRecord,
    attempt: &Attempt,
    reason: String,
    detach: bool,
) -> Observation {
    let retry = Attempt {
        since: view.now,
        attached_since: None,
        restarting: true,
        ..attempt.clone()
    };
    Observation::Failed {
        record: AttachRecord {
            failures: record.failures.saturating_add(1),
            attempt: (!detach).then_some(retry),
            last_failure: Some(Failure {
                at: view.now,
                node: attempt.node.clone(),
                reason: reason.into(),
            }),
            fingerprint: Some(fingerprint(view)),
            resumed: view.volume.resume.clone(),
        },
        detach,
    }
}

/// What an attach depends on: the tickets that could be served, and which nodes are up. The volume's own state
/// is left out, because a failing attach changes it by itself.
#[must_use]
pub fn fingerprint(view: &View) -> Fingerprint {
    let mut hash = Fnv::default();
    for ticket in view.tickets.values().filter(|ticket| ticket.is_eligible()) {
        for part in [
            ticket.id.as_str(),
            ticket.attacher.wire(),
            ticket.node.as_str(),
            ticket.frontend.wire(),
        ] {
            hash.text(part);
        }
        hash.bytes(&ticket.generation.0.to_le_bytes());
    }
    for (name, node) in &view.nodes.listed {
        hash.text(name.as_str());
        hash.bytes(&[u8::from(node.ready)]);
    }
    Fingerprint(format!("{:016x}", hash.0).into())
}

/// FNV-1a. The result is written into objects, so it must not change with the compiler as the standard
/// hasher may.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// Names cannot contain a zero byte, so the end of one is never mistaken for part of the next.
    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
        self.bytes(&[0]);
    }
}
