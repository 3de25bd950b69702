//! What the attacher does next with one VolumeAttachment.
//!
//! The order is the external-attacher's: everything that can fail without leaving a trace is checked
//! before a finalizer is added, because a finalizer on something that cannot be attached also cannot be
//! deleted. Each step is decided from the objects alone, so a crash between any two of them resumes.
//!
//! ```text
//! attach:  PV finalizer ─▶ VA finalizer + annotations ─▶ Publish ─▶ status (attached, metadata)
//! detach:  Unpublish ─▶ remove VA finalizer ─▶ status (detached), if something is left
//! ```

mod outcome;
mod reconcile;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use outcome::{AttachmentPatch, RpcError, after_publish, after_unpublish};
pub use reconcile::{PublishedVolumes, out_of_step, volume_finalizer_to_remove};
use thiserror::Error;

use crate::access::{AccessModeError, CsiAccessMode, csi_access_mode};
use crate::identity::{AttachmentName, DriverName, NodeName, PvName, VolumeHandle};
use crate::names::{HANDLE_ANNOTATION, NODE_ID_ANNOTATION, finalizer_name};
use crate::view::{AttachmentSource, CsiNodeDriver, PersistentVolume, VolumeAttachment};

/// One attachment and what belongs to it.
#[derive(Clone, Copy, Debug)]
pub struct AttacherView<'a> {
    /// The driver that this attacher serves.
    pub driver: &'a DriverName,
    pub name: &'a AttachmentName,
    pub attachment: &'a VolumeAttachment,
    pub volume: Option<&'a PersistentVolume>,
    /// What the node's CSINode says of the driver.
    pub csi_node: Option<&'a CsiNodeDriver>,
    pub secret: SecretState<'a>,
    pub capabilities: Capabilities,
    /// The driver disagrees with the status: ask again whatever it says.
    pub force_sync: bool,
    pub default_fs_type: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretState<'a> {
    Present,
    Missing,
    /// The API refuses to show it, with this sentence.
    Unreadable(&'a str),
}

/// What the driver can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// `PUBLISH_UNPUBLISH_VOLUME`.
    pub publish: bool,
    /// `PUBLISH_READONLY`.
    pub read_only: bool,
    /// `SINGLE_NODE_MULTI_WRITER`.
    pub single_node_multi_writer: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Nothing(Idle),
    /// The driver needs no attaching: the status is all there is.
    MarkAttached,
    AddVolumeFinalizer(VolumePatch),
    /// One merge patch of the attachment's metadata.
    AddAttachmentFinalizer {
        finalizers: Vec<String>,
        annotations: BTreeMap<String, String>,
    },
    Publish(PublishRequest),
    Unpublish(UnpublishRequest),
    /// Write the error into the status and try again later.
    Fail(StepError),
}

/// Why there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    OtherDriver,
    AlreadyAttached,
    /// Being deleted, and we hold it no longer.
    AlreadyReleased,
}

