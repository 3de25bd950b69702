//! Mutated frames over real sockets, against a live server that is a process of its own: it answers them or ends their
//! connection, its memory stays bounded, and a client of another volume does not notice. Most get right checksums after the
//! mutation, so that they reach the requests' parsers and the store.
//!
//! `cargo test` sends a part; `cargo xtask hostile` sends a million. `LARIAT_HOSTILE_SEED` repeats a run.
//!
//! This target starts itself again as the server (`hostile serve FOLDER`), so it has a `main` of its own.

mod deaf;
#[path = "../support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use block_core::wire::request::{ExtentScope, RebuildLayer};
use block_core::wire::{
    ExtentKind, Flags, FrameDecoder, HEADER_BYTES, Kind, ReplicaMode, Request, RequestId, SyncMeta,
    VolumeKey,
};
use block_core::{Epoch, ReplicaName, SnapshotName, VolumeName};
use replica::client::Client;
use replica::{KeyPolicy, ServerConfig};
use support::{BLOCK, ServerProcess, next_random};

const SECRET: &[u8] = b"hostile";
const FRAMES: u64 = 100_000;
const PATIENCE: Duration = Duration::from_secs(60);
/// Small, so that requests for all of it are short.
const SIZE_BYTES: u64 = 4 << 20;
/// Each has its own volumes: one for each core of a small machine.
const ATTACKERS: u64 = 2;
/// A volume that was fenced, filled or left in the middle of a rebuild answers less and less.
const FRAMES_PER_VOLUME: u64 = 20_000;
/// Sent before replies are read: few enough to fit into the sockets' buffers, so that neither side waits for the other.
const BATCH: usize = 64;
/// At its worst moment. Two connections with large frames, and the indexes of a few volumes, are much less.
const RESIDENT_BYTES_MAX: u64 = 512 << 20;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|argument| argument == "serve") {
        return serve(Path::new(&arguments[2]));
    }
    let number = |name: &str, otherwise| {
        std::env::var(name).map_or(Ok(otherwise), |text| text.parse().context(text))
    };
    let frames = number("LARIAT_HOSTILE_FRAMES", FRAMES)?;
    let seed = number("LARIAT_HOSTILE_SEED", 0x9e37_79b9_7f4a_7c15)?;
    mutated_frames_hurt_nobody(frames, seed).with_context(|| format!("with seed {seed}"))?;
    println!("mutated_frames_hurt_nobody ... ok");
    deaf::what_is_not_taken_takes_no_memory()?;
    println!("what_is_not_taken_takes_no_memory ... ok");
    Ok(())
}

fn serve(folder: &Path) -> Result<()> {
    let mut config = ServerConfig::new(folder.to_owned());
    config.keys = KeyPolicy::Derived {
        secret: SECRET.to_vec(),
        clients_may_create: true,
    };
    replica::server::serve(config, |server| println!("{}", server.local_addr()))?;
    Ok(())
}

struct Server(ServerProcess);

impl Server {
    fn connect(&self, volume: &str) -> Result<(Client, Epoch)> {
        let volume = VolumeName::new(volume)?;
        let key = VolumeKey::derive(SECRET, &volume);
        let mut client = Client::connect(self.0.address, &volume, &key, PATIENCE)?;
        if client.welcome().mode == ReplicaMode::Absent {
            client.done(Request::CreateVolume {
                size_bytes: SIZE_BYTES,
            })?;
        }
        let accepted = client.welcome().accepted_epoch;
        Ok((client, accepted))
    }

    /// The most that it ever held: what a hostile length makes it take for a moment counts, too.
    fn resident_bytes_peak(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let line = line.context("the server lives, and has a size")?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kib << 10)
    }
}

/// What became of mutated frames.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// Got a reply, good or not.
    answered: u64,
    refused: u64,
    /// Ended their connection.
    ended: u64,
}

impl Tally {
    fn frames(self) -> u64 {
        self.answered + self.ended
    }
}

