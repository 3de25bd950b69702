//! Every part is killed in mid-flight, and the flow goes on where it was.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::support::{PATIENCE, eventually};
use crate::world::World;

#[test]
fn killed_agents_and_managers_are_missed_by_nobody() {
    let world = World::new(3);
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-1"));
    let pod = world.running("app");
    let path = world.path(&pod);
    fs::write(path.join("file"), "kept").expect("a file");
    let engines = world.processes(&["engine", "managed"]);
    assert_eq!(engines.len(), 1, "one engine");

    let agent = world.processes(&["--name node-1"]);
    assert_eq!(agent.len(), 1, "one agent");
    world.kill(&agent);
    eventually("another agent", || {
        let now = world.processes(&["--name node-1"]);
        now.len() == 1 && now != agent
    });
    world.kill(&world.processes(&["manager", "--embedded"]));

    // A second volume goes all the way while the first one is not touched.
    world.claim("other", "longhorn", "Filesystem");
    world.pod("other", "other", Some("node-1"));
    world.running("other");
    assert_eq!(
        fs::read_to_string(path.join("file")).expect("the file"),
        "kept"
    );
    let now = world.processes(&["engine", "managed"]);
    assert!(
        now.contains(&engines[0]),
        "the engine {engines:?} was adopted, not replaced: {now:?}"
    );

    for name in ["app", "other"] {
        world.delete("pod", name);
    }
    world.kill(&world.processes(&["manager", "--embedded"]));
    for name in ["app", "other"] {
        world.until_gone("pod", name);
        world.delete("pvc", name_of_claim(name));
    }
    for what in ["pvc", "pv", "volumeattachment", "lhv", "lhva", "lhe", "lhr"] {
        world.until_none(what);
    }
    assert_eq!(world.leftovers(), [""; 0]);
}

fn name_of_claim(pod: &str) -> &str {
    if pod == "app" { "data" } else { pod }
}

/// The only replica's agent comes back and finds its port taken, as a pod that is made anew gets another address. Nothing can
/// stand in for that replica, so the engine, which lives on, has to find it.
#[test]
fn a_volume_goes_on_when_its_only_replica_is_served_elsewhere() {
    let world = World::new(2);
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "single"},
        "provisioner": "driver.longhorn.io", "parameters": {"numberOfReplicas": "1", "fsType": "ext4"},
        "volumeBindingMode": "Immediate", "reclaimPolicy": "Delete",
    });
    world
        .kubectl
        .feeds(&["apply", "-f", "-"], &class.to_string());
    world.claim("data", "single", "Filesystem");
    let replica = || world.list("lhr").pop();
    let address = || {
        let replica = replica()?;
        let address = replica["status"]["address"].as_str()?;
        address.parse::<SocketAddr>().ok()
    };
    eventually("the replica to be served", || address().is_some());
    let before = address().expect("seen just now");
    let node = replica().expect("seen just now")["spec"]["nodeID"].clone();
    let node = node.as_str().expect("a node").to_owned();
    let other = if node == "node-1" { "node-2" } else { "node-1" };
    world.pod("app", "data", Some(other));
    let path = world.path(&world.running("app"));
    let engines = world.processes(&["engine", "managed"]);
    assert_eq!(engines.len(), 1, "one engine");
    durable(&path.join("first"), "first");

    world.power_off(&node);
    let _taken = TcpListener::bind(before).expect("a port that is free now");
    let (done, is_done) = mpsc::channel();
    let stalled = path.join("second");
    let writer = thread::spawn(move || {
        durable(&stalled, "second");
        done.send(()).ok();
    });
    let early = is_done.recv_timeout(Duration::from_secs(2));
    assert!(early.is_err(), "the only replica is away");
    world.power_on(&node);
    let on_time = is_done.recv_timeout(PATIENCE);
    on_time.expect("the write goes on when the replica is back");
    writer.join().expect("a writer");
    assert_ne!(address(), Some(before), "its port was taken");
    assert_eq!(world.processes(&["engine", "managed"]), engines);
    for name in ["first", "second"] {
        let read = fs::read_to_string(path.join(name));
        assert_eq!(read.expect("a file"), name);
    }

    world.delete("pod", "app");
    world.until_gone("pod", "app");
    world.delete("pvc", "data");
    world.until_none("lhr");
    assert_eq!(world.leftovers(), [""; 0]);
}

/// Writes a file, and waits until it is on the replicas' disks.
fn durable(path: &Path, text: &str) {
    fs::write(path, text).expect("a file");
    let file = fs::File::open(path).expect("the file");
    file.sync_all().expect("a file that is synced");
}

#[test]
fn a_killed_cluster_finds_everything_again() {
    let mut world = World::new(3);
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", None);
    let path = world.path(&world.running("app"));
    fs::write(path.join("file"), "kept").expect("a file");
    world.cluster.kill();
    world.cluster.start_again();
    let pod = world.running("app");
    assert_eq!(
        fs::read_to_string(world.path(&pod).join("file")).expect("the file"),
        "kept"
    );
}

