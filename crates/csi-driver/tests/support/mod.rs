//! The real embedded API in one process, the CSI services on real sockets, and the part of the controllers, played by hand.
#![allow(dead_code, reason = "each test target uses its own part")]

pub mod cut;
mod objects;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api_types::{
    ByteSize, Engine, Volume, VolumeAttachment, VolumeFrontend, VolumeSpec, all_crds, names,
};
use apiserver::auth::{Authenticator, User};
use apiserver::core::Core;
use apiserver::service::{ApiService, CertificateUser};
use csi_driver::VolumeNotes;
use csi_driver::csi::v1::volume_capability::access_mode::Mode;
use csi_driver::csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi_driver::csi::v1::{
    CapacityRange, ControllerPublishVolumeRequest, CreateVolumeRequest, VolumeCapability,
};
use futures::StreamExt as _;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use revision_store::{Options, Store};
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Status, async_trait};
use tower::ServiceBuilder;

/// How long a condition may take to come true. Far longer than it does: the machine may be loaded.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const GIB: i64 = 1 << 30;

/// An API server without a socket, with every CRD and two nodes.
pub struct Cluster {
    pub client: Client,
    lifecycle: tokio::task::JoinHandle<()>,
}

impl Cluster {
    pub async fn start() -> Self {
        let store = Store::in_memory(Options::default()).expect("a store");
        let core = Core::new(store);
        let service = ApiService::new(Arc::clone(&core), Authenticator::new("token"));
        let lifecycle = tokio::spawn(apiserver::lifecycle::run(core));
        for name in ["default", names::NAMESPACE] {
            let namespace =
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            service
                .apply(&namespace, "test")
                .await
                .expect("a namespace");
        }
        for definition in all_crds() {
            let definition = serde_json::to_value(definition).expect("JSON");
            service.apply(&definition, "test").await.expect("a CRD");
        }
        for name in ["n1", "n2"] {
            let node = json!({
                "apiVersion": names::API_VERSION, "kind": "Node",
                "metadata": {"name": name, "namespace": names::NAMESPACE},
                "spec": {"name": name, "allowScheduling": true,
                    "disks": {"default": {"allowScheduling": true, "path": "/x"}}},
            });
            service.apply(&node, "test").await.expect("a node");
        }
        let service = ServiceBuilder::new()
            .map_request(|mut request: http::Request<kube::client::Body>| {
                let user = CertificateUser(User::new("test"));
                request.extensions_mut().insert(user);
                request
            })
            .service(service);
        Self {
            client: Client::new(service, "default"),
            lifecycle,
        }
    }

    pub fn volumes(&self) -> Api<Volume> {
        Api::namespaced(self.client.clone(), names::NAMESPACE)
    }

    pub fn attachments(&self) -> Api<VolumeAttachment> {
        Api::namespaced(self.client.clone(), names::NAMESPACE)
    }

    pub fn engines(&self) -> Api<Engine> {
        Api::namespaced(self.client.clone(), names::NAMESPACE)
    }

    /// Registers the driver on a node that takes so many volumes.
    pub async fn limit_volumes(&self, node: &str, count: i32) {
        let object: CSINode = serde_json::from_value(json!({
            "metadata": {"name": node},
            "spec": {"drivers": [{
                "name": names::DRIVER, "nodeID": node, "topologyKeys": [], "allocatable": {"count": count},
            }]},
        }))
        .expect("a CSINode");
        let api: Api<CSINode> = Api::all(self.client.clone());
        let created = api.create(&PostParams::default(), &object).await;
        created.expect("a created CSINode");
    }

    /// A volume of one GiB that is attached to a node.
    pub async fn create_volume(&self, name: &str, node: &str) {
        let volume = Volume::new(
            name,
            VolumeSpec {
                size: ByteSize(GIB),
                number_of_replicas: 1,
                frontend: VolumeFrontend::BlockDevice,
                node_id: node.to_owned(),
                ..VolumeSpec::default()
            },
        );
        let created = self.volumes().create(&PostParams::default(), &volume).await;
        created.expect("a created volume");
    }

    /// Merges into a volume's spec.
    pub async fn patch_volume(&self, name: &str, patch: Value) {
        let api = self.volumes();
        let patched = api
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        patched.expect("a patched volume");
    }

