//! What a volume costs: the raw file and a loopback round trip as floors, then volumes through NBD and through FUSE and
//! loop, with one and three replicas, all in one run. `cargo bench -p engine`; needs root and fio. With `-- rebuild`, only rebuilds and
//! snapshots are measured, with `-- memory` only what volumes of many TiB take, with `-- chain` only what a chain of snapshots costs.
//!
//! Replicas and engines are processes of their own (this program, started again), as in real use.

mod load;

use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use block_core::VolumeName;
use block_core::wire::VolumeKey;
use engine::control::Command;
use engine::control::client::ControlClient;
use engine::frontend::FrontendKind;
use engine::run::{RunMode, RunOptions, control_path, prepare};

use load::{Target, loopback_us, measure, measure_fsync, print_table};

const SECRET: &[u8] = b"benchmark";
const SIZE_BYTES: u64 = 1 << 30;
const LARGE_BYTES: u64 = 1 << 40;
/// How the lines to replicas are.
const TLS: &str = "tls";
const PLAIN: &str = "plain";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["serve-replica", folder, address] => serve_replica(folder, address, false),
        ["serve-new-replica", folder, address] => serve_replica(folder, address, true),
        ["run-engine", folder, size, frontend, lines, replicas @ ..] => {
            run_engine(folder, size.parse()?, frontend, *lines == TLS, replicas)
        }
        ["rebuild", ..] => measure_rebuilds(),
        ["memory", ..] => measure_memory(),
        ["chain", ..] => measure_chain(tempfile::tempdir()?.path()),
        _ => measure_all(),
    }
}

/// One block in every page of a replica's index of 1 TiB, which is as much memory as blocks everywhere would take.
fn measure_memory() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let volume = Volume::start_sized(folder.path(), LARGE_BYTES, FrontendKind::Nbd, PLAIN, 3)?;
    let show = |when: &str| -> Result<()> {
        let engine = volume.engine.as_ref().context("it runs")?;
        println!(
            "1 TiB, {when}: engine resident {} MiB, a replica {} MiB",
            resident_mib(engine)?,
            resident_mib(&volume.replicas[0])?
        );
        Ok(())
    };
    show("nothing written")?;
    let size = format!("--size={LARGE_BYTES}");
    let number = format!("--number_ios={}", LARGE_BYTES >> 24);
    let scattered = ["--rw=write:16380k", "--bs=4k", "--iodepth=32"];
    let target = volume.target(FrontendKind::Nbd);
    target.fio(&[&[size.as_str(), &number], &scattered[..]].concat(), None)?;
    show("a block written in every 16 MiB")?;
    volume.end()
}

fn measure_rebuilds() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut volume = Volume::start(folder.path(), FrontendKind::Nbd, PLAIN, 3)?;
    let target = volume.target(FrontendKind::Nbd);
    target.fill()?;
    // Before any rebuild: those hold writers back as well, for another time.
    volume.measure_snapshots(&target)?;
    volume.measure_rebuild("r2", "scattered", "nine layers of random 4 KiB writes")?;
    volume.end()?;
    for round in 1..=3 {
        let home = folder.path().join(format!("whole-{round}"));
        let mut volume = Volume::start(&home, FrontendKind::Nbd, PLAIN, 3)?;
        volume.target(FrontendKind::Nbd).fill()?;
        volume.measure_rebuild("r2", "whole", "one layer")?;
        volume.end()?;
    }
    Ok(())
}

fn serve_replica(folder: &str, address: &str, is_new: bool) -> Result<()> {
    let mut config = replica::ServerConfig::new(folder.into());
    config.listen = address.parse()?;
    config.keys = replica::KeyPolicy::Derived {
        secret: SECRET.to_vec(),
        clients_may_create: true,
    };
    let server = replica::ReplicaServer::bind(config)?;
    if is_new {
        let volume = VolumeName::new("bench")?;
        server.create_volume(&replica::ReplicaSpec {
            key: VolumeKey::derive(SECRET, &volume),
            volume,
            size_bytes: SIZE_BYTES,
        })?;
    }
    server.wait();
    Ok(())
}

fn run_engine(
    folder: &str,
    size_bytes: u64,
    frontend: &str,
    tls: bool,
    replicas: &[&str],
) -> Result<()> {
    let folder = Path::new(folder);
    let mut options = RunOptions::by_hand("bench");
    options.size_bytes = Some(size_bytes);
    options.secret = SECRET.to_vec();
    options.tls = tls;
    options.frontend = frontend.parse()?;
    options.runtime_dir = folder.join("run");
    options.device_dir = folder.join("dev");
    options.mode = RunMode::ByHand {
        record: folder.join("record.json"),
    };
    options.replicas = replicas.iter().map(ToString::to_string).collect();
    prepare(&options)?.run()?;
    Ok(())
}

/// (replicas, front end, lines)
const SETUPS: [(usize, FrontendKind, &str); 5] = [
    (1, FrontendKind::Nbd, PLAIN),
    (1, FrontendKind::Fuse, PLAIN),
    (3, FrontendKind::Nbd, PLAIN),
    (3, FrontendKind::Fuse, PLAIN),
    (3, FrontendKind::Nbd, TLS),
];

