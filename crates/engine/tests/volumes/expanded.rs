//! Expansions of a volume under which processes are killed. `simulation/expansions.rs` has every step of them.

use anyhow::{Result, ensure};
use engine::control::Command;

use crate::MIB;
use crate::cluster::{Cluster, FrontendChoice};
use crate::processes::await_that;

const OLD_BYTES: u64 = 64 * MIB;
const NEW_BYTES: u64 = 96 * MIB;
const EXPAND: Command = Command::Expand {
    size_bytes: NEW_BYTES,
};

fn await_size(cluster: &Cluster, at: usize) -> Result<()> {
    await_that("the replica's new size", || {
        Ok(cluster.replica_size_bytes(at)? == NEW_BYTES)
    })
}

/// All have this size and what was written; then the expansion is done once more, to its end.
fn finish(mut cluster: Cluster, wanted_bytes: u64) -> Result<()> {
    cluster.await_status("comparison", |status| status.tasks.is_empty())?;
    cluster.rebuild_missing()?;
    ensure!(cluster.status()?.size_bytes == wanted_bytes);
    for at in 0..3 {
        let found = cluster.replica_size_bytes(at)?;
        ensure!(found == wanted_bytes, "replica {at} has {found} bytes");
    }
    cluster.check_pattern(0, MIB, 1)?;
    cluster.command(EXPAND)?;
    cluster.write_pattern(NEW_BYTES - MIB, MIB, 4)?;
    cluster.check_pattern(NEW_BYTES - MIB, MIB, 4)?;
    cluster.check_pattern(0, MIB, 1)?;
    cluster.shutdown()?;
    cluster.ensure_identical()
}

/// The engine is killed when the first replica has the new size and the others the old one, and these with it. The next engine finds
/// all of them, or all but the first, which comes back when the volume has its old size again.
fn check_killed_engine(first_is_there: bool) -> Result<()> {
    let mut cluster = Cluster::start(3, OLD_BYTES, FrontendChoice::Nbd)?;
    cluster.write_pattern(0, MIB, 1)?;
    cluster.stop_replica(1)?;
    cluster.stop_replica(2)?;
    let mut client = cluster.client()?;
    let asked = std::thread::spawn(move || client.command(EXPAND));
    await_size(&cluster, 0)?;
    cluster.kill_engine()?;
    ensure!(
        asked.join().expect("no panic").is_err(),
        "nobody was told that it is done"
    );
    // What they were sent is gone with them.
    for at in [1, 2] {
        cluster.kill_replica(at)?;
        cluster.start_replica(at)?;
        ensure!(cluster.replica_size_bytes(at)? == OLD_BYTES);
    }
    if first_is_there {
        cluster.start_engine()?;
        return finish(cluster, NEW_BYTES);
    }
    cluster.kill_replica(0)?;
    cluster.start_engine()?;
    cluster.await_in_sync(&["r1", "r2"])?;
    cluster.start_replica(0)?;
    finish(cluster, OLD_BYTES)
}

#[test]
fn an_expansion_is_finished_by_the_next_engine() -> Result<()> {
    check_killed_engine(true)
}

#[test]
fn a_replica_that_was_expanded_alone_gets_the_size_of_the_others() -> Result<()> {
    check_killed_engine(false)
}

#[test]
fn a_volume_is_expanded_without_a_replica_that_is_killed_meanwhile() -> Result<()> {
    let mut cluster = Cluster::start(3, OLD_BYTES, FrontendChoice::Nbd)?;
    cluster.write_pattern(0, MIB, 1)?;
    cluster.stop_replica(1)?;
    let mut client = cluster.client()?;
    let asked = std::thread::spawn(move || client.command(EXPAND));
    for at in [0, 2] {
        await_size(&cluster, at)?;
    }
    cluster.kill_replica(1)?;
    asked.join().expect("no panic")?;
    cluster.await_in_sync(&["r0", "r2"])?;
    cluster.start_replica(1)?;
    finish(cluster, NEW_BYTES)
}
