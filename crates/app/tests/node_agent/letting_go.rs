//! Users are made to let go of a device while a replica is lost. An unmount writes out what is in memory, and those writes wait
//! until the smaller set is recorded: the agent must relay that while it waits for the unmount.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api_types::{ByteSize, EngineStatus, InstanceState, Replica, Volume, VolumeSpec, names};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::bench::{Bench, SIZE_BYTES, eventually, tool};

/// An engine gives up on a silent replica after 8 s, an agent on an unmount after 60 s.
const PROMPTLY: Duration = Duration::from_secs(40);

/// A volume with a replica on each of two nodes, mounted on the first; something in it was written and never synced.
struct Mounted {
    bench: Bench,
    engine: String,
    replicas: [Replica; 2],
    mount: PathBuf,
}

impl Mounted {
    async fn start(volume: &str) -> Self {
        let mut bench = Bench::start(volume).await;
        bench.start_agent(0);
        bench.start_agent(1);
        let replicas = [bench.replica(0, 1).await, bench.replica(1, 1).await];
        let engine = bench.engine(0, 1, 1, &replicas.each_ref()).await;
        let mount = bench.cluster.folder().join("mnt");
        std::fs::create_dir(&mount).expect("a folder");
        let mounted = Self {
            bench,
            engine,
            replicas,
            mount,
        };
        mounted.make_volume().await;
        let device = mounted.device(&mounted.engine).await;
        tool("mkfs.ext4", &[Path::new("-q"), &device]);
        tool("mount", &[&device, &mounted.mount]);
        std::fs::write(mounted.mount.join("file"), "in memory").expect("a write");
        mounted
    }

    fn volumes(&self) -> Api<Volume> {
        Api::namespaced(self.bench.client.clone(), names::NAMESPACE)
    }

    /// The volume as an object, attached to the first node and with both replicas in its record.
    async fn make_volume(&self) {
        let spec = VolumeSpec {
            size: ByteSize(SIZE_BYTES),
            number_of_replicas: 2,
            node_id: Bench::node(0),
            ..VolumeSpec::default()
        };
        let volume = Volume::new(&self.bench.volume, spec);
        let made = self.volumes().create(&PostParams::default(), &volume).await;
        made.expect("a volume object");
        self.record(1, &[0, 1]).await;
    }

    /// Writes the in-sync set of the first epoch down, as the manager does.
    async fn record(&self, version: i64, members: &[usize]) {
        let names = members.iter().map(|index| self.bench.replica_name(*index));
        let status = json!({"status": {
            "epoch": 1,
            "inSyncVersion": version,
            "inSyncReplicas": names.collect::<Vec<_>>(),
        }});
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(&status));
        let volumes = self.volumes();
        let recorded = volumes.patch_status(&self.bench.volume, &parameters, &patch);
        recorded.await.expect("a record");
    }

    /// The device of an engine, once it is there.
    async fn device(&self, engine: &str) -> PathBuf {
        let running = |status: &EngineStatus| status.current_state == InstanceState::Running;
        let status = self.bench.until(engine, "running", running).await;
        status.endpoint.into()
    }

    /// Waits until the engine proposes to go on with the first replica alone, and records it on the Volume.
    async fn record_proposal(&self) {
        let bench = &self.bench;
        let proposed = |status: &EngineStatus| !status.proposed_in_sync_replicas.is_empty();
        let status = bench.until(&self.engine, "a proposal", proposed).await;
        assert_eq!(status.proposed_in_sync_replicas, [bench.replica_name(0)]);
        self.record(2, &[0]).await;
    }

    /// Engines that are to run get a copy of the record; one that is told to stop does not.
    async fn copy_record_to_engine(&self) {
        let bench = &self.bench;
        let copy = json!({
            "inSyncReplicas": [bench.replica_name(0)],
            "inSyncVersion": 2,
            "replicaRoles": {bench.replica_name(1): "rebuild"},
        });
        bench.patch(&self.engine, copy).await;
    }

    /// The next engine, with the replica that is left, shows what was in memory.
    async fn check_content(&self) {
        let next = self.bench.engine(0, 2, 2, &[&self.replicas[0]]).await;
        let device = self.device(&next).await;
        tool("mount", &[&device, &self.mount]);
        let read = std::fs::read_to_string(self.mount.join("file"));
        assert_eq!(read.expect("a read"), "in memory");
        tool("umount", &[&self.mount]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unmount_that_needs_a_smaller_set_ends_when_it_is_recorded() {
    let mounted = Mounted::start("unmount").await;
    let bench = &mounted.bench;
    let silent = Pid::from_child(bench.agents[1].as_ref().expect("it runs"));
    kill_process(silent, Signal::STOP).expect("it can be signalled");
    let begun = Instant::now();
    bench
        .patch(&mounted.engine, json!({"desireState": "stopped"}))
        .await;
    mounted.record_proposal().await;
    let stopped = |status: &EngineStatus| status.current_state == InstanceState::Stopped;
    bench.until(&mounted.engine, "stopped", stopped).await;
    assert!(begun.elapsed() < PROMPTLY, "{:?}", begun.elapsed());
    bench.assert_nothing_left();
    mounted.check_content().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_stops_answers_until_its_engines_have_ended() {
    let mut mounted = Mounted::start("stop").await;
    mounted.bench.kill_agent(1);
    let agent = mounted.bench.agents[0].as_ref().expect("it runs");
    kill_process(Pid::from_child(agent), Signal::TERM).expect("it can be signalled");
    let words = "unmounting a volume that this node must let go of";
    eventually("the unmount", || async {
        mounted.bench.log(0).contains(words).then_some(())
    })
    .await;
    mounted.record_proposal().await;
    mounted.copy_record_to_engine().await;
    let mut agent = mounted.bench.agents[0].take().expect("it runs");
    let ended = agent.wait().expect("it ends");
    assert!(ended.success(), "{ended}: {}", mounted.bench.log(0));
    mounted.bench.assert_nothing_left();
    mounted.bench.start_agent(0);
    mounted.check_content().await;
}
