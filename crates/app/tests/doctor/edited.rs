//! Troubles that a cluster ends within milliseconds, or that need another clock: on an API without a manager, with objects
//! as the parts would have written them.
//!
//! - LAR-113: the embedded attacher tells Kubernetes as soon as a ticket is satisfied; the trouble is an attacher that does
//!   not run for a minute, and the embedded one runs whenever the manager does.
//! - LAR-121: a fenced engine's object is taken away with the proof, so that two that run are seen for a moment at most.
//! - LAR-136: a process cannot be given another wall clock without changing this machine's. What is real here is the
//!   comparison: the time in the lease is a minute old, and the API server writes down when it was told.
//!
//! None of the three has a repair; each is gone when the field is what it should be. `why` says of each volume that no manager
//! is at work, and the finding beside it.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::clinic::{codes, run, until_found, until_gone, until_why};
use crate::support::Cluster;
use crate::support::kubectl::Kubectl;

const VOLUME: &str = "pvc-1";

struct Bare {
    kubectl: Kubectl,
    cluster: Cluster,
}

impl Bare {
    fn new() -> Self {
        let cluster = Cluster::start();
        let kubectl = Kubectl::new(&cluster.kubeconfig());
        Self { kubectl, cluster }
    }

    fn apply(&self, object: &Value) {
        self.kubectl
            .feeds(&["apply", "-f", "-"], &object.to_string());
    }

    /// As whoever reports on the object would.
    fn report(&self, what: &str, name: &str, status: &Value) {
        let patch = json!({"status": status}).to_string();
        self.kubectl.prints(&[
            "-n",
            "longhorn-system",
            "patch",
            what,
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ]);
    }

    fn ours(&self, kind: &str, name: &str, spec: &Value) {
        self.apply(&json!({
            "apiVersion": "longhorn.io/v1beta2", "kind": kind,
            "metadata": {"name": name, "namespace": "longhorn-system"}, "spec": spec,
        }));
    }

    /// Whose agent is well.
    fn node(&self, name: &str) {
        self.ours("Node", name, &json!({"name": name}));
        let ready =
            json!({"type": "Ready", "status": "True", "lastTransitionTime": ago(600).to_string()});
        self.report("nodes.longhorn.io", name, &json!({"conditions": [ready]}));
    }

    fn volume(&self, state: &str, node: &str) {
        let spec = json!({"size": "1073741824", "numberOfReplicas": 1, "accessMode": "rwo", "nodeID": node});
        self.ours("Volume", VOLUME, &spec);
        let status = json!({"state": state, "robustness": "healthy", "currentNodeID": node});
        self.report("volumes.longhorn.io", VOLUME, &status);
    }

    fn engine(&self, number: u32, node: &str, state: &str) {
        let name = format!("{VOLUME}-e-{number}");
        let spec = json!({"volumeName": VOLUME, "nodeID": node, "epoch": number, "desireState": "running"});
        self.ours("Engine", &name, &spec);
        let status = json!({"ownerID": node, "currentState": state});
        self.report("engines.longhorn.io", &name, &status);
    }

    /// For node-1, by the attacher.
    fn ticket(&self) {
        let ticket = json!({"id": "csi-1", "type": "csi-attacher", "nodeID": "node-1", "generation": 0,
            "parameters": {"disableFrontend": "false"}});
        let spec = json!({"volume": VOLUME, "attachmentTickets": {"csi-1": ticket}});
        self.ours("VolumeAttachment", VOLUME, &spec);
    }

    /// Fresh, as a node's agent or the manager writes it.
    fn lease(&self, name: &str, renewed: Timestamp) {
        self.apply(&json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "namespace": "longhorn-system"},
            "spec": {"holderIdentity": "somebody", "renewTime": format!("{renewed:.6}")},
        }));
    }

    fn finds(&self, code: &str) -> bool {
        codes(&self.cluster.kubeconfig())
            .iter()
            .any(|one| one == code)
    }
}

