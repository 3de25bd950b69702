//! The core Node and its CSINode, as a kubelet keeps them.

use std::collections::BTreeSet;
use std::time::Duration;

use api_types::names;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::sync::Mutex;

use super::KubeletOptions;
use super::csi::{CsiFailure, NodeCsi};

/// How often the Node is looked at: whoever thought this node lost has turned its Ready to Unknown.
pub const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Where kubelets keep their Leases.
const LEASE_NAMESPACE: &str = "kube-node-lease";
/// How long a node is believed to live without renewing it, as kubelets write it.
const LEASE_SECONDS: i32 = 40;

/// Why this node is not on record yet.
#[derive(Debug, Error)]
pub enum RegisterError {
    #[error("the API refused or did not answer")]
    Api(#[from] kube::Error),
    #[error("the CSI node service does not say how many volumes fit")]
    Csi(#[from] CsiFailure),
}

/// This node's own objects.
pub struct NodeObject {
    options: KubeletOptions,
    nodes: Api<Node>,
    csi_nodes: Api<CSINode>,
    leases: Api<Lease>,
    /// What `status.volumesInUse` has; a volume is in it before it is staged, and until it is unstaged.
    in_use: Mutex<BTreeSet<String>>,
}

impl NodeObject {
    pub(super) fn new(options: KubeletOptions, client: &Client) -> Self {
        Self {
            nodes: Api::all(client.clone()),
            csi_nodes: Api::all(client.clone()),
            leases: Api::namespaced(client.clone(), LEASE_NAMESPACE),
            options,
            in_use: Mutex::new(BTreeSet::new()),
        }
    }

    /// Makes both objects, or takes those of before over with what they say is in use.
    pub async fn register(&self, csi: &dyn NodeCsi) -> Result<(), RegisterError> {
        let name = &self.options.node;
        // The annotation says that attaching is the controller's business, and not this node's.
        let metadata = json!({
            "name": name,
            "labels": self.labels(),
            "annotations": {cluster_core::names::MANAGED_ANNOTATION: "true"},
        });
        let node = match self.nodes.get_opt(name).await? {
            Some(node) => node,
            None => {
                let node = json!({
                    "apiVersion": "v1", "kind": "Node",
                    "metadata": metadata,
                    "spec": {},
                });
                self.nodes
                    .create(&PostParams::default(), &parsed(node)?)
                    .await?
            }
        };
        let patch = json!({"metadata": metadata});
        self.nodes
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        let before = node.status.and_then(|status| status.volumes_in_use);
        self.in_use.lock().await.extend(before.unwrap_or_default());
        self.keep_ready().await?;
        self.renew_lease().await?;
        let volumes_max = csi.volumes_max().await?;
        Ok(self.register_driver(volumes_max).await?)
    }

    fn labels(&self) -> Value {
        let mut labels = json!({
            "kubernetes.io/hostname": self.options.node,
            "kubernetes.io/os": "linux",
        });
        for (label, value) in [
            (names::label::TOPOLOGY_ZONE, &self.options.zone),
            (names::label::TOPOLOGY_REGION, &self.options.region),
        ] {
            if let Some(value) = value {
                labels[label] = value.as_str().into();
            }
        }
        labels
    }

    async fn register_driver(&self, volumes_max: Option<u32>) -> Result<(), kube::Error> {
        let name = &self.options.node;
        let mut driver = json!({
            "name": self.options.driver,
            "nodeID": name,
            "topologyKeys": self.options.topology_keys,
        });
        if let Some(count) = volumes_max {
            driver["allocatable"] = json!({"count": count});
        }
        let owner = self.nodes.get(name).await?;
        let csi_node = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
            "metadata": {"name": name, "ownerReferences": [{
                "apiVersion": "v1", "kind": "Node", "name": name, "uid": owner.metadata.uid,
            }]},
            "spec": {"drivers": [driver]},
        });
        match self
            .csi_nodes
            .create(&PostParams::default(), &parsed(csi_node)?)
            .await
        {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let patch = json!({"spec": {"drivers": [driver]}});
                self.csi_nodes
                    .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
                    .await
                    .map(drop)
            }
            Err(error) => Err(error),
        }
    }

    /// Says that this node is ready, if it does not say so yet.
    pub async fn keep_ready(&self) -> Result<(), kube::Error> {
        let node = self.nodes.get(&self.options.node).await?;
        let conditions = node
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref());
        let ready = conditions.is_some_and(|conditions| {
            conditions
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True")
        });
        if ready {
            return Ok(());
        }
        let text = "this node mounts volumes and runs no containers";
        self.say("True", "KubeletReady", text).await
    }

    /// Renews the Lease by which Kubernetes' own node controller tells that this node lives.
    pub async fn renew_lease(&self) -> Result<(), kube::Error> {
        let name = &self.options.node;
        let spec = LeaseSpec {
            holder_identity: Some(name.clone()),
            lease_duration_seconds: Some(LEASE_SECONDS),
            renew_time: Some(MicroTime(Timestamp::now())),
            ..LeaseSpec::default()
        };
        let patch = json!({"spec": &spec});
        let patched = self
            .leases
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        match patched {
            Err(kube::Error::Api(status)) if status.is_not_found() => {
                let mut lease = Lease {
                    spec: Some(spec),
                    ..Lease::default()
                };
                lease.metadata.name = Some(name.clone());
                let created = self.leases.create(&PostParams::default(), &lease).await;
                created.map(drop)
            }
            other => other.map(drop),
        }
    }

    /// Says that this node is about to go.
    pub async fn say_stopped(&self) -> Result<(), kube::Error> {
        self.say("False", "KubeletStopped", "the node's agent was stopped")
            .await
    }

    async fn say(&self, ready: &str, reason: &str, message: &str) -> Result<(), kube::Error> {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let pods = self.options.pods_max.to_string();
        let capacity =
            json!({"cpu": "2", "memory": "4Gi", "pods": pods, "ephemeral-storage": "10Gi"});
        let patch = json!({"status": {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [
                {"type": "InternalIP", "address": self.options.host.to_string()},
                {"type": "Hostname", "address": self.options.node},
            ],
            "nodeInfo": {
                "architecture": std::env::consts::ARCH, "bootID": "", "containerRuntimeVersion": "none://",
                "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": concat!("lariat-", env!("CARGO_PKG_VERSION")),
                "machineID": "", "operatingSystem": "linux", "osImage": "", "systemUUID": "",
            },
            "conditions": [{
                "type": "Ready", "status": ready, "reason": reason, "message": message,
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }],
        }});
        // Strategic: other parties' conditions stay.
        self.nodes
            .patch_status(
                &self.options.node,
                &PatchParams::default(),
                &Patch::Strategic(&patch),
            )
            .await
            .map(drop)
    }

    /// Announces that a volume is used here. It is on record when this returns.
    pub async fn use_volume(&self, unique: &str) -> Result<(), kube::Error> {
        let mut in_use = self.in_use.lock().await;
        if in_use.contains(unique) {
            return Ok(());
        }
        let mut next = in_use.clone();
        next.insert(unique.to_owned());
        self.write_in_use(&next).await?;
        *in_use = next;
        Ok(())
    }

    /// Whether the controller says that a volume is attached here, as of now.
    ///
    /// Asked after [`Self::use_volume`], this excludes that the volume is being taken away: the controller first strikes it off
    /// `volumesAttached`, and gives up if `volumesInUse` has it at that moment.
    pub async fn has_attached(&self, unique: &str) -> Result<bool, kube::Error> {
        let node = self.nodes.get(&self.options.node).await?;
        Ok(lists_as_attached(&node, unique))
    }

    /// Announces that it is not used any more.
    pub async fn release_volume(&self, unique: &str) -> Result<(), kube::Error> {
        let mut in_use = self.in_use.lock().await;
        let mut next = in_use.clone();
        if !next.remove(unique) {
            return Ok(());
        }
        self.write_in_use(&next).await?;
        *in_use = next;
        Ok(())
    }

    /// Forgets volumes of before that nobody here has.
    pub async fn keep_only(&self, used: &BTreeSet<String>) -> Result<(), kube::Error> {
        let mut in_use = self.in_use.lock().await;
        let next: BTreeSet<String> = in_use.intersection(used).cloned().collect();
        if next != *in_use {
            self.write_in_use(&next).await?;
            *in_use = next;
        }
        Ok(())
    }

    async fn write_in_use(&self, in_use: &BTreeSet<String>) -> Result<(), kube::Error> {
        let patch = json!({"status": {"volumesInUse": in_use}});
        self.nodes
            .patch_status(
                &self.options.node,
                &PatchParams::default(),
                &Patch::Merge(&patch),
            )
            .await
            .map(drop)
    }
}

pub fn lists_as_attached(node: &Node, unique: &str) -> bool {
    let attached = node
        .status
        .as_ref()
        .and_then(|status| status.volumes_attached.as_ref());
    attached.is_some_and(|volumes| volumes.iter().any(|volume| volume.name == unique))
}

fn parsed<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, kube::Error> {
    serde_json::from_value(value).map_err(kube::Error::SerdeError)
}
