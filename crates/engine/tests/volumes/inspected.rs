//! What replicas tell a tool that asks them itself.

use std::os::unix::fs::FileExt;

use anyhow::{Result, bail, ensure};
use block_core::salvage::{Identical, Verdict};
use block_core::verification::SnapshotVerdict;
use block_core::{Epoch, ReplicaName};
use engine::control::Command;
use engine::inspect::{Comparing, Verification, VerifiedSnapshot};

use crate::MIB;
use crate::cluster::{Cluster, FrontendChoice, pattern};

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

/// A row for each snapshot: its name, and a word for each replica.
fn told(found: &Verification) -> Vec<String> {
    let word = |verdict: &SnapshotVerdict| match verdict {
        SnapshotVerdict::AsItWas => "same",
        SnapshotVerdict::FirstTime => "first",
        SnapshotVerdict::ChangedOnDisk { .. } => "changed",
        SnapshotVerdict::DiffersFromOthers => "differs",
        SnapshotVerdict::Missing => "missing",
        SnapshotVerdict::Unread { .. } => "unread",
    };
    let row = |snapshot: &VerifiedSnapshot| {
        let words: Vec<&str> = snapshot.verdicts.values().map(word).collect();
        format!("{}: {}", snapshot.name, words.join(" "))
    };
    found.snapshots.iter().map(row).collect()
}

/// Flips a bit of this content in a layer of a replica, as a disk does that wears out.
fn change_on_disk(cluster: &Cluster, at: usize, content: &[u8]) -> Result<()> {
    for entry in std::fs::read_dir(cluster.replica_folder(at))? {
        let path = entry?.path();
        if path.extension().is_none_or(|kind| kind != "data") {
            continue;
        }
        let bytes = std::fs::read(&path)?;
        let mut blocks = bytes.chunks(content.len());
        if let Some(found) = blocks.position(|block| block == content) {
            let file = std::fs::File::options().write(true).open(&path)?;
            file.write_all_at(&[content[9] ^ 4], (found * content.len() + 9) as u64)?;
            return Ok(());
        }
    }
    bail!("no layer of r{at} has it")
}

/// Bits change on one replica's disk while an engine runs: it and the snapshots that show them are named, and a rebuild
/// repairs them.
#[test]
fn bits_that_a_disk_has_changed_are_named() -> Result<()> {
    let mut cluster = Cluster::start(3, 64 * MIB, FrontendChoice::Nbd)?;
    cluster.write_pattern(0, MIB, 1)?;
    cluster.snapshot("first")?;
    cluster.write_pattern(MIB, MIB, 2)?;
    cluster.snapshot("second")?;
    let verify = |wanted: &[&str]| -> Result<Verification> {
        let found = cluster.inspect(&[0, 1, 2])?.verify(|_| ())?;
        ensure!(told(&found) == wanted, "{found:#?}");
        Ok(found)
    };
    let all_well = verify(&["first: first first first", "second: first first first"])?;
    ensure!(!all_well.is_wrong() && !all_well.is_incomplete());

    cluster.write_pattern(0, 2 * MIB, 3)?;
    verify(&["first: same same same", "second: same same same"])?;

    // What only the younger snapshot shows.
    change_on_disk(&cluster, 1, &pattern(MIB, 2)[8192..12288])?;
    let damaged = verify(&["first: same same same", "second: same changed same"])?;
    ensure!(damaged.is_wrong(), "{damaged:#?}");

    // Read for the first time: only the others tell that it is wrong. The older damage is overwritten, and not seen in it.
    cluster.write_pattern(4 * MIB, MIB, 4)?;
    cluster.snapshot("third")?;
    change_on_disk(&cluster, 2, &pattern(MIB, 4)[4096..8192])?;
    verify(&[
        "first: same same same",
        "second: same changed same",
        "third: first first differs",
    ])?;

    for at in [1, 2] {
        cluster.command(Command::RemoveReplica {
            name: format!("r{at}"),
        })?;
    }
    cluster.await_in_sync(&["r0"])?;
    cluster.rebuild_missing()?;
    let repaired = cluster.inspect(&[0, 1, 2])?.verify(|_| ())?;
    ensure!(
        !repaired.is_wrong() && !repaired.is_incomplete(),
        "{repaired:#?}"
    );
    cluster.check_pattern(0, 2 * MIB, 3)?;

    // One that does not answer is no damage, and no good news either.
    cluster.kill_replica(1)?;
    let silent = cluster.inspect(&[0, 1, 2])?.verify(|_| ())?;
    ensure!(silent.is_incomplete() && !silent.is_wrong(), "{silent:#?}");
    ensure!(silent.silent.len() == 1, "{silent:#?}");
    cluster.await_in_sync(&["r0", "r2"])?;
    cluster.shutdown()
}
