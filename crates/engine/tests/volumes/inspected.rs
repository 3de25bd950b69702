//! What replicas tell a tool that asks them itself.

use anyhow::{Result, ensure};
use block_core::salvage::{Identical, Verdict};
use block_core::{Epoch, ReplicaName};
use engine::inspect::Comparing;

use crate::MIB;
use crate::cluster::{Cluster, FrontendChoice};

fn names(verdict: &Verdict) -> Vec<&str> {
    verdict.newest.iter().map(ReplicaName::as_str).collect()
}

/// After a kill nothing but their content can tell whether replicas are identical.
#[test]
fn salvage_compares_what_an_engine_left_that_was_killed() -> Result<()> {
    let mut cluster = Cluster::start(3, 64 * MIB, FrontendChoice::Nbd)?;
    cluster.write_pattern(0, 8 * MIB, 1)?;
    cluster.snapshot("below")?;
    cluster.write_pattern(4 * MIB, 8 * MIB, 2)?;
    cluster.kill_engine()?;
    let inspection = cluster.inspect(&[0, 1, 2])?;
    let unread = inspection.salvage()?;
    ensure!(names(&unread) == ["r0", "r1", "r2"], "{unread:?}");
    ensure!(unread.identical == Identical::Unknown, "{unread:?}");

    let mut told = Vec::new();
    let verdict = inspection.salvage_comparing(|step| match step {
        Comparing::Begun(of) => told.push(of.len()),
        Comparing::Read { left, .. } => told.push(left),
    })?;
    ensure!(verdict.identical == Identical::Yes, "{verdict:?}");
    ensure!(names(&verdict) == ["r0", "r1", "r2"], "{verdict:?}");
    ensure!(told == [3, 2, 1, 0], "{told:?}");

    // A write of an engine that was killed before the others had it.
    let mut client = cluster.replica_client(1)?;
    client.open(Epoch(unread.epoch.0 + 1))?;
    client.write(12 * MIB, vec![7; 512])?;
    let verdict = inspection.salvage_comparing(|_| ())?;
    ensure!(verdict.identical == Identical::No, "{verdict:?}");
    ensure!(names(&verdict) == ["r0", "r1", "r2"], "{verdict:?}");
    Ok(())
}

/// A replica that was left behind is not read: it has to be rebuilt, whatever it holds.
#[test]
fn only_replicas_that_may_be_started_from_are_compared() -> Result<()> {
    let mut cluster = Cluster::start(3, 64 * MIB, FrontendChoice::Nbd)?;
    cluster.write_pattern(0, MIB, 1)?;
    cluster.kill_replica(2)?;
    cluster.await_in_sync(&["r0", "r1"])?;
    cluster.write_pattern(0, MIB, 2)?;
    cluster.kill_engine()?;
    cluster.start_replica(2)?;
    let mut begun = 0;
    let verdict = cluster
        .inspect(&[0, 1, 2])?
        .salvage_comparing(|step| match step {
            Comparing::Begun(of) => begun = of.len(),
            Comparing::Read { .. } => {}
        })?;
    ensure!(names(&verdict) == ["r0", "r1"], "{verdict:?}");
    ensure!(
        begun == 2 && verdict.identical == Identical::Yes,
        "{verdict:?}"
    );
    Ok(())
}
