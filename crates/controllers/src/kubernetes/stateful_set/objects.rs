//! From a StatefulSet to its pods, claims and status.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::decide::{Member, Wanted};

const REVISION: &str = "controller-revision-hash";

pub(super) fn wanted(set: &StatefulSet) -> Wanted {
    let spec = &set.spec;
    let number = |value: i32| u32::try_from(value).ok();
    let strategy = spec.update_strategy.as_ref();
    let is_by_hand = strategy.is_some_and(|strategy| strategy.type_.as_deref() == Some("OnDelete"));
    let partition = strategy.and_then(|strategy| strategy.rolling_update.as_ref()?.partition);
    let first = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start);
    Wanted {
        first: first.and_then(number).unwrap_or(0),
        replicas: spec.replicas.and_then(number).unwrap_or(1),
        parallel: spec.pod_management_policy.as_deref() == Some("Parallel"),
        update_from: (!is_by_hand).then(|| partition.and_then(number).unwrap_or(0)),
        revision: revision(set),
    }
}

/// Another template has another revision. The set's name is in it, as Kubernetes has it.
fn revision(set: &StatefulSet) -> String {
    let template = &set.spec.template;
    let text = serde_json::to_vec(&template).unwrap_or_default();
    let digest = Sha256::digest(&text);
    let hex: String = digest[..5]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{}-{hex}", set.name_any())
}

/// The number of a pod of this set, if it is one.
pub(super) fn number_of(set: &StatefulSet, pod: &Pod) -> Option<u32> {
    let owner = pod
        .owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true))?;
    if Some(&owner.uid) != set.metadata.uid.as_ref() {
        return None;
    }
    let name = pod.name_any();
    let number = name.strip_prefix(&set.name_any())?.strip_prefix('-')?;
    number.parse().ok()
}

pub(super) fn member(pod: &Pod) -> Member {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let is_ready = status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    Member {
        ready: phase == Some("Running") && is_ready,
        deleting: pod.metadata.deletion_timestamp.is_some(),
        over: matches!(phase, Some("Succeeded" | "Failed")),
        revision: pod.labels().get(REVISION).cloned().unwrap_or_default(),
    }
}

/// The claims of one pod: names that outlive it, so that its successor finds the same data.
pub(super) fn claims(set: &StatefulSet, number: u32) -> Vec<Value> {
    let labels = set.spec.selector.match_labels.clone().unwrap_or_default();
    let claim = |template: &k8s_openapi::api::core::v1::PersistentVolumeClaim| {
        let mut labels = labels.clone();
        labels.extend(template.labels().clone());
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": claim_name(&template.name_any(), set, number),
                "namespace": set.namespace(),
                "labels": labels,
                "annotations": template.annotations(),
            },
            "spec": template.spec,
        })
    };
    let templates = set.spec.volume_claim_templates.iter().flatten();
    templates.map(claim).collect()
}

fn claim_name(template: &str, set: &StatefulSet, number: u32) -> String {
    format!("{template}-{}-{number}", set.name_any())
}

pub(super) fn pod_name(set: &StatefulSet, number: u32) -> String {
    format!("{}-{number}", set.name_any())
}

pub(super) fn pod(set: &StatefulSet, number: u32) -> Value {
    let name = pod_name(set, number);
    let (spec, template) = (&set.spec, &set.spec.template);
    let metadata = template.metadata.clone().unwrap_or_default();
    let mut labels: BTreeMap<String, String> = metadata.labels.unwrap_or_default();
    labels.insert(
        "statefulset.kubernetes.io/pod-name".to_owned(),
        name.clone(),
    );
    labels.insert(
        "apps.kubernetes.io/pod-index".to_owned(),
        number.to_string(),
    );
    labels.insert(REVISION.to_owned(), revision(set));
    let mut pod_spec = json!(template.spec);
    pod_spec["hostname"] = name.as_str().into();
    if let Some(service) = spec.service_name.as_ref().filter(|name| !name.is_empty()) {
        pod_spec["subdomain"] = service.as_str().into();
    }
    let mut volumes = match pod_spec["volumes"].take() {
        Value::Array(volumes) => volumes,
        _ => Vec::new(),
    };
    for template in spec.volume_claim_templates.iter().flatten() {
        let volume = template.name_any();
        volumes.retain(|other| other["name"] != volume.as_str());
        let claim = claim_name(&volume, set, number);
        volumes.push(json!({"name": volume, "persistentVolumeClaim": {"claimName": claim}}));
    }
    pod_spec["volumes"] = volumes.into();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": set.namespace(),
            "labels": labels,
            "annotations": metadata.annotations,
            "ownerReferences": [set.controller_owner_ref(&())],
        },
        "spec": pod_spec,
    })
}

