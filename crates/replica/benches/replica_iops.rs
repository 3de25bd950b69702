//! How fast one replica answers over its socket, and three of them on one machine, beside the raw file.
//!
//! `cargo bench -p replica --bench replica_iops` prints one row for each load; words behind `--` choose rows that have one of
//! them in their name. `BUSY_POLL_US` sets how long readers poll. Absolute figures belong to the machine; compare within a run.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use block_core::wire::{Flags, Reply, Request, RequestId, VolumeKey};
use block_core::{Epoch, VolumeName};
use bytes::Bytes;
use hdrhistogram::Histogram;
use replica::client::Client;
use replica::{ReplicaServer, ReplicaSpec, ServerConfig};

const SIZE_BYTES: u64 = 256 << 20;
const SECONDS_EACH: Duration = Duration::from_secs(2);

#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    is_write: bool,
    depth: usize,
    io_bytes: usize,
    sequential: bool,
}

const LOADS: [Load; 8] = [
    Load {
        name: "4k random write, depth 1",
        is_write: true,
        depth: 1,
        io_bytes: 4096,
        sequential: false,
    },
    Load {
        name: "4k random write, depth 32",
        is_write: true,
        depth: 32,
        io_bytes: 4096,
        sequential: false,
    },
    Load {
        name: "4k random read, depth 1",
        is_write: false,
        depth: 1,
        io_bytes: 4096,
        sequential: false,
    },
    Load {
        name: "4k random read, depth 32",
        is_write: false,
        depth: 32,
        io_bytes: 4096,
        sequential: false,
    },
    Load {
        name: "128k sequential write, depth 8",
        is_write: true,
        depth: 8,
        io_bytes: 128 << 10,
        sequential: true,
    },
    Load {
        name: "128k sequential read, depth 8",
        is_write: false,
        depth: 8,
        io_bytes: 128 << 10,
        sequential: true,
    },
    Load {
        name: "1m sequential write, depth 4",
        is_write: true,
        depth: 4,
        io_bytes: 1 << 20,
        sequential: true,
    },
    Load {
        name: "1m sequential read, depth 4",
        is_write: false,
        depth: 4,
        io_bytes: 1 << 20,
        sequential: true,
    },
];

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"))
        .collect();
    let chosen =
        |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let folder = tempfile::tempdir()?;
    let raw = folder.path().join("raw");
    let file = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(&raw)?;
    fill_file(&file)?;
    println!(
        "{:<34} {:>12} {:>10} {:>10} {:>10}",
        "", "ops/s", "MiB/s", "p50 us", "p99 us"
    );
    for load in LOADS
        .iter()
        .filter(|load| load.depth == 1 || load.sequential)
    {
        let name = format!("raw file, {}", load.name);
        if chosen(&name) {
            report(&name, load, &run_raw(&file, *load)?);
        }
    }
    let servers: Vec<ReplicaServer> = (0..3)
        .map(|number| start(&folder.path().join(format!("r{number}"))))
        .collect::<Result<_>>()?;
    let addresses: Vec<SocketAddr> = servers.iter().map(ReplicaServer::local_addr).collect();
    for address in &addresses {
        fill(*address)?;
    }
    for load in &LOADS {
        let name = format!("1 replica, {}", load.name);
        if chosen(&name) {
            report(&name, load, &run(addresses[0], *load)?);
        }
    }
    for load in LOADS
        .iter()
        .filter(|load| chosen(&format!("3 replicas, {}", load.name)))
    {
        let runs: Vec<_> = addresses.iter().map(|address| (*address, *load)).collect();
        let threads: Vec<_> = runs
            .into_iter()
            .map(|(address, load)| std::thread::spawn(move || run(address, load)))
            .collect();
        for (number, thread) in threads.into_iter().enumerate() {
            let result = thread.join().ok().context("a client panicked")??;
            report(
                &format!("{} of 3, {}", number + 1, load.name),
                load,
                &result,
            );
        }
    }
    run_flushes(addresses[0])?;
    Ok(())
}

struct Measured {
    operations: u64,
    elapsed: Duration,
    latency_us: Histogram<u64>,
}

fn report(name: &str, load: &Load, measured: &Measured) {
    let seconds = measured.elapsed.as_secs_f64();
    let rate = measured.operations as f64 / seconds;
    println!(
        "{name:<44} {rate:>10.0} {:>10.0} {:>10} {:>10}",
        rate * load.io_bytes as f64 / f64::from(1 << 20),
        measured.latency_us.value_at_quantile(0.5),
        measured.latency_us.value_at_quantile(0.99)
    );
}

fn volume() -> VolumeName {
    VolumeName::new("bench").expect("a name")
}

fn key() -> VolumeKey {
    VolumeKey::from_bytes([1; 32])
}

