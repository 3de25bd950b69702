//! On a cluster of three nodes, one trouble after the other.

use std::fs::File;
use std::process::Command;

use crate::clinic::{fix, run, until_found, until_gone, until_why};
use crate::support::eventually;
use crate::world::World;

const LATER: &str = "2099-01-01T00:00:00Z";

impl World {
    pub fn patch(&self, what: &str, name: &str, patch: &str) {
        let line = [
            "-n",
            "longhorn-system",
            "patch",
            what,
            name,
            "--type",
            "merge",
            "-p",
            patch,
        ];
        self.kubectl.prints(&line);
    }

    /// Files a ticket as another tool would: without owner, and with a deadline if one is given.
    fn file(&self, volume: &str, id: &str, kind: &str, node: &str, parameters: &str) {
        let ticket = format!(
            r#"{{"id":"{id}","type":"{kind}","nodeID":"{node}","generation":0,"parameters":{{{parameters}}}}}"#
        );
        let patch = format!(r#"{{"spec":{{"attachmentTickets":{{"{id}":{ticket}}}}}}}"#);
        self.patch("volumeattachments.longhorn.io", volume, &patch);
    }

    fn unfile(&self, volume: &str, id: &str) {
        let patch = format!(r#"{{"spec":{{"attachmentTickets":{{"{id}":null}}}}}}"#);
        self.patch("volumeattachments.longhorn.io", volume, &patch);
    }

    pub fn until_on(&self, volume: &str, node: &str) {
        eventually(&format!("{volume} to be on {node}"), || {
            let status = &self.get("lhv", volume)["status"];
            status["state"] == "attached" && status["currentNodeID"] == node
        });
    }

    pub fn until_detached(&self, volume: &str) {
        eventually(&format!("{volume} to be detached"), || {
            self.volume_state(volume) == "detached"
        });
    }

    /// Ends the pod, and waits until its volume is free.
    pub fn end_pod(&self, pod: &str, volume: &str) {
        self.delete("pod", pod);
        self.until_gone("pod", pod);
        self.until_detached(volume);
    }
}

#[test]
fn troubles_are_named_repaired_and_gone() {
    let world = World::new(3);
    let kubeconfig = world.cluster.kubeconfig();
    let stray = Stray::new(&world);
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-1"));
    world.running("app");
    let volume = world.volume_of("data");
    until_why(&kubeconfig, "app", 0, &["attached", "3 of 3 replicas"]);
    foreign_attachment(&world);
    wishes_that_exclude_each_other(&world, &volume);
    stale_annotation(&world, &volume);
    no_place_on_the_node(&world);
    ticket_removed_by_hand(&world, &volume);
    world.end_pod("app", &volume);

    a_forgotten_manual_ticket(&world, &volume);
    an_orphan_of_csi(&world, &volume);
    a_ticket_to_a_node_that_never_was(&world, &volume);
    a_ticket_whose_time_is_over(&world, &volume);

    until_found(&kubeconfig, "LAR-131");
    drop(stray);
    until_gone(&kubeconfig, "LAR-131");
    until_found(&kubeconfig, "LAR-111");
    fix(&kubeconfig, "", "LAR-111");
    let answer = run(&kubeconfig, &["doctor"]);
    assert_eq!(
        (answer.code, answer.text.as_str()),
        (0, "nothing is wrong\n"),
        "{}",
        answer.errors
    );
    // Once more, after everything: it attaches.
    world.pod("app", "data", Some("node-2"));
    world.running("app");
    until_why(&kubeconfig, "data", 0, &["attached"]);
    world.end_pod("app", &volume);
}

/// A loop device over a file where engines have theirs, of a volume that nobody knows.
struct Stray {
    device: String,
}

impl Stray {
    fn new(world: &World) -> Self {
        let file = world.node_folder("node-3").join("run/ghost.fuse");
        File::create(&file)
            .and_then(|file| file.set_len(1 << 20))
            .expect("a file");
        let made = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(&file)
            .output();
        let made = made.expect("losetup runs");
        let device = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        assert!(device.starts_with("/dev/loop"), "{made:?}");
        Self { device }
    }
}

impl Drop for Stray {
    fn drop(&mut self) {
        let done = Command::new("losetup")
            .args(["--detach", &self.device])
            .status();
        assert!(done.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

/// LAR-111: a VolumeAttachment of a driver that is gone. It is found a minute after it was deleted.
fn foreign_attachment(world: &World) {
    world.create(&serde_json::json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": "csi-left-behind", "finalizers": ["external-attacher/gone-example-com"]},
        "spec": {"attacher": "gone.example.com", "nodeName": "node-1", "source": {"persistentVolumeName": "gone"}},
    }));
    world.delete("volumeattachment", "csi-left-behind");
}

/// LAR-105 and LAR-106: for a person to decide, and gone with the ticket.
fn wishes_that_exclude_each_other(world: &World, volume: &str) {
    let kubeconfig = world.cluster.kubeconfig();
    let until = format!(r#""lariat.io/deadline":"{LATER}""#);
    world.file(volume, "person", "longhorn-api", "node-2", &until);
    until_found(&kubeconfig, "LAR-105");
    until_why(&kubeconfig, volume, 4, &["person", "for pod default/app"]);
    world.unfile(volume, "person");
    until_gone(&kubeconfig, "LAR-105");

    let closed = format!(r#""disableFrontend":"true","lariat.io/deadline":"{LATER}""#);
    world.file(volume, "person", "longhorn-api", "node-1", &closed);
    until_found(&kubeconfig, "LAR-106");
    world.unfile(volume, "person");
    until_gone(&kubeconfig, "LAR-106");
}

/// LAR-115.
fn stale_annotation(world: &World, volume: &str) {
    let kubeconfig = world.cluster.kubeconfig();
    let line = [
        "annotate",
        "--overwrite",
        "pv",
        volume,
        "driver.longhorn.io/attached-node=node-3",
    ];
    world.kubectl.prints(&line);
    until_found(&kubeconfig, "LAR-115");
    fix(&kubeconfig, volume, "LAR-115");
    let annotations = world.get("pv", volume)["metadata"]["annotations"].clone();
    assert_eq!(annotations["driver.longhorn.io/attached-node"], "node-1");
}

/// LAR-116: a pod that names its node itself, where there is no place for its volume.
fn no_place_on_the_node(world: &World) {
    let kubeconfig = world.cluster.kubeconfig();
    let limit = |count: u32| {
        let text = world
            .kubectl
            .prints(&["get", "csinode", "node-1", "-o", "json"]);
        let node: serde_json::Value = serde_json::from_str(&text).expect("a CSINode");
        let mut drivers = node["spec"]["drivers"].clone();
        // Of a driver that is registered nothing else may change.
        drivers[0]["allocatable"]["count"] = count.into();
        let patch = serde_json::json!({"spec": {"drivers": drivers}});
        world.patch("csinode", "node-1", &patch.to_string());
    };
    world.claim("more", "longhorn", "Filesystem");
    limit(1);
    let mut pod = crate::world::pod("guest", "more", None);
    pod["spec"]["nodeName"] = "node-1".into();
    world.create(&pod);
    until_found(&kubeconfig, "LAR-116");
    until_why(&kubeconfig, "guest", 4, &["LAR-116", "1 are allowed"]);
    limit(32);
    world.running("guest");
    until_gone(&kubeconfig, "LAR-116");
    let volume = world.volume_of("more");
    world.end_pod("guest", &volume);
    world.delete("pvc", "more");
    world.until_gone("lhv", &volume);
}

/// LAR-112: the ticket is gone, and with it the engine; Kubernetes knows nothing of it.
fn ticket_removed_by_hand(world: &World, volume: &str) {
    let kubeconfig = world.cluster.kubeconfig();
    let tickets = world.get("lhva", volume)["spec"]["attachmentTickets"].clone();
    let id = tickets
        .as_object()
        .and_then(|map| map.keys().next())
        .expect("a ticket")
        .clone();
    world.unfile(volume, &id);
    until_found(&kubeconfig, "LAR-112");
    until_why(&kubeconfig, "app", 4, &["LAR-112"]);
    fix(&kubeconfig, volume, "LAR-112");
    world.until_on(volume, "node-1");
}

/// LAR-102: longhorn #8339.
fn a_forgotten_manual_ticket(world: &World, volume: &str) {
    let kubeconfig = world.cluster.kubeconfig();
    world.file(volume, "longhorn-ui", "longhorn-api", "node-1", "");
    world.until_on(volume, "node-1");
    world.pod("app", "data", Some("node-2"));
    until_why(
        &kubeconfig,
        "app",
        4,
        &[
            "longhorn-ui",
            "nobody answers for this manual attachment",
            "LAR-102",
            "--fix",
        ],
    );
    fix(&kubeconfig, "app", "LAR-102");
    world.running("app");
    until_why(&kubeconfig, "app", 0, &["attached"]);
    world.end_pod("app", volume);
}

/// LAR-101: a ticket without its VolumeAttachment holds the volume where nobody wants it.
fn an_orphan_of_csi(world: &World, volume: &str) {
    let kubeconfig = world.cluster.kubeconfig();
    world.file(volume, "csi-orphan", "csi-attacher", "node-3", "");
    world.until_on(volume, "node-3");
    world.pod("app", "data", Some("node-1"));
    until_why(&kubeconfig, "app", 3, &["csi-orphan", "LAR-101", "2 min"]);
    fix(&kubeconfig, volume, "LAR-101");
    world.running("app");
    world.end_pod("app", volume);
}

/// LAR-104: a person's ticket comes before the pod's, and its node does not exist.
fn a_ticket_to_a_node_that_never_was(world: &World, volume: &str) {
    let kubeconfig = world.cluster.kubeconfig();
    let until = format!(r#""lariat.io/deadline":"{LATER}""#);
    world.file(volume, "lost", "longhorn-api", "node-9", &until);
    world.pod("app", "data", Some("node-2"));
    until_found(&kubeconfig, "LAR-104");
    fix(&kubeconfig, volume, "LAR-104");
    world.running("app");
    world.end_pod("app", volume);
}

/// LAR-109.
fn a_ticket_whose_time_is_over(world: &World, volume: &str) {
    let kubeconfig = world.cluster.kubeconfig();
    let over = r#""lariat.io/deadline":"2020-01-01T00:00:00Z""#;
    world.file(volume, "late", "longhorn-api", "node-3", over);
    until_found(&kubeconfig, "LAR-109");
    fix(&kubeconfig, volume, "LAR-109");
    world.until_detached(volume);
}

#[test]
fn dead_nodes_and_full_disks_are_named() {
    let world = World::new(3);
    let kubeconfig = world.cluster.kubeconfig();
    let class = r#"{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":"single"},
        "provisioner":"driver.longhorn.io","parameters":{"numberOfReplicas":"1","dataLocality":"best-effort"}}"#;
    let file = world.cluster.folder().join("class.json");
    std::fs::write(&file, class).expect("a file");
    world
        .kubectl
        .prints(&["apply", "-f", &file.to_string_lossy()]);
    world.claim("data", "single", "Filesystem");
    world.pod("app", "data", Some("node-1"));
    world.running("app");
    let volume = world.volume_of("data");
    let replicas = world.list("lhr");
    let home = replicas[0]["spec"]["nodeID"]
        .as_str()
        .expect("a node")
        .to_owned();

    // LAR-123: more replicas than nodes. Volumes get half a minute to be placed.
    world.patch(
        "volumes.longhorn.io",
        &volume,
        r#"{"spec":{"numberOfReplicas":4}}"#,
    );
    // LAR-134: whoever leads says that it is of another version.
    let line = [
        "-n",
        "longhorn-system",
        "annotate",
        "--overwrite",
        "lease",
        "lariat-manager",
        "lariat.io/version=9.9.9",
    ];
    world.kubectl.prints(&line);
    until_found(&kubeconfig, "LAR-134");
    until_found(&kubeconfig, "LAR-123");
    world.patch(
        "volumes.longhorn.io",
        &volume,
        r#"{"spec":{"numberOfReplicas":1}}"#,
    );
    until_gone(&kubeconfig, "LAR-123");
    eventually("one replica to be left", || world.list("lhr").len() == 1);
    let home = world.list("lhr")[0]["spec"]["nodeID"]
        .as_str()
        .map_or(home, str::to_owned);

    // LAR-132 and LAR-114: the node with the engine dies, and where the only replica is there too, nothing can be fenced.
    world.power_off("node-1");
    until_found(&kubeconfig, "LAR-132");
    world.kubectl.prints(&[
        "delete",
        "pod",
        "app",
        "--force",
        "--grace-period=0",
        "--wait=false",
    ]);
    world.until_gone("pod", "app");
    world.pod("app", "data", Some("node-2"));
    if home == "node-1" {
        until_found(&kubeconfig, "LAR-114");
        until_why(
            &kubeconfig,
            "app",
            4,
            &["LAR-114", "out-of-service", "cannot be fenced"],
        );
    }
    world.power_on("node-1");
    until_gone(&kubeconfig, "LAR-132");
    world.running("app");
    until_gone(&kubeconfig, "LAR-114");
    until_why(&kubeconfig, "app", 0, &["attached"]);
    world.delete("pod", "app");
}
