//! Lariat on that control plane: `deploy/` applied, and each part run as its manifest says, with the rights of its account.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::control_plane::{ControlPlane, KUBELET, PERSON, Part, program};
use crate::support::{clear_leftovers, eventually, lariat, show_logs};

const NAMESPACE: &str = "longhorn-system";
const ACCOUNTS: [&str; 2] = ["lariat-manager", "lariat-node"];

/// One at a time: a machine of two cores has enough to do with that.
pub static ONE: Mutex<()> = Mutex::new(());

/// Who makes calls to the driver of VolumeAttachments.
#[derive(Clone, Copy, Debug)]
pub enum Attacher {
    /// `lariat attacher`, as the base has it.
    Lariat,
    /// The external-attacher, as the overlay `csi-attacher` has it.
    External,
}

/// Flags of the overlay that came after the release of the external-attacher which can be built (`conformance/attacher`).
const NEWER_FLAGS: [&str; 2] = ["--reconcile-sync=", "--default-fstype="];

impl Attacher {
    fn program(self) -> PathBuf {
        match self {
            Self::Lariat => PathBuf::from(lariat()),
            Self::External => program("csi-attacher").expect("csi-attacher"),
        }
    }

    /// As its container has them.
    fn arguments(self, socket: &Path) -> Vec<String> {
        let (file, container) = match self {
            Self::Lariat => ("base/manager.yaml", "attacher"),
            Self::External => ("overlays/csi-attacher/attacher.yaml", "csi-attacher"),
        };
        let manifest = workload(file, "Deployment");
        let mut arguments = arguments(&manifest, container, socket, Path::new(""));
        if matches!(self, Self::External) {
            arguments.retain(|argument| !NEWER_FLAGS.iter().any(|flag| argument.starts_with(flag)));
        }
        arguments
    }
}

/// What one run has: three nodes and two managers, each with its sidecars.
pub struct Installation {
    pub plane: ControlPlane,
    attacher: Attacher,
    kubectl: PathBuf,
    managers: BTreeMap<String, Vec<Part>>,
    nodes: BTreeMap<String, Part>,
    // After the parts, which have their files in it.
    folder: tempfile::TempDir,
    _one: MutexGuard<'static, ()>,
}

/// Says which programs are missing, before any is started.
fn require_programs() {
    let needed = [
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kubectl",
        "csi-attacher",
        "csi-provisioner",
    ];
    let missing: Vec<&str> = needed
        .into_iter()
        .filter(|name| program(name).is_none())
        .collect();
    let variable = crate::control_plane::PROGRAMS;
    assert!(
        missing.is_empty(),
        "{variable} names no folder with {missing:?}; `cargo xtask conformance kubernetes` builds them and runs this"
    );
}

pub fn deploy() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("a workspace").join("deploy")
}

impl Installation {
    pub fn new(managers: usize, attacher: Attacher) -> Self {
        require_programs();
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        // Sockets have short paths.
        let folder = tempfile::Builder::new().prefix("lk").tempdir_in("/tmp");
        let folder = folder.expect("a temporary folder");
        let plane = ControlPlane::start(folder.path());
        let mut installation = Self {
            plane,
            attacher,
            kubectl: program("kubectl").expect("kubectl"),
            managers: BTreeMap::new(),
            nodes: BTreeMap::new(),
            folder,
            _one: one,
        };
        installation.apply();
        for number in 1..=managers {
            installation.start_manager(&format!("manager-{number}"));
        }
        for number in 1..=3 {
            installation.start_node(&format!("node-{number}"));
        }
        installation.until_ready();
        installation
    }

    /// Everything of `deploy/`, as `docs/install.md` says it.
    fn apply(&self) {
        let folder = deploy();
        let folder = folder.to_string_lossy();
        self.kubectl(&["apply", "--server-side", "-k", &format!("{folder}/crds")]);
        self.kubectl(&["wait", "--for=condition=Established", "crd", "--all"]);
        // Overlays before the base: what a StorageClass says is not changed afterwards.
        let namespace = format!("{folder}/base/namespace.yaml");
        self.kubectl(&["apply", "--server-side", "-f", &namespace]);
        self.try_all_of(&deploy());
        self.kubectl(&["apply", "--server-side", "-k", &folder]);
        let stand_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubernetes/kubelet.yaml");
        self.kubectl(&["apply", "-f", &stand_in.to_string_lossy()]);
        // All nodes share this machine's disk with whatever else is on it.
        let setting = json!({
            "apiVersion": "longhorn.io/v1beta2", "kind": "Setting", "value": "1",
            "metadata": {"name": "storage-minimal-available-percentage", "namespace": NAMESPACE},
        });
        self.create(&setting);
        for account in ACCOUNTS {
            let token = self.kubectl(&["-n", NAMESPACE, "create", "token", account]);
            self.plane.kubeconfig(account, token.trim());
            self.write_account(account, token.trim());
        }
    }

