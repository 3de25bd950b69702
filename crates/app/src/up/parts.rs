//! Which parts a cluster on this machine has, in which order they start and stop, and when they are ready.

use std::time::Duration;

use anyhow::{Result, bail};
use api_types::condition;
use api_types::names::NAMESPACE;
use api_types::node_condition;
use kube::{Api, Client, ResourceExt as _};
use tokio::time::{Instant, sleep};

use super::Progress;
use super::children::{Children, Part};
use crate::data_dir::DataDir;

const READY_TIMEOUT: Duration = Duration::from_secs(60);
const READY_CHECK: Duration = Duration::from_millis(20);

pub(super) struct Parts {
    names: Vec<String>,
    manager: Children,
    nodes: Children,
}

impl Parts {
    /// Starts a manager and `count` nodes; none of them for an API alone.
    pub(super) fn start(data_dir: &DataDir, count: u16) -> Result<Self> {
        let names: Vec<String> = (1..=count).map(|number| format!("node-{number}")).collect();
        let manager = (count > 0).then(|| manager(data_dir));
        Ok(Self {
            manager: Children::start(manager)?,
            nodes: Children::start(names.iter().map(|name| node(data_dir, name)))?,
            names,
        })
    }

    /// Waits until every node has been seen alive by the manager.
    pub(super) async fn until_ready(&self, client: &Client, progress: &mut Progress) -> Result<()> {
        let nodes: Api<api_types::Node> = Api::namespaced(client.clone(), NAMESPACE);
        let deadline = Instant::now() + READY_TIMEOUT;
        let mut waiting: Vec<&str> = self.names.iter().map(String::as_str).collect();
        while !waiting.is_empty() {
            let listed = nodes.list(&Default::default()).await?;
            waiting.retain(|name| {
                let node = listed.iter().find(|node| node.name_any() == *name);
                !node.is_some_and(is_ready)
            });
            if waiting.is_empty() {
                progress.done(&format!("manager and nodes {}", self.names.join(", ")));
            } else if Instant::now() > deadline {
                bail!(
                    "not ready after {} s: {}; their logs are in the folder logs of the data folder",
                    READY_TIMEOUT.as_secs(),
                    waiting.join(", ")
                );
            } else {
                sleep(READY_CHECK).await;
            }
        }
        Ok(())
    }

    /// Nodes first: they detach what they have, and the manager records it.
    pub(super) async fn stop(self) {
        self.nodes.stop().await;
        self.manager.stop().await;
    }
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
        ],
        log: data_dir.log("manager"),
        hold: None,
    }
}

fn node(data_dir: &DataDir, name: &str) -> Part {
    let folder = data_dir.node(name);
    Part {
        name: name.to_owned(),
        arguments: vec![
            "node".into(),
            "--embedded".into(),
            "--keeper".into(),
            "--exit-with-parent".into(),
            "--name".into(),
            name.into(),
            "--kubeconfig".into(),
            data_dir.kubeconfig().into(),
            "--data-dir".into(),
            folder.clone().into(),
        ],
        log: data_dir.log(name),
        hold: Some(folder.join("hold")),
    }
}
