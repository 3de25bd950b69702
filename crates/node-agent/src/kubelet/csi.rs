//! The calls of a CSI node service that the volume manager makes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use futures::future::BoxFuture;
use thiserror::Error;

use super::resolve::Access;

/// One volume for one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountRequest {
    pub handle: String,
    pub staging: PathBuf,
    pub target: PathBuf,
    pub block: bool,
    pub fs_type: String,
    pub mount_flags: Vec<String>,
    pub access: Access,
    pub read_only: bool,
    /// What the attachment said (`VolumeAttachment.status.attachmentMetadata`).
    pub publish_context: BTreeMap<String, String>,
    pub volume_context: BTreeMap<String, String>,
}

/// A call that failed, in the service's words.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("rpc error: code = {code} desc = {message}")]
pub struct CsiFailure {
    pub code: String,
    pub message: String,
}

/// A CSI node service. Every call can be repeated.
pub trait NodeCsi: Send + Sync + 'static {
    /// How many volumes may be published on this node; None for no limit.
    fn volumes_max(&self) -> BoxFuture<'_, Result<Option<u32>, CsiFailure>>;

    fn stage<'a>(&'a self, request: &'a MountRequest) -> BoxFuture<'a, Result<(), CsiFailure>>;

    fn publish<'a>(&'a self, request: &'a MountRequest) -> BoxFuture<'a, Result<(), CsiFailure>>;

    fn unpublish<'a>(
        &'a self,
        handle: &'a str,
        target: &'a std::path::Path,
    ) -> BoxFuture<'a, Result<(), CsiFailure>>;

    fn unstage<'a>(
        &'a self,
        handle: &'a str,
        staging: &'a std::path::Path,
    ) -> BoxFuture<'a, Result<(), CsiFailure>>;
}
