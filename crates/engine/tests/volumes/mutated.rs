//! A replica whose answers change on their way: between it and the engine is somebody who repeats them, makes up others, and now and then
//! breaks one. That costs the volume this replica, with a reason, and nothing else; it is rebuilt over the same line, and so on.
//! `simulation/liars.rs` has what the engine makes of answers that are sound and nonsense.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use block_core::wire::{Frame, FrameDecoder, Kind, PAYLOAD_BYTES_MAX, RequestId};

use crate::MIB;
use crate::cluster::{Cluster, FrontendChoice};
use crate::direct::{BLOCK_BYTES, Direct};
use crate::processes::await_that;

const ROUNDS: usize = 48;
const BLOCKS: u64 = 64;
/// Before each answer.
const STRAYS: u64 = 8;
/// Of the engine, at its worst moment.
const RESIDENT_BYTES_MAX: u64 = 256 << 20;

/// What ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    Bit,
    Oversized,
    CutOff,
    OtherKind,
    Refused,
    UnknownStatus,
    OlderEpoch,
    Request,
    Version,
    Goodbye,
    /// To a request that nobody made: the right one is never answered.
    OtherRequest,
}

const MUTATIONS: [Mutation; 11] = [
    Mutation::Bit,
    Mutation::Oversized,
    Mutation::CutOff,
    Mutation::OtherKind,
    Mutation::Refused,
    Mutation::UnknownStatus,
    Mutation::OlderEpoch,
    Mutation::Request,
    Mutation::Version,
    Mutation::Goodbye,
    Mutation::OtherRequest,
];

#[derive(Default)]
struct Orders {
    /// The next answer to a read, a write or a flush.
    next: Option<Mutation>,
    mutated: u64,
    strays: u64,
    adds_strays: bool,
    random: u64,
}

impl Orders {
    fn random(&mut self) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        self.random >> 33
    }
}

/// Somebody on the line.
struct Between {
    port: u16,
    orders: Arc<Mutex<Orders>>,
}

impl Between {
    fn start(replica: String) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let orders = Arc::new(Mutex::new(Orders {
            random: 7,
            ..Orders::default()
        }));
        let shared = Arc::clone(&orders);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(&replica)) else {
                    continue;
                };
                let orders = Arc::clone(&shared);
                std::thread::spawn(move || pass_on(&client, &server, &orders));
            }
        });
        Ok(Self { port, orders })
    }

    fn orders<T>(&self, with: impl FnOnce(&mut Orders) -> T) -> T {
        with(&mut self.orders.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Requests as they are, answers as they are ordered. Ends with either side.
fn pass_on(client: &TcpStream, server: &TcpStream, orders: &Mutex<Orders>) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = std::io::copy(&mut { client }, &mut { server });
            let _ = server.shutdown(Shutdown::Both);
        });
        let _ = pass_answers(client, server, orders);
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    });
}

fn pass_answers(
    mut client: &TcpStream,
    mut server: &TcpStream,
    orders: &Mutex<Orders>,
) -> Result<()> {
    let _ = client.set_nodelay(true);
    let mut decoder = FrameDecoder::new();
    let mut bytes = vec![0; 64 << 10];
    let mut is_open = false;
    loop {
        while let Some(frame) = decoder.next_frame()? {
            let mut orders = orders.lock().unwrap_or_else(PoisonError::into_inner);
            let mut out = Vec::new();
            if is_open && orders.adds_strays {
                for stray in 0..STRAYS {
                    out.extend(stray_answer(&frame, stray, &mut orders));
                }
                orders.strays += STRAYS;
            }
            let may_change = matches!(frame.header.kind, Kind::Read | Kind::Write | Kind::Flush);
            let mutation = orders.next.take_if(|_| is_open && may_change);
            match mutation {
                None => out.extend(frame.to_vec()),
                Some(mutation) => {
                    orders.mutated += 1;
                    out.extend(mutated(&frame, mutation, &mut orders));
                }
            }
            if is_open && orders.adds_strays {
                // Once more, when it was answered already.
                if mutation.is_none() {
                    out.extend(frame.to_vec());
                }
                orders.strays += 1;
            }
            drop(orders);
            is_open |= frame.header.kind == Kind::OpenVolume && frame.header.status == 0;
            client.write_all(&out)?;
            if mutation == Some(Mutation::CutOff) {
                return Ok(());
            }
        }
        match server.read(&mut bytes)? {
            0 => return Ok(()),
            count => decoder.push(&bytes[..count]),
        }
    }
}

