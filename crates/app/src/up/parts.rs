//! Which parts a cluster on this machine has, in which order they start and stop, and when they are ready.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use api_types::condition;
use api_types::names::NAMESPACE;
use api_types::node_condition;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, ResourceExt as _};
use node_agent::agent::Layout;
use node_agent::agent::lease::lease_name;
use tokio::time::{Instant, sleep};

use super::Progress;
use super::children::{Children, Part};
use crate::data_dir::DataDir;
use crate::metrics;

const READY_TIMEOUT: Duration = Duration::from_secs(60);
const READY_CHECK: Duration = Duration::from_millis(20);

pub(super) struct Parts {
    names: Vec<String>,
    /// Who held each Lease before: what predecessors left on record is no sign of life.
    predecessors: BTreeMap<String, String>,
    manager: Children,
    nodes: Children,
}

impl Parts {
    /// Starts a manager and `count` nodes; none of them for an API alone.
    pub(super) async fn start(data_dir: &DataDir, client: &Client, count: u16) -> Result<Self> {
        let predecessors = holders(client).await?;
        let names: Vec<String> = (1..=count).map(|number| format!("node-{number}")).collect();
        let manager = (count > 0).then(|| manager(data_dir));
        Ok(Self {
            manager: Children::start(manager)?,
            nodes: Children::start(names.iter().map(|name| node(data_dir, name)))?,
            names,
            predecessors,
        })
    }

    /// Waits until every node renews its Lease, and has been seen alive by the manager.
    pub(super) async fn until_ready(
        &self,
        data_dir: &DataDir,
        client: &Client,
        progress: &mut Progress,
    ) -> Result<()> {
        let nodes: Api<api_types::Node> = Api::namespaced(client.clone(), NAMESPACE);
        let deadline = Instant::now() + READY_TIMEOUT;
        let mut waiting: Vec<&str> = self.names.iter().map(String::as_str).collect();
        while !waiting.is_empty() {
            let listed = nodes.list(&Default::default()).await?;
            let holders = holders(client).await?;
            waiting.retain(|name| {
                let lease = lease_name(name);
                let holder = holders.get(&lease);
                let node = listed.iter().find(|node| node.name_any() == *name);
                holder.is_none()
                    || holder == self.predecessors.get(&lease)
                    || !node.is_some_and(is_ready)
            });
            if waiting.is_empty() {
                progress.done(&format!("manager and nodes {}", self.names.join(", ")));
            } else if Instant::now() > deadline {
                bail!(not_ready(data_dir, &waiting));
            } else {
                sleep(READY_CHECK).await;
            }
        }
        Ok(())
    }

    /// Where metrics can be read, in words.
    pub(super) fn metrics(&self, data_dir: &DataDir) -> Option<String> {
        let manager = ("manager", data_dir.root().to_owned());
        let nodes = self
            .names
            .iter()
            .map(|name| (name.as_str(), data_dir.node(name)));
        let shown = std::iter::once(manager)
            .chain(nodes)
            .filter_map(|(name, folder)| {
                let address = metrics::address_of(&folder)?;
                Some(format!("{name} http://{address}/metrics"))
            });
        let shown: Vec<String> = shown.collect();
        (!self.names.is_empty() && !shown.is_empty()).then(|| shown.join(", "))
    }

    /// Nodes first: they detach what they have, and the manager records it.
    pub(super) async fn stop(self) {
        self.nodes.stop().await;
        self.manager.stop().await;
    }
}

/// Which nodes did not come in time, each with where to look.
fn not_ready(data_dir: &DataDir, waiting: &[&str]) -> String {
    let told = waiting.iter().map(|name| match node(data_dir, name) {
        Part {
            hold: Some(file), ..
        } if file.exists() => {
            format!(
                "{name} is not started while {} exists; remove it",
                file.display()
            )
        }
        Part { log, .. } => format!("{name} may say why in {}", log.display()),
    });
    let told: Vec<String> = told.collect();
    let (count, seconds) = (waiting.len(), READY_TIMEOUT.as_secs());
    let nodes = if count == 1 { "node is" } else { "nodes are" };
    format!(
        "{count} {nodes} not ready after {seconds} s: {}",
        told.join("; ")
    )
}

/// Whether something is mounted in the nodes' folders.
pub(super) fn has_leftovers(data_dir: &DataDir) -> bool {
    let Ok(nodes) = data_dir.root().join("nodes").canonicalize() else {
        return false;
    };
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .any(|target| Path::new(target).starts_with(&nodes))
}

/// The process that holds each Lease, by the Lease's name.
async fn holders(client: &Client) -> Result<BTreeMap<String, String>> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let listed = leases.list(&Default::default()).await?;
    let held = listed.into_iter().filter_map(|lease| {
        let holder = lease.spec.as_ref()?.holder_identity.clone()?;
        (!holder.is_empty()).then(|| (lease.name_any(), holder))
    });
    Ok(held.collect())
}

fn is_ready(node: &api_types::Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice());
    condition::is_true(conditions.unwrap_or_default(), node_condition::READY)
}

fn manager(data_dir: &DataDir) -> Part {
    Part {
        name: "the manager".to_owned(),
        arguments: vec![
            "manager".into(),
            "--embedded".into(),
            "--exit-with-parent".into(),
            "--kubeconfig".into(),
            data_dir.kubeconfig().into(),
            "--csi-socket".into(),
            data_dir.csi_socket().into(),
            "--sole-lock".into(),
            data_dir.root().join("manager.lock").into(),
            "--findings-every".into(),
            "5".into(),
            "--metrics-token-file".into(),
            metrics::token_file(data_dir.root()).into(),
        ],
        log: data_dir.log("manager"),
        hold: None,
        drained: None,
    }
}

fn node(data_dir: &DataDir, name: &str) -> Part {
    let folder = data_dir.node(name);
    Part {
        name: name.to_owned(),
        arguments: vec![
            "node".into(),
            "run".into(),
            "--embedded".into(),
            "--keeper".into(),
            "--exit-with-parent".into(),
            "--serve-until-released".into(),
            "--name".into(),
            name.into(),
            "--kubeconfig".into(),
            data_dir.kubeconfig().into(),
            "--data-dir".into(),
            folder.clone().into(),
            "--metrics-token-file".into(),
            metrics::token_file(data_dir.root()).into(),
        ],
        log: data_dir.log(name),
        hold: Some(folder.join("hold")),
        drained: Some(Layout::new(&folder).drained()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::golden;

    #[test]
    fn a_node_that_does_not_come_is_named_with_where_to_look() {
        let folder = tempfile::tempdir().expect("a folder");
        let data_dir = DataDir::new(folder.path());
        std::fs::create_dir_all(data_dir.node("node-2")).expect("a folder");
        std::fs::write(data_dir.node("node-2").join("hold"), "").expect("a file");
        let both = not_ready(&data_dir, &["node-1", "node-2"]);
        let page = format!("{}\n{both}\n", not_ready(&data_dir, &["node-1"]));
        let shown = folder.path().display().to_string();
        golden::check("up-not-ready", &page.replace(&shown, "FOLDER"));
    }
}
