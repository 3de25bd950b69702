//! The attach flow, hop by hop: what each object contains when a pod runs, and that nothing is left when it is gone.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use serde_json::Value;

use crate::support::eventually;
use crate::world::{World, holds};

#[test]
fn a_claim_and_a_pod_become_a_mounted_file_system_and_vanish_again() {
    let world = World::new(3);
    world.apply_example("pod-with-volume.yaml");
    let pod = world.running("app");
    let node = pod["spec"]["nodeName"].as_str().expect("a node").to_owned();
    let volume = world.volume_of("data");
    let path = world.path(&pod);
    assert_eq!(file_system(&path), "ext4");
    fs::write(path.join("greeting"), "hello").expect("a file");

    every_hop_is_written(&world, &volume, &node);
    for (kind, name) in [
        ("Volume", volume.as_str()),
        ("PersistentVolumeClaim", "data"),
        ("Pod", "app"),
    ] {
        world.until_told(kind, name, "Attached", "");
    }
    disks_say_what_they_hold(&world, &volume);
    the_debugging_commands_of_the_documents_answer(&world, &volume);

    world
        .kubectl
        .prints(&["delete", "pod", "app", "--wait=true", "--timeout=60s"]);
    world.until_none("volumeattachment");
    eventually("the volume to be detached", || {
        world.volume_state(&volume) == "detached"
    });
    world.until_told("Volume", &volume, "Detached", "");
    for reason in ["Detached", "SuccessfulDetachVolume"] {
        world.until_told("PersistentVolumeClaim", "data", reason, "");
    }
    for engine in world.list("lhe") {
        assert_eq!(engine["status"]["currentState"], "stopped", "{engine}");
    }
    let tickets = world.get("lhva", &volume)["spec"]["attachmentTickets"].clone();
    assert!(
        tickets.as_object().is_none_or(serde_json::Map::is_empty),
        "{tickets}"
    );
    assert_eq!(world.leftovers(), [""; 0], "after the pod");

    world.pod("app", "data", None);
    let pod = world.running("app");
    let read = fs::read_to_string(world.path(&pod).join("greeting")).expect("the file");
    assert_eq!(read, "hello");
    world.delete("pod", "app");
    world.until_gone("pod", "app");
    world.delete("pvc", "data");
    for what in ["pvc", "pv", "volumeattachment", "lhv", "lhva", "lhe", "lhr"] {
        world.until_none(what);
    }
    assert_eq!(world.leftovers(), [""; 0], "after the claim");
    for node in world.list("lhn") {
        let disks = world
            .node_folder(node["metadata"]["name"].as_str().expect("a name"))
            .join("disks");
        eventually("the data to be gone", || !holds(&disks, &volume));
    }
}

/// Each replica is accounted for on the disk where it is.
fn disks_say_what_they_hold(world: &World, volume: &str) {
    let mut replicas: Vec<String> = world
        .list("lhr")
        .iter()
        .filter_map(|replica| Some(replica["metadata"]["name"].as_str()?.to_owned()))
        .collect();
    replicas.sort_unstable();
    assert_eq!(replicas.len(), 3, "replicas of {volume}");
    eventually("the disks to account for the replicas", || {
        let mut held = Vec::new();
        for node in world.list("lhn") {
            let disks = node["status"]["diskStatus"].as_object();
            for disk in disks.into_iter().flat_map(|disks| disks.values()) {
                let scheduled = disk["scheduledReplica"].as_object();
                let is_whole = disk["storageScheduled"].as_i64() == Some(1 << 30);
                let whole = scheduled
                    .into_iter()
                    .flatten()
                    .filter(|(_, bytes)| is_whole && bytes.as_i64() == Some(1 << 30));
                held.extend(whole.map(|(replica, _)| replica.clone()));
            }
        }
        held.sort_unstable();
        held == replicas
    });
}

