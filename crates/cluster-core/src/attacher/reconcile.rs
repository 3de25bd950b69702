//! Rules over many objects: the PersistentVolume's finalizer, and what the driver says is published.

use std::collections::{BTreeMap, BTreeSet};

use super::{VolumePatch, annotation, attached_handle};
use crate::identity::{AttachmentName, DriverName, NodeName, PvName, VolumeHandle};
use crate::names::{MIGRATED_TO_ANNOTATION, NODE_ID_ANNOTATION, finalizer_name};
use crate::view::{CsiNodeDriver, PersistentVolume, VolumeAttachment};

/// The patch that lets a PersistentVolume go: it is being deleted, or was migrated to this driver and is
/// no longer, and no attachment names it.
pub fn volume_finalizer_to_remove(
    driver: &DriverName,
    name: &PvName,
    volume: &PersistentVolume,
    attachments: &BTreeMap<AttachmentName, VolumeAttachment>,
) -> Option<VolumePatch> {
    let finalizer = finalizer_name(driver);
    let index = volume
        .finalizers
        .iter()
        .position(|other| *other == finalizer)?;
    let migrated_to = volume
        .annotations
        .get(MIGRATED_TO_ANNOTATION)
        .map(String::as_str);
    let is_ours = volume.driver == *driver || migrated_to == Some(driver.as_str());
    if is_ours && !volume.deleting {
        return None;
    }
    let is_named = attachments
        .values()
        .any(|attachment| attachment.source.volume() == Some(name));
    (!is_named).then_some(VolumePatch::Remove { index, finalizer })
}

/// What `ListVolumes` says: on which CSI node IDs each volume is published.
pub type PublishedVolumes = BTreeMap<VolumeHandle, BTreeSet<String>>;

/// Attachments whose status contradicts the driver's list. They are handled once more with force; the
/// status is never corrected by hand. A volume that the list does not have tells nothing.
pub fn out_of_step(
    driver: &DriverName,
    attachments: &BTreeMap<AttachmentName, VolumeAttachment>,
    volumes: &BTreeMap<PvName, PersistentVolume>,
    csi_nodes: &BTreeMap<NodeName, BTreeMap<DriverName, CsiNodeDriver>>,
    published: &PublishedVolumes,
) -> BTreeSet<AttachmentName> {
    let contradicts = |attachment: &VolumeAttachment| -> Option<bool> {
        let volume = attachment
            .source
            .volume()
            .and_then(|name| volumes.get(name));
        let handle = attached_handle(driver, attachment, volume)?;
        let csi_node = csi_nodes
            .get(&attachment.node)
            .and_then(|drivers| drivers.get(driver));
        let node_id = csi_node
            .map(|entry| entry.node_id.as_str())
            .or_else(|| annotation(attachment, NODE_ID_ANNOTATION))?;
        let is_published = published.get(&handle)?.contains(node_id);
        Some(is_published != attachment.attached)
    };
    attachments
        .iter()
        .filter(|(_, attachment)| {
            attachment.driver == *driver && contradicts(attachment) == Some(true)
        })
        .map(|(name, _)| name.clone())
        .collect()
}
