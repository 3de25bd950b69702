//! A real `lariat up` on a folder of its own, stopped when the test ends.

#![allow(dead_code, reason = "each test uses its part")]

pub mod https;
pub mod kubectl;
pub mod objects;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Far beyond what anything here takes: waiting this long means that it will never come.
pub const PATIENCE: Duration = Duration::from_secs(180);

pub struct Cluster {
    child: Child,
    folder: tempfile::TempDir,
    nodes: u16,
    environment: &'static [(&'static str, &'static str)],
}

impl Cluster {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self::start_in(folder, 0, &[])
    }

    /// With a manager and as many nodes.
    pub fn start_with_nodes(nodes: u16) -> Self {
        Self::start_with_environment(nodes, &[])
    }

    /// As [`start_with_nodes`](Self::start_with_nodes); every process of it gets these variables as well.
    pub fn start_with_environment(
        nodes: u16,
        environment: &'static [(&'static str, &'static str)],
    ) -> Self {
        // Sockets have short paths.
        let folder = tempfile::Builder::new().prefix("lr").tempdir_in("/tmp");
        Self::start_in(folder.expect("a temporary folder"), nodes, environment)
    }

    fn start_in(
        folder: tempfile::TempDir,
        nodes: u16,
        environment: &'static [(&'static str, &'static str)],
    ) -> Self {
        let child = launch(folder.path(), "127.0.0.1:0", nodes, environment);
        let mut cluster = Self {
            child,
            folder,
            nodes,
            environment,
        };
        cluster.wait_until_ready();
        cluster
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// The address of the API, such as `127.0.0.1:7443`.
    pub fn address(&self) -> String {
        let text = fs::read_to_string(self.kubeconfig()).expect("a kubeconfig");
        let config: serde_json::Value = serde_json::from_str(&text).expect("a kubeconfig in JSON");
        let server = config["clusters"][0]["cluster"]["server"].as_str();
        let address = server.and_then(|server| server.strip_prefix("https://"));
        address.expect("an address in the kubeconfig").to_owned()
    }

    pub fn token(&self) -> String {
        fs::read_to_string(self.folder.path().join("token")).expect("a token")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process without a word.
    pub fn kill(&mut self) {
        self.child.kill().expect("the process can be killed");
        self.child.wait().expect("the process ends");
    }

    /// Asks the process to stop, and waits until it has.
    pub fn stop(&mut self, signal: Signal) -> ExitStatus {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the process can be signalled");
        self.wait_until_ended()
    }

    pub fn wait_until_ended(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the end of lariat up", || {
            status = self.child.try_wait().expect("the process can be asked");
            status.is_some()
        });
        status.expect("seen just now")
    }

    /// Starts another process on the same folder and port, where clients look for it.
    pub fn start_again(&mut self) {
        self.begin_again();
        self.wait_until_ready();
    }

    /// As [`start_again`](Self::start_again), without waiting.
    pub fn begin_again(&mut self) {
        let (folder, address) = (self.folder.path(), self.address());
        self.child = launch(folder, &address, self.nodes, self.environment);
    }

    fn wait_until_ready(&mut self) {
        let own = self.child.id().to_string();
        let ready = self.folder.path().join("ready");
        eventually("lariat up to be ready", || {
            if let Some(status) = self.child.try_wait().expect("the process can be asked") {
                panic!("lariat up ended with {status} before it was ready");
            }
            fs::read_to_string(&ready).is_ok_and(|pid| pid.trim() == own)
        });
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.nodes > 0 && self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            // Mounts and devices outlive a killed process: let the nodes put them away.
            kill_process(Pid::from_child(&self.child), Signal::TERM).ok();
            let deadline = Instant::now() + PATIENCE;
            while Instant::now() < deadline && self.child.try_wait().is_ok_and(|end| end.is_none())
            {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        self.child.kill().ok();
        self.child.wait().ok();
        if self.nodes > 0 {
            if std::thread::panicking() {
                show_logs(self.folder.path());
            }
            clear_leftovers(self.folder.path());
        }
    }
}

/// Ends engines that outlived their node, and takes their mounts and devices away: a device that nobody serves would
/// hold up everything on this machine that waits for its disks. Tests that care have looked before.
pub fn clear_leftovers(folder: &Path) {
    let folder = folder.to_string_lossy();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let pid = entry.file_name().to_string_lossy().parse().ok();
        let own = String::from_utf8_lossy(&line).contains(folder.as_ref());
        if let Some(pid) = pid.and_then(Pid::from_raw).filter(|_| own) {
            kill_process(pid, Signal::KILL).ok();
        }
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let targets = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    for target in targets.filter(|target| target.contains(folder.as_ref())) {
        Command::new("umount")
            .args(["--lazy", target])
            .status()
            .ok();
    }
    let devices = Command::new("losetup").arg("--all").output();
    let devices = devices.map(|output| output.stdout).unwrap_or_default();
    for line in String::from_utf8_lossy(&devices).lines() {
        if let Some((device, _)) = line
            .split_once(':')
            .filter(|_| line.contains(folder.as_ref()))
        {
            Command::new("losetup")
                .args(["--detach", device])
                .status()
                .ok();
        }
    }
}

/// The last words of every part, for whoever reads the failure.
pub fn show_logs(folder: &Path) {
    for entry in fs::read_dir(folder.join("logs"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(40)..].join("\n");
        eprintln!("--- {}\n{tail}", entry.file_name().to_string_lossy());
    }
}

fn launch(folder: &Path, listen: &str, nodes: u16, environment: &[(&str, &str)]) -> Child {
    Command::new(lariat())
        .envs(environment.iter().copied())
        .args([
            "up",
            "--listen",
            listen,
            "--nodes",
            &nodes.to_string(),
            "--data-dir",
        ])
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("lariat can be started")
}

/// Looks again and again until the condition holds.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(
            Instant::now() < deadline,
            "waited in vain for {what} ({PATIENCE:?})"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The binary under test.
pub fn lariat() -> &'static str {
    env!("CARGO_BIN_EXE_lariat")
}
