//! Troubles that need some doing: broken starts, a node that comes and goes, a migration that nobody leads.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::PathBuf;

use api_types::names::DRIVER;
use cluster_core::names::attachment_name;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::clinic::{fix, until_found, until_gone, until_noted, until_why};
use crate::scrape::Process;
use crate::support::eventually;
use crate::world::{World, claim, condition};

const NODES: u16 = 3;

impl World {
    pub fn bound(&self, claim: &str) -> String {
        eventually(&format!("claim {claim} to be bound"), || {
            self.get("pvc", claim)["status"]["phase"] == "Bound"
        });
        self.volume_of(claim)
    }

    /// A PersistentVolume of a volume that was made by hand.
    fn persistent(&self, name: &str, volume: &str) {
        self.create(&json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
                "persistentVolumeReclaimPolicy": "Retain",
                "csi": {"driver": DRIVER, "volumeHandle": volume, "fsType": "ext4"},
            },
        }));
    }

    fn until_ready(&self, node: &str, status: &str) {
        eventually(&format!("{node} to be Ready={status}"), || {
            condition(&self.get("lhn", node), "Ready") == status
        });
    }

    fn signal_agent(&self, node: &str, signal: Signal) {
        let agents = self.processes(&["node run", &format!("--name {node} ")]);
        assert!(!agents.is_empty(), "no agent of {node} runs");
        for pid in agents.into_iter().filter_map(Pid::from_raw) {
            kill_process(pid, signal).expect("the agent can be signalled");
        }
    }
}

/// LAR-135: the agent is stopped until its node is lost, three times. There is no repair: it is over an hour after the last
/// time, or when somebody who has found the cause throws the old events away.
#[test]
fn a_node_that_comes_and_goes() {
    let world = &World::new(NODES);
    let kubeconfig = world.cluster.kubeconfig();
    world.claim("data", "longhorn", "Filesystem");
    for _ in 0..3 {
        world.signal_agent("node-3", Signal::STOP);
        world.until_ready("node-3", "False");
        world.signal_agent("node-3", Signal::CONT);
        world.until_ready("node-3", "True");
    }
    world.pod("guest", "data", Some("node-3"));
    world.running("guest");
    until_found(&kubeconfig, "LAR-135");
    until_why(&kubeconfig, "guest", 0, &["LAR-135", "was lost 3 times"]);
    let answer = crate::clinic::run(&kubeconfig, &["doctor"]);
    assert_eq!(answer.code, 3, "{}", answer.text);
    assert!(
        answer.text.contains("node node-3 was lost 3 times"),
        "{}",
        answer.text
    );
    let lost = "reason=Lost,involvedObject.name=node-3";
    world.kubectl_ours(&["delete", "events", "--field-selector", lost]);
    until_gone(&kubeconfig, "LAR-135");
    let volume = world.volume_of("data");
    world.end_pod("guest", &volume);
    world.pod("guest", "data", Some("node-3"));
    world.running("guest");
    until_why(&kubeconfig, "guest", 0, &["attached"]);
    world.end_pod("guest", &volume);
}

/// LAR-121: a node falls silent, and its engine lives on while another one has taken over. The object of the old one goes
/// with the proof that it is fenced; here somebody else's finalizer keeps it, so that its last word stays to be read.
#[test]
fn an_engine_lives_on_where_nobody_hears_it() {
    let world = &World::new(NODES);
    let kubeconfig = world.cluster.kubeconfig();
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-1"));
    world.running("app");
    let volume = world.volume_of("data");
    world.until_robust(&volume);
    let engines = world.list("lhe");
    let [engine] = engines.as_slice() else {
        panic!("{engines:?}");
    };
    let engine = engine["metadata"]["name"].as_str().expect("a name");
    let finalizer = |patch: Value| {
        let patch = patch.to_string();
        let what = ["patch", "engines.longhorn.io", engine];
        world.kubectl_ours(&[&what[..], &["--type", "json", "-p", &patch]].concat());
    };
    finalizer(
        json!([{"op": "add", "path": "/metadata/finalizers/-", "value": "example.com/keep"}]),
    );

    world.signal_agent("node-1", Signal::STOP);
    world.until_ready("node-1", "False");
    world.until_gone("pod", "app");
    world.pod("app", "data", Some("node-2"));
    world.running("app");
    let serving = world.processes(&["engine managed", "nodes/node-1/run ", &volume]);
    assert!(!serving.is_empty(), "the old engine has ended by itself");
    until_found(&kubeconfig, "LAR-121");
    until_why(
        &kubeconfig,
        "app",
        0,
        &[
            "LAR-121",
            "run on 2 nodes",
            "attached",
            "which does not answer",
            "refuse everything before",
        ],
    );

    world.signal_agent("node-1", Signal::CONT);
    world.until_ready("node-1", "True");
    until_gone(&kubeconfig, "LAR-121");
    finalizer(json!([{"op": "remove", "path": "/metadata/finalizers/0"}]));
    world.until_gone("lhe", engine);
    until_why(&kubeconfig, "app", 0, &["attached"]);
    world.end_pod("app", &volume);
    world.pod("app", "data", Some("node-1"));
    world.running("app");
    world.end_pod("app", &volume);
}

