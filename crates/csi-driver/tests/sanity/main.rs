//! Kubernetes' own conformance suite for CSI drivers, `csi-sanity`, against all services. Needs root, and the suite's binary as
//! `CSI_SANITY` or in the path; without it, the test says that it was skipped. Build it from github.com/kubernetes-csi/csi-test.

#[path = "../support/mod.rs"]
mod support;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use csi_driver::node::mount_table::MountTable;
use csi_driver::{CallTimes, ControllerOptions, NodeOptions, serve_controller, serve_node};
use futures::StreamExt as _;
use kube::ResourceExt as _;
use kube::runtime::watcher::{self, Event};
use support::{Cluster, MarksInMemory, connect};
use tokio_util::sync::CancellationToken;

/// As large as xfs and ext4 both like, and sparse.
const DEVICE_BYTES: u64 = 512 << 20;

/// Plays the engines: every volume has a device, as long as it exists.
fn play_engines(cluster: &Cluster, folder: &Path) -> tokio::task::JoinHandle<()> {
    let (api, folder) = (cluster.volumes(), folder.to_owned());
    tokio::spawn(async move {
        let events = watcher::watcher(api, watcher::Config::default());
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            let (Ok(Event::Apply(object)) | Ok(Event::InitApply(object))) = event else {
                continue;
            };
            let (name, disk) = (
                object.name_any(),
                folder.join("disks").join(object.name_any()),
            );
            if disk.exists() {
                continue;
            }
            let made = std::fs::File::create(&disk).and_then(|file| file.set_len(DEVICE_BYTES));
            made.expect("a sparse file");
            let device = Command::new("losetup")
                .args(["--find", "--show"])
                .arg(&disk)
                .output();
            let device = String::from_utf8(device.expect("losetup").stdout).expect("text");
            symlink(device.trim(), folder.join("dev").join(name)).expect("a link");
        }
    })
}

/// Takes every mount and loop device under a folder away again.
struct Devices(std::path::PathBuf);

impl Drop for Devices {
    fn drop(&mut self) {
        let table = MountTable::read().expect("/proc");
        let own = table
            .mounts
            .iter()
            .rev()
            .filter(|mount| mount.target.starts_with(&self.0));
        for mount in own {
            let _ = Command::new("umount")
                .arg("--lazy")
                .arg(&mount.target)
                .output();
        }
        let links = std::fs::read_dir(self.0.join("dev"))
            .into_iter()
            .flatten()
            .flatten();
        for device in links.filter_map(|link| std::fs::read_link(link.path()).ok()) {
            let _ = Command::new("losetup").arg("--detach").arg(device).output();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_conformance_suite_passes() {
    let program = std::env::var("CSI_SANITY").unwrap_or_else(|_| "csi-sanity".to_owned());
    if Command::new(&program).arg("--version").output().is_err() {
        eprintln!("SKIPPED: {program} is not installed");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_owned();
    for name in ["dev", "disks"] {
        std::fs::create_dir(path.join(name)).expect("a folder");
    }
    let _devices = Devices(path.clone());
    let cluster = Cluster::start().await;
    let shutdown = CancellationToken::new();
    let players = [
        cluster.play_attachment_controller(),
        cluster.play_volume_remover(),
        play_engines(&cluster, &path),
    ];
    let (controller, node) = (path.join("controller.sock"), path.join("node.sock"));
    let (client, socket, token) = (cluster.client.clone(), controller.clone(), shutdown.clone());
    tokio::spawn(async move {
        let options = ControllerOptions { expansion: true };
        serve_controller(client, &socket, options, &CallTimes::default(), token)
            .await
            .expect("served");
    });
    let options = NodeOptions::new("n1", path.join("dev"));
    // Nobody here attaches volumes, and the marks of an API are for those who have one attached.
    let marks = Arc::new(MarksInMemory::default());
    let (socket, token) = (node.clone(), shutdown.clone());
    tokio::spawn(async move {
        serve_node(options, marks, &socket, &CallTimes::default(), token)
            .await
            .expect("served");
    });
    connect(&controller).await;
    connect(&node).await;
    let output = tokio::process::Command::new(&program)
        .arg(format!("--csi.endpoint={}", node.display()))
        .arg(format!("--csi.controllerendpoint={}", controller.display()))
        .arg(format!("--csi.mountdir={}", path.join("mount").display()))
        .arg(format!(
            "--csi.stagingdir={}",
            path.join("staging").display()
        ))
        // Sizes of real volumes do not matter here: devices are as large as the player makes them.
        .args([
            "--csi.testvolumesize=268435456",
            "--csi.testvolumeexpandsize=402653184",
        ])
        .arg("--ginkgo.no-color")
        .output()
        .await
        .expect("the suite runs");
    shutdown.cancel();
    for player in players {
        player.abort();
    }
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{said}");
}
