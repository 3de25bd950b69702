//! Many pods at once.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::support::eventually;
use crate::world::{World, holds};

const PODS: usize = 50;
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// Longer than the recorder gathers what it writes into a volume's history.
const GATHERED: Duration = Duration::from_secs(2);

#[test]
fn fifty_pods_come_and_go_and_leave_nothing() {
    let world = World::new(3);
    // Agents start them by themselves, and are ready without them.
    eventually("each node's keeper", || {
        world.processes(&["engine keeper"]).len() == NODES.len()
    });
    let before = command_lines(&world);
    let names: Vec<String> = (0..PODS).map(|number| format!("p{number}")).collect();
    for name in &names {
        world.claim(name, "longhorn", "Filesystem");
        world.pod(name, name, None);
    }
    let mut nodes = std::collections::BTreeSet::new();
    for name in &names {
        let pod = world.running(name);
        nodes.insert(pod["spec"]["nodeName"].to_string());
        fs::write(world.path(&pod).join("name"), name).expect("a file");
    }
    assert_eq!(nodes.len(), 3, "all nodes have some of them");
    for name in &names {
        let read = fs::read_to_string(world.path(&world.get("pod", name)).join("name"));
        assert_eq!(
            &read.expect("the file"),
            name,
            "each pod has its own volume"
        );
    }
    // Written a moment after what they tell of.
    eventually("each volume to have its history", || {
        histories(&world).len() == PODS
    });
    for name in &names {
        world.delete("pod", name);
        world.delete("pvc", name);
    }
    for what in [
        "pod",
        "pvc",
        "pv",
        "volumeattachment",
        "lhv",
        "lhva",
        "lhe",
        "lhr",
    ] {
        world.until_none(what);
    }
    assert_eq!(world.leftovers(), [""; 0]);
    eventually("all to end that was started since", || {
        command_lines(&world) == before
    });
    for node in NODES {
        let sockets = fs::read_dir(world.node_folder(node).join("run")).expect("the sockets");
        let left: Vec<_> = sockets
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            // Logs are for whoever asks later.
            .filter(|name| name.contains("pvc-") && !name.ends_with(".log"))
            .collect();
        assert_eq!(left, [""; 0], "on {node}");
        eventually("the links to devices to be gone", || {
            let links = fs::read_dir(world.node_folder(node).join("dev"));
            links.expect("a folder").next().is_none()
        });
        // What nodes say of themselves follows in a moment, and a replica's files go after its object.
        eventually("the node to say that it has nothing", || {
            let status = &world.get("node", node)["status"];
            let is_empty = |field: &str| status[field].as_array().is_none_or(Vec::is_empty);
            is_empty("volumesInUse") && is_empty("volumesAttached")
        });
        eventually("the replicas' data to be gone", || {
            !holds(&world.node_folder(node).join("disks"), "pvc-")
        });
        eventually("the kubelet's folders to be gone", || {
            pod_folders(&world.node_folder(node).join("kubelet")).is_empty()
        });
    }
    // A history goes with its volume. The last words on one may be written after that: they are collected as well.
    std::thread::sleep(GATHERED);
    eventually("the histories to be gone", || histories(&world).is_empty());
}

/// What runs of a cluster. Not by number: a part that had to be started again is the same part.
fn command_lines(world: &World) -> Vec<String> {
    let line = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cmdline"));
    let processes = world.processes(&[]).into_iter();
    let mut lines: Vec<String> = processes.filter_map(|pid| line(pid).ok()).collect();
    // One that has ended meanwhile has none.
    lines.retain(|line| !line.is_empty());
    lines.sort_unstable();
    lines
}

/// The volumes whose histories are kept.
fn histories(world: &World) -> Vec<String> {
    let of_volume = |map: &Value| {
        let name = map["metadata"]["name"].as_str()?;
        name.strip_prefix("lariat-history-").map(str::to_owned)
    };
    world.list("cm").iter().filter_map(of_volume).collect()
}

/// What a kubelet keeps for pods and for the volumes that they have mounted.
fn pod_folders(kubelet: &Path) -> Vec<PathBuf> {
    let staging = "plugins/kubernetes.io/csi";
    let folders = [
        kubelet.join("pods"),
        kubelet.join(staging).join("driver.longhorn.io"),
        kubelet.join(staging).join("volumeDevices/staging"),
    ];
    let entries = folders.iter().flat_map(fs::read_dir).flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}
