//! Replicas, a keeper and an engine, each a process of its own that can be killed.

use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use block_core::wire::{Reply, Request, VolumeKey};
use block_core::{Epoch, VolumeName};
use engine::control::client::ControlClient;
use engine::control::{Answer, Command, EngineStatus};
use engine::frontend::keeper::{KeeperClient, Kept};
use engine::frontend::{FrontendOptions, fuse};
use engine::inspect::Inspection;
use engine::run::control_path;
use replica::client::Client;
use rustix::process::Signal;

use crate::PATIENCE;
use crate::mounts::{Mounted, SmallDisk};
use crate::processes::{await_that, free_port, signal, spawn};
use crate::programs::run;

const SECRET: &[u8] = b"by hand";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrontendChoice {
    Fuse,
    Nbd,
    None,
}

pub struct Cluster {
    folder: tempfile::TempDir,
    volume: String,
    size_bytes: u64,
    ports: Vec<u16>,
    replicas: Vec<Option<Child>>,
    engine: Option<Child>,
    keeper: Option<Child>,
    /// Whether lines to replicas are encrypted.
    tls: bool,
    pub frontend: FrontendChoice,
    /// Of the next engine.
    pub detect_zeroes: bool,
}

impl Cluster {
    pub fn start(replicas: usize, size_bytes: u64, frontend: FrontendChoice) -> Result<Self> {
        Self::start_all(replicas, size_bytes, frontend, false, false)
    }

    pub fn start_encrypted(replicas: usize, size_bytes: u64) -> Result<Self> {
        Self::start_all(replicas, size_bytes, FrontendChoice::Nbd, false, true)
    }

    pub fn start_with_keeper(replicas: usize, size_bytes: u64) -> Result<Self> {
        Self::start_all(replicas, size_bytes, FrontendChoice::Fuse, true, false)
    }

    fn start_all(
        count: usize,
        size_bytes: u64,
        frontend: FrontendChoice,
        with_keeper: bool,
        tls: bool,
    ) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let unique = folder
            .path()
            .file_name()
            .context("a name")?
            .to_string_lossy()
            .replace('.', "");
        let mut ports = Vec::new();
        for _ in 0..count {
            ports.push(free_port()?);
        }
        let mut cluster = Self {
            volume: format!("volumes-{}{unique}", std::process::id()),
            folder,
            size_bytes,
            ports,
            replicas: (0..count).map(|_| None).collect(),
            engine: None,
            keeper: None,
            tls,
            frontend,
            detect_zeroes: false,
        };
        for at in 0..count {
            cluster.start_replica(at)?;
        }
        if with_keeper {
            cluster.start_keeper()?;
        }
        cluster.start_engine()?;
        Ok(cluster)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn keeper_path(&self) -> PathBuf {
        self.path("keeper")
    }

    fn start_keeper(&mut self) -> Result<()> {
        let path = self.keeper_path();
        self.keeper = Some(spawn(&["keeper", &path.to_string_lossy()])?);
        await_that("the keeper", || Ok(path.exists()))
    }

