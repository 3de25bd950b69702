//! Why: typed values, each with a stable code and one sentence for a person.
//!
//! Conditions, events, `why` and `explain` are all made from these and from nothing else, so they cannot
//! tell different stories. Codes are API: scripts and alerts match on them.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;

use crate::attacher::Attacher;
use crate::names::{NodeName, TicketId, VolumeName};
use crate::ticket::{Defect, Frontend, Ticket};
use crate::view::VolumeState;

/// A ticket as reasons speak of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Party {
    pub attacher: Attacher,
    pub id: TicketId,
    pub node: NodeName,
}

impl From<&Ticket> for Party {
    fn from(ticket: &Ticket) -> Self {
        Self {
            attacher: ticket.attacher.clone(),
            id: ticket.id.clone(),
            node: ticket.node.clone(),
        }
    }
}

impl std::fmt::Display for Party {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ticket \"{}\"", self.attacher, self.id)
    }
}

/// One cause. The sentence says what is, [`Reason::advice`] says what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reason {
    // What happens to the volume, and why.
    #[error("nobody asks for the volume, and it is attached nowhere")]
    NoTickets,
    #[error(
        "no ticket asks for the volume in a way that can be served, and it is attached nowhere"
    )]
    NoEligibleTicket,
    #[error("{winner} is the first in line and wants the volume on node {}", .winner.node)]
    Selected { winner: Party },
    #[error("{holder} holds the volume on node {}", .holder.node)]
    HeldBy { holder: Party },
    #[error("no ticket asks for the volume on node {node} as it is attached there")]
    NoMatchingTicket { node: NodeName },
    #[error("{workload} wants the volume on node {}, and only interruptible tickets hold it on node {from}", .workload.node)]
    InterruptedBy { workload: Party, from: NodeName },
    #[error("the last attempt to attach failed: {reason}")]
    AttachFailed { reason: Arc<str> },
    #[error("attaching starts with a new budget, because what it depends on has changed")]
    BreakerReset,
    #[error("attaching starts with a new budget, because a person resumed it")]
    BreakerResumed,

    // What a ticket or the volume waits for.
    #[error("volume {volume} is faulted: no replica of it can be used")]
    VolumeFaulted { volume: VolumeName },
    #[error("the volume is {}", .state.wire())]
    VolumeNotReady { state: VolumeState },
    #[error("the volume is being attached to node {node}")]
    Attaching { node: NodeName },
    #[error("the volume is being detached{}", from_node(.from.as_ref()))]
    Detaching { from: Option<NodeName> },
    #[error("the volume is being attached to node {node} for {}", describe(.holder.as_ref()))]
    AttachingElsewhere {
        node: NodeName,
        holder: Option<Party>,
    },
    #[error("the volume is attached to node {node}, held there by {}", describe(.holder.as_ref()))]
    AttachedElsewhere {
        node: NodeName,
        holder: Option<Party>,
    },
    #[error("volume {volume} is attached to node {node} with disableFrontend={disabled}, and this ticket needs disableFrontend={}", .wanted.wire())]
    IncompatibleParameters {
        volume: VolumeName,
        node: NodeName,
        disabled: bool,
        wanted: Frontend,
    },
    #[error("the share of volume {volume} is not served yet")]
    WaitingForShare { volume: VolumeName },
    #[error(
        "attaching failed {failures} times, the next attempt is at {until}; last failure: {last}"
    )]
    BackingOff {
        failures: u32,
        until: Timestamp,
        last: Arc<str>,
    },
    #[error("attaching failed {failures} times and is held; last failure: {last}")]
    Held { failures: u32, last: Arc<str> },
    #[error("the type {attacher} is not known here, so the ticket is kept but never served")]
    UnknownAttacher { attacher: Attacher },
    #[error("the ticket cannot be served: {0}")]
    InvalidTicket(Defect),

    // Migration.
    #[error("the volume migrates from node {source_node} to node {target}")]
    Migrating {
        source_node: NodeName,
        target: NodeName,
    },
    #[error("the engine on migration target {target} is not ready yet")]
    MigrationPreparing { target: NodeName },
    #[error(
        "both engines are ready, and both tickets are there: the workload now removes one of them"
    )]
    MigrationReady { target: NodeName },
    #[error(
        "the ticket of source {source_node} is gone and target {target} is ready: the volume now belongs to {target}"
    )]
    MigrationConfirmed {
        source_node: NodeName,
        target: NodeName,
    },
    #[error("the engines on {source_node} and {target} do not know the same snapshots yet")]
    MigrationSnapshotsDiffer {
        source_node: NodeName,
        target: NodeName,
    },
    #[error("the ticket of target {target} is gone: the volume stays on node {source_node}")]
    MigrationRolledBack {
        source_node: NodeName,
        target: NodeName,
    },
    #[error(
        "target {target} did not come up before {deadline}: the volume stays on node {source_node}"
    )]
    MigrationExpired {
        source_node: NodeName,
        target: NodeName,
        deadline: Timestamp,
    },
    #[error("the volume was detached in the middle of its migration to node {target}")]
    MigrationInterrupted { target: NodeName },
    #[error("migration cannot start: node {target} is not ready")]
    MigrationTargetNotReady { target: NodeName },
    #[error("the source's ticket is gone and target {target} is down: the volume lets go of both")]
    MigrationTargetLost { target: NodeName },
    #[error(
        "the source's ticket is gone and so is the engine on source {source_node}: the volume lets go of both"
    )]
    MigrationSourceLost { source_node: NodeName },
    #[error(
        "the migration from {source_node} to {target} was interrupted; the volume returns to node {chosen}"
    )]
    MigrationRecovery {
        source_node: NodeName,
        target: NodeName,
        chosen: NodeName,
    },
    #[error(
        "the volume came back on node {target} when its source {source_node} was down, and does not move back by itself"
    )]
    MigrationRecovered {
        source_node: NodeName,
        target: NodeName,
    },
    #[error("tickets for {} want the migratable volume at once, and nothing says which of them has the workload", list(.nodes))]
    AmbiguousMigration { nodes: Vec<NodeName> },

    // Housekeeping.
    #[error("{ticket} is removed, because node {} is cordoned", .ticket.node)]
    RemovedByCordon { ticket: Party },
    #[error("{ticket} stays on cordoned node {}, because the setting detach-manually-attached-volumes-when-cordoned is false", .ticket.node)]
    KeptDespiteCordon { ticket: Party },
    #[error("ticket {:?} is gone, and so goes its status", .id.as_str())]
    StatusWithoutTicket { id: TicketId },
    #[error(
        "the input has no VolumeAttachment for this volume, so it is decided as if nobody asked for it"
    )]
    NoVolumeAttachment,
    #[error("the input has no longhorn.io Node objects, so every node is taken to be ready")]
    NodesNotShown,
}

