//! A node's agent, as the contract has it, without any data behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api_types::names::{FINALIZER, NAMESPACE};
use api_types::{DiskSpec, Engine, InstanceState, Node, NodeSpec, Replica, ReplicaRole};
use controllers::runtime::{Cache, Next, Queue};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const RENEW_EVERY: Duration = Duration::from_millis(300);

pub struct Agent {
    tasks: JoinSet<()>,
    holds_engines: Arc<AtomicBool>,
}

#[derive(Clone)]
struct Acting {
    node: String,
    engines: Api<Engine>,
    replicas: Api<Replica>,
    known_engines: Cache<Engine>,
    known_replicas: Cache<Replica>,
    holds_engines: Arc<AtomicBool>,
}

impl Agent {
    pub async fn start(client: &Client, node: &str) -> Self {
        register(client, node).await;
        let mut tasks = JoinSet::new();
        tasks.spawn(renew(
            Api::namespaced(client.clone(), NAMESPACE),
            node.to_owned(),
        ));
        let holds_engines = Arc::new(AtomicBool::new(false));
        let acting = Acting {
            node: node.to_owned(),
            engines: Api::namespaced(client.clone(), NAMESPACE),
            replicas: Api::namespaced(client.clone(), NAMESPACE),
            known_engines: Cache::default(),
            known_replicas: Cache::default(),
            holds_engines: Arc::clone(&holds_engines),
        };
        tasks.spawn(acting.known_engines.clone().run(acting.engines.clone()));
        tasks.spawn(acting.known_replicas.clone().run(acting.replicas.clone()));
        tasks.spawn(acting.run());
        Self {
            tasks,
            holds_engines,
        }
    }

    /// From now on new engines are looked at but not started.
    pub fn hold_engines(&self, hold: bool) {
        self.holds_engines.store(hold, Ordering::SeqCst);
    }

    /// The node falls silent: nothing is renewed, reported or stopped any more.
    pub async fn lose(mut self) {
        self.tasks.shutdown().await;
    }
}

async fn register(client: &Client, node: &str) {
    let api: Api<Node> = Api::namespaced(client.clone(), NAMESPACE);
    let disk = DiskSpec {
        path: format!("/disks/{node}"),
        allow_scheduling: true,
        ..DiskSpec::default()
    };
    let object = Node::new(
        node,
        NodeSpec {
            name: node.to_owned(),
            disks: [("default".to_owned(), disk)].into(),
            allow_scheduling: true,
            ..NodeSpec::default()
        },
    );
    if api.get_opt(node).await.expect("an answer").is_none() {
        api.create(&PostParams::default(), &object)
            .await
            .expect("a node");
    }
    let ready =
        json!([{"type": "Ready", "status": "True"}, {"type": "Schedulable", "status": "True"}]);
    let disk = json!({
        "diskUUID": format!("disk-of-{node}"), "diskName": "default", "diskPath": format!("/disks/{node}"),
        "storageMaximum": 1i64 << 40, "storageAvailable": 1i64 << 40, "conditions": ready,
    });
    let status = json!({"status": {"diskStatus": {"default": disk}, "zone": node}});
    let params = PatchParams::default();
    api.patch_status(node, &params, &Patch::Merge(status))
        .await
        .expect("a disk");
}

async fn renew(api: Api<Lease>, node: String) {
    let name = format!("{}{node}", controllers::nodes::LEASE_PREFIX);
    let holder = format!("agent of {node}");
    loop {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
            "spec": {"holderIdentity": holder, "renewTime": format!("{:.6}", Timestamp::now())},
        });
        let params = PatchParams::apply("agent").force();
        api.patch(&name, &params, &Patch::Apply(lease))
            .await
            .expect("a lease");
        tokio::time::sleep(RENEW_EVERY).await;
    }
}

