//! File systems that were left dirty or damaged, and the options that they are mounted with.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;

use csi_driver::csi::v1::VolumeCapability;
use csi_driver::csi::v1::volume_capability::access_mode::Mode;
use csi_driver::csi::v1::volume_capability::{AccessType, MountVolume};
use csi_driver::node::mount_table::{Mount, MountTable};
use rustix::fs::OFlags;
use tonic::Code;

use crate::support::{MarksInMemory, capability, mounted};
use crate::test_node::*;

/// What the superblock says of itself: `clean`, `not clean with errors`.
fn state(device: &str) -> String {
    let header = run("dumpe2fs", &["-h", device]);
    let line = header
        .lines()
        .find_map(|line| line.strip_prefix("Filesystem state:"));
    line.expect("a state").trim().to_owned()
}

/// Changes a file system that is not mounted, past the kernel.
fn damage(device: &str, command: &str) {
    run("debugfs", &["-w", "-R", command, device]);
    run("blockdev", &["--flushbufs", device]);
}

/// An ext4 with one file, unstaged again.
async fn with_a_file(node: &mut TestNode, volume: &str) -> String {
    let device = node.attach(volume, 64 * MIB);
    node.stage(volume, mounted("ext4")).await.expect("staged");
    let file = node.path(&format!("{volume}-staging/file"));
    fs::write(file, "kept").expect("writable");
    node.unstage(volume).await.expect("unstaged");
    assert_eq!(state(&device), "clean");
    device
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ext4_is_checked_before_it_is_mounted() {
    let mut node = TestNode::start().await;
    let device = with_a_file(&mut node, "v").await;
    // As a kernel marks it that met an error: mounting alone would leave that mark.
    damage(&device, "set_super_value state 2");
    assert_eq!(state(&device), "not clean with errors");
    // A count that is wrong, as after a crash without a journal: what e2fsck corrects by itself.
    damage(&device, "set_inode_field /file links_count 7");
    node.stage("v", mounted("ext4")).await.expect("repaired");
    let kept = fs::read_to_string(node.path("v-staging/file")).expect("readable");
    assert_eq!(kept, "kept");
    node.unstage("v").await.expect("unstaged");
    assert_eq!(state(&device), "clean");
    run("e2fsck", &["-fn", &device]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_person_must_decide_about_is_neither_mounted_nor_formatted() {
    let notes = Arc::new(MarksInMemory::default());
    let mut node = TestNode::start_with("n1", notes.clone()).await;
    let device = with_a_file(&mut node, "v").await;
    damage(&device, "clri <2>");
    damage(&device, "set_super_value state 2");
    for _ in 0..2 {
        refused(
            node.stage("v", mounted("ext4")).await,
            Code::FailedPrecondition,
            "errors that a person must decide about",
        );
        let told = notes.told();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("a person must decide"), "{told:?}");
    }
    assert!(node.mounts().is_empty());
    // With the answer of a person the data is there.
    let answered = std::process::Command::new("e2fsck")
        .args(["-fy", &device])
        .output();
    let code = answered.expect("e2fsck").status.code();
    assert_eq!(code, Some(1), "errors were found and corrected");
    node.stage("v", mounted("ext4")).await.expect("staged");
    node.unstage("v").await.expect("unstaged");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_somebody_has_to_change_is_told_of_the_volume() {
    let notes = Arc::new(MarksInMemory::default());
    let mut node = TestNode::start_with("n1", notes.clone()).await;
    let device = with_a_file(&mut node, "v").await;
    let wanted = node.stage("v", with_flags(&["nonsense"])).await;
    refused(wanted, Code::Internal, "options \"nonsense\"");
    let told = notes.told();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("v: cannot mount "), "{told:?}");

    // Nothing can be made of this one, not even by a check that answers yes to everything.
    let broken = with_a_file(&mut node, "w").await;
    damage(&broken, "set_super_value rev_level 9");
    let unreadable = node.stage("w", mounted("ext4")).await;
    refused(unreadable, Code::FailedPrecondition, "ended with 8");
    let told = notes.told();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("a person must decide"), "{told:?}");

    // Somebody on the node has the device for himself, which passes.
    let exclusively = i32::try_from(OFlags::EXCL.bits()).expect("a flag");
    let claim = File::options()
        .read(true)
        .custom_flags(exclusively)
        .open(&device);
    let claim = claim.expect("a claim");
    let busy = node.stage("v", mounted("ext4")).await;
    refused(busy, Code::Unavailable, "could not be checked");
    assert_eq!(notes.told(), [""; 0]);
    drop(claim);
    node.stage("v", mounted("ext4")).await.expect("staged");
    node.unstage("v").await.expect("unstaged");
    assert_eq!(notes.told(), [""; 0]);
}

fn with_flags(flags: &[&str]) -> VolumeCapability {
    let mount = MountVolume {
        fs_type: "ext4".to_owned(),
        mount_flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        ..MountVolume::default()
    };
    capability(AccessType::Mount(mount), Mode::SingleNodeWriter)
}

#[tokio::test(flavor = "multi_thread")]
async fn mount_options_reach_the_kernel_and_the_pod() {
    let mut node = TestNode::start().await;
    node.attach("v", 64 * MIB);
    let wanted = with_flags(&["noatime", "nodev", "data=ordered"]);
    node.stage("v", wanted.clone()).await.expect("staged");
    node.publish("v", "a", wanted.clone(), false)
        .await
        .expect("published");
    node.publish("v", "b", wanted, true)
        .await
        .expect("published");
    let table = MountTable::read().expect("the mounts");
    let at = |place: &str| -> &Mount { table.at(&node.path(place)).expect("a mount") };
    for (place, read_only) in [("v-staging", false), ("pods/a", false), ("pods/b", true)] {
        let mount = at(place);
        for option in ["noatime", "nodev"] {
            let has = mount.options.iter().any(|found| found == option);
            assert!(has, "{place}: {option} is not in {:?}", mount.options);
        }
        assert_eq!(mount.is_read_only(), read_only, "{place}");
        let whole = &mount.super_options;
        assert!(whole.contains(&"data=ordered".to_owned()), "{whole:?}");
    }
    // Read-only is what one pod has; the other one writes the same file system.
    fs::write(node.path("pods/a/file"), "data").expect("writable");
    let denied = fs::write(node.path("pods/b/file"), "x").expect_err("read-only");
    assert_eq!(denied.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    // Something the kernel does not know is said, and leaves nothing.
    node.attach("w", 64 * MIB);
    let odd = with_flags(&["no-such-option"]);
    refused(node.stage("w", odd).await, Code::Internal, "no-such-option");
    for place in ["a", "b"] {
        node.unpublish("v", place).await.expect("unpublished");
    }
    node.unstage("v").await.expect("unstaged");
    assert!(node.mounts().is_empty());
}
