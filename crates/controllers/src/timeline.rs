//! When each hop of an attachment was seen: from the pod on its node to the mounted file system, and back.
//!
//! Every hop of an attach is a value that one party writes and the next one reads. The manager sees all of them, so it
//! can stamp them with one clock. A finished passage is kept on the Volume in the annotation
//! [`TIMELINE`](api_types::names::annotation::TIMELINE), the newest few of them, for `lariat volume timeline`.
//!
//! [`Timelines`] is the pure part: observations in, finished passages out. What it never does is guess: objects that
//! were there before it looked begin nothing, because nobody knows when they came.

mod observe;
mod shell;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use observe::{Claims, Seen, attachment, engine, pod, tickets, volume};
pub use shell::run;

/// How many passages a volume keeps.
pub const PASSAGES_MAX: usize = 8;

/// One written value on the way of a volume to a node, or from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hop {
    PodScheduled,
    AttachmentCreated,
    TicketFiled,
    NodeChosen,
    EngineCreated,
    DeviceReady,
    VolumeAttached,
    TicketSatisfied,
    AttachmentDone,
    PodRunning,

    PodLeaving,
    AttachmentDeleted,
    TicketWithdrawn,
    NodeReleased,
    DeviceGone,
    VolumeDetached,
    AttachmentGone,
}

impl Hop {
    /// What has happened, in a person's words.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::PodScheduled => "the pod is bound to the node",
            Self::AttachmentCreated => "attach-detach controller: VolumeAttachment created",
            Self::TicketFiled => "ticket filed",
            Self::NodeChosen => "attachment controller: Volume.spec.nodeID set",
            Self::EngineCreated => "volume controller: Engine created",
            Self::DeviceReady => "node agent: block device ready",
            Self::VolumeAttached => "volume controller: Volume attached",
            Self::TicketSatisfied => "attachment controller: ticket satisfied",
            Self::AttachmentDone => "attacher: VolumeAttachment attached",
            Self::PodRunning => "volume manager: file system mounted, pod running",
            Self::PodLeaving => "the pod is being deleted, or is gone",
            Self::AttachmentDeleted => "attach-detach controller: VolumeAttachment deleted",
            Self::TicketWithdrawn => "ticket withdrawn",
            Self::NodeReleased => "attachment controller: Volume.spec.nodeID cleared",
            Self::DeviceGone => "node agent: engine stopped, device gone",
            Self::VolumeDetached => "volume controller: Volume detached",
            Self::AttachmentGone => "attacher: VolumeAttachment released",
        }
    }

    /// The word for it in annotations and labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PodScheduled => "pod-scheduled",
            Self::AttachmentCreated => "attachment-created",
            Self::TicketFiled => "ticket-filed",
            Self::NodeChosen => "node-chosen",
            Self::EngineCreated => "engine-created",
            Self::DeviceReady => "device-ready",
            Self::VolumeAttached => "volume-attached",
            Self::TicketSatisfied => "ticket-satisfied",
            Self::AttachmentDone => "attachment-done",
            Self::PodRunning => "pod-running",
            Self::PodLeaving => "pod-leaving",
            Self::AttachmentDeleted => "attachment-deleted",
            Self::TicketWithdrawn => "ticket-withdrawn",
            Self::NodeReleased => "node-released",
            Self::DeviceGone => "device-gone",
            Self::VolumeDetached => "volume-detached",
            Self::AttachmentGone => "attachment-gone",
        }
    }

    fn is_attaching(self) -> bool {
        self < Self::PodLeaving
    }

    /// May a passage begin with it?
    fn begins(self) -> bool {
        matches!(
            self,
            Self::PodScheduled
                | Self::AttachmentCreated
                | Self::TicketFiled
                | Self::PodLeaving
                | Self::AttachmentDeleted
                | Self::TicketWithdrawn
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    Attach,
    Detach,
}

/// One way of a volume to a node, or from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Passage {
    pub node: String,
    pub direction: Direction,
    /// Milliseconds since 1970, by the manager's clock.
    pub started_ms: u64,
    /// In the order in which they were seen.
    pub hops: Vec<Stamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    pub hop: Hop,
    /// Microseconds since the passage's first hop.
    #[serde(rename = "us")]
    pub after_us: u64,
}

impl Passage {
    fn has(&self, hop: Hop) -> bool {
        self.hops.iter().any(|stamp| stamp.hop == hop)
    }

    /// How long after one hop another was seen, if both were. Watches do not keep step: of two that follow each other
    /// closely the later one may be seen first, and that is no time at all.
    #[must_use]
    pub fn between(&self, from: Hop, to: Hop) -> Option<Duration> {
        let at = |hop: Hop| self.hops.iter().find(|stamp| stamp.hop == hop);
        let us = at(to)?.after_us.saturating_sub(at(from)?.after_us);
        Some(Duration::from_micros(us))
    }

