//! The manager and the nodes of a cluster on this machine: processes of their own, started again when they end.
//!
//! Processes, because that is what the parts are elsewhere: each can be killed, stopped or held back without the
//! others. A child ends by itself when this process is gone (its standard input closes), so that a killed `lariat up`
//! leaves nobody who would disturb the next one; engines go on and are adopted.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::exit;

/// A child that ends sooner than this was not well: the next start waits.
const STABLE_AFTER: Duration = Duration::from_secs(5);
const RESTART_DELAY: Duration = Duration::from_millis(500);
const HOLD_CHECK: Duration = Duration::from_millis(100);
/// How long a child may take to put everything away. A node gives up on an engine that cannot finish after 12 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(45);
const DRAINED_CHECK: Duration = Duration::from_millis(10);
/// A killed process ends at once, unless the kernel keeps it.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// What to run, and where its words go.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub name: String,
    pub arguments: Vec<OsString>,
    pub log: PathBuf,
    /// While this file exists the part is not started again: a node that stays dead, for as long as somebody wants.
    pub hold: Option<PathBuf>,
    /// A part that was asked to stop makes this file when it waits for its siblings only, and ends when it is asked again.
    pub drained: Option<PathBuf>,
}

/// All parts of one kind, running.
pub(super) struct Children {
    stop: CancellationToken,
    release: CancellationToken,
    /// Closed when every part has ended or is drained.
    busy: mpsc::Receiver<()>,
    tasks: JoinSet<()>,
}

impl Children {
    pub(super) fn start(parts: impl IntoIterator<Item = Part>) -> Result<Self> {
        let executable = std::env::current_exe().context("cannot tell where this program is")?;
        let (stop, release) = (CancellationToken::new(), CancellationToken::new());
        let (is_busy, busy) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        for part in parts {
            let ending = Ending {
                stop: stop.clone(),
                release: release.clone(),
                is_busy: is_busy.clone(),
            };
            tasks.spawn(supervise(executable.clone(), part, ending));
        }
        Ok(Self {
            stop,
            release,
            busy,
            tasks,
        })
    }

    /// Asks all to end, and waits until they have: first what needs its siblings, then the rest.
    pub(super) async fn stop(mut self) {
        self.stop.cancel();
        // Nothing is ever sent.
        while self.busy.recv().await.is_some() {}
        self.release.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// How a part learns that it is to end, and tells when its siblings may.
struct Ending {
    stop: CancellationToken,
    release: CancellationToken,
    /// Dropped when the part needs its siblings no more.
    is_busy: mpsc::Sender<()>,
}

async fn supervise(executable: PathBuf, part: Part, ending: Ending) {
    let stop = ending.stop.clone();
    while !stop.is_cancelled() {
        if part.hold.as_deref().is_some_and(Path::exists) {
            idle(HOLD_CHECK, &stop).await;
            continue;
        }
        let started = Instant::now();
        let mut child = match launch(&executable, &part) {
            Ok(child) => child,
            Err(error) => {
                let why = exit::told(&error);
                eprintln!(
                    "lariat: {} cannot be started, and is tried again: {why}",
                    part.name
                );
                idle(STABLE_AFTER, &stop).await;
                continue;
            }
        };
        // Waiting for a child would close its standard input, which would end it.
        let lifeline = child.stdin.take();
        let ended = tokio::select! {
            ended = child.wait() => ended,
            () = stop.cancelled() => {
                end(&part, &mut child, ending).await;
                return;
            }
        };
        drop(lifeline);
        let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
        let log = part.log.display();
        eprintln!(
            "lariat: {} ended ({how}) and is started again; its log: {log}",
            part.name
        );
        if started.elapsed() < STABLE_AFTER {
            idle(RESTART_DELAY, &stop).await;
        }
    }
}

async fn idle(time: Duration, stop: &CancellationToken) {
    // Either way the caller looks at the token next.
    let _ = timeout(time, stop.cancelled()).await;
}

fn launch(executable: &Path, part: &Part) -> Result<Child> {
    if let Some(drained) = &part.drained {
        // Of a predecessor that was killed.
        fs::remove_file(drained).ok();
    }
    if let Some(folder) = part.log.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&part.log)
        .with_context(|| format!("cannot open {}", part.log.display()))?;
    let errors = log.try_clone().context("cannot share the log")?;
    Command::new(executable)
        .args(&part.arguments)
        // Closed when this process is gone, in whatever way.
        .stdin(Stdio::piped())
        .stdout(log)
        .stderr(errors)
        // A terminal's Ctrl-C is for us: we end the parts in order.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", executable.display()))
}

async fn end(part: &Part, child: &mut Child, ending: Ending) {
    ask(child);
    if timeout(STOP_TIMEOUT, drained(part, child)).await.is_err() {
        kill(part, child).await;
        return;
    }
    drop(ending.is_busy);
    if part.drained.is_some() {
        // Comes when the last sibling is drained or killed.
        ending.release.cancelled().await;
        ask(child);
    }
    if timeout(STOP_TIMEOUT, child.wait()).await.is_err() {
        kill(part, child).await;
    }
}

async fn kill(part: &Part, child: &mut Child) {
    let (name, log, seconds) = (&part.name, part.log.display(), STOP_TIMEOUT.as_secs());
    eprintln!("lariat: {name} has not ended within {seconds} s and is killed; its log: {log}");
    if timeout(KILL_TIMEOUT, child.kill()).await.is_err() {
        eprintln!(
            "lariat: {name} was killed and does not end: the kernel keeps it, for a device that does not answer"
        );
    }
}

fn ask(child: &Child) {
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    if let Some(pid) = pid {
        kill_process(pid, Signal::TERM).ok();
    }
}

/// Waits until the part has ended, or says that it waits for its siblings.
async fn drained(part: &Part, child: &mut Child) {
    let Some(file) = &part.drained else { return };
    while !file.exists() && matches!(child.try_wait(), Ok(None)) {
        sleep(DRAINED_CHECK).await;
    }
}