fn measure_all() -> Result<()> {
    let folder = tempfile::tempdir()?;
    println!(
        "loopback round trip of 4 KiB, both ends sleeping: {:.1} µs",
        loopback_us()?
    );
    let raw = folder.path().join("raw");
    std::fs::File::create(&raw)?.set_len(SIZE_BYTES)?;
    let raw = Target::device(&raw.to_string_lossy());
    raw.fill()?;
    let mut rows = Vec::new();
    for (replicas, frontend, lines) in SETUPS {
        let name = format!("{replicas} replica(s), {frontend}, {lines}");
        let home = folder.path().join(format!("{frontend}{replicas}{lines}"));
        let volume = Volume::start(&home, frontend, lines, replicas)?;
        let target = volume.target(frontend);
        target.fill()?;
        rows.push(measure(&name, &target, &raw)?);
        println!(
            "{name}: ready {} ms after its start; engine resident {} MiB",
            volume.ready_ms,
            resident_mib(volume.engine.as_ref().context("it runs")?)?
        );
        let fsync = measure_fsync(&target, &raw)?;
        println!("{name}: fsync {fsync}");
        volume.end()?;
    }
    print_table("the raw file", &rows);
    measure_chain(folder.path())
}

/// Two volumes of three replicas side by side, one of which has eight snapshots, and what was written between them.
fn measure_chain(folder: &Path) -> Result<()> {
    let plain = Volume::start(&folder.join("plain"), FrontendKind::Nbd, PLAIN, 3)?;
    let mut chain = Volume::start(&folder.join("chain"), FrontendKind::Nbd, PLAIN, 3)?;
    let (without, with) = (
        plain.target(FrontendKind::Nbd),
        chain.target(FrontendKind::Nbd),
    );
    without.fill()?;
    with.fill()?;
    chain.measure_snapshots(&with)?;
    let row = measure("chain of 8 snapshots", &with, &without)?;
    print_table("the volume without snapshots", &[row]);
    plain.end()?;
    chain.measure_rebuild("r2", "scattered", "nine layers of random 4 KiB writes")?;
    chain.end()
}

/// Replicas and an engine, ended with the value.
struct Volume {
    home: std::path::PathBuf,
    replicas: Vec<Child>,
    engine: Option<Child>,
    endpoint: String,
    ready_ms: u128,
}

impl Volume {
    fn start(home: &Path, frontend: FrontendKind, lines: &str, count: usize) -> Result<Self> {
        Self::start_sized(home, SIZE_BYTES, frontend, lines, count)
    }

    fn start_sized(
        home: &Path,
        size_bytes: u64,
        frontend: FrontendKind,
        lines: &str,
        count: usize,
    ) -> Result<Self> {
        let mut replicas = Vec::new();
        let mut addresses = Vec::new();
        for at in 0..count {
            let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
            let folder = home.join(format!("r{at}"));
            replicas.push(again(&[
                "serve-replica",
                &folder.to_string_lossy(),
                &address,
            ])?);
            addresses.push(format!("r{at}={address}"));
        }
        for address in &addresses {
            let port = address.split('=').nth(1).context("name=address")?;
            wait_for(|| TcpStream::connect(port).ok())?;
        }
        let kind = frontend.to_string();
        let home_text = home.to_string_lossy();
        let size = size_bytes.to_string();
        let mut words = vec!["run-engine", &home_text, &size, &kind, lines];
        words.extend(addresses.iter().map(String::as_str));
        let mut volume = Self {
            home: home.to_owned(),
            replicas,
            engine: None,
            endpoint: String::new(),
            ready_ms: 0,
        };
        // The first start makes the replicas, which is not what is measured.
        volume.start_engine(&words)?;
        volume.stop_engine()?;
        volume.start_engine(&words)?;
        Ok(volume)
    }

    fn start_engine(&mut self, words: &[&str]) -> Result<()> {
        let begun = Instant::now();
        self.engine = Some(again(words)?);
        let status = || self.client().ok()?.status().ok();
        self.endpoint = wait_for(|| status()?.endpoint)?;
        self.ready_ms = begun.elapsed().as_millis();
        Ok(())
    }

    fn stop_engine(&mut self) -> Result<()> {
        self.client()?.command(Command::Shutdown)?;
        if let Some(mut engine) = self.engine.take() {
            engine.wait()?;
        }
        Ok(())
    }

    fn client(&self) -> Result<ControlClient> {
        Ok(ControlClient::connect(&control_path(
            &self.home.join("run"),
            "bench",
        ))?)
    }

    /// By anything so far.
    fn held_back_ms(&self) -> Result<f64> {
        Ok(self.client()?.status()?.statistics.barrier_max_us as f64 / 1e3)
    }

    fn target(&self, frontend: FrontendKind) -> Target {
        match frontend {
            FrontendKind::Nbd => Target::nbd(&self.endpoint),
            _ => Target::device(&self.endpoint),
        }
    }

