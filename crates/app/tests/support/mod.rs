//! A real `lariat up` on a folder of its own, stopped when the test ends.

#![allow(dead_code, reason = "each test uses its part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const START_TIMEOUT: Duration = Duration::from_secs(60);

pub struct Cluster {
    child: Child,
    folder: tempfile::TempDir,
}

impl Cluster {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let child = launch(folder.path());
        let mut cluster = Self { child, folder };
        cluster.wait_until_ready();
        cluster
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Kills the process without a word, and starts another on the same folder.
    pub fn kill_and_restart(&mut self) {
        self.child.kill().expect("the process can be killed");
        self.child.wait().expect("the process ends");
        self.child = launch(self.folder.path());
        self.wait_until_ready();
    }

    fn wait_until_ready(&mut self) {
        let deadline = Instant::now() + START_TIMEOUT;
        let own = self.child.id().to_string();
        let ready = self.folder.path().join("ready");
        while fs::read_to_string(&ready).map_or(true, |pid| pid.trim() != own) {
            if let Some(status) = self.child.try_wait().expect("the process can be asked") {
                panic!("lariat up ended with {status} before it was ready");
            }
            assert!(
                Instant::now() < deadline,
                "lariat up is not ready after {START_TIMEOUT:?}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn launch(folder: &Path) -> Child {
    Command::new(lariat())
        .args(["up", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("lariat can be started")
}

/// The binary under test.
pub fn lariat() -> &'static str {
    env!("CARGO_BIN_EXE_lariat")
}
