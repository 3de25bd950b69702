//! Having the right number of replicas in the right places: first ones, replacements, eviction,
//! locality, and removal of what is too many.

mod surplus;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::draft::Draft;
use crate::epoch::InSyncRecord;
use crate::identity::{Epoch, NodeName, ReplicaName};
use crate::placement::{Place, Request, place};
use crate::plan::{ReplicaDesired, ReplicaRole, ReplicaSpec};
use crate::reason::Reason;
use crate::view::{DataLocality, ReplicaObserved};

/// A replica that has just failed is given a moment before it is rebuilt, so that one that fails at
/// once does not turn into a loop.
const REUSE_AFTER: Duration = Duration::from_secs(5);
/// How long a rebuild waits before it looks whether its node has finished another.
const LOOK_AGAIN_AT_BUSY_NODE_AFTER: Duration = Duration::from_secs(5);

/// A new volume's replicas. They are empty, therefore equal, therefore in sync; this holds until the
/// first engine starts, so a late one joins without being rebuilt.
pub(super) fn create_first_replicas(draft: &mut Draft<'_>) {
    if draft.status.record.epoch != Epoch::NONE {
        return;
    }
    draft.status.unschedulable = None;
    // Members without an object mean a crash between two writes, failed ones a lost disk. Nothing was
    // ever written, so others will do.
    let before = draft.status.record.members.clone();
    draft.status.record.members.retain(|name| {
        draft
            .replicas
            .get(name)
            .is_some_and(|spec| spec.failed_at.is_none())
    });
    // One that was only away for a moment is as empty as the others.
    for name in draft.replicas.keys().cloned().collect::<Vec<_>>() {
        let is_broken = matches!(draft.observed(&name), ReplicaObserved::Failed { .. });
        let place_ready = draft
            .replicas
            .get(&name)
            .is_some_and(|spec| draft.view.is_place_ready(spec));
        if let Some(spec) = draft.replicas.get_mut(&name)
            && place_ready
            && !is_broken
        {
            spec.failed_at = None;
        }
    }
    while staying(draft).len() + incoming(draft).len() < draft.view.volume.replicas_wanted {
        if create_replica(draft, None).is_none() {
            break;
        }
    }
    let mut fresh: BTreeSet<ReplicaName> = draft
        .replicas
        .iter()
        .filter(|(_, spec)| spec.failed_at.is_none())
        .map(|(name, _)| name.clone())
        .collect();
    let enough = fresh.len() >= draft.view.volume.replicas_wanted
        || (draft.view.settings.allow_degraded_creation && !fresh.is_empty());
    if !enough {
        fresh.clear();
    }
    for name in &fresh {
        if let Some(spec) = draft.replicas.get_mut(name) {
            spec.healthy_at.get_or_insert(draft.now);
        }
    }
    if fresh != before {
        let version = draft.status.record.version.next();
        draft.status.record = InSyncRecord {
            version,
            members: fresh,
            ..draft.status.record.clone()
        };
    }
    if draft.status.size_bytes == 0 {
        draft.status.size_bytes = draft.view.volume.size_bytes;
    }
}

/// Keeps a running volume's replicas as many and as well placed as they should be.
pub(super) fn maintain(draft: &mut Draft<'_>) {
    let Some(running) = draft.running_writer() else {
        return;
    };
    draft.status.unschedulable = None;
    run_members(draft);
    surplus::remove_gone(draft, running);
    replace_missing(draft);
    add_local(draft);
    start_rebuilds(draft);
    surplus::remove_evicted_and_surplus(draft, running);
    surplus::remove_replaced(draft, running);
}

/// Members that are there to stay, whatever their condition: until the engine has gone on without one,
/// it may still be the best there is, and nothing is built in its place.
fn staying(draft: &Draft<'_>) -> BTreeSet<ReplicaName> {
    let writer = draft.writer().map(|(_, spec)| spec);
    let stays = |name: &&ReplicaName| {
        // The engine was told to leave those that its list has not got.
        let is_listed = writer.is_none_or(|spec| spec.replicas.contains_key(*name));
        let is_evicting = |spec| draft.view.is_evicting(spec);
        is_listed
            && draft
                .replicas
                .get(*name)
                .is_some_and(|spec| !is_evicting(spec))
    };
    draft
        .status
        .record
        .members
        .iter()
        .filter(stays)
        .cloned()
        .collect()
}

/// Replicas on their way into the set.
fn incoming(draft: &Draft<'_>) -> BTreeSet<ReplicaName> {
    draft
        .replicas
        .iter()
        .filter(|(name, spec)| {
            !draft.status.record.members.contains(*name)
                && spec.failed_at.is_none()
                && !draft.view.is_evicting(spec)
        })
        .map(|(name, _)| name.clone())
        .collect()
}

