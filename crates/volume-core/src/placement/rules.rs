//! The rules that exclude a disk, one function each.

use std::fmt;

use super::{Candidate, percent_of, room_bytes};
use crate::identity::NodeName;
use crate::view::NodeHealth;

pub(super) type Rule = fn(&Candidate<'_>) -> Option<Exclusion>;

/// In the order in which a person would ask.
pub(super) const RULES: &[Rule] = &[
    node_is_ready,
    node_allows_scheduling,
    node_is_not_evicted,
    node_is_the_wanted_one,
    node_tags_match,
    disk_is_ready,
    disk_allows_scheduling,
    disk_is_not_evicted,
    disk_tags_match,
    zone_is_free,
    node_is_free,
    disk_is_free,
    promises_can_be_kept,
    space_is_available,
];

/// Why a disk cannot take the replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exclusion {
    NodeLost,
    NodeOutOfService,
    NodeCordoned,
    NodeEvicted,
    WrongNode {
        wanted: NodeName,
    },
    NodeLacksTags {
        missing: Vec<String>,
    },
    NodeIsTagged,
    NoDisk,
    DiskNotReady,
    DiskCordoned,
    DiskEvicted,
    DiskLacksTags {
        missing: Vec<String>,
    },
    DiskIsTagged,
    ZoneTaken {
        zone: String,
    },
    NodeTaken,
    DiskTaken,
    OverProvisioned {
        wanted_bytes: u64,
        left_bytes: u64,
    },
    TooLittleAvailable {
        available_bytes: u64,
        minimum_bytes: u64,
    },
}

fn node_is_ready(candidate: &Candidate<'_>) -> Option<Exclusion> {
    match candidate.node.health {
        NodeHealth::Ready => None,
        NodeHealth::Lost { .. } => Some(Exclusion::NodeLost),
        NodeHealth::OutOfService => Some(Exclusion::NodeOutOfService),
    }
}

fn node_allows_scheduling(candidate: &Candidate<'_>) -> Option<Exclusion> {
    (!candidate.node.allow_scheduling).then_some(Exclusion::NodeCordoned)
}

fn node_is_not_evicted(candidate: &Candidate<'_>) -> Option<Exclusion> {
    candidate
        .node
        .eviction_requested
        .then_some(Exclusion::NodeEvicted)
}

fn node_is_the_wanted_one(candidate: &Candidate<'_>) -> Option<Exclusion> {
    let wanted = candidate.request.only_node?;
    (candidate.place.node != *wanted).then(|| Exclusion::WrongNode {
        wanted: wanted.clone(),
    })
}

fn node_tags_match(candidate: &Candidate<'_>) -> Option<Exclusion> {
    let (wanted, tags) = (candidate.request.node_selector, &candidate.node.tags);
    if wanted.is_empty()
        && !tags.is_empty()
        && !candidate.request.settings.allow_empty_node_selector
    {
        return Some(Exclusion::NodeIsTagged);
    }
    let missing: Vec<String> = wanted.difference(tags).cloned().collect();
    (!missing.is_empty()).then_some(Exclusion::NodeLacksTags { missing })
}

fn disk_is_ready(candidate: &Candidate<'_>) -> Option<Exclusion> {
    (!candidate.disk.ready).then_some(Exclusion::DiskNotReady)
}

fn disk_allows_scheduling(candidate: &Candidate<'_>) -> Option<Exclusion> {
    (!candidate.disk.allow_scheduling).then_some(Exclusion::DiskCordoned)
}

fn disk_is_not_evicted(candidate: &Candidate<'_>) -> Option<Exclusion> {
    candidate
        .disk
        .eviction_requested
        .then_some(Exclusion::DiskEvicted)
}

