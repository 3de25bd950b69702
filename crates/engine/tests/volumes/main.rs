//! Whole volumes: engines and replicas as processes of their own, real devices, real file systems, and plugs pulled.
//!
//! It needs root, FUSE, loop devices, and the packages fio, e2fsprogs, xfsprogs and libnbd-bin.

mod branches;
mod cluster;
mod detached;
mod direct;
mod encrypted;
mod expanded;
mod inspected;
mod killed;
mod load;
mod managed;
mod members;
mod mounts;
mod mutated;
mod processes;
#[path = "../support/programs.rs"]
mod programs;
mod resumed;
mod zeroes;

use std::time::Duration;

use anyhow::{Result, ensure};
use cluster::{Cluster, FrontendChoice};
use engine::control::{Command, EngineState, MemberReport};
use load::{Load, Ongoing, Place, finish_fio, start_fio};
use processes::await_that;
use programs::run;

const MIB: u64 = 1 << 20;

/// fio writes and verifies while replicas are killed, stopped and rebuilt: there are writes up to each blow, without those that it
/// hit, and after the last one.
fn lose_stop_and_rebuild(cluster: &mut Cluster, place: Place) -> Result<()> {
    let mut load = Ongoing::start(place);

    load.await_writes(cluster)?;
    cluster.kill_replica(1)?;
    cluster.await_in_sync(&["r0", "r2"])?;
    load.await_writes(cluster)?;
    cluster.start_replica(1)?;
    cluster.rebuild(1)?;
    cluster.await_in_sync(&["r0", "r2", "r1"])?;

    // A replica that neither answers nor hangs up is left behind after its deadline.
    load.await_writes(cluster)?;
    cluster.stop_replica(2)?;
    cluster.await_in_sync(&["r0", "r1"])?;
    load.await_writes(cluster)?;
    cluster.continue_replica(2)?;
    cluster.rebuild(2)?;
    cluster.await_in_sync(&["r0", "r1", "r2"])?;

    // Two at once.
    load.await_writes(cluster)?;
    cluster.kill_replica(0)?;
    cluster.kill_replica(1)?;
    cluster.await_in_sync(&["r2"])?;
    load.await_writes(cluster)?;
    cluster.start_replica(0)?;
    cluster.start_replica(1)?;
    std::thread::scope(|scope| -> Result<()> {
        let first = scope.spawn(|| cluster.rebuild(0));
        let second = scope.spawn(|| cluster.rebuild(1));
        first.join().expect("no panic")?;
        second.join().expect("no panic")
    })?;
    cluster.await_in_sync(&["r0", "r1", "r2"])?;

    load.await_writes(cluster)?;
    load.finish()
}

fn check_file_system(kind: &str, make: &[&str], check: &[&str]) -> Result<()> {
    let mut cluster = Cluster::start(3, 512 * MIB, FrontendChoice::Fuse)?;
    let device = cluster.device()?;
    run(make[0], &[&make[1..], &[&device]].concat())?;
    let mount = cluster.mount(kind)?;
    let folder = mount.path().to_string_lossy().into_owned();
    lose_stop_and_rebuild(&mut cluster, Place::Folder(folder))?;
    drop(mount);
    run(check[0], &[&check[1..], &[&device]].concat())?;
    cluster.shutdown()?;
    cluster.ensure_identical()
}

#[test]
fn a_device_survives_lost_and_stopped_replicas() -> Result<()> {
    let mut cluster = Cluster::start(3, 512 * MIB, FrontendChoice::Fuse)?;
    let device = cluster.device()?;
    lose_stop_and_rebuild(&mut cluster, Place::Device(device))?;
    cluster.shutdown()?;
    cluster.ensure_identical()
}

#[test]
fn ext4_survives_lost_and_stopped_replicas() -> Result<()> {
    check_file_system("ext4", &["mkfs.ext4", "-q", "-F"], &["e2fsck", "-f", "-n"])
}

#[test]
fn xfs_survives_lost_and_stopped_replicas() -> Result<()> {
    check_file_system("xfs", &["mkfs.xfs", "-q", "-f"], &["xfs_repair", "-n"])
}

