//! The reaper: which tickets nobody needs any more.
//!
//! A ticket that outlives its reason holds the volume for ever: a manual attachment that an upgrade invented
//! (longhorn #8339), a backup whose snapshot is gone (longhorn #10090), a pod's ticket on a node that was removed. [`reap`]
//! compares every ticket with what it was filed for. What looks abandoned is first *suspected*, and removed only
//! when it has looked so for a whole grace period: an object that a cache has not shown yet must not cost a pod its disk.
//!
//! Suspicions are data that the caller carries from pass to pass. Losing them costs time and nothing else: the grace
//! period starts anew. Heartbeats are compared with earlier heartbeats and never with a clock, so holder and reaper
//! need not agree on the time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::attacher::AttacherKind;
use crate::names::{Generation, NodeName, TicketId, VolumeName};
use crate::ticket::{ObjectName, Ticket};

/// What exists. An index that is None has not been read yet, and nothing is concluded from it.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// Names of Kubernetes' VolumeAttachments, those being deleted included.
    pub kubernetes_attachments: Option<BTreeSet<Arc<str>>>,
    pub snapshots: Option<BTreeMap<Arc<str>, Fate>>,
    pub backups: Option<BTreeMap<Arc<str>, Fate>>,
    pub nodes: Option<BTreeSet<NodeName>>,
    /// Objects that leases may name, by `Kind.group`: names and uids.
    pub owners: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Arc<str>>>,
    /// What nodes that answer say they use. What a node that is lost said last is no obstacle: it is fenced.
    pub in_use: BTreeSet<(NodeName, VolumeName)>,
}

/// What may still happen to an object that a ticket was filed for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It needs, or may need, its volume.
    Active,
    /// It is done, with this result.
    Final { result: Arc<str> },
    /// It is not done and can never be, for this reason.
    Hopeless { reason: Arc<str> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long a ticket must look abandoned.
    pub grace: SignedDuration,
    /// The same for manual tickets that nobody answers for and that keep a workload waiting. A person may be at
    /// work there, so this is long; our own manual tickets have a deadline instead.
    pub unclaimed_grace: SignedDuration,
    /// A holder that misses this many heartbeats is gone.
    pub heartbeats_missed_max: i32,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            // Longer than any cache lags behind, shorter than a person notices.
            grace: SignedDuration::from_mins(2),
            unclaimed_grace: SignedDuration::from_hours(24),
            heartbeats_missed_max: 3,
        }
    }
}

/// Why nobody needs a ticket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    #[error("its Kubernetes VolumeAttachment {name:?} does not exist")]
    AttachmentGone { name: TicketId },
    #[error("the {what} {name:?} that it was filed for does not exist")]
    ObjectGone { what: &'static str, name: Arc<str> },
    #[error("the {what} {name:?} that it was filed for is done: {result}")]
    ObjectFinal {
        what: &'static str,
        name: Arc<str>,
        result: Arc<str>,
    },
    #[error("the {what} {name:?} that it was filed for can never be done: {reason}")]
    ObjectHopeless {
        what: &'static str,
        name: Arc<str>,
        reason: Arc<str>,
    },
    #[error("its deadline {deadline} has passed")]
    DeadlinePassed { deadline: Timestamp },
    #[error("node {node} does not exist")]
    NodeGone { node: NodeName },
    #[error("its owner {owner} does not exist")]
    OwnerGone { owner: String },
    #[error("its holder promised a heartbeat every {period_seconds} s and has missed {missed}")]
    HeartbeatMissed { period_seconds: i64, missed: i32 },
    #[error(
        "nobody answers for this manual attachment, and {waiting:?} waits for the volume on node {node}"
    )]
    Unclaimed { waiting: TicketId, node: NodeName },
}

/// What is remembered about a ticket between two passes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Memory {
    generation: Generation,
    suspected_since: Option<Timestamp>,
    beat: Option<(Arc<str>, Timestamp)>,
}

/// What is remembered from pass to pass. Starts empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suspicions(BTreeMap<VolumeName, BTreeMap<TicketId, Memory>>);

impl Suspicions {
    /// Takes back that a ticket was removed, which then failed: the next pass removes it at once instead of waiting for another
    /// grace. `before` is what was known to the pass that wanted to remove it.
    pub fn keep(&mut self, removal: &Removal, before: &Self) {
        let known = before
            .0
            .get(&removal.volume)
            .and_then(|memories| memories.get(&removal.ticket));
        let memory = Memory {
            generation: removal.generation,
            suspected_since: Some(removal.suspected_since),
            beat: known.and_then(|memory| memory.beat.clone()),
        };
        self.0
            .entry(removal.volume.clone())
            .or_default()
            .insert(removal.ticket.clone(), memory);
    }
}

