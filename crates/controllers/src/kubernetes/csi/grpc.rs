//! The trait over a real socket.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use cluster_core::attacher::{
    Capabilities, PublishRequest, PublishedVolumes, RpcError, UnpublishRequest,
};
use cluster_core::{CsiAccessMode, VolumeHandle};
use csi_driver::csi::v1::controller_client::ControllerClient;
use csi_driver::csi::v1::controller_service_capability::{Type, rpc::Type as Rpc};
use csi_driver::csi::v1::identity_client::IdentityClient;
use csi_driver::csi::v1::volume_capability::{
    AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode,
};
use csi_driver::csi::v1::volume_content_source::{self, SnapshotSource, VolumeSource};
use csi_driver::csi::v1::{
    CapacityRange, ControllerGetCapabilitiesRequest, ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest,
    GetPluginInfoRequest, ListVolumesRequest, Topology, TopologyRequirement, VolumeCapability,
    VolumeContentSource,
};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

use super::{
    ContentSource, CreateRequest, CreatedVolume, CsiController, DriverCapabilities, Secrets,
};

/// Servers commonly allow some 200 calls at once on one connection; more would wait for each other.
const CONNECTIONS: usize = 16;
/// A driver that lists more pages than this is going round in circles.
const LIST_PAGES_MAX: usize = 10_000;

/// A driver behind a Unix socket. Connects when it is first called, and again when the driver comes back.
pub struct CsiSocket {
    channels: Vec<Channel>,
    next: AtomicUsize,
}

impl CsiSocket {
    /// `address` is a path, with or without `unix://`. Must be called inside a runtime.
    pub fn new(address: &str) -> Result<Self, tonic::transport::Error> {
        let path = address
            .strip_prefix("unix://")
            .or_else(|| address.strip_prefix("unix:"))
            .unwrap_or(address);
        let path = PathBuf::from(path);
        // The name is never resolved: the connector has the path.
        let endpoint = Endpoint::try_from("http://csi.sock")?;
        let channels = (0..CONNECTIONS).map(|_| {
            let path = path.clone();
            endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
                let path = path.clone();
                async move {
                    let stream = UnixStream::connect(path).await?;
                    Ok::<_, std::io::Error>(TokioIo::new(stream))
                }
            }))
        });
        Ok(Self {
            channels: channels.collect(),
            next: AtomicUsize::new(0),
        })
    }

    fn channel(&self) -> Channel {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        self.channels[next % self.channels.len()].clone()
    }

    fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel())
    }
}

impl CsiController for CsiSocket {
    async fn driver_name(&self) -> Result<String, RpcError> {
        let mut client = IdentityClient::new(self.channel());
        let answer = client.get_plugin_info(GetPluginInfoRequest {}).await;
        Ok(answer.map_err(|status| error(&status))?.into_inner().name)
    }

    async fn capabilities(&self) -> Result<DriverCapabilities, RpcError> {
        let request = ControllerGetCapabilitiesRequest {};
        let answer = self.controller().controller_get_capabilities(request).await;
        let answer = answer.map_err(|status| error(&status))?.into_inner();
        let has = |wanted: Rpc| {
            answer.capabilities.iter().any(|capability| {
                matches!(&capability.r#type, Some(Type::Rpc(rpc)) if rpc.r#type() == wanted)
            })
        };
        Ok(DriverCapabilities {
            attach: Capabilities {
                publish: has(Rpc::PublishUnpublishVolume),
                read_only: has(Rpc::PublishReadonly),
                single_node_multi_writer: has(Rpc::SingleNodeMultiWriter),
            },
            list_published: has(Rpc::ListVolumes) && has(Rpc::ListVolumesPublishedNodes),
            create_delete: has(Rpc::CreateDeleteVolume),
        })
    }

    async fn publish(
        &self,
        request: PublishRequest,
        secrets: Secrets,
    ) -> Result<BTreeMap<String, String>, RpcError> {
        let capability = capability(request.access_mode, request.fs_type, Vec::new());
        let request = ControllerPublishVolumeRequest {
            volume_id: request.handle.to_string(),
            node_id: request.node_id,
            volume_capability: Some(capability),
            readonly: request.read_only,
            secrets: secrets.0.into_iter().collect(),
            volume_context: request.attributes.into_iter().collect(),
        };
        let answer = self.controller().controller_publish_volume(request).await;
        let answer = answer.map_err(|status| error(&status))?.into_inner();
        Ok(answer.publish_context.into_iter().collect())
    }

    async fn unpublish(&self, request: UnpublishRequest, secrets: Secrets) -> Result<(), RpcError> {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: request.handle.to_string(),
            node_id: request.node_id,
            secrets: secrets.0.into_iter().collect(),
        };
        let answer = self.controller().controller_unpublish_volume(request).await;
        answer.map(|_| ()).map_err(|status| error(&status))
    }