/// With a keeper, a writer does not notice that the engine was killed and started again, over and over, and not either
/// that the keeper was replaced meanwhile. `cargo xtask soak` does this for longer.
#[test]
fn engine_kill_is_invisible_with_a_keeper() -> Result<()> {
    let mut cluster = Cluster::start_with_keeper(3, 256 * MIB)?;
    let device = cluster.device()?;
    run("mkfs.ext4", &["-q", "-F", &device])?;
    let mount = cluster.mount("ext4")?;
    let folder = mount.path().to_string_lossy().into_owned();
    let seconds = std::env::var("LARIAT_SOAK_SECONDS").map_or(Ok(12), |text| text.parse())?;
    let mut fio = start_fio(&Place::Folder(folder), Load::Full, seconds)?;
    let mut kills = 0u64;
    // On a busy machine a round takes long, so that fio's end, not their number, is the end.
    while fio.try_wait()?.is_none() {
        // Each kill at another moment of the load.
        let wanted = cluster.status()?.statistics.write.count + 1 + kills * 37 % 97;
        await_that("writes", || {
            Ok(cluster.status()?.statistics.write.count >= wanted || fio.try_wait()?.is_some())
        })?;
        if kills == 1 {
            cluster.replace_keeper()?;
        }
        cluster.kill_engine()?;
        cluster.start_engine()?;
        kills += 1;
    }
    ensure!(kills >= 3, "only {kills} kills while fio ran");
    finish_fio(fio)?;
    drop(mount);
    run("e2fsck", &["-f", "-n", &device])?;
    cluster.await_status("comparison", |status| status.tasks.is_empty())?;
    cluster.rebuild_missing()?;
    cluster.shutdown()?;
    cluster.ensure_identical()
}

/// Without one, users of the device get errors, and everything that was acknowledged is there afterwards, flushed or not.
#[test]
fn acknowledged_writes_survive_an_engine_kill() -> Result<()> {
    let mut cluster = Cluster::start(3, 64 * MIB, FrontendChoice::Nbd)?;
    let uri = cluster.endpoint()?;
    run(
        "fio",
        &[
            "--name=fill",
            "--ioengine=nbd",
            &format!("--uri={uri}"),
            "--rw=randwrite",
            "--bs=4k",
            "--size=64m",
            "--io_size=16m",
            "--iodepth=16",
            "--verify=crc32c",
            "--verify_state_save=0",
            "--do_verify=0",
            "--randseed=7",
            "--allow_file_create=0",
        ],
    )?;
    cluster.kill_engine()?;
    cluster.start_engine()?;
    let uri = cluster.endpoint()?;
    run(
        "fio",
        &[
            "--name=fill",
            "--ioengine=nbd",
            &format!("--uri={uri}"),
            "--rw=randwrite",
            "--bs=4k",
            "--size=64m",
            "--io_size=16m",
            "--iodepth=16",
            "--verify=crc32c",
            "--verify_state_save=0",
            "--verify_only",
            "--verify_fatal=1",
            "--randseed=7",
        ],
    )?;
    let status = cluster.status()?;
    ensure!(status.epoch == 2 && status.in_sync.len() == 3, "{status:?}");
    ensure!(
        status
            .fence_proof
            .is_some_and(|proof| proof.epoch == 2 && proof.replicas.len() == 3)
    );
    cluster.await_status("comparison", |status| status.tasks.is_empty())?;
    cluster.rebuild_missing()?;
    cluster.shutdown()?;
    cluster.ensure_identical()
}

/// Snapshots, revert, expansion and purge, with their effect on what is read.
#[test]
fn snapshots_revert_expand_and_purge() -> Result<()> {
    let mut cluster = Cluster::start(3, 64 * MIB, FrontendChoice::Nbd)?;
    cluster.write_pattern(0, MIB, 1)?;
    cluster.snapshot("first")?;
    cluster.write_pattern(0, MIB, 2)?;
    cluster.snapshot("second")?;
    cluster.write_pattern(0, MIB, 3)?;
    ensure!(cluster.snapshots()? == ["first", "second"]);
    let refused = cluster.command(Command::Snapshot {
        name: "first".into(),
        created_unix_ms: 0,
    });
    ensure!(refused.is_err(), "a name is used once");
    let refused = cluster.command(Command::Revert {
        name: "first".into(),
    });
    ensure!(refused.is_err(), "not while the volume has a front end");
    ensure!(
        cluster.status()?.in_sync.len() == 3,
        "a refused command costs no replica"
    );

    cluster.command(Command::Expand {
        size_bytes: 96 * MIB,
    })?;
    ensure!(
        cluster
            .command(Command::Expand {
                size_bytes: 32 * MIB
            })
            .is_err(),
        "never smaller"
    );
    cluster.write_pattern(95 * MIB, MIB, 4)?;
    cluster.check_pattern(95 * MIB, MIB, 4)?;
    cluster.check_pattern(0, MIB, 3)?;

    cluster.shutdown()?;
    cluster.frontend = FrontendChoice::None;
    cluster.start_engine()?;
    cluster.command(Command::Revert {
        name: "first".into(),
    })?;
    cluster.shutdown()?;
    cluster.frontend = FrontendChoice::Nbd;
    cluster.start_engine()?;
    cluster.check_pattern(0, MIB, 1)?;

    cluster.command(Command::DeleteSnapshot {
        name: "first".into(),
    })?;
    cluster.command(Command::Purge)?;
    cluster.check_pattern(0, MIB, 1)?;
    ensure!(cluster.status()?.size_bytes == 96 * MIB);
    cluster.shutdown()?;
    cluster.ensure_identical()
}

