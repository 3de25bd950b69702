//! Kubernetes VolumeAttachments that were deleted and cannot go.

use api_types::names::DRIVER;
use attach_core::TicketId;
use cluster_core::names::{HANDLE_ANNOTATION, attachment_name, finalizer_name};
use k8s_openapi::api::storage::v1::VolumeAttachment;

use crate::codes::Code;
use crate::evidence::{Evidence, ObjectRef};
use crate::finding::Finding;
use crate::index::{Index, handle, name};
use crate::repair::{Action, Repair};

use super::KUBERNETES_ATTACHMENTS;
use super::attachments::{engine_runs, has_lasted};

/// LAR-111: deleted, and still there.
pub(super) fn stuck(index: &Index<'_>, findings: &mut Vec<Finding>) {
    for attachment in &index.dump.attachments {
        let metadata = &attachment.metadata;
        let since = metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let driver = attachment.spec.attacher.as_str();
        let finalizer = finalizer_name(&driver.into());
        if !is_kept(index, attachment) {
            continue;
        }
        let object = ObjectRef::new(KUBERNETES_ATTACHMENTS, metadata);
        let volume = volume_of(index, attachment);
        let (why, is_safe, mut evidence) = match Keeper::of(index, attachment, volume) {
            Keeper::Gone => (
                format!("driver {driver} is gone, so nobody will ever take its finalizer off"),
                true,
                vec![Evidence::missing(ObjectRef::named(
                    "csidrivers.storage.k8s.io",
                    "",
                    driver,
                ))],
            ),
            Keeper::NothingLeft(evidence) => (
                "nothing of the volume is left on the node, so that only the finalizer keeps it"
                    .to_owned(),
                true,
                evidence,
            ),
            Keeper::StillThere(evidence) => (
                "the volume is still attached there".to_owned(),
                false,
                evidence,
            ),
            Keeper::Other(evidence) => (
                format!("driver {driver} has not detached it"),
                false,
                evidence,
            ),
        };
        evidence.insert(
            0,
            Evidence::new(object.clone(), "metadata.finalizers", &finalizer).since(since),
        );
        let error = attachment
            .status
            .as_ref()
            .and_then(|status| status.detach_error.as_ref());
        if let Some(error) = error {
            let message = error.message.as_deref().unwrap_or_default();
            evidence.push(
                Evidence::new(object.clone(), "status.detachError.message", message)
                    .since_time(error.time.as_ref()),
            );
        }
        let mut found = Finding::new(
            Code::StuckFinalizer,
            object,
            format!(
                "VolumeAttachment {} to node {} was deleted and cannot go: {why}",
                name(metadata),
                attachment.spec.node_name
            ),
        )
        .evidence(evidence);
        found.volumes = volume.map(str::to_owned).into_iter().collect();
        found = if is_safe {
            found.repair(Some(Repair {
                summary: format!("take the finalizer {finalizer} off"),
                actions: vec![Action::drop_finalizer(
                    KUBERNETES_ATTACHMENTS,
                    metadata,
                    &finalizer,
                )],
            }))
        } else {
            found.advice(format!(
                "read the log of the attacher of {driver}; a finalizer that is taken off by hand may leave the volume on node {}",
                attachment.spec.node_name
            ))
        };
        findings.push(found);
    }
}

/// Deleted for longer than a detach takes, and the attacher's finalizer is still on it.
fn is_kept(index: &Index<'_>, attachment: &VolumeAttachment) -> bool {
    let metadata = &attachment.metadata;
    let since = metadata.deletion_timestamp.as_ref().map(|time| time.0);
    let finalizer = finalizer_name(&attachment.spec.attacher.as_str().into());
    let mut finalizers = metadata.finalizers.iter().flatten();
    finalizers.any(|one| *one == finalizer) && has_lasted(index, since)
}

/// Only the finalizer keeps it, and nobody is going to take that off.
pub(crate) fn is_only_kept(index: &Index<'_>, attachment: &VolumeAttachment) -> bool {
    let keeper = || Keeper::of(index, attachment, volume_of(index, attachment));
    is_kept(index, attachment) && matches!(keeper(), Keeper::Gone | Keeper::NothingLeft(_))
}

