//! Clients that break the rules of the protocol, against a live server: their connection ends, with the reason where it can still be
//! said, and everybody else is served all the while.

mod support;

use std::io::Write;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use block_core::wire::request::ExtentScope;
use block_core::wire::{Flags, GoodbyeReason, PAYLOAD_BYTES_MAX, Request, VolumeKey};
use block_core::{Epoch, SnapshotName, VolumeName};
use replica::ReplicaSpec;
use replica::client::{Client, ClientError};
use support::{BLOCK, Fixture, SIZE_BYTES};

/// Much more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Those who do nothing wrong: one of the same volume, and one of another.
struct Others {
    same: Client,
    other: Client,
    rounds: u64,
}

impl Others {
    fn of(fixture: &Fixture, epoch: u64) -> Result<Self> {
        let (volume, key) = (VolumeName::new("other")?, VolumeKey::from_bytes([9; 32]));
        fixture.server().create_volume(&ReplicaSpec {
            volume: volume.clone(),
            key: key.clone(),
            size_bytes: SIZE_BYTES,
        })?;
        let mut other = Client::connect(fixture.address(), &volume, &key, PATIENCE)?;
        other.open(Epoch(1))?;
        Ok(Self {
            same: fixture.open(epoch)?,
            other,
            rounds: 0,
        })
    }

    fn are_served(&mut self) -> Result<()> {
        self.rounds += 1;
        let content = vec![self.rounds as u8; BLOCK];
        for client in [&mut self.same, &mut self.other] {
            client.write(0, content.clone())?;
            client.flush()?;
            ensure!(client.read(0, BLOCK as u64)?[..] == content);
        }
        Ok(())
    }
}

fn goodbye_reason(client: &mut Client) -> Result<GoodbyeReason> {
    loop {
        match client.receive() {
            Ok(_) => {}
            Err(ClientError::Goodbye { reason, .. }) => return Ok(reason),
            Err(other) => bail!("no reason was said: {other:?}"),
        }
    }
}

#[test]
fn broken_frames_end_their_connection_with_the_reason_and_nobody_elses() -> Result<()> {
    let fixture = Fixture::new()?;
    let mut others = Others::of(&fixture, 5)?;
    let write = support::frame(
        Request::Write {
            offset_bytes: 8 * BLOCK as u64,
            data: vec![1; BLOCK].into(),
            flags: Flags::NONE,
        },
        Epoch(5),
    );
    let flipped = |at: usize| {
        let mut bytes = write.clone();
        bytes[at] ^= 1;
        bytes
    };
    // Right in all but the length that it promises.
    let promises = |payload_bytes: u32| {
        let mut bytes = write.clone();
        bytes[40..44].copy_from_slice(&payload_bytes.to_le_bytes());
        support::repair_header(&mut bytes);
        bytes
    };
    let flush_of = |epoch| support::frame(Request::Flush, Epoch(epoch));
    use GoodbyeReason::{BadFrame, OutOfOrder, StaleEpoch};
    for (what, bytes, reason) in [
        ("magic", flipped(0), BadFrame),
        ("header", flipped(30), BadFrame),
        ("payload", flipped(2000), BadFrame),
        ("oversized", promises(PAYLOAD_BYTES_MAX + 1), BadFrame),
        ("as large as can be said", promises(u32::MAX), BadFrame),
        ("cut off in its header", write[..20].to_vec(), BadFrame),
        ("cut off in its payload", write[..100].to_vec(), BadFrame),
        ("a reply", support::reply_frame(), OutOfOrder),
        ("a second hello", support::hello("vol"), OutOfOrder),
        ("an older epoch", flush_of(4), StaleEpoch),
        ("a newer epoch", flush_of(9), StaleEpoch),
    ] {
        let mut bad = fixture.open(5)?;
        bad.write(8 * BLOCK as u64, vec![7; BLOCK])?;
        bad.send_bytes(&bytes, &[])?;
        // What is cut off does not go on.
        bad.stream().shutdown(Shutdown::Write)?;
        let said = goodbye_reason(&mut bad).with_context(|| what.to_owned())?;
        ensure!(said == reason, "{what}: {said:?}");
        others.are_served().with_context(|| what.to_owned())?;
        let kept = others.same.read(8 * BLOCK as u64, BLOCK as u64)?;
        ensure!(kept[..] == [7; BLOCK], "{what}: nothing of it was done");
    }
    // Nobody gets as far as that without the key.
    let mut stranger = std::net::TcpStream::connect(fixture.address())?;
    stranger.write_all(&promises(PAYLOAD_BYTES_MAX + 1))?;
    ensure!(support::goodbye_of(&mut stranger)? == Some(BadFrame));
    others.are_served()
}

/// Sends, and never receives.
struct Deaf {
    client: Client,
    unsent: Vec<u8>,
}

