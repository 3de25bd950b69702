//! The Controller service: volumes and tickets, written as API objects.
//!
//! Every call writes what it wants and then waits, on watches that all calls share, for what the controllers make of it. Nothing is
//! kept here that a restart would lose: each call finds out from the API how far an earlier one came.

mod api;
mod capacity;
mod lifecycle;
mod listing;
pub mod observed;
pub mod parameters;
mod publish;
pub mod release;

use kube::Client;
use tonic::{Request, Response, Status, async_trait};

use crate::csi::v1::{self as csi, controller_server::Controller};
use crate::in_flight::InFlight;
use observed::Observed;

/// What a site decides about the Controller service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerOptions {
    /// Whether volumes can grow: only where the controllers and agents carry an expansion out.
    pub expansion: bool,
}

/// The Controller service. Clones share everything.
#[derive(Clone)]
pub struct ControllerService {
    client: Client,
    observed: Observed,
    in_flight: InFlight,
    options: ControllerOptions,
}

impl ControllerService {
    /// Starts the watches; must be called inside a tokio runtime.
    pub fn start(client: Client, options: ControllerOptions) -> Self {
        Self {
            observed: Observed::start(&client),
            client,
            in_flight: InFlight::default(),
            options,
        }
    }

    /// Whether everything was read once, so that calls need not wait for that.
    pub fn is_ready(&self) -> bool {
        self.observed.is_filled()
    }

    /// Returns only if a watch ended, which is a defect that should end the process.
    pub async fn ended(&self) {
        self.observed.ended().await;
    }

    fn capabilities(&self) -> Vec<csi::controller_service_capability::rpc::Type> {
        use csi::controller_service_capability::rpc::Type;
        let mut types = vec![
            Type::CreateDeleteVolume,
            Type::PublishUnpublishVolume,
            Type::ListVolumes,
            Type::ListVolumesPublishedNodes,
            Type::GetCapacity,
            Type::GetVolume,
            Type::SingleNodeMultiWriter,
            Type::GetVolumeHealth,
            Type::ListVolumeHealth,
        ];
        if self.options.expansion {
            types.push(Type::ExpandVolume);
        }
        types
    }
}

fn not_advertised<T>(call: &str) -> Result<Response<T>, Status> {
    Err(Status::unimplemented(format!(
        "{call} is not supported, and ControllerGetCapabilities does not list it"
    )))
}

#[async_trait]
impl Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Result<Response<csi::CreateVolumeResponse>, Status> {
        self.create(request).await.map(Response::new)
    }

    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Result<Response<csi::DeleteVolumeResponse>, Status> {
        self.delete(request).await.map(Response::new)
    }

    async fn controller_publish_volume(
        &self,
        request: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerPublishVolumeResponse>, Status> {
        self.publish(request).await.map(Response::new)
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerUnpublishVolumeResponse>, Status> {
        self.unpublish(request).await.map(Response::new)
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<csi::ValidateVolumeCapabilitiesResponse>, Status> {
        self.validate(request).await.map(Response::new)
    }

    async fn list_volumes(
        &self,
        request: Request<csi::ListVolumesRequest>,
    ) -> Result<Response<csi::ListVolumesResponse>, Status> {
        self.list(request).await.map(Response::new)
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<csi::ControllerListVolumeHealthRequest>,
    ) -> Result<Response<csi::ControllerListVolumeHealthResponse>, Status> {
        self.list_health(request).await.map(Response::new)
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<csi::ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<csi::ControllerGetVolumeHealthResponse>, Status> {
        self.get_health(request).await.map(Response::new)
    }

    async fn get_capacity(
        &self,
        request: Request<csi::GetCapacityRequest>,
    ) -> Result<Response<csi::GetCapacityResponse>, Status> {
        self.capacity(request).await.map(Response::new)
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<csi::ControllerGetCapabilitiesResponse>, Status> {
        use csi::controller_service_capability::{Rpc, Type};
        let capabilities = self.capabilities().into_iter();
        let capabilities = capabilities.map(|rpc| csi::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: rpc.into() })),
        });
        Ok(Response::new(csi::ControllerGetCapabilitiesResponse {
            capabilities: capabilities.collect(),
        }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Result<Response<csi::ControllerExpandVolumeResponse>, Status> {
        if !self.options.expansion {
            return not_advertised("ControllerExpandVolume");
        }
        self.expand(request).await.map(Response::new)
    }

    async fn controller_get_volume(
        &self,
        request: Request<csi::ControllerGetVolumeRequest>,
    ) -> Result<Response<csi::ControllerGetVolumeResponse>, Status> {
        self.get(request).await.map(Response::new)
    }

    async fn create_snapshot(
        &self,
        _: Request<csi::CreateSnapshotRequest>,
    ) -> Result<Response<csi::CreateSnapshotResponse>, Status> {
        not_advertised("CreateSnapshot")
    }

    async fn delete_snapshot(
        &self,
        _: Request<csi::DeleteSnapshotRequest>,
    ) -> Result<Response<csi::DeleteSnapshotResponse>, Status> {
        not_advertised("DeleteSnapshot")
    }

    async fn list_snapshots(
        &self,
        _: Request<csi::ListSnapshotsRequest>,
    ) -> Result<Response<csi::ListSnapshotsResponse>, Status> {
        not_advertised("ListSnapshots")
    }

    async fn get_snapshot(
        &self,
        _: Request<csi::GetSnapshotRequest>,
    ) -> Result<Response<csi::GetSnapshotResponse>, Status> {
        not_advertised("GetSnapshot")
    }

    async fn controller_modify_volume(
        &self,
        _: Request<csi::ControllerModifyVolumeRequest>,
    ) -> Result<Response<csi::ControllerModifyVolumeResponse>, Status> {
        not_advertised("ControllerModifyVolume")
    }
}
