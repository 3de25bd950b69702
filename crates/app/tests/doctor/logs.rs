//! Logs in the archive of `lariat support-bundle`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::clinic::{Answer, run};
use crate::scripted::{self, Answered, answered, refused};
use crate::support::eventually;
use crate::world::World;

const PODS: &str = "/api/v1/namespaces/longhorn-system/pods";

/// The files of an archive, without the folder that they are in.
fn unpacked(archive: &Path) -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let done = Command::new("tar")
        .args(["--strip-components=1", "-xzf"])
        .arg(archive)
        .arg("-C")
        .arg(folder.path())
        .status();
    assert!(done.expect("tar runs").success());
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.path().to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder.path()).expect("inside of it");
            let text = std::fs::read_to_string(&path).expect("text");
            files.insert(name.to_string_lossy().into_owned(), text);
        }
    }
    files
}

fn made(kubeconfig: &Path, data_dir: &Path) -> (Answer, BTreeMap<String, String>) {
    let archive = data_dir.join("bundle.tar.gz");
    let (data, output) = (data_dir.to_string_lossy(), archive.to_string_lossy());
    let command = ["support-bundle", "--data-dir", &data, "--output", &output];
    let answer = run(kubeconfig, &command);
    assert_eq!(answer.code, 0, "{}", answer.errors);
    let files = unpacked(&archive);
    (answer, files)
}

/// What the parts of a cluster on this machine really wrote, and its engines. Most of them say nothing when all is well.
#[test]
fn logs_of_this_machine_are_in_the_archive() {
    let world = World::with_environment(3, &[("LARIAT_LOG", "info,controllers=debug")]);
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-1"));
    world.running("app");
    let volume = world.volume_of("data");
    let (_, files) = made(&world.cluster.kubeconfig(), world.cluster.folder());
    let engine = format!("logs/engines/node-1/{volume}.log");
    for name in ["logs/manager.log", "logs/node-1.log", &engine] {
        let text = files.get(name).unwrap_or_else(|| panic!("no {name}"));
        assert!(text.contains("INFO"), "{name}: {text}");
    }
    let of_pods = files.keys().find(|name| name.starts_with("logs/pods"));
    assert_eq!(of_pods, None, "its parts are no pods");
    each_look_names_its_object(&world, &volume);
}

/// Whoever searches the manager's log for an object finds who looked at it. Two parts have no row: the reaper and the keeper of the
/// attachments' state look at everything at once.
fn each_look_names_its_object(world: &World, volume: &str) {
    world.apply_example("statefulset.yaml");
    // Detached: its snapshot cannot be taken before a ticket is filed for it.
    world.claim("idle", "longhorn", "Filesystem");
    let idle = world.bound("idle");
    world.create(&json!({
        "apiVersion": "longhorn.io/v1beta2", "kind": "Snapshot", "metadata": {"name": "before"},
        "spec": {"volume": idle, "createSnapshot": true},
    }));
    eventually("the snapshot to be ready", || {
        world.get("lhsnap", "before")["status"]["readyToUse"] == true
    });
    world.power_off("node-3");
    let log = world.cluster.folder().join("logs/manager.log");
    for (span, key, object) in [
        ("volume", "volume.name", volume),
        ("attachment", "volume.name", volume),
        ("holders", "volume.name", idle.as_str()),
        ("snapshots", "volume.name", idle.as_str()),
        ("node", "node.name", "node-3"),
        ("node_lifecycle", "node.name", "node-3"),
        ("attach_detach", "volume.name", volume),
        ("attacher", "attachment.name", "csi-"),
        ("binder", "claim", "default/data"),
        ("scheduler", "pod", "default/app"),
        ("stateful_set", "set", "default/db"),
    ] {
        let begin = format!("{span}{{{key}={object}");
        eventually(&format!("the manager's log to have {begin}"), || {
            let text = std::fs::read_to_string(&log).expect("the manager's log");
            text.split([' ', ':']).any(|word| word.starts_with(&begin))
        });
    }
}

fn pod(name: &str, component: &str, containers: &[&str], restarts: u32) -> Value {
    let listed = |more: fn(&str, u32) -> Value| -> Vec<Value> {
        let containers = containers.iter();
        containers.map(|name| more(name, restarts)).collect()
    };
    // Every container of it has restarted as often.
    let specs = listed(|name, _| json!({"name": name, "image": "none"}));
    let statuses = listed(
        |name, restarts| json!({"name": name, "restartCount": restarts, "ready": true, "image": "none", "imageID": ""}),
    );
    json!({
        "metadata": {
            "name": name, "namespace": "longhorn-system",
            "labels": {"app.kubernetes.io/name": "lariat", "app.kubernetes.io/component": component},
        },
        "spec": {"containers": specs}, "status": {"containerStatuses": statuses},
    })
}

