//! Replicas that are new, and replicas whose data is gone.

use anyhow::{Result, ensure};
use engine::control::Command;

use crate::MIB;
use crate::cluster::{Cluster, FrontendChoice};

const GONE: &str = "its data is gone";

fn replica_is_gone(cluster: &Cluster, at: usize) -> Result<()> {
    let name = format!("r{at}");
    cluster
        .await_status("word of the lost replica", |status| {
            let mut of_it = status.members.iter().filter(|member| member.name == name);
            of_it.any(|member| format!("{member:?}").contains(GONE))
        })
        .map(|_| ())
}

/// A volume gets one more replica, long after it was made.
#[test]
fn a_replica_is_added_to_a_volume_that_is_not_new() -> Result<()> {
    let mut cluster = Cluster::start(2, 64 * MIB, FrontendChoice::Nbd)?;
    cluster.write_pattern(0, MIB, 1)?;
    cluster.snapshot("below")?;
    cluster.shutdown()?;
    cluster.start_engine()?;
    cluster.write_pattern(MIB, MIB, 2)?;
    let at = cluster.add_replica()?;
    cluster.rebuild(at)?;
    cluster.await_in_sync(&["r0", "r1", "r2"])?;
    cluster.write_pattern(2 * MIB, MIB, 3)?;
    cluster.shutdown()?;
    cluster.ensure_identical()
}

/// In the run that made the volume: the only replica comes back without its data. Requests wait, nothing is made in its
/// place, and they go on when the data is there again.
#[test]
fn the_last_replica_is_not_made_anew_when_its_data_is_gone() -> Result<()> {
    let mut cluster = Cluster::start(1, 64 * MIB, FrontendChoice::Nbd)?;
    cluster.write_pattern(0, MIB, 1)?;
    cluster.kill_replica(0)?;
    let folder = cluster.replica_folder(0);
    let aside = folder.with_extension("aside");
    std::fs::rename(&folder, &aside)?;
    cluster.start_replica(0)?;
    replica_is_gone(&cluster, 0)?;
    let status = cluster.await_status("stall", |status| status.stalled.is_some())?;
    ensure!(!folder.exists(), "an empty one was made: {status:#?}");
    cluster.kill_replica(0)?;
    std::fs::rename(&aside, &folder)?;
    cluster.start_replica(0)?;
    cluster.check_pattern(0, MIB, 1)?;
    cluster.shutdown()
}

/// One of two comes back without its data: it is left behind, and made anew only by a rebuild.
#[test]
fn a_replica_without_its_data_is_left_behind_until_it_is_rebuilt() -> Result<()> {
    let mut cluster = Cluster::start(2, 64 * MIB, FrontendChoice::Nbd)?;
    cluster.write_pattern(0, MIB, 1)?;
    cluster.kill_replica(1)?;
    std::fs::remove_dir_all(cluster.replica_folder(1))?;
    cluster.start_replica(1)?;
    cluster.await_in_sync(&["r0"])?;
    cluster.write_pattern(MIB, MIB, 2)?;
    ensure!(!cluster.replica_folder(1).exists(), "nobody asked for it");
    cluster.rebuild(1)?;
    cluster.await_in_sync(&["r0", "r1"])?;
    cluster.shutdown()?;

    // While no engine runs: the next one does not take an empty replica for one in sync either.
    cluster.kill_replica(1)?;
    std::fs::remove_dir_all(cluster.replica_folder(1))?;
    cluster.start_replica(1)?;
    cluster.start_engine()?;
    cluster.await_in_sync(&["r0"])?;
    ensure!(!cluster.replica_folder(1).exists(), "nobody asked for it");
    cluster.check_pattern(0, MIB, 1)?;
    cluster.check_pattern(MIB, MIB, 2)?;
    cluster.shutdown()
}

/// The only replica in sync comes back at another address, and one that was left behind is served where it was.
#[test]
fn a_replica_that_was_left_behind_does_not_pass_for_another() -> Result<()> {
    let mut cluster = Cluster::start(2, 64 * MIB, FrontendChoice::Nbd)?;
    cluster.write_pattern(0, MIB, 1)?;
    cluster.kill_replica(0)?;
    cluster.await_in_sync(&["r1"])?;
    cluster.write_pattern(0, MIB, 2)?;
    cluster.kill_replica(1)?;
    cluster.swap_addresses(0, 1);
    cluster.start_replica(0)?;
    cluster.start_replica(1)?;
    cluster.await_status("word of the other replica", |status| {
        let told = |trouble: &String| trouble.contains("leads to replica r0");
        let mut members = status.members.iter();
        members.any(|member| member.name == "r1" && member.trouble.as_ref().is_some_and(told))
    })?;
    cluster.command(Command::SetAddress {
        name: "r1".into(),
        address: cluster.address(1),
    })?;
    cluster.check_pattern(0, MIB, 2)?;
    cluster.rebuild(0)?;
    cluster.await_in_sync(&["r0", "r1"])?;
    cluster.shutdown()?;
    cluster.ensure_identical()
}
