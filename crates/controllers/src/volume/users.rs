//! Who uses a volume in Kubernetes: `Volume.status.kubernetesStatus`, for people and tools to read. Nothing depends on it.

use std::sync::Arc;

use api_types::{KubernetesStatus, WorkloadStatus};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, Pod};
use kube::ResourceExt as _;

use crate::runtime::{Objects, reference};

/// The volumes whose claims this pod names.
pub(super) fn volumes_of(objects: &Objects, pod: &Pod) -> Vec<String> {
    if claims(pod).next().is_none() {
        return Vec::new();
    }
    let is_used = |volume: &PersistentVolume| {
        claim(volume).is_some_and(|(namespace, name)| uses(pod, namespace, name))
    };
    let volumes = objects.persistent_volumes.select(is_used);
    volumes.iter().map(|volume| volume.name_any()).collect()
}

/// What is to be written. A claim or pod that is gone stays, with the time at which it was last seen, as Longhorn has it.
pub(super) fn users(
    objects: &Objects,
    volume: &str,
    before: &KubernetesStatus,
    now: &str,
) -> KubernetesStatus {
    let mut after = before.clone();
    // The persistent volume of a provisioned volume has its name.
    let found = objects.persistent_volumes.get_cluster_wide(volume);
    let status = found.as_ref().and_then(|found| found.status.as_ref());
    after.pv_name = found
        .as_ref()
        .map(|found| found.name_any())
        .unwrap_or_default();
    after.pv_status = status
        .and_then(|status| status.phase.clone())
        .unwrap_or_default();
    let is_bound = after.pv_status == "Bound";
    let claim = found.as_deref().and_then(claim).filter(|_| is_bound);
    match claim {
        Some((namespace, name)) => {
            namespace.clone_into(&mut after.namespace);
            name.clone_into(&mut after.pvc_name);
            after.last_pvc_ref_at.clear();
        }
        None if !after.pvc_name.is_empty() && after.last_pvc_ref_at.is_empty() => {
            now.clone_into(&mut after.last_pvc_ref_at);
        }
        None => {}
    }
    let pods = claim.map(|(namespace, name)| pods_of(objects, namespace, name));
    let workloads: Vec<WorkloadStatus> = pods.iter().flatten().map(|pod| workload(pod)).collect();
    if !workloads.is_empty() {
        after.workloads_status = workloads;
        after.last_pod_ref_at.clear();
    } else if !after.workloads_status.is_empty() && after.last_pod_ref_at.is_empty() {
        now.clone_into(&mut after.last_pod_ref_at);
    }
    after
}

/// The claim that people know a volume by.
pub(crate) fn claim_reference(objects: &Objects, volume: &str) -> Option<ObjectReference> {
    let volume = objects.persistent_volumes.get_cluster_wide(volume)?;
    let claim = volume.spec.as_ref()?.claim_ref.clone()?;
    Some(ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        ..claim
    })
}

/// The pods that use a volume, or want to.
pub(crate) fn pods(objects: &Objects, volume: &str) -> Vec<ObjectReference> {
    chosen_pods(objects, volume, |_| true)
}

/// Those of them that are on this node.
pub(crate) fn pods_on(objects: &Objects, volume: &str, node: &str) -> Vec<ObjectReference> {
    chosen_pods(objects, volume, |pod| {
        let spec = pod.spec.as_ref();
        spec.and_then(|spec| spec.node_name.as_deref()) == Some(node)
    })
}

fn chosen_pods(
    objects: &Objects,
    volume: &str,
    is_chosen: impl Fn(&Pod) -> bool,
) -> Vec<ObjectReference> {
    let volume = objects.persistent_volumes.get_cluster_wide(volume);
    let claim = volume.as_deref().and_then(claim);
    let is_over = |pod: &Pod| {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    };
    claim
        .map(|(namespace, name)| pods_of(objects, namespace, name))
        .unwrap_or_default()
        .iter()
        .filter(|pod| !is_over(pod) && is_chosen(pod))
        .map(|pod| reference(pod.as_ref()))
        .collect()
}

fn claim(volume: &PersistentVolume) -> Option<(&str, &str)> {
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    Some((claim.namespace.as_deref()?, claim.name.as_deref()?))
}

fn claims(pod: &Pod) -> impl Iterator<Item = &str> {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
}

fn uses(pod: &Pod, namespace: &str, claim: &str) -> bool {
    pod.metadata.namespace.as_deref() == Some(namespace) && claims(pod).any(|name| name == claim)
}

fn pods_of(objects: &Objects, namespace: &str, claim: &str) -> Vec<Arc<Pod>> {
    let mut pods = objects.pods.select(|pod| uses(pod, namespace, claim));
    pods.sort_by_key(|pod| pod.name_any());
    pods
}

fn workload(pod: &Pod) -> WorkloadStatus {
    let owner = pod.owner_references().first();
    let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
    WorkloadStatus {
        pod_name: pod.name_any(),
        pod_status: phase.unwrap_or_default(),
        workload_name: owner.map(|owner| owner.name.clone()).unwrap_or_default(),
        workload_type: owner.map(|owner| owner.kind.clone()).unwrap_or_default(),
        ..WorkloadStatus::default()
    }
}
