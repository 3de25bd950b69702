//! A cluster in one process: the real embedded API, real managers, and agents played by the test.

mod agent;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use api_types::names::{FINALIZER, NAMESPACE, label};
use api_types::{
    AttachmentTicket, ByteSize, Engine, Node, Replica, Volume, VolumeAttachment,
    VolumeAttachmentSpec, VolumeFrontend, VolumeSpec, VolumeState, condition, node_condition,
};
use apiserver::auth::Authenticator;
use apiserver::core::Core;
use apiserver::service::ApiService;
use attach_core::reaper::Policy;
use controllers::runtime::{LeaderOptions, Manager, Options};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

pub use agent::Agent;

/// How long anything may take before a test gives up: generous, for machines that do other things too.
const PATIENCE: Duration = Duration::from_secs(60);
pub const GIB: i64 = 1 << 30;

pub struct Cluster {
    pub client: Client,
    tasks: JoinSet<()>,
}

impl Cluster {
    pub async fn start() -> Self {
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init();
        let store = revision_store::Store::in_memory(revision_store::Options::default());
        let core = Core::new(store.expect("a store"));
        let service = ApiService::new(Arc::clone(&core), Authenticator::new("token"));
        for name in ["default", NAMESPACE] {
            let namespace =
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            service
                .apply(&namespace, "test")
                .await
                .expect("a namespace");
        }
        for definition in api_types::all_crds() {
            let definition = serde_json::to_value(definition).expect("JSON");
            service.apply(&definition, "test").await.expect("a CRD");
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(apiserver::lifecycle::run(core));
        Self {
            client: Client::new(service, "default"),
            tasks,
        }
    }

    /// Nodes `n1` to `nN`, each with an agent.
    pub async fn agents(&self, count: usize) -> Vec<Agent> {
        let mut agents = Vec::new();
        for number in 1..=count {
            agents.push(Agent::start(&self.client, &format!("n{number}")).await);
        }
        agents
    }

    pub fn manager(&self, identity: &str) -> RunningManager {
        self.manager_with(identity, Policy::default())
    }

    /// One whose reaper has this policy.
    pub fn manager_with(&self, identity: &str, reaper: Policy) -> RunningManager {
        let shutdown = CancellationToken::new();
        let options = Options {
            leader: LeaderOptions {
                identity: identity.to_owned(),
                renew_every: Duration::from_millis(300),
                renew_deadline: Duration::from_millis(2500),
                lease_duration: Duration::from_secs(4),
                ..LeaderOptions::default()
            },
            node_lost_after: Duration::from_secs(3),
            reaper,
        };
        let (client, lease_client) = (self.client.clone(), self.client.clone());
        let running = Manager::new(options).run(client, lease_client, shutdown.clone());
        let task =
            tokio::spawn(async move { running.await.expect("a manager that ends when told to") });
        RunningManager { shutdown, task }
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// A volume of one GiB and its attachment object, as CreateVolume makes them.
    pub async fn create_volume(&self, name: &str, replicas: i64) -> Volume {
        let mut volume = Volume::new(
            name,
            VolumeSpec {
                size: ByteSize(GIB),
                number_of_replicas: replicas,
                frontend: VolumeFrontend::BlockDevice,
                ..VolumeSpec::default()
            },
        );
        volume.finalizers_mut().push(FINALIZER.to_owned());
        let volume = self
            .api()
            .create(&PostParams::default(), &volume)
            .await
            .expect("a volume");
        let mut attachment = VolumeAttachment::new(
            name,
            VolumeAttachmentSpec {
                volume: name.to_owned(),
                ..VolumeAttachmentSpec::default()
            },
        );
        attachment.labels_mut().extend([label::volume(name)]);
        attachment.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "longhorn.io/v1beta2".to_owned(),
            kind: "Volume".to_owned(),
            name: name.to_owned(),
            uid: volume.uid().expect("a uid"),
            ..OwnerReference::default()
        }]);
        self.api()
            .create(&PostParams::default(), &attachment)
            .await
            .expect("an attachment");
        volume
    }

    pub async fn file_ticket(&self, volume: &str, id: &str, node: &str) {
        let ticket = AttachmentTicket {
            id: id.to_owned(),
            attacher_type: "csi-attacher".to_owned(),
            node_id: node.to_owned(),
            parameters: [("disableFrontend".to_owned(), "false".to_owned())].into(),
            ..AttachmentTicket::default()
        };
        self.patch_ticket(volume, id, serde_json::to_value(ticket).expect("JSON"))
            .await;
    }

    pub async fn withdraw_ticket(&self, volume: &str, id: &str) {
        self.patch_ticket(volume, id, Value::Null).await;
    }

    pub async fn patch_ticket(&self, volume: &str, id: &str, ticket: Value) {
        let patch = json!({"spec": {"attachmentTickets": {id: ticket}}});
        let api: Api<VolumeAttachment> = self.api();
        let params = PatchParams::default();
        api.patch(volume, &params, &Patch::Merge(patch))
            .await
            .expect("a ticket");
    }

    pub async fn merge_status<K>(&self, name: &str, status: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        let params = PatchParams::default();
        let patch = Patch::Merge(json!({"status": status}));
        self.api()
            .patch_status(name, &params, &patch)
            .await
            .expect("a status")
    }

    pub async fn engines(&self, volume: &str) -> Vec<Engine> {
        self.of_volume(volume).await
    }

    pub async fn replicas(&self, volume: &str) -> Vec<Replica> {
        self.of_volume(volume).await
    }

    async fn of_volume<K>(&self, volume: &str) -> Vec<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        let params = ListParams::default().labels(&format!("{}={volume}", label::VOLUME));
        self.api::<K>().list(&params).await.expect("a list").items
    }

    pub async fn volume(&self, name: &str) -> Volume {
        self.api().get(name).await.expect("the volume")
    }

    /// Waits until the manager has seen this many nodes renew their leases.
    pub async fn wait_until_nodes_are_ready(&self, count: usize) {
        let api: Api<Node> = self.api();
        let found = eventually(|| async {
            let nodes = api.list(&ListParams::default()).await.expect("nodes").items;
            let ready = nodes.iter().filter(|node| {
                let status = node.status.clone().unwrap_or_default();
                condition::is_true(&status.conditions, node_condition::READY)
            });
            match ready.count() {
                ready if ready == count => Ok(()),
                ready => Err(ready),
            }
        });
        assert_eq!(found.await, Ok(()), "ready nodes");
    }

    /// Waits until the volume is as wanted.
    pub async fn wait_for(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&Volume) -> bool,
    ) -> Volume {
        let last = eventually(|| async {
            let volume = self.volume(name).await;
            if wanted(&volume) {
                Ok(volume)
            } else {
                Err(volume)
            }
        });
        match last.await {
            Ok(volume) => volume,
            Err(volume) => panic!(
                "{name} never became {what}: {:#?} {:#?}",
                volume.spec, volume.status
            ),
        }
    }

    pub async fn wait_for_state(&self, name: &str, state: VolumeState, node: &str) -> Volume {
        let what = format!("{state} on {node:?}");
        self.wait_for(name, &what, |volume| {
            let status = volume.status.clone().unwrap_or_default();
            status.state == state && status.current_node_id == node
        })
        .await
    }

    pub async fn wait_until_satisfied(&self, volume: &str, ticket: &str) {
        let api: Api<VolumeAttachment> = self.api();
        let last = eventually(|| async {
            let object = api.get(volume).await.expect("an attachment");
            let filed = object.spec.attachment_tickets.get(ticket);
            let status = object.status.clone().unwrap_or_default();
            match filed {
                Some(filed) if status.satisfies(filed) => Ok(()),
                _ => Err(object),
            }
        });
        if let Err(object) = last.await {
            panic!("ticket {ticket} was never satisfied: {object:#?}");
        }
    }

    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

/// Looks until `look` succeeds; the last failure if it never does.
pub async fn eventually<T, E, F>(look: impl Fn() -> F) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        match look().await {
            Ok(found) => return Ok(found),
            Err(last) if tokio::time::Instant::now() >= end => return Err(last),
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

pub struct RunningManager {
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl RunningManager {
    pub async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.expect("a manager that does not panic");
    }

    /// As by `kill -9`: its lease is not given back.
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}