    pub async fn patch_volume_status(&self, name: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        let patched = self
            .volumes()
            .patch_status(name, &PatchParams::default(), &patch)
            .await;
        patched.expect("a patched status");
    }

    pub async fn patch_attachment_status(&self, name: &str, statuses: Value) {
        let patch = Patch::Merge(json!({ "status": { "attachmentTicketStatuses": statuses } }));
        let api = self.attachments();
        let patched = api
            .patch_status(name, &PatchParams::default(), &patch)
            .await;
        patched.expect("a patched status");
    }

    /// An engine of a volume, as its agent reports it.
    pub async fn create_engine(
        &self,
        volume: &str,
        node: &str,
        epoch: i64,
        status: Value,
    ) -> String {
        let name = format!("{volume}-e-{epoch}");
        let engine: Engine = serde_json::from_value(json!({
            "apiVersion": names::API_VERSION, "kind": "Engine",
            "metadata": {"name": name, "labels": {names::label::VOLUME: volume, names::label::NODE: node}},
            "spec": {"volumeName": volume, "nodeID": node, "epoch": epoch, "desireState": "running"},
        }))
        .expect("an engine");
        let created = self.engines().create(&PostParams::default(), &engine).await;
        created.expect("a created engine");
        self.patch_engine_status(&name, status).await;
        name
    }

    pub async fn patch_engine_status(&self, name: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        let patched = self
            .engines()
            .patch_status(name, &PatchParams::default(), &patch)
            .await;
        patched.expect("a patched status");
    }

    /// Waits until an attachment is as wanted.
    pub async fn attachment_until(&self, name: &str, wanted: impl Fn(&VolumeAttachment) -> bool) {
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let events = watcher::watcher(self.attachments(), config);
        let seen = async {
            let mut events = std::pin::pin!(events);
            while let Some(event) = events.next().await {
                if let Ok(Event::Apply(object) | Event::InitApply(object)) = event
                    && wanted(&object)
                {
                    return;
                }
            }
        };
        timeout(PATIENCE, seen)
            .await
            .expect("the attachment becomes so");
    }

    /// Plays the attachment controller: every ticket is satisfied at once, and statuses of removed tickets go.
    pub fn play_attachment_controller(&self) -> tokio::task::JoinHandle<()> {
        let api = self.attachments();
        tokio::spawn(async move {
            let events = watcher::watcher(api.clone(), watcher::Config::default());
            let mut events = std::pin::pin!(events);
            while let Some(event) = events.next().await {
                let (Ok(Event::Apply(object)) | Ok(Event::InitApply(object))) = event else {
                    continue;
                };
                if is_answered(&object) {
                    continue;
                }
                let patch = json!({ "status": { "attachmentTicketStatuses": answers(&object) } });
                let name = object.name_any();
                // An attachment that was deleted meanwhile needs no answer.
                let _ = api
                    .patch_status(&name, &PatchParams::default(), &Patch::Merge(patch))
                    .await;
            }
        })
    }

