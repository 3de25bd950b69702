//! From a claim and its class to a driver's call, and from the answer to a PersistentVolume.

use std::collections::{BTreeMap, BTreeSet};

use cluster_core::AccessMode;
use cluster_core::access::csi_access_mode;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use thiserror::Error;

use super::decide::{PROVISIONED_BY, VOLUME_PROTECTION, requested_bytes};
use crate::kubernetes::csi::{
    ContentSource, CreateRequest, CreatedVolume, DriverCapabilities, Secrets,
};

/// Parameters that are meant for the provisioner and not for the driver.
const OWN_PREFIX: &str = "csi.storage.k8s.io/";
const DELETION_SECRET_NAME: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";
const DELETION_SECRET_NAMESPACE: &str =
    "volume.kubernetes.io/provisioner-deletion-secret-namespace";

#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum ProvisionError {
    #[error("the claim asks for no amount of storage that can be read")]
    NoSize,
    #[error("the claim's access modes cannot be provisioned: {0}")]
    AccessModes(String),
    #[error("the claim has no UID")]
    NoUid,
    #[error("the driver answered without a volume ID: see its CreateVolume")]
    NoHandle,
}

/// `pvc-` and the claim's UID: the same claim always asks for the same volume.
pub(super) fn volume_name(claim: &PersistentVolumeClaim) -> Option<String> {
    Some(format!("pvc-{}", claim.metadata.uid.as_deref()?))
}

pub(super) fn request(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    capabilities: DriverCapabilities,
    source: Option<ContentSource>,
    preferred_topology: BTreeMap<String, String>,
    secrets: Secrets,
) -> Result<CreateRequest, ProvisionError> {
    let modes: Result<BTreeSet<AccessMode>, _> = claim
        .spec
        .iter()
        .flat_map(|spec| spec.access_modes.iter().flatten())
        .map(|mode| AccessMode::parse(mode))
        .collect();
    let access_mode = modes
        .and_then(|modes| csi_access_mode(&modes, capabilities.attach.single_node_multi_writer))
        .map_err(|error| ProvisionError::AccessModes(error.to_string()))?;
    let parameters = class.parameters.clone().unwrap_or_default();
    let own = |(key, _): &(String, String)| !key.starts_with(OWN_PREFIX);
    Ok(CreateRequest {
        name: volume_name(claim).ok_or(ProvisionError::NoUid)?,
        bytes_required: requested_bytes(claim).ok_or(ProvisionError::NoSize)?,
        access_modes: vec![access_mode],
        fs_type: (!is_block(claim)).then(|| fs_type(class)),
        mount_flags: class.mount_options.clone().unwrap_or_default(),
        parameters: parameters.into_iter().filter(own).collect(),
        source,
        preferred_topology,
        secrets,
    })
}

/// The secret of one purpose (`provisioner`, `controller-publish`, …), as namespace and name.
pub(super) fn secret(
    class: &StorageClass,
    claim: &PersistentVolumeClaim,
    purpose: &str,
) -> Option<(String, String)> {
    let parameters = class.parameters.as_ref()?;
    let read = |what: &str| {
        let template = parameters.get(&format!("{OWN_PREFIX}{purpose}-secret-{what}"))?;
        Some(
            template
                .replace("${pvc.name}", &claim.name_any())
                .replace("${pvc.namespace}", &claim.namespace().unwrap_or_default())
                .replace("${pv.name}", &volume_name(claim).unwrap_or_default()),
        )
    };
    Some((read("namespace")?, read("name")?))
}

/// The secret that the volume was made with, for its end.
pub(super) fn deletion_secret(volume: &PersistentVolume) -> Option<(String, String)> {
    let annotations = volume.annotations();
    let namespace = annotations.get(DELETION_SECRET_NAMESPACE)?.clone();
    Some((namespace, annotations.get(DELETION_SECRET_NAME)?.clone()))
}