fn every_hop_is_written(world: &World, volume: &str, node: &str) {
    let pv = world.get("pv", volume);
    assert_eq!(pv["spec"]["csi"]["driver"], "driver.longhorn.io");
    assert_eq!(pv["spec"]["csi"]["volumeHandle"], volume);
    assert_eq!(pv["spec"]["claimRef"]["name"], "data");
    assert_eq!(pv["status"]["phase"], "Bound");

    let attachments = world.list("volumeattachment");
    let [attachment] = &attachments[..] else {
        panic!("one VolumeAttachment, not {attachments:?}");
    };
    assert_eq!(attachment["spec"]["attacher"], "driver.longhorn.io");
    assert_eq!(attachment["spec"]["nodeName"], node);
    assert_eq!(attachment["spec"]["source"]["persistentVolumeName"], volume);
    assert_eq!(attachment["status"]["attached"], true);
    let finalizers = attachment["metadata"]["finalizers"]
        .as_array()
        .expect("finalizers");
    assert!(
        finalizers.contains(&"external-attacher/driver-longhorn-io".into()),
        "{finalizers:?}"
    );

    let id = attachment["metadata"]["name"].as_str().expect("a name");
    let tickets = world.get("lhva", volume);
    let ticket = &tickets["spec"]["attachmentTickets"][id];
    assert_eq!(ticket["type"], "csi-attacher");
    assert_eq!(ticket["nodeID"], node);
    let status = &tickets["status"]["attachmentTicketStatuses"][id];
    assert_eq!(status["satisfied"], true, "{status}");
    assert_eq!(status["generation"], ticket["generation"]);

    let object = world.get("lhv", volume);
    assert_eq!(object["spec"]["nodeID"], node);
    assert_eq!(object["status"]["state"], "attached");
    assert_eq!(object["status"]["currentNodeID"], node);
    assert_eq!(object["status"]["epoch"], 1);
    world.until_robust(volume);

    let engines = world.list("lhe");
    let [engine] = &engines[..] else {
        panic!("one engine, not {engines:?}");
    };
    assert_eq!(engine["spec"]["volumeName"], volume);
    assert_eq!(engine["spec"]["nodeID"], node);
    assert_eq!(engine["status"]["currentState"], "running");
    let device = engine["status"]["endpoint"].as_str().expect("a device");
    let kind = fs::metadata(device).expect("the device").file_type();
    assert!(kind.is_block_device(), "{device}");
    assert_eq!(
        engine["status"]["fencedReplicas"].as_array().map(Vec::len),
        Some(3)
    );

    let replicas = world.list("lhr");
    let mut nodes: Vec<&str> = replicas
        .iter()
        .filter_map(|replica| replica["spec"]["nodeID"].as_str())
        .collect();
    nodes.sort_unstable();
    assert_eq!(nodes, ["node-1", "node-2", "node-3"]);
    for replica in &replicas {
        assert_eq!(replica["status"]["currentState"], "running");
        assert_eq!(replica["status"]["acceptedEpoch"], 1, "{replica}");
    }
    let unique = format!("kubernetes.io/csi/driver.longhorn.io^{volume}");
    let kube_node = world.get("node", node);
    let names = |field: &Value| field.to_string();
    assert!(
        names(&kube_node["status"]["volumesInUse"]).contains(&unique),
        "{kube_node}"
    );
    assert!(
        names(&kube_node["status"]["volumesAttached"]).contains(&unique),
        "{kube_node}"
    );
}

/// The commands with which Kubernetes' and Longhorn's own documents look for a stuck volume.
fn the_debugging_commands_of_the_documents_answer(world: &World, volume: &str) {
    let prints = |line: &str, part: &str| {
        let line = line.replace("VOLUME", volume);
        let words: Vec<&str> = line.split_whitespace().collect();
        let text = world.kubectl.prints(&words);
        assert!(
            text.contains(part),
            "kubectl {line}: {part:?} is not in\n{text}"
        );
    };
    prints("get volumeattachment", "driver.longhorn.io");
    prints("get volumeattachments", "true");
    prints(
        "-n longhorn-system get volumeattachments.longhorn.io VOLUME -o yaml",
        "csi-attacher",
    );
    prints(
        "-n longhorn-system get volumes.longhorn.io VOLUME",
        "attached",
    );
    prints("-n longhorn-system get engines.longhorn.io", "running");
    prints(
        "-n longhorn-system get replicas.longhorn.io -l longhornvolume=VOLUME",
        "running",
    );
    prints("-n longhorn-system get nodes.longhorn.io", "True");
    prints("describe pod app", "SuccessfulAttachVolume");
    prints("get events", "SuccessfulAttachVolume");
    prints("get node -o wide", "Ready");
    prints("get csinode", "1");
}

