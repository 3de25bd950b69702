//! The Node service over a real socket, with real loop devices, file systems and mounts. Needs root.

mod crashes;
mod file_systems;
mod kills;
mod making;
#[path = "../support/mod.rs"]
mod support;
mod test_node;

use std::fs;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, symlink};
use std::sync::Arc;

use csi_driver::csi::v1::volume_capability::access_mode::Mode;
use csi_driver::csi::v1::volume_capability::{AccessType, MountVolume};
use csi_driver::csi::v1::*;
use support::{MarksInMemory, block, capability, mounted};
use test_node::*;
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn a_node_introduces_itself() {
    let node = TestNode::start().await;
    let info = node
        .client
        .clone()
        .node_get_info(NodeGetInfoRequest {})
        .await;
    let info = info.expect("an answer").into_inner();
    assert_eq!(
        (info.node_id.as_str(), info.max_volumes_per_node),
        ("n1", 7)
    );
    let topology = info.accessible_topology.expect("a topology");
    assert_eq!(topology.segments["topology.lariat.io/node"], "n1");
    refused(
        node.stage("missing", mounted("")).await,
        Code::NotFound,
        "no device on node n1",
    );
    refused(
        node.stage("../dev", mounted("")).await,
        Code::InvalidArgument,
        "not the name",
    );
    refused(
        node.stage("", mounted("")).await,
        Code::InvalidArgument,
        "volume_id is missing",
    );
    refused(
        node.stage("v", mounted("ntfs")).await,
        Code::InvalidArgument,
        "\"ntfs\"",
    );
    refused(
        node.stats("v", "nowhere").await,
        Code::NotFound,
        "not mounted",
    );
    node.unpublish("v", "nowhere").await.expect("nothing to do");
    node.unstage("v").await.expect("nothing to do");
}

async fn lives_through_a_pods_life(file_system: &str) {
    let mut node = TestNode::start().await;
    let device = node.attach("v", 512 * MIB);
    for _ in 0..2 {
        node.stage("v", mounted(file_system)).await.expect("staged");
        node.publish("v", "a/mount", mounted(file_system), false)
            .await
            .expect("published");
        node.publish("v", "b/mount", mounted(file_system), true)
            .await
            .expect("published");
    }
    // Two pods and the staging: repeats have mounted nothing twice.
    assert_eq!(node.mounts().len(), 3);
    fs::write(node.path("pods/a/mount/file"), "kept").expect("writable");
    assert_eq!(
        fs::read_to_string(node.path("pods/b/mount/file")).expect("readable"),
        "kept"
    );
    let denied = fs::write(node.path("pods/b/mount/file"), "x").expect_err("read-only");
    assert_eq!(denied.kind(), std::io::ErrorKind::ReadOnlyFilesystem);

    let usage = node.stats("v", "a/mount").await.expect("an answer");
    assert_eq!(usage[0].unit(), volume_usage::Unit::Bytes);
    let whole = i64::try_from(512 * MIB).expect("small");
    assert!(
        usage[0].total > whole / 2 && usage[0].total <= whole,
        "{usage:?}"
    );
    assert!(usage[1].used > 0, "{usage:?}");
    assert!(node.health("v", "a/mount").await.is_empty());
    assert!(node.health("v", "b/mount").await.is_empty());

    // What is incompatible with what is there.
    let other = if file_system == "xfs" { "ext4" } else { "xfs" };
    refused(
        node.stage("v", mounted(other)).await,
        Code::AlreadyExists,
        "is staged with file system",
    );
    let again = node
        .publish("v", "b/mount", mounted(file_system), false)
        .await;
    refused(again, Code::AlreadyExists, "is published read-only");

    // It grows while it is used.
    let disk = fs::File::options()
        .write(true)
        .open(node.path("disks/v"))
        .expect("the file");
    disk.set_len(768 * MIB).expect("a size");
    let expand = |bytes: u64| NodeExpandVolumeRequest {
        volume_id: "v".to_owned(),
        volume_path: node.text("pods/a/mount"),
        capacity_range: Some(CapacityRange {
            required_bytes: i64::try_from(bytes).expect("small"),
            limit_bytes: 0,
        }),
        ..Default::default()
    };
    let early = node
        .client
        .clone()
        .node_expand_volume(expand(768 * MIB))
        .await;
    refused(early, Code::Unavailable, "not yet");
    run("losetup", &["--set-capacity", &device]);
    if file_system == "ext4" && !may_grow_mounted_ext4() {
        let grown = node
            .client
            .clone()
            .node_expand_volume(expand(768 * MIB))
            .await;
        refused(grown, Code::FailedPrecondition, "CAP_SYS_RESOURCE");
    } else {
        for _ in 0..2 {
            let grown = node
                .client
                .clone()
                .node_expand_volume(expand(768 * MIB))
                .await;
            let grown = u64::try_from(grown.expect("grown").into_inner().capacity_bytes);
            assert_eq!(grown, Ok(768 * MIB));
        }
        let larger = node.stats("v", "a/mount").await.expect("an answer");
        assert!(larger[0].total > usage[0].total + whole / 4, "{larger:?}");
    }

    for _ in 0..2 {
        node.unpublish("v", "a/mount").await.expect("unpublished");
        node.unpublish("v", "b/mount").await.expect("unpublished");
        assert!(!node.path("pods/a/mount").exists());
        node.unstage("v").await.expect("unstaged");
    }
    assert!(node.mounts().is_empty());
    assert!(is_empty(&node.path("v-staging")));

    // The data is there when the volume comes back, whatever file system the caller would like best.
    refused(
        node.stage("v", mounted(other)).await,
        Code::FailedPrecondition,
        "copy the data",
    );
    node.stage("v", mounted(""))
        .await
        .expect("staged with what is there");
    let kept = fs::read_to_string(node.path("v-staging/file")).expect("readable");
    assert_eq!(kept, "kept");
    node.publish("v", "c", mounted(""), false)
        .await
        .expect("published");
    let larger = node.stats("v", "c").await.expect("an answer");
    assert!(
        larger[0].total > usage[0].total + whole / 4,
        "it has grown by now: {larger:?}"
    );
    node.unpublish("v", "c").await.expect("unpublished");
    node.unstage("v").await.expect("unstaged");
}