    /// Nothing more will come: the last party has written its value.
    fn is_complete(&self) -> bool {
        match self.direction {
            Direction::Attach if self.has(Hop::PodScheduled) => {
                self.has(Hop::PodRunning) && self.has(Hop::AttachmentDone)
            }
            Direction::Attach if self.has(Hop::AttachmentCreated) => self.has(Hop::AttachmentDone),
            Direction::Attach => self.has(Hop::TicketSatisfied),
            // The Volume's own status may be seen after the attachment is gone, and belongs to it.
            Direction::Detach => {
                let released = self.has(Hop::AttachmentGone) || !self.has(Hop::AttachmentDeleted);
                released && self.has(Hop::VolumeDetached)
            }
        }
    }
}

/// A moment: for people in milliseconds since 1970, for differences in microseconds of a clock that never jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub unix_ms: u64,
    pub monotonic_us: u64,
}

/// Which volumes are where, and the passages that are under way.
#[derive(Debug, Default)]
pub struct Timelines {
    volumes: HashMap<String, BTreeMap<String, Phase>>,
}

#[derive(Debug)]
enum Phase {
    Under { passage: Passage, began_us: u64 },
    Attached,
}

impl Timelines {
    /// Takes note that a volume was on a node, or on its way, before anybody looked.
    pub fn was_there(&mut self, volume: &str, node: &str) {
        let nodes = self.volumes.entry(volume.to_owned()).or_default();
        nodes.entry(node.to_owned()).or_insert(Phase::Attached);
    }

    /// Takes note of a hop. Returns the passage that it completes.
    pub fn observe(&mut self, volume: &str, seen: &Seen, at: Moment) -> Vec<Passage> {
        let nodes = match &seen.node {
            Some(node) => vec![node.clone()],
            // A value that names no node concerns every node that the volume is leaving.
            None => self.nodes_of(volume),
        };
        nodes
            .iter()
            .filter_map(|node| self.observe_on(volume, node, seen.hop, at))
            .collect()
    }

    fn nodes_of(&self, volume: &str) -> Vec<String> {
        let nodes = self.volumes.get(volume).into_iter().flatten();
        nodes.map(|(node, _)| node.clone()).collect()
    }

    fn observe_on(&mut self, volume: &str, node: &str, hop: Hop, at: Moment) -> Option<Passage> {
        let direction = if hop.is_attaching() {
            Direction::Attach
        } else {
            Direction::Detach
        };
        let phase = self
            .volumes
            .get_mut(volume)
            .and_then(|nodes| nodes.get_mut(node));
        let begins = hop.begins()
            && match &phase {
                None => direction == Direction::Attach,
                Some(Phase::Attached) => direction == Direction::Detach,
                // An attach that is given up turns into a detach.
                Some(Phase::Under { passage, .. }) => {
                    direction == Direction::Detach && passage.direction == Direction::Attach
                }
            };
        if begins {
            let passage = Passage {
                node: node.to_owned(),
                direction,
                started_ms: at.unix_ms,
                hops: vec![Stamp { hop, after_us: 0 }],
            };
            let began_us = at.monotonic_us;
            let nodes = self.volumes.entry(volume.to_owned()).or_default();
            nodes.insert(node.to_owned(), Phase::Under { passage, began_us });
            return None;
        }
        let Some(Phase::Under { passage, began_us }) = phase else {
            return None;
        };
        if passage.direction != direction || passage.has(hop) {
            return None;
        }
        let after_us = at.monotonic_us.saturating_sub(*began_us);
        passage.hops.push(Stamp { hop, after_us });
        if !passage.is_complete() {
            return None;
        }
        let passage = passage.clone();
        self.finish(volume, node, direction);
        Some(passage)
    }

    fn finish(&mut self, volume: &str, node: &str, direction: Direction) {
        let Some(nodes) = self.volumes.get_mut(volume) else {
            return;
        };
        match direction {
            Direction::Attach => {
                nodes.insert(node.to_owned(), Phase::Attached);
            }
            Direction::Detach => {
                nodes.remove(node);
                if nodes.is_empty() {
                    self.volumes.remove(volume);
                }
            }
        }
    }

    /// The volume is no more.
    pub fn forget(&mut self, volume: &str) {
        self.volumes.remove(volume);
    }

    /// Is a passage of this volume under way? Only then are observations of it worth their while.
    #[must_use]
    pub fn is_moving(&self, volume: &str) -> bool {
        self.volumes.get(volume).is_some_and(|nodes| {
            nodes
                .values()
                .any(|phase| matches!(phase, Phase::Under { .. }))
        })
    }
}

/// The annotation with one passage more, and the oldest ones gone. One that cannot be read is replaced: it is for people.
#[must_use]
pub fn append(annotation: Option<&str>, passage: Passage) -> String {
    let mut passages = annotation.map(read).unwrap_or_default();
    passages.push(passage);
    let surplus = passages.len().saturating_sub(PASSAGES_MAX);
    passages.drain(..surplus);
    serde_json::to_string(&passages).unwrap_or_default()
}

/// The passages of an annotation, oldest first; none of one that cannot be read.
#[must_use]
pub fn read(annotation: &str) -> Vec<Passage> {
    serde_json::from_str(annotation).unwrap_or_default()
}

#[cfg(test)]
mod tests;
