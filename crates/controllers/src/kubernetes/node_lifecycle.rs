//! Lost nodes of the embedded mode, and the pods on them.
//!
//! Whether a node is lost is the node monitor's judgement, in the longhorn Node's Ready condition. Here it
//! becomes what Kubernetes' users know: the Node is `Unknown` and tainted. A pod on it that uses our volumes is
//! removed as soon as its volumes can no longer be written from there, and not before: that is proof, where
//! Kubernetes has only patience.

use std::sync::Arc;
use std::time::Duration;

use api_types::{ConditionStatus, Volume, condition, names, node_condition};
use cluster_core::wire;
use events::{EventKind, Recorder};
use k8s_openapi::api::core::v1::{
    Node, NodeCondition, PersistentVolume, PersistentVolumeClaim, Pod, Taint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::cache::{Cache, Feeds, Key};
use super::queue::{Backoff, Lane, Outcome, Queue};
use crate::metrics::Metrics;

const COMPONENT: &str = "node-controller";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// The reason by which our own judgement is known again.
const LOST_REASON: &str = "NodeStatusUnknown";
const LOST_MESSAGE: &str = "The node's agent stopped renewing its lease.";
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    longest: Duration::from_secs(30),
};

/// Works until it is told to stop. `driver` is the one whose volumes have fence proofs.
pub async fn run(feeds: &Feeds, driver: String, metrics: &Metrics, stop: CancellationToken) {
    let lane = |name| Lane {
        name,
        in_flight_max: 64,
    };
    let queue: Queue<String> = Queue::new("node_lifecycle", &[lane("node")], BACKOFF, metrics);
    let client = feeds.client().clone();
    let mut watches = JoinSet::new();

    let by_name = queue.clone();
    let agents = Api::<api_types::Node>::namespaced(client.clone(), names::NAMESPACE);
    let (agents, task) = feeds.follow(agents, move |old, new| {
        let Some(any) = new.or(old) else { return };
        if old.map(|old| is_lost(old)) != new.map(|new| is_lost(new)) {
            by_name.add(any.name_any(), 0);
        }
    });
    watches.spawn(task);
    let by_name = queue.clone();
    let (nodes, task) = feeds.follow(Api::<Node>::all(client.clone()), move |old, new| {
        let Some(any) = new.or(old) else { return };
        by_name.add(any.name_any(), 0);
    });
    watches.spawn(task);
    let by_name = queue.clone();
    let (pods, task) = feeds.follow(Api::<Pod>::all(client.clone()), move |_, new| {
        if let Some(node) = new.and_then(|pod| wire::pod(pod).node) {
            by_name.add(node.to_string(), 0);
        }
    });
    watches.spawn(task);
    let (by_name, all_agents) = (queue.clone(), agents.clone());
    let volumes = Api::<Volume>::namespaced(client.clone(), names::NAMESPACE);
    let (volumes, task) = feeds.follow(volumes, move |old, new| {
        // It may be out of reach now of any node that is lost, also of one that it does not name any more.
        if old.map(|old| reach(old)) == new.map(|new| reach(new)) {
            return;
        }
        for agent in all_agents.all().iter().filter(|agent| is_lost(agent)) {
            by_name.add(agent.name_any(), 0);
        }
    });
    watches.spawn(task);
    let (claims, task) = feeds.follow(Api::<PersistentVolumeClaim>::all(client.clone()), |_, _| {});
    watches.spawn(task);
    let (persistent, task) = feeds.follow(Api::<PersistentVolume>::all(client.clone()), |_, _| {});
    watches.spawn(task);
    let everything_seen = async {
        agents.synced().await;
        nodes.synced().await;
        pods.synced().await;
        volumes.synced().await;
        claims.synced().await;
        persistent.synced().await;
    };
    tokio::select! {
        () = stop.cancelled() => return,
        () = everything_seen => {}
    }
    let handler = Arc::new(Handler {
        recorder: Recorder::new(client.clone(), COMPONENT),
        client,
        driver,
        agents,
        nodes,
        pods,
        volumes,
        claims,
        persistent,
    });
    tokio::select! {
        () = queue.run(move |name, _| Arc::clone(&handler).look(name), stop) => {}
        // A watch ends only by a defect of ours: the process must not go on without it.
        Some(ended) = watches.join_next() => {
            tracing::error!(?ended, "a watch of the node controller has ended");
        }
    }
}

struct Handler {
    client: Client,
    recorder: Recorder,
    driver: String,
    agents: Cache<api_types::Node>,
    nodes: Cache<Node>,
    pods: Cache<Pod>,
    volumes: Cache<Volume>,
    claims: Cache<PersistentVolumeClaim>,
    persistent: Cache<PersistentVolume>,
}

