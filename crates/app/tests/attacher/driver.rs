//! A CSI controller of another driver, behind a real unix socket.
//!
//! It speaks the protocol, remembers what it was asked, and answers as it is told: late, or with an error. What it does not
//! show: a driver whose volumes have a life of their own, whose calls have effects that outlast a failure, that serves only
//! some message sizes or versions of gRPC, or that answers the same request differently by itself.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use csi_driver::csi::v1 as csi;
use csi_driver::csi::v1::controller_server::{Controller, ControllerServer};
use csi_driver::csi::v1::identity_server::{Identity, IdentityServer};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, async_trait};

pub const NAME: &str = "disks.example.com";

#[derive(Clone, Default)]
pub struct Driver {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// `publish VOLUME NODE`, in order.
    calls: Vec<String>,
    published: BTreeMap<String, BTreeSet<String>>,
    errors: VecDeque<Status>,
    /// What every call gets that has no error of its own.
    failing: Option<Status>,
    publishes: Vec<csi::ControllerPublishVolumeRequest>,
    unpublishes: Vec<csi::ControllerUnpublishVolumeRequest>,
    introductions: usize,
    latency: Duration,
    in_flight: usize,
}

impl Driver {
    /// Serves until the runtime ends.
    pub fn serve(&self, socket: &Path) {
        let listener = UnixListener::bind(socket).expect("a socket");
        let router = tonic::transport::Server::builder()
            .add_service(IdentityServer::new(self.clone()))
            .add_service(ControllerServer::new(self.clone()));
        tokio::spawn(router.serve_with_incoming(UnixListenerStream::new(listener)));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// From now on publishes and unpublishes take this long.
    pub fn set_latency(&self, latency: Duration) {
        self.lock().latency = latency;
    }

    /// The next publish or unpublish fails so.
    pub fn fail_next(&self, error: Status) {
        self.lock().errors.push_back(error);
    }

    /// From now on every publish and unpublish fails so, or none does.
    pub fn fail_all(&self, error: Option<Status>) {
        self.lock().failing = error;
    }

    /// Somebody detached it behind everybody's back.
    pub fn forget(&self, volume: &str) {
        self.lock()
            .published
            .insert(volume.to_owned(), BTreeSet::new());
    }

    pub fn count(&self, call: &str) -> usize {
        let state = self.lock();
        state.calls.iter().filter(|other| *other == call).count()
    }

    pub fn calls(&self) -> Vec<String> {
        self.lock().calls.clone()
    }

    pub fn in_flight(&self) -> usize {
        self.lock().in_flight
    }

    pub fn is_published(&self, volume: &str) -> bool {
        let state = self.lock();
        state
            .published
            .get(volume)
            .is_some_and(|nodes| !nodes.is_empty())
    }

    pub fn last_publish(&self) -> csi::ControllerPublishVolumeRequest {
        self.lock().publishes.last().cloned().expect("a publish")
    }

    pub fn last_unpublish(&self) -> csi::ControllerUnpublishVolumeRequest {
        let state = self.lock();
        state.unpublishes.last().cloned().expect("an unpublish")
    }

    /// How often it was asked for its name.
    pub fn introductions(&self) -> usize {
        self.lock().introductions
    }

    async fn work(&self, call: String) -> Result<(), Status> {
        let (latency, error) = {
            let mut state = self.lock();
            state.calls.push(call);
            state.in_flight += 1;
            let error = state.errors.pop_front();
            (state.latency, error.or_else(|| state.failing.clone()))
        };
        let _in_flight = InFlight(self);
        tokio::time::sleep(latency).await;
        error.map_or(Ok(()), Err)
    }
}

struct InFlight<'a>(&'a Driver);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.lock().in_flight -= 1;
    }
}

