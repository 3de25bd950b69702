//! Rebuilds that break off, and go on where they were.

use anyhow::{Result, ensure};
use engine::control::{Command, ControlPush, EngineStatus, Notice};

use crate::MIB;
use crate::cluster::{Cluster, FrontendChoice};

const WHOLE: u64 = 24 * MIB;
/// Slow enough that it is far from done when a third of it is.
const RATE: u64 = 4 * MIB;
const THIRD: u64 = 8 * MIB;

fn set_rate(cluster: &Cluster, bytes_per_second_max: u64) -> Result<()> {
    let command = Command::SetRebuildRate {
        bytes_per_second_max,
    };
    cluster.command(command).map(|_| ())
}

/// What the rebuild that is under way has copied.
fn copied_bytes(status: &EngineStatus) -> u64 {
    let rebuild = status.tasks.iter().find(|task| task.kind == "rebuild");
    rebuild.map_or(0, |task| task.done_bytes)
}

/// The target is killed on the way and stays away until the rebuild is given up. What it got is not copied once more.
#[test]
fn a_rebuild_whose_target_was_killed_goes_on_where_it_was() -> Result<()> {
    let mut cluster = Cluster::start(1, 64 * MIB, FrontendChoice::Nbd)?;
    cluster.write_pattern(0, WHOLE, 1)?;
    // A layer that both rebuilds have to copy.
    cluster.snapshot("below")?;
    let target = cluster.add_replica()?;
    set_rate(&cluster, RATE)?;
    let first = std::thread::spawn(cluster.rebuilder(target)?);
    let status = cluster.await_status("a third of it", |status| copied_bytes(status) >= THIRD)?;
    let copied_before = copied_bytes(&status);
    ensure!(copied_before < WHOLE, "it was not stopped on the way");
    cluster.kill_replica(target)?;
    let first = first.join().expect("no panic");
    ensure!(first.is_err(), "nobody was there to be rebuilt");
    cluster.await_in_sync(&["r0"])?;

    set_rate(&cluster, 0)?;
    cluster.start_replica(target)?;
    let mut events = cluster.client()?;
    events.command(Command::Subscribe)?;
    cluster.rebuild_missing()?;
    let copied_again = loop {
        if let ControlPush::Event(Notice::RebuildFinished { copied_bytes, .. }) =
            events.next_push()?
        {
            break copied_bytes;
        }
    };
    // Pieces that were on their way may be copied again.
    ensure!(
        0 < copied_again && copied_again + copied_before / 2 < WHOLE,
        "{copied_again} bytes after {copied_before}, of {WHOLE}"
    );
    cluster.check_pattern(0, WHOLE, 1)?;
    cluster.shutdown()?;
    cluster.ensure_identical()
}
