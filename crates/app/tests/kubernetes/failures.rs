//! Nodes and managers that die.

use std::fs;

use serde_json::{Value, json};

use crate::flow::{claim, mount_of, pod};
use crate::installation::{Attacher, Installation, condition};
use crate::support::eventually;

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// A pod that does not stay on a lost node for five minutes.
fn restless(name: &str, claim: &str, node: Option<&str>) -> Value {
    let mut pod = pod(name, claim, node);
    let toleration = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1});
    pod["spec"]["tolerations"] = json!([
        toleration("node.kubernetes.io/not-ready"),
        toleration("node.kubernetes.io/unreachable"),
    ]);
    pod
}

impl Installation {
    fn write_on(&self, pod: &str, text: &str) {
        let path = mount_of(&self.running(pod)).join("text");
        fs::write(&path, text).expect("a writable volume");
        fs::File::open(&path)
            .and_then(|file| file.sync_all())
            .expect("a durable file");
    }

    fn read_on(&self, pod: &str) -> String {
        let path = mount_of(&self.running(pod)).join("text");
        fs::read_to_string(path).expect("what was written before")
    }

    fn until_node_is(&self, node: &str, ready: &str) {
        eventually(&format!("{node} to be ready: {ready}"), || {
            self.get(&["node", node])
                .is_some_and(|node| condition(&node, "Ready") == ready)
        });
    }

    fn until_healthy(&self) {
        eventually("all volumes to be healthy", || {
            let volumes = self.list(&["-n", "longhorn-system", "volumes.longhorn.io"]);
            volumes
                .iter()
                .all(|volume| volume["status"]["robustness"] == "healthy")
        });
    }

    fn clear(self, pods: &[&str], claims: &[&str]) {
        for pod in pods {
            self.delete("pod", pod);
            self.until_gone("pod", pod);
        }
        for claim in claims {
            self.delete("pvc", claim);
        }
        self.until_nothing_is_left();
        self.finish();
    }
}

/// The administrator says that the node is off: Kubernetes detaches at once, and we let go because the node is fenced.
pub fn a_node_that_is_out_of_service_gives_its_volume_away(attacher: Attacher) {
    let mut cluster = Installation::new(1, attacher);
    cluster.create(&claim("data", "longhorn", "Filesystem"));
    cluster.create(&pod("app", "data", Some("node-1")));
    cluster.write_on("app", "before the end");
    cluster.power_off("node-1");
    cluster.until_node_is("node-1", "Unknown");
    let taint = format!("{OUT_OF_SERVICE}=nodeshutdown:NoExecute");
    cluster.kubectl(&["taint", "node", "node-1", &taint]);
    cluster.until_gone("pod", "app");
    cluster.create(&pod("next", "data", None));
    assert_eq!(cluster.read_on("next"), "before the end");
    let node = cluster.running("next")["spec"]["nodeName"].clone();
    assert_ne!(node, "node-1");
    // It comes back, puts its leftovers away, and has its replica rebuilt.
    cluster.start_node("node-1");
    cluster.until_node_is("node-1", "True");
    cluster.kubectl(&["taint", "node", "node-1", &format!("{OUT_OF_SERVICE}-")]);
    cluster.until_healthy();
    assert_eq!(cluster.read_on("next"), "before the end");
    cluster.clear(&["next"], &["data"]);
}

/// Nobody says so: Kubernetes evicts the pod but does not detach before minutes have passed. The node comes back before that,
/// and the volume follows the pod that replaced its own.
pub fn a_node_that_comes_back_lets_its_evicted_pods_volume_go(attacher: Attacher) {
    let mut cluster = Installation::new(1, attacher);
    cluster.create(&claim("data", "longhorn-xfs", "Filesystem"));
    cluster.create(&restless("app", "data", Some("node-1")));
    cluster.write_on("app", "before the end");
    cluster.power_off("node-1");
    cluster.until_node_is("node-1", "Unknown");
    eventually("the pod of the lost node to be evicted", || {
        cluster
            .get(&["pod", "app"])
            .is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_string())
    });
    cluster.create(&pod("next", "data", Some("node-2")));
    cluster.start_node("node-1");
    cluster.until_gone("pod", "app");
    assert_eq!(cluster.read_on("next"), "before the end");
    cluster.until_healthy();
    cluster.clear(&["next"], &["data"]);
}

/// The manager that leads, by its name here.
fn leader(cluster: &Installation) -> Option<String> {
    let lease = cluster.get(&["-n", "longhorn-system", "lease", "lariat-manager"])?;
    let holder = lease["spec"]["holderIdentity"].as_str()?.to_owned();
    let names = ["manager-1", "manager-2"].into_iter();
    let mut named = names.filter(|name| {
        let log = cluster.path("logs").join(format!("{name}-manager"));
        !holder.is_empty() && fs::read_to_string(log).is_ok_and(|log| log.contains(&holder))
    });
    named.next().map(str::to_owned)
}

pub fn another_manager_takes_over_when_the_leader_is_killed(attacher: Attacher) {
    let mut cluster = Installation::new(2, attacher);
    cluster.create(&claim("old", "longhorn", "Filesystem"));
    cluster.create(&pod("old", "old", Some("node-1")));
    cluster.write_on("old", "one");
    for round in 1..=2 {
        let mut first = None;
        eventually("a manager to lead", || {
            first = leader(&cluster);
            first.is_some()
        });
        let first = first.expect("seen just now");
        cluster.kill_manager(&first);
        // Nobody who has a volume notices.
        cluster.write_on("old", &format!("round {round}"));
        let name = format!("new-{round}");
        cluster.create(&claim(&name, "longhorn", "Filesystem"));
        cluster.create(&pod(&name, &name, None));
        cluster.write_on(&name, "made by the other one");
        eventually("the other manager to lead", || {
            leader(&cluster).is_some_and(|now| now != first)
        });
        cluster.start_manager(&first);
    }
    assert_eq!(cluster.read_on("old"), "round 2");
    cluster.clear(&["old", "new-1", "new-2"], &["old", "new-1", "new-2"]);
}