/// The answer to a request that was never made, with or without data.
fn stray_answer(frame: &Frame, stray: u64, orders: &mut Orders) -> Vec<u8> {
    let mut frame = frame.clone();
    frame.header.request_id = RequestId(1 << 40 | orders.random());
    if stray.is_multiple_of(2) {
        frame.header.kind = Kind::Flush;
        frame.header.status = 0;
        frame.payload.clear();
    }
    frame.to_vec()
}

fn mutated(frame: &Frame, mutation: Mutation, orders: &mut Orders) -> Vec<u8> {
    let random = orders.random();
    let mut frame = frame.clone();
    match mutation {
        Mutation::OtherKind => frame.header.kind = Kind::Hello,
        Mutation::Refused => frame.header.status = 3,
        Mutation::UnknownStatus => frame.header.status = 999,
        Mutation::OlderEpoch => frame.header.epoch.0 -= 1,
        Mutation::Request => frame.header.is_reply = false,
        Mutation::OtherRequest => frame.header.request_id.0 |= 1 << 50,
        Mutation::Goodbye => {
            frame.header.kind = Kind::Goodbye;
            frame.header.is_reply = false;
            frame.payload.clear();
        }
        Mutation::Bit | Mutation::Oversized | Mutation::CutOff | Mutation::Version => {}
    }
    let mut bytes = frame.to_vec();
    match mutation {
        Mutation::Bit => {
            let at = random as usize % bytes.len();
            bytes[at] ^= 1 << (random >> 20 & 7);
        }
        Mutation::Oversized => set_field(&mut bytes, 40, &(PAYLOAD_BYTES_MAX + 1).to_le_bytes()),
        Mutation::Version => set_field(&mut bytes, 4, &[77]),
        Mutation::CutOff => bytes.truncate(random as usize % bytes.len()),
        _ => {}
    }
    bytes
}

/// In a header, whose checksum stays right.
fn set_field(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
    let checksum = crc32c::crc32c(&bytes[..52]);
    bytes[52..56].copy_from_slice(&checksum.to_le_bytes());
}

#[test]
fn answers_that_change_on_their_way_cost_that_replica_alone() -> Result<()> {
    let mut cluster = Cluster::start(2, 64 * MIB, FrontendChoice::Fuse)?;
    let at = cluster.add_replica()?;
    let between = Between::start(cluster.address(at))?;
    cluster.lead_through(at, between.port);
    between.orders(|orders| orders.adds_strays = true);
    let device = Direct::open(Path::new(&cluster.device()?))?;
    let mut content = vec![0u8; BLOCKS as usize];
    for round in 0..ROUNDS {
        cluster
            .rebuild(at)
            .with_context(|| format!("round {round}"))?;
        cluster.await_in_sync(&["r0", "r1", "r2"])?;
        let mutation = MUTATIONS[round % MUTATIONS.len()];
        between.orders(|orders| orders.next = Some(mutation));
        let before = between.orders(|orders| orders.mutated);
        let mut step = 0;
        await_that("an answer that is mutated", || {
            step += 1;
            let block = (round as u64 * 7 + step) % BLOCKS;
            let byte = (round as u64 + step) as u8;
            device.write(block, byte)?;
            content[block as usize] = byte;
            let other = (block + 5) % BLOCKS;
            let found = device.read(other)?;
            ensure!(
                found == [content[other as usize]; BLOCK_BYTES],
                "{mutation:?}"
            );
            if step.is_multiple_of(8) {
                device.flush()?;
            }
            Ok(between.orders(|orders| orders.mutated) > before)
        })?;
        cluster
            .await_in_sync(&["r0", "r1"])
            .with_context(|| format!("{mutation:?}"))?;
        let status = cluster.status()?;
        let member = status.members.iter().find(|member| member.name == "r2");
        let trouble = member.and_then(|member| member.trouble.clone());
        ensure!(
            trouble.is_some_and(|why| !why.is_empty()),
            "{mutation:?}: {status:?}"
        );
    }
    let (mutated, strays) = between.orders(|orders| (orders.mutated, orders.strays));
    ensure!(
        mutated == ROUNDS as u64 && strays > 3000,
        "{mutated}, {strays}"
    );
    between.orders(|orders| orders.adds_strays = false);
    cluster.rebuild(at)?;
    for block in 0..BLOCKS {
        let expected = [content[block as usize]; BLOCK_BYTES];
        ensure!(device.read(block)? == expected, "block {block}");
    }
    drop(device);
    let peak_bytes = cluster.engine_bytes_peak()?;
    ensure!(
        peak_bytes < RESIDENT_BYTES_MAX,
        "it held {peak_bytes} bytes"
    );
    println!(
        "{mutated} mutated answers, {strays} strays, {} MiB",
        peak_bytes >> 20
    );
    cluster.await_in_sync(&["r0", "r1", "r2"])?;
    cluster.shutdown()?;
    cluster.ensure_identical()
}
