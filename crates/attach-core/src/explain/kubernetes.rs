//! As much of Kubernetes' own objects as matters here.

use serde::Deserialize;

/// A Kubernetes node: ready or not, cordoned or not.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct KubernetesNode {
    pub metadata: NodeMetadata,
    pub spec: NodeSpec,
    pub status: NodeStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeMetadata {
    pub name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeSpec {
    pub unschedulable: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeStatus {
    pub conditions: Vec<NodeCondition>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
}

impl KubernetesNode {
    pub fn is_ready(&self) -> bool {
        let mut conditions = self.status.conditions.iter();
        conditions.any(|condition| condition.kind == "Ready" && condition.status == "True")
    }
}