#[test]
fn an_orderly_end_leaves_nothing_and_the_next_start_mounts_again() {
    let mut world = World::new(3);
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", None);
    let path = world.path(&world.running("app"));
    fs::write(path.join("file"), "kept").expect("a file");
    world.cluster.stop(rustix::process::Signal::TERM);
    assert_eq!(world.leftovers(), [""; 0], "after an orderly end");
    assert_eq!(world.processes(&[]), [0; 0], "after an orderly end");
    world.cluster.start_again();
    let back = || {
        let pod = world.running("app");
        fs::read_to_string(world.path(&pod).join("file")).is_ok_and(|text| text == "kept")
    };
    eventually("the pod's file system to be mounted again", back);
}

/// When a cluster that was started again is told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// While it starts.
    AtOnce,
    /// As soon as its nodes are back; the volume is not whole yet.
    Ready,
    /// When all is as it was before the crash.
    Healthy,
}

#[test]
fn a_crash_and_then_an_orderly_end_leave_nothing() {
    let mut world = World::new(3);
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-1"));
    for moment in [Moment::AtOnce, Moment::Ready, Moment::Healthy] {
        let path = mounted(&world);
        let volume = world.volume_of("data");
        world.until_robust(&volume);
        fs::write(path.join("file"), format!("{moment:?}")).expect("a file");
        // Its own node's agent dies first, so that the engine counts on replicas of the other nodes alone: those must
        // be there until it has ended.
        let hold = world.node_folder("node-1").join("hold");
        fs::write(&hold, "").expect("a node that is held");
        world.kill(&world.processes(&["--name node-1"]));
        world.cluster.kill();
        fs::remove_file(&hold).expect("a node that was held");

        if moment == Moment::AtOnce {
            world.cluster.begin_again();
            eventually("the nodes to start", || {
                world.processes(&["node", "--embedded"]).len() == 3
            });
        } else {
            world.cluster.start_again();
        }
        if moment == Moment::Healthy {
            world.until_robust(&volume);
        }
        world.cluster.stop(rustix::process::Signal::TERM);
        assert_eq!(world.leftovers(), [""; 0], "{moment:?}");
        assert_eq!(world.processes(&[]), [0; 0], "{moment:?}");
        assert_eq!(sockets(&world), [""; 0], "{moment:?}");

        world.cluster.start_again();
        let path = mounted(&world);
        let read = fs::read_to_string(path.join("file"));
        assert_eq!(
            read.expect("the file"),
            format!("{moment:?}"),
            "unmounted in order, it was synced"
        );
    }
}

/// A node that was dead has just begun to put its leftovers away when everything is to end.
#[test]
fn a_node_that_returns_and_then_an_orderly_end_leave_nothing() {
    let mut world = World::new(3);
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-1"));
    for moment_ms in [200, 500, 2000] {
        let path = mounted(&world);
        world.until_robust(&world.volume_of("data"));
        let content = moment_ms.to_string();
        fs::write(path.join("file"), &content).expect("a file");
        let file = fs::File::open(path.join("file")).expect("the file");
        file.sync_all().expect("a file that is synced");
        drop(file);
        world.power_off("node-1");
        world.power_on("node-1");
        eventually("the node to start", || {
            !world.processes(&["--name node-1"]).is_empty()
        });
        thread::sleep(Duration::from_millis(moment_ms));
        world.cluster.stop(rustix::process::Signal::TERM);
        assert_eq!(world.leftovers(), [""; 0], "{moment_ms}");
        assert_eq!(world.processes(&[]), [0; 0], "{moment_ms}");
        assert_eq!(sockets(&world), [""; 0], "{moment_ms}");

        world.cluster.start_again();
        let read = fs::read_to_string(mounted(&world).join("file"));
        assert_eq!(read.expect("the file"), content);
    }
}

/// Where the pod's volume is mounted now.
fn mounted(world: &World) -> std::path::PathBuf {
    let mut path = None;
    eventually("the pod's volume to be mounted", || {
        let found = world.path(&world.running("app"));
        let mounts = fs::read_to_string("/proc/self/mounts").expect("the mounts");
        path = mounts
            .contains(found.to_str().expect("a path"))
            .then_some(found);
        path.is_some()
    });
    path.expect("seen just now")
}

/// What the nodes have left in the folders of their sockets.
fn sockets(world: &World) -> Vec<String> {
    let left = |node: &str| {
        let folder = world.node_folder(node).join("run");
        let entries = fs::read_dir(folder).expect("a folder").flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names
            .filter(|name| {
                let is_note = name == "agent.lock" || name.starts_with("replica-port.");
                !name.ends_with(".log") && !is_note
            })
            .collect::<Vec<_>>()
    };
    ["node-1", "node-2", "node-3"]
        .into_iter()
        .flat_map(left)
        .collect()
}
