//! A cluster with nodes, and what a test does to it and looks at.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::support::kubectl::Kubectl;
use crate::support::objects::mount_of;
pub use crate::support::objects::{claim, pod};
use crate::support::{Cluster, eventually, lariat};

async fn connect(cluster: &Cluster) -> Client {
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig()).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    Client::try_from(config.expect("a configuration")).expect("a client")
}

/// One cluster at a time: a machine of two cores has enough to do with that.
static ONE: Mutex<()> = Mutex::new(());

pub struct World {
    pub kubectl: Kubectl,
    pub cluster: Cluster,
    runtime: Runtime,
    client: Client,
    _one: MutexGuard<'static, ()>,
}

impl World {
    pub fn new(nodes: u16) -> Self {
        Self::with_environment(nodes, &[])
    }

    /// A cluster whose processes get these variables as well.
    pub fn with_environment(
        nodes: u16,
        environment: &'static [(&'static str, &'static str)],
    ) -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster = Cluster::start_with_environment(nodes, environment);
        let runtime = Runtime::new().expect("a runtime");
        let client = runtime.block_on(connect(&cluster));
        Self {
            kubectl: Kubectl::new(&cluster.kubeconfig()),
            cluster,
            runtime,
            client,
            _one: one,
        }
    }

    /// One object as it is now.
    pub fn get(&self, what: &str, name: &str) -> Value {
        self.try_get(what, name)
            .unwrap_or_else(|| panic!("there is no {what} {name}"))
    }

    pub fn try_get(&self, what: &str, name: &str) -> Option<Value> {
        self.ask(&format!("{}/{name}", path_of(what)))
    }

    pub fn list(&self, what: &str) -> Vec<Value> {
        let mut list = self.ask(path_of(what)).expect("a list");
        list["items"]
            .as_array_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Looking a hundred times with kubectl would be a test of this machine, not of Lariat.
    fn ask(&self, path: &str) -> Option<Value> {
        let request = http::Request::get(path)
            .body(Vec::new())
            .expect("a request");
        match self.runtime.block_on(self.client.request::<Value>(request)) {
            Ok(object) => Some(object),
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            Err(error) => panic!("GET {path}: {error}"),
        }
    }

    pub fn create(&self, object: &Value) {
        let (what, _) = PATHS
            .iter()
            .find(|(_, path)| path.ends_with(&plural(object)))
            .expect("a kind that is in the table");
        let request = http::Request::post(path_of(what))
            .header("content-type", "application/json")
            .body(object.to_string().into_bytes())
            .expect("a request");
        let made = self.runtime.block_on(self.client.request::<Value>(request));
        made.unwrap_or_else(|error| panic!("cannot create {object}: {error}"));
    }

    pub fn claim(&self, name: &str, class: &str, mode: &str) {
        self.create(&claim(name, class, mode));
    }

    /// Applies one of the examples that people start from.
    pub fn apply_example(&self, file: &str) {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
        self.kubectl
            .prints(&["apply", "-f", &format!("{folder}/{file}")]);
    }

    pub fn pod(&self, name: &str, claim: &str, node: Option<&str>) {
        self.create(&pod(name, claim, node));
    }

    /// The pod once it runs.
    pub fn running(&self, name: &str) -> Value {
        let mut pod = None;
        eventually(&format!("pod {name} to run"), || {
            pod = self
                .try_get("pod", name)
                .filter(|pod| pod["status"]["phase"] == "Running");
            pod.is_some()
        });
        pod.expect("seen just now")
    }

    /// Where a running pod's only volume is.
    pub fn path(&self, pod: &Value) -> PathBuf {
        mount_of(pod)
    }

    /// The volume of a claim, which is its PersistentVolume's name too.
    pub fn volume_of(&self, claim: &str) -> String {
        let claim = self.get("pvc", claim);
        claim["spec"]["volumeName"]
            .as_str()
            .expect("a bound claim")
            .to_owned()
    }

    pub fn delete(&self, what: &str, name: &str) {
        let path = format!("{}/{name}", path_of(what));
        let request = http::Request::delete(&path)
            .body(Vec::new())
            .expect("a request");
        let done = self.runtime.block_on(self.client.request::<Value>(request));
        done.unwrap_or_else(|error| panic!("DELETE {path}: {error}"));
    }

    pub fn until_gone(&self, what: &str, name: &str) {
        eventually(&format!("{what} {name} to be gone"), || {
            self.try_get(what, name).is_none()
        });
    }

    pub fn until_none(&self, what: &str) {
        let mut left = Vec::new();
        let done = || {
            left = self.list(what);
            left.is_empty()
        };
        eventually(&format!("the last of {what} to be gone"), done);
    }

    /// Processes of this cluster whose command line has all these words.
    pub fn processes(&self, words: &[&str]) -> Vec<i32> {
        let folder = self.cluster.folder().to_string_lossy().into_owned();
        processes(&|line: &str| {
            line.contains(&folder) && words.iter().all(|word| line.contains(word))
        })
    }

    /// Ends processes without a word.
    pub fn kill(&self, processes: &[i32]) {
        self.signal(processes, Signal::KILL);
    }

    pub fn signal(&self, processes: &[i32], signal: Signal) {
        for &pid in processes {
            if let Some(pid) = Pid::from_raw(pid) {
                kill_process(pid, signal).ok();
            }
        }
    }

    /// All processes of a node.
    pub fn of_node(&self, node: &str) -> Vec<i32> {
        self.processes(&[&self.node_folder(node).to_string_lossy()])
    }

    pub fn node_folder(&self, node: &str) -> PathBuf {
        self.cluster.folder().join("nodes").join(node)
    }

    /// A node loses its power: nothing of it runs any more, and nothing comes back before [`power_on`](Self::power_on).
    pub fn power_off(&self, node: &str) {
        fs::write(self.node_folder(node).join("hold"), "").expect("a node that is held");
        eventually("the node's processes to end", || {
            let left = self.of_node(node);
            self.kill(&left);
            left.is_empty()
        });
    }

    pub fn power_on(&self, node: &str) {
        fs::remove_file(self.node_folder(node).join("hold")).expect("a node that was held");
    }

    /// What of this cluster is left in the machine: mounts, loop devices.
    pub fn leftovers(&self) -> Vec<String> {
        leftovers(&self.cluster.folder().to_string_lossy())
    }

    pub fn volume_state(&self, volume: &str) -> String {
        let volume = self.get("lhv", volume);
        volume["status"]["state"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// An event of this reason with these words is on the object, where its user looks.
    #[track_caller]
    pub fn until_told(&self, kind: &str, name: &str, reason: &str, words: &str) {
        let what = format!("{kind} {name} to be told {reason}: {words}");
        eventually(&what, || {
            self.list("event").iter().any(|event| {
                let about = &event["involvedObject"];
                let message = event["message"].as_str().unwrap_or_default();
                event["reason"] == reason
                    && about["kind"] == kind
                    && about["name"] == name
                    && message.contains(words)
            })
        });
    }

    /// Whoever asks why a pod waits is told that it is stuck, with these words.
    #[track_caller]
    pub fn until_stuck(&self, pod: &str, words: &str) {
        let mut said = String::new();
        eventually(&format!("why {pod} is stuck: {words}"), || {
            let why = Command::new(lariat())
                .args(["why", pod])
                .env("KUBECONFIG", self.cluster.kubeconfig())
                .output()
                .expect("lariat runs");
            let text = String::from_utf8_lossy(&why.stdout).into_owned();
            let is_told = why.status.code() == Some(4) && text.contains(words);
            if !is_told && text != said {
                eprintln!("not yet, {}: {text}", why.status);
            }
            said = text;
            is_told
        });
    }

    /// On which nodes replicas have all that was written, as the volume says, in order.
    pub fn in_sync_nodes(&self, volume: &str) -> Vec<String> {
        let object = self.get("lhv", volume);
        let names = object["status"]["inSyncReplicas"].as_array();
        let replicas = names.into_iter().flatten().filter_map(Value::as_str);
        let mut nodes: Vec<String> = replicas
            .filter_map(|name| self.try_get("lhr", name))
            .map(|replica| {
                let node = replica["spec"]["nodeID"].as_str();
                node.expect("a node").to_owned()
            })
            .collect();
        nodes.sort();
        nodes
    }

    pub fn until_robust(&self, volume: &str) {
        eventually(&format!("volume {volume} to be healthy"), || {
            self.get("lhv", volume)["status"]["robustness"] == "healthy"
        });
    }
}

impl Drop for World {
    /// What there was when a test gave up, for whoever reads the failure.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for (what, path) in PATHS.iter().filter(|(what, _)| *what != "event") {
            let request = http::Request::get(*path).body(Vec::new());
            let request = request.expect("a request");
            let answer = self.runtime.block_on(self.client.request::<Value>(request));
            let items = answer.map(|list| list["items"].as_array().cloned().unwrap_or_default());
            for mut item in items.unwrap_or_default() {
                item["metadata"]["managedFields"].take();
                eprintln!("--- {what} {item}");
            }
        }
        eprintln!("{}", self.leftovers().join("\n"));
    }
}