/// A manager whose logs can be read, a node of which one container has none yet, and another whose kubelet does not answer.
fn cluster_elsewhere(request: &str) -> Answered {
    let (path, query) = request.split_once('?').unwrap_or((request, ""));
    let asked = |parameter: &str| query.split('&').any(|one| one == parameter);
    if path == PODS {
        // A list for all pods of the namespace would have others' pods in it.
        let is_ours = query.contains("labelSelector=app.kubernetes.io%2Fname%3Dlariat");
        assert!(is_ours, "{query}");
        let pods = [
            pod("lariat-manager-1", "manager", &["manager", "attacher"], 1),
            pod("lariat-node-1", "node", &["node", "registrar"], 0),
            pod("lariat-node-2", "node", &["node"], 0),
        ];
        return answered(&json!({"metadata": {}, "items": pods}));
    }
    let log = path
        .strip_prefix(PODS)
        .and_then(|path| path.strip_suffix("/log"));
    let Some(log) = log.map(|name| name.trim_start_matches('/')) else {
        return scripted::empty_cluster(path);
    };
    assert!(asked("tailLines=20000"), "{query}");
    let what = if asked("previous=true") {
        "previous"
    } else {
        "current"
    };
    match log {
        "lariat-node-1" if asked("container=registrar") => refused(
            400,
            "container \"registrar\" is waiting to start: token=sesame",
        ),
        "lariat-node-2" => refused(500, "dial tcp 10.0.0.2:10250: no route to host"),
        _ => answered(&format!(
            "INFO {log} {what} begins\nWARN backup to s3://id:hunter2@host/x with password=swordfish"
        )),
    }
}

/// What this does not show: a kubelet. The paths, parameters and refusals are those of the Kubernetes API reference; that
/// `tailLines` gives the last lines is the kubelet's part.
#[test]
fn logs_of_pods_come_through_the_api() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = scripted::serve(cluster_elsewhere);
    let kubeconfig = scripted::kubeconfig_of(folder.path(), &server);
    let (answer, files) = made(&kubeconfig, folder.path());
    let told = "logs/pods/lariat-node-2/node.log: dial tcp 10.0.0.2:10250: no route to host";
    assert!(answer.errors.contains(told), "{}", answer.errors);
    assert!(answer.errors.contains("1 more in"), "{}", answer.errors);

    let log = |pod: &str, what: &str| {
        format!(
            "INFO {pod} {what} begins\nWARN backup to s3://REDACTED@host/x with password=REDACTED\n"
        )
    };
    let manager = |what: &str| log("lariat-manager-1", what);
    let unread = format!(
        "{told}\nlogs/pods/lariat-node-1/registrar.log: container \"registrar\" is waiting to start: token=REDACTED\n"
    );
    let expected = [
        ("lariat-manager-1/attacher.log", manager("current")),
        (
            "lariat-manager-1/attacher.previous.log",
            manager("previous"),
        ),
        ("lariat-manager-1/manager.log", manager("current")),
        ("lariat-manager-1/manager.previous.log", manager("previous")),
        ("lariat-node-1/node.log", log("lariat-node-1", "current")),
        ("unread.txt", unread),
    ];
    let expected = expected.map(|(name, text)| (format!("logs/pods/{name}"), text));
    let logs = files
        .into_iter()
        .filter(|(name, _)| name.starts_with("logs/"));
    assert_eq!(logs.collect::<Vec<_>>(), expected);
}

/// The rest of the archive is worth having without them.
#[test]
fn an_account_that_may_not_list_pods_gets_an_archive_without_logs() {
    let script = |request: &str| match request.split('?').next() {
        Some(PODS) => refused(403, "pods is forbidden: User \"bob\" cannot list them"),
        path => scripted::empty_cluster(path.unwrap_or_default()),
    };
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = scripted::kubeconfig_of(folder.path(), &scripted::serve(script));
    let (answer, files) = made(&kubeconfig, folder.path());
    let told = "User \"bob\" cannot list them";
    assert!(answer.errors.contains(told), "{}", answer.errors);
    assert!(files["logs/pods/unread.txt"].contains(told), "{files:?}");
    assert!(files.contains_key("findings.txt"));
}