#[tokio::test(flavor = "multi_thread")]
async fn ext4_lives_through_a_pods_life() {
    lives_through_a_pods_life("ext4").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn xfs_lives_through_a_pods_life() {
    lives_through_a_pods_life("xfs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_data_is_never_formatted() {
    let marks = Arc::new(MarksInMemory::default());
    let mut node = TestNode::start_with("n1", marks.clone()).await;
    node.attach("random", 64 * MIB);
    write(
        &node,
        "random",
        512 * 1024,
        b"a database without a file system",
    );
    refused(
        node.stage("random", mounted("")).await,
        Code::FailedPrecondition,
        "not formatted",
    );
    assert!(is_empty(&node.path("random-staging")));

    // What somebody signed is no half of ours, also where we began one.
    for volume in ["swap", "table"] {
        marks.put(volume);
    }
    let swap = node.attach("swap", 64 * MIB);
    run("mkswap", &[&swap]);
    refused(
        node.stage("swap", mounted("ext4")).await,
        Code::FailedPrecondition,
        "a signature of swap",
    );
    let table = node.attach("table", 64 * MIB);
    // A boot record with one Linux partition of 8 MiB that begins at 1 MiB.
    let mut record = [0_u8; 512];
    record[450] = 0x83;
    record[454..458].copy_from_slice(&2048_u32.to_le_bytes());
    record[458..462].copy_from_slice(&16384_u32.to_le_bytes());
    record[510..].copy_from_slice(&[0x55, 0xaa]);
    write(&node, "table", 0, &record);
    run("blockdev", &["--flushbufs", &table]);
    refused(
        node.stage("table", mounted("ext4")).await,
        Code::FailedPrecondition,
        "partition table (dos)",
    );
    assert!(node.mounts().is_empty());

    // For reading only, nothing is made.
    node.attach("blank", 64 * MIB);
    let reader = capability(
        AccessType::Mount(MountVolume::default()),
        Mode::SingleNodeReaderOnly,
    );
    refused(
        node.stage("blank", reader).await,
        Code::FailedPrecondition,
        "reading only",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_xfs_is_made_again() {
    let mut node = TestNode::start().await;
    let device = node.attach("v", 512 * MIB);
    run("mkfs.xfs", &["-q", "-K", &device]);
    // What mkfs.xfs leaves when it is killed: its superblock says that it is in progress.
    let disk = fs::File::options()
        .write(true)
        .open(&device)
        .expect("the device");
    disk.write_all_at(&[1], 126).expect("a write");
    disk.sync_all().expect("a sync");
    drop(disk);
    node.stage("v", mounted("xfs")).await.expect("made again");
    node.unstage("v").await.expect("unstaged");
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_devices_are_published_as_devices() {
    let mut node = TestNode::start().await;
    node.attach("v", 64 * MIB);
    let raw = block(Mode::SingleNodeWriter);
    for _ in 0..2 {
        node.stage("v", raw.clone()).await.expect("staged");
        node.publish("v", "a/device", raw.clone(), false)
            .await
            .expect("published");
    }
    let target = node.path("pods/a/device");
    assert!(
        fs::metadata(&target)
            .expect("a device")
            .file_type()
            .is_block_device()
    );
    let device = fs::File::options()
        .write(true)
        .open(&target)
        .expect("a device");
    device.write_all_at(b"raw", 4096).expect("a write");
    device.sync_all().expect("a sync");
    drop(device);
    let disk = fs::read(node.path("disks/v")).expect("the file");
    assert_eq!(&disk[4096..4099], b"raw");
    let usage = node.stats("v", "a/device").await.expect("an answer");
    assert_eq!(u64::try_from(usage[0].total), Ok(64 * MIB));
    assert!(node.health("v", "a/device").await.is_empty());
    refused(
        node.publish("v", "b/device", raw.clone(), true).await,
        Code::InvalidArgument,
        "read-only",
    );

    // Attached anew, under another number: the published node follows.
    node.attach_file("v");
    node.publish("v", "a/device", raw, false)
        .await
        .expect("published anew");
    assert_eq!(node.mounts().len(), 1);
    for _ in 0..2 {
        node.unpublish("v", "a/device").await.expect("unpublished");
        node.unstage("v").await.expect("unstaged");
    }
    assert!(!target.exists());
    assert!(node.mounts().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_busy_or_in_the_way_is_said() {
    let mut node = TestNode::start().await;
    node.attach("v", 64 * MIB);
    node.attach("w", 64 * MIB);
    refused(
        node.publish("v", "a", mounted(""), false).await,
        Code::FailedPrecondition,
        "not staged",
    );
    node.stage("v", mounted("")).await.expect("staged");
    node.stage("w", mounted("")).await.expect("staged");
    let open = fs::File::create(node.path("v-staging/open")).expect("a file");
    refused(
        node.unstage("v").await,
        Code::FailedPrecondition,
        "cannot unmount",
    );
    drop(open);
    node.publish("v", "a", mounted(""), false)
        .await
        .expect("published");
    refused(
        node.publish("w", "a", mounted(""), false).await,
        Code::AlreadyExists,
        "is not volume w",
    );
    // The folder of a pod that holds something of its own is left alone.
    node.unpublish("v", "a").await.expect("unpublished");
    fs::create_dir_all(node.path("pods/a")).expect("a folder");
    fs::write(node.path("pods/a/precious"), "x").expect("a file");
    refused(
        node.unpublish("v", "a").await,
        Code::Internal,
        "move it away",
    );
    assert!(node.path("pods/a/precious").exists());
    node.unstage("v").await.expect("unstaged");
    node.unstage("w").await.expect("unstaged");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_whose_device_died_is_cleared_away() {
    let mut node = TestNode::start().await;
    let device = node.attach("v", 64 * MIB);
    node.stage("v", mounted("ext4")).await.expect("staged");
    node.publish("v", "a", mounted("ext4"), false)
        .await
        .expect("published");
    let open = fs::File::create(node.path("pods/a/open")).expect("a file");
    // This file system alone: the machine's others are none of this test's business.
    run("sync", &["-f", &node.path("pods/a").to_string_lossy()]);
    // The device shrinks to nothing under the mount: from now on every read and write fails, as with a fenced engine.
    let disk = fs::File::options()
        .write(true)
        .open(node.path("disks/v"))
        .expect("the file");
    disk.set_len(0).expect("a size");
    run("losetup", &["--set-capacity", &device]);
    assert_eq!(node.health("v", "a").await, ["DeviceGone"]);
    // The volume comes back under another device while the pod's file is still open.
    disk.set_len(64 * MIB).expect("a size");
    fs::remove_file(node.path("dev/v")).expect("a link");
    let fresh = node.path("disks/fresh");
    fs::File::create(&fresh)
        .expect("a file")
        .set_len(64 * MIB)
        .expect("a size");
    let anew = run(
        "losetup",
        &["--find", "--show", fresh.to_str().expect("text")],
    );
    node.loops.push(anew.clone());
    symlink(&anew, node.path("dev/v")).expect("a link");
    node.unpublish("v", "a").await.expect("unpublished");
    node.stage("v", mounted("ext4")).await.expect("staged anew");
    node.publish("v", "a", mounted("ext4"), false)
        .await
        .expect("published anew");
    fs::write(node.path("pods/a/new"), "works").expect("writable");
    drop(open);
    node.unpublish("v", "a").await.expect("unpublished");
    node.unstage("v").await.expect("unstaged");
    assert!(node.mounts().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_for_one_pod_is_published_once() {
    let mut node = TestNode::start().await;
    node.attach("v", 64 * MIB);
    node.attach("w", 64 * MIB);
    let single = Mode::SingleNodeSingleWriter;
    let single_mount = capability(AccessType::Mount(MountVolume::default()), single);
    for (volume, wanted) in [("v", single_mount), ("w", block(single))] {
        node.stage(volume, wanted.clone()).await.expect("staged");
        let (first, second) = (format!("{volume}-a"), format!("{volume}-b"));
        for _ in 0..2 {
            node.publish(volume, &first, wanted.clone(), false)
                .await
                .expect("published");
        }
        let beside = node.publish(volume, &second, wanted.clone(), false).await;
        refused(beside, Code::FailedPrecondition, "for one pod only");
        node.unpublish(volume, &first).await.expect("unpublished");
        node.publish(volume, &second, wanted, false)
            .await
            .expect("published");
        node.unpublish(volume, &second).await.expect("unpublished");
        node.unstage(volume).await.expect("unstaged");
    }
}
