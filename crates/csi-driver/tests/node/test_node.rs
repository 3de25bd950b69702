//! A node with its service, on this machine's own kernel.

use std::fs;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use csi_driver::csi::v1::node_client::NodeClient;
use csi_driver::csi::v1::*;
use csi_driver::node::mount_table::MountTable;
use csi_driver::{CallTimes, NodeOptions, VolumeNotes, serve_node};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::support::{MarksInMemory, connect};

pub const MIB: u64 = 1 << 20;

pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .expect(program);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {complaint}"
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Serves a node whose devices are below a folder.
pub fn serve(
    name: &str,
    folder: &Path,
    marks: Arc<dyn VolumeNotes>,
    socket: &Path,
    shutdown: CancellationToken,
) -> impl Future<Output = ()> + Send + 'static {
    let mut options = NodeOptions::new(name, folder.join("dev"));
    options.max_volumes = 7;
    options.device_wait = Duration::from_millis(300);
    let socket = socket.to_owned();
    async move {
        serve_node(options, marks, &socket, &CallTimes::default(), shutdown)
            .await
            .expect("served");
    }
}

/// A node with its service, its devices and its pods' folders. Leaves nothing behind.
pub struct TestNode {
    pub client: NodeClient<Channel>,
    pub folder: tempfile::TempDir,
    pub loops: Vec<String>,
    shutdown: CancellationToken,
}

impl TestNode {
    pub async fn start() -> Self {
        Self::start_with("n1", Arc::new(MarksInMemory::default())).await
    }

    /// A node of this name, with its marks there.
    pub async fn start_with(name: &str, marks: Arc<dyn VolumeNotes>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["dev", "disks", "pods"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let (socket, shutdown) = (folder.path().join("csi.sock"), CancellationToken::new());
        let serving = serve(name, folder.path(), marks, &socket, shutdown.clone());
        tokio::spawn(serving);
        Self {
            client: NodeClient::new(connect(&socket).await),
            folder,
            loops: Vec::new(),
            shutdown,
        }
    }

    /// Another service on the same node, which knows nothing of the one before.
    pub async fn restart_with(&mut self, name: &str, marks: Arc<dyn VolumeNotes>) {
        self.shutdown.cancel();
        self.shutdown = CancellationToken::new();
        let socket = self.path("restarted.sock");
        let serving = serve(
            name,
            self.folder.path(),
            marks,
            &socket,
            self.shutdown.clone(),
        );
        tokio::spawn(serving);
        self.client = NodeClient::new(connect(&socket).await);
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("text").to_owned()
    }

    /// A blank device for a volume, as an engine would offer it.
    pub fn attach(&mut self, volume: &str, bytes: u64) -> String {
        let file = self.path(&format!("disks/{volume}"));
        let disk = fs::File::create(&file).expect("a file");
        disk.set_len(bytes).expect("a sparse file");
        self.attach_file(volume)
    }

    pub fn attach_file(&mut self, volume: &str) -> String {
        let file = self.text(&format!("disks/{volume}"));
        let device = run("losetup", &["--find", "--show", &file]);
        self.loops.push(device.clone());
        let link = self.path(&format!("dev/{volume}"));
        let _ = fs::remove_file(&link);
        symlink(&device, &link).expect("a link");
        device
    }

    pub async fn stage(&self, volume: &str, capability: VolumeCapability) -> Result<(), Status> {
        let request = NodeStageVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: self.text(&format!("{volume}-staging")),
            volume_capability: Some(capability),
            ..Default::default()
        };
        self.client
            .clone()
            .node_stage_volume(request)
            .await
            .map(drop)
    }

    pub async fn unstage(&self, volume: &str) -> Result<(), Status> {
        let request = NodeUnstageVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: self.text(&format!("{volume}-staging")),
        };
        self.client
            .clone()
            .node_unstage_volume(request)
            .await
            .map(drop)
    }

    pub async fn publish(
        &self,
        volume: &str,
        pod: &str,
        capability: VolumeCapability,
        readonly: bool,
    ) -> Result<(), Status> {
        let request = NodePublishVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: self.text(&format!("{volume}-staging")),
            target_path: self.text(&format!("pods/{pod}")),
            volume_capability: Some(capability),
            readonly,
            ..Default::default()
        };
        self.client
            .clone()
            .node_publish_volume(request)
            .await
            .map(drop)
    }

    pub async fn unpublish(&self, volume: &str, pod: &str) -> Result<(), Status> {
        let request = NodeUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            target_path: self.text(&format!("pods/{pod}")),
        };
        self.client
            .clone()
            .node_unpublish_volume(request)
            .await
            .map(drop)
    }

    pub async fn stats(&self, volume: &str, pod: &str) -> Result<Vec<VolumeUsage>, Status> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: volume.to_owned(),
            volume_path: self.text(&format!("pods/{pod}")),
            ..Default::default()
        };
        let answer = self.client.clone().node_get_volume_stats(request).await;
        answer.map(|answer| answer.into_inner().usage)
    }

    pub async fn health(&self, volume: &str, pod: &str) -> Vec<String> {
        let request = NodeGetVolumeHealthRequest {
            volume_id: volume.to_owned(),
            volume_publish_path: self.text(&format!("pods/{pod}")),
            ..Default::default()
        };
        let answer = self.client.clone().node_get_volume_health(request).await;
        let health = answer
            .expect("an answer")
            .into_inner()
            .volume_health
            .expect("health");
        health
            .health_statuses
            .into_iter()
            .map(|entry| entry.reason)
            .collect()
    }

    /// Mounts below this node's folder.
    pub fn mounts(&self) -> Vec<PathBuf> {
        let table = MountTable::read().expect("/proc");
        let own = table.mounts.into_iter().map(|mount| mount.target);
        own.filter(|target| target.starts_with(self.folder.path()))
            .collect()
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.shutdown.cancel();
        for mount in self.mounts().iter().rev() {
            let _ = Command::new("umount").arg("--lazy").arg(mount).output();
        }
        for device in &self.loops {
            let _ = Command::new("losetup").args(["--detach", device]).output();
        }
    }
}

#[track_caller]
pub fn refused<T: std::fmt::Debug>(result: Result<T, Status>, code: Code, part: &str) {
    let status = result.expect_err("it is refused");
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(part), "{status}");
}

/// Writes into a volume past its device, before anything of it is cached.
pub fn write(node: &TestNode, volume: &str, at: u64, bytes: &[u8]) {
    let disk = fs::File::options()
        .write(true)
        .open(node.path(&format!("disks/{volume}")));
    disk.expect("the file")
        .write_all_at(bytes, at)
        .expect("a write");
}

/// Whether this process may grow a mounted ext4; in many containers even root may not.
pub fn may_grow_mounted_ext4() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").expect("/proc");
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = u64::from_str_radix(effective.expect("a line").trim(), 16).expect("a number");
    effective >> CAP_SYS_RESOURCE & 1 == 1
}

pub fn is_empty(path: &Path) -> bool {
    fs::read_dir(path).expect("a folder").next().is_none()
}
