//! The Controller service on a socket, over an API of its own.

use std::sync::Arc;
use std::time::Duration;

use api_types::names;
use cluster_core::names::attachment_name;
use csi_driver::csi::v1::controller_client::ControllerClient;
use csi_driver::csi::v1::*;
use csi_driver::{CallTimes, ControllerOptions, serve_controller};
use kube::Client;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::support::*;

/// The service, served until it is dropped.
pub struct Driver {
    pub cluster: Arc<Cluster>,
    pub client: ControllerClient<Channel>,
    pub channel: Channel,
    pub socket: std::path::PathBuf,
    shutdown: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Driver {
    pub async fn start() -> Self {
        let cluster = Arc::new(Cluster::start().await);
        let api = cluster.client.clone();
        Self::start_with(cluster, api).await
    }

    /// A driver that reaches the cluster's API in this way.
    pub async fn start_with(cluster: Arc<Cluster>, api: Client) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("csi.sock");
        let shutdown = CancellationToken::new();
        let (path, token) = (socket.clone(), shutdown.clone());
        let options = ControllerOptions { expansion: true };
        tokio::spawn(async move {
            let calls = CallTimes::default();
            let served = serve_controller(api, &path, options, &calls, token).await;
            served.expect("served to the end");
        });
        let channel = connect(&socket).await;
        Self {
            client: ControllerClient::new(channel.clone()),
            cluster,
            channel,
            socket,
            shutdown,
            _folder: folder,
        }
    }

    pub async fn create(&self, name: &str) -> Volume {
        let created = self
            .client
            .clone()
            .create_volume(create_request(name))
            .await;
        created
            .expect("a volume")
            .into_inner()
            .volume
            .expect("in the answer")
    }

    pub async fn publish(&self, volume: &str, node: &str) -> Result<(), Status> {
        let request = publish_request(volume, node);
        self.client
            .clone()
            .controller_publish_volume(request)
            .await
            .map(drop)
    }

    pub async fn unpublish(&self, volume: &str, node: &str) -> Result<(), Status> {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: node.to_owned(),
            ..Default::default()
        };
        self.client
            .clone()
            .controller_unpublish_volume(request)
            .await
            .map(drop)
    }

    pub async fn delete(&self, volume: &str) -> Result<(), Status> {
        let request = DeleteVolumeRequest {
            volume_id: volume.to_owned(),
            ..Default::default()
        };
        self.client.clone().delete_volume(request).await.map(drop)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

pub fn ticket_id(volume: &str, node: &str) -> String {
    let name = attachment_name(&volume.into(), &names::DRIVER.into(), &node.into());
    name.as_str().to_owned()
}

#[track_caller]
pub fn refused<T: std::fmt::Debug>(result: Result<T, Status>, code: Code, part: &str) {
    let status = result.expect_err("it is refused");
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(part), "{status}");
}

pub fn with_timeout<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}
