//! The service dies between two steps of a call, and another one, which knows nothing of it, is asked for the same.

use std::fs;
use std::sync::Arc;

use csi_driver::NotesOnVolumes;
use csi_driver::csi::v1::VolumeCapability;
use csi_driver::csi::v1::volume_capability::access_mode::Mode;
use csi_driver::node::mount_table::MountTable;

use crate::making::uuid;
use crate::support::cut::{Cut, Fate};
use crate::support::{Cluster, block, mounted};
use crate::test_node::*;

/// What is mounted below a node's folder, and how, and what its pods' folders hold.
pub fn seen(node: &TestNode) -> Vec<String> {
    let root = node.folder.path();
    let mut seen = Vec::new();
    for mount in MountTable::read().expect("/proc").mounts {
        if let Ok(place) = mount.target.strip_prefix(root) {
            let (kind, options) = (&mount.file_system, &mount.options);
            seen.push(format!("{} {kind} {options:?}", place.display()));
        }
    }
    let mut folders = vec![node.path("pods")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let place = path.strip_prefix(root).expect("below it");
            seen.push(format!("{}", place.display()));
            if path.is_dir() && !path.ends_with("lost+found") {
                folders.push(path);
            }
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_survives_a_crash_at_each_of_its_writes_to_the_api() {
    let (cluster, mut node) = (Cluster::start().await, TestNode::start().await);
    cluster.create_volume("v", "n1").await;
    let marks = || Arc::new(NotesOnVolumes::new(cluster.client.clone(), "n1"));
    node.restart_with("n1", marks()).await;
    node.attach("v", 64 * MIB);
    node.stage("v", mounted("ext4")).await.expect("staged");
    let (undisturbed, objects) = (seen(&node), cluster.objects().await);
    assert_eq!(undisturbed.len(), 1, "{undisturbed:?}");

    for fate in Fate::ALL {
        let mut crashes = 0;
        loop {
            let cluster = Cluster::start().await;
            cluster.create_volume("v", "n1").await;
            let cut = Cut::new(crashes + 1, fate);
            let dying = NotesOnVolumes::new(cut.client(&cluster.client), "n1");
            let mut node = TestNode::start_with("n1", Arc::new(dying)).await;
            let device = node.attach("v", 64 * MIB);
            let staged = node.stage("v", mounted("ext4")).await;
            if !cut.has_happened() {
                staged.expect("staged");
                break;
            }
            crashes += 1;
            let place = format!("write {crashes}, {fate:?}");
            assert!(staged.is_err(), "{place}");
            assert!(node.mounts().is_empty(), "{place}");
            // The first write is before mkfs, the second one after it.
            let made = (crashes == 2).then(|| uuid(&device));
            let marks = Arc::new(NotesOnVolumes::new(cluster.client.clone(), "n1"));
            node.restart_with("n1", marks).await;
            let again = node.stage("v", mounted("ext4")).await;
            again.unwrap_or_else(|status| panic!("{place}: {status}"));
            if let Some(made) = made {
                assert_eq!(uuid(&device), made, "{place}: what was made is kept");
            }
            // A mark that comes now would let a later call format what is in use.
            cut.deliver_what_is_late(&cluster.client).await;
            assert_eq!(cluster.objects().await, objects, "{place}");
            assert_eq!(seen(&node), undisturbed, "{place}");
        }
        assert!(crashes >= 2, "{fate:?}: {crashes} writes were cut");
    }
}

/// Makes a volume's pod folder, or what stands for it, up to a step; the rest is for the call.
type Step = fn(&TestNode);

async fn survives_a_crash_between_steps(
    wanted: VolumeCapability,
    read_only: bool,
    steps: &[Step],
    finished: &str,
) {
    let mut undisturbed = None;
    for done in 0..=steps.len() {
        let mut node = TestNode::start().await;
        node.attach("v", 64 * MIB);
        node.stage("v", wanted.clone()).await.expect("staged");
        for step in &steps[..done] {
            step(&node);
        }
        let published = node.publish("v", "a/b", wanted.clone(), read_only).await;
        published.unwrap_or_else(|status| panic!("after {done} steps: {status}"));
        let seen = seen(&node);
        assert!(seen.iter().any(|line| line.contains(finished)), "{seen:?}");
        assert_eq!(undisturbed.get_or_insert(seen.clone()), &seen, "{done}");
        node.unpublish("v", "a/b").await.expect("unpublished");
        node.unstage("v").await.expect("unstaged");
        assert!(node.mounts().is_empty());
    }
}

/// A publish runs no tool that could be caught in the act, so that its steps are made by hand.
#[tokio::test(flavor = "multi_thread")]
async fn a_publish_survives_a_crash_between_its_steps() {
    let folder: Step = |node| fs::create_dir_all(node.path("pods/a/b")).expect("a folder");
    let bind: Step = |node| {
        let (staging, target) = (node.text("v-staging"), node.text("pods/a/b"));
        run("mount", &["--bind", &staging, &target]);
    };
    let parent: Step = |node| fs::create_dir_all(node.path("pods/a")).expect("a folder");
    let steps = [parent, folder, bind];
    survives_a_crash_between_steps(mounted("ext4"), true, &steps, "pods/a/b ext4 [\"ro\"").await;
    survives_a_crash_between_steps(mounted("ext4"), false, &steps, "pods/a/b ext4 [\"rw\"").await;

    let file: Step = |node| drop(fs::File::create(node.path("pods/a/b")).expect("a file"));
    let bind: Step = |node| {
        let device = fs::read_link(node.path("dev/v")).expect("a link");
        let device = device.to_str().expect("text");
        run("mount", &["--bind", device, &node.text("pods/a/b")]);
    };
    let raw = block(Mode::SingleNodeWriter);
    survives_a_crash_between_steps(raw, false, &[parent, file, bind], "pods/a/b devtmpfs").await;
}
