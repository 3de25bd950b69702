//! The walk through `docs/engine.md`, with the `lariat` command: three replicas, an ext4 file system on
//! the device, a replica killed and brought back, and every other command. Needs root, FUSE and loop devices.

mod support;

use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::net::SocketAddr;
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
        self.replica_with(name, &["--listen", listen])
    }

    fn replica_with(&mut self, name: &str, more: &[&str]) -> (usize, String) {
        let mut child = self
            .lariat(&["replica", "serve", "--dir"])
            .arg(self.path(name))
            .args(more)
            .env_remove("LARIAT_REPLICA_LISTEN")
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
        self.engine_with("fuse", replicas);
    }

    fn engine_with(&mut self, frontend: &str, replicas: &[(usize, String)]) {
        let named = replicas.iter().enumerate();
        let engine = self
            .lariat(&["engine", "run", "--size", "128Mi", "--frontend", frontend])
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

    /// What `lariat engine WORD VOLUME …` prints. It must succeed.
    #[track_caller]
    fn command(&self, word: &str, more: &[&str]) -> String {
        let output = self.run(&[&["engine", word, &self.volume], more].concat());
        assert!(output.status.success(), "{word}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What it complains of. It must fail.
    #[track_caller]
    fn refused(&self, word: &str, more: &[&str]) -> String {
        let output = self.run(&[&["engine", word, &self.volume], more].concat());
        assert_eq!(output.status.code(), Some(1), "{word}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// The snapshots that people took, and whether they are marked as removed.
    fn snapshots(&self) -> Vec<(String, bool)> {
        let list: Value = serde_json::from_str(&self.command("snapshots", &[])).expect("JSON");
        let list = list.as_array().expect("a list").iter();
        list.filter(|snapshot| snapshot["userCreated"] == true)
            .map(|snapshot| {
                let name = snapshot["name"].as_str().expect("a name");
                (name.to_owned(), snapshot["removed"] == true)
            })
            .collect()
    }

    /// Waits until the engine, which was started last, has ended.
    fn until_engine_ended(&mut self) {
        let mut engine = self.children.pop().expect("an engine");
        let ended = engine.wait().expect("it ends");
        assert!(ended.success(), "{ended}");
    }

    fn kill_engine(&mut self) {
        let mut engine = self.children.pop().expect("an engine");
        engine.kill().expect("it can be killed");
        engine.wait().expect("it ends");
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

const FILLED_BYTES: usize = 1 << 20;
const LARGER_BYTES: u64 = 160 << 20;

/// Fills the beginning of the device.
fn fill(device: &Path, byte: u8) {
    let file = std::fs::File::options().write(true).open(device);
    let file = file.expect("the device opens");
    file.write_all_at(&vec![byte; FILLED_BYTES], 0)
        .expect("a write");
    file.sync_all().expect("a flush");
}

fn is_filled_with(device: &Path, byte: u8) -> bool {
    let file = std::fs::File::open(device).expect("the device opens");
    let mut content = vec![0; FILLED_BYTES];
    file.read_exact_at(&mut content, 0).expect("a read");
    content.iter().all(|one| *one == byte)
}

fn device_bytes(device: &Path) -> u64 {
    let mut file = std::fs::File::open(device).expect("the device opens");
    file.seek(SeekFrom::End(0)).expect("its size")
}

/// What the table at the end of the walk lists.
#[test]
fn every_other_command_does_what_it_says() {
    let mut bench = Bench::new("more", false);
    let replicas: Vec<(usize, String)> = (0..3)
        .map(|number| bench.replica(&format!("r{number}"), "127.0.0.1:0"))
        .collect();
    bench.engine(&replicas);
    let device = bench.device();
    take_and_merge_snapshots(&bench, &device);
    make_it_larger(&bench, &device);

    assert_eq!(bench.command("remove", &["r2"]), "done\n");
    bench.wait_for("r2 to be left behind", |status| {
        status["inSync"] == serde_json::json!(["r0", "r1"]) && status["proposal"].is_null()
    });
    assert!(bench.refused("remove", &["r9"]).contains("no replica r9"));

    let refused = bench.refused("revert", &["tuesday"]);
    assert!(refused.contains("front end none"), "{refused}");
    bench.command("shutdown", &[]);
    bench.until_engine_ended();
    let named: Vec<String> = (replicas.iter().enumerate())
        .map(|(number, (_, address))| format!("r{number}={address}"))
        .collect();
    let named: Vec<&str> = named.iter().map(String::as_str).collect();
    let closed = bench.command("salvage", &named);
    assert!(
        closed.contains("have every acknowledged write: r0, r1\nmust be rebuilt: r2\n"),
        "{closed}"
    );
    assert!(closed.contains("they are identical"), "{closed}");

    bench.engine_with("none", &replicas);
    bench.wait_for("no front end", |status| status["endpoint"] == "none");
    assert_eq!(bench.command("revert", &["tuesday"]), "done\n");
    bench.kill_engine();
    compare_what_is_left(&bench, &named);

    bench.engine(&replicas);
    let device = bench.device();
    assert!(is_filled_with(&device, 2), "what tuesday shows");
    assert_eq!(device_bytes(&device), LARGER_BYTES);
}

fn take_and_merge_snapshots(bench: &Bench, device: &Path) {
    let are = |expected: &[(&str, bool)]| {
        let found = bench.snapshots();
        let found: Vec<(&str, bool)> = (found.iter())
            .map(|(name, is_removed)| (name.as_str(), *is_removed))
            .collect();
        assert_eq!(found, expected);
    };
    are(&[]);
    fill(device, 1);
    assert_eq!(bench.command("snapshot", &["monday"]), "done\n");
    fill(device, 2);
    bench.command("snapshot", &["tuesday"]);
    fill(device, 3);
    are(&[("monday", false), ("tuesday", false)]);
    assert_eq!(bench.command("delete", &["monday"]), "done\n");
    are(&[("monday", true), ("tuesday", false)]);
    assert_eq!(bench.command("purge", &[]), "done\n");
    are(&[("tuesday", false)]);
    assert!(is_filled_with(device, 3), "the volume is what it was");
}

fn make_it_larger(bench: &Bench, device: &Path) {
    assert_eq!(device_bytes(device), 128 << 20);
    assert_eq!(bench.command("expand", &["160Mi"]), "done\n");
    bench.wait_for("the volume to be larger", |status| {
        status["sizeBytes"] == LARGER_BYTES
    });
    let deadline = Instant::now() + PATIENCE;
    while device_bytes(device) != LARGER_BYTES {
        assert!(Instant::now() < deadline, "the device did not follow");
        std::thread::sleep(Duration::from_millis(50));
    }
    let refused = bench.refused("expand", &["64Mi"]);
    assert!(refused.contains("cannot become smaller"), "{refused}");
}

/// After a kill nothing but their content tells whether replicas are identical.
fn compare_what_is_left(bench: &Bench, named: &[&str]) {
    let unknown = bench.command("salvage", named);
    assert!(
        unknown.contains("nothing proves that they are identical"),
        "{unknown}"
    );
    let compared = bench.run(&[&["engine", "salvage", &bench.volume, "--compare"], named].concat());
    assert!(compared.status.success(), "{compared:?}");
    let said = String::from_utf8_lossy(&compared.stdout);
    assert!(
        said.contains("have every acknowledged write: r0, r1\nmust be rebuilt: r2\n"),
        "{said}"
    );
    assert!(
        said.contains("they are identical: start with all of them"),
        "{said}"
    );
    let progress = String::from_utf8_lossy(&compared.stderr);
    assert!(
        progress.contains("reading all that these hold: r0, r1"),
        "{progress}"
    );
}

#[test]
fn replicas_are_served_to_this_machine_alone_unless_told_otherwise() {
    let mut bench = Bench::new("loopback", false);
    let listens_on_loopback = |address: &str| {
        let address: SocketAddr = address.parse().expect("an address");
        address.ip().is_loopback()
    };
    let (_, address) = bench.replica_with("silent", &[]);
    assert!(listens_on_loopback(&address), "{address}");
    let (_, address) = bench.replica("told", "0.0.0.0:0");
    assert!(!listens_on_loopback(&address), "{address}");
}

#[test]
fn an_engine_that_is_not_there_is_named() {
    let bench = Bench::new("none", false);
    let output = bench.run(&["engine", "status", "nobody"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("nobody"));
}
