//! From Kubernetes' objects to what the decisions look at. Parsed once, here; a field that is missing
//! reads as what the API server would have put there.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use crate::access::AccessMode;
use crate::identity::{AttachmentName, ClaimKey, DriverName, NodeName, PodKey, PvName, Timestamp};
use crate::names::{MANAGED_ANNOTATION, OUT_OF_SERVICE_TAINT, UniqueVolumeName};
use crate::view::{
    AttachmentSource, Claim, CsiNodeDriver, ErrorReport, Node, PersistentVolume, Pod, PodPhase,
    VolumeAttachment,
};

pub fn pod_key(pod: &core::Pod) -> PodKey {
    PodKey {
        namespace: text(pod.metadata.namespace.as_ref()),
        name: text(pod.metadata.name.as_ref()),
        uid: text(pod.metadata.uid.as_ref()),
    }
}

pub fn pod(pod: &core::Pod) -> Pod {
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    let phase = match status.and_then(|status| status.phase.as_deref()) {
        None | Some("Pending" | "") => PodPhase::Pending,
        Some("Running") => PodPhase::Running,
        Some("Succeeded") => PodPhase::Succeeded,
        Some("Failed") => PodPhase::Failed,
        Some(_) => PodPhase::Unknown,
    };
    let node = spec
        .and_then(|spec| spec.node_name.as_deref())
        .filter(|node| !node.is_empty());
    Pod {
        node: node.map(NodeName::from),
        phase,
        created_at: created_at(&pod.metadata),
        deleting: pod.metadata.deletion_timestamp.is_some(),
        has_running_container: has_running_container(status),
        claims: claims_of(pod),
    }
}

fn has_running_container(status: Option<&core::PodStatus>) -> bool {
    let Some(status) = status else { return false };
    [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ]
    .into_iter()
    .flatten()
    .flatten()
    .any(|container| {
        let state = container.state.as_ref();
        state.is_some_and(|state| state.running.is_some())
    })
}

/// The claims that a pod mounts, its generic ephemeral volumes' included.
pub fn claims_of(pod: &core::Pod) -> Vec<ClaimKey> {
    let namespace = text(pod.metadata.namespace.as_ref());
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    let claim_name = |volume: &core::Volume| match &volume.persistent_volume_claim {
        Some(claim) => Some(claim.claim_name.clone()),
        None => volume
            .ephemeral
            .as_ref()
            .map(|_| format!("{pod_name}-{}", volume.name)),
    };
    volumes
        .into_iter()
        .flatten()
        .filter_map(claim_name)
        .map(|name| ClaimKey {
            namespace: namespace.clone(),
            name,
        })
        .collect()
}

pub fn claim_key(claim: &core::PersistentVolumeClaim) -> ClaimKey {
    ClaimKey {
        namespace: text(claim.metadata.namespace.as_ref()),
        name: text(claim.metadata.name.as_ref()),
    }
}

pub fn claim(claim: &core::PersistentVolumeClaim) -> Claim {
    let volume = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_name.as_deref())
        .filter(|volume| !volume.is_empty());
    let phase = claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    Claim {
        uid: text(claim.metadata.uid.as_ref()),
        // A claim that merely asks for a volume does not have it yet.
        volume: volume.filter(|_| phase == Some("Bound")).map(PvName::from),
    }
}

/// None for volumes without a CSI source: they are attached by others, or not at all.
pub fn persistent_volume(volume: &core::PersistentVolume) -> Option<PersistentVolume> {
    let spec = volume.spec.as_ref()?;
    let csi = spec.csi.as_ref()?;
    let modes = spec.access_modes.iter().flatten();
    let secret = csi.controller_publish_secret_ref.as_ref();
    Some(PersistentVolume {
        driver: csi.driver.as_str().into(),
        handle: csi.volume_handle.as_str().into(),
        // The API server refuses other modes; one of a later Kubernetes is not ours to guess at.
        access_modes: modes
            .filter_map(|mode| AccessMode::parse(mode).ok())
            .collect(),
        claim_uid: spec.claim_ref.as_ref().and_then(|claim| claim.uid.clone()),
        deleting: volume.metadata.deletion_timestamp.is_some(),
        finalizers: volume.metadata.finalizers.clone().unwrap_or_default(),
        annotations: volume.metadata.annotations.clone().unwrap_or_default(),
        read_only: csi.read_only.unwrap_or_default(),
        fs_type: csi.fs_type.clone(),
        is_block: spec.volume_mode.as_deref() == Some("Block"),
        publish_secret: secret
            .map(|secret| (text(secret.namespace.as_ref()), text(secret.name.as_ref()))),
        attributes: csi.volume_attributes.clone().unwrap_or_default(),
    })
}

