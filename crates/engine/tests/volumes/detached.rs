//! An engine is asked to end while somebody uses its device: he may finish, within a bound, and then nothing of it is left.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::{Result, ensure};
use engine::control::{Answer, Command};

use crate::MIB;
use crate::cluster::{Cluster, FrontendChoice};
use crate::direct::{BLOCK_BYTES, Direct};
use crate::killed::{at_once, backing_of};
use crate::processes::await_that;
use crate::programs::run;

/// Asks for the end, and waits until the device can be found no more.
fn ask_for_the_end(cluster: &Cluster, link: &Path) -> Result<JoinHandle<Result<Answer>>> {
    let mut client = cluster.client()?;
    let asked = std::thread::spawn(move || Ok(client.command(Command::Shutdown)?));
    await_that("the link to go", || Ok(!link.is_symlink()))?;
    Ok(asked)
}

fn ensure_it_is_free(cluster: &Cluster, device: &Path, over: Option<&String>) -> Result<()> {
    await_that("the loop device to be free", || {
        let now = backing_of(device)?;
        Ok(now.is_none() || now.as_ref() != over)
    })?;
    ensure!(cluster.left_in_the_machine()? == [""; 0]);
    Ok(())
}

/// Who has the device open is served until he closes it, and what he was told is written is there.
fn check_a_user_who_leaves(mut cluster: Cluster) -> Result<()> {
    let link = PathBuf::from(cluster.device()?);
    let device = std::fs::canonicalize(&link)?;
    let over = backing_of(&device)?;
    ensure!(over.is_some(), "{} is over something", device.display());
    let user = Direct::open(&link)?;
    user.write(1, 1)?;
    let asked = ask_for_the_end(&cluster, &link)?;
    user.write(2, 2)?;
    ensure!(user.read(1)? == [1; BLOCK_BYTES] && user.read(2)? == [2; BLOCK_BYTES]);
    ensure!(!asked.is_finished(), "its end waits for the user's");
    drop(user);
    ensure!(matches!(asked.join().expect("no panic")?, Answer::Done));
    cluster.await_orderly_end()?;
    ensure_it_is_free(&cluster, &device, over.as_ref())?;
    for at in 0..2 {
        let found = cluster
            .replica_client(at)?
            .read(2 * BLOCK_BYTES as u64, BLOCK_BYTES as u64)?;
        ensure!(found[..] == [2; BLOCK_BYTES], "replica {at}");
    }
    cluster.ensure_identical()
}

#[test]
fn a_device_in_use_is_served_until_its_user_leaves() -> Result<()> {
    check_a_user_who_leaves(Cluster::start(2, 64 * MIB, FrontendChoice::Fuse)?)
}

#[test]
fn a_device_in_use_is_served_until_its_user_leaves_also_with_a_keeper() -> Result<()> {
    check_a_user_who_leaves(Cluster::start_with_keeper(2, 64 * MIB)?)
}

/// A file system that stays mounted does not hold the engine up for ever. Its users get errors from then on, all that was synced is on the
/// replicas, and the loop device goes with the mount.
#[test]
fn a_file_system_that_stays_mounted_loses_its_device_and_nothing_else() -> Result<()> {
    let mut cluster = Cluster::start(2, 64 * MIB, FrontendChoice::Fuse)?;
    let link = PathBuf::from(cluster.device()?);
    run("mkfs.ext4", &["-q", "-F", &link.to_string_lossy()])?;
    let device = std::fs::canonicalize(&link)?;
    let mount = cluster.mount("ext4")?;
    let write = |name: &str| -> std::io::Result<()> {
        let mut file = File::create(mount.path().join(name))?;
        file.write_all(b"acknowledged")?;
        file.sync_all()
    };
    write("before")?;
    let asked = ask_for_the_end(&cluster, &link)?;
    write("within the grace")?;
    ensure!(matches!(asked.join().expect("no panic")?, Answer::Done));
    cluster.await_orderly_end()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let fuse = |line: &str| line.contains("fuse.lariat") && line.contains(cluster.volume());
    ensure!(!mounts.lines().any(fuse), "the FUSE mount is left");
    ensure!(write("after").is_err(), "nobody is there to write it");
    let over = backing_of(&device)?;
    ensure!(over.is_some(), "a device that is mounted cannot go");
    at_once("the unmount", move || drop(mount))?;
    ensure_it_is_free(&cluster, &device, over.as_ref())?;

    cluster.start_engine()?;
    // The file system was not unmounted in order, which is what its journal is for.
    let mount = cluster.mount("ext4")?;
    for name in ["before", "within the grace"] {
        let found = std::fs::read_to_string(mount.path().join(name))?;
        ensure!(found == "acknowledged", "{name}: {found}");
    }
    drop(mount);
    run("e2fsck", &["-f", "-n", &link.to_string_lossy()])?;
    cluster.shutdown()?;
    ensure!(cluster.left_in_the_machine()? == [""; 0]);
    cluster.ensure_identical()
}
