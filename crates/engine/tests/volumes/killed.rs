//! An engine's process is killed, and no keeper holds its device open, or in vain: its users get errors instead of waiting, and nothing
//! of it is in the next one's way.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use engine::control::{Command, ControlPush, Notice};

use crate::MIB;
use crate::cluster::{Cluster, FrontendChoice};
use crate::direct::Direct;
use crate::processes::await_that;
use crate::programs::run;

/// Much less than the two minutes after which the kernel calls a task hung, much more than it takes.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Does something that would hang if a request were left without an answer.
pub fn at_once<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let begun = Instant::now();
    let thread = std::thread::spawn(work);
    await_that(what, || Ok(thread.is_finished()))?;
    let taken = begun.elapsed();
    ensure!(taken < AT_ONCE, "{what} took {taken:?}");
    Ok(thread.join().expect("no panic"))
}

/// Writes and syncs, over and over, until that fails.
fn write_until_refused(path: &Path, writes: &AtomicU64) -> io::Error {
    let write = || -> io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(&vec![7; 1 << 20])?;
        file.sync_data()
    };
    loop {
        match write() {
            Ok(()) => writes.fetch_add(1, Ordering::Relaxed),
            Err(error) => return error,
        };
    }
}

/// What a loop device is over, while it is over anything.
pub fn backing_of(device: &Path) -> Result<Option<String>> {
    let name = device.file_name().context("a device has a name")?;
    let folder = Path::new("/sys/block").join(name);
    Ok(std::fs::read_to_string(folder.join("loop/backing_file")).ok())
}

#[test]
fn without_a_keeper_users_of_a_killed_engine_get_errors_at_once() -> Result<()> {
    let mut cluster = Cluster::start(2, 64 * MIB, FrontendChoice::Fuse)?;
    let device = cluster.device()?;
    run("mkfs.ext4", &["-q", "-F", &device])?;
    let mount = cluster.mount("ext4")?;
    std::fs::write(mount.path().join("kept"), "acknowledged")?;
    File::open(mount.path().join("kept"))?.sync_all()?;
    let dead = std::fs::canonicalize(&device)?;
    let raw = Direct::open(&dead)?;
    // Requests are under way when the engine dies.
    let writes = Arc::new(AtomicU64::new(0));
    let (path, counted) = (mount.path().join("busy"), Arc::clone(&writes));
    let writer = std::thread::spawn(move || write_until_refused(&path, &counted));
    await_that("writes", || Ok(writes.load(Ordering::Relaxed) >= 3))?;

    cluster.kill_engine()?;
    let refused = at_once("the writer's end", move || writer.join().expect("no panic"))?;
    let kinds = [Some(rustix::io::Errno::IO), Some(rustix::io::Errno::ROFS)];
    ensure!(
        kinds.contains(&rustix::io::Errno::from_io_error(&refused)),
        "{refused}"
    );
    let read = at_once("a read of the device", move || raw.read(0))?;
    ensure!(read.is_err(), "nobody is there who could have read it");

    // The next engine does not wait for whoever still has the dead device mounted; it goes with him.
    cluster.start_engine()?;
    let over = backing_of(&dead)?;
    at_once("the unmount", move || drop(mount))?;
    await_that("the dead device to be free", || {
        let now = backing_of(&dead)?;
        Ok(now.is_none() || now != over)
    })?;
    let mount = cluster.mount("ext4")?;
    ensure!(std::fs::read_to_string(mount.path().join("kept"))? == "acknowledged");
    drop(mount);
    cluster.await_status("comparison", |status| status.tasks.is_empty())?;
    cluster.rebuild_missing()?;
    cluster.shutdown()?;
    ensure!(cluster.left_in_the_machine()? == [""; 0]);
    cluster.ensure_identical()
}

/// As on a kernel that does not resend. The engine has its new device before anybody listens.
#[test]
fn who_listens_hears_of_a_device_that_could_not_be_taken_over() -> Result<()> {
    let mut cluster = Cluster::start_with_keeper(1, 64 * MIB)?;
    cluster.kill_engine()?;
    let kept = cluster.spoil_what_is_kept()?;
    cluster.start_engine()?;
    drop(kept);
    let mut events = cluster.client()?;
    events.command(Command::Subscribe)?;
    let why = loop {
        if let ControlPush::Event(Notice::DeviceMadeAnew { why }) = events.next_push()? {
            break why;
        }
    };
    ensure!(why.contains("does not resend"), "{why}");
    cluster.await_status("comparison", |status| status.tasks.is_empty())?;
    cluster.shutdown()?;
    ensure!(cluster.left_in_the_machine()? == [""; 0]);
    Ok(())
}