fn ago(seconds: i64) -> Timestamp {
    Timestamp::now() - SignedDuration::from_secs(seconds)
}

/// LAR-113: the ticket has been satisfied for two minutes, and `status.attached` is not set.
#[test]
fn kubernetes_was_not_told_of_an_attach() {
    let bare = Bare::new();
    let kubeconfig = bare.cluster.kubeconfig();
    bare.node("node-1");
    bare.volume("attached", "node-1");
    bare.engine(1, "node-1", "running");
    bare.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": VOLUME},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                 "csi": {"driver": "driver.longhorn.io", "volumeHandle": VOLUME}},
    }));
    bare.apply(&json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "csi-1"},
        "spec": {"attacher": "driver.longhorn.io", "nodeName": "node-1", "source": {"persistentVolumeName": VOLUME}},
    }));
    bare.ticket();
    let answer = |since: Timestamp| {
        let satisfied =
            json!({"type": "Satisfied", "status": "True", "lastTransitionTime": since.to_string()});
        let status =
            json!({"id": "csi-1", "generation": 0, "satisfied": true, "conditions": [satisfied]});
        let all = json!({"attachmentTicketStatuses": {"csi-1": status}});
        bare.report("volumeattachments.longhorn.io", VOLUME, &all);
    };
    answer(ago(5));
    assert!(!bare.finds("LAR-113"), "it may be on its way");
    answer(ago(120));
    until_found(&kubeconfig, "LAR-113");
    until_why(&kubeconfig, VOLUME, 0, &["attached", "LAR-113"]);
    let doctor = run(&kubeconfig, &["doctor", VOLUME]);
    assert!(
        doctor.text.contains("but Kubernetes has not been told"),
        "{}",
        doctor.text
    );
    bare.report(
        "volumeattachments.storage.k8s.io",
        "csi-1",
        &json!({"attached": true}),
    );
    until_gone(&kubeconfig, "LAR-113");
}

/// LAR-121: two engines that say that they run, on two nodes.
#[test]
fn two_engines_of_one_volume_run() {
    let bare = Bare::new();
    let kubeconfig = bare.cluster.kubeconfig();
    for node in ["node-1", "node-2"] {
        bare.node(node);
    }
    bare.volume("attached", "node-2");
    bare.engine(1, "node-1", "running");
    bare.engine(2, "node-2", "starting");
    assert!(!bare.finds("LAR-121"));
    bare.engine(2, "node-2", "running");
    until_found(&kubeconfig, "LAR-121");
    until_why(&kubeconfig, VOLUME, 4, &["LAR-121", "run on 2 nodes"]);
    let doctor = run(&kubeconfig, &["doctor", VOLUME]);
    assert_eq!(doctor.code, 4, "{}", doctor.text);
    assert!(
        doctor
            .text
            .contains("run on 2 nodes; older ones: epoch 1 on node node-1"),
        "{}",
        doctor.text
    );
    bare.engine(1, "node-1", "stopped");
    until_gone(&kubeconfig, "LAR-121");
}

/// LAR-136: what the lease says is a minute before the API server's time.
#[test]
fn a_clock_is_behind() {
    let bare = Bare::new();
    let kubeconfig = bare.cluster.kubeconfig();
    bare.node("node-1");
    bare.volume("attached", "node-1");
    bare.engine(1, "node-1", "running");
    bare.ticket();
    bare.lease("lariat-node-node-1", ago(0));
    assert!(!bare.finds("LAR-136"));
    bare.lease("lariat-node-node-1", ago(60));
    until_found(&kubeconfig, "LAR-136");
    until_why(
        &kubeconfig,
        VOLUME,
        0,
        &["LAR-136", "behind the API server's"],
    );
    let doctor = run(&kubeconfig, &["doctor"]);
    assert!(
        doctor.text.contains("s behind the API server's"),
        "{}",
        doctor.text
    );
    bare.lease("lariat-node-node-1", ago(0));
    until_gone(&kubeconfig, "LAR-136");
}
