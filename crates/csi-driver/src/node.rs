//! The Node service: devices become file systems, and file systems appear where pods look for them.
//!
//! Nothing is remembered here: what is mounted where is read from the kernel at every call, so that a crash at any point is
//! repaired by the next call. What has to outlive the node is with the volume: see [`VolumeNotes`].

mod device;
mod effects;
mod file_system;
pub mod mount_table;
mod notes;
mod publish;
mod refusal;
mod stage;
mod stats;
mod tool;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use effects::{Lazily, unmount_newest};
pub use notes::{NotesOnVolumes, VolumeNotes};
use tonic::{Request, Response, Status, async_trait};

use crate::csi::v1::{self as csi, node_server::Node};
use crate::in_flight::InFlight;

/// The topology key under which every node is a place of its own.
pub const TOPOLOGY_KEY: &str = "topology.lariat.io/node";

/// What the Node service needs to know of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeOptions {
    /// The node's name, which is its CSI id.
    pub node: String,
    /// Where the engine of volume V puts a link `V` to its block device.
    pub device_dir: PathBuf,
    /// How many volumes may be published here; zero for no limit.
    pub max_volumes: u32,
    /// Where the node is; by default only which node it is.
    pub topology: BTreeMap<String, String>,
    /// How long a call waits for a device that is not there yet.
    pub device_wait: Duration,
    /// Whether volumes can grow. Where only the node said so, the sidecars would leave the whole expansion to it.
    pub expansion: bool,
}

impl NodeOptions {
    pub fn new(node: impl Into<String>, device_dir: impl Into<PathBuf>) -> Self {
        let node = node.into();
        Self {
            topology: [(TOPOLOGY_KEY.to_owned(), node.clone())].into(),
            node,
            device_dir: device_dir.into(),
            max_volumes: 0,
            device_wait: Duration::from_secs(10),
            expansion: true,
        }
    }
}

/// The Node service. Clones share everything.
#[derive(Clone)]
pub struct NodeService {
    options: Arc<NodeOptions>,
    notes: Arc<dyn VolumeNotes>,
    in_flight: InFlight,
}

impl NodeService {
    pub fn new(options: NodeOptions, notes: Arc<dyn VolumeNotes>) -> Self {
        Self {
            options: Arc::new(options),
            notes,
            in_flight: InFlight::default(),
        }
    }
}

/// A volume's id as the name of its device's link.
fn volume_id(id: &str) -> Result<&str, Status> {
    let id = crate::limits::required("volume_id", id)?;
    if id.contains('/') || id.starts_with('.') {
        return Err(Status::invalid_argument(format!(
            "volume_id {id:?} is not the name of a volume"
        )));
    }
    Ok(id)
}

/// The path as the kernel's mount table has it: without links, but for its last part, which may be a mount of a dead device
/// that cannot be looked at.
fn resolved(path: &Path) -> PathBuf {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return path.to_owned();
    };
    std::fs::canonicalize(parent).map_or_else(|_| path.to_owned(), |parent| parent.join(name))
}

fn not_advertised<T>(call: &str) -> Result<Response<T>, Status> {
    Err(Status::unimplemented(format!(
        "{call} is not supported, and NodeGetCapabilities does not list it"
    )))
}

#[async_trait]
impl Node for NodeService {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        self.stage(request).await.map(Response::new)
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        self.unstage(request).await.map(Response::new)
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        self.publish(request).await.map(Response::new)
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        self.unpublish(request).await.map(Response::new)
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        self.stats(request).await.map(Response::new)
    }

    async fn node_get_volume_health(
        &self,
        request: Request<csi::NodeGetVolumeHealthRequest>,
    ) -> Result<Response<csi::NodeGetVolumeHealthResponse>, Status> {
        self.health(request).await.map(Response::new)
    }

    async fn node_get_storage_health(
        &self,
        _: Request<csi::NodeGetStorageHealthRequest>,
    ) -> Result<Response<csi::NodeGetStorageHealthResponse>, Status> {
        not_advertised("NodeGetStorageHealth")
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        if !self.options.expansion {
            return not_advertised("NodeExpandVolume");
        }
        self.expand(request).await.map(Response::new)
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        use csi::node_service_capability::{Rpc, Type, rpc};
        let types = [
            rpc::Type::StageUnstageVolume,
            rpc::Type::GetVolumeStats,
            rpc::Type::ExpandVolume,
            rpc::Type::SingleNodeMultiWriter,
            rpc::Type::GetVolumeHealth,
        ];
        let offered = |rpc: &rpc::Type| self.options.expansion || *rpc != rpc::Type::ExpandVolume;
        let capabilities = types.into_iter().filter(offered);
        let capabilities = capabilities.map(|rpc| csi::NodeServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: rpc.into() })),
        });
        Ok(Response::new(csi::NodeGetCapabilitiesResponse {
            capabilities: capabilities.collect(),
        }))
    }

    async fn node_get_info(
        &self,
        _: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        let segments = self.options.topology.clone().into_iter().collect();
        Ok(Response::new(csi::NodeGetInfoResponse {
            node_id: self.options.node.clone(),
            max_volumes_per_node: self.options.max_volumes.into(),
            accessible_topology: Some(csi::Topology { segments }),
        }))
    }
}