/// What `kubectl get` and `kubectl rollout status` read.
pub(super) fn status(
    set: &StatefulSet,
    wanted: &Wanted,
    members: &BTreeMap<u32, Member>,
) -> StatefulSetStatus {
    let count = |fits: &dyn Fn(&Member) -> bool| {
        i32::try_from(members.values().filter(|member| fits(member)).count()).unwrap_or(i32::MAX)
    };
    let before = set.status.as_ref();
    let updated = count(&|member| member.revision == wanted.revision && !member.deleting);
    let ready = count(&|member| member.ready && !member.deleting);
    let is_complete = i32::try_from(wanted.replicas)
        .is_ok_and(|replicas| updated == replicas && ready == replicas);
    let current = before
        .and_then(|status| status.current_revision.clone())
        .filter(|current| !is_complete && !current.is_empty())
        .unwrap_or_else(|| wanted.revision.clone());
    StatefulSetStatus {
        observed_generation: set.metadata.generation,
        replicas: count(&|_| true),
        ready_replicas: Some(ready),
        available_replicas: Some(ready),
        current_replicas: Some(count(&|member| {
            member.revision == current && !member.deleting
        })),
        updated_replicas: Some(updated),
        current_revision: Some(current),
        update_revision: Some(wanted.revision.clone()),
        collision_count: Some(0),
        conditions: before.and_then(|status| status.conditions.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> StatefulSet {
        let set = json!({
            "metadata": {"name": "db", "namespace": "n", "uid": "u", "generation": 3},
            "spec": {
                "serviceName": "svc", "replicas": 2, "selector": {"matchLabels": {"app": "db"}},
                "template": {"metadata": {"labels": {"app": "db"}}, "spec": {
                    "containers": [{"name": "c"}],
                    "volumes": [{"name": "data", "emptyDir": {}}, {"name": "scratch", "emptyDir": {}}]}},
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}],
            },
        });
        serde_json::from_value(set).expect("a set")
    }

    #[test]
    fn a_pod_has_its_name_its_claims_and_its_owner() {
        let pod = pod(&set(), 1);
        assert_eq!(pod["metadata"]["name"], "db-1");
        assert_eq!(
            pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"],
            "1"
        );
        assert_eq!(pod["metadata"]["ownerReferences"][0]["kind"], "StatefulSet");
        assert_eq!(pod["metadata"]["ownerReferences"][0]["controller"], true);
        assert_eq!(pod["spec"]["subdomain"], "svc");
        // A claim takes the place of a volume of its name.
        let volumes = json!([
            {"name": "scratch", "emptyDir": {}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-1"}},
        ]);
        assert_eq!(pod["spec"]["volumes"], volumes);
        let claims = claims(&set(), 1);
        assert_eq!(claims[0]["metadata"]["name"], "data-db-1");
        assert_eq!(claims[0]["metadata"]["labels"]["app"], "db");
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        assert_eq!(number_of(&set(), &pod), Some(1));
    }

    #[test]
    fn a_status_says_when_a_roll_out_is_over() {
        let wanted = wanted(&set());
        let member = |revision: &str| Member {
            ready: true,
            revision: revision.to_owned(),
            ..Member::default()
        };
        let mut set = set();
        let half = [(0, member("old")), (1, member(&wanted.revision))].into();
        set.status = Some(StatefulSetStatus {
            current_revision: Some("old".to_owned()),
            ..StatefulSetStatus::default()
        });
        let status_half = status(&set, &wanted, &half);
        assert_eq!(status_half.current_revision.as_deref(), Some("old"));
        assert_eq!(
            (status_half.updated_replicas, status_half.current_replicas),
            (Some(1), Some(1))
        );
        let all = [(0, member(&wanted.revision)), (1, member(&wanted.revision))].into();
        let status_all = status(&set, &wanted, &all);
        assert_eq!(status_all.current_revision, status_all.update_revision);
        assert_eq!(
            (status_all.replicas, status_all.observed_generation),
            (2, Some(3))
        );
    }
}