fn disk_tags_match(candidate: &Candidate<'_>) -> Option<Exclusion> {
    let (wanted, tags) = (candidate.request.disk_selector, &candidate.disk.tags);
    if wanted.is_empty()
        && !tags.is_empty()
        && !candidate.request.settings.allow_empty_disk_selector
    {
        return Some(Exclusion::DiskIsTagged);
    }
    let missing: Vec<String> = wanted.difference(tags).cloned().collect();
    (!missing.is_empty()).then_some(Exclusion::DiskLacksTags { missing })
}

fn zone_is_free(candidate: &Candidate<'_>) -> Option<Exclusion> {
    // Nodes without a zone are told apart by the node rule.
    let zone = candidate.node.zone.as_ref()?;
    (!candidate.request.zone_may_be_shared && candidate.zone_is_used())
        .then(|| Exclusion::ZoneTaken { zone: zone.clone() })
}

fn node_is_free(candidate: &Candidate<'_>) -> Option<Exclusion> {
    (!candidate.request.node_may_be_shared && candidate.node_is_used())
        .then_some(Exclusion::NodeTaken)
}

fn disk_is_free(candidate: &Candidate<'_>) -> Option<Exclusion> {
    (!candidate.request.disk_may_be_shared && candidate.disk_is_used())
        .then_some(Exclusion::DiskTaken)
}

fn promises_can_be_kept(candidate: &Candidate<'_>) -> Option<Exclusion> {
    let wanted_bytes = candidate.request.size_bytes;
    let room = room_bytes(candidate.disk, candidate.request.settings);
    let fits = candidate.scheduled_bytes().saturating_add(wanted_bytes) <= room;
    (!fits).then(|| Exclusion::OverProvisioned {
        wanted_bytes,
        left_bytes: candidate.left_bytes(),
    })
}

fn space_is_available(candidate: &Candidate<'_>) -> Option<Exclusion> {
    let percent = candidate.request.settings.minimal_available_percent;
    let minimum_bytes = percent_of(candidate.disk.maximum_bytes, percent);
    let available_bytes = candidate.disk.available_bytes;
    (available_bytes <= minimum_bytes).then_some(Exclusion::TooLittleAvailable {
        available_bytes,
        minimum_bytes,
    })
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exclusion::NodeLost => f.write_str("node is lost"),
            Exclusion::NodeOutOfService => f.write_str("node is out of service"),
            Exclusion::NodeCordoned => f.write_str("node does not allow scheduling"),
            Exclusion::NodeEvicted => f.write_str("node is being evicted"),
            Exclusion::WrongNode { wanted } => write!(f, "only node {wanted} will do"),
            Exclusion::NodeLacksTags { missing } => {
                write!(f, "node lacks tags {}", missing.join("+"))
            }
            Exclusion::NodeIsTagged => f.write_str("node is reserved by tags"),
            Exclusion::NoDisk => f.write_str("node has no disk"),
            Exclusion::DiskNotReady => f.write_str("disk is not ready"),
            Exclusion::DiskCordoned => f.write_str("disk does not allow scheduling"),
            Exclusion::DiskEvicted => f.write_str("disk is being evicted"),
            Exclusion::DiskLacksTags { missing } => {
                write!(f, "disk lacks tags {}", missing.join("+"))
            }
            Exclusion::DiskIsTagged => f.write_str("disk is reserved by tags"),
            Exclusion::ZoneTaken { zone } => write!(f, "zone {zone} already has a replica"),
            Exclusion::NodeTaken => f.write_str("node already has a replica"),
            Exclusion::DiskTaken => f.write_str("disk already has a replica"),
            Exclusion::OverProvisioned {
                wanted_bytes,
                left_bytes,
            } => {
                write!(
                    f,
                    "{wanted_bytes} bytes wanted, {left_bytes} left to promise"
                )
            }
            Exclusion::TooLittleAvailable {
                available_bytes,
                minimum_bytes,
            } => {
                write!(
                    f,
                    "{available_bytes} bytes free, more than {minimum_bytes} must stay free"
                )
            }
        }
    }
}
