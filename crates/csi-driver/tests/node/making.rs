//! File systems whose making is cut off: who may make them again, and who may not.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::Arc;
use std::time::Duration;

use api_types::names::{self, annotation::MAKING_FILE_SYSTEM};
use csi_driver::csi::v1::volume_capability::access_mode::Mode;
use csi_driver::{NotesOnVolumes, VolumeNotes as _};
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tonic::Code;

use crate::support::{Cluster, MarksInMemory, block, mounted};
use crate::test_node::*;

/// What a node leaves that dies while it makes a file system, or what somebody writes who wants none: bytes without a signature.
fn write_half(node: &TestNode, volume: &str) {
    write(node, volume, 512 * 1024, b"half of a file system");
}

/// Whether nothing was ever written to a volume.
fn is_untouched(node: &TestNode, volume: &str) -> bool {
    let disk = fs::metadata(node.path(&format!("disks/{volume}")));
    disk.expect("the file").blocks() == 0
}

/// The event about a volume that somebody should look into, once it is written.
async fn warning_of(cluster: &Cluster, volume: &str) -> Event {
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), names::NAMESPACE);
    let about = format!("type=Warning,involvedObject.kind=Volume,involvedObject.name={volume}");
    let about = ListParams::default().fields(&about);
    for _ in 0..500 {
        let found = events.list(&about).await.expect("events");
        if let Some(event) = found.items.into_iter().next() {
            return event;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no event about volume {volume}");
}

pub fn uuid(device: &str) -> String {
    run("blkid", &["-p", "-o", "value", "-s", "UUID", device])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mark_is_there_before_it_is_made_and_gone_before_it_is_mounted() {
    let marks = Arc::new(MarksInMemory::default());
    let mut node = TestNode::start_with("n1", marks.clone()).await;
    let device = node.attach("v", 64 * MIB);
    marks.refuse(Some("begin"));
    let unmarked = node.stage("v", mounted("ext4")).await;
    refused(unmarked, Code::Unavailable, "no API");
    // That passes, and is nothing that the volume's owner should look into.
    assert_eq!(marks.told(), [""; 0]);
    assert!(is_untouched(&node, "v"));

    // It is made, and its maker dies before he can say so.
    marks.refuse(Some("end"));
    let first = node.stage("v", mounted("ext4")).await;
    refused(first, Code::Unavailable, "no API");
    assert!(marks.has("v"));
    let made = uuid(&device);
    assert_ne!(made, "");
    let second = node.stage("v", mounted("ext4")).await;
    refused(second, Code::Unavailable, "no API");
    assert!(node.mounts().is_empty(), "a marked one is never mounted");

    // It is not made again.
    marks.refuse(None);
    marks.asked();
    node.stage("v", mounted("ext4")).await.expect("staged");
    assert_eq!(uuid(&device), made);
    assert!(!marks.has("v"));
    assert_eq!(marks.asked(), ["end v"]);
    // What is mounted needs nobody's answer.
    node.stage("v", mounted("ext4")).await.expect("staged");
    assert_eq!(marks.asked(), [""; 0]);
    node.unstage("v").await.expect("unstaged");

    node.attach("w", 64 * MIB);
    node.stage("w", mounted("ext4")).await.expect("staged");
    assert_eq!(marks.asked(), ["begin w", "end w"]);
    node.unstage("w").await.expect("unstaged");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_begun_is_made_again_and_nothing_else() {
    let marks = Arc::new(MarksInMemory::default());
    let mut node = TestNode::start_with("n1", marks.clone()).await;
    for volume in ["begun", "foreign"] {
        node.attach(volume, 64 * MIB);
        write_half(&node, volume);
    }
    marks.put("begun");
    for file_system in ["ext4", ""] {
        let other = node.stage("foreign", mounted(file_system)).await;
        refused(other, Code::FailedPrecondition, "not formatted");
        let told = marks.told();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("foreign: volume foreign: "), "{told:?}");
    }
    node.stage("begun", mounted("ext4"))
        .await
        .expect("made again");
    assert!(node.path("begun-staging/lost+found").exists());
    node.unstage("begun").await.expect("unstaged");
    assert!(is_empty(&node.path("begun-staging")));
    assert!(!marks.has("begun"));
    assert_eq!(marks.told(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_to_a_raw_device_is_never_a_half_made_file_system() {
    let marks = Arc::new(MarksInMemory::default());
    let mut node = TestNode::start_with("n1", marks.clone()).await;
    let device = node.attach("v", 64 * MIB);
    marks.put("v");
    let raw = block(Mode::SingleNodeWriter);
    marks.refuse(Some("end"));
    let marked = node.stage("v", raw.clone()).await;
    refused(marked, Code::Unavailable, "no API");
    marks.refuse(None);
    node.stage("v", raw).await.expect("staged");
    assert!(!marks.has("v"));
    let file = fs::File::options().write(true).open(&device);
    let file = file.expect("the device");
    file.write_all_at(b"a database without a file system", 512 * 1024)
        .expect("a write");
    file.sync_all().expect("a sync");
    drop(file);
    node.unstage("v").await.expect("unstaged");
    let formatted = node.stage("v", mounted("")).await;
    refused(formatted, Code::FailedPrecondition, "not formatted");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mark_of_a_dead_node_is_found_by_the_one_that_gets_the_volume() {
    let cluster = Cluster::start().await;
    cluster.create_volume("v", "n1").await;
    let one = NotesOnVolumes::new(cluster.client.clone(), "n1");
    let two = NotesOnVolumes::new(cluster.client.clone(), "n2");
    let mark = || async {
        let volume = cluster.volumes().get("v").await.expect("a volume");
        volume.annotations().get(MAKING_FILE_SYSTEM).cloned()
    };
    one.begin("v").await.expect("a mark");
    one.begin("v").await.expect("it is there");
    assert_eq!(mark().await.as_deref(), Some("n1"));

    let mut node = TestNode::start_with("n2", Arc::new(two)).await;
    node.attach("v", 64 * MIB);
    write_half(&node, "v");
    let early = node.stage("v", mounted("ext4")).await;
    refused(early, Code::FailedPrecondition, "attached to node \"n1\"");
    cluster
        .patch_volume("v", json!({"spec": {"nodeID": "n2"}}))
        .await;
    node.stage("v", mounted("ext4")).await.expect("made again");
    assert_eq!(mark().await, None);
    // What the other one still had to say comes too late.
    let late = one.begin("v").await;
    refused(late, Code::FailedPrecondition, "attached to node \"n2\"");
    one.end("v").await.expect("there is none");
    assert_eq!(mark().await, None);
    node.unstage("v").await.expect("unstaged");

    // The same bytes, and nobody who says that they are ours.
    cluster.create_volume("w", "n2").await;
    node.attach("w", 64 * MIB);
    write_half(&node, "w");
    let foreign = node.stage("w", mounted("ext4")).await;
    refused(foreign, Code::FailedPrecondition, "not formatted");
    let told = warning_of(&cluster, "w").await;
    assert_eq!(told.reason.as_deref(), Some("FailedMount"));
    let source = told.source.unwrap_or_default();
    assert_eq!(source.host.as_deref(), Some("n2"));
    let message = told.message.unwrap_or_default();
    assert!(message.contains("not formatted"), "{message}");

    node.attach("unknown", 64 * MIB);
    let unknown = node.stage("unknown", mounted("ext4")).await;
    refused(unknown, Code::NotFound, "does not exist");
    assert!(is_untouched(&node, "unknown"));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_api_nothing_is_formatted() {
    let cut = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        let error = std::io::Error::other("the way is cut");
        Err::<http::Response<kube::client::Body>, _>(error)
    });
    let marks = NotesOnVolumes::new(Client::new(cut, "default"), "n1");
    let mut node = TestNode::start_with("n1", Arc::new(marks)).await;
    node.attach("blank", 64 * MIB);
    node.attach("half", 64 * MIB);
    write_half(&node, "half");
    for volume in ["blank", "half"] {
        let staged = node.stage(volume, mounted("ext4")).await;
        refused(staged, Code::Unavailable, "cannot be asked");
    }
    assert!(is_untouched(&node, "blank"));
    let raw = node.stage("half", block(Mode::SingleNodeWriter)).await;
    refused(raw, Code::Unavailable, "nothing is formatted or mounted");
    assert!(node.mounts().is_empty());
}
