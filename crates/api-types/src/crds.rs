//! The CustomResourceDefinitions of every resource here.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::{
    BackingImage, Backup, BackupTarget, BackupVolume, Engine, Node, RecurringJob, Replica, Setting,
    ShareManager, Snapshot, Volume, VolumeAttachment,
};

/// The CRDs could not be written as text.
#[derive(Debug, thiserror::Error)]
pub enum CrdTextError {
    /// As JSON.
    #[error("cannot write CustomResourceDefinition as JSON")]
    Json(#[from] serde_json::Error),
    /// As YAML.
    #[error("cannot write CustomResourceDefinition as YAML")]
    Yaml(#[from] serde_saphyr::ser::Error),
}

/// The CRDs in the order of their names, which is the same in every build.
pub fn all_crds() -> Vec<CustomResourceDefinition> {
    vec![
        BackingImage::crd(),
        Backup::crd(),
        BackupTarget::crd(),
        BackupVolume::crd(),
        Engine::crd(),
        Node::crd(),
        RecurringJob::crd(),
        Replica::crd(),
        Setting::crd(),
        ShareManager::crd(),
        Snapshot::crd(),
        VolumeAttachment::crd(),
        Volume::crd(),
    ]
}

/// The CRDs as a stream of YAML documents, for `kubectl apply -f -`.
pub fn crds_yaml() -> Result<String, CrdTextError> {
    let mut text = String::new();
    for crd in all_crds() {
        text.push_str("---\n");
        text.push_str(&serde_saphyr::to_string(&crd)?);
    }
    Ok(text)
}

/// The CRDs as one JSON `List`, for `kubectl apply -f -`.
pub fn crds_json() -> Result<String, CrdTextError> {
    let items = all_crds()
        .into_iter()
        .map(serde_json::to_value)
        .collect::<Result<Vec<_>, _>>()?;
    let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": items });
    Ok(serde_json::to_string_pretty(&list)? + "\n")
}