impl Acting {
    async fn run(self) {
        let queue = Queue::default();
        let (add, node) = (queue.clone(), self.node.clone());
        let _engines = self.known_engines.subscribe(move |engine| {
            if engine.spec.node_id == node {
                add.add(format!("e {}", engine.name_any()));
            }
        });
        let (add, node) = (queue.clone(), self.node.clone());
        let _replicas = self.known_replicas.subscribe(move |replica| {
            if replica.spec.node_id == node {
                add.add(format!("r {}", replica.name_any()));
            }
        });
        for engine in self.known_engines.all() {
            queue.add(format!("e {}", engine.name_any()));
        }
        for replica in self.known_replicas.all() {
            queue.add(format!("r {}", replica.name_any()));
        }
        let stop = CancellationToken::new();
        queue
            .run(4, stop, |key| {
                let this = self.clone();
                async move {
                    let done = match key.split_once(' ') {
                        Some(("e", name)) => this.engine(name).await,
                        Some(("r", name)) => this.replica(name).await,
                        _ => Ok(()),
                    };
                    // Another write was faster: look again.
                    if done.is_err() {
                        Next::Retry
                    } else {
                        Next::Wait
                    }
                }
            })
            .await;
    }

    async fn replica(&self, name: &str) -> kube::Result<()> {
        let Some(replica) = self.known_replicas.get(NAMESPACE, name) else {
            return Ok(());
        };
        if replica.spec.node_id != self.node {
            return Ok(());
        }
        if replica.metadata.deletion_timestamp.is_some() {
            return self.let_go(&self.replicas, replica.as_ref().clone()).await;
        }
        let status = replica.status.clone().unwrap_or_default();
        let runs = replica.spec.desire_state == InstanceState::Running;
        let address = if runs {
            format!("10.0.0.1:{}", 7000 + name.len())
        } else {
            String::new()
        };
        let wanted = json!({
            "ownerID": self.node, "currentState": if runs { "running" } else { "stopped" }, "address": address,
            "acceptedEpoch": status.accepted_epoch.max(replica.spec.epoch), "currentSize": replica.spec.volume_size.to_string(),
            "verified": true, "digest": "0",
        });
        self.report(&self.replicas, name, &status, wanted).await
    }

    async fn engine(&self, name: &str) -> kube::Result<()> {
        let Some(engine) = self.known_engines.get(NAMESPACE, name) else {
            return Ok(());
        };
        if engine.spec.node_id != self.node {
            return Ok(());
        }
        if engine.metadata.deletion_timestamp.is_some() {
            return self.let_go(&self.engines, engine.as_ref().clone()).await;
        }
        let status = engine.status.clone().unwrap_or_default();
        let wanted = if engine.spec.desire_state == InstanceState::Running {
            if self.holds_engines.load(Ordering::SeqCst) && status.owner_id.is_empty() {
                return Ok(());
            }
            let endpoint = if engine.spec.disable_frontend {
                String::new()
            } else {
                format!("/dev/{name}")
            };
            let in_sync = engine
                .spec
                .replica_roles
                .iter()
                .filter(|(_, role)| **role == ReplicaRole::InSync);
            let modes: serde_json::Map<String, Value> = in_sync
                .map(|(name, _)| (name.clone(), json!("RW")))
                .collect();
            json!({
                "ownerID": self.node, "currentState": "running", "endpoint": endpoint, "epoch": engine.spec.epoch,
                "currentSize": engine.spec.volume_size.to_string(), "replicaModeMap": modes,
            })
        } else {
            json!({"ownerID": self.node, "currentState": "stopped", "endpoint": "", "epoch": engine.spec.epoch})
        };
        self.report(&self.engines, name, &status, wanted).await
    }

    /// Writes what differs, and nothing when nothing does.
    async fn report<K, S>(
        &self,
        api: &Api<K>,
        name: &str,
        status: &S,
        wanted: Value,
    ) -> kube::Result<()>
    where
        K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
        S: serde::Serialize,
    {
        let known = serde_json::to_value(status).expect("JSON");
        let same = |key: &str, value: &Value| match (&known[key], value) {
            (Value::Null, Value::Number(number)) => number.as_i64() == Some(0),
            (Value::Null, Value::String(text)) => text.is_empty(),
            (known, wanted) => known == wanted,
        };
        let fields = wanted.as_object().expect("an object");
        if fields.iter().all(|(key, value)| same(key, value)) {
            return Ok(());
        }
        let patch = Patch::Merge(json!({"status": wanted}));
        api.patch_status(name, &PatchParams::default(), &patch)
            .await
            .map(drop)
    }

    async fn let_go<K>(&self, api: &Api<K>, mut object: K) -> kube::Result<()>
    where
        K: kube::Resource<DynamicType = ()>
            + Clone
            + serde::Serialize
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
    {
        object.finalizers_mut().retain(|name| name != FINALIZER);
        api.replace(&object.name_any(), &PostParams::default(), &object)
            .await
            .map(drop)
    }
}