/// The device follows an expansion while a file system is mounted on it.
#[test]
fn expansion_reaches_a_mounted_file_system() -> Result<()> {
    let mut cluster = Cluster::start(2, 512 * MIB, FrontendChoice::Fuse)?;
    let device = cluster.device()?;
    run("mkfs.xfs", &["-q", "-f", &device])?;
    let mount = cluster.mount("xfs")?;
    cluster.command(Command::Expand {
        size_bytes: 768 * MIB,
    })?;
    cluster.await_device_size(768 * MIB)?;
    run("xfs_growfs", &[&mount.path().to_string_lossy()])?;
    let space = rustix::fs::statvfs(mount.path())?;
    ensure!(
        space.f_blocks * space.f_frsize > 600 * MIB,
        "the file system has grown"
    );
    drop(mount);
    run("xfs_repair", &["-n", &device])?;
    cluster.shutdown()
}

/// A replica whose disk is full is left behind; the writer does not hear of it.
#[test]
fn a_full_disk_costs_that_replica_alone() -> Result<()> {
    let mut cluster = Cluster::start(2, 64 * MIB, FrontendChoice::Nbd)?;
    cluster.write_pattern(0, MIB, 1)?;
    let small = cluster.give_small_disk(0, 16 * MIB)?;
    cluster.rebuild(0)?;
    cluster.await_in_sync(&["r0", "r1"])?;
    cluster.write_pattern(MIB, 32 * MIB, 2)?;
    cluster.await_in_sync(&["r1"])?;
    let status = cluster.status()?;
    let trouble = |member: &MemberReport| format!("{member:?}").contains("no space");
    ensure!(status.members.iter().any(trouble), "{:?}", status.members);
    cluster.check_pattern(0, MIB, 1)?;
    cluster.check_pattern(MIB, 32 * MIB, 2)?;
    cluster.kill_replica(0)?;
    drop(small);
    cluster.shutdown()
}

/// When the last replica goes, requests wait for it and say so; when it comes back they are done.
#[test]
fn the_last_replica_is_waited_for() -> Result<()> {
    let mut cluster = Cluster::start(1, 64 * MIB, FrontendChoice::Nbd)?;
    cluster.write_pattern(0, MIB, 1)?;
    cluster.kill_replica(0)?;
    let status = cluster.await_status("stall", |status| status.stalled.is_some())?;
    ensure!(status.state == EngineState::Serving, "{status:?}");
    let writer = std::thread::spawn(cluster.pattern_writer(MIB, MIB, 2)?);
    cluster.await_status("open request", |status| status.statistics.open_requests > 0)?;
    cluster.start_replica(0)?;
    writer.join().expect("no panic")?;
    cluster.check_pattern(0, MIB, 1)?;
    cluster.check_pattern(MIB, MIB, 2)?;
    cluster.shutdown()
}

/// Which replicas may be started from, when the volume's record is lost.
#[test]
fn salvage_refuses_to_guess() -> Result<()> {
    let mut cluster = Cluster::start(3, 64 * MIB, FrontendChoice::Nbd)?;
    cluster.write_pattern(0, MIB, 1)?;
    cluster.kill_replica(2)?;
    cluster.await_in_sync(&["r0", "r1"])?;
    cluster.write_pattern(0, MIB, 2)?;
    cluster.shutdown()?;
    cluster.start_replica(2)?;
    let verdict = cluster.inspect(&[0, 1, 2])?.salvage()?;
    let names: Vec<&str> = verdict
        .newest
        .iter()
        .map(block_core::ReplicaName::as_str)
        .collect();
    ensure!(names == ["r0", "r1"], "{verdict:?}");
    // The one that was left behind cannot know better.
    ensure!(
        cluster.inspect(&[2])?.salvage().is_err(),
        "a replica alone that is not alone"
    );
    Ok(())
}

/// How long a test waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(40);