fn start(folder: &std::path::Path) -> Result<ReplicaServer> {
    let mut config = ServerConfig::new(folder.to_owned());
    if let Ok(text) = std::env::var("BUSY_POLL_US") {
        config.busy_poll = Duration::from_micros(text.parse().context("BUSY_POLL_US")?);
    }
    let server = ReplicaServer::bind(config)?;
    server.create_volume(&ReplicaSpec {
        volume: volume(),
        key: key(),
        size_bytes: SIZE_BYTES,
    })?;
    Ok(server)
}

fn connect(address: SocketAddr) -> Result<Client> {
    let mut client = Client::connect(address, &volume(), &key(), Duration::from_secs(30))?;
    client.open(Epoch(1))?;
    Ok(client)
}

/// Blocks that exist are what databases write to: measure those, not the first allocation.
fn fill(address: SocketAddr) -> Result<()> {
    let mut client = connect(address)?;
    let data = Bytes::from(vec![7; 1 << 20]);
    for at in (0..SIZE_BYTES).step_by(1 << 20) {
        client.write(at, data.clone())?;
    }
    Ok(client.flush()?)
}

fn fill_file(file: &File) -> Result<()> {
    let data = vec![7; 1 << 20];
    for at in (0..SIZE_BYTES).step_by(1 << 20) {
        file.write_all_at(&data, at)?;
    }
    Ok(file.sync_data()?)
}

/// Offsets from a fixed seed, the same for every row.
struct Offsets {
    state: u64,
    load: Load,
}

impl Offsets {
    fn new(load: Load) -> Self {
        Self {
            state: if load.sequential {
                0
            } else {
                0x2545_f491_4f6c_dd1d
            },
            load,
        }
    }

    fn next(&mut self) -> u64 {
        let slots = SIZE_BYTES / self.load.io_bytes as u64;
        if self.load.sequential {
            self.state += 1;
        } else {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
        }
        self.state % slots * self.load.io_bytes as u64
    }
}

fn run_raw(file: &File, load: Load) -> Result<Measured> {
    let (mut offsets, mut data) = (Offsets::new(load), vec![5; load.io_bytes]);
    let mut measured = Measured {
        operations: 0,
        elapsed: Duration::ZERO,
        latency_us: Histogram::new(3)?,
    };
    let begin = Instant::now();
    while begin.elapsed() < SECONDS_EACH {
        let sent = Instant::now();
        match load.is_write {
            true => file.write_all_at(&data, offsets.next())?,
            false => file.read_exact_at(&mut data, offsets.next())?,
        }
        measured
            .latency_us
            .record(sent.elapsed().as_micros() as u64)?;
        measured.operations += 1;
    }
    measured.elapsed = begin.elapsed();
    Ok(measured)
}

fn run(address: SocketAddr, load: Load) -> Result<Measured> {
    let mut client = connect(address)?;
    let (mut offsets, data) = (Offsets::new(load), Bytes::from(vec![5; load.io_bytes]));
    let mut measured = Measured {
        operations: 0,
        elapsed: Duration::ZERO,
        latency_us: Histogram::new(3)?,
    };
    let (mut next_id, mut free) = (1_u64 << 32, load.depth);
    let mut sent_at = std::collections::HashMap::new();
    let mut batch = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < SECONDS_EACH {
        batch.clear();
        for _ in 0..free {
            let (offset_bytes, length_bytes) = (offsets.next(), load.io_bytes as u64);
            let request = match load.is_write {
                true => Request::Write {
                    offset_bytes,
                    data: data.clone(),
                    flags: Flags::NONE,
                },
                false => Request::Read {
                    offset_bytes,
                    length_bytes,
                },
            };
            let frame = request.into_frame(RequestId(next_id), Epoch(1));
            sent_at.insert(next_id, Instant::now());
            next_id += 1;
            batch.extend_from_slice(&frame.encode_header());
            batch.extend_from_slice(&frame.payload);
        }
        client.send_bytes(&batch, &[])?;
        free = 0;
        // All replies that came with one receive make room for as many requests in one send.
        loop {
            let (id, reply) = client.receive()?;
            ensure!(!matches!(reply, Reply::Failed(_)), "{reply:?}");
            let sent = sent_at.remove(&id.0).context("a reply to nothing")?;
            measured
                .latency_us
                .record(sent.elapsed().as_micros() as u64)?;
            measured.operations += 1;
            free += 1;
            if !client.has_reply() {
                break;
            }
        }
    }
    measured.elapsed = begin.elapsed();
    Ok(measured)
}

fn run_flushes(address: SocketAddr) -> Result<()> {
    let mut client = connect(address)?;
    let mut latency_us: Histogram<u64> = Histogram::new(3)?;
    for turn in 0..500_u64 {
        client.write(turn * 40960 % SIZE_BYTES, vec![1; 4096])?;
        let sent = Instant::now();
        client.flush()?;
        latency_us.record(sent.elapsed().as_micros() as u64)?;
    }
    println!(
        "flush after a 4k write: p50 {} us",
        latency_us.value_at_quantile(0.5)
    );
    Ok(())
}