fn describe(party: Option<&Party>) -> Cow<'static, str> {
    party.map_or(
        Cow::Borrowed("a ticket that is not understood here"),
        |party| Cow::Owned(party.to_string()),
    )
}

fn from_node(node: Option<&NodeName>) -> String {
    node.map(|node| format!(" from node {node}"))
        .unwrap_or_default()
}

fn list(nodes: &[NodeName]) -> String {
    nodes
        .iter()
        .map(NodeName::as_str)
        .collect::<Vec<_>>()
        .join(" and ")
}

impl Reason {
    /// The condition's `reason`. `AttachedWithIncompatibleParameters` is upstream's own word.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoTickets => "NoTickets",
            Self::NoEligibleTicket => "NoEligibleTicket",
            Self::Selected { .. } => "Selected",
            Self::HeldBy { .. } => "HeldBy",
            Self::NoMatchingTicket { .. } => "NoMatchingTicket",
            Self::InterruptedBy { .. } => "InterruptedByWorkload",
            Self::AttachFailed { .. } => "AttachFailed",
            Self::BreakerReset => "AttachBudgetReset",
            Self::BreakerResumed => "AttachResumed",
            Self::VolumeFaulted { .. } => "VolumeFaulted",
            Self::VolumeNotReady { .. } => "VolumeNotReady",
            Self::Attaching { .. } => "Attaching",
            Self::Detaching { .. } => "Detaching",
            Self::AttachingElsewhere { .. } => "AttachingToOtherNode",
            Self::AttachedElsewhere { .. } => "AttachedToOtherNode",
            Self::IncompatibleParameters { .. } => "AttachedWithIncompatibleParameters",
            Self::WaitingForShare { .. } => "WaitingForShare",
            Self::BackingOff { .. } => "AttachBackingOff",
            Self::Held { .. } => "AttachHeld",
            Self::UnknownAttacher { .. } => "UnknownAttacherType",
            Self::InvalidTicket(_) => "InvalidTicket",
            Self::Migrating { .. } => "Migrating",
            Self::MigrationPreparing { .. } => "MigrationPreparing",
            Self::MigrationReady { .. } => "MigrationReady",
            Self::MigrationConfirmed { .. } => "MigrationConfirmed",
            Self::MigrationSnapshotsDiffer { .. } => "MigrationSnapshotsDiffer",
            Self::MigrationRolledBack { .. } => "MigrationRolledBack",
            Self::MigrationExpired { .. } => "MigrationExpired",
            Self::MigrationInterrupted { .. } => "MigrationInterrupted",
            Self::MigrationTargetNotReady { .. } => "MigrationTargetNotReady",
            Self::MigrationTargetLost { .. } => "MigrationTargetLost",
            Self::MigrationSourceLost { .. } => "MigrationSourceLost",
            Self::MigrationRecovery { .. } => "MigrationRecovery",
            Self::MigrationRecovered { .. } => "MigrationRecovered",
            Self::AmbiguousMigration { .. } => "AmbiguousMigration",
            Self::RemovedByCordon { .. } => "RemovedByCordon",
            Self::KeptDespiteCordon { .. } => "KeptDespiteCordon",
            Self::StatusWithoutTicket { .. } => "StatusWithoutTicket",
            Self::NoVolumeAttachment => "NoVolumeAttachment",
            Self::NodesNotShown => "NodesNotShown",
        }
    }

    /// What a person can do, where waiting is not enough.
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        Some(match self {
            Self::VolumeFaulted { .. } => {
                "look at the volume's replicas (`kubectl -n longhorn-system get replicas.longhorn.io`): bring back the node or \
                 disk that has the newest one, or restore a backup"
                    .to_owned()
            }
            Self::AttachedElsewhere { node, holder: Some(holder) } => match holder.attacher.wire() {
                "longhorn-api" => format!(
                    "somebody attached the volume to node {node} by hand; when that is done, remove ticket {:?}",
                    holder.id.as_str()
                ),
                "csi-attacher" => format!("stop the pod on node {node}, or let it finish; its ticket goes with it"),
                _ => format!("wait for {holder} to finish"),
            },
            Self::IncompatibleParameters { node, .. } => {
                format!("wait until the present holder on node {node} lets go; the volume is then attached anew")
            }
            Self::Held { .. } => format!(
                "remove the cause, then set annotation {} of the Volume to any new value",
                crate::breaker::RESUME_ANNOTATION
            ),
            Self::UnknownAttacher { attacher } => {
                format!("upgrade to a version that knows {attacher}, or remove the ticket if nobody needs it")
            }
            Self::InvalidTicket(defect) => format!("correct {} of the ticket, or remove it", defect.field()),
            Self::MigrationTargetNotReady { target } => format!("bring node {target} back, or migrate to another node"),
            Self::MigrationExpired { target, .. } => {
                format!("find out why no engine starts on node {target}, then start the migration again")
            }
            Self::MigrationRecovered { source_node, .. } => {
                format!("stop the workload on node {source_node}; its ticket goes with it")
            }
            Self::AmbiguousMigration { .. } => {
                "stop the workload on all but one of these nodes: the volume attaches when one CSI ticket is left".to_owned()
            }
            Self::KeptDespiteCordon { ticket } => {
                format!("detach the volume from node {} by hand, or set the setting to true", ticket.node)
            }
            Self::NoVolumeAttachment => "add the output of `kubectl -n longhorn-system get \
                 volumeattachments.longhorn.io -o yaml` to the input"
                .to_owned(),
            _ => return None,
        })
    }

    /// Whether an event about it is a warning.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        matches!(
            self,
            Self::VolumeFaulted { .. }
                | Self::AttachFailed { .. }
                | Self::BackingOff { .. }
                | Self::Held { .. }
                | Self::UnknownAttacher { .. }
                | Self::InvalidTicket(_)
                | Self::IncompatibleParameters { .. }
                | Self::MigrationExpired { .. }
                | Self::MigrationInterrupted { .. }
                | Self::MigrationTargetLost { .. }
                | Self::MigrationSourceLost { .. }
                | Self::AmbiguousMigration { .. }
                | Self::KeptDespiteCordon { .. }
        )
    }
}