/// A ticket to remove, if it still has this generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    pub volume: VolumeName,
    pub ticket: TicketId,
    pub generation: Generation,
    pub cause: Cause,
    pub suspected_since: Timestamp,
    /// A workload on the ticket's node has the volume in use, so the ticket waits for that to end, however long it takes: nobody
    /// needs it, but taking it away would stop the engine below a mounted file system.
    pub in_use: bool,
}

/// The result of one pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reaping {
    pub removals: Vec<Removal>,
    /// Tickets under suspicion that are not removed yet; the same form, so that events can say what will happen.
    pub suspects: Vec<Removal>,
    /// To be given to the next pass.
    pub suspicions: Suspicions,
    /// When the next suspect is due, or the next heartbeat.
    pub recheck_after: Option<SignedDuration>,
}

/// One pass over all volumes.
pub fn reap<'a>(
    volumes: impl IntoIterator<Item = (&'a VolumeName, &'a BTreeMap<TicketId, Ticket>)>,
    world: &World,
    before: &Suspicions,
    policy: &Policy,
    now: Timestamp,
) -> Reaping {
    let mut reaping = Reaping::default();
    for (volume, tickets) in volumes {
        for ticket in tickets.values() {
            let known = before
                .0
                .get(volume)
                .and_then(|memories| memories.get(&ticket.id));
            // A changed request is a new ticket: whoever changed it is alive.
            let known = known.filter(|memory| memory.generation == ticket.generation);
            let beat = heartbeat(ticket, known, now);
            let cause = cause(ticket, tickets, world, now)
                .or_else(|| silence(ticket, beat.as_ref(), policy, now));
            let Some(cause) = cause else {
                if let Some(beat) = beat {
                    let due = next_beat_due(ticket, &beat, policy);
                    reaping.remember(volume, ticket, None, Some(beat), due, now);
                }
                continue;
            };
            let since = known
                .and_then(|memory| memory.suspected_since)
                .unwrap_or(now);
            let grace = match cause {
                Cause::Unclaimed { .. } => policy.unclaimed_grace,
                _ => policy.grace,
            };
            let removal = Removal {
                volume: volume.clone(),
                ticket: ticket.id.clone(),
                generation: ticket.generation,
                cause,
                suspected_since: since,
                in_use: is_in_use(ticket, volume, world),
            };
            if !removal.in_use && now.duration_since(since) >= grace {
                reaping.removals.push(removal);
            } else {
                // The end of a use is seen, and not waited for by the clock.
                let due = since.checked_add(grace).ok().filter(|_| !removal.in_use);
                reaping.suspects.push(removal);
                reaping.remember(volume, ticket, Some(since), beat, due, now);
            }
        }
    }
    reaping
}

impl Reaping {
    fn remember(
        &mut self,
        volume: &VolumeName,
        ticket: &Ticket,
        suspected_since: Option<Timestamp>,
        beat: Option<(Arc<str>, Timestamp)>,
        due: Option<Timestamp>,
        now: Timestamp,
    ) {
        let memory = Memory {
            generation: ticket.generation,
            suspected_since,
            beat,
        };
        self.suspicions
            .0
            .entry(volume.clone())
            .or_default()
            .insert(ticket.id.clone(), memory);
        if let Some(due) = due {
            let after = due.duration_since(now).max(SignedDuration::ZERO);
            self.recheck_after = Some(self.recheck_after.map_or(after, |sooner| sooner.min(after)));
        }
    }
}

fn is_in_use(ticket: &Ticket, volume: &VolumeName, world: &World) -> bool {
    let place = || (ticket.node.clone(), volume.clone());
    ticket.attacher.is_workload() && world.in_use.contains(&place())
}

/// Why the ticket looks abandoned right now, if it does.
fn cause(
    ticket: &Ticket,
    tickets: &BTreeMap<TicketId, Ticket>,
    world: &World,
    now: Timestamp,
) -> Option<Cause> {
    if let Some(deadline) = ticket.lease.deadline.filter(|deadline| now >= *deadline) {
        return Some(Cause::DeadlinePassed { deadline });
    }
    if world
        .nodes
        .as_ref()
        .is_some_and(|nodes| !nodes.contains(&ticket.node))
    {
        return Some(Cause::NodeGone {
            node: ticket.node.clone(),
        });
    }
    if let Some(cause) = owner_gone(ticket, world) {
        return Some(cause);
    }
    match ticket.attacher.kind()? {
        AttacherKind::Csi => {
            let known = world.kubernetes_attachments.as_ref()?;
            (!known.contains(ticket.id.as_str())).then(|| Cause::AttachmentGone {
                name: ticket.id.clone(),
            })
        }
        AttacherKind::Snapshot => object_over("snapshot", ticket, world.snapshots.as_ref()?),
        AttacherKind::Backup => object_over("backup", ticket, world.backups.as_ref()?),
        AttacherKind::Manual => unclaimed(ticket, tickets),
        // These follow the state of the volume itself, and their controllers see that state too.
        AttacherKind::Restore
        | AttacherKind::Clone
        | AttacherKind::ShareManager
        | AttacherKind::Expansion
        | AttacherKind::Rebuilding
        | AttacherKind::Salvage
        | AttacherKind::Eviction
        | AttacherKind::BackingImage => None,
    }
}

