//! A volume is refused: the pod that waits, its claim and the volume say so, and why.

use serde_json::json;

use crate::support::eventually;
use crate::world::World;

/// Everything but the pod, which has words of its own.
fn until_told(world: &World, volume: &str, reason: &str, words: &str) {
    for (kind, name) in [
        ("PersistentVolumeClaim", "data"),
        ("PersistentVolume", volume),
        ("Volume", volume),
    ] {
        world.until_told(kind, name, reason, words);
    }
}

#[test]
fn a_second_pod_on_another_node_is_refused_and_everybody_is_told() {
    let world = World::new(3);
    world.claim("data", "longhorn", "Filesystem");
    world.pod("first", "data", Some("node-1"));
    world.running("first");
    let volume = world.volume_of("data");

    world.pod("second", "data", Some("node-2"));
    let of_pod = "Volume is already used by pod(s) first";
    let of_pod = format!("Multi-Attach error for volume \"{volume}\" {of_pod}");
    world.until_told("Pod", "second", "FailedAttachVolume", &of_pod);
    let why = format!("volume {volume} waits for node node-2: it is attached to node node-1");
    until_told(&world, &volume, "FailedAttachVolume", &why);
    let attachments = world.list("volumeattachment");
    assert_eq!(attachments.len(), 1, "one node alone: {attachments:?}");
    assert_ne!(world.get("pod", "second")["status"]["phase"], "Running");

    world.delete("pod", "first");
    world.running("second");
}

/// Attached by hand with another tool, which says neither for how long nor for whom: the driver refuses at once.
#[test]
fn a_pod_whose_volume_is_held_by_hand_is_told_by_whom() {
    let world = World::new(3);
    world.claim("data", "longhorn", "Filesystem");
    eventually("the claim to be bound", || {
        world.get("pvc", "data")["status"]["phase"] == "Bound"
    });
    let volume = world.volume_of("data");
    let ticket = json!({"id": "by-hand", "type": "longhorn-api", "nodeID": "node-1", "generation": 0, "parameters": {}});
    let by_hand = json!({
        "apiVersion": "longhorn.io/v1beta2", "kind": "VolumeAttachment",
        "metadata": {"name": volume, "namespace": "longhorn-system"},
        "spec": {"volume": volume, "attachmentTickets": {"by-hand": ticket}},
    });
    let applied = by_hand.to_string();
    world.kubectl.feeds(&["apply", "-f", "-"], &applied);
    eventually("the volume to be on node-1", || {
        let status = &world.get("lhv", &volume)["status"];
        status["state"] == "attached" && status["currentNodeID"] == "node-1"
    });

    world.pod("app", "data", Some("node-2"));
    // The ticket is refused, in the words of the decision.
    let held =
        "the volume is attached to node node-1, held there by longhorn-api ticket \"by-hand\"";
    for (kind, name) in [
        ("Pod", "app"),
        ("PersistentVolumeClaim", "data"),
        ("Volume", volume.as_str()),
    ] {
        world.until_told(kind, name, "AttachedToOtherNode", held);
    }
    // So is the publish, in the words of the driver.
    let why = "is attached by hand to node node-1 by ticket by-hand; detach it there first";
    let why = format!("volume {volume} {why}");
    let of_pod = format!("AttachVolume.Attach failed for volume \"{volume}\" : {why}");
    world.until_told("Pod", "app", "FailedAttachVolume", &of_pod);
    let of_others = format!("attaching volume {volume} to node node-2 fails: {why}");
    until_told(&world, &volume, "FailedAttachVolume", &of_others);
    check_described(&world, &why);

    let gone = r#"{"spec":{"attachmentTickets":{"by-hand":null}}}"#;
    world.kubectl.prints(&[
        "-n",
        "longhorn-system",
        "patch",
        "volumeattachments.longhorn.io",
        &volume,
        "--type=merge",
        "-p",
        gone,
    ]);
    world.running("app");
}

/// What people see who ask about the pod and its attachment, as the documents tell them to.
fn check_described(world: &World, why: &str) {
    let attachments = world.list("volumeattachment");
    let [attachment] = &attachments[..] else {
        panic!("one VolumeAttachment, not {attachments:?}");
    };
    let attachment = attachment["metadata"]["name"].as_str().expect("a name");
    let question = ["describe", "volumeattachment", attachment];
    world.kubectl.shows(&question, &["Attach Error", why]);
    let question = ["describe", "pod", "app", "-n", "default"];
    world.kubectl.shows(&question, &["FailedAttachVolume"]);
}

/// The volume is refused a place as soon as it is there. Its claim and its pod come later and are told all the same.
#[test]
fn who_comes_to_a_volume_that_fits_nowhere_is_told_why() {
    let world = World::new(1);
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fast"},
        "provisioner": "driver.longhorn.io",
        "parameters": {"numberOfReplicas": "1", "fsType": "ext4", "nodeSelector": "fast"},
        "volumeBindingMode": "Immediate", "reclaimPolicy": "Delete",
    });
    world
        .kubectl
        .feeds(&["apply", "-f", "-"], &class.to_string());
    world.claim("data", "fast", "Filesystem");
    eventually("the claim to be bound", || {
        world.get("pvc", "data")["status"]["phase"] == "Bound"
    });
    let volume = world.volume_of("data");
    let refusal = "node lacks tags fast";
    world.until_told("Volume", &volume, "Unschedulable", refusal);

    world.pod("app", "data", Some("node-1"));
    let disk = world.get("lhn", "node-1")["status"]["diskStatus"]["default"]["diskUUID"].clone();
    let disk = disk.as_str().expect("a disk that is known");
    let why = format!("no disk can take another replica: node-1/{disk}: {refusal}");
    for (kind, name) in [
        ("Volume", volume.as_str()),
        ("PersistentVolumeClaim", "data"),
        ("Pod", "app"),
    ] {
        world.until_told(kind, name, "Unschedulable", &why);
    }
    assert_ne!(world.get("pod", "app")["status"]["phase"], "Running");

    world.kubectl.prints(&[
        "-n",
        "longhorn-system",
        "patch",
        "nodes.longhorn.io",
        "node-1",
        "--type=merge",
        "-p",
        r#"{"spec":{"tags":["fast"]}}"#,
    ]);
    world.running("app");
}

/// What is said to the agent reaches Kubernetes through the answer of the CSI node service.
#[test]
fn a_node_that_is_full_gets_no_further_volume() {
    let world = World::with_environment(1, &[("LARIAT_NODE_MAX_VOLUMES", "1")]);
    world.claim("data", "longhorn", "Filesystem");
    world.claim("more", "longhorn", "Filesystem");
    world.pod("first", "data", None);
    world.running("first");

    world.pod("second", "more", None);
    let why = "node-1: it would have 2 volumes of driver.longhorn.io, and 1 are allowed";
    world.until_told("Pod", "second", "FailedScheduling", why);
    let attachments = world.list("volumeattachment");
    assert_eq!(attachments.len(), 1, "one volume alone: {attachments:?}");
    assert!(world.get("pod", "second")["spec"]["nodeName"].is_null());

    world.delete("pod", "first");
    world.running("second");
}