/// LAR-111: the PersistentVolume went before the VolumeAttachment, so that the attacher cannot tell what to detach. The next
/// attachment of the volume to that node would have the same name, and waits for this one to go.
#[test]
fn an_attachment_whose_persistent_volume_went_first() {
    let world = &World::new(NODES);
    let kubeconfig = world.cluster.kubeconfig();
    let made = crate::clinic::run(
        &kubeconfig,
        &["volume", "create", "archive", "--size", "64Mi"],
    );
    assert_eq!(made.code, 0, "{}", made.errors);
    world.persistent("archive-old", "archive");
    world.delete("pv", "archive-old");
    world.until_gone("pv", "archive-old");
    let name = attachment_name(&"archive".into(), &DRIVER.into(), &"node-1".into());
    // As the external-attacher leaves it, which notes no handle.
    world.create(&json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": name.as_str(), "finalizers": ["external-attacher/driver-longhorn-io"]},
        "spec": {"attacher": DRIVER, "nodeName": "node-1", "source": {"persistentVolumeName": "archive-old"}},
    }));
    world.delete("volumeattachment", name.as_str());

    world.persistent("archive", "archive");
    let mut claim = claim("archive", "", "Filesystem");
    claim["spec"]["volumeName"] = "archive".into();
    world.create(&claim);
    world.pod("app", "archive", Some("node-1"));
    until_found(&kubeconfig, "LAR-111");
    until_why(&kubeconfig, "app", 4, &["LAR-111", name.as_str(), "--fix"]);
    fix(&kubeconfig, "app", "LAR-111");
    until_noted(&kubeconfig, "archive", "LAR-111");
    world.running("app");
    until_why(&kubeconfig, "app", 0, &["attached"]);
    world.end_pod("app", "archive");
}

/// LAR-124: something lies where the engine wants its socket, until attaching is held.
#[test]
fn an_engine_that_cannot_start() {
    let world = &World::new(NODES);
    let kubeconfig = world.cluster.kubeconfig();
    world.claim("held", "longhorn", "Filesystem");
    let volume = world.bound("held");
    let obstacle = world
        .node_folder("node-1")
        .join(format!("run/{volume}.control"));
    fs::create_dir_all(obstacle.join("in-the-way")).expect("an obstacle");
    world.pod("held", "held", Some("node-1"));
    until_found(&kubeconfig, "LAR-124");
    until_why(&kubeconfig, "held", 4, &["LAR-124", "is held", "--fix"]);
    let token = world.cluster.folder().join("metrics-token");
    let manager = Process::of(world.cluster.folder(), &token).scrape();
    let held = [("node", "node-1"), ("state", "held")];
    assert_eq!(manager.sum("lariat_attach_breakers", &held), 1.0);

    fs::remove_dir_all(&obstacle).expect("the obstacle goes");
    fix(&kubeconfig, &volume, "LAR-124");
    until_noted(&kubeconfig, &volume, "LAR-124");
    world.running("held");
    until_why(&kubeconfig, "held", 0, &["attached"]);
    world.end_pod("held", &volume);
}