fn run_members(draft: &mut Draft<'_>) {
    let members = draft.status.record.members.clone();
    for (name, spec) in &mut draft.replicas {
        if members.contains(name) {
            spec.desired = ReplicaDesired::Running;
        } else if spec.failed_at.is_some() {
            spec.desired = ReplicaDesired::Stopped;
        }
    }
}

fn replace_missing(draft: &mut Draft<'_>) {
    for name in draft.status.record.members.clone() {
        if let Some(spec) = draft.replicas.get(&name)
            && draft.view.is_evicting(spec)
        {
            let place = Place {
                node: spec.node.clone(),
                disk: spec.disk.clone(),
            };
            draft.say(Reason::Evicting {
                replica: name,
                place,
            });
        }
    }
    while staying(draft).len() + incoming(draft).len() < draft.view.volume.replicas_wanted {
        match failed_replica(draft) {
            Failed::Reusable(name) => reuse(draft, &name),
            Failed::MayComeBack(name, wait) => {
                draft.recheck(wait);
                draft.say(Reason::WaitingForFailedReplica {
                    replica: name,
                    wait,
                });
                return;
            }
            Failed::None => {
                if create_replica(draft, None).is_none() {
                    return;
                }
            }
        }
    }
}

/// What can be expected of the replicas that have failed.
enum Failed {
    Reusable(ReplicaName),
    MayComeBack(ReplicaName, Duration),
    None,
}

fn failed_replica(draft: &Draft<'_>) -> Failed {
    let mut may_come_back: Option<(Duration, &ReplicaName)> = None;
    for (name, spec) in &draft.replicas {
        let (Some(failed_at), false) = (spec.failed_at, draft.status.record.members.contains(name))
        else {
            continue;
        };
        let is_broken = matches!(draft.observed(name), ReplicaObserved::Failed { .. });
        if is_broken || draft.view.is_place_gone(spec) || draft.view.is_evicting(spec) {
            continue;
        }
        let ago = draft.now.since(failed_at);
        let patience = if draft.view.is_place_ready(spec) {
            REUSE_AFTER
        } else {
            draft.view.settings.replenishment_wait
        };
        if draft.view.is_place_ready(spec) && ago >= patience {
            return Failed::Reusable(name.clone());
        }
        let left = patience.saturating_sub(ago);
        if !left.is_zero() && may_come_back.is_none_or(|(other, _)| left < other) {
            may_come_back = Some((left, name));
        }
    }
    may_come_back.map_or(Failed::None, |(left, name)| {
        Failed::MayComeBack(name.clone(), left)
    })
}

/// Rebuilding what is left of a replica copies only what differs.
fn reuse(draft: &mut Draft<'_>, name: &ReplicaName) {
    let size_bytes = size_to_build(draft);
    if let Some(spec) = draft.replicas.get_mut(name) {
        spec.failed_at = None;
        spec.healthy_at = None;
        spec.size_bytes = size_bytes;
    }
}

fn create_replica(draft: &mut Draft<'_>, only_node: Option<&NodeName>) -> Option<ReplicaName> {
    let occupied: BTreeSet<Place> = staying(draft)
        .union(&incoming(draft))
        .filter_map(|name| draft.replicas.get(name))
        .map(|spec| Place {
            node: spec.node.clone(),
            disk: spec.disk.clone(),
        })
        .collect();
    let avoided: BTreeSet<Place> = draft
        .replicas
        .iter()
        .filter(|(name, spec)| {
            spec.failed_at.is_some()
                && matches!(draft.observed(name), ReplicaObserved::Failed { .. })
        })
        .map(|(_, spec)| Place {
            node: spec.node.clone(),
            disk: spec.disk.clone(),
        })
        .collect();
    let mut promised: BTreeMap<Place, u64> = BTreeMap::new();
    for (_, spec) in draft
        .replicas
        .iter()
        .filter(|(name, _)| !draft.view.replicas.contains_key(*name))
    {
        let place = Place {
            node: spec.node.clone(),
            disk: spec.disk.clone(),
        };
        *promised.entry(place).or_insert(0) += spec.size_bytes;
    }
    let mut request = Request::of(
        &draft.view.volume,
        &occupied,
        &avoided,
        &promised,
        &draft.view.nodes,
        &draft.view.settings,
    );
    // Room for what the volume is to become, not only for what it is.
    request.size_bytes = size_to_build(draft).max(draft.view.volume.size_bytes);
    request.only_node = only_node.or(request.only_node);
    match place(&request) {
        Ok(place) => {
            // A disk holds one replica of a volume: what is left of a failed one makes room.
            if let Some(failed) = what_is_left_at(draft, &place)
                && !surplus::remove_broken(draft, &failed)
            {
                return None;
            }
            let name = next_name(draft);
            draft.say(Reason::CreatingReplica {
                replica: name.clone(),
                place: place.clone(),
            });
            let spec = ReplicaSpec {
                node: place.node,
                disk: place.disk,
                size_bytes: size_to_build(draft),
                epoch: draft.status.record.epoch,
                desired: ReplicaDesired::Stopped,
                failed_at: None,
                healthy_at: None,
            };
            draft.replicas.insert(name.clone(), spec);
            Some(name)
        }
        Err(_) if only_node.is_some() => None,
        Err(failure) => {
            draft.status.unschedulable = Some(failure.clone());
            draft.say(Reason::Unschedulable { failure });
            None
        }
    }
}

