//! `lariat up` from the outside: how it starts, stops, starts again, and whom it lets in.

mod support;

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use support::Cluster;
use support::https::Https;
use support::kubectl::{Kubectl, everything};

fn lariat(arguments: &[&str]) -> Output {
    Command::new(support::lariat())
        .args(arguments)
        .env_remove("LARIAT_LISTEN")
        .env_remove("LARIAT_DATA_DIR")
        .env_remove("LARIAT_NODES")
        .stdin(Stdio::null())
        .output()
        .expect("lariat can be started")
}

#[test]
fn a_second_start_on_one_folder_says_so() {
    let cluster = Cluster::start();
    let folder = cluster.folder().to_str().expect("a path in UTF-8");
    let output = lariat(&["up", "--listen", "127.0.0.1:0", "--data-dir", folder]);
    let said = everything(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in [
        "in use",
        &cluster.pid().to_string(),
        "lariat down --data-dir",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    // The first is none the worse for it.
    let https = Https::connect(&cluster.address(), cluster.folder());
    assert_eq!(https.get("/readyz", ""), 200);
}

#[test]
fn signals_stop_it_and_a_second_start_finds_everything() {
    let mut cluster = Cluster::start();
    let kubectl = Kubectl::new(&cluster.kubeconfig());
    let made = "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: kept}, data: {a: b}}";
    kubectl.feeds(&["create", "-f", "-"], made);
    let everything = || -> Vec<Value> {
        let paths = [
            "/api/v1/configmaps",
            "/api/v1/namespaces",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        ];
        paths
            .map(|path| {
                let list = kubectl.prints(&["get", "--raw", path]);
                let mut list: Value = serde_json::from_str(&list).expect("a list");
                list["items"].take()
            })
            .to_vec()
    };
    let before = everything();
    assert_eq!(before[0].as_array().map(Vec::len), Some(1));
    for signal in [Signal::TERM, Signal::INT] {
        let status = cluster.stop(signal);
        assert_eq!(status.code(), Some(0), "after {signal:?}");
        assert!(!cluster.folder().join("ready").exists(), "after {signal:?}");
        cluster.start_again();
        assert!(everything() == before, "objects differ after {signal:?}");
    }
    cluster.kill();
    cluster.start_again();
    assert!(everything() == before, "objects differ after a kill");
}

#[test]
fn an_open_watch_does_not_keep_it_from_stopping() {
    let mut cluster = Cluster::start();
    let kubectl = Kubectl::new(&cluster.kubeconfig());
    let watch = kubectl.follow(&["get", "ns", "-w", "-o", "name"]);
    watch.read_until("namespace/default");
    assert_eq!(cluster.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn down_stops_it() {
    let mut cluster = Cluster::start();
    let folder = cluster.folder().to_str().expect("a path").to_owned();
    let output = lariat(&["down", "--data-dir", &folder]);
    assert!(output.status.success(), "{}", everything(&output));
    assert!(everything(&output).contains("stopped"));
    assert_eq!(cluster.wait_until_ended().code(), Some(0));
    assert!(!cluster.folder().join("ready").exists());
    let output = lariat(&["down", "--data-dir", &folder]);
    assert!(output.status.success());
    assert!(everything(&output).contains("nothing runs on"));
}

#[test]
fn secrets_are_for_their_owner_alone() {
    let cluster = Cluster::start();
    let check = |name: &str, expected: u32| {
        let metadata = fs::metadata(cluster.folder().join(name)).expect("it is there");
        assert_eq!(metadata.permissions().mode() & 0o777, expected, "{name}");
    };
    check("kubeconfig", 0o600);
    check("token", 0o600);
    check("ca.key", 0o600);
    check("store", 0o700);
}

#[test]
fn strangers_see_health_and_version_and_nothing_else() {
    let cluster = Cluster::start();
    let check = |path: &str, headers: &str, expected: u16| {
        let https = Https::connect(&cluster.address(), cluster.folder());
        assert_eq!(
            https.get(path, headers),
            expected,
            "{path} with {headers:?}"
        );
    };
    for open in ["/livez", "/readyz", "/healthz", "/version"] {
        check(open, "", 200);
    }
    for closed in [
        "/",
        "/api",
        "/apis",
        "/api/v1/namespaces",
        "/api/v1/secrets",
        "/apis/longhorn.io/v1beta2/volumes",
        "/openapi/v2",
        "/openapi/v3",
        "/metrics",
        "/no/such/path",
        "/version/../api/v1/secrets",
    ] {
        check(closed, "", 401);
        check(closed, "Authorization: Bearer guessed\r\n", 401);
        check(closed, "Authorization: Basic YTpi\r\n", 401);
    }
    let token = format!("Authorization: Bearer {}\r\n", cluster.token());
    check("/api/v1/secrets", &token, 200);
    check("/no/such/path", &token, 404);
}

#[test]
fn slow_clients_do_not_disturb_others() {
    let cluster = Cluster::start();
    let address = cluster.address();
    // Some never speak, some stop in the middle of TLS, some in the middle of a request.
    let silent: Vec<TcpStream> = (0..50)
        .map(|_| TcpStream::connect(&address).expect("the server listens"))
        .collect();
    let mut halfway: Vec<Https> = (0..50)
        .map(|_| Https::connect(&address, cluster.folder()))
        .collect();
    for https in &mut halfway {
        https.send("GET /api/v1/namespaces HTTP/1.1\r\nHost: local");
    }
    let token = format!("Authorization: Bearer {}\r\n", cluster.token());
    for _ in 0..10 {
        let https = Https::connect(&address, cluster.folder());
        assert_eq!(https.get("/api/v1/namespaces", &token), 200);
    }
    drop((silent, halfway));
}

#[test]
fn it_listens_on_loopback_unless_told_otherwise() {
    let help = everything(&lariat(&["up", "--help"]));
    assert!(help.contains("[default: 127.0.0.1:7443]"), "{help}");

    // What the kernel says of the sockets of the process.
    let cluster = Cluster::start();
    let process = format!("/proc/{}", cluster.pid());
    let own: Vec<String> = fs::read_dir(format!("{process}/fd"))
        .expect("the files of the process")
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| {
            let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            Some(inode.to_owned())
        })
        .collect();
    let mut listening = Vec::new();
    for table in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("{process}/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, local, _, state, ..] = fields.as_slice() else {
                continue;
            };
            // 0A is LISTEN; the tenth field is the inode.
            if *state == "0A"
                && own
                    .iter()
                    .any(|inode| fields.get(9) == Some(&inode.as_str()))
            {
                listening.push((*local).to_owned());
            }
        }
    }
    // 127.0.0.1 with its bytes in the order of this machine.
    let loopback = format!("{:08X}:", u32::from_ne_bytes([127, 0, 0, 1]));
    assert_eq!(listening.len(), 1, "{listening:?}");
    assert!(listening[0].starts_with(&loopback), "{listening:?}");
}

#[test]
fn bad_flags_are_refused_with_a_reason() {
    let check = |arguments: &[&str], part: &str| {
        let output = lariat(arguments);
        let said = everything(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
    };
    check(&["up", "--listen", "nonsense"], "--listen");
    check(&["up", "--nodes", "65"], "--nodes");
    check(&["up", "--nodes", "many"], "--nodes");
    check(&["up", "--bogus"], "--bogus");
    check(&["crds", "-o", "xml"], "xml");
    check(&["completions", "abacus"], "abacus");
    check(&["frobnicate"], "frobnicate");
    check(&[], "Usage");
}

#[test]
fn a_port_or_folder_that_cannot_be_had_is_said() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("an address").to_string();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_str().expect("a path");
    let check = |arguments: &[&str], part: &str| {
        let output = lariat(arguments);
        let said = everything(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(part), "{said}");
    };
    check(&["up", "--listen", &address, "--data-dir", path], &address);
    let file = folder.path().join("file");
    fs::write(&file, "").expect("a file");
    let below = file.join("below");
    let below = below.to_str().expect("a path");
    check(
        &["up", "--listen", "127.0.0.1:0", "--data-dir", below],
        "choose another with --data-dir",
    );
}

#[test]
fn the_printed_crds_are_accepted_and_completions_are_there() {
    let cluster = Cluster::start();
    let kubectl = Kubectl::new(&cluster.kubeconfig());
    for form in ["yaml", "json"] {
        let printed = lariat(&["crds", "-o", form]);
        assert!(printed.status.success());
        let text = String::from_utf8(printed.stdout).expect("text");
        let said = kubectl.feeds(&["apply", "-f", "-"], &text);
        assert_eq!(said.lines().count(), 13, "{said}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = lariat(&["completions", shell]);
        assert!(script.status.success(), "{shell}");
        let script = String::from_utf8(script.stdout).expect("text");
        assert!(script.contains("COMPLETE"), "{shell}");
    }
}

#[test]
fn a_manager_waits_for_an_api_that_is_not_there_yet() {
    let mut cluster = Cluster::start();
    let kubectl = Kubectl::new(&cluster.kubeconfig());
    cluster.kill();
    let log = cluster.folder().join("manager.log");
    let output = fs::File::create(&log).expect("a log");
    let mut manager = Command::new(support::lariat())
        .args([
            "manager",
            "--embedded",
            "--exit-with-parent",
            "--kubeconfig",
        ])
        .arg(cluster.kubeconfig())
        .arg("--csi-socket")
        .arg(cluster.folder().join("csi.sock"))
        .stdin(Stdio::piped())
        .stdout(output.try_clone().expect("the log"))
        .stderr(output)
        .spawn()
        .expect("lariat can be started");
    support::eventually("a line about an API that does not answer", || {
        let ended = manager.try_wait().expect("the process can be asked");
        assert_eq!(ended, None, "it waits");
        let said = fs::read_to_string(&log).expect("the log");
        said.contains("trying again")
    });

    cluster.start_again();
    // It works now: a claim becomes a volume, which takes the binder, the provisioner and the CSI service.
    let class = "---\n{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: plain}, \
        provisioner: driver.longhorn.io}";
    let claim = "---\n{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data}, spec: {storageClassName: plain, \
        accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}";
    for object in [class, claim] {
        kubectl.feeds(&["create", "-f", "-"], object);
    }
    support::eventually("the claim to be bound", || {
        let phase = kubectl.prints(&["get", "pvc", "data", "-o", "jsonpath={.status.phase}"]);
        phase == "Bound"
    });
    assert_eq!(manager.try_wait().expect("asked"), None, "the same process");
    drop(manager.stdin.take());
    manager.wait().expect("it ends with its parent");
}