    /// Shows all ways to install it to the API server, once in a run.
    fn try_all_of(&self, deploy: &Path) {
        static TRIED: AtomicBool = AtomicBool::new(false);
        if TRIED.swap(true, Ordering::Relaxed) {
            return;
        }
        let dry_run = ["apply", "--server-side", "--dry-run=server"];
        let path = |name: &str| deploy.join(name).display().to_string();
        // What others define has to be there. Of a ServiceMonitor only that it is one is looked at.
        let others = api_types::snapshot_crds().into_iter().map(|crd| json!(crd));
        for definition in others.chain([service_monitors()]) {
            self.create(&definition);
        }
        self.kubectl(&["wait", "--for=condition=Established", "crd", "--all"]);
        for overlay in ["csi-attacher", "one-manager", "metrics"] {
            let overlay = path(&format!("overlays/{overlay}"));
            self.kubectl(&[&dry_run[..], &["-k", &overlay]].concat());
        }
        let class = path("components/snapshot-class/volumesnapshotclass.yaml");
        self.kubectl(&[&dry_run[..], &["-f", &class]].concat());
        let changed = [
            "manager.replicas=1",
            "storageClass.replicas=2",
            "node.maxVolumes=0",
            "replicaTls=required",
        ];
        let version: Value =
            serde_json::from_str(&self.kubectl(&["version", "-o", "json"])).expect("JSON");
        let version = version["serverVersion"]["gitVersion"].as_str();
        for values in [&[][..], &changed[..]] {
            let rendered = self.path("chart.yaml");
            let set = values.iter().flat_map(|value| ["--set", value]);
            let helm = Command::new(program("helm").expect("helm"))
                .args(["template", "lariat", &path("helm/lariat")])
                .args(["--kube-version", version.expect("a version")])
                .args(set)
                .env("HOME", self.folder.path())
                .stdout(File::create(&rendered).expect("a file"))
                .status();
            assert!(helm.expect("helm runs").success(), "{values:?}");
            self.kubectl(&[&dry_run[..], &["-f", &rendered.to_string_lossy()]].concat());
        }
    }

