//! Kubernetes' own rules about attachments, as pure functions over plain data.
//!
//! - [`names`]: names and finalizers by their exact formulas.
//! - [`access`]: which access modes share a volume, and their CSI equivalents.
//! - [`decide()`]: pods and nodes in, VolumeAttachments to create and delete out.
//! - [`release`]: when a node's attachment may be given up although it says "in use".
//! - [`attachment_index`]: who has what, read back from VolumeAttachments after a restart and kept from then on.
//! - [`attacher`]: what to do next with one VolumeAttachment.
//! - [`wire`]: Kubernetes' objects as the plain data that all of these look at.
//!
//! An attachment that may be there counts as there: *uncertain* is a state of its own, and the
//! multi-attach check looks at it. Nothing here reads a clock or keeps state between calls; what a
//! controller has to remember is a value that goes in and comes out ([`Memory`]).

pub mod access;
mod actual;
pub mod attacher;
pub mod attachment_index;
mod decide;
mod desired;
mod event;
mod identity;
mod limits;
pub mod names;
mod reason;
pub mod release;
mod view;
pub mod wire;

pub use access::{AccessMode, AccessModeError, CsiAccessMode};
pub use actual::{ActualState, Attached, Doubt, actual_state};
pub use decide::{ClusterPlan, Memory, NewAttachment, Told, decide};
pub use desired::{Desired, NotDesired, desired_state};
pub use event::{Event, EventKind, EventTarget, event_name, truncate_message, without_figures};
pub use identity::{
    AttachmentName, ClaimKey, DriverName, NodeName, PodKey, PvName, Timestamp, VolumeHandle,
};
pub use limits::{NodeFull, Occupancy};
pub use names::UniqueVolumeName;
pub use reason::Reason;
pub use view::{
    AttachmentSource, Claim, ClusterView, CsiNodeDriver, ErrorReport, Node, PersistentVolume, Pod,
    PodPhase, Settings, VolumeAttachment,
};