fn mutated_frames_hurt_nobody(frames: u64, seed: u64) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Server(ServerProcess::start(folder.path())?);
    let (mut good, _) = server.connect("healthy")?;
    good.open(Epoch(1))?;
    let content: Vec<u8> = (0..16 * BLOCK).map(|at| (at % 253) as u8).collect();
    good.write(0, content.clone())?;
    let tallies = std::thread::scope(|scope| -> Result<Vec<Tally>> {
        let attackers: Vec<_> = (0..ATTACKERS)
            .map(|number| {
                let server = &server;
                scope.spawn(move || Attacker::new(server, number, seed).run(frames / ATTACKERS))
            })
            .collect();
        // The healthy one goes on all the while.
        while attackers.iter().any(|attacker| !attacker.is_finished()) {
            ensure!(good.read(0, content.len() as u64)?[..] == content);
            good.write(0, content.clone())?;
            good.flush()?;
            // It is to be served, not to be the load.
            std::thread::park_timeout(Duration::from_millis(20));
        }
        let ended = attackers.into_iter().map(ScopedJoinHandle::join);
        ended.map(|tally| tally.expect("no panic")).collect()
    })?;
    ensure!(good.read(0, content.len() as u64)?[..] == content);
    let peak_bytes = server.resident_bytes_peak()?;
    println!("{tallies:?}, the server held {} MiB", peak_bytes >> 20);
    ensure!(
        peak_bytes < RESIDENT_BYTES_MAX,
        "the server held {peak_bytes} bytes"
    );
    for tally in tallies {
        // Else the mutations have missed their aim: each of these is some code that is to be reached.
        ensure!(tally.answered > tally.frames() / 2, "{tally:?}");
        ensure!(tally.refused > tally.frames() / 10, "{tally:?}");
        ensure!(
            tally.answered - tally.refused > tally.frames() / 10,
            "{tally:?}"
        );
        ensure!(tally.ended > tally.frames() / 200, "{tally:?}");
    }
    // And a client that comes now is served as well.
    server.connect("late")?.0.open(Epoch(1))?;
    Ok(())
}

struct Attacker<'a> {
    server: &'a Server,
    number: u64,
    seed: u64,
    tally: Tally,
    volumes_spent: u64,
}

impl<'a> Attacker<'a> {
    fn new(server: &'a Server, number: u64, seed: u64) -> Self {
        Self {
            server,
            number,
            // Never 0, where this generator stays.
            seed: seed.wrapping_mul(2 * number + 3) | 1,
            tally: Tally::default(),
            volumes_spent: 0,
        }
    }

    fn run(mut self, frames: u64) -> Result<Tally> {
        while self.tally.frames() < frames {
            if self.chance(20) {
                self.break_a_handshake()?;
            } else {
                self.converse(frames)?;
            }
        }
        Ok(self.tally)
    }

    fn random(&mut self) -> u64 {
        next_random(&mut self.seed)
    }

    /// Once in so many times.
    fn chance(&mut self, times: u64) -> bool {
        self.random().is_multiple_of(times)
    }

    fn volume(&self) -> String {
        format!("hostile-{}-{}", self.number, self.volumes_spent)
    }

    /// Frames before anything was proved.
    fn break_a_handshake(&mut self) -> Result<()> {
        let mut bytes = support::hello(&self.volume());
        if self.chance(2) {
            bytes.extend(support::frame(Request::Prove([1; 32]), Epoch::NONE));
        }
        self.scribble(&mut bytes);
        if self.chance(2) {
            support::repair_header(&mut bytes);
        }
        let stream = TcpStream::connect(self.server.0.address)?;
        let _ = (&stream).write_all(&bytes);
        self.until_the_end(&stream)
    }

    /// One connection that knows the key: mutated frames until one of them ends it.
    fn converse(&mut self, frames: u64) -> Result<()> {
        if self.tally.frames() >= (self.volumes_spent + 1) * FRAMES_PER_VOLUME {
            self.volumes_spent += 1;
        }
        let (mut client, accepted) = self.server.connect(&self.volume())?;
        let Some(epoch) = accepted.0.checked_add(1).map(Epoch) else {
            self.volumes_spent += 1;
            return Ok(());
        };
        client.open(epoch)?;
        let stream = client.stream();
        let mut decoder = FrameDecoder::new();
        while self.tally.frames() < frames {
            let mut bytes = Vec::new();
            for _ in 0..BATCH {
                self.mutated_request(epoch, &mut bytes);
            }
            let last = self.chance(4);
            if last {
                // What is behind a frame that lies about its length cannot be told apart from it: so nothing is.
                let mut broken = self.request(epoch).into_frame(RequestId(7), epoch).to_vec();
                self.scribble(&mut broken);
                bytes.extend(broken);
            }
            // The server may have ended the connection at an earlier one.
            let _ = { stream }.write_all(&bytes);
            if last {
                return self.until_the_end(stream);
            }
            if !self.take_replies(stream, &mut decoder, BATCH)? {
                self.tally.ended += 1;
                return Ok(());
            }
        }
        Ok(())
    }