/// The failed replica at a place, where nobody else's will do.
fn what_is_left_at(draft: &Draft<'_>, place: &Place) -> Option<ReplicaName> {
    let mut failed = draft.replicas.iter().filter(|(name, spec)| {
        spec.failed_at.is_some() && !draft.status.record.members.contains(*name)
    });
    failed
        .find(|(_, spec)| (&spec.node, &spec.disk) == (&place.node, &place.disk))
        .map(|(name, _)| name.clone())
}

/// Counted, and beyond every name that exists: a plan that was half written is not repeated with the
/// same name for something else.
fn next_name(draft: &mut Draft<'_>) -> ReplicaName {
    let seen = draft
        .replicas
        .keys()
        .chain(&draft.status.record.members)
        .filter_map(ReplicaName::ordinal);
    let ordinal = seen
        .map(|ordinal| ordinal + 1)
        .max()
        .unwrap_or(0)
        .max(draft.status.replicas_created);
    draft.status.replicas_created = ordinal + 1;
    ReplicaName::of(&draft.view.volume.name, ordinal)
}

fn size_to_build(draft: &Draft<'_>) -> u64 {
    let serving = draft.writer().map_or(0, |(_, spec)| spec.size_bytes);
    match serving.max(draft.status.size_bytes) {
        0 => draft.view.volume.size_bytes,
        size_bytes => size_bytes,
    }
}

/// Best-effort locality: one more replica beside the engine; the surplus rule then drops another.
fn add_local(draft: &mut Draft<'_>) {
    if draft.view.volume.data_locality != DataLocality::BestEffort {
        return;
    }
    let Some(node) = draft.writer().map(|(_, spec)| spec.node.clone()) else {
        return;
    };
    let present: BTreeSet<ReplicaName> = staying(draft).union(&incoming(draft)).cloned().collect();
    let is_local = |name: &ReplicaName| {
        draft
            .replicas
            .get(name)
            .is_some_and(|spec| spec.node == node)
    };
    let settled =
        incoming(draft).is_empty() && staying(draft).len() >= draft.view.volume.replicas_wanted;
    if settled && !present.iter().any(is_local) {
        create_replica(draft, Some(&node));
    }
}

/// Hands waiting replicas to the engine, a few at a time.
fn start_rebuilds(draft: &mut Draft<'_>) {
    let Some(writer) = draft.writer().map(|(name, _)| name.clone()) else {
        return;
    };
    let is_handed_over = |draft: &Draft<'_>, name: &ReplicaName| {
        draft
            .engines
            .get(&writer)
            .is_some_and(|spec| spec.replicas.contains_key(name))
    };
    let waiting: Vec<ReplicaName> = incoming(draft).into_iter().collect();
    let mut active = waiting
        .iter()
        .filter(|name| is_handed_over(draft, name))
        .count();
    for name in waiting {
        if is_handed_over(draft, &name) {
            draft.say(Reason::Rebuilding { replica: name });
            continue;
        }
        let Some(node) = draft.replicas.get(&name).map(|spec| spec.node.clone()) else {
            continue;
        };
        if !draft.is_available(&name) {
            continue;
        }
        let node_is_busy = draft
            .view
            .nodes
            .get(&node)
            .is_some_and(|node| node.rebuilds >= draft.view.settings.rebuilds_per_node_max);
        if active >= draft.view.settings.rebuilds_per_volume_max || node_is_busy {
            if node_is_busy {
                // Another volume's rebuild keeps the node busy, and nothing tells this one when that ends.
                draft.recheck(LOOK_AGAIN_AT_BUSY_NODE_AFTER);
            }
            draft.say(Reason::RebuildQueued {
                replica: name,
                node,
            });
            continue;
        }
        active += 1;
        if let Some(spec) = draft.replicas.get_mut(&name) {
            spec.desired = ReplicaDesired::Running;
        }
        if *draft.observed(&name) == ReplicaObserved::Running
            && let Some(spec) = draft.engines.get_mut(&writer)
        {
            spec.replicas.insert(name.clone(), ReplicaRole::Rebuild);
        }
        draft.say(Reason::Rebuilding { replica: name });
    }
}
