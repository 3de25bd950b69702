//! On a cluster of three nodes, one trouble after the other.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

use crate::clinic::{fix, run, until_found, until_gone, until_noted, until_why};
use crate::support::eventually;
use crate::world::World;

const LATER: &str = "2099-01-01T00:00:00Z";

impl World {
    /// kubectl, in the namespace of our own objects.
    pub fn kubectl_ours(&self, arguments: &[&str]) {
        let line = [&["-n", "longhorn-system"][..], arguments].concat();
        self.kubectl.prints(&line);
    }

    pub fn patch(&self, what: &str, name: &str, patch: &str) {
        self.kubectl_ours(&["patch", what, name, "--type", "merge", "-p", patch]);
    }

    /// Files a ticket as another tool would: without owner, and with a deadline if one is given.
    pub fn file(&self, volume: &str, id: &str, kind: &str, node: &str, parameters: &str) {
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
    a_ticket_under_another_name(&world, &volume);

    until_found(&kubeconfig, "LAR-111");
    fix(&kubeconfig, "", "LAR-111");
    leftovers_in_use_and_not(&world, &volume);
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

/// What somebody uses stays until nobody does; the rest is put away at once.
fn leftovers_in_use_and_not(world: &World, volume: &str) {
    let kubeconfig = world.cluster.kubeconfig();
    let mut spook = Stray::new(world, "spook");
    let inside = spook.mount(world);
    until_found(&kubeconfig, "LAR-131");
    let put_away = |when: &str| {
        let patch = format!(r#"{{"metadata":{{"annotations":{{"lariat.io/put-away":{when}}}}}}}"#);
        world.patch("nodes.longhorn.io", "node-3", &patch);
    };
    put_away(r#""2100-01-01T00:00:00Z""#);
    eventually("the node to say why it could not", || {
        let answer = run(&kubeconfig, &["doctor"]);
        let text = answer.text.split_whitespace().collect::<Vec<_>>().join(" ");
        text.contains("could not be put away: cannot unmount") && text.contains("busy")
    });
    drop(inside);
    until_gone(&kubeconfig, "LAR-131");
    assert!(spook.is_gone());
    put_away("null");

    // Of a volume that is not there at all at the moment, and which `why` knows.
    let mut ghost = Stray::new(world, volume);
    until_found(&kubeconfig, "LAR-131");
    until_why(&kubeconfig, volume, 0, &["LAR-131", "node-3", "--fix"]);
    fix(&kubeconfig, "", "LAR-131");
    assert!(ghost.is_gone());
    until_noted(&kubeconfig, volume, "LAR-131");
}

/// A loop device over a file where engines have theirs, and no engine.
struct Stray {
    volume: String,
    file: PathBuf,
    device: Option<String>,
    target: Option<PathBuf>,
}

impl Stray {
    fn new(world: &World, volume: &str) -> Self {
        let run = world.node_folder("node-3").join("run");
        let file = run.join(format!("{volume}.fuse"));
        File::create(&file)
            .and_then(|file| file.set_len(8 << 20))
            .expect("a file");
        done("mkfs.ext4", &["-q", &file.display().to_string()]);
        let device = done(
            "losetup",
            &["--find", "--show", &file.display().to_string()],
        );
        assert!(device.starts_with("/dev/loop"), "{device}");
        Self {
            volume: volume.to_owned(),
            file,
            device: Some(device),
            target: None,
        }
    }

    /// Mounts it where pods have their volumes, and gives a file inside.
    fn mount(&mut self, world: &World) -> File {
        let pods = world.node_folder("node-3").join("kubelet/pods");
        let target = pods
            .join("spook/volumes/kubernetes.io~csi")
            .join(&self.volume)
            .join("mount");
        std::fs::create_dir_all(&target).expect("a folder");
        let device = self.device.as_deref().expect("not gone yet");
        done("mount", &[device, &target.display().to_string()]);
        let inside = File::create(target.join("held")).expect("a file");
        self.target = Some(target);
        inside
    }

    /// Whether neither mount nor device is there; from then on there is nothing to take away.
    fn is_gone(&mut self) -> bool {
        let table = std::fs::read_to_string("/proc/self/mountinfo").expect("a table");
        let mounted = self
            .target
            .as_ref()
            .is_some_and(|target| table.contains(&target.display().to_string()));
        let devices = done(
            "losetup",
            &["--list", "--noheadings", "--output", "BACK-FILE"],
        );
        let gone = !mounted && !devices.contains(&self.file.display().to_string());
        if gone {
            (self.device, self.target) = (None, None);
        }
        gone
    }
}

fn done(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program} cannot be run: {error}"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

impl Drop for Stray {
    /// For a test that failed.
    fn drop(&mut self) {
        if let Some(target) = &self.target {
            let _ = Command::new("umount").arg(target).status();
        }
        if let Some(device) = &self.device {
            let _ = Command::new("losetup").args(["--detach", device]).status();
        }
    }
}

/// LAR-111: a VolumeAttachment of a driver that is gone. It is found a minute after it was deleted. No pod, claim or volume
/// of ours has to do with it, so that `why` has nothing to be asked about.
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
    until_why(&kubeconfig, "app", 0, &["attached"]);

    let closed = format!(r#""disableFrontend":"true","lariat.io/deadline":"{LATER}""#);
    world.file(volume, "person", "longhorn-api", "node-1", &closed);
    until_found(&kubeconfig, "LAR-106");
    until_why(&kubeconfig, volume, 4, &["LAR-106", "person"]);
    world.unfile(volume, "person");
    until_gone(&kubeconfig, "LAR-106");
    until_why(&kubeconfig, "app", 0, &["attached"]);
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
    until_why(&kubeconfig, "app", 0, &["attached", "LAR-115", "--fix"]);
    fix(&kubeconfig, volume, "LAR-115");
    until_noted(&kubeconfig, volume, "LAR-115");
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
    until_noted(&kubeconfig, volume, "LAR-112");
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
    until_noted(&kubeconfig, volume, "LAR-102");
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
    until_noted(&kubeconfig, volume, "LAR-101");
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
    until_why(&kubeconfig, "app", 3, &["LAR-104", "node-9", "--fix"]);
    fix(&kubeconfig, volume, "LAR-104");
    until_noted(&kubeconfig, volume, "LAR-104");
    world.running("app");
    world.end_pod("app", volume);
}

/// LAR-109.
fn a_ticket_whose_time_is_over(world: &World, volume: &str) {
    let kubeconfig = world.cluster.kubeconfig();
    let over = r#""lariat.io/deadline":"2020-01-01T00:00:00Z""#;
    world.file(volume, "late", "longhorn-api", "node-3", over);
    until_found(&kubeconfig, "LAR-109");
    until_why(&kubeconfig, volume, 0, &["LAR-109", "late"]);
    fix(&kubeconfig, volume, "LAR-109");
    until_noted(&kubeconfig, volume, "LAR-109");
    world.until_detached(volume);
}

/// LAR-108: filed under another name than its own, it is never served; under its own it is.
fn a_ticket_under_another_name(world: &World, volume: &str) {
    let kubeconfig = world.cluster.kubeconfig();
    let ticket = serde_json::json!({
        "id": "other", "type": "longhorn-api", "nodeID": "node-2", "generation": 0,
        "parameters": {"lariat.io/deadline": LATER},
    });
    let patch = serde_json::json!({"spec": {"attachmentTickets": {"mine": ticket}}});
    let manager = world.manager();
    world.patch("volumeattachments.longhorn.io", volume, &patch.to_string());
    until_found(&kubeconfig, "LAR-108");
    until_why(&kubeconfig, volume, 4, &["LAR-108", "mine", "--fix"]);
    fix(&kubeconfig, volume, "LAR-108");
    until_noted(&kubeconfig, volume, "LAR-108");
    world.until_on(volume, "node-2");
    until_why(&kubeconfig, volume, 0, &["attached"]);
    assert_eq!(world.manager(), manager, "it was too much for the manager");
    world.unfile(volume, "mine");
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
    let (lease, version) = ("lease/lariat-manager", "lariat.io/version=9.9.9");
    world.kubectl_ours(&["annotate", "--overwrite", lease, version]);
    until_found(&kubeconfig, "LAR-134");
    until_why(&kubeconfig, "app", 0, &["LAR-134", "1 of 9.9.9"]);
    // The next one that leads is of the version that the nodes have, and says so.
    world.kill(&world.manager());
    until_gone(&kubeconfig, "LAR-134");
    until_found(&kubeconfig, "LAR-123");
    until_why(&kubeconfig, "app", 0, &["attached", "LAR-123"]);
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

    // LAR-132 and LAR-114: the node dies that has the engine and the only replica, so that nothing can be fenced.
    if home != "node-1" {
        world.delete("pod", "app");
        world.pod("app", "data", Some(&home));
        world.running("app");
    }
    let elsewhere = if home == "node-2" { "node-3" } else { "node-2" };
    world.power_off(&home);
    until_found(&kubeconfig, "LAR-132");
    until_why(&kubeconfig, "app", 4, &["LAR-132", "cannot be fenced"]);
    world.kubectl.prints(&[
        "delete",
        "pod",
        "app",
        "--force",
        "--grace-period=0",
        "--wait=false",
    ]);
    world.until_gone("pod", "app");
    world.pod("app", "data", Some(elsewhere));
    until_found(&kubeconfig, "LAR-114");
    until_why(
        &kubeconfig,
        "app",
        4,
        &["LAR-114", "out-of-service", "cannot be fenced"],
    );
    world.power_on(&home);
    until_gone(&kubeconfig, "LAR-132");
    world.running("app");
    until_gone(&kubeconfig, "LAR-114");
    until_why(&kubeconfig, "app", 0, &["attached"]);
    world.delete("pod", "app");
}
