//! Objects by their few words.

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::{Cluster, create};

pub const DRIVER: &str = "driver.longhorn.io";

impl Cluster {
    /// A node that is well, with its CSINode; `volumes_max` 0 is no limit.
    pub async fn node(&self, name: &str, volumes_max: u32) -> Node {
        let node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name},
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        let created = create(&self.all::<Node>(), node).await;
        let mut driver = json!({"name": DRIVER, "nodeID": name});
        if volumes_max > 0 {
            driver["allocatable"] = json!({"count": volumes_max});
        }
        let csi_node = json!({"metadata": {"name": name}, "spec": {"drivers": [driver]}});
        create(&self.all::<CSINode>(), csi_node).await;
        created
    }

    /// A volume bound to a claim, both named so.
    pub async fn bound(&self, name: &str) -> PersistentVolume {
        let claim = create(
            &self.default::<PersistentVolumeClaim>(),
            json!({
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": name,
                    "resources": {"requests": {"storage": "1Gi"}}},
            }),
        )
        .await;
        let status = json!({"status": {"phase": "Bound"}});
        self.default::<PersistentVolumeClaim>()
            .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
            .await
            .expect("bound");
        let uid = claim.metadata.uid.expect("a UID");
        let reference = json!({"namespace": "default", "name": name, "uid": uid});
        self.volume(name, DRIVER, json!({"claimRef": reference}))
            .await
    }

    pub async fn volume(&self, name: &str, driver: &str, more: Value) -> PersistentVolume {
        let mut volume = json!({
            "metadata": {"name": name},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": driver, "volumeHandle": name}},
        });
        json_patch::merge(&mut volume["spec"], &more);
        create(&self.all(), volume).await
    }

    /// A pod that mounts claims; without a node it waits for the scheduler.
    pub async fn pod(&self, name: &str, node: Option<&str>, claims: &[&str]) -> Pod {
        let volumes: Vec<Value> = claims
            .iter()
            .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
            .collect();
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [{"name": "c", "image": "i"}], "volumes": volumes},
        });
        if let Some(node) = node {
            pod["spec"]["nodeName"] = json!(node);
        }
        create(&self.default(), pod).await
    }

    /// As the kubelet ends it: there is none here to be graceful.
    pub async fn delete_pod(&self, name: &str) {
        let parameters = DeleteParams::default().grace_period(0);
        self.default::<Pod>()
            .delete(name, &parameters)
            .await
            .expect("deleted");
    }

    pub async fn attachment(
        &self,
        name: &str,
        driver: &str,
        volume: &str,
        node: &str,
    ) -> VolumeAttachment {
        let attachment = json!({
            "metadata": {"name": name},
            "spec": {"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": volume}},
        });
        create(&self.all(), attachment).await
    }

    pub async fn patch_node_status(&self, name: &str, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        self.all::<Node>()
            .patch_status(name, &PatchParams::default(), &patch)
            .await
            .expect("patched");
    }
}

/// The name that everybody computes for a volume on a node.
pub fn attachment_name(handle: &str, node: &str) -> String {
    cluster_core::names::attachment_name(&handle.into(), &DRIVER.into(), &node.into()).to_string()
}

pub fn is_attached(attachment: Option<&VolumeAttachment>) -> bool {
    attachment
        .and_then(|attachment| attachment.status.as_ref())
        .is_some_and(|status| status.attached)
}

pub fn attach_error(attachment: Option<&VolumeAttachment>) -> Option<(String, Option<i32>)> {
    let error = attachment?.status.as_ref()?.attach_error.as_ref()?;
    Some((error.message.clone().unwrap_or_default(), error.error_code))
}