    /// The files that a pod finds of its account.
    fn write_account(&self, account: &str, token: &str) {
        let folder = self.path("accounts").join(account);
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("token"), token).expect("a token");
        fs::write(folder.join("namespace"), NAMESPACE).expect("a namespace");
        fs::copy(self.path("pki/apiserver.crt"), folder.join("ca.crt")).expect("a certificate");
    }

    /// Runs a program as in a pod of an account: it finds the API and its token where pods find them, which nobody else
    /// on this machine sees.
    fn in_pod(&self, account: &str, program: &Path) -> Command {
        let script = "mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io \
            && cp -r \"$1\" /run/secrets/kubernetes.io/serviceaccount \
            && { [ ! -d /var/lib/lariat ] || mount -t tmpfs none /var/lib/lariat; } \
            && shift && exec \"$@\"";
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .arg("sh")
            .arg(self.path("accounts").join(account))
            .arg(program)
            .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
            .env("KUBERNETES_SERVICE_PORT", self.plane.port().to_string())
            .env_remove("KUBECONFIG")
            .env_remove("LARIAT_DATA_DIR");
        command
    }

    /// Runs kubectl as the administrator; what it prints.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.try_kubectl(arguments)
            .unwrap_or_else(|complaint| panic!("kubectl {arguments:?}: {complaint}"))
    }

    pub fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.kubectl_with(&self.plane.administrator(), arguments)
    }

    fn kubectl_with(&self, kubeconfig: &Path, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new(&self.kubectl)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(arguments)
            .env("HOME", self.folder.path())
            .output()
            .expect("kubectl runs");
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// Runs lariat as the administrator; what it prints, and how it ends.
    pub fn lariat(&self, arguments: &[&str]) -> (String, Option<i32>) {
        self.lariat_with(&self.plane.administrator(), arguments)
    }

    /// The same as somebody who has the rights that this cluster gives people, and no others.
    pub fn lariat_as_person(&self, arguments: &[&str]) -> (String, Option<i32>) {
        self.lariat_with(&self.account(PERSON), arguments)
    }

    fn lariat_with(&self, kubeconfig: &Path, arguments: &[&str]) -> (String, Option<i32>) {
        let output = Command::new(lariat())
            .args(arguments)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .output();
        answer(output.expect("lariat runs"))
    }

    /// The same as `kubectl exec` runs it in a pod of an account, where there is no kubeconfig.
    pub fn lariat_in_pod(&self, account: &str, arguments: &[&str]) -> (String, Option<i32>) {
        let mut command = self.in_pod(account, Path::new(lariat()));
        let output = command.args(arguments).output();
        answer(output.expect("lariat runs"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn account(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.kubeconfig"))
    }

    /// A pod of the manager's Deployment: manager, attacher and provisioner, with one socket between them.
    pub fn start_manager(&mut self, name: &str) {
        let socket = self.path(&format!("{name}.sock"));
        let manifest = workload("base/manager.yaml", "Deployment");
        let of_base = |container: &str| arguments(&manifest, container, &socket, Path::new(""));
        let mut parts = Vec::new();
        for (container, program, arguments) in [
            ("manager", PathBuf::from(lariat()), of_base("manager")),
            (
                "attacher",
                self.attacher.program(),
                self.attacher.arguments(&socket),
            ),
            (
                "csi-provisioner",
                program("csi-provisioner").expect("csi-provisioner"),
                of_base("csi-provisioner"),
            ),
        ] {
            let mut command = self.in_pod("lariat-manager", &program);
            command
                .args(arguments)
                .env("LARIAT_LOG", "info,controllers=debug")
                .env("LARIAT_NAMESPACE", NAMESPACE);
            let log = format!("{name}-{container}");
            parts.push(Part::start(self.folder.path(), &log, &mut command));
        }
        self.managers.insert(name.to_owned(), parts);
    }

    /// A pod of the node's DaemonSet, and a stand-in for the kubelet of its node.
    pub fn start_node(&mut self, name: &str) {
        let folder = self.path("nodes").join(name);
        let manifest = workload("base/node.yaml", "DaemonSet");
        let socket = folder.join("csi.sock");
        fs::create_dir_all(&folder).expect("a folder");
        let mut command = Command::new(lariat());
        command
            .args(arguments(&manifest, "node", &socket, &folder))
            .arg("--embedded")
            .arg("--kubelet-kubeconfig")
            .arg(self.plane.kubelet())
            .arg("--kubeconfig")
            .arg(self.account("lariat-node"))
            .env("LARIAT_NODE_NAME", name)
            .env("LARIAT_NODE_HOST", "127.0.0.1")
            .env("LARIAT_LOG", "info,node_agent=debug");
        let part = Part::start(self.folder.path(), name, &mut command);
        self.nodes.insert(name.to_owned(), part);
    }

    fn until_ready(&self) {
        // Pods are refused before the controller manager has made their account.
        eventually("the pods' account", || {
            self.get(&["serviceaccount", "default"]).is_some()
        });
        eventually("all nodes to be ready", || {
            let nodes = self.list(&["nodes"]);
            nodes.len() == 3 && nodes.iter().all(|node| condition(node, "Ready") == "True")
        });
        eventually("all agents to be alive", || {
            let nodes = self.list(&["-n", NAMESPACE, "nodes.longhorn.io"]);
            nodes.len() == 3 && nodes.iter().all(|node| condition(node, "Ready") == "True")
        });
    }

    pub fn list(&self, what: &[&str]) -> Vec<Value> {
        let text = self.kubectl(&[&["get", "-o", "json"], what].concat());
        let mut list: Value = serde_json::from_str(&text).expect("JSON");
        let items = list["items"].as_array_mut().map(std::mem::take);
        items.unwrap_or_default()
    }

    pub fn get(&self, what: &[&str]) -> Option<Value> {
        let text = self.try_kubectl(&[&["get", "-o", "json"], what].concat());
        serde_json::from_str(&text.ok()?).ok()
    }

    /// Kills one manager with its sidecars.
    pub fn kill_manager(&mut self, name: &str) {
        for part in self.managers.get_mut(name).into_iter().flatten() {
            part.kill();
        }
    }

    /// A node loses its power: nothing of it runs any more.
    pub fn power_off(&mut self, node: &str) {
        drop(self.nodes.remove(node));
        let folder = self.path("nodes").join(node).to_string_lossy().into_owned();
        eventually("the node's processes to end", || {
            let left = processes(&folder);
            for pid in left.iter().filter_map(|pid| Pid::from_raw(*pid)) {
                kill_process(pid, Signal::KILL).ok();
            }
            left.is_empty()
        });
    }

    /// Requests of ours that were refused: every one of them is a right that `deploy/` does not give, or an object that
    /// Kubernetes would not have.
    pub fn refusals(&self) -> Vec<String> {
        let ours = |user: &str| user == KUBELET || user.contains(&format!(":{NAMESPACE}:"));
        let refused = |event: &Value| {
            let code = event["responseStatus"]["code"].as_u64().unwrap_or_default();
            // A JSON patch whose test fails is called invalid: somebody else was faster, which is no defect.
            let message = event["responseStatus"]["message"].as_str();
            let is_test = event["verb"] == "patch"
                && message
                    == Some("the server rejected our request due to an error in our request");
            // csi-attacher 2.0.0 replaces all finalizers of a PersistentVolume, and so brings one back that has just gone. It tries again.
            let agent = event["userAgent"].as_str().unwrap_or_default();
            let is_race = agent.starts_with("csi-attacher/")
                && message
                    .is_some_and(|message| message.contains("metadata.finalizers: Forbidden"));
            [400, 401, 403, 405, 415, 422].contains(&code) && !is_test && !is_race
        };
        let mut seen: Vec<String> = self
            .plane
            .audited()
            .iter()
            .filter(|event| ours(event["user"]["username"].as_str().unwrap_or_default()))
            .filter(|event| refused(event))
            .map(|event| {
                let agent = event["userAgent"].as_str().unwrap_or_default();
                format!(
                    "{} {} {} ({agent}): {} {}",
                    event["user"]["username"],
                    event["verb"],
                    event["requestURI"],
                    event["responseStatus"]["code"],
                    event["responseStatus"]["message"]
                )
            })
            .collect();
        seen.sort();
        seen.dedup();
        seen
    }

    /// Asks for something as one of our accounts.
    pub fn ask_as(&self, account: &str, arguments: &[&str]) -> Result<String, String> {
        self.kubectl_with(&self.account(account), arguments)
    }

    /// Looks that nothing was refused, ends everything in order, and looks again.
    pub fn finish(mut self) {
        assert_eq!(self.refusals(), [""; 0], "requests were refused");
        // Side by side: they need each other's replicas for their last writes.
        let nodes = std::mem::take(&mut self.nodes);
        std::thread::scope(|scope| {
            for (_, mut node) in nodes {
                scope.spawn(move || node.stop());
            }
        });
        for (_, mut parts) in std::mem::take(&mut self.managers) {
            for part in &mut parts {
                part.stop();
            }
        }
        assert_eq!(self.refusals(), [""; 0], "requests were refused at the end");
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        if std::thread::panicking() {
            show_logs(self.folder.path());
            for refusal in self.refusals() {
                eprintln!("refused: {refusal}");
            }
            // For whoever has to find out more than the last words tell.
            if let Some(place) = std::env::var_os("LARIAT_KEEP_LOGS") {
                let place = Path::new(&place);
                fs::create_dir_all(place).ok();
                for entry in fs::read_dir(self.path("logs"))
                    .into_iter()
                    .flatten()
                    .flatten()
                {
                    fs::copy(entry.path(), place.join(entry.file_name())).ok();
                }
                fs::copy(self.path("audit.log"), place.join("audit.log")).ok();
            }
        }
        for (_, mut node) in std::mem::take(&mut self.nodes) {
            if std::thread::panicking() {
                node.kill();
            } else {
                node.stop();
            }
        }
        self.managers.clear();
        clear_leftovers(self.folder.path());
    }
}

fn answer(output: Output) -> (String, Option<i32>) {
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (said, output.status.code())
}

fn workload(file: &str, kind: &str) -> Value {
    let text = fs::read_to_string(deploy().join(file)).expect("a manifest");
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
    let found = documents.into_iter().find(|object| object["kind"] == kind);
    found.expect("the workload is in its manifest")
}

/// The arguments of a container, with the places of this machine in the place of those in the pod.
fn arguments(manifest: &Value, container: &str, socket: &Path, data: &Path) -> Vec<String> {
    let containers = manifest.pointer("/spec/template/spec/containers");
    let containers = containers.and_then(Value::as_array).expect("containers");
    let found = containers.iter().find(|found| found["name"] == container);
    let arguments = found.and_then(|found| found["args"].as_array());
    arguments
        .expect("arguments")
        .iter()
        .filter_map(Value::as_str)
        .map(|argument| {
            argument
                .replace("/csi/csi.sock", &socket.to_string_lossy())
                .replace("/var/lib/lariat/node", &data.to_string_lossy())
        })
        .collect()
}

fn processes(folder: &str) -> Vec<i32> {
    let own = i32::try_from(std::process::id()).expect("a process id");
    let entries = fs::read_dir("/proc").expect("processes").flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != own)
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(folder)
        })
        .collect()
}

/// The status of one of an object's conditions.
pub fn condition(object: &Value, kind: &str) -> String {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions
        .into_iter()
        .flatten()
        .find(|found| found["type"] == kind);
    let status = found.and_then(|found| found["status"].as_str());
    status.unwrap_or_default().to_owned()
}

fn service_monitors() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "servicemonitors.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com", "scope": "Namespaced",
            "names": {"kind": "ServiceMonitor", "plural": "servicemonitors"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                }},
            }],
        },
    })
}
