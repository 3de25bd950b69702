//! `kubectl` cannot tell `lariat up` from a real cluster: each of its commands, run for real.
//!
//! Passes with kubectl 1.20 (Debian's) and with current ones.

mod lifecycle;
mod reading;
mod readme;
#[path = "../support/mod.rs"]
mod support;
mod writing;

use serde_json::Value;
use support::Cluster;
use support::kubectl::Kubectl;

const WORKLOAD: &str = include_str!("workload.yaml");
const LONGHORN: &str = include_str!("longhorn.yaml");
const ATTACHMENT: &str = include_str!("attachment.yaml");

/// A cluster with the objects of these files.
fn cluster_with(files: &[&str]) -> (Cluster, Kubectl) {
    let cluster = Cluster::start();
    let kubectl = Kubectl::new(&cluster.kubeconfig());
    for file in files {
        kubectl.feeds(&["create", "-f", "-"], file);
    }
    (cluster, kubectl)
}

/// A ConfigMap, with more metadata if there is some. The dashes tell kubectl that it is not JSON.
fn config_map(name: &str, metadata: &str, data: &str) -> String {
    format!(
        "---\n{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}{metadata}}}, data: {{{data}}}}}"
    )
}

/// Writes a status the way every version of kubectl can: `--subresource` came with 1.24.
fn replace_status(kubectl: &Kubectl, path: &str, status: Value) {
    let text = kubectl.prints(&["get", "--raw", path]);
    let mut object: Value = serde_json::from_str(&text).expect("an object");
    object["status"] = status;
    let path = format!("{path}/status");
    kubectl.feeds(&["replace", "--raw", &path, "-f", "-"], &object.to_string());
}