    /// The last frame was sent: counts what is answered before the server closes.
    fn until_the_end(&mut self, stream: &TcpStream) -> Result<()> {
        let _ = stream.shutdown(Shutdown::Write);
        self.take_replies(stream, &mut FrameDecoder::new(), usize::MAX)?;
        self.tally.ended += 1;
        Ok(())
    }

    /// Takes so many replies. `false` if the server closed before.
    fn take_replies(
        &mut self,
        stream: &TcpStream,
        decoder: &mut FrameDecoder,
        count: usize,
    ) -> Result<bool> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut bytes = [0; 64 << 10];
        let mut taken = 0;
        loop {
            while let Some(frame) = decoder.next_frame()? {
                if frame.header.kind == Kind::Goodbye {
                    continue;
                }
                taken += 1;
                self.tally.answered += 1;
                self.tally.refused += u64::from(frame.header.status != 0);
            }
            if taken >= count {
                return Ok(true);
            }
            match { stream }.read(&mut bytes) {
                Ok(0) => return Ok(false),
                Ok(received) => decoder.push(&bytes[..received]),
                // It was closed with some of ours unread.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    return Ok(false);
                }
                Err(error) => return Err(error).context("no reply, and no end either"),
            }
        }
    }

    /// A frame that is sound as a frame, and mutated in what it asks for.
    fn mutated_request(&mut self, epoch: Epoch, out: &mut Vec<u8>) {
        let request = self.request(epoch);
        let has_data = matches!(
            request.kind(),
            Kind::Write | Kind::RebuildWrite | Kind::RebuildBegin
        );
        let mut frame = request.into_frame(RequestId(self.random()), epoch);
        let header = &mut frame.header;
        // Mostly where the volume ends, where blocks and sectors do, or where numbers do.
        header.offset_bytes = self.interesting(header.offset_bytes);
        // A write of another length than its data ends the connection; that is tried less often.
        if !has_data || self.chance(500) {
            header.length_bytes = self.interesting(header.length_bytes);
        }
        if self.chance(300) {
            header.epoch = Epoch(self.interesting(epoch.0));
        }
        if self.chance(4) {
            header.epoch = Epoch::NONE;
        }
        if self.chance(200) {
            header.flags = Flags((self.random() & 3) as u16);
        }
        let mut payload = frame.payload.to_vec();
        if !payload.is_empty() && self.chance(100) {
            self.scribble(&mut payload);
        }
        if self.chance(400) {
            payload.extend_from_slice(&self.random().to_le_bytes());
        }
        let start = out.len();
        out.extend_from_slice(&header.encode(&payload));
        out.extend_from_slice(&payload);
        if self.chance(100) {
            let all = Kind::ALL[(self.random() % Kind::ALL.len() as u64) as usize];
            out[start + 5] = all as u8;
        }
        if self.chance(400) {
            // Version, kind, flags, reserved bytes and the like, with a checksum that is right.
            let at = (self.random() % 8) as usize;
            out[start + [4, 5, 6, 7, 48, 49, 50, 51][at]] = self.random() as u8;
        }
        support::repair_header(&mut out[start..]);
    }

    /// Overwrites some bytes, or cuts some off.
    fn scribble(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.random() % 4 {
            let at = (self.random() % bytes.len() as u64) as usize;
            if self.chance(10) && at > 0 {
                bytes.truncate(at);
            } else {
                // Small offsets hit the header, where the interesting fields are.
                let at = if self.chance(2) {
                    at
                } else {
                    at % HEADER_BYTES
                };
                bytes[at] = self.random() as u8;
            }
        }
    }

    fn interesting(&mut self, value: u64) -> u64 {
        let random = self.random();
        match random % 24 {
            0 => value ^ (1 << (random >> 32 & 63)),
            1 => value.wrapping_add(512),
            2 => value.wrapping_sub(512),
            3 => SIZE_BYTES - BLOCK as u64,
            4 => SIZE_BYTES - 512,
            5 => SIZE_BYTES,
            6 => SIZE_BYTES + 512,
            7 => 1,
            8 => 1 << 20,
            9 => u64::MAX,
            10 => u64::MAX - 511,
            11 => 1 << 63,
            12 => random >> (random >> 32 & 63),
            13 => (random >> 32) % SIZE_BYTES / 512 * 512,
            _ => value,
        }
    }

    /// Any request that there is. Those that write metadata wait for the disk, so they are few.
    fn request(&mut self, epoch: Epoch) -> Request {
        let offset_bytes = self.random() % (SIZE_BYTES / 512) * 512;
        let block_bytes = offset_bytes / BLOCK as u64 * BLOCK as u64;
        let length_bytes = 512 << (self.random() % 6);
        let name = SnapshotName::new(&format!("s{}", self.random() % 6)).expect("a name");
        let data = |bytes: usize| vec![offset_bytes as u8 | 1; bytes].into();
        match self.random() % 100 {
            0..25 => Request::Read {
                offset_bytes,
                length_bytes,
            },
            25..45 => Request::Write {
                offset_bytes,
                data: data(512),
                flags: Flags::NONE,
            },
            45..52 => Request::WriteZeroes {
                offset_bytes,
                length_bytes,
                flags: Flags::NONE,
            },
            52..59 => Request::Discard {
                offset_bytes,
                length_bytes,
            },
            59..63 => Request::Status,
            63..66 => Request::ListLayers,
            66..74 => Request::LayerExtents {
                name,
                scope: if block_bytes.is_multiple_of(8192) {
                    ExtentScope::Own
                } else {
                    ExtentScope::View
                },
                from_offset_bytes: offset_bytes,
            },
            74..82 => Request::ReadLayer {
                name,
                offset_bytes,
                length_bytes,
            },
            82..85 => Request::LayerHashes {
                name,
                offset_bytes: 0,
                length_bytes: SIZE_BYTES,
            },
            85..90 => Request::RebuildWrite {
                name,
                offset_bytes: block_bytes,
                data: data(BLOCK / 4),
            },
            90..95 => Request::RebuildMark {
                name,
                offset_bytes: block_bytes,
                length_bytes: BLOCK as u64,
                kind: Some(ExtentKind::Zero),
            },
            95..97 => Request::RebuildVerify {
                name,
                digest: [3; 32],
            },
            97..98 => Request::CreateVolume {
                size_bytes: SIZE_BYTES,
            },
            _ if self.chance(20) => self.slow_request(epoch, name),
            _ => Request::Status,
        }
    }

    fn slow_request(&mut self, epoch: Epoch, name: SnapshotName) -> Request {
        let replica = ReplicaName::new("r").expect("a name");
        match self.random() % 40 {
            0..6 => Request::SnapshotCreate {
                name,
                created_unix_ms: 1,
                user_created: true,
            },
            6..10 => Request::SnapshotDelete { name },
            10..13 => Request::SnapshotRevert { name },
            13..16 => Request::SnapshotPurge,
            16..19 => Request::SnapshotDigest {
                name,
                recompute: true,
            },
            19..22 => Request::VolumeDigest,
            22..24 => Request::Expand {
                size_bytes: SIZE_BYTES + BLOCK as u64,
            },
            24..26 => Request::RebuildBegin {
                size_bytes: SIZE_BYTES,
                layers: vec![RebuildLayer {
                    name: name.clone(),
                    parent: None,
                    created_unix_ms: 1,
                    user_created: true,
                    removed: false,
                    size_bytes: SIZE_BYTES,
                }],
                head_parent: Some(name),
            },
            26..28 => Request::RebuildCommit,
            28..31 => Request::SetMeta(SyncMeta {
                replica: replica.clone(),
                generation: 1,
                in_sync: vec![replica],
                clean: false,
            }),
            31..34 => Request::OpenVolume { session: epoch.0 },
            // It makes purges and digests rest for seconds.
            34 if self.chance(100) => Request::SnapshotPrepare,
            _ => Request::Flush,
        }
    }
}