pub fn node(node: &core::Node) -> Node {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let annotations = node.metadata.annotations.as_ref();
    let in_use = status.and_then(|status| status.volumes_in_use.as_ref());
    let attached = status.and_then(|status| status.volumes_attached.as_ref());
    Node {
        ready: conditions
            .into_iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        out_of_service: taints
            .into_iter()
            .flatten()
            .any(|taint| taint.key == OUT_OF_SERVICE_TAINT),
        managed: annotations.is_some_and(|annotations| {
            annotations
                .get(MANAGED_ANNOTATION)
                .is_some_and(|value| value == "true")
        }),
        volumes_in_use: in_use
            .into_iter()
            .flatten()
            .filter_map(|name| UniqueVolumeName::parse(name))
            .collect(),
        volumes_attached: attached
            .into_iter()
            .flatten()
            .filter_map(|volume| UniqueVolumeName::parse(&volume.name))
            .collect(),
    }
}

/// The handles of a driver's volumes that a node says it uses.
#[must_use]
pub fn handles_in_use(node: &core::Node, driver: &str) -> BTreeSet<String> {
    let of_driver = |name: UniqueVolumeName| (name.driver == driver.into()).then_some(name.handle);
    let used = self::node(node).volumes_in_use.into_iter();
    used.filter_map(of_driver)
        .map(|handle| handle.to_string())
        .collect()
}

pub fn csi_node(node: &storage::CSINode) -> BTreeMap<DriverName, CsiNodeDriver> {
    let entry = |driver: &storage::CSINodeDriver| {
        let count = driver
            .allocatable
            .as_ref()
            .and_then(|allocatable| allocatable.count);
        let entry = CsiNodeDriver {
            node_id: driver.node_id.clone(),
            volumes_max: count.and_then(|count| u32::try_from(count).ok()),
        };
        (DriverName::from(driver.name.as_str()), entry)
    };
    node.spec.drivers.iter().map(entry).collect()
}

/// The driver's name, if its volumes are used without being attached.
pub fn attachless_driver(driver: &storage::CSIDriver) -> Option<DriverName> {
    (driver.spec.attach_required == Some(false))
        .then(|| DriverName::new(text(driver.metadata.name.as_ref())))
}

pub fn attachment_key(attachment: &storage::VolumeAttachment) -> AttachmentName {
    AttachmentName::new(text(attachment.metadata.name.as_ref()))
}

pub fn attachment(attachment: &storage::VolumeAttachment) -> VolumeAttachment {
    let (spec, metadata) = (&attachment.spec, &attachment.metadata);
    let source = match (
        &spec.source.persistent_volume_name,
        &spec.source.inline_volume_spec,
    ) {
        (Some(name), None) => AttachmentSource::Volume(name.as_str().into()),
        (None, Some(_)) => AttachmentSource::Inline,
        (None, None) | (Some(_), Some(_)) => AttachmentSource::Malformed,
    };
    let status = attachment.status.as_ref();
    VolumeAttachment {
        driver: spec.attacher.as_str().into(),
        source,
        node: spec.node_name.as_str().into(),
        created_at: created_at(metadata),
        deleting: metadata.deletion_timestamp.is_some(),
        finalizers: metadata.finalizers.clone().unwrap_or_default(),
        annotations: metadata.annotations.clone().unwrap_or_default(),
        attached: status.is_some_and(|status| status.attached),
        attach_error: status.and_then(|status| status.attach_error.as_ref().map(error)),
        detach_error: status.and_then(|status| status.detach_error.as_ref().map(error)),
    }
}

fn error(error: &storage::VolumeError) -> ErrorReport {
    ErrorReport {
        message: text(error.message.as_ref()),
        at: error.time.as_ref().map(timestamp).unwrap_or_default(),
        code: error.error_code,
    }
}

/// The volumes that a node is told it has, as `status.volumesAttached` lists them.
pub fn volumes_attached(volumes: &BTreeSet<UniqueVolumeName>) -> Vec<core::AttachedVolume> {
    volumes
        .iter()
        .map(|volume| core::AttachedVolume {
            name: volume.to_string(),
            device_path: String::new(),
        })
        .collect()
}

pub fn timestamp(time: &Time) -> Timestamp {
    // Before 1970 nothing was attached.
    Timestamp(u64::try_from(time.0.as_millisecond()).unwrap_or(0))
}

fn created_at(metadata: &ObjectMeta) -> Timestamp {
    metadata
        .creation_timestamp
        .as_ref()
        .map(timestamp)
        .unwrap_or_default()
}

fn text(value: Option<&String>) -> String {
    value.cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests;
