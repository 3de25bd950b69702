//! What operations need to know about the volume and about the objects they work for.

use std::sync::Arc;

use crate::lease::Lease;
use crate::names::{NodeName, TicketId, VolumeName};
use crate::view::{Robustness, Sharing, VolumeState};

/// The volume, as far as operations on it are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeFacts {
    pub name: VolumeName,
    pub sharing: Sharing,
    pub state: VolumeState,
    pub robustness: Robustness,
    pub deleting: bool,
    pub standby: bool,
    pub frontend_disabled: bool,
    /// Where it is attached now.
    pub current_node: Option<NodeName>,
    /// The node that looks after it.
    pub owner: Option<NodeName>,
    /// The first node that could do so.
    pub first_ready_node: Option<NodeName>,
    pub restore_required: bool,
    pub expansion_required: bool,
    /// A replica should leave its disk or node, and another disk has room for it.
    pub eviction_possible: bool,
    /// A replica is missing, and is being rebuilt or can be.
    pub replacement_possible: bool,
    /// Detached volumes that lack replicas are to be rebuilt.
    pub offline_rebuilding: bool,
    /// Fewer replicas than wanted have all the data. Told apart from robustness, which a detached volume does not have.
    pub lacks_replicas: bool,
    /// It is being filled from another volume.
    pub clone_copying: bool,
}

impl VolumeFacts {
    /// A healthy, detached volume with nothing to do.
    #[must_use]
    pub fn idle(name: &str, owner: &str) -> Self {
        Self {
            name: name.into(),
            sharing: Sharing::Exclusive,
            state: VolumeState::Detached,
            robustness: Robustness::Unknown,
            deleting: false,
            standby: false,
            frontend_disabled: false,
            current_node: None,
            owner: NodeName::from_wire(owner),
            first_ready_node: None,
            restore_required: false,
            expansion_required: false,
            eviction_possible: false,
            replacement_possible: false,
            offline_rebuilding: false,
            lacks_replicas: false,
            clone_copying: false,
        }
    }

    /// Where background work happens: where the volume is, so that nothing has to move; else with its owner.
    #[must_use]
    pub fn home(&self) -> Option<NodeName> {
        self.current_node
            .clone()
            .or_else(|| self.owner.clone())
            .or_else(|| self.first_ready_node.clone())
    }
}

/// Something that may need the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The volume's own state; always one of the subjects.
    Volume,
    Publication(Publication),
    Manual(ManualRequest),
    SharePod(SharePod),
    Snapshot(Snapshot),
    Backup(Backup),
    Clone(CloneRole),
    BackingImageExport(BackingImageExport),
}

/// `ControllerPublishVolume` was called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// The name of Kubernetes' VolumeAttachment, which is also the ticket's id.
    pub attachment: Arc<str>,
    pub node: NodeName,
}

/// A person asked for the volume on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManualRequest {
    pub id: TicketId,
    pub node: NodeName,
    pub disable_frontend: bool,
    /// Who asked, for people to read.
    pub by: Arc<str>,
    /// Who answers for it. Ours always has a deadline; other tools send none.
    pub lease: Lease,
}

/// The pod of the share manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharePod {
    /// Pending or Running.
    pub alive: bool,
    pub node: Option<NodeName>,
    /// The node that looks after the share may run pods.
    pub owner_schedulable: bool,
}

/// A Snapshot object of this volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub name: Arc<str>,
    /// It asks for a snapshot to be taken.
    pub create: bool,
    /// None can be taken, attached or not.
    pub refused: bool,
    /// An engine may have been asked for it.
    pub requested: bool,
    /// It has been taken.
    pub created: bool,
    pub deleting: bool,
    /// Its data is gone from every replica.
    pub purged: bool,
    /// The live data builds upon it, so that it cannot be removed now.
    pub is_head_parent: bool,
    /// Several branches of the volume build upon it, so that it cannot be removed at all now.
    pub has_branches: bool,
    /// Removing snapshots is switched off.
    pub purge_disabled: bool,
}

/// A Backup object of this volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    pub name: Arc<str>,
    /// Completed, failed, or beyond finding out.
    pub is_final: bool,
    /// Known to the backup target, and only shown here.
    pub synced: bool,
    pub deleting: bool,
    pub snapshot_exists: bool,
}

/// The part of this volume in a clone, as seen from the other volume's object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloneRole {
    /// `target` is being filled from this volume.
    Source { target: VolumeName },
    /// This volume shares blocks with `source` and rebuilds a replica from them.
    LinkedRebuild { source: VolumeName },
}

/// A backing image that is made from this volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingImageExport {
    pub name: Arc<str>,
    /// The file is where it should be.
    pub transferred: bool,
    pub failed: bool,
    pub deleting: bool,
}