    /// Plays the volume controller's last act: a volume that is deleted loses its finalizer.
    pub fn play_volume_remover(&self) -> tokio::task::JoinHandle<()> {
        let api = self.volumes();
        tokio::spawn(async move {
            let events = watcher::watcher(api.clone(), watcher::Config::default());
            let mut events = std::pin::pin!(events);
            while let Some(event) = events.next().await {
                let (Ok(Event::Apply(object)) | Ok(Event::InitApply(object))) = event else {
                    continue;
                };
                if object.metadata.deletion_timestamp.is_some() {
                    let patch = Patch::Merge(json!({ "metadata": { "finalizers": Value::Null } }));
                    let name = object.name_any();
                    // One that is gone already needs nothing.
                    let _ = api.patch(&name, &PatchParams::default(), &patch).await;
                }
            }
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.lifecycle.abort();
    }
}

/// Marks of file systems that are being made, without an API.
#[derive(Default)]
pub struct MarksInMemory {
    begun: Mutex<BTreeSet<String>>,
    asked: Mutex<Vec<String>>,
    refused: Mutex<Option<&'static str>>,
    told: Mutex<Vec<String>>,
}

impl MarksInMemory {
    pub fn put(&self, volume: &str) {
        let mut begun = self.begun.lock().expect("no panic");
        begun.insert(volume.to_owned());
    }

    pub fn has(&self, volume: &str) -> bool {
        self.begun.lock().expect("no panic").contains(volume)
    }

    /// Calls of this name fail from now on, as without an API.
    pub fn refuse(&self, call: Option<&'static str>) {
        *self.refused.lock().expect("no panic") = call;
    }

    /// What was asked since the last time.
    pub fn asked(&self) -> Vec<String> {
        let mut asked = self.asked.lock().expect("no panic");
        asked.drain(..).collect()
    }

    /// Which refusals were told since the last time.
    pub fn told(&self) -> Vec<String> {
        let mut told = self.told.lock().expect("no panic");
        told.drain(..).collect()
    }

    fn ask(&self, call: &'static str, volume: &str) -> Result<(), Status> {
        let mut asked = self.asked.lock().expect("no panic");
        asked.push(format!("{call} {volume}"));
        let refused = *self.refused.lock().expect("no panic");
        if refused == Some(call) {
            return Err(Status::unavailable("there is no API"));
        }
        Ok(())
    }
}

#[async_trait]
impl VolumeNotes for MarksInMemory {
    async fn is_begun(&self, volume: &str) -> Result<bool, Status> {
        self.ask("is_begun", volume)?;
        Ok(self.has(volume))
    }

    async fn begin(&self, volume: &str) -> Result<(), Status> {
        self.ask("begin", volume)?;
        self.put(volume);
        Ok(())
    }

    async fn end(&self, volume: &str) -> Result<(), Status> {
        self.ask("end", volume)?;
        self.begun.lock().expect("no panic").remove(volume);
        Ok(())
    }

    fn refused(&self, volume: &str, why: &str) {
        let mut told = self.told.lock().expect("no panic");
        told.push(format!("{volume}: {why}"));
    }
}

/// Whether every ticket is satisfied, and nothing else is answered.
fn is_answered(attachment: &VolumeAttachment) -> bool {
    let tickets = &attachment.spec.attachment_tickets;
    let status = attachment.status.clone().unwrap_or_default();
    status.attachment_ticket_statuses.len() == tickets.len()
        && tickets.values().all(|ticket| status.satisfies(ticket))
}

fn answers(attachment: &VolumeAttachment) -> Value {
    let mut answers = serde_json::Map::new();
    for status in attachment
        .status
        .iter()
        .flat_map(|status| status.attachment_ticket_statuses.keys())
    {
        answers.insert(status.clone(), Value::Null);
    }
    for (id, ticket) in &attachment.spec.attachment_tickets {
        answers.insert(id.clone(), satisfied(id, ticket.generation));
    }
    Value::Object(answers)
}

/// The status of a satisfied ticket.
pub fn satisfied(id: &str, generation: i64) -> Value {
    json!({
        "id": id, "generation": generation, "satisfied": true,
        "conditions": [{"type": "Satisfied", "status": "True", "reason": "", "message": ""}],
    })
}

/// The status of a ticket that waits.
pub fn waiting(id: &str, generation: i64, message: &str) -> Value {
    json!({
        "id": id, "generation": generation, "satisfied": false,
        "conditions": [{"type": "Satisfied", "status": "False", "reason": "Waiting", "message": message}],
    })
}

/// A gRPC channel over a unix socket that may not be served yet.
pub async fn connect(socket: &Path) -> Channel {
    let path: PathBuf = socket.to_owned();
    let served = async {
        while UnixStream::connect(&path).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, served)
        .await
        .expect("the socket is served");
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    endpoint
        .connect_with_connector(connector)
        .await
        .expect("a channel")
}

pub fn capability(access_type: AccessType, mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

pub fn mounted(file_system: &str) -> VolumeCapability {
    let mount = MountVolume {
        fs_type: file_system.to_owned(),
        ..MountVolume::default()
    };
    capability(AccessType::Mount(mount), Mode::SingleNodeWriter)
}

pub fn block(mode: Mode) -> VolumeCapability {
    capability(AccessType::Block(BlockVolume {}), mode)
}

pub fn create_request(name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange {
            required_bytes: GIB,
            limit_bytes: 0,
        }),
        volume_capabilities: vec![mounted("ext4")],
        ..CreateVolumeRequest::default()
    }
}

pub fn publish_request(volume: &str, node: &str) -> ControllerPublishVolumeRequest {
    ControllerPublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: node.to_owned(),
        volume_capability: Some(mounted("ext4")),
        ..ControllerPublishVolumeRequest::default()
    }
}
