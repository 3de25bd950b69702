//! Why an attachment is made, given up, or waits: one sentence each.

use std::fmt;

use crate::actual::{ActualState, Doubt};
use crate::desired::NotDesired;
use crate::identity::{AttachmentName, DriverName, NodeName, PodKey, PvName};
use crate::limits::NodeFull;
use crate::release::{Hold, Release};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    Attaching {
        volume: PvName,
        node: NodeName,
    },
    AttachPending {
        volume: PvName,
        node: NodeName,
    },
    AttachFailing {
        volume: PvName,
        node: NodeName,
        message: String,
    },
    WaitingForDeletion {
        attachment: AttachmentName,
        node: NodeName,
    },
    WaitingForDetach {
        volume: PvName,
        wanted: NodeName,
        holder: NodeName,
        state: ActualState,
    },
    WaitingForTurn {
        volume: PvName,
        wanted: NodeName,
        first: NodeName,
    },
    NodeFull {
        volume: PvName,
        node: NodeName,
        driver: DriverName,
        full: NodeFull,
    },
    Detaching {
        volume: Option<PvName>,
        attachment: AttachmentName,
        node: NodeName,
        release: Release,
    },
    DetachHeld {
        volume: Option<PvName>,
        attachment: AttachmentName,
        node: NodeName,
        hold: Hold,
    },
    DetachPending {
        attachment: AttachmentName,
        node: NodeName,
    },
    PodLeftOut {
        pod: PodKey,
        why: NotDesired,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |volume: &Option<PvName>, attachment: &AttachmentName| match volume {
            Some(volume) => format!("volume {volume}"),
            None => format!("attachment {attachment}"),
        };
        match self {
            Reason::Attaching { volume, node } => {
                write!(f, "volume {volume} is attached to node {node}")
            }
            Reason::AttachPending { volume, node } => {
                write!(
                    f,
                    "waiting until the driver has attached volume {volume} to node {node}"
                )
            }
            Reason::AttachFailing {
                volume,
                node,
                message,
            } => {
                write!(
                    f,
                    "attaching volume {volume} to node {node} fails: {message}"
                )
            }
            Reason::WaitingForDeletion { attachment, node } => {
                write!(
                    f,
                    "attachment {attachment} to node {node} is being deleted; a new one follows"
                )
            }
            Reason::WaitingForDetach {
                volume,
                wanted,
                holder,
                state,
            } => {
                let state = match state {
                    ActualState::Attached => "it is attached to",
                    ActualState::Uncertain(Doubt::Attaching) => "it may be attached to",
                    ActualState::Uncertain(Doubt::Detaching) => "it may still be attached to",
                    ActualState::Uncertain(Doubt::InUseOnly) => "it is still mounted on",
                };
                write!(
                    f,
                    "volume {volume} waits for node {wanted}: {state} node {holder}"
                )
            }
            Reason::WaitingForTurn {
                volume,
                wanted,
                first,
            } => {
                write!(
                    f,
                    "volume {volume} waits for node {wanted}: a pod on node {first} came first"
                )
            }
            Reason::NodeFull {
                volume,
                node,
                driver,
                full,
            } => write!(
                f,
                "volume {volume} waits: node {node} has {} volumes of {driver}, and {} are allowed",
                full.volumes, full.volumes_max
            ),
            Reason::Detaching {
                volume,
                attachment,
                node,
                release,
            } => {
                write!(
                    f,
                    "{} is detached from node {node}: {release}",
                    named(volume, attachment)
                )
            }
            Reason::DetachHeld {
                volume,
                attachment,
                node,
                hold,
            } => {
                write!(
                    f,
                    "{} is not detached from node {node} yet: {hold}",
                    named(volume, attachment)
                )
            }
            Reason::DetachPending { attachment, node } => {
                write!(
                    f,
                    "waiting until the driver has detached {attachment} from node {node}"
                )
            }
            Reason::PodLeftOut { pod, why } => match why {
                NotDesired::ClaimMissing(claim) => {
                    write!(f, "pod {pod}: claim {claim} does not exist")
                }
                NotDesired::ClaimUnbound(claim) => {
                    write!(f, "pod {pod}: claim {claim} is not bound")
                }
                NotDesired::VolumeMissing(volume) => {
                    write!(f, "pod {pod}: volume {volume} does not exist")
                }
                NotDesired::ClaimMismatch { claim, volume } => {
                    write!(
                        f,
                        "pod {pod}: volume {volume} belongs to another claim than {claim}"
                    )
                }
                NotDesired::NodeMissing(node) => write!(f, "pod {pod}: node {node} does not exist"),
                NotDesired::Fenced { volume, node } => {
                    write!(
                        f,
                        "pod {pod}: node {node} does not answer and volume {volume} is fenced there"
                    )
                }
            },
        }
    }
}
