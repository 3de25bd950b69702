//! fio, which writes and reads back what it wrote.

use std::process::{Child, Command as Process, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, ensure};

use crate::cluster::Cluster;
use crate::processes::await_that;

/// How fio writes: at a rate that any machine keeps up with, or as much as it can, in large pieces too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    Steady,
    Full,
}

/// Where fio writes.
#[derive(Clone, Debug)]
pub enum Place {
    /// Files of its own in this folder.
    Folder(String),
    /// The device itself, each job in a part of its own.
    Device(String),
}

/// Writes and reads back for `seconds`.
pub fn start_fio(place: &Place, load: Load, seconds: u32) -> Result<Child> {
    let place: &[String] = match place {
        Place::Folder(folder) => &[format!("--directory={folder}")],
        Place::Device(path) => &[
            format!("--filename={path}"),
            "--offset_increment=48m".into(),
        ],
    };
    let load: &[&str] = match load {
        Load::Steady => &["--bs=4k-64k", "--iodepth=8", "--rate_iops=400"],
        Load::Full => &["--bs=4k-1m", "--iodepth=16"],
    };
    Process::new("timeout")
        .args(["180", "fio", "--name=load", "--rw=randwrite"])
        .args(place)
        .args([
            "--size=48m",
            "--numjobs=2",
            "--ioengine=libaio",
            "--direct=1",
        ])
        .args(load)
        .args([
            "--verify=crc32c",
            "--verify_state_save=0",
            "--verify_fatal=1",
            "--verify_backlog=256",
            "--fsync=200",
            "--time_based",
        ])
        .arg(format!("--runtime={seconds}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("fio cannot be run; install fio")
}

pub fn finish_fio(fio: Child) -> Result<()> {
    let output = fio.wait_with_output()?;
    ensure!(
        output.status.success(),
        "fio ended with {}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// A steady load for as long as the test wants one, however long that takes: short runs of fio one after the other, each of
/// which is verified to its end.
pub struct Ongoing {
    over: Arc<AtomicBool>,
    runs: Option<JoinHandle<Result<()>>>,
}

impl Ongoing {
    pub fn start(place: Place) -> Self {
        const RUN_SECONDS: u32 = 3;
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let runs = std::thread::spawn(move || -> Result<()> {
            while !is_over.load(Ordering::Relaxed) {
                finish_fio(start_fio(&place, Load::Steady, RUN_SECONDS)?)?;
            }
            Ok(())
        });
        Self {
            over,
            runs: Some(runs),
        }
    }

    /// Returns when some more writes are done: those who write have not stopped.
    pub fn await_writes(&mut self, cluster: &Cluster) -> Result<()> {
        const WRITES_MORE: u64 = 20;
        let wanted = cluster.status()?.statistics.write.count + WRITES_MORE;
        await_that("writes", || {
            if self.runs.as_ref().is_none_or(JoinHandle::is_finished) {
                self.join()?;
            }
            Ok(cluster.status()?.statistics.write.count >= wanted)
        })
    }

    /// Waits for the end of the run that is under way.
    pub fn finish(mut self) -> Result<()> {
        self.over.store(true, Ordering::Relaxed);
        self.join()
    }

    fn join(&mut self) -> Result<()> {
        let runs = self.runs.take().context("fio has ended before")?;
        runs.join().expect("no panic")
    }
}

impl Drop for Ongoing {
    /// A test that fails does not wait for it, and no run is begun any more.
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
