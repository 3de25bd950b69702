//! What is attached where, as far as the API knows, with doubt as a state of its own.

use std::collections::BTreeMap;

use crate::identity::{AttachmentName, NodeName, PvName};
use crate::names::UniqueVolumeName;
use crate::view::{ClusterView, VolumeAttachment};

/// One volume on one node. That there is no entry means that it is detached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// None when only the node claims to have it.
    pub attachment: Option<AttachmentName>,
    pub volume: Option<PvName>,
    pub state: ActualState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActualState {
    Attached,
    /// It may be attached. Counts as attached wherever that is the safe answer.
    Uncertain(Doubt),
}

/// Why it is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// An attach was asked for and may be running, or may have failed after it took effect.
    Attaching,
    /// A detach was asked for and may be running.
    Detaching,
    /// There is no VolumeAttachment, but the node still has it mounted.
    InUseOnly,
}

/// Every attachment that exists or may exist. The key falls back to the attachment's own name when the
/// volume behind it can no longer be told.
pub fn actual_state(view: &ClusterView) -> BTreeMap<(VolumeKey, NodeName), Attached> {
    let mut actual = BTreeMap::new();
    for (name, attachment) in &view.attachments {
        let key = view
            .volume_of(name, attachment)
            .map_or_else(|| VolumeKey::Unknown(name.clone()), VolumeKey::Known);
        let entry = Attached {
            attachment: Some(name.clone()),
            volume: attachment.source.volume().cloned(),
            state: state_of(attachment),
        };
        actual.insert((key, attachment.node.clone()), entry);
    }
    for (node_name, node) in &view.nodes {
        for volume in &node.volumes_in_use {
            actual
                .entry((VolumeKey::Known(volume.clone()), node_name.clone()))
                .or_insert(Attached {
                    attachment: None,
                    volume: None,
                    state: ActualState::Uncertain(Doubt::InUseOnly),
                });
        }
    }
    actual
}

/// What an attachment is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VolumeKey {
    Known(UniqueVolumeName),
    Unknown(AttachmentName),
}

fn state_of(attachment: &VolumeAttachment) -> ActualState {
    match (attachment.attached, attachment.deleting) {
        (true, false) => ActualState::Attached,
        (false, false) => ActualState::Uncertain(Doubt::Attaching),
        (_, true) => ActualState::Uncertain(Doubt::Detaching),
    }
}
