//! Child processes that end with their owner.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// Far beyond what a start takes, on a loaded machine too.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// How long a process may take to end in good order.
const FAREWELL: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
const LINES_SHOWN: usize = 25;

/// A running program, whose output goes to a file. It is asked to end when this is dropped, and killed if it does not.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program; what it says goes to `NAME.log` in a folder.
    ///
    /// # Errors
    /// If the log cannot be made or the program cannot be started.
    pub fn start(name: &str, command: &mut Command, logs: &Path) -> Result<Self> {
        let log = logs.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| {
                format!("cannot start {name} ({})", command.get_program().display())
            })?;
        let name = name.to_owned();
        Ok(Self { name, child, log })
    }

    /// The last lines that the program wrote.
    #[must_use]
    pub fn last_words(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
    }

    /// The process's number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks again and again until the answer is yes, the program ends, or patience does.
    ///
    /// # Errors
    /// If the program ended or never became ready; with its last words.
    pub async fn until(&mut self, what: &str, mut ready: impl AsyncFnMut() -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !ready().await {
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "{} ended with {status} before {what}:\n{}",
                    self.name,
                    self.last_words()
                );
            }
            if Instant::now() > deadline {
                bail!(
                    "{}: waited {} s in vain for {what}:\n{}",
                    self.name,
                    PATIENCE.as_secs(),
                    self.last_words()
                );
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            kill_process(Pid::from_child(&self.child), Signal::TERM).ok();
            let deadline = Instant::now() + FAREWELL;
            while Instant::now() < deadline && self.child.try_wait().is_ok_and(|end| end.is_none())
            {
                std::thread::sleep(PAUSE);
            }
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
