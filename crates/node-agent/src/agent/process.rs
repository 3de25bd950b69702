//! Engine processes: starting them, finding those of a predecessor, seeing them end.

use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::watch;

use super::layout::Layout;
use crate::launch::LaunchSpec;

/// How much of an engine's log goes into a message.
const LOG_TAIL_BYTES: u64 = 600;

/// A log that has grown beyond this is begun anew at the next start.
const LOG_BYTES_MAX: u64 = 4 << 20;

/// What an agent writes down about an engine before it starts it, so that its successor knows what it finds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineRecord {
    pub engine: String,
    pub volume: String,
    pub epoch: u64,
    pub uuid: String,
    pub frontend: bool,
}

impl EngineRecord {
    pub fn save(&self, layout: &Layout) -> io::Result<()> {
        let path = layout.engine_record(&self.volume);
        let fresh = path.with_extension("new");
        std::fs::write(&fresh, serde_json::to_vec(self)?)?;
        std::fs::rename(fresh, path)
    }

    #[must_use]
    pub fn load(layout: &Layout, volume: &str) -> Option<Self> {
        let text = std::fs::read(layout.engine_record(volume)).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

#[derive(Debug, Error)]
pub enum SpawnError {
    #[error("cannot open the engine's log {path}")]
    Log {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot start {executable}")]
    Start {
        executable: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot tell the engine what to do")]
    Input(#[source] io::Error),
}

/// A process of ours, or one that a predecessor started.
#[derive(Clone, Debug)]
pub struct Handle {
    pub pid: u32,
    /// Of a child of ours: how it ended, once it has.
    ended: Option<watch::Receiver<Option<String>>>,
}

impl Handle {
    #[must_use]
    pub fn adopted(pid: u32) -> Self {
        Self { pid, ended: None }
    }

    #[must_use]
    pub fn is_alive(&self) -> bool {
        match &self.ended {
            Some(ended) => ended.borrow().is_none(),
            None => is_alive(self.pid),
        }
    }

    /// How a child of ours ended.
    #[must_use]
    pub fn verdict(&self) -> Option<String> {
        self.ended.as_ref().and_then(|ended| ended.borrow().clone())
    }

    /// Waits for the end, for at most this long; says whether it came.
    pub async fn wait(&self, at_most: Duration) -> bool {
        let until = tokio::time::Instant::now() + at_most;
        match self.ended.clone() {
            Some(mut ended) => {
                let over = ended.wait_for(Option::is_some);
                tokio::time::timeout_at(until, over).await.is_ok()
            }
            None => {
                while is_alive(self.pid) {
                    if tokio::time::Instant::now() >= until {
                        return false;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                true
            }
        }
    }

    /// Ends it without a word. Only what is still that process is hit.
    pub fn kill(&self) {
        if self.is_alive()
            && let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Starts an engine in a session of its own (the process sees to that itself), so that it outlives this agent.
pub async fn spawn(
    executable: &Path,
    layout: &Layout,
    spec: &LaunchSpec,
) -> Result<Handle, SpawnError> {
    let log_path = layout.engine_log(&spec.volume);
    let log = open_log(&log_path).map_err(|source| SpawnError::Log {
        path: log_path,
        source,
    })?;
    let out = log.try_clone().map_err(SpawnError::Input)?;
    let mut child = tokio::process::Command::new(executable)
        .args(["engine", "managed", "--runtime-dir"])
        .arg(layout.run())
        .args(["--volume", &spec.volume])
        .stdin(Stdio::piped())
        .stdout(out)
        .stderr(log)
        .kill_on_drop(false)
        .spawn()
        .map_err(|source| SpawnError::Start {
            executable: executable.to_owned(),
            source,
        })?;
    let pid = child.id().unwrap_or_default();
    let mut input = child.stdin.take().expect("piped above");
    let (sender, ended) = watch::channel(None);
    tokio::spawn(async move {
        let verdict = match child.wait().await {
            Ok(status) => format!("it ended with {status}"),
            Err(error) => format!("its end could not be seen: {error}"),
        };
        sender.send_replace(Some(verdict));
    });
    let text = serde_json::to_vec(spec).expect("a launch specification is plain data");
    tokio::io::AsyncWriteExt::write_all(&mut input, &text)
        .await
        .map_err(SpawnError::Input)?;
    drop(input);
    Ok(Handle {
        pid,
        ended: Some(ended),
    })
}

fn open_log(path: &Path) -> io::Result<std::fs::File> {
    let large = std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > LOG_BYTES_MAX);
    let mut log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)?;
    if large {
        log.set_len(0)?;
    }
    writeln!(log, "--- started {}", jiff::Timestamp::now())?;
    Ok(log)
}

/// The last lines that an engine wrote.
#[must_use]
pub fn log_tail(path: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
        let mut tail = Vec::new();
        file.take(LOG_TAIL_BYTES).read_to_end(&mut tail)?;
        Ok(tail)
    };
    let tail = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&tail);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with("--- started"))
        .collect();
    let last = lines.len().saturating_sub(3);
    lines[last..].join(" / ")
}

/// The engine processes that run on this node's folder, whoever started them, and the volume of each.
pub fn find(layout: &Layout) -> io::Result<Vec<(u32, String)>> {
    let run = layout.run();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Ok(entry) = entry else { continue };
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        let arguments: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        if let Some(volume) = volume_of(&arguments, &run)
            && is_alive(pid)
        {
            found.push((pid, volume));
        }
    }
    Ok(found)
}

/// Whether a process was started with this path as an argument.
#[must_use]
pub fn has_argument(pid: i32, path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt as _;
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
        line.split(|byte| *byte == 0)
            .any(|argument| argument == path.as_os_str().as_bytes())
    })
}

fn volume_of(arguments: &[&[u8]], run: &Path) -> Option<String> {
    use std::os::unix::ffi::OsStrExt as _;
    match arguments {
        [
            _,
            b"engine",
            b"managed",
            b"--runtime-dir",
            dir,
            b"--volume",
            volume,
            ..,
        ] if *dir == run.as_os_str().as_bytes() => String::from_utf8(volume.to_vec()).ok(),
        _ => None,
    }
}

/// A zombie counts as dead: nobody may be there to take it away.
fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        // The name in parentheses may hold anything.
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| !rest.starts_with('Z') && !rest.starts_with('X'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_known_by_their_arguments() {
        let check = |line: &str, expected: Option<&str>| {
            let arguments: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let found = volume_of(&arguments, Path::new("/n/run"));
            assert_eq!(found.as_deref(), expected, "{line}");
        };
        check(
            "/bin/lariat engine managed --runtime-dir /n/run --volume v1",
            Some("v1"),
        );
        check(
            "/bin/lariat engine managed --runtime-dir /m/run --volume v1",
            None,
        );
        check("/bin/lariat engine run --volume v1", None);
    }

    #[test]
    fn a_log_ends_with_its_last_lines() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let mut log = open_log(&path).expect("a log");
        for number in 0..100 {
            writeln!(log, "line {number}").expect("a line");
        }
        assert_eq!(log_tail(&path), "line 97 / line 98 / line 99");
        assert_eq!(log_tail(&folder.path().join("none")), "");
    }
}
