//! Which changes of an object can let a pod go where it could not before.

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::ResourceExt as _;

use crate::kubernetes::binder::SELECTED_NODE;

/// Not what is attached or in use, nor when the node was last heard of.
pub(super) fn of_node(old: &Node, new: &Node) -> bool {
    let ready = |node: &Node| {
        let conditions = node
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref());
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    let allocatable = |node: &Node| {
        node.status
            .as_ref()
            .and_then(|status| status.allocatable.clone())
    };
    old.uid() != new.uid()
        || old.spec != new.spec
        || old.labels() != new.labels()
        || ready(old) != ready(new)
        || allocatable(old) != allocatable(new)
}

pub(super) fn of_claim(old: &PersistentVolumeClaim, new: &PersistentVolumeClaim) -> bool {
    let facts = |claim: &PersistentVolumeClaim| {
        (
            claim.uid(),
            claim.spec.clone(),
            claim
                .status
                .as_ref()
                .and_then(|status| status.phase.clone()),
            claim.metadata.deletion_timestamp.clone(),
            claim.annotations().get(SELECTED_NODE).cloned(),
        )
    };
    facts(old) != facts(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_node_is_news_when_a_pod_could_go_there() {
        let check = |change: Value, expected: bool| {
            let before = json!({"metadata": {"name": "n"}, "spec": {}, "status": {
                "conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"pods": "10"}}});
            let mut after = before.clone();
            json_patch::merge(&mut after, &change);
            let node = |value| serde_json::from_value::<Node>(value).expect("a node");
            assert_eq!(of_node(&node(before), &node(after)), expected, "{change}");
        };
        check(json!({"metadata": {"resourceVersion": "2"}}), false);
        check(json!({"status": {"volumesInUse": ["v"]}}), false);
        check(
            json!({"status": {"volumesAttached": [{"name": "v", "devicePath": ""}]}}),
            false,
        );
        check(json!({"spec": {"unschedulable": true}}), true);
        check(json!({"metadata": {"labels": {"zone": "a"}}}), true);
        check(
            json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
            true,
        );
        check(json!({"status": {"allocatable": {"pods": "20"}}}), true);
    }

    #[test]
    fn a_claim_is_news_when_it_is_bound_or_goes() {
        let check = |change: Value, expected: bool| {
            let before =
                json!({"metadata": {"name": "c"}, "spec": {}, "status": {"phase": "Pending"}});
            let mut after = before.clone();
            json_patch::merge(&mut after, &change);
            let claim =
                |value| serde_json::from_value::<PersistentVolumeClaim>(value).expect("a claim");
            assert_eq!(
                of_claim(&claim(before), &claim(after)),
                expected,
                "{change}"
            );
        };
        check(json!({"metadata": {"finalizers": ["f"]}}), false);
        check(json!({"spec": {"volumeName": "v"}}), true);
        check(json!({"status": {"phase": "Bound"}}), true);
        check(
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            true,
        );
    }
}
