//! A CSI driver's Controller service, as the controllers here call it.
//!
//! The trait is what they need and no more, so that a test can put something slow, failing or lying in
//! its place.

mod grpc;

use std::collections::BTreeMap;
use std::fmt;

use cluster_core::attacher::{PublishRequest, PublishedVolumes, RpcError, UnpublishRequest};
use cluster_core::{CsiAccessMode, VolumeHandle};

pub use self::grpc::CsiSocket;

/// A secret's content. Shown nowhere.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(pub BTreeMap<String, String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({} hidden)", self.0.len())
    }
}

/// What the driver's services can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverCapabilities {
    /// `PUBLISH_UNPUBLISH_VOLUME` and what belongs to it.
    pub attach: cluster_core::attacher::Capabilities,
    /// `LIST_VOLUMES` with `LIST_VOLUMES_PUBLISHED_NODES`.
    pub list_published: bool,
    /// `CREATE_DELETE_VOLUME`.
    pub create_delete: bool,
}

/// `CreateVolume`: the same name gives the same volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateRequest {
    pub name: String,
    pub bytes_required: i64,
    pub access_modes: Vec<CsiAccessMode>,
    /// None for raw block.
    pub fs_type: Option<String>,
    pub mount_flags: Vec<String>,
    pub parameters: BTreeMap<String, String>,
    pub source: Option<ContentSource>,
    /// The node that will use the volume first, as topology segments.
    pub preferred_topology: BTreeMap<String, String>,
    pub secrets: Secrets,
}

/// What a new volume starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentSource {
    Snapshot(String),
    Volume(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreatedVolume {
    pub handle: String,
    /// Zero when the driver does not say.
    pub bytes: i64,
    pub attributes: BTreeMap<String, String>,
    /// Where it can be used, as sets of topology segments; everywhere if there are none.
    pub accessible_from: Vec<BTreeMap<String, String>>,
}

/// A driver's Identity and Controller services. Every call is bounded in time by its caller.
pub trait CsiController: Send + Sync + 'static {
    /// `GetPluginInfo`: the driver's name.
    fn driver_name(&self) -> impl Future<Output = Result<String, RpcError>> + Send;

    fn capabilities(&self) -> impl Future<Output = Result<DriverCapabilities, RpcError>> + Send;

    /// The publish context.
    fn publish(
        &self,
        request: PublishRequest,
        secrets: Secrets,
    ) -> impl Future<Output = Result<BTreeMap<String, String>, RpcError>> + Send;

    fn unpublish(
        &self,
        request: UnpublishRequest,
        secrets: Secrets,
    ) -> impl Future<Output = Result<(), RpcError>> + Send;

    /// All volumes, with the nodes that have them.
    fn list(&self) -> impl Future<Output = Result<PublishedVolumes, RpcError>> + Send;

    fn create(
        &self,
        request: CreateRequest,
    ) -> impl Future<Output = Result<CreatedVolume, RpcError>> + Send;

    fn delete(
        &self,
        handle: VolumeHandle,
        secrets: Secrets,
    ) -> impl Future<Output = Result<(), RpcError>> + Send;
}

/// gRPC's `DEADLINE_EXCEEDED`: the call may still be at work.
pub const DEADLINE_EXCEEDED: i32 = 4;

/// Waits for an answer at most this long.
pub async fn within<T>(
    limit: std::time::Duration,
    method: &str,
    call: impl Future<Output = Result<T, RpcError>>,
) -> Result<T, RpcError> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer,
        Err(_) => Err(RpcError {
            code: DEADLINE_EXCEEDED,
            message: format!(
                "the driver did not answer {method} within {} s",
                limit.as_secs_f64()
            ),
        }),
    }
}
