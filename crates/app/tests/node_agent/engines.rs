//! Replicas and engines, followed through deaths of everything.

use std::path::{Path, PathBuf};

use api_types::{ByteSize, EngineStatus, InstanceState, names};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::bench::{Bench, SIZE_BYTES, eventually, tool};

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_keeper_a_mount_survives_the_death_of_its_engine() {
    let mut bench = Bench::start("kept").await;
    bench.start_agent_with(0, &["--keeper"]);
    let replica = bench.replica(0, 2).await;
    let first = bench.engine(0, 1, 1, &[&replica]).await;
    // The replica has accepted epoch 2 already: the engine of epoch 1 cannot have it.
    let failed = |status: &EngineStatus| status.current_state == InstanceState::Error;
    bench.until(&first, "an error", failed).await;
    let second = bench.engine(0, 2, 1, &[&replica]).await;
    let running = |status: &EngineStatus| status.current_state == InstanceState::Running;
    let status = bench.until(&second, "running", running).await;
    let (device, mount) = (
        PathBuf::from(status.endpoint),
        bench.cluster.folder().join("mnt"),
    );
    std::fs::create_dir(&mount).expect("a folder");
    tool("mkfs.ext4", &[Path::new("-q"), &device]);
    tool("mount", &[&device, &mount]);
    std::fs::write(mount.join("before"), "before").expect("a write");

    let pid = bench.engine_pids()[0].cast_signed();
    kill_process(Pid::from_raw(pid).expect("a process"), Signal::KILL).expect("a signal");
    bench.until(&second, "an error", failed).await;
    let third = bench.engine(0, 3, 1, &[&replica]).await;
    bench.until(&third, "running", running).await;
    std::fs::write(mount.join("after"), "after").expect("a write");
    tool("sync", &[Path::new("-f"), &mount]);
    let read = |name: &str| std::fs::read_to_string(mount.join(name)).expect("a read");
    assert_eq!(
        (read("before"), read("after")),
        ("before".into(), "after".into())
    );
    tool("umount", &[&mount]);
    bench.stop_agent(0);
    bench.assert_nothing_left();
    bench.assert_no_keeper();
}