#[test]
fn xfs_and_raw_block_work_too() {
    let world = World::new(3);
    world.apply_example("xfs.yaml");
    world.apply_example("raw-block.yaml");
    let path = world.path(&world.running("xfs"));
    assert_eq!(file_system(&path), "xfs");
    fs::write(path.join("file"), "data").expect("a file");

    let device = world.path(&world.running("raw"));
    let kind = fs::metadata(&device).expect("the device").file_type();
    assert!(kind.is_block_device(), "{}", device.display());
    let written = vec![0x5a_u8; 1 << 20];
    fs::write(&device, &written).expect("the device takes a write");
    let mut read = vec![0; written.len()];
    use std::io::Read as _;
    fs::File::open(&device)
        .and_then(|mut file| file.read_exact(&mut read))
        .expect("a read");
    assert!(read == written, "the device gives back what was written");
    for name in ["xfs", "raw"] {
        world.delete("pod", name);
        world.until_gone("pod", name);
        world.delete("pvc", name);
    }
    for what in ["pv", "lhv", "lhr"] {
        world.until_none(what);
    }
    assert_eq!(world.leftovers(), [""; 0]);
}

#[test]
fn the_demo_moves_a_file_from_node_to_node() {
    let world = World::new(3);
    let kubeconfig = world.cluster.kubeconfig();
    let output = std::process::Command::new(crate::support::lariat())
        .args(["demo", "--kubeconfig"])
        .arg(&kubeconfig)
        .output()
        .expect("the demo runs");
    let said = crate::support::kubectl::everything(&output);
    assert!(output.status.success(), "{said}");
    for part in [
        "moved to node-",
        "the file says: written on node-",
        "█",
        "ticket satisfied",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    for what in ["pod", "pvc", "pv", "volumeattachment", "lhv"] {
        world.until_none(what);
    }
    assert_eq!(world.leftovers(), [""; 0]);
}

#[test]
fn the_benchmark_says_how_soon_a_publish_is_answered() {
    let world = World::new(3);
    let kubeconfig = world.cluster.kubeconfig();
    let output = std::process::Command::new(crate::support::lariat())
        .args(["bench", "attach", "--pods", "3", "--kubeconfig"])
        .arg(&kubeconfig)
        .output()
        .expect("the benchmark runs");
    let said = crate::support::kubectl::everything(&output);
    assert!(output.status.success(), "{said}");
    let what = "ticket satisfied to attached for Kubernetes";
    let line = said.lines().find(|line| line.starts_with(what));
    let line = line.unwrap_or_else(|| panic!("{what:?} is not in {said}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let [.., "p50", half, "ms", "p99", most, "ms"] = words[..] else {
        panic!("no times in {line:?}");
    };
    let (half, most): (f64, f64) = (
        half.parse().expect("milliseconds"),
        most.parse().expect("milliseconds"),
    );
    assert!(half <= most, "{line}");
    world.until_none("lhv");
}

fn file_system(path: &Path) -> String {
    let path = path.to_string_lossy();
    let mounts = fs::read_to_string("/proc/self/mounts").expect("the mounts");
    let line = mounts
        .lines()
        .find(|line| line.split(' ').nth(1) == Some(&path));
    let line = line.unwrap_or_else(|| panic!("{path} is not mounted"));
    line.split(' ').nth(2).expect("a type").to_owned()
}
