//! `lariat up`, `lariat down` and `lariat demo`.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

use crate::scene::Scene;
use crate::support::eventually;

/// Root without the right to pass over the rights of files.
const NOBODYS_FRIEND: &str = "setpriv --bounding-set=-dac_override,-dac_read_search";
const NOBODY: u32 = 65534;

#[test]
fn an_api_alone_from_its_start_to_its_end() {
    let mut scene = Scene::new();
    scene.play("lariat down --data-dir FOLDER/c");
    let up = "lariat up --listen 127.0.0.1:0 --nodes 0 --data-dir FOLDER/c";
    let mut first = scene.begin(up);
    first.until("ready in");
    scene.play(up);
    scene.play("lariat demo --kubeconfig FOLDER/c/kubeconfig");
    scene.play("lariat down --data-dir FOLDER/c");
    scene.end(first);
    scene.play("lariat down --data-dir FOLDER/c");
    // It finds what the first has made.
    let mut second = scene.begin(up);
    second.until("ready in");
    second.signal(Signal::INT);
    scene.end(second);
    scene.play("lariat demo --kubeconfig FOLDER/c/kubeconfig");
    scene.check("up-api-alone");
}

#[test]
fn an_up_or_down_that_cannot_be_is_refused() {
    let mut scene = Scene::new();
    for listen in ["nonsense", "127.0.0.1", "7443"] {
        scene.play(&format!("lariat up --listen {listen} --data-dir FOLDER/c"));
    }
    scene.play("lariat up --nodes many --data-dir FOLDER/c");
    scene.play("lariat up --nodes 65 --data-dir FOLDER/c");
    scene.play("setpriv --bounding-set=-sys_admin lariat up --data-dir FOLDER/c");
    assert!(!scene.path("c").exists(), "refused before anything is made");

    let up = "lariat up --nodes 0 --data-dir FOLDER/c --listen";
    scene.play(&format!("{up} 127.0.0.1:TAKEN"));
    scene.play(&format!("{up} 192.0.2.1:7443"));

    scene.write("file", "");
    for command in ["up --nodes 0 --listen 127.0.0.1:0", "down"] {
        scene.play(&format!("lariat {command} --data-dir FOLDER/file"));
        scene.play(&format!("lariat {command} --data-dir FOLDER/file/below"));
    }
    let theirs = scene.path("theirs");
    fs::create_dir(&theirs).expect("a folder");
    fs::set_permissions(&theirs, Permissions::from_mode(0o700)).expect("its mode");
    chown(&theirs, Some(NOBODY), Some(NOBODY)).expect("its owner");
    for command in ["up --nodes 0 --listen 127.0.0.1:0", "down"] {
        scene.play(&format!(
            "{NOBODYS_FRIEND} lariat {command} --data-dir FOLDER/theirs"
        ));
    }

    fs::create_dir(scene.path("odd")).expect("a folder");
    scene.write("odd/lariat.pid", "soon");
    let locked = File::open(scene.path("odd/lariat.pid")).expect("the file");
    flock(&locked, FlockOperation::LockExclusive).expect("the lock");
    scene.play("lariat down --data-dir FOLDER/odd");

    for file in ["ca.key", "ca.crt"] {
        fs::create_dir_all(scene.path("keyless")).expect("a folder");
        scene.write(&format!("keyless/{file}"), "no key");
    }
    scene.play("lariat up --nodes 0 --listen 127.0.0.1:0 --data-dir FOLDER/keyless");
    fs::create_dir_all(scene.path("torn")).expect("a folder");
    scene.write("torn/store", "no folder");
    scene.play("lariat up --nodes 0 --listen 127.0.0.1:0 --data-dir FOLDER/torn");
    scene.check("up-refused");
}

#[test]
fn a_cluster_its_demo_and_a_node_that_dies() {
    let mut scene = Scene::new();
    let mut up = scene.begin("lariat up --listen 127.0.0.1:0 --data-dir FOLDER/c");
    up.until("ready in");
    let demo = "lariat demo --kubeconfig FOLDER/c/kubeconfig";
    scene.play(demo);
    scene.play(&format!("{demo} --storage-class longhorn-zfs"));
    scene.play(&format!("{demo} --storage-class gold"));
    for node in ["node-2", "node-3"] {
        scene.play(&format!(
            "lariat node cordon {node} --kubeconfig FOLDER/c/kubeconfig"
        ));
    }
    scene.play(demo);

    kill_agent(&scene, "node-3");
    up.until("is started again");
    scene.play("lariat down --data-dir FOLDER/c");
    scene.end(up);
    scene.check("up-demo-down");
}

/// Ends a node's agent without a word.
fn kill_agent(scene: &Scene, node: &str) {
    let folder = scene.path("c/nodes").join(node);
    let folder = folder.to_string_lossy();
    let agent = |line: &str| line.contains("node run") && line.contains(folder.as_ref());
    eventually("the agent to be found", || {
        let processes = fs::read_dir("/proc").expect("processes").flatten();
        let found = processes.filter_map(|entry| {
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let pid = entry.file_name().to_str()?.parse().ok()?;
            agent(&line).then_some(pid)
        });
        let found: Vec<i32> = found.collect();
        for pid in found.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            kill_process(pid, Signal::KILL).expect("it can be killed");
        }
        !found.is_empty()
    });
}