    /// Kills the keeper and starts another, and waits until that one has the FUSE connection.
    pub fn replace_keeper(&mut self) -> Result<()> {
        let mut child = self.keeper.take().context("it runs")?;
        child.kill()?;
        child.wait()?;
        std::fs::remove_file(self.keeper_path())?;
        self.start_keeper()?;
        let descriptors = format!("/proc/{}/fd", self.keeper.as_ref().context("it runs")?.id());
        await_that("the next keeper has the connection", || {
            for entry in std::fs::read_dir(&descriptors)? {
                let target = std::fs::read_link(entry?.path());
                if target.is_ok_and(|target| target == Path::new("/dev/fuse")) {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    /// Puts a connection that cannot be asked to resend in the place of the kept one, and returns that, which stays open with it.
    pub fn spoil_what_is_kept(&self) -> Result<Kept> {
        let mut client = KeeperClient::connect(&self.keeper_path(), &self.volume)?;
        let kept = client.fetch()?.context("a connection is kept")?;
        let unconnected = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")?;
        client.keep(unconnected.as_fd(), kept.device.as_fd())?;
        Ok(kept)
    }

    pub fn start_replica(&mut self, at: usize) -> Result<()> {
        let folder = self.path(&format!("r{at}"));
        let address = self.address(at);
        self.replicas[at] = Some(spawn(&["replica", &folder.to_string_lossy(), &address])?);
        await_that("the replica", || {
            Ok(std::net::TcpStream::connect(&address).is_ok())
        })
    }

    /// A replica more, of which no engine knows yet.
    pub fn add_replica(&mut self) -> Result<usize> {
        self.ports.push(free_port()?);
        self.replicas.push(None);
        let at = self.ports.len() - 1;
        self.start_replica(at)?;
        Ok(at)
    }

    pub fn kill_replica(&mut self, at: usize) -> Result<()> {
        let mut child = self.replicas[at].take().context("it runs")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    pub fn address(&self, at: usize) -> String {
        format!("127.0.0.1:{}", self.ports[at])
    }

    /// Who asks for a replica is led to another port from now on, behind which it is to be reached.
    pub fn lead_through(&mut self, at: usize, port: u16) {
        self.ports[at] = port;
    }

    /// What a replica says of itself.
    pub fn replica_size_bytes(&self, at: usize) -> Result<u64> {
        match self.replica_client(at)?.call(Request::Status)? {
            Reply::Status(status) => Ok(status.size_bytes),
            other => bail!("{other:?}"),
        }
    }

    /// The most memory that the engine ever held.
    pub fn engine_bytes_peak(&self) -> Result<u64> {
        let engine = self.engine.as_ref().context("it runs")?;
        let status = std::fs::read_to_string(format!("/proc/{}/status", engine.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib: u64 = line
            .context("it lives")?
            .trim()
            .trim_end_matches(" kB")
            .parse()?;
        Ok(kib << 10)
    }

    /// From their next start on, each of two replicas is served where the other one was.
    pub fn swap_addresses(&mut self, one: usize, other: usize) {
        self.ports.swap(one, other);
    }

    /// Starts a replica anew, without its data, on a file system of this size.
    pub fn give_small_disk(&mut self, at: usize, size_bytes: u64) -> Result<SmallDisk> {
        self.kill_replica(at)?;
        let folder = self.path(&format!("r{at}"));
        let size = format!("size={size_bytes}");
        run(
            "mount",
            &[
                "-t",
                "tmpfs",
                "-o",
                &size,
                "tmpfs",
                &folder.to_string_lossy(),
            ],
        )?;
        let disk = SmallDisk { folder };
        let others = (0..self.ports.len()).filter(|other| *other != at);
        let names: Vec<String> = others.map(|other| format!("r{other}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.await_in_sync(&names)?;
        self.start_replica(at)?;
        Ok(disk)
    }

    pub fn stop_replica(&self, at: usize) -> Result<()> {
        signal(self.replicas[at].as_ref().context("it runs")?, Signal::STOP)
    }

    pub fn continue_replica(&self, at: usize) -> Result<()> {
        signal(self.replicas[at].as_ref().context("it runs")?, Signal::CONT)
    }

    pub fn start_engine(&mut self) -> Result<()> {
        let size = self.size_bytes.to_string();
        let (run_dir, dev_dir) = (self.path("run"), self.path("dev"));
        let record = self.path("record.json");
        let mut arguments: Vec<String> = ["run", &self.volume, "--size", &size]
            .map(String::from)
            .to_vec();
        for (name, value) in [
            ("--runtime-dir", &run_dir),
            ("--device-dir", &dev_dir),
            ("--record", &record),
        ] {
            arguments.extend([name.to_owned(), value.to_string_lossy().into_owned()]);
        }
        for (at, port) in self.ports.iter().enumerate() {
            arguments.extend(["--replica".to_owned(), format!("r{at}=127.0.0.1:{port}")]);
        }
        let frontend = match self.frontend {
            FrontendChoice::Fuse => "fuse",
            FrontendChoice::Nbd => "nbd",
            FrontendChoice::None => "none",
        };
        let (tls, detect_zeroes) = (self.tls.to_string(), self.detect_zeroes.to_string());
        for (name, value) in [
            ("--frontend", frontend),
            ("--tls", &tls),
            ("--detect-zeroes", &detect_zeroes),
            ("--deadline-ms", "3000"),
            ("--open-grace-ms", "3000"),
        ] {
            arguments.extend([name.to_owned(), value.to_owned()]);
        }
        if self.keeper.is_some() {
            arguments.extend([
                "--keeper".to_owned(),
                self.keeper_path().to_string_lossy().into_owned(),
            ]);
        }
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.engine = Some(spawn(&words)?);
        self.await_status("ready", |status| status.endpoint.is_some())
            .map(|_| ())
    }

    pub fn kill_engine(&mut self) -> Result<()> {
        let mut child = self.engine.take().context("it runs")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    pub fn client(&self) -> Result<ControlClient> {
        let client = ControlClient::connect(&control_path(&self.path("run"), &self.volume))?;
        client.set_timeout(Some(PATIENCE))?;
        Ok(client)
    }

    pub fn command(&self, command: Command) -> Result<Answer> {
        Ok(self.client()?.command(command)?)
    }

    pub fn status(&self) -> Result<EngineStatus> {
        Ok(self.client()?.status()?)
    }

    pub fn await_status(
        &self,
        what: &str,
        wanted: impl Fn(&EngineStatus) -> bool,
    ) -> Result<EngineStatus> {
        let mut last = None;
        let mut found = None;
        await_that(what, || {
            // While an engine starts nobody listens yet.
            let Ok(status) = self.status() else {
                return Ok(false);
            };
            if wanted(&status) {
                found = Some(status);
                return Ok(true);
            }
            last = Some(status);
            Ok(false)
        })
        .with_context(|| format!("the last status was {last:#?}"))?;
        found.context("it was found")
    }

    pub fn await_in_sync(&self, names: &[&str]) -> Result<()> {
        let mut names: Vec<&str> = names.to_vec();
        names.sort_unstable();
        self.await_status("in-sync set", |status| {
            let mut found: Vec<&str> = status.in_sync.iter().map(String::as_str).collect();
            found.sort_unstable();
            found == names && status.proposal.is_none()
        })
        .map(|_| ())
    }

    /// Asked for again while an earlier rebuild's snapshot is still being merged away there, as a person would.
    pub fn rebuild(&self, at: usize) -> Result<()> {
        await_that("a rebuild", || match self.rebuilder(at)?() {
            Err(error) if format!("{error:#}").contains("a purge is running") => Ok(false),
            ended => ended.map(|()| true),
        })
    }

    /// What rebuilds a replica and waits for the end, for a thread of its own.
    pub fn rebuilder(
        &self,
        at: usize,
    ) -> Result<impl FnOnce() -> Result<()> + Send + 'static + use<>> {
        let mut client = self.client()?;
        let command = Command::Rebuild {
            name: format!("r{at}"),
            address: self.address(at),
        };
        Ok(move || -> Result<()> {
            client.command(command)?;
            Ok(())
        })
    }

    /// Brings those back that a busy machine made look dead. A rebuild is refused while the snapshot of an earlier
    /// attempt is still being merged away; then it is asked for again, as a person would.
    pub fn rebuild_missing(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        for at in 0..self.ports.len() {
            while !self.status()?.in_sync.contains(&format!("r{at}")) {
                if let Err(error) = self.rebuild(at) {
                    anyhow::ensure!(Instant::now() < deadline, error);
                    std::thread::sleep(Duration::from_millis(200));
                }
            }
        }
        self.await_status("rest", |status| {
            status.tasks.is_empty() && status.proposal.is_none()
        })
        .map(|_| ())
    }

    pub fn snapshot(&self, name: &str) -> Result<()> {
        self.command(Command::Snapshot {
            name: name.into(),
            created_unix_ms: 1,
        })
        .map(|_| ())
    }

    pub fn snapshots(&self) -> Result<Vec<String>> {
        match self.command(Command::ListSnapshots)? {
            Answer::Snapshots(snapshots) => Ok(snapshots
                .into_iter()
                .filter(|snapshot| snapshot.user_created && !snapshot.removed)
                .map(|snapshot| snapshot.name)
                .collect()),
            other => bail!("{other:?}"),
        }
    }

    pub fn endpoint(&self) -> Result<String> {
        self.status()?.endpoint.context("the volume is ready")
    }

    pub fn device(&self) -> Result<String> {
        self.endpoint()
    }

    pub fn await_device_size(&self, size_bytes: u64) -> Result<()> {
        let device = std::fs::File::open(self.device()?)?;
        await_that("the new size", || {
            Ok(engine::sys::block_device_size(&device)? == size_bytes)
        })
    }

    pub fn mount(&self, kind: &str) -> Result<Mounted> {
        let folder = tempfile::tempdir()?;
        run(
            "mount",
            &[
                "-t",
                kind,
                &self.device()?,
                &folder.path().to_string_lossy(),
            ],
        )?;
        Ok(Mounted { folder })
    }

    pub fn write_pattern(&self, offset: u64, length: u64, seed: u8) -> Result<()> {
        self.pattern_writer(offset, length, seed)?()
    }

    /// What writes a pattern over NBD, for a thread of its own.
    pub fn pattern_writer(
        &self,
        offset: u64,
        length: u64,
        seed: u8,
    ) -> Result<impl FnOnce() -> Result<()> + Send + 'static> {
        let image = self.path("image");
        std::fs::write(&image, pattern(length, seed))?;
        let options = nbd_options(&self.endpoint()?)?;
        Ok(move || {
            let command = format!("write -s {} {offset} {length}", image.display());
            run("qemu-io", &["--image-opts", &options, "-c", &command]).map(|_| ())
        })
    }

    pub fn check_pattern(&self, offset: u64, length: u64, seed: u8) -> Result<()> {
        let uri = self.endpoint()?;
        let out = self.path("out");
        let _ = std::fs::remove_file(&out);
        run("nbdcopy", &[&uri, &out.to_string_lossy()])?;
        let mut found = vec![0; usize::try_from(length)?];
        std::fs::File::open(&out)?.read_exact_at(&mut found, offset)?;
        ensure!(
            found == pattern(length, seed),
            "pattern {seed} at {offset} is not there"
        );
        Ok(())
    }

    pub fn shutdown(&mut self) -> Result<()> {
        self.command(Command::Shutdown)?;
        self.await_orderly_end()
    }

    /// Of an engine that was asked to end.
    pub fn await_orderly_end(&mut self) -> Result<()> {
        let child = self.engine.take().context("it runs")?;
        let output = child.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success() && text.contains("clean: true"),
            "not an orderly end: {text}"
        );
        Ok(())
    }

    pub fn volume(&self) -> &str {
        &self.volume
    }

    /// The FUSE mounts and loop devices that the machine has of this volume.
    pub fn left_in_the_machine(&self) -> Result<Vec<String>> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let mut left: Vec<String> = mounts.lines().map(str::to_owned).collect();
        for entry in std::fs::read_dir("/sys/block")? {
            // A device that is not configured has no such file.
            let backing = entry?.path().join("loop/backing_file");
            left.extend(std::fs::read_to_string(backing));
        }
        left.retain(|line| line.contains(&self.volume));
        Ok(left)
    }

    /// What a tool sees that asks these replicas.
    pub fn inspect(&self, replicas: &[usize]) -> Result<Inspection> {
        let replicas: Vec<String> = replicas
            .iter()
            .map(|at| format!("r{at}=127.0.0.1:{}", self.ports[*at]))
            .collect();
        let inspection = Inspection::new(&self.volume, SECRET, false, &replicas)?;
        Ok(inspection)
    }

    /// Where a replica keeps this volume.
    pub fn replica_folder(&self, at: usize) -> PathBuf {
        self.path(&format!("r{at}")).join(&self.volume)
    }

    /// A connection to a replica behind the engine's back.
    pub fn replica_client(&self, at: usize) -> Result<Client> {
        let volume = VolumeName::new(&self.volume)?;
        let key = VolumeKey::derive(SECRET, &volume);
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], self.ports[at]));
        Ok(Client::connect(address, &volume, &key, PATIENCE)?)
    }

    /// After an orderly end: all replicas have the same bytes.
    pub fn ensure_identical(&self) -> Result<()> {
        let mut hashes = Vec::new();
        for at in 0..self.ports.len() {
            let mut client = self.replica_client(at)?;
            client.open(Epoch(1 << 40))?;
            let Reply::Status(status) = client.call(Request::Status)? else {
                bail!("no status")
            };
            let mut hasher = std::hash::DefaultHasher::new();
            for offset in (0..status.size_bytes).step_by(1 << 20) {
                let length_bytes = (1 << 20).min(status.size_bytes - offset);
                let Reply::Data(data) = client.call(Request::Read {
                    offset_bytes: offset,
                    length_bytes,
                })?
                else {
                    bail!("no data")
                };
                std::hash::Hasher::write(&mut hasher, &data);
            }
            hashes.push(std::hash::Hasher::finish(&hasher));
        }
        ensure!(
            hashes.windows(2).all(|pair| pair[0] == pair[1]),
            "replicas differ: {hashes:?}"
        );
        Ok(())
    }
}

impl Drop for Cluster {
    /// Processes, mounts and loop devices go away, whatever the test did.
    fn drop(&mut self) {
        let children = self.replicas.iter_mut().filter_map(Option::take);
        for mut child in children.chain(self.engine.take()).chain(self.keeper.take()) {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fuse::clear_leftovers(&FrontendOptions {
            volume: self.volume.clone(),
            size_bytes: 0,
            runtime_dir: self.path("run"),
            device_dir: self.path("dev"),
            sector_bytes: 4096,
            keeper: None,
        });
    }
}

pub fn pattern(length: u64, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|at| (at / 512) as u8 ^ (at % 251) as u8 ^ seed.wrapping_mul(37))
        .collect()
}

pub fn nbd_options(uri: &str) -> Result<String> {
    let path = uri.split("socket=").nth(1).context("an NBD address")?;
    Ok(format!(
        "driver=raw,file.driver=nbd,file.server.type=unix,file.server.path={path}"
    ))
}