impl Deaf {
    fn new(fixture: &Fixture, requests: Vec<u8>) -> Result<Self> {
        let client = fixture.open(1)?;
        client.stream().set_nonblocking(true)?;
        Ok(Self {
            client,
            unsent: requests,
        })
    }

    /// As much as the line takes now.
    fn send_more(&mut self) {
        while !self.unsent.is_empty() {
            match { self.client.stream() }.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                // The line is full, or the server has ended it.
                Err(_) => return,
            }
        }
    }
}

/// A server that had to keep what it cannot send would keep more than the machine has.
#[test]
fn a_client_that_takes_no_replies_is_read_no_further_and_ended_while_others_are_served()
-> Result<()> {
    let name = SnapshotName::new("s")?;
    let frames = |request: Request, count| support::frame(request, Epoch(1)).repeat(count);
    let reads = || {
        let read = Request::Read {
            offset_bytes: 0,
            length_bytes: 1 << 20,
        };
        frames(read, 50_000)
    };
    // By another thread, which is not to wait for the client.
    let extents = || {
        let extents = Request::LayerExtents {
            name: name.clone(),
            scope: ExtentScope::Own,
            from_offset_bytes: 0,
        };
        frames(extents, 50_000)
    };
    // They have threads of their own, and are still at work when the line is full.
    let long = || {
        let digest = Request::SnapshotDigest {
            name: name.clone(),
            recompute: true,
        };
        [frames(digest, 20), reads()].concat()
    };
    let flushes = || [frames(Request::Flush, 1000), reads()].concat();
    for (what, requests) in [
        ("reads", reads()),
        ("extents", extents()),
        ("long operations", long()),
        ("flushes", flushes()),
    ] {
        let fixture = Fixture::with(|config| config.reply_deadline = Duration::from_secs(1))?;
        let mut others = Others::of(&fixture, 1)?;
        for block in (0..SIZE_BYTES / BLOCK as u64).step_by(2) {
            others.same.write(block * BLOCK as u64, vec![1; BLOCK])?;
        }
        others.same.done(Request::SnapshotCreate {
            name: name.clone(),
            created_unix_ms: 1,
            user_created: true,
        })?;
        let open_before = fixture.server().stats().connections_open;
        let mut deaf = Deaf::new(&fixture, requests)?;
        let give_up = Instant::now() + PATIENCE;
        while fixture.server().stats().connections_open > open_before {
            deaf.send_more();
            others.are_served().with_context(|| what.to_owned())?;
            ensure!(Instant::now() < give_up, "{what}: it is still there");
        }
        let stats = fixture.server().stats();
        ensure!(stats.connections_refused == 1, "{what}: {stats:?}");
        let of_others = 2 * others.rounds * BLOCK as u64;
        ensure!(
            stats.read_bytes - of_others < 64 << 20,
            "{what}: more was read than sockets and buffers hold: {stats:?}"
        );
        others.are_served()?;
    }
    Ok(())
}

/// However many come who prove nothing: they get each other's places, and not those of engines.
#[test]
fn strangers_who_prove_nothing_keep_nobody_out() -> Result<()> {
    let fixture = Fixture::with(|config| {
        config.connections_max = 3;
        config.unproved_max = 4;
        // None of them is ended for being slow.
        config.handshake_deadline = PATIENCE;
    })?;
    let mut others = Others::of(&fixture, 1)?;
    let mut strangers = Vec::new();
    for number in 0..40 {
        let mut stranger = std::net::TcpStream::connect(fixture.address())?;
        if number % 2 == 1 {
            // Says what it wants, and never proves that it may.
            stranger.write_all(&support::hello("vol"))?;
        }
        strangers.push(stranger);
        others.are_served()?;
        await_open_connections(&fixture, 2 + strangers.len().min(4))?;
    }
    let mut third = fixture.connect()?;
    ensure!(third.read(0, BLOCK as u64)?.len() == BLOCK);
    others.are_served()?;
    // The last ones are still waited for.
    for stranger in &mut strangers[..37] {
        let said = support::goodbye_of(stranger)?;
        ensure!(
            said == Some(GoodbyeReason::TooManyConnections),
            "they were told {said:?}"
        );
    }
    await_open_connections(&fixture, 3 + 3)?;
    // The bound for those who have proved their key is one of its own.
    match fixture.connect() {
        Err(ClientError::Goodbye {
            reason: GoodbyeReason::TooManyConnections,
            ..
        }) => {}
        other => bail!("a fourth one gave {:?}", other.map(drop)),
    }
    drop(third);
    await_open_connections(&fixture, 2 + 3)?;
    fixture.connect()?;
    Ok(())
}

fn await_open_connections(fixture: &Fixture, wanted: usize) -> Result<()> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let open = fixture.server().stats().connections_open;
        if open == wanted as u64 {
            return Ok(());
        }
        ensure!(Instant::now() < give_up, "{open} are open, not {wanted}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