pub(super) fn persistent_volume(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    driver: &str,
    created: &CreatedVolume,
) -> Result<Value, ProvisionError> {
    if created.handle.is_empty() {
        return Err(ProvisionError::NoHandle);
    }
    let requested = requested_bytes(claim).ok_or(ProvisionError::NoSize)?;
    let bytes = if created.bytes > 0 {
        created.bytes
    } else {
        requested
    };
    let mut annotations = json!({PROVISIONED_BY: driver});
    if let Some((namespace, name)) = secret(class, claim, "provisioner") {
        annotations[DELETION_SECRET_NAMESPACE] = json!(namespace);
        annotations[DELETION_SECRET_NAME] = json!(name);
    }
    let mut csi = json!({
        "driver": driver,
        "volumeHandle": created.handle,
        "volumeAttributes": created.attributes,
    });
    if !is_block(claim) {
        csi["fsType"] = json!(fs_type(class));
    }
    for (purpose, field) in [
        ("controller-publish", "controllerPublishSecretRef"),
        ("node-stage", "nodeStageSecretRef"),
        ("node-publish", "nodePublishSecretRef"),
        ("controller-expand", "controllerExpandSecretRef"),
    ] {
        if let Some((namespace, name)) = secret(class, claim, purpose) {
            csi[field] = json!({"namespace": namespace, "name": name});
        }
    }
    let mut spec = json!({
        "capacity": {"storage": amount(bytes)},
        "accessModes": claim.spec.as_ref().and_then(|spec| spec.access_modes.clone()),
        "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
        "storageClassName": class.name_any(),
        "volumeMode": if is_block(claim) { "Block" } else { "Filesystem" },
        "csi": csi,
        "claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "namespace": claim.namespace(), "name": claim.name_any(), "uid": claim.uid(),
        },
    });
    if let Some(options) = &class.mount_options {
        spec["mountOptions"] = json!(options);
    }
    if !created.accessible_from.is_empty() {
        spec["nodeAffinity"] = node_affinity(&created.accessible_from);
    }
    let metadata = json!({
        "name": volume_name(claim).ok_or(ProvisionError::NoUid)?,
        "annotations": annotations,
        "finalizers": [VOLUME_PROTECTION],
    });
    Ok(json!({"metadata": metadata, "spec": spec}))
}

fn node_affinity(accessible_from: &[BTreeMap<String, String>]) -> Value {
    let term = |segments: &BTreeMap<String, String>| {
        let expressions: Vec<Value> = segments
            .iter()
            .map(|(key, value)| json!({"key": key, "operator": "In", "values": [value]}))
            .collect();
        json!({"matchExpressions": expressions})
    };
    let terms: Vec<Value> = accessible_from.iter().map(term).collect();
    json!({"required": {"nodeSelectorTerms": terms}})
}

/// In the largest binary unit that says it exactly, as people write it.
fn amount(bytes: i64) -> String {
    for (suffix, unit) in [("Gi", 1_i64 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)] {
        if bytes > 0 && bytes % unit == 0 {
            return format!("{}{suffix}", bytes / unit);
        }
    }
    bytes.to_string()
}

fn is_block(claim: &PersistentVolumeClaim) -> bool {
    let spec = claim.spec.as_ref();
    spec.and_then(|spec| spec.volume_mode.as_deref()) == Some("Block")
}

fn fs_type(class: &StorageClass) -> String {
    let parameters = class.parameters.as_ref();
    let named = parameters.and_then(|parameters| {
        parameters
            .get("csi.storage.k8s.io/fstype")
            .or_else(|| parameters.get("fsType"))
    });
    named
        .filter(|name| !name.is_empty())
        .cloned()
        .unwrap_or_else(|| "ext4".to_owned())
}

#[cfg(test)]
mod tests {
    use cluster_core::CsiAccessMode;
    use cluster_core::attacher::Capabilities;

    use super::*;

    fn asked_for(mode: &str, single_node_multi_writer: bool) -> CsiAccessMode {
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": "data", "namespace": "default", "uid": "1"},
            "spec": {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}},
        }))
        .expect("a claim");
        let class = StorageClass::default();
        let capabilities = DriverCapabilities {
            attach: Capabilities {
                single_node_multi_writer,
                ..Capabilities::default()
            },
            ..DriverCapabilities::default()
        };
        let (nowhere, secrets) = (BTreeMap::new(), Secrets::default());
        let asked = request(&claim, &class, capabilities, None, nowhere, secrets);
        asked.expect("a request").access_modes[0]
    }

    #[test]
    fn a_driver_that_can_tell_pods_apart_is_told_for_how_many() {
        use CsiAccessMode::{
            MultiNodeMultiWriter, SingleNodeMultiWriter, SingleNodeSingleWriter, SingleNodeWriter,
        };
        for (mode, plain, telling_apart) in [
            ("ReadWriteOncePod", SingleNodeWriter, SingleNodeSingleWriter),
            ("ReadWriteOnce", SingleNodeWriter, SingleNodeMultiWriter),
            ("ReadWriteMany", MultiNodeMultiWriter, MultiNodeMultiWriter),
        ] {
            assert_eq!(asked_for(mode, false), plain, "{mode}");
            assert_eq!(asked_for(mode, true), telling_apart, "{mode}");
        }
    }
}