/// Who should take the finalizer off, and why that has not happened.
enum Keeper {
    Gone,
    NothingLeft(Vec<Evidence>),
    StillThere(Vec<Evidence>),
    Other(Vec<Evidence>),
}

impl Keeper {
    fn of(index: &Index<'_>, attachment: &VolumeAttachment, volume: Option<&str>) -> Self {
        let driver = attachment.spec.attacher.as_str();
        let is_there = index
            .dump
            .csi_drivers
            .iter()
            .any(|other| name(&other.metadata) == driver)
            || index
                .dump
                .csi_nodes
                .iter()
                .any(|node| node.spec.drivers.iter().any(|other| other.name == driver));
        if !is_there {
            return Self::Gone;
        }
        let pv_name = attachment.spec.source.persistent_volume_name.as_deref();
        if driver != DRIVER {
            let missing = pv_name.filter(|name| index.persistent_volume(name).is_none());
            let missing = missing
                .map(|name| Evidence::missing(ObjectRef::named("persistentvolumes", "", name)));
            return Self::Other(missing.into_iter().collect());
        }
        let Some(volume) = volume else {
            return Self::Other(Vec::new());
        };
        let Some(case) = index.case(volume) else {
            let gone = ObjectRef::ours("volumes.longhorn.io", volume);
            return Self::NothingLeft(vec![Evidence::missing(gone)]);
        };
        let node = attachment.spec.node_name.as_str();
        let id = TicketId::from(name(&attachment.metadata));
        let has_ticket = case
            .tickets
            .as_ref()
            .is_ok_and(|(view, _)| view.tickets.contains_key(&id));
        let status = case.volume.status.clone().unwrap_or_default();
        let place = Evidence::new(
            ObjectRef::ours("volumes.longhorn.io", volume),
            "status.currentNodeID",
            &status.current_node_id,
        );
        let is_attached = status.current_node_id == node
            || status.current_migration_node_id == node
            || engine_runs(&case, node);
        // A node names what a waiting pod is going to use as well, and of a volume that is detached there is nothing to use.
        let is_detached = status.state == api_types::VolumeState::Detached
            && case
                .engines
                .iter()
                .all(|engine| engine.spec.node_id != node);
        let is_in_use = index.is_in_use(volume, node) && !is_detached;
        if has_ticket || is_attached || is_in_use {
            return Self::StillThere(vec![place]);
        }
        Self::NothingLeft(vec![place])
    }
}

/// The name of the Volume that an attachment is of, if that can be told.
fn volume_of<'a>(index: &Index<'a>, attachment: &'a VolumeAttachment) -> Option<&'a str> {
    if attachment.spec.attacher != DRIVER {
        return None;
    }
    let annotations = attachment.metadata.annotations.as_ref();
    let kept = annotations.and_then(|all| all.get(HANDLE_ANNOTATION));
    let pv_name = attachment.spec.source.persistent_volume_name.as_deref();
    let pv = pv_name.and_then(|name| index.persistent_volume(name));
    pv.and_then(handle)
        .or(kept.map(String::as_str))
        .or_else(|| named_after(index, attachment))
        // A volume that we made is called like its PersistentVolume.
        .or(pv_name)
}

/// Where nothing else says whose it is: the Volume that has a ticket of the attachment's name, or that the name was made
/// from. A PersistentVolume that was made by hand need not be called like its volume, which may be attached all the same.
fn named_after<'a>(index: &Index<'a>, attachment: &VolumeAttachment) -> Option<&'a str> {
    let own = name(&attachment.metadata);
    let mut asked_for = index.dump.longhorn_attachments.iter();
    let asked_for = asked_for.find(|object| object.spec.attachment_tickets.contains_key(own));
    let (driver, node) = (DRIVER.into(), attachment.spec.node_name.as_str().into());
    let is_own = |volume: &&str| attachment_name(&(*volume).into(), &driver, &node).as_str() == own;
    asked_for
        .map(|object| object.spec.volume.as_str())
        .or_else(|| index.volume_names().find(is_own))
}
