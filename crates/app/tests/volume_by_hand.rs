//! The walk through `docs/engine.md`, with the `lariat` command: three replicas, an ext4 file system on
//! the device, a replica killed and brought back. Needs root, FUSE and loop devices.

mod support;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

/// Everything the test started, ended with it.
struct Bench {
    folder: tempfile::TempDir,
    volume: String,
    /// Whether the replicas refuse lines that are not encrypted.
    tls: bool,
    children: Vec<Child>,
}

impl Bench {
    fn new(tls: bool) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let lines = if tls { "tls" } else { "plain" };
        Self {
            folder,
            volume: format!("by-hand-{lines}-{}", std::process::id()),
            tls,
            children: Vec::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a replica server, and returns its index and its address.
    fn replica(&mut self, name: &str, listen: &str) -> (usize, String) {
        let mut child = self
            .lariat(&["replica", "serve", "--listen", listen, "--dir"])
            .arg(self.path(name))
            .args(self.tls.then_some("--require-tls"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("lariat starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let address = line
            .trim()
            .rsplit(' ')
            .next()
            .unwrap_or_default()
            .to_owned();
        assert!(address.contains(':'), "{line}");
        self.children.push(child);
        (self.children.len() - 1, address)
    }

    fn lariat(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(support::lariat());
        command
            .args(arguments)
            .env("LARIAT_SECRET_FILE", self.path("secret"))
            .env("LARIAT_RUNTIME_DIR", self.path("run"))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.lariat(arguments).output().expect("lariat runs")
    }

    fn status(&self) -> Option<Value> {
        let output = self.run(&["engine", "status", &self.volume]);
        output
            .status
            .success()
            .then(|| serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    fn wait_for(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            if let Some(status) = status.as_ref().filter(|status| holds(status)) {
                return status.clone();
            }
            assert!(
                Instant::now() < deadline,
                "{what} did not happen: {status:#?}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        Command::new("umount")
            .arg(self.path("mnt"))
            .stderr(Stdio::null())
            .status()
            .ok();
        self.run(&["engine", "shutdown", &self.volume]);
        for child in &mut self.children {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

fn tool(program: &str, arguments: &[&Path]) {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| {
            panic!("{program}: {error}; `make setup` installs what is missing")
        });
    assert!(
        output.status.success(),
        "{program}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_volume_survives_a_pulled_plug() {
    pull_a_plug(Bench::new(false));
}

#[test]
fn a_volume_survives_a_pulled_plug_on_encrypted_lines() {
    pull_a_plug(Bench::new(true));
}

fn pull_a_plug(mut bench: Bench) {
    let replicas: Vec<(usize, String)> = (0..3)
        .map(|number| bench.replica(&format!("r{number}"), "127.0.0.1:0"))
        .collect();
    let engine = bench
        .lariat(&[
            "engine",
            "run",
            "--size",
            "128Mi",
            "--frontend",
            "fuse",
            "--volume",
            &bench.volume,
        ])
        .arg("--record")
        .arg(bench.path("record.json"))
        .args(bench.tls.then_some("--tls"))
        .args(
            replicas
                .iter()
                .enumerate()
                .flat_map(|(number, (_, address))| {
                    ["--replica".to_owned(), format!("r{number}={address}")]
                }),
        )
        .spawn()
        .expect("lariat starts");
    bench.children.push(engine);
    bench.wait_for("serving", |status| status["state"] == "serving");

    let device = PathBuf::from(format!("/dev/longhorn/{}", bench.volume));
    let mount = bench.path("mnt");
    std::fs::create_dir(&mount).expect("a folder");
    tool("mkfs.ext4", &[Path::new("-q"), &device]);
    tool("mount", &[&device, &mount]);
    std::fs::write(mount.join("before"), "before the plug").expect("a write");

    let (index, address) = replicas[1].clone();
    bench.children[index].kill().expect("it can be killed");
    bench.children[index].wait().expect("it ends");
    std::fs::write(mount.join("during"), "without one replica").expect("a write");
    tool("sync", &[Path::new("-f"), &mount]);

    let (_, again) = bench.replica("r1", &address);
    assert_eq!(again, address);
    let bounded = bench.run(&["engine", "rebuild-rate", &bench.volume, "200Mi"]);
    assert!(bounded.status.success(), "the rate is taken");
    let rebuilt = bench.run(&["engine", "rebuild", &bench.volume, &format!("r1={address}")]);
    assert!(
        rebuilt.status.success(),
        "{}",
        String::from_utf8_lossy(&rebuilt.stderr)
    );

    assert_eq!(
        std::fs::read_to_string(mount.join("before")).expect("a read"),
        "before the plug"
    );
    assert_eq!(
        std::fs::read_to_string(mount.join("during")).expect("a read"),
        "without one replica"
    );
    tool("umount", &[&mount]);
    tool("e2fsck", &[Path::new("-fn"), &device]);
    let ended = bench.run(&["engine", "shutdown", &bench.volume]);
    assert!(
        ended.status.success(),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
}

#[test]
fn an_engine_that_is_not_there_is_named() {
    let bench = Bench::new(false);
    let output = bench.run(&["engine", "status", "nobody"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("nobody"));
}