    /// How long snapshots hold writers back, under load. Half a second is written between two of them.
    fn measure_snapshots(&self, target: &Target) -> Result<()> {
        let writing = target.clone();
        let load = std::thread::spawn(move || {
            writing.fio(&["--rw=randwrite", "--bs=4k", "--iodepth=16"], Some("5"))
        });
        let mut client = self.client()?;
        let writes = client.status()?.statistics.write.count;
        wait_for(|| (client.status().ok()?.statistics.write.count > writes + 1000).then_some(()))?;
        let mut took_ms = Vec::new();
        for at in 0..8 {
            let begun = Instant::now();
            client.command(Command::Snapshot {
                name: format!("s{at}"),
                created_unix_ms: 0,
            })?;
            took_ms.push(begun.elapsed().as_secs_f64() * 1e3);
            std::thread::sleep(Duration::from_millis(500).saturating_sub(begun.elapsed()));
        }
        let load = load.join().expect("it does not panic")?;
        wait_for(|| client.status().ok()?.tasks.is_empty().then_some(()))?;
        took_ms.sort_by(f64::total_cmp);
        let slowest = load["jobs"][0]["write"]["clat_ns"]["max"].as_f64();
        println!(
            "snapshot under load: median {:.1} ms, writers were held back at most {:.1} ms, the slowest write took {:.1} ms",
            took_ms[4],
            self.held_back_ms()?,
            slowest.unwrap_or(0.0) / 1e6
        );
        Ok(())
    }

    /// A new replica takes the place of `leaving`.
    fn measure_rebuild(&mut self, leaving: &str, name: &str, what: &str) -> Result<()> {
        let mut client = self.client()?;
        client.command(Command::RemoveReplica {
            name: leaving.into(),
        })?;
        wait_for(|| (client.status().ok()?.in_sync.len() == 2).then_some(()))?;
        // Under a new name and in a new folder, so that nothing is there yet.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let folder = self.home.join(name);
        let server = again(&["serve-new-replica", &folder.to_string_lossy(), &address])?;
        self.replicas.push(server);
        wait_for(|| TcpStream::connect(&address).ok())?;
        wait_for(|| folder.join("bench").exists().then_some(()))?;
        // What was written before is on its way to the disk, which is not what is measured.
        rustix::fs::sync();
        let begun = Instant::now();
        let observer = self.client()?;
        let (ended, end) = std::sync::mpsc::channel();
        let watching = std::thread::spawn(move || steps_until(observer, &end));
        client.command(Command::Rebuild {
            name: name.into(),
            address,
        })?;
        let seconds = begun.elapsed().as_secs_f64();
        drop(ended);
        let steps = watching.join().expect("it does not panic")?;
        let steps: Vec<String> = steps
            .iter()
            .map(|(step, time)| format!("{step} {:.2} s", time.as_secs_f64()))
            .collect();
        let copied_mib = allocated_bytes(&folder.join("bench"))? >> 20;
        println!(
            "rebuild of {copied_mib} MiB in {what}: {seconds:.2} s, {:.0} MiB/s with verification ({}); writers were held back at most {:.1} ms",
            copied_mib as f64 / seconds,
            steps.join(", "),
            self.held_back_ms()?
        );
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        self.stop_engine()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        for child in self.replicas.iter_mut().chain(&mut self.engine) {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = engine::frontend::fuse::clear_leftovers(&engine::frontend::FrontendOptions {
            volume: "bench".into(),
            size_bytes: 0,
            runtime_dir: self.home.join("run"),
            device_dir: self.home.join("dev"),
            sector_bytes: 4096,
            keeper: None,
        });
    }
}

fn resident_mib(process: &Child) -> Result<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", process.id()))?;
    let pages: u64 = statm.split(' ').nth(1).context("pages")?.parse()?;
    Ok((pages * 4096) >> 20)
}

/// How long each step of the rebuild took, looked at until the other side of the channel is gone.
fn steps_until(
    mut client: ControlClient,
    end: &std::sync::mpsc::Receiver<()>,
) -> Result<BTreeMap<String, Duration>> {
    let mut steps = BTreeMap::new();
    let mut last = Instant::now();
    while end.recv_timeout(Duration::from_millis(5)) == Err(RecvTimeoutError::Timeout) {
        let tasks = client.status()?.tasks;
        let now = Instant::now();
        if let Some(task) = tasks.iter().find(|task| task.kind == "rebuild") {
            *steps.entry(task.step.clone()).or_default() += now - last;
        }
        last = now;
    }
    Ok(steps)
}

fn allocated_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        bytes += entry?.metadata()?.blocks() * 512;
    }
    Ok(bytes)
}

fn again(arguments: &[&str]) -> Result<Child> {
    Ok(Process::new(std::env::current_exe()?)
        .args(arguments)
        .stdin(Stdio::null())
        .spawn()?)
}

fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> Result<T> {
    let give_up = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        ensure!(Instant::now() < give_up, "it did not happen in time");
        std::thread::park_timeout(Duration::from_micros(200));
    }
}
