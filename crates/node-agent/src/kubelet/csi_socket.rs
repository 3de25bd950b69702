//! The CSI node service on its unix socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_driver::csi::v1::node_client::NodeClient;
use csi_driver::csi::v1::volume_capability::{
    AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode,
};
use csi_driver::csi::v1::{
    NodeGetInfoRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability,
};
use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use super::csi::{CsiFailure, MountRequest, NodeCsi};
use super::resolve::Access;

/// Formatting and checking a file system can take this long; the kubelet waits two minutes, too.
const CALL_DEADLINE: Duration = Duration::from_secs(120);

/// A client of the service; it connects when it is first used, and again whenever that is needed.
#[derive(Clone)]
pub struct CsiSocket {
    channel: Channel,
}

impl CsiSocket {
    /// Must be called inside a runtime.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        let connector = tower::service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The address is not used: the connector knows where to go.
        let channel =
            Endpoint::from_static("http://csi.sock").connect_with_connector_lazy(connector);
        Self { channel }
    }

    fn client(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }
}

fn call<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(CALL_DEADLINE);
    request
}

fn failure(status: &Status) -> CsiFailure {
    CsiFailure {
        code: format!("{:?}", status.code()),
        message: status.message().to_owned(),
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn mode(access: Access) -> Mode {
    match access {
        // Only by this does the service know that a second pod is one too many. It is our own, which has this mode: nobody asks.
        Access::OnePod => Mode::SingleNodeSingleWriter,
        // A kubelet says SINGLE_NODE_MULTI_WRITER to a service that has it. To ours both mean the same.
        Access::OneNode => Mode::SingleNodeWriter,
        Access::ManyNodes => Mode::MultiNodeMultiWriter,
        Access::ManyNodesReadOnly => Mode::MultiNodeReaderOnly,
    }
}

fn capability(request: &MountRequest) -> VolumeCapability {
    let access_type = if request.block {
        AccessType::Block(BlockVolume {})
    } else {
        AccessType::Mount(MountVolume {
            fs_type: request.fs_type.clone(),
            mount_flags: request.mount_flags.clone(),
            volume_mount_group: String::new(),
        })
    };
    VolumeCapability {
        access_mode: Some(AccessMode {
            mode: mode(request.access).into(),
        }),
        access_type: Some(access_type),
    }
}

impl NodeCsi for CsiSocket {
    fn volumes_max(&self) -> BoxFuture<'_, Result<Option<u32>, CsiFailure>> {
        Box::pin(async move {
            let asked = call(NodeGetInfoRequest {});
            let answer = self.client().node_get_info(asked).await;
            let info = answer.map_err(|status| failure(&status))?;
            let count = info.into_inner().max_volumes_per_node;
            // Zero is no limit, and so is what no node can reach.
            Ok(u32::try_from(count).ok().filter(|count| *count > 0))
        })
    }

    fn stage<'a>(&'a self, request: &'a MountRequest) -> BoxFuture<'a, Result<(), CsiFailure>> {
        let message = NodeStageVolumeRequest {
            volume_id: request.handle.clone(),
            publish_context: request.publish_context.clone().into_iter().collect(),
            staging_target_path: text(&request.staging),
            volume_capability: Some(capability(request)),
            volume_context: request.volume_context.clone().into_iter().collect(),
            ..NodeStageVolumeRequest::default()
        };
        Box::pin(async move {
            let answer = self.client().node_stage_volume(call(message)).await;
            answer.map(drop).map_err(|status| failure(&status))
        })
    }

    fn publish<'a>(&'a self, request: &'a MountRequest) -> BoxFuture<'a, Result<(), CsiFailure>> {
        let message = NodePublishVolumeRequest {
            volume_id: request.handle.clone(),
            publish_context: request.publish_context.clone().into_iter().collect(),
            staging_target_path: text(&request.staging),
            target_path: text(&request.target),
            volume_capability: Some(capability(request)),
            readonly: request.read_only,
            volume_context: request.volume_context.clone().into_iter().collect(),
            ..NodePublishVolumeRequest::default()
        };
        Box::pin(async move {
            let answer = self.client().node_publish_volume(call(message)).await;
            answer.map(drop).map_err(|status| failure(&status))
        })
    }

    fn unpublish<'a>(
        &'a self,
        handle: &'a str,
        target: &'a Path,
    ) -> BoxFuture<'a, Result<(), CsiFailure>> {
        let message = NodeUnpublishVolumeRequest {
            volume_id: handle.to_owned(),
            target_path: text(target),
        };
        Box::pin(async move {
            let answer = self.client().node_unpublish_volume(call(message)).await;
            answer.map(drop).map_err(|status| failure(&status))
        })
    }

    fn unstage<'a>(
        &'a self,
        handle: &'a str,
        staging: &'a Path,
    ) -> BoxFuture<'a, Result<(), CsiFailure>> {
        let message = NodeUnstageVolumeRequest {
            volume_id: handle.to_owned(),
            staging_target_path: text(staging),
        };
        Box::pin(async move {
            let answer = self.client().node_unstage_volume(call(message)).await;
            answer.map(drop).map_err(|status| failure(&status))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use csi_driver::capability::{Access as Admitted, Capability};

    use super::*;

    #[test]
    fn our_service_learns_who_may_use_the_volume() {
        for (access, expected) in [
            (Access::OnePod, Some(Admitted::SinglePod)),
            (Access::OneNode, Some(Admitted::SingleNode)),
            (Access::ManyNodes, Some(Admitted::ManyNodes)),
            (Access::ManyNodesReadOnly, None),
        ] {
            let request = MountRequest {
                handle: "v".to_owned(),
                staging: PathBuf::new(),
                target: PathBuf::new(),
                block: true,
                fs_type: String::new(),
                mount_flags: Vec::new(),
                access,
                read_only: false,
                publish_context: BTreeMap::new(),
                volume_context: BTreeMap::new(),
            };
            let understood = Capability::parse(&capability(&request));
            let admitted = understood.ok().map(|understood| understood.access);
            assert_eq!(admitted, expected, "{access:?}");
        }
    }
}
