//! What is read from the API: plain data, no client types.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::access::AccessMode;
use crate::identity::{
    AttachmentName, ClaimKey, DriverName, NodeName, PodKey, PvName, Timestamp, VolumeHandle,
};
use crate::names::{UniqueVolumeName, attachment_name};

/// Everything the attach-detach decision looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    pub pods: BTreeMap<PodKey, Pod>,
    pub claims: BTreeMap<ClaimKey, Claim>,
    pub volumes: BTreeMap<PvName, PersistentVolume>,
    pub nodes: BTreeMap<NodeName, Node>,
    /// What each node's CSINode says of each driver.
    pub csi_nodes: BTreeMap<NodeName, BTreeMap<DriverName, CsiNodeDriver>>,
    /// Drivers whose CSIDriver says `attachRequired: false`.
    pub attachless_drivers: BTreeSet<DriverName>,
    pub attachments: BTreeMap<AttachmentName, VolumeAttachment>,
    /// Volumes that provably cannot be written from a node any more.
    pub fences: BTreeSet<(UniqueVolumeName, NodeName)>,
    /// The only node from which a volume can be written, for volumes that say so.
    pub writers: BTreeMap<UniqueVolumeName, NodeName>,
    pub settings: Settings,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Kubernetes' `maxWaitForUnmountDuration`.
    pub unmount_wait: Duration,
    /// `--disable-force-detach-on-timeout`.
    pub never_force: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            unmount_wait: Duration::from_secs(360),
            never_force: false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub node: Option<NodeName>,
    pub phase: PodPhase,
    pub created_at: Timestamp,
    pub deleting: bool,
    /// Some container's status is running.
    pub has_running_container: bool,
    pub claims: Vec<ClaimKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub uid: String,
    /// `spec.volumeName` of a bound claim.
    pub volume: Option<PvName>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersistentVolume {
    pub driver: DriverName,
    pub handle: VolumeHandle,
    pub access_modes: BTreeSet<AccessMode>,
    /// UID in `spec.claimRef`.
    pub claim_uid: Option<String>,
    pub deleting: bool,
    /// In the object's order: patches remove by index.
    pub finalizers: Vec<String>,
    pub annotations: BTreeMap<String, String>,
    pub read_only: bool,
    pub fs_type: Option<String>,
    pub is_block: bool,
    /// `controllerPublishSecretRef`, as namespace and name.
    pub publish_secret: Option<(String, String)>,
    pub attributes: BTreeMap<String, String>,
}

impl PersistentVolume {
    pub fn unique_name(&self) -> UniqueVolumeName {
        UniqueVolumeName {
            driver: self.driver.clone(),
            handle: self.handle.clone(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub ready: bool,
    pub out_of_service: bool,
    /// Has the annotation that leaves attaching to the controller.
    pub managed: bool,
    pub volumes_in_use: BTreeSet<UniqueVolumeName>,
    pub volumes_attached: BTreeSet<UniqueVolumeName>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiNodeDriver {
    pub node_id: String,
    /// `allocatable.count`.
    pub volumes_max: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeAttachment {
    /// `spec.attacher`.
    pub driver: DriverName,
    pub source: AttachmentSource,
    pub node: NodeName,
    pub created_at: Timestamp,
    pub deleting: bool,
    pub finalizers: Vec<String>,
    pub annotations: BTreeMap<String, String>,
    pub attached: bool,
    pub attach_error: Option<ErrorReport>,
    pub detach_error: Option<ErrorReport>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachmentSource {
    Volume(PvName),
    /// `inlineVolumeSpec`, from CSI migration.
    Inline,
    /// Neither or both.
    Malformed,
}

impl AttachmentSource {
    pub fn volume(&self) -> Option<&PvName> {
        match self {
            AttachmentSource::Volume(name) => Some(name),
            AttachmentSource::Inline | AttachmentSource::Malformed => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorReport {
    pub message: String,
    pub at: Timestamp,
    /// gRPC code; attach errors only.
    pub code: Option<i32>,
}

impl ClusterView {
    /// What the attachment is of, if that can still be told. A missing PersistentVolume is no obstacle:
    /// the name of the attachment is a hash, and the candidates are few.
    pub(crate) fn volume_of(
        &self,
        name: &AttachmentName,
        attachment: &VolumeAttachment,
    ) -> Option<UniqueVolumeName> {
        if let Some(volume) = attachment
            .source
            .volume()
            .and_then(|name| self.volumes.get(name))
        {
            return Some(volume.unique_name());
        }
        if let Some(handle) = attachment.annotations.get(crate::names::HANDLE_ANNOTATION) {
            return Some(UniqueVolumeName {
                driver: attachment.driver.clone(),
                handle: handle.as_str().into(),
            });
        }
        let node = self.nodes.get(&attachment.node)?;
        node.volumes_in_use
            .iter()
            .chain(&node.volumes_attached)
            .find(|volume| {
                volume.driver == attachment.driver
                    && attachment_name(&volume.handle, &volume.driver, &attachment.node) == *name
            })
            .cloned()
    }
}
