//! A cluster with agents on this machine, ended with the test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use api_types::{
    ByteSize, Engine, EngineSpec, EngineStatus, InstanceState, Node, Replica, ReplicaRole,
    ReplicaSpec, names,
};
use kube::api::{Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt as _};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::support::{self, Cluster, PATIENCE};

pub const SIZE_BYTES: i64 = 64 << 20;

/// An API and agents on folders of their own; nothing of them is left when the test ends, however it ends.
pub struct Bench {
    pub cluster: Cluster,
    pub client: Client,
    pub agents: Vec<Option<Child>>,
    pub volume: String,
}

impl Bench {
    pub async fn start(volume: &str) -> Self {
        let cluster = Cluster::start();
        let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig()).expect("a kubeconfig");
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let client = Client::try_from(config.expect("a usable kubeconfig")).expect("a client");
        Self {
            cluster,
            client,
            agents: Vec::new(),
            volume: format!("{volume}-{}", std::process::id()),
        }
    }

    pub fn node(index: usize) -> String {
        format!("node-{index}")
    }

    pub fn folder(&self, index: usize) -> PathBuf {
        self.cluster.folder().join("nodes").join(Self::node(index))
    }

    pub fn start_agent(&mut self, index: usize) {
        self.start_agent_with(index, &[]);
    }

    pub fn start_agent_with(&mut self, index: usize, arguments: &[&str]) {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.cluster.folder().join(format!("agent-{index}.log")))
            .expect("a log");
        let child = Command::new(support::lariat())
            .args(["node", "--name", &Self::node(index), "--data-dir"])
            .arg(self.folder(index))
            .arg("--kubeconfig")
            .arg(self.cluster.kubeconfig())
            .args(arguments)
            .env("LARIAT_LOG", "info")
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("lariat starts");
        self.agents
            .resize_with(self.agents.len().max(index + 1), || None);
        self.agents[index] = Some(child);
    }

    pub fn kill_agent(&mut self, index: usize) {
        let mut child = self.agents[index].take().expect("it runs");
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
    }

    /// Asks an agent to end in order.
    pub fn stop_agent(&mut self, index: usize) {
        let mut child = self.agents[index].take().expect("it runs");
        kill_process(Pid::from_child(&child), Signal::TERM).expect("it can be signalled");
        let status = child.wait().expect("it ends");
        assert!(status.success(), "{status}: {}", self.log(index));
    }

    pub fn log(&self, index: usize) -> String {
        let path = self.cluster.folder().join(format!("agent-{index}.log"));
        std::fs::read_to_string(path).unwrap_or_default()
    }

    pub fn engines(&self) -> Api<Engine> {
        Api::namespaced(self.client.clone(), names::NAMESPACE)
    }

    pub fn replicas(&self) -> Api<Replica> {
        Api::namespaced(self.client.clone(), names::NAMESPACE)
    }

    pub fn replica_name(&self, index: usize) -> String {
        format!("{}-r-{index:08x}", self.volume)
    }

    /// Creates a replica on a node, and waits until its agent has made it.
    pub async fn replica(&self, index: usize, epoch: i64) -> Replica {
        let nodes: Api<Node> = Api::namespaced(self.client.clone(), names::NAMESPACE);
        let node = eventually("the node's disk", || async {
            let node = nodes
                .get_opt(&Self::node(index))
                .await
                .expect("an answer")?;
            let status = node.status?;
            let disk = status.disk_status.get("default")?.clone();
            (!disk.disk_uuid.is_empty()).then_some(disk)
        })
        .await;
        assert!(node.storage_maximum > 0);
        let name = self.replica_name(index);
        let mut replica = Replica::new(
            &name,
            ReplicaSpec {
                volume_name: self.volume.clone(),
                volume_size: ByteSize(SIZE_BYTES),
                node_id: Self::node(index),
                disk_id: node.disk_uuid,
                data_directory_name: name.clone(),
                desire_state: InstanceState::Running,
                epoch,
                ..ReplicaSpec::default()
            },
        );
        self.describe(&mut replica.metadata, index);
        self.replicas()
            .create(&PostParams::default(), &replica)
            .await
            .expect("a replica object");
        eventually("the replica", || async {
            let replica = self.replicas().get(&name).await.expect("an answer");
            let status = replica.status.clone()?;
            (status.accepted_epoch == epoch && !status.address.is_empty()).then_some(replica)
        })
        .await
    }

    pub fn describe(&self, metadata: &mut kube::api::ObjectMeta, node: usize) {
        metadata.labels = Some(
            [
                names::label::volume(&self.volume),
                (names::label::NODE.to_owned(), Self::node(node)),
            ]
            .into(),
        );
        metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
    }

    pub async fn engine(
        &self,
        node: usize,
        epoch: i64,
        version: i64,
        replicas: &[&Replica],
    ) -> String {
        let name = format!("{}-e-{epoch}", self.volume);
        let mut engine = Engine::new(
            &name,
            EngineSpec {
                volume_name: self.volume.clone(),
                volume_size: ByteSize(SIZE_BYTES),
                node_id: Self::node(node),
                desire_state: InstanceState::Running,
                epoch,
                in_sync_replicas: replicas.iter().map(|replica| replica.name_any()).collect(),
                in_sync_version: version,
                replica_roles: replicas
                    .iter()
                    .map(|replica| (replica.name_any(), ReplicaRole::InSync))
                    .collect(),
                replica_address_map: replicas
                    .iter()
                    .map(|replica| (replica.name_any(), address(replica)))
                    .collect(),
                ..EngineSpec::default()
            },
        );
        self.describe(&mut engine.metadata, node);
        self.engines()
            .create(&PostParams::default(), &engine)
            .await
            .expect("an engine object");
        name
    }

    pub async fn until(
        &self,
        engine: &str,
        what: &str,
        holds: impl Fn(&EngineStatus) -> bool,
    ) -> EngineStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.engines().get(engine).await.expect("an answer");
            if let Some(status) = found.status.as_ref().filter(|status| holds(status)) {
                return status.clone();
            }
            assert!(
                Instant::now() < deadline,
                "{what} did not happen: {found:#?}\n{}",
                (0..self.agents.len())
                    .map(|index| self.log(index))
                    .collect::<String>()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn patch(&self, engine: &str, spec: serde_json::Value) {
        let patch = json!({"spec": spec});
        self.engines()
            .patch(engine, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .expect("a patch");
    }

    pub fn engine_pids(&self) -> Vec<u32> {
        self.pids("managed")
    }

    fn pids(&self, kind: &str) -> Vec<u32> {
        let folder = self.cluster.folder().display().to_string();
        let entries = std::fs::read_dir("/proc").expect("/proc");
        entries
            .flatten()
            .filter_map(|entry| {
                let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
                let line = std::fs::read(entry.path().join("cmdline")).ok()?;
                let line = String::from_utf8_lossy(&line);
                (line.contains("engine") && line.contains(kind) && line.contains(&folder))
                    .then_some(pid)
            })
            .collect()
    }

    /// Nothing of this test is mounted, no loop device is over it, no engine runs.
    pub fn assert_nothing_left(&self) {
        let folder = self.cluster.folder().display().to_string();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("a table");
        assert!(!mounts.contains(&folder), "{mounts}");
        assert_eq!(loops_over(&folder), Vec::<String>::new());
        assert_eq!(self.engine_pids(), Vec::<u32>::new());
    }

    pub fn assert_no_keeper(&self) {
        assert_eq!(self.pids("keeper"), Vec::<u32>::new());
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let folder = self.cluster.folder().display().to_string();
        let mounts = table
            .lines()
            .rev()
            .filter_map(|line| line.split(' ').nth(4));
        for mount in
            mounts.filter(|target| target.starts_with(&folder) && !target.ends_with(".fuse"))
        {
            Command::new("umount")
                .args(["-l", mount])
                .stderr(Stdio::null())
                .status()
                .ok();
        }
        for child in self.agents.iter_mut().flatten() {
            child.kill().ok();
            child.wait().ok();
        }
        for pid in self.engine_pids().into_iter().chain(self.pids("keeper")) {
            if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
                kill_process(pid, Signal::KILL).ok();
            }
        }
        for index in 0..self.agents.len() {
            let options = engine::frontend::FrontendOptions {
                volume: self.volume.clone(),
                size_bytes: 0,
                runtime_dir: self.folder(index).join("run"),
                device_dir: self.folder(index).join("dev"),
                sector_bytes: 4096,
                keeper: None,
            };
            engine::frontend::fuse::clear_leftovers(&options).ok();
        }
    }
}

pub fn address(replica: &Replica) -> String {
    let status = replica.status.as_ref().expect("a status");
    status.address.clone()
}

pub fn loops_over(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/sys/block").expect("/sys/block");
    entries
        .flatten()
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("loop/backing_file")).ok())
        .filter(|backing| backing.starts_with(folder))
        .collect()
}

pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, look: impl Fn() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub fn tool(program: &str, arguments: &[&Path]) {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