/// JSON patches of a PersistentVolume's finalizers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumePatch {
    /// `add /metadata/finalizers/-`, which fails if there is no list.
    Append { finalizer: String },
    /// `test /metadata/finalizers null`, then `add` the list: two attachers cannot both create it.
    CreateList { finalizer: String },
    /// `test /metadata/finalizers/N`, then `remove` it: the index may have moved.
    Remove { index: usize, finalizer: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishRequest {
    pub handle: VolumeHandle,
    pub node_id: String,
    pub access_mode: CsiAccessMode,
    pub read_only: bool,
    /// None for raw block.
    pub fs_type: Option<String>,
    pub secret: Option<(String, String)>,
    pub attributes: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpublishRequest {
    pub handle: VolumeHandle,
    pub node_id: String,
    pub secret: Option<(String, String)>,
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StepError {
    #[error("the attachment must name a PersistentVolume or an inline volume, and not both")]
    MalformedSource,
    #[error("inline volumes are not supported: use a PersistentVolume")]
    InlineSource,
    #[error("PersistentVolume {0} does not exist")]
    VolumeMissing(PvName),
    #[error("PersistentVolume {0} is being deleted")]
    VolumeDeleting(PvName),
    #[error("PersistentVolume {volume} belongs to driver {actual}")]
    WrongDriver { volume: PvName, actual: DriverName },
    #[error("PersistentVolume {volume} cannot be attached")]
    AccessMode {
        volume: PvName,
        #[source]
        source: AccessModeError,
    },
    #[error("secret {namespace}/{name} for attaching does not exist")]
    SecretMissing { namespace: String, name: String },
    #[error("secret {namespace}/{name} for attaching cannot be read: {why}")]
    SecretUnreadable {
        namespace: String,
        name: String,
        /// The API's own sentence.
        why: String,
    },
    #[error("node {0} does not run the driver: its CSINode has no entry for it")]
    NodeUnknown(NodeName),
    #[error("the volume handle is lost: PersistentVolume and annotation are gone")]
    HandleLost,
    #[error("the CSI node ID of node {0} is lost: CSINode entry and annotation are gone")]
    NodeIdLost(NodeName),
}

/// The next thing to do, decided from the objects alone.
pub fn next_step(view: &AttacherView<'_>) -> Step {
    if view.attachment.driver != *view.driver {
        return Step::Nothing(Idle::OtherDriver);
    }
    let step = if view.attachment.deleting {
        detach(view)
    } else {
        attach(view)
    };
    step.unwrap_or_else(Step::Fail)
}

fn attach(view: &AttacherView<'_>) -> Result<Step, StepError> {
    if view.attachment.attached && !view.force_sync {
        return Ok(Step::Nothing(Idle::AlreadyAttached));
    }
    if !view.capabilities.publish {
        return Ok(Step::MarkAttached);
    }
    let (name, volume) = volume_of(view)?;
    if volume.deleting {
        return Err(StepError::VolumeDeleting(name.clone()));
    }
    let finalizer = finalizer_name(view.driver);
    if !volume.finalizers.contains(&finalizer) {
        let patch = if volume.finalizers.is_empty() {
            VolumePatch::CreateList { finalizer }
        } else {
            VolumePatch::Append { finalizer }
        };
        return Ok(Step::AddVolumeFinalizer(patch));
    }
    let request = publish_request(view, name, volume)?;
    let annotations = BTreeMap::from([
        (NODE_ID_ANNOTATION.to_owned(), request.node_id.clone()),
        (HANDLE_ANNOTATION.to_owned(), request.handle.to_string()),
    ]);
    let is_annotated = annotations
        .iter()
        .all(|(key, value)| view.attachment.annotations.get(key) == Some(value));
    if !view.attachment.finalizers.contains(&finalizer) || !is_annotated {
        let mut finalizers = view.attachment.finalizers.clone();
        if !finalizers.contains(&finalizer) {
            finalizers.push(finalizer);
        }
        return Ok(Step::AddAttachmentFinalizer {
            finalizers,
            annotations,
        });
    }
    Ok(Step::Publish(request))
}

fn volume_of<'a>(view: &AttacherView<'a>) -> Result<(&'a PvName, &'a PersistentVolume), StepError> {
    let name = match &view.attachment.source {
        AttachmentSource::Volume(name) => name,
        AttachmentSource::Inline => return Err(StepError::InlineSource),
        AttachmentSource::Malformed => return Err(StepError::MalformedSource),
    };
    let volume = view
        .volume
        .ok_or_else(|| StepError::VolumeMissing(name.clone()))?;
    if volume.driver != *view.driver {
        return Err(StepError::WrongDriver {
            volume: name.clone(),
            actual: volume.driver.clone(),
        });
    }
    Ok((name, volume))
}

fn publish_request(
    view: &AttacherView<'_>,
    name: &PvName,
    volume: &PersistentVolume,
) -> Result<PublishRequest, StepError> {
    let access_mode = csi_access_mode(
        &volume.access_modes,
        view.capabilities.single_node_multi_writer,
    )
    .map_err(|source| StepError::AccessMode {
        volume: name.clone(),
        source,
    })?;
    check_secret(view, volume.publish_secret.as_ref())?;
    // The CSINode only: an annotation may be of an earlier life of the node.
    let csi_node = view
        .csi_node
        .ok_or_else(|| StepError::NodeUnknown(view.attachment.node.clone()))?;
    let fs_type = volume.fs_type.clone().filter(|fs_type| !fs_type.is_empty());
    Ok(PublishRequest {
        handle: volume.handle.clone(),
        node_id: csi_node.node_id.clone(),
        access_mode,
        read_only: volume.read_only && view.capabilities.read_only,
        fs_type: (!volume.is_block)
            .then(|| fs_type.unwrap_or_else(|| view.default_fs_type.to_owned())),
        secret: volume.publish_secret.clone(),
        attributes: volume.attributes.clone(),
    })
}

fn check_secret(
    view: &AttacherView<'_>,
    secret: Option<&(String, String)>,
) -> Result<(), StepError> {
    let Some((namespace, name)) = secret.cloned() else {
        return Ok(());
    };
    match view.secret {
        SecretState::Present => Ok(()),
        SecretState::Missing => Err(StepError::SecretMissing { namespace, name }),
        SecretState::Unreadable(why) => Err(StepError::SecretUnreadable {
            namespace,
            name,
            why: why.to_owned(),
        }),
    }
}

fn detach(view: &AttacherView<'_>) -> Result<Step, StepError> {
    let holds = view
        .attachment
        .finalizers
        .contains(&finalizer_name(view.driver));
    let is_forced = view.force_sync && view.capabilities.publish;
    if !holds && !is_forced {
        return Ok(Step::Nothing(Idle::AlreadyReleased));
    }
    let handle =
        attached_handle(view.driver, view.attachment, view.volume).ok_or(StepError::HandleLost)?;
    let node_id = view
        .csi_node
        .map(|csi_node| csi_node.node_id.clone())
        .or_else(|| annotation(view.attachment, NODE_ID_ANNOTATION).map(str::to_owned))
        .ok_or_else(|| StepError::NodeIdLost(view.attachment.node.clone()))?;
    // A later volume of the same name has a secret of its own, which opens nothing of this one.
    let secret = view
        .volume
        .filter(|volume| volume.handle == handle)
        .and_then(|volume| volume.publish_secret.clone());
    check_secret(view, secret.as_ref())?;
    Ok(Step::Unpublish(UnpublishRequest {
        handle,
        node_id,
        secret,
    }))
}

/// What the driver was asked to attach: as it was noted then, because a PersistentVolume can be deleted and made again
/// under the same name for another volume. One without a note, of the external-attacher, is what its
/// PersistentVolume says.
fn attached_handle(
    driver: &DriverName,
    attachment: &VolumeAttachment,
    volume: Option<&PersistentVolume>,
) -> Option<VolumeHandle> {
    annotation(attachment, HANDLE_ANNOTATION)
        .map(VolumeHandle::from)
        .or_else(|| {
            let volume = volume.filter(|volume| volume.driver == *driver)?;
            Some(volume.handle.clone())
        })
}

fn annotation<'a>(attachment: &'a VolumeAttachment, key: &str) -> Option<&'a str> {
    let value = attachment.annotations.get(key)?;
    Some(value.as_str()).filter(|value| !value.is_empty())
}