fn owner_gone(ticket: &Ticket, world: &World) -> Option<Cause> {
    let owner = ticket.lease.owner.as_ref()?;
    let known = world.owners.get(&owner.kind)?;
    let alive = match (known.get(&owner.name), &owner.uid) {
        (Some(uid), Some(expected)) => uid == expected,
        (found, _) => found.is_some(),
    };
    (!alive).then(|| Cause::OwnerGone {
        owner: owner.to_string(),
    })
}

fn object_over(
    what: &'static str,
    ticket: &Ticket,
    known: &BTreeMap<Arc<str>, Fate>,
) -> Option<Cause> {
    // A ticket that does not follow the naming rule was filed by somebody else, for a reason that we cannot check.
    let object = ticket.object()?;
    match find(known, object) {
        None => Some(Cause::ObjectGone {
            what,
            name: object.start.into(),
        }),
        Some((_, Fate::Active)) => None,
        Some((name, Fate::Final { result })) => Some(Cause::ObjectFinal {
            what,
            name: name.clone(),
            result: result.clone(),
        }),
        Some((name, Fate::Hopeless { reason })) => Some(Cause::ObjectHopeless {
            what,
            name: name.clone(),
            reason: reason.clone(),
        }),
    }
}

fn find<'k>(
    known: &'k BTreeMap<Arc<str>, Fate>,
    object: ObjectName<'_>,
) -> Option<(&'k Arc<str>, &'k Fate)> {
    if object.exact {
        return known.get_key_value(object.start);
    }
    // The id was cut, so several objects may be meant: the ticket is needed as long as one of them is active.
    let mut meant = known
        .range::<str, _>((Bound::Included(object.start), Bound::Unbounded))
        .take_while(|(name, _)| name.starts_with(object.start));
    let first = meant.next()?;
    Some(
        meant
            .find(|(_, fate)| **fate == Fate::Active)
            .filter(|_| *first.1 != Fate::Active)
            .unwrap_or(first),
    )
}

/// A manual ticket without owner, deadline or heartbeat that keeps a workload waiting elsewhere.
fn unclaimed(ticket: &Ticket, tickets: &BTreeMap<TicketId, Ticket>) -> Option<Cause> {
    if !ticket.lease.is_empty() {
        return None;
    }
    let waiting = tickets
        .values()
        .find(|other| other.is(AttacherKind::Csi) && other.node != ticket.node)?;
    Some(Cause::Unclaimed {
        waiting: waiting.id.clone(),
        node: waiting.node.clone(),
    })
}

/// The ticket's latest beat, and when we first saw it.
fn heartbeat(
    ticket: &Ticket,
    known: Option<&Memory>,
    now: Timestamp,
) -> Option<(Arc<str>, Timestamp)> {
    let beat = &ticket.lease.heartbeat.as_ref()?.beat;
    let seen = known
        .and_then(|memory| memory.beat.as_ref())
        .filter(|(seen, _)| seen == beat);
    Some(seen.cloned().unwrap_or_else(|| (beat.clone(), now)))
}

fn silence(
    ticket: &Ticket,
    beat: Option<&(Arc<str>, Timestamp)>,
    policy: &Policy,
    now: Timestamp,
) -> Option<Cause> {
    let due = next_beat_due(ticket, beat?, policy)?;
    let period_seconds = ticket.lease.heartbeat.as_ref()?.period.as_secs();
    (now >= due).then_some(Cause::HeartbeatMissed {
        period_seconds,
        missed: policy.heartbeats_missed_max,
    })
}

fn next_beat_due(
    ticket: &Ticket,
    beat: &(Arc<str>, Timestamp),
    policy: &Policy,
) -> Option<Timestamp> {
    let period = ticket.lease.heartbeat.as_ref()?.period;
    beat.1
        .checked_add(period.checked_mul(policy.heartbeats_missed_max)?)
        .ok()
}

#[cfg(test)]
mod tests;