impl Handler {
    async fn look(self: Arc<Self>, name: String) -> Outcome {
        let span = tracing::info_span!("node_lifecycle", node.name = %name);
        async move {
            let agent = self.agents.get(&Key::new(names::NAMESPACE, &name));
            // A node without an agent of ours is judged by somebody else.
            let Some(agent) = agent else {
                return Outcome::Done;
            };
            let lost = is_lost(&agent);
            let written = match self.nodes.named(&name) {
                Some(node) => self.judge(&node, lost).await,
                None => Ok(()),
            };
            let evicted = if lost { self.evict(&name).await } else { Ok(()) };
            match written.and(evicted) {
                Ok(()) => Outcome::Done,
                Err(error) => {
                    tracing::warn!(error = %error, "the node's loss or return could not be written; trying again later");
                    Outcome::Failed
                }
            }
        }
        .instrument(span)
        .await
    }

    /// Makes the Node say what the monitor found.
    async fn judge(&self, node: &Node, lost: bool) -> Result<(), kube::Error> {
        let api: Api<Node> = Api::all(self.client.clone());
        let (name, parameters) = (node.name_any(), PatchParams::default());
        if let Some(ready) = ready_after(node, lost) {
            let status = ready.status.clone();
            // By type: the other conditions are the agent's.
            let patch = Patch::Strategic(json!({"status": {"conditions": [ready]}}));
            api.patch_status(&name, &parameters, &patch).await?;
            let (kind, reason, message) = if lost {
                let message = format!("Node {name} status is now: NodeNotReady");
                (EventKind::Warning, "NodeNotReady", message)
            } else {
                let message = format!("Node {name} status is now: NodeReady");
                (EventKind::Normal, "NodeReady", message)
            };
            tracing::info!(ready = status, "the node's condition changes");
            let about = node.object_ref(&());
            self.recorder.record(&about, kind, reason, &message).await;
        }
        if let Some(taints) = taints_after(node, lost) {
            let patch = json!({
                // A list as a whole: somebody else's taint must not be lost.
                "metadata": {"resourceVersion": node.resource_version()},
                "spec": {"taints": taints},
            });
            match api.patch(&name, &parameters, &Patch::Merge(patch)).await {
                Ok(_) => {}
                // Changed meanwhile, also by ourselves above: the watch brings it back here.
                Err(kube::Error::Api(status)) if status.is_conflict() => {
                    let live = api.get(&name).await?;
                    if let Some(taints) = taints_after(&live, lost) {
                        let patch = json!({
                            "metadata": {"resourceVersion": live.resource_version()},
                            "spec": {"taints": taints},
                        });
                        api.patch(&name, &parameters, &Patch::Merge(patch)).await?;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Removes the pods whose volumes are provably out of the node's hands.
    async fn evict(&self, node: &str) -> Result<(), kube::Error> {
        for pod in self.pods.all() {
            if wire::pod(&pod)
                .node
                .is_none_or(|other| other.as_str() != node)
            {
                continue;
            }
            let volumes = self.volumes_of(&pod);
            let all_released = volumes.iter().all(|volume| {
                volume
                    .as_ref()
                    .is_some_and(|volume| is_out_of_reach(volume, node))
            });
            if volumes.is_empty() || !all_released {
                continue;
            }
            let api: Api<Pod> =
                Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
            let parameters = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: pod.uid(),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            }
            .grace_period(0);
            match api.delete(&pod.name_any(), &parameters).await {
                Ok(_) => {
                    tracing::info!(pod = %Key::of(pod.as_ref()), "removed from a lost node: its volumes cannot be written from there");
                    let message = format!(
                        "Removed from node {node}, which does not answer: its volumes are fenced, so nothing there can write them"
                    );
                    let about = pod.object_ref(&());
                    self.recorder
                        .record(&about, EventKind::Warning, "RemovedFromLostNode", &message)
                        .await;
                }
                Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Our volumes that the pod mounts; None for one that we know nothing of.
    fn volumes_of(&self, pod: &Pod) -> Vec<Option<Arc<Volume>>> {
        let mut volumes = Vec::new();
        for key in wire::claims_of(pod) {
            let claim = self.claims.get(&Key::new(&key.namespace, &key.name));
            let name = claim.and_then(|claim| wire::claim(&claim).volume);
            let persistent = name.and_then(|name| self.persistent.named(name.as_str()));
            let Some(persistent) = persistent.and_then(|volume| wire::persistent_volume(&volume))
            else {
                continue;
            };
            if persistent.driver.as_str() == self.driver {
                let key = Key::new(names::NAMESPACE, persistent.handle.as_str());
                volumes.push(self.volumes.get(&key));
            }
        }
        volumes
    }
}

/// Lost, as opposed to never heard of: a node whose agent has not started yet has no condition.
fn is_lost(node: &api_types::Node) -> bool {
    let conditions = node.status.as_ref().map(|status| &status.conditions);
    let ready =
        conditions.and_then(|conditions| condition::find(conditions, node_condition::READY));
    ready.is_some_and(|ready| ready.status == ConditionStatus::False)
}

/// All that `is_out_of_reach` looks at.
fn reach(volume: &Volume) -> (Option<&str>, Option<&str>) {
    (volume.fenced_node(), volume.writer_node())
}

/// Can nothing on this node write the volume any more?
fn is_out_of_reach(volume: &Volume, node: &str) -> bool {
    let (fenced, writer) = reach(volume);
    fenced == Some(node) || writer.is_some_and(|writer| writer != node)
}

/// The Ready condition that the Node should get, if it changes.
fn ready_after(node: &Node, lost: bool) -> Option<NodeCondition> {
    let status = node.status.as_ref();
    let ready = status
        .and_then(|status| status.conditions.as_ref())
        .and_then(|conditions| {
            conditions
                .iter()
                .find(|condition| condition.type_ == "Ready")
        })?;
    let is_ours = ready.reason.as_deref() == Some(LOST_REASON);
    let (status, reason, message) = match (lost, ready.status.as_str()) {
        (true, "Unknown") => return None,
        (true, _) => ("Unknown", LOST_REASON, LOST_MESSAGE),
        // Only our own judgement is taken back: another "not ready" has another cause.
        (false, "Unknown") if is_ours => {
            ("True", "KubeletReady", "The node's agent renews its lease.")
        }
        (false, _) => return None,
    };
    Some(NodeCondition {
        type_: "Ready".to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: Some(Time(jiff::Timestamp::now())),
        last_heartbeat_time: ready.last_heartbeat_time.clone(),
    })
}

/// The taints that the Node should get, if they change.
fn taints_after(node: &Node, lost: bool) -> Option<Vec<Taint>> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone());
    let mut taints = taints.unwrap_or_default();
    let before = taints.len();
    let is_tainted = taints.iter().any(|taint| taint.key == UNREACHABLE);
    match (lost, is_tainted) {
        (true, true) | (false, false) => return None,
        (true, false) => taints.extend(["NoSchedule", "NoExecute"].map(|effect| Taint {
            key: UNREACHABLE.to_owned(),
            effect: effect.to_owned(),
            time_added: Some(Time(jiff::Timestamp::now())),
            value: None,
        })),
        (false, true) => taints.retain(|taint| taint.key != UNREACHABLE),
    }
    (taints.len() != before).then_some(taints)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn node(ready: &str, reason: &str, taints: &Value) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n"}, "spec": {"taints": taints},
            "status": {"conditions": [{"type": "Ready", "status": ready, "reason": reason}]},
        }))
        .expect("a node")
    }

    #[test]
    fn only_our_own_judgement_is_taken_back() {
        let check = |ready: &str, reason: &str, lost: bool, expected: Option<&str>| {
            let after = ready_after(&node(ready, reason, &json!([])), lost);
            assert_eq!(after.map(|ready| ready.status).as_deref(), expected);
        };
        check("True", "KubeletReady", true, Some("Unknown"));
        check("False", "DiskFull", true, Some("Unknown"));
        check("Unknown", LOST_REASON, true, None);
        check("Unknown", LOST_REASON, false, Some("True"));
        check("Unknown", "SomebodyElse", false, None);
        check("False", "DiskFull", false, None);
        check("True", "KubeletReady", false, None);
    }

    #[test]
    fn others_taints_are_kept() {
        let keys = |taints: Option<Vec<Taint>>| {
            taints.map(|taints| {
                let keys: Vec<String> = taints
                    .into_iter()
                    .map(|taint| format!("{}:{}", taint.key, taint.effect))
                    .collect();
                keys.join(" ")
            })
        };
        let foreign = json!([{"key": "k", "effect": "NoSchedule"}]);
        let healthy = node("True", "", &foreign);
        assert_eq!(taints_after(&healthy, false), None);
        let lost = taints_after(&healthy, true).expect("a change");
        let shown = keys(Some(lost.clone())).expect("taints");
        assert_eq!(
            shown,
            "k:NoSchedule node.kubernetes.io/unreachable:NoSchedule node.kubernetes.io/unreachable:NoExecute"
        );
        let tainted = node("Unknown", "", &json!(lost));
        assert_eq!(taints_after(&tainted, true), None);
        assert_eq!(
            keys(taints_after(&tainted, false)).as_deref(),
            Some("k:NoSchedule")
        );
    }

    #[test]
    fn a_pod_leaves_only_when_its_volume_cannot_be_written() {
        let check = |status: Value, expected: bool| {
            let volume: Volume = serde_json::from_value(json!({
                "apiVersion": "longhorn.io/v1beta2", "kind": "Volume",
                "metadata": {"name": "v"}, "spec": {}, "status": status,
            }))
            .expect("a volume");
            assert_eq!(is_out_of_reach(&volume, "n1"), expected, "{volume:?}");
        };
        check(json!({}), false);
        check(json!({"state": "attached", "currentNodeID": "n1"}), false);
        check(json!({"state": "attached", "currentNodeID": "n2"}), true);
        check(json!({"state": "attaching", "currentNodeID": "n2"}), false);
        let proof = json!({"epoch": 2, "replicas": ["r"], "formerNodeID": "n1"});
        check(
            json!({"state": "detached", "currentNodeID": "", "fenceProof": proof}),
            true,
        );
        check(
            json!({"state": "attached", "currentNodeID": "n1", "fenceProof": proof}),
            false,
        );
    }
}