#[async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        self.lock().introductions += 1;
        Ok(Response::new(csi::GetPluginInfoResponse {
            name: NAME.to_owned(),
            vendor_version: "1".to_owned(),
            ..Default::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<csi::GetPluginCapabilitiesResponse>, Status> {
        use csi::plugin_capability::{Service, Type, service};
        let service = Service {
            r#type: service::Type::ControllerService.into(),
        };
        Ok(Response::new(csi::GetPluginCapabilitiesResponse {
            capabilities: vec![csi::PluginCapability {
                r#type: Some(Type::Service(service)),
            }],
        }))
    }

    async fn probe(
        &self,
        _: Request<csi::ProbeRequest>,
    ) -> Result<Response<csi::ProbeResponse>, Status> {
        Ok(Response::new(csi::ProbeResponse::default()))
    }
}

/// Calls that nobody makes here, in the form that `async_trait` gives to methods.
macro_rules! refused {
    ($($call:ident($request:ident) -> $response:ident;)*) => {
        $(
            fn $call<'a, 'async_trait>(
                &'a self,
                _: Request<csi::$request>,
            ) -> Pin<Box<dyn Future<Output = Result<Response<csi::$response>, Status>> + Send + 'async_trait>>
            where
                'a: 'async_trait,
                Self: 'async_trait,
            {
                let why = concat!(stringify!($call), " is not what an attacher asks for");
                Box::pin(async move { Err(Status::unimplemented(why)) })
            }
        )*
    };
}

#[async_trait]
impl Controller for Driver {
    async fn controller_publish_volume(
        &self,
        request: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let (volume, node) = (request.volume_id.clone(), request.node_id.clone());
        self.work(format!("publish {volume} {node}")).await?;
        let mut state = self.lock();
        state.publishes.push(request);
        state
            .published
            .entry(volume.clone())
            .or_default()
            .insert(node);
        Ok(Response::new(csi::ControllerPublishVolumeResponse {
            publish_context: [("device".to_owned(), format!("/dev/{volume}"))].into(),
        }))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let (volume, node) = (request.volume_id.clone(), request.node_id.clone());
        self.work(format!("unpublish {volume} {node}")).await?;
        let mut state = self.lock();
        state.unpublishes.push(request);
        if let Some(nodes) = state.published.get_mut(&volume) {
            nodes.remove(&node);
        }
        Ok(Response::new(
            csi::ControllerUnpublishVolumeResponse::default(),
        ))
    }

    async fn list_volumes(
        &self,
        request: Request<csi::ListVolumesRequest>,
    ) -> Result<Response<csi::ListVolumesResponse>, Status> {
        use csi::list_volumes_response::{Entry, VolumeStatus};
        let entry = |(volume, nodes): (&String, &BTreeSet<String>)| Entry {
            volume: Some(csi::Volume {
                volume_id: volume.clone(),
                ..Default::default()
            }),
            status: Some(VolumeStatus {
                published_node_ids: nodes.iter().cloned().collect(),
            }),
        };
        let entries: Vec<Entry> = self.lock().published.iter().map(entry).collect();
        // Two a page: whoever reads only the first one misses most.
        let start: usize = request.into_inner().starting_token.parse().unwrap_or(0);
        let next = start + 2;
        let next_token = if next < entries.len() {
            next.to_string()
        } else {
            String::new()
        };
        Ok(Response::new(csi::ListVolumesResponse {
            entries: entries.into_iter().skip(start).take(2).collect(),
            next_token,
        }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<csi::ControllerGetCapabilitiesResponse>, Status> {
        use csi::controller_service_capability::{Rpc, Type, rpc};
        let types = [
            rpc::Type::PublishUnpublishVolume,
            rpc::Type::PublishReadonly,
            rpc::Type::ListVolumes,
            rpc::Type::ListVolumesPublishedNodes,
        ];
        let capability = |rpc: rpc::Type| csi::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: rpc.into() })),
        };
        Ok(Response::new(csi::ControllerGetCapabilitiesResponse {
            capabilities: types.map(capability).to_vec(),
        }))
    }

    refused! {
        create_volume(CreateVolumeRequest) -> CreateVolumeResponse;
        delete_volume(DeleteVolumeRequest) -> DeleteVolumeResponse;
        validate_volume_capabilities(ValidateVolumeCapabilitiesRequest) -> ValidateVolumeCapabilitiesResponse;
        controller_list_volume_health(ControllerListVolumeHealthRequest) -> ControllerListVolumeHealthResponse;
        controller_get_volume_health(ControllerGetVolumeHealthRequest) -> ControllerGetVolumeHealthResponse;
        get_capacity(GetCapacityRequest) -> GetCapacityResponse;
        create_snapshot(CreateSnapshotRequest) -> CreateSnapshotResponse;
        delete_snapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse;
        list_snapshots(ListSnapshotsRequest) -> ListSnapshotsResponse;
        get_snapshot(GetSnapshotRequest) -> GetSnapshotResponse;
        controller_expand_volume(ControllerExpandVolumeRequest) -> ControllerExpandVolumeResponse;
        controller_get_volume(ControllerGetVolumeRequest) -> ControllerGetVolumeResponse;
        controller_modify_volume(ControllerModifyVolumeRequest) -> ControllerModifyVolumeResponse;
    }
}