const PATHS: [(&str, &str); 14] = [
    ("pod", "/api/v1/namespaces/default/pods"),
    ("pvc", "/api/v1/namespaces/default/persistentvolumeclaims"),
    ("pv", "/api/v1/persistentvolumes"),
    ("node", "/api/v1/nodes"),
    ("event", "/api/v1/events"),
    // Ours: the histories of volumes among them.
    ("cm", "/api/v1/namespaces/longhorn-system/configmaps"),
    ("sts", "/apis/apps/v1/namespaces/default/statefulsets"),
    (
        "volumeattachment",
        "/apis/storage.k8s.io/v1/volumeattachments",
    ),
    (
        "lhv",
        "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/volumes",
    ),
    (
        "lhva",
        "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/volumeattachments",
    ),
    (
        "lhe",
        "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/engines",
    ),
    (
        "lhr",
        "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/replicas",
    ),
    (
        "lhsnap",
        "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/snapshots",
    ),
    (
        "lhn",
        "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/nodes",
    ),
];

fn path_of(what: &str) -> &'static str {
    let found = PATHS.iter().find(|(name, _)| *name == what);
    found
        .unwrap_or_else(|| panic!("{what} is not in the table"))
        .1
}

fn plural(object: &Value) -> String {
    format!(
        "/{}s",
        object["kind"].as_str().expect("a kind").to_lowercase()
    )
}

fn processes(fits: &dyn Fn(&str) -> bool) -> Vec<i32> {
    let own = i32::try_from(std::process::id()).expect("a process id");
    let entries = fs::read_dir("/proc")
        .expect("a list of processes")
        .flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != own)
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            fits(&String::from_utf8_lossy(&line).replace('\0', " "))
        })
        .collect()
}

pub fn leftovers(folder: &str) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
    let mut left: Vec<String> = mounts
        .lines()
        .filter(|line| line.contains(folder))
        .map(|line| format!("mount {line}"))
        .collect();
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let file = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if file.contains(folder) {
            left.push(format!(
                "device {} of {}",
                entry.file_name().to_string_lossy(),
                file.trim()
            ));
        }
    }
    left
}

/// Whether anything below a folder has this in its name.
pub fn holds(folder: &Path, part: &str) -> bool {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| {
            entry.file_name().to_string_lossy().contains(part)
                || (entry.path().is_dir() && holds(&entry.path(), part))
        })
}

/// The status of one of an object's conditions.
pub fn condition(object: &Value, kind: &str) -> String {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == kind);
    found.map_or_else(String::new, |found| {
        found["status"].as_str().unwrap_or_default().to_owned()
    })
}
