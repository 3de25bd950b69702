//! Snapshots that a revert leaves beside the live volume.

use anyhow::{Result, bail, ensure};
use block_core::SnapshotName;
use block_core::wire::{Reply, Request};
use engine::control::Command;

use crate::MIB;
use crate::cluster::{Cluster, FrontendChoice};

const ALL: [usize; 3] = [0, 1, 2];

fn revert(cluster: &mut Cluster, name: &str) -> Result<()> {
    cluster.shutdown()?;
    cluster.frontend = FrontendChoice::None;
    cluster.start_engine()?;
    let name = name.to_owned();
    cluster.command(Command::Revert { name })?;
    cluster.shutdown()?;
    cluster.frontend = FrontendChoice::Nbd;
    cluster.start_engine()
}

/// What a snapshot shows at one replica, read from its disk.
fn digest(cluster: &Cluster, at: usize, name: &str) -> Result<[u8; 32]> {
    let request = Request::SnapshotDigest {
        name: SnapshotName::new(name)?,
        recompute: true,
    };
    match cluster.replica_client(at)?.call(request)? {
        Reply::Digest(digest) => Ok(digest),
        other => bail!("{other:?}"),
    }
}

/// One replica loses its data after a revert. Its rebuild brings the newer snapshot as well, so that the next engine, which asks
/// all of them for their snapshots, leaves none behind; and who reverts to it then finds what it was.
#[test]
fn a_rebuild_brings_snapshots_that_a_revert_has_left() -> Result<()> {
    let mut cluster = Cluster::start(ALL.len(), 64 * MIB, FrontendChoice::Nbd)?;
    cluster.write_pattern(0, 2 * MIB, 1)?;
    cluster.snapshot("one")?;
    cluster.write_pattern(MIB, 2 * MIB, 2)?;
    cluster.snapshot("two")?;
    cluster.write_pattern(0, MIB, 3)?;
    revert(&mut cluster, "one")?;
    cluster.write_pattern(4 * MIB, MIB, 4)?;
    let before = digest(&cluster, 0, "two")?;

    cluster.kill_replica(2)?;
    std::fs::remove_dir_all(cluster.replica_folder(2))?;
    cluster.await_in_sync(&["r0", "r1"])?;
    cluster.start_replica(2)?;
    cluster.rebuild(2)?;
    cluster.await_in_sync(&["r0", "r1", "r2"])?;
    cluster.kill_engine()?;
    cluster.start_engine()?;
    cluster.await_status("comparison", |status| status.tasks.is_empty())?;
    cluster.await_in_sync(&["r0", "r1", "r2"])?;
    let mut snapshots = cluster.snapshots()?;
    snapshots.sort_unstable();
    ensure!(snapshots == ["one", "two"], "{snapshots:?}");
    for at in ALL {
        ensure!(
            digest(&cluster, at, "two")? == before,
            "r{at} shows another"
        );
    }
    cluster.check_pattern(0, 2 * MIB, 1)?;
    cluster.check_pattern(4 * MIB, MIB, 4)?;

    revert(&mut cluster, "two")?;
    cluster.check_pattern(MIB, 2 * MIB, 2)?;
    cluster.shutdown()?;
    cluster.ensure_identical()
}
