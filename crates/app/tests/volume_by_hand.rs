//! The walk through `docs/engine.md`, with the `lariat` command: three replicas, an ext4 file system on
//! the device, a replica killed and brought back. Needs root, FUSE and loop devices.

mod support;

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
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
    /// Devices are the machine's: each test's volume has a name of its own.
    fn new(name: &str, tls: bool) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self {
            folder,
            volume: format!("by-hand-{name}-{}", std::process::id()),
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

    /// Starts the engine over replicas named `r0`, `r1` and so on.
    fn engine(&mut self, replicas: &[(usize, String)]) {
        let named = replicas.iter().enumerate();
        let engine = self
            .lariat(&["engine", "run", "--size", "128Mi", "--frontend", "fuse"])
            .args(["--volume", &self.volume])
            .arg("--record")
            .arg(self.path("record.json"))
            .args(self.tls.then_some("--tls"))
            .args(named.flat_map(|(number, (_, address))| {
                ["--replica".to_owned(), format!("r{number}={address}")]
            }))
            .spawn()
            .expect("lariat starts");
        self.children.push(engine);
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.lariat(arguments).output().expect("lariat runs")
    }

    /// The volume's device, once it is there.
    fn device(&self) -> PathBuf {
        let status = self.wait_for("the device", |status| status["endpoint"].is_string());
        assert_eq!(status["state"], "serving");
        let device = PathBuf::from(format!("/dev/longhorn/{}", self.volume));
        assert_eq!(status["endpoint"], device.display().to_string());
        device
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
    pull_a_plug(Bench::new("plain", false));
}

#[test]
fn a_volume_survives_a_pulled_plug_on_encrypted_lines() {
    pull_a_plug(Bench::new("tls", true));
}

fn pull_a_plug(mut bench: Bench) {
    let replicas: Vec<(usize, String)> = (0..3)
        .map(|number| bench.replica(&format!("r{number}"), "127.0.0.1:0"))
        .collect();
    bench.engine(&replicas);
    let device = bench.device();
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

/// The walk through bit rot, while the engine runs: a bit of a snapshot changes on one replica's disk.
#[test]
fn bit_rot_is_named_with_a_number_of_its_own() {
    let mut bench = Bench::new("rot", false);
    let replicas: Vec<(usize, String)> = (0..2)
        .map(|number| bench.replica(&format!("r{number}"), "127.0.0.1:0"))
        .collect();
    bench.engine(&replicas);
    let device = bench.device();
    let content: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
    let file = std::fs::File::options().write(true).open(&device);
    let file = file.expect("the device opens");
    file.write_all_at(&content, 0).expect("a write");
    file.sync_all().expect("a flush");
    let taken = bench.run(&["engine", "snapshot", &bench.volume, "monday"]);
    assert!(taken.status.success(), "a snapshot");

    let named: Vec<String> = (replicas.iter().enumerate())
        .map(|(number, (_, address))| format!("r{number}={address}"))
        .collect();
    let verify = |bench: &Bench, more: &[&str]| {
        let asked = ["engine", "verify", "--volume", &bench.volume];
        let replicas = ["--replica", &named[0], "--replica", &named[1]];
        bench.run(&[&asked[..], &replicas[..], more].concat())
    };
    let first = verify(&bench, &[]);
    let table = String::from_utf8_lossy(&first.stdout).into_owned();
    assert_eq!(first.status.code(), Some(0), "{first:?}");
    assert_eq!(table.matches("first time").count(), 2, "{table}");

    let folder = bench.path("r1").join(&bench.volume);
    let layer = folder.join("layer-0000000000000001.data");
    let layer = std::fs::File::options().write(true).open(layer);
    let layer = layer.expect("the snapshot's layer");
    layer
        .write_all_at(&[!content[70_000]], 70_000)
        .expect("rot");
    let second = verify(&bench, &["-o", "json"]);
    assert_eq!(second.status.code(), Some(4), "{second:?}");
    let rows: Value = serde_json::from_slice(&second.stdout).expect("JSON");
    let verdicts: Vec<(&str, &str)> = (rows.as_array().expect("rows").iter())
        .map(|row| {
            assert_eq!(row["snapshot"], "monday");
            let word = |field: &str| row[field].as_str().expect("a word");
            (word("replica"), word("verdict"))
        })
        .collect();
    assert_eq!(verdicts, [("r0", "asItWas"), ("r1", "changedOnDisk")]);

    bench.children[replicas[1].0]
        .kill()
        .expect("it can be killed");
    bench.children[replicas[1].0].wait().expect("it ends");
    assert_eq!(
        verify(&bench, &[]).status.code(),
        Some(7),
        "one does not answer"
    );
}

#[test]
fn an_engine_that_is_not_there_is_named() {
    let bench = Bench::new("none", false);
    let output = bench.run(&["engine", "status", "nobody"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("nobody"));
}