    async fn list(&self) -> Result<PublishedVolumes, RpcError> {
        let mut published = PublishedVolumes::new();
        let mut starting_token = String::new();
        for _ in 0..LIST_PAGES_MAX {
            let request = ListVolumesRequest {
                max_entries: 0,
                starting_token,
            };
            let answer = self.controller().list_volumes(request).await;
            let answer = answer.map_err(|status| error(&status))?.into_inner();
            for entry in answer.entries {
                let Some(volume) = entry.volume else { continue };
                let nodes = entry.status.map(|status| status.published_node_ids);
                let nodes = nodes.unwrap_or_default().into_iter().collect();
                published.insert(VolumeHandle::new(volume.volume_id), nodes);
            }
            if answer.next_token.is_empty() {
                return Ok(published);
            }
            starting_token = answer.next_token;
        }
        Err(RpcError {
            code: 13,
            message: format!("ListVolumes did not end after {LIST_PAGES_MAX} pages"),
        })
    }

    async fn create(&self, request: CreateRequest) -> Result<CreatedVolume, RpcError> {
        let capabilities: Vec<VolumeCapability> = request
            .access_modes
            .iter()
            .map(|mode| capability(*mode, request.fs_type.clone(), request.mount_flags.clone()))
            .collect();
        let segments = request.preferred_topology;
        let topology = (!segments.is_empty()).then(|| {
            let topology = Topology {
                segments: segments.into_iter().collect(),
            };
            TopologyRequirement {
                requisite: vec![topology.clone()],
                preferred: vec![topology],
            }
        });
        let call = CreateVolumeRequest {
            name: request.name,
            capacity_range: Some(CapacityRange {
                required_bytes: request.bytes_required,
                limit_bytes: 0,
            }),
            volume_capabilities: capabilities,
            parameters: request.parameters.into_iter().collect(),
            secrets: request.secrets.0.into_iter().collect(),
            volume_content_source: request.source.map(content_source),
            accessibility_requirements: topology,
            ..CreateVolumeRequest::default()
        };
        let answer = self.controller().create_volume(call).await;
        let answer = answer.map_err(|status| error(&status))?.into_inner();
        let volume = answer.volume.unwrap_or_default();
        Ok(CreatedVolume {
            handle: volume.volume_id,
            bytes: volume.capacity_bytes,
            attributes: volume.volume_context.into_iter().collect(),
            accessible_from: volume
                .accessible_topology
                .into_iter()
                .map(|topology| topology.segments.into_iter().collect())
                .collect(),
        })
    }

    async fn delete(&self, handle: VolumeHandle, secrets: Secrets) -> Result<(), RpcError> {
        let request = DeleteVolumeRequest {
            volume_id: handle.to_string(),
            secrets: secrets.0.into_iter().collect(),
        };
        let answer = self.controller().delete_volume(request).await;
        answer.map(|_| ()).map_err(|status| error(&status))
    }
}

fn capability(
    mode: CsiAccessMode,
    fs_type: Option<String>,
    mount_flags: Vec<String>,
) -> VolumeCapability {
    let mode = match mode {
        CsiAccessMode::SingleNodeWriter => Mode::SingleNodeWriter,
        CsiAccessMode::SingleNodeSingleWriter => Mode::SingleNodeSingleWriter,
        CsiAccessMode::SingleNodeMultiWriter => Mode::SingleNodeMultiWriter,
        CsiAccessMode::MultiNodeReaderOnly => Mode::MultiNodeReaderOnly,
        CsiAccessMode::MultiNodeMultiWriter => Mode::MultiNodeMultiWriter,
    };
    let access_type = match fs_type {
        None => AccessType::Block(BlockVolume {}),
        Some(fs_type) => AccessType::Mount(MountVolume {
            fs_type,
            mount_flags,
            ..MountVolume::default()
        }),
    };
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(access_type),
    }
}

fn content_source(source: ContentSource) -> VolumeContentSource {
    let source = match source {
        ContentSource::Snapshot(snapshot_id) => {
            volume_content_source::Type::Snapshot(SnapshotSource { snapshot_id })
        }
        ContentSource::Volume(volume_id) => {
            volume_content_source::Type::Volume(VolumeSource { volume_id })
        }
    };
    VolumeContentSource {
        r#type: Some(source),
    }
}

fn error(status: &tonic::Status) -> RpcError {
    let mut message = status.message().to_owned();
    // The reason may be in the message already, or only below "transport error", which tells nobody that a socket is missing.
    let mut source = std::error::Error::source(status);
    while let Some(cause) = source {
        let reason = cause.to_string();
        if !cause.is::<tonic::transport::Error>() && !message.contains(&reason) {
            message.push_str(": ");
            message.push_str(&reason);
        }
        source = cause.source();
    }
    RpcError {
        code: status.code().into(),
        message,
    }
}