/// LAR-107: both tickets of a migration and no record of it; a pod on one of the nodes.
#[test]
fn a_migration_that_nobody_leads() {
    let world = &World::new(NODES);
    let kubeconfig = world.cluster.kubeconfig();
    let mut disk = claim("disk", "longhorn-migratable", "Block");
    disk["spec"]["accessModes"] = json!(["ReadWriteMany"]);
    world.create(&disk);
    let volume = world.bound("disk");
    world.until_detached(&volume);
    let ticket = |node: &str| {
        let id = attachment_name(&volume.as_str().into(), &DRIVER.into(), &node.into());
        let id = id.as_str().to_owned();
        let value = json!({"id": id, "type": "csi-attacher", "nodeID": node, "generation": 0,
            "parameters": {"disableFrontend": "false"}});
        (id, value)
    };
    let tickets: serde_json::Map<String, Value> =
        [ticket("node-1"), ticket("node-2")].into_iter().collect();
    let patch = json!({"spec": {"attachmentTickets": tickets}}).to_string();
    world.patch("volumeattachments.longhorn.io", &volume, &patch);
    until_found(&kubeconfig, "LAR-107");
    world.pod("guest", "disk", Some("node-1"));
    until_why(&kubeconfig, "guest", 4, &["LAR-107", "node-2"]);
    fix(&kubeconfig, &volume, "LAR-107");
    until_noted(&kubeconfig, &volume, "LAR-107");
    world.running("guest");
    world.until_on(&volume, "node-1");
    world.end_pod("guest", &volume);
}

/// LAR-122: the files of a volume's only replica are gone, and come back. With auto-salvage nobody has to say a word.
#[test]
fn a_faulted_volume_whose_data_comes_back() {
    let world = &World::new(NODES);
    let kubeconfig = world.cluster.kubeconfig();
    let works = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = crate::clinic::run(&kubeconfig, &words);
        let said = format!("{}{}", answer.text, answer.errors);
        assert_eq!(answer.code, 0, "lariat {line}: {said}");
    };
    let device = world.node_folder("node-1").join("dev/ledger");
    let data: Vec<u8> = (0..4 << 20).map(|at: u32| at.to_le_bytes()[1]).collect();
    works("setting set auto-salvage false");
    works("volume create ledger --size 64Mi --replicas 1");
    works("volume attach ledger --node node-1");
    let mut file = File::options().write(true).open(&device).expect("a device");
    file.write_all(&data).expect("a write");
    file.sync_all().expect("a flush");
    drop(file);
    works("volume detach ledger --yes");

    let files = files_of_only_replica(world, "ledger");
    let away = world.cluster.folder().join("away");
    let is_faulted = || world.get("lhv", "ledger")["status"]["robustness"] == "faulted";
    fs::rename(&files, &away).expect("the files go");
    eventually("the volume to be faulted", is_faulted);
    fs::rename(&away, &files).expect("the files come back");
    until_found(&kubeconfig, "LAR-122");
    until_why(&kubeconfig, "ledger", 4, &["LAR-122", "--fix"]);
    assert!(is_faulted(), "nobody has said yet that it may be used");
    fix(&kubeconfig, "ledger", "LAR-122");
    until_noted(&kubeconfig, "ledger", "LAR-122");
    works("volume attach ledger --node node-1");
    let mut read = vec![0; data.len()];
    let mut file = File::open(&device).expect("a device");
    file.read_exact(&mut read).expect("a read");
    drop(file);
    assert!(read == data, "not what was written");
    works("volume detach ledger --yes");

    works("setting set auto-salvage true");
    fs::rename(&files, &away).expect("the files go");
    eventually("the volume to be faulted again", is_faulted);
    fs::rename(&away, &files).expect("the files come back");
    eventually("the volume to be salvaged by itself", || !is_faulted());
    works("volume attach ledger --node node-2");
    works("volume detach ledger --yes");
    works("volume delete ledger --yes");
}

fn files_of_only_replica(world: &World, volume: &str) -> PathBuf {
    let replicas = world.list("lhr");
    let [replica] = replicas.as_slice() else {
        panic!("{replicas:?}");
    };
    let node = replica["spec"]["nodeID"].as_str().expect("a node");
    let disk = world.node_folder(node).join("disks/default/replicas");
    disk.join(volume)
}
