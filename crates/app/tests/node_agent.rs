//! Node agents as processes, against `lariat up`: the test plays the volume controller. Needs root, FUSE and loop
//! devices.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use api_types::{
    ByteSize, Engine, EngineSpec, EngineStatus, InstanceState, Node, Replica, ReplicaRole,
    ReplicaSpec, names,
};
use k8s_openapi::ByteString;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt as _};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use support::{Cluster, PATIENCE};

const SIZE_BYTES: i64 = 64 << 20;

/// An API and agents on folders of their own; nothing of them is left when the test ends, however it ends.
struct Bench {
    cluster: Cluster,
    client: Client,
    agents: Vec<Option<Child>>,
    volume: String,
}

impl Bench {
    async fn start(volume: &str) -> Self {
        let cluster = Cluster::start();
        let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig()).expect("a kubeconfig");
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let client = Client::try_from(config.expect("a usable kubeconfig")).expect("a client");
        let secrets: Api<Secret> = Api::namespaced(client.clone(), names::NAMESPACE);
        let mut secret = Secret {
            data: Some([("key".to_owned(), ByteString(vec![7; 32]))].into()),
            ..Secret::default()
        };
        secret.metadata.name = Some("lariat-replica-key".to_owned());
        secrets
            .create(&PostParams::default(), &secret)
            .await
            .expect("a secret");
        Self {
            cluster,
            client,
            agents: Vec::new(),
            volume: format!("{volume}-{}", std::process::id()),
        }
    }

    fn node(index: usize) -> String {
        format!("node-{index}")
    }

    fn folder(&self, index: usize) -> PathBuf {
        self.cluster.folder().join("nodes").join(Self::node(index))
    }

    fn start_agent(&mut self, index: usize) {
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
            .env("LARIAT_LOG", "info")
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("lariat starts");
        self.agents
            .resize_with(self.agents.len().max(index + 1), || None);
        self.agents[index] = Some(child);
    }

    fn kill_agent(&mut self, index: usize) {
        let mut child = self.agents[index].take().expect("it runs");
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
    }

    /// Asks an agent to end in order.
    fn stop_agent(&mut self, index: usize) {
        let mut child = self.agents[index].take().expect("it runs");
        kill_process(Pid::from_child(&child), Signal::TERM).expect("it can be signalled");
        let status = child.wait().expect("it ends");
        assert!(status.success(), "{status}: {}", self.log(index));
    }

    fn log(&self, index: usize) -> String {
        let path = self.cluster.folder().join(format!("agent-{index}.log"));
        std::fs::read_to_string(path).unwrap_or_default()
    }

    fn engines(&self) -> Api<Engine> {
        Api::namespaced(self.client.clone(), names::NAMESPACE)
    }

    fn replicas(&self) -> Api<Replica> {
        Api::namespaced(self.client.clone(), names::NAMESPACE)
    }

    fn replica_name(&self, index: usize) -> String {
        format!("{}-r-{index:08x}", self.volume)
    }

    /// Creates a replica on a node, and waits until its agent has made it.
    async fn replica(&self, index: usize, epoch: i64) -> Replica {
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

    fn describe(&self, metadata: &mut kube::api::ObjectMeta, node: usize) {
        metadata.labels = Some(
            [
                names::label::volume(&self.volume),
                (names::label::NODE.to_owned(), Self::node(node)),
            ]
            .into(),
        );
        metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
    }

    async fn engine(&self, node: usize, epoch: i64, version: i64, replicas: &[&Replica]) -> String {
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

    async fn until(
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

    async fn patch(&self, engine: &str, spec: serde_json::Value) {
        let patch = json!({"spec": spec});
        self.engines()
            .patch(engine, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .expect("a patch");
    }

    fn engine_pids(&self) -> Vec<u32> {
        let folder = self.cluster.folder().display().to_string();
        let entries = std::fs::read_dir("/proc").expect("/proc");
        entries
            .flatten()
            .filter_map(|entry| {
                let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
                let line = std::fs::read(entry.path().join("cmdline")).ok()?;
                let line = String::from_utf8_lossy(&line);
                (line.contains("managed") && line.contains(&folder)).then_some(pid)
            })
            .collect()
    }

    /// Nothing of this test is mounted, no loop device is over it, no engine runs.
    fn assert_nothing_left(&self) {
        let folder = self.cluster.folder().display().to_string();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("a table");
        assert!(!mounts.contains(&folder), "{mounts}");
        assert_eq!(loops_over(&folder), Vec::<String>::new());
        assert_eq!(self.engine_pids(), Vec::<u32>::new());
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let mount = self.cluster.folder().join("mnt");
        Command::new("umount")
            .args(["-l".as_ref(), mount.as_os_str()])
            .stderr(Stdio::null())
            .status()
            .ok();
        for child in self.agents.iter_mut().flatten() {
            child.kill().ok();
            child.wait().ok();
        }
        for pid in self.engine_pids() {
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

fn address(replica: &Replica) -> String {
    let status = replica.status.as_ref().expect("a status");
    status.address.clone()
}

fn loops_over(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/sys/block").expect("/sys/block");
    entries
        .flatten()
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("loop/backing_file")).ok())
        .filter(|backing| backing.starts_with(folder))
        .collect()
}

async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, look: impl Fn() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn tool(program: &str, arguments: &[&Path]) {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_outlives_its_agent_and_loses_a_replica() {
    let mut bench = Bench::start("agent").await;
    bench.start_agent(0);
    bench.start_agent(1);
    let first = bench.replica(0, 1).await;
    let second = bench.replica(1, 1).await;
    let engine = bench.engine(0, 1, 1, &[&first, &second]).await;
    let running = |status: &EngineStatus| status.current_state == InstanceState::Running;
    let status = bench.until(&engine, "running", running).await;
    assert_eq!(status.owner_id, "node-0");
    assert_eq!(status.fenced_replicas.len(), 2);
    let device = PathBuf::from(&status.endpoint);
    assert_eq!(device, bench.folder(0).join("dev").join(&bench.volume));
    let mount = bench.cluster.folder().join("mnt");
    std::fs::create_dir(&mount).expect("a folder");
    tool("mkfs.ext4", &[Path::new("-q"), &device]);
    tool("mount", &[&device, &mount]);
    std::fs::write(mount.join("before"), "before").expect("a write");
    tool("sync", &[Path::new("-f"), &mount]);

    // The other node's agent is killed, and with it its replica: the engine proposes to go on without.
    bench.kill_agent(1);
    let written = std::thread::spawn({
        let mount = mount.clone();
        move || {
            std::fs::write(mount.join("during"), "during").expect("a write");
            tool("sync", &[Path::new("-f"), &mount]);
        }
    });
    let proposed = |status: &EngineStatus| !status.proposed_in_sync_replicas.is_empty();
    let status = bench.until(&engine, "a proposal", proposed).await;
    assert_eq!(status.proposed_in_sync_replicas, [bench.replica_name(0)]);
    assert_eq!(status.proposal_based_on, 1);
    // Nobody has recorded it: the write must wait.
    assert!(!written.is_finished());
    bench
        .patch(
            &engine,
            json!({
                "inSyncReplicas": [bench.replica_name(0)],
                "inSyncVersion": 2,
                "replicaRoles": {bench.replica_name(1): "rebuild"},
            }),
        )
        .await;
    written.join().expect("the write is done");
    let settled = |status: &EngineStatus| {
        status.in_sync_version == 2 && status.proposed_in_sync_replicas.is_empty()
    };
    bench.until(&engine, "the smaller set", settled).await;

    // The engine's own agent is killed: the engine goes on, and its next agent finds it.
    let pids = bench.engine_pids();
    assert_eq!(pids.len(), 1);
    bench.kill_agent(0);
    assert_eq!(bench.engine_pids(), pids);
    bench.start_agent(0);
    bench.start_agent(1);
    // The replica that was left behind is rebuilt, and proposed again.
    let both = |status: &EngineStatus| status.proposed_in_sync_replicas.len() == 2;
    let status = bench.until(&engine, "a proposal of both", both).await;
    assert_eq!(status.proposal_based_on, 2);
    bench
        .patch(
            &engine,
            json!({
                "inSyncReplicas": [bench.replica_name(0), bench.replica_name(1)],
                "inSyncVersion": 3,
                "replicaRoles": {bench.replica_name(1): "in-sync"},
            }),
        )
        .await;
    let settled = |status: &EngineStatus| status.in_sync_version == 3;
    bench.until(&engine, "the larger set", settled).await;
    assert_eq!(bench.engine_pids(), pids, "the engine was adopted");
    let read = |name: &str| std::fs::read_to_string(mount.join(name)).expect("a read");
    assert_eq!(
        (read("before"), read("during")),
        ("before".into(), "during".into())
    );

    // An orderly end, and nothing stays.
    tool("umount", &[&mount]);
    bench
        .patch(&engine, json!({"desireState": "stopped"}))
        .await;
    let stopped = |status: &EngineStatus| status.current_state == InstanceState::Stopped;
    bench.until(&engine, "stopped", stopped).await;
    bench.assert_nothing_left();
    bench
        .engines()
        .delete(&engine, &DeleteParams::default())
        .await
        .expect("a deletion");
    for index in 0..2 {
        let name = bench.replica_name(index);
        bench
            .replicas()
            .delete(&name, &DeleteParams::default())
            .await
            .expect("a deletion");
        eventually("the replica's end", || async {
            let found = bench.replicas().get_opt(&name).await.expect("an answer");
            found.is_none().then_some(())
        })
        .await;
        let data = bench.folder(index).join("disks/default/replicas");
        assert_eq!(std::fs::read_dir(data).expect("a folder").count(), 0);
    }
    eventually("the engine's end", || async {
        let found = bench.engines().get_opt(&engine).await.expect("an answer");
        found.is_none().then_some(())
    })
    .await;
    let leases: Api<Lease> = Api::namespaced(bench.client.clone(), names::NAMESPACE);
    for index in 0..2 {
        bench.stop_agent(index);
        let lease = leases
            .get(&format!("lariat-node-{}", Bench::node(index)))
            .await;
        let holder = lease
            .expect("a lease")
            .spec
            .and_then(|spec| spec.holder_identity);
        assert_eq!(holder.unwrap_or_default(), "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_that_die_or_are_fenced_say_so() {
    let mut bench = Bench::start("ends").await;
    bench.start_agent(0);
    let replica = bench.replica(0, 1).await;
    let first = bench.engine(0, 1, 1, &[&replica]).await;
    let running = |status: &EngineStatus| status.current_state == InstanceState::Running;
    let failed = |status: &EngineStatus| status.current_state == InstanceState::Error;
    bench.until(&first, "running", running).await;

    let pids = bench.engine_pids();
    let pid = pids[0].cast_signed();
    kill_process(Pid::from_raw(pid).expect("a process"), Signal::KILL).expect("a signal");
    let status = bench.until(&first, "an error", failed).await;
    assert!(status.message.contains("signal: 9"), "{}", status.message);
    assert_eq!(status.endpoint, "");
    bench.assert_nothing_left();

    // A new epoch brings another process; the dead one's object changes nothing.
    let second = bench.engine(0, 2, 1, &[&replica]).await;
    let status = bench.until(&second, "running", running).await;
    assert_ne!(bench.engine_pids(), pids);
    let (device, mount) = (
        PathBuf::from(status.endpoint),
        bench.cluster.folder().join("mnt"),
    );
    std::fs::create_dir(&mount).expect("a folder");
    tool("mkfs.ext4", &[Path::new("-q"), &device]);
    tool("mount", &[&device, &mount]);

    // A replica that has accepted a newer epoch refuses the engine: it is fenced, and its device and
    // what is mounted from it go.
    let patch = json!({"spec": {"epoch": 3}});
    bench
        .replicas()
        .patch(
            &bench.replica_name(0),
            &PatchParams::default(),
            &Patch::Merge(&patch),
        )
        .await
        .expect("a patch");
    eventually("the epoch", || async {
        let replica = bench.replicas().get(&bench.replica_name(0)).await;
        let status = replica.expect("an answer").status?;
        (status.accepted_epoch == 3).then_some(())
    })
    .await;
    let status = bench.until(&second, "an error", failed).await;
    assert!(status.message.contains("fenced"), "{}", status.message);
    bench.assert_nothing_left();

    // The third engine serves without a device, then with one: the same epoch, another process.
    let third = bench.engine(0, 3, 1, &[&replica]).await;
    let with_device = |status: &EngineStatus| running(status) && !status.endpoint.is_empty();
    let without = |status: &EngineStatus| running(status) && status.endpoint.is_empty();
    bench.until(&third, "a device", with_device).await;
    bench.patch(&third, json!({"disableFrontend": true})).await;
    bench.until(&third, "no device", without).await;
    bench.patch(&third, json!({"disableFrontend": false})).await;
    bench.until(&third, "a device again", with_device).await;

    // It grows while it is used.
    bench
        .patch(&third, json!({"volumeSize": (SIZE_BYTES * 2).to_string()}))
        .await;
    let grown = |status: &EngineStatus| status.current_size == ByteSize(SIZE_BYTES * 2);
    bench.until(&third, "the larger size", grown).await;

    // An agent that is told to end takes its engines with it, in order.
    bench.stop_agent(0);
    bench.assert_nothing_left();
    let status = bench.until(&third, "the end", failed).await;
    assert!(status.message.contains("agent"), "{}", status.message);
}
