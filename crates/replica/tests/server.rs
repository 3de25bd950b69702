//! A real server over real sockets: what clients can do, and what broken ones cannot.

mod support;

use std::collections::HashSet;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use block_core::epoch::Tenure;
use block_core::wire::request::ExtentScope;
use block_core::wire::{
    Failure, Flags, GoodbyeReason, LayerRef, ReplicaMode, Reply, Request, StatusCode, VolumeKey,
};
use block_core::{Epoch, SnapshotName, VolumeName};
use replica::client::{Client, ClientError};
use support::{BLOCK, Fixture, SIZE_BYTES, refused_with};

fn name(text: &str) -> SnapshotName {
    SnapshotName::new(text).expect("a name")
}

#[test]
fn what_is_written_is_read_also_through_snapshots() -> Result<()> {
    let fixture = Fixture::new()?;
    let mut client = fixture.open(1)?;
    client.write(0, vec![1; 3 * BLOCK])?;
    client.write(512, vec![2; 512])?;
    let create = Request::SnapshotCreate {
        name: name("a"),
        created_unix_ms: 5,
        user_created: true,
    };
    client.done(create.clone())?;
    ensure!(refused_with(client.done(create), StatusCode::AlreadyExists));
    client.write(0, vec![3; 512])?;
    client.done(Request::Discard {
        offset_bytes: BLOCK as u64,
        length_bytes: BLOCK as u64,
    })?;
    client.flush()?;
    let live = client.read(0, 3 * BLOCK as u64)?;
    ensure!(
        live[..512] == [3; 512] && live[512..1024] == [2; 512] && live[1024..BLOCK] == [1; 3072]
    );
    ensure!(live[BLOCK..2 * BLOCK] == [0; BLOCK] && live[2 * BLOCK..] == [1; BLOCK]);
    let layer = Request::ReadLayer {
        name: name("a"),
        offset_bytes: 0,
        length_bytes: 2 * BLOCK as u64,
    };
    let Reply::Data(old) = client.call(layer)? else {
        bail!("no data")
    };
    ensure!(old[..512] == [1; 512] && old[512..1024] == [2; 512] && old[BLOCK..] == [1; BLOCK]);
    let Reply::Layers(layers) = client.call(Request::ListLayers)? else {
        bail!("no layers")
    };
    ensure!(
        layers.len() == 2
            && layers[0].layer == LayerRef::Snapshot(name("a"))
            && layers[1].layer == LayerRef::Head
    );
    ensure!(layers[1].parent == Some(name("a")) && layers[0].allocated_bytes >= 3 * BLOCK as u64);
    let scope = ExtentScope::Own;
    let extents = Request::LayerExtents {
        name: name("a"),
        scope,
        from_offset_bytes: 0,
    };
    let Reply::Extents(page) = client.call(extents)? else {
        bail!("no extents")
    };
    ensure!(page.extents.len() == 1 && page.extents[0].length_bytes == 3 * BLOCK as u64);
    client.done(Request::SnapshotRevert { name: name("a") })?;
    ensure!(client.read(0, 512)?[..] == [1; 512]);
    client.done(Request::SnapshotDelete { name: name("a") })?;
    client.done(Request::SnapshotPurge)?;
    ensure!(client.read(512, 512)?[..] == [2; 512]);
    client.done(Request::Expand {
        size_bytes: 2 * SIZE_BYTES,
    })?;
    client.write(SIZE_BYTES, vec![9; BLOCK])?;
    ensure!(client.read(SIZE_BYTES, BLOCK as u64)?[..] == [9; BLOCK]);
    Ok(())
}

#[test]
fn many_requests_are_under_way_at_once() -> Result<()> {
    let fixture = Fixture::new()?;
    let mut client = fixture.open(1)?;
    let mut waiting = std::collections::HashMap::new();
    for turn in 0..400_u64 {
        let data = vec![turn as u8; BLOCK];
        let request = match turn % 4 {
            3 => Request::Flush,
            _ => Request::Write {
                offset_bytes: turn * BLOCK as u64,
                data: data.into(),
                flags: Flags::NONE,
            },
        };
        waiting.insert(client.send(request)?, turn);
    }
    while !waiting.is_empty() {
        let (id, reply) = client.receive()?;
        ensure!(
            reply == Reply::Done && waiting.remove(&id).is_some(),
            "{reply:?}"
        );
    }
    for turn in 0..400_u64 {
        let wanted = if turn % 4 == 3 { 0 } else { turn as u8 };
        ensure!(
            client.read(turn * BLOCK as u64, BLOCK as u64)?[..] == [wanted; BLOCK],
            "block {turn}"
        );
    }
    ensure!(fixture.server().stats().flushes == 100);
    Ok(())
}

/// A client that takes no replies keeps no thread that others need.
#[test]
fn nobody_waits_behind_a_client_that_takes_no_replies() -> Result<()> {
    let fixture = Fixture::with(|config| config.reply_deadline = Duration::from_secs(600))?;
    let mut client = fixture.open(1)?;
    let blocks = SIZE_BYTES / BLOCK as u64;
    for block in (0..blocks).step_by(2) {
        client.write(block * BLOCK as u64, vec![1; BLOCK])?;
    }
    client.done(Request::SnapshotCreate {
        name: name("s"),
        created_unix_ms: 1,
        user_created: true,
    })?;
    let extents = || Request::LayerExtents {
        name: name("s"),
        scope: ExtentScope::Own,
        from_offset_bytes: 0,
    };
    // Far more than the sockets' buffers hold.
    let mut stuck = fixture.open(1)?;
    let mut waiting: HashSet<_> = (0..200)
        .map(|_| stuck.send(extents()))
        .collect::<Result<_, _>>()?;
    for _ in 0..100 {
        client.flush()?;
    }
    // It comes back to its senses, and nothing is lost.
    while !waiting.is_empty() {
        let (id, reply) = stuck.receive()?;
        let Reply::Extents(page) = reply else {
            bail!("extents were asked for, not {reply:?}");
        };
        ensure!(waiting.remove(&id) && page.extents.len() as u64 == blocks / 2);
    }
    Ok(())
}

#[test]
fn a_newer_epoch_fences_older_connections_for_ever() -> Result<()> {
    let mut fixture = Fixture::new()?;
    let mut old = fixture.open(5)?;
    old.write(0, vec![1; BLOCK])?;
    let mut new = fixture.open(6)?;
    match old.write(0, vec![2; BLOCK]) {
        Err(ClientError::Refused(Failure {
            code: StatusCode::StaleEpoch,
            ..
        })) => {}
        other => bail!("a stale write gave {other:?}"),
    }
    match old.read(0, 512) {
        Err(ClientError::Goodbye {
            reason: GoodbyeReason::StaleEpoch,
            ..
        }) => {}
        other => bail!("after a stale write there came {other:?}"),
    }
    ensure!(new.read(0, BLOCK as u64)?[..] == [1; BLOCK]);
    ensure!(refused_with(
        fixture.open(5).map(drop),
        StatusCode::StaleEpoch
    ));
    fixture.restart()?;
    ensure!(
        refused_with(fixture.open(5).map(drop), StatusCode::StaleEpoch),
        "also after a restart"
    );
    ensure!(fixture.connect()?.welcome().accepted_epoch == Epoch(6));
    // The same incarnation may come back, and have several connections.
    let (mut one, mut two) = (fixture.open(6)?, fixture.open(6)?);
    one.write(0, vec![7; BLOCK])?;
    ensure!(two.read(0, BLOCK as u64)?[..] == [7; BLOCK]);
    Ok(())
}

/// A newer engine relies on it: too long would let an older one read what is not true any more.
#[test]
fn the_newest_engine_learns_for_how_long_older_ones_have_been_silent() -> Result<()> {
    let mut fixture = Fixture::new()?;
    let silent = |client: &mut Client| match client.call(Request::Status)? {
        Reply::Status(status) => Ok(Duration::from_micros(status.older_silent_us)),
        other => bail!("a status was asked for, not {other:?}"),
    };
    let mut old = fixture.open(5)?;
    let before = Instant::now();
    old.write(0, vec![1; BLOCK])?;
    let after = Instant::now();
    let mut new = fixture.open(6)?;
    new.write(0, vec![2; BLOCK])?;
    std::thread::sleep(Duration::from_millis(20));
    let at_least = after.elapsed();
    let told = silent(&mut new)?;
    ensure!(at_least <= told && told <= before.elapsed(), "{told:?}");
    let before = Instant::now();
    fixture.restart()?;
    let told = silent(&mut fixture.open(6)?)?;
    ensure!(told <= before.elapsed(), "of others, nothing is known");
    Ok(())
}

#[test]
fn a_newer_connection_of_the_same_engine_fences_the_older_ones() -> Result<()> {
    let mut fixture = Fixture::new()?;
    let tenure = |session| Tenure {
        epoch: Epoch(5),
        session,
    };
    let (mut old, mut new) = (fixture.connect()?, fixture.connect()?);
    old.open_as(tenure(1))?;
    old.write(0, vec![1; BLOCK])?;
    new.open_as(tenure(2))?;
    new.write(0, vec![2; BLOCK])?;
    // Late, as after a partition: it was meant to be there before.
    ensure!(refused_with(
        old.write(0, vec![3; BLOCK]),
        StatusCode::Superseded
    ));
    match old.read(0, 512) {
        Err(ClientError::Goodbye {
            reason: GoodbyeReason::Superseded,
            ..
        }) => {}
        other => bail!("after a late write there came {other:?}"),
    }
    ensure!(new.read(0, BLOCK as u64)?[..] == [2; BLOCK]);
    // An attempt to connect can be late as well.
    let mut late = fixture.connect()?;
    ensure!(refused_with(
        late.open_as(tenure(1)),
        StatusCode::Superseded
    ));
    ensure!(new.read(0, BLOCK as u64)?[..] == [2; BLOCK]);
    // After a restart no connection is left, and numbers may begin anew.
    fixture.restart()?;
    let mut again = fixture.connect()?;
    again.open_as(tenure(1))?;
    ensure!(again.read(0, BLOCK as u64)?[..] == [2; BLOCK]);
    Ok(())
}

#[test]
fn looking_needs_no_epoch_but_everything_else_does() -> Result<()> {
    let fixture = Fixture::new()?;
    let mut client = fixture.connect()?;
    let Reply::Status(status) = client.call(Request::Status)? else {
        bail!("no status")
    };
    ensure!(status.mode == ReplicaMode::Ready && status.size_bytes == SIZE_BYTES);
    // A standby's read: what another engine has written is seen, and that engine is not disturbed.
    let mut writer = fixture.open(1)?;
    writer.write(0, vec![7; 512])?;
    ensure!(client.read(0, 512)? == vec![7; 512]);
    writer.write(0, vec![8; 512])?;
    ensure!(client.read(0, 512)? == vec![8; 512]);
    ensure!(refused_with(
        client.write(0, vec![0; 512]),
        StatusCode::WrongMode
    ));
    ensure!(refused_with(client.flush(), StatusCode::WrongMode));
    let delete = Request::SnapshotDelete { name: name("a") };
    ensure!(refused_with(client.done(delete), StatusCode::WrongMode));
    Ok(())
}

#[test]
fn bad_requests_are_refused_and_the_connection_goes_on() -> Result<()> {
    let fixture = Fixture::new()?;
    let mut client = fixture.open(1)?;
    let zeroes = |offset_bytes, length_bytes| Request::WriteZeroes {
        offset_bytes,
        length_bytes,
        flags: Flags::NONE,
    };
    let missing = name("none");
    for (request, code) in [
        (
            Request::Read {
                offset_bytes: SIZE_BYTES,
                length_bytes: 512,
            },
            StatusCode::OutOfRange,
        ),
        (
            Request::Read {
                offset_bytes: 1,
                length_bytes: 512,
            },
            StatusCode::BadRequest,
        ),
        (
            Request::Read {
                offset_bytes: 0,
                length_bytes: 1 << 40,
            },
            StatusCode::BadRequest,
        ),
        (zeroes(u64::MAX - 511, 512), StatusCode::OutOfRange),
        (
            Request::Expand {
                size_bytes: BLOCK as u64,
            },
            StatusCode::BadRequest,
        ),
        (
            Request::Expand {
                size_bytes: 1 << 60,
            },
            StatusCode::BadRequest,
        ),
        (
            Request::SnapshotRevert {
                name: missing.clone(),
            },
            StatusCode::NotFound,
        ),
        (
            Request::ReadLayer {
                name: missing.clone(),
                offset_bytes: 0,
                length_bytes: 512,
            },
            StatusCode::NotFound,
        ),
        (
            Request::RebuildWrite {
                name: missing,
                offset_bytes: 0,
                data: vec![0; BLOCK].into(),
            },
            StatusCode::WrongMode,
        ),
        (Request::RebuildCommit, StatusCode::WrongMode),
        (
            Request::CreateVolume { size_bytes: 4096 },
            StatusCode::NotPermitted,
        ),
    ] {
        let shown = format!("{request:?}");
        let found = client.call(request);
        ensure!(refused_with(found.map(drop), code), "{shown}");
    }
    client.write(0, vec![1; 512])?;
    Ok(())
}

#[test]
fn nobody_without_the_key_gets_in() -> Result<()> {
    let fixture = Fixture::new()?;
    let wrong = VolumeKey::from_bytes([9; 32]);
    let connect = |volume: &str, key| {
        let volume = VolumeName::new(volume).expect("a name");
        Client::connect(fixture.address(), &volume, key, Duration::from_secs(20))
    };
    ensure!(
        matches!(connect("vol", &wrong), Err(ClientError::Auth(_))),
        "the client notices first"
    );
    match connect("other", &wrong) {
        Err(ClientError::Goodbye {
            reason: GoodbyeReason::UnknownVolume,
            ..
        }) => {}
        other => bail!("an unknown volume gave {:?}", other.map(drop)),
    }
    // A client that does not care about the replica's proof, with a wrong one of its own.
    let mut raw = TcpStream::connect(fixture.address())?;
    let hello = support::hello("vol");
    raw.write_all(&hello)?;
    raw.write_all(&support::frame(Request::Prove([0; 32]), Epoch::NONE))?;
    raw.write_all(&support::frame(Request::Status, Epoch::NONE))?;
    ensure!(support::goodbye_of(&mut raw)? == Some(GoodbyeReason::AuthenticationFailed));
    // Nothing before the handshake.
    let mut raw = TcpStream::connect(fixture.address())?;
    raw.write_all(&support::frame(Request::Status, Epoch::NONE))?;
    ensure!(support::goodbye_of(&mut raw)? == Some(GoodbyeReason::OutOfOrder));
    Ok(())
}

#[test]
fn slow_clients_are_not_waited_for() -> Result<()> {
    // Each has only the one short deadline, so that a slow machine does not meet the other.
    let short = Duration::from_millis(50);
    let fixture = Fixture::with(|config| config.handshake_deadline = short)?;
    let mut silent = TcpStream::connect(fixture.address())?;
    ensure!(support::goodbye_of(&mut silent)? == Some(GoodbyeReason::TooSlow));
    let fixture = Fixture::with(|config| config.frame_deadline = short)?;
    let mut slow = fixture.open(1)?;
    let write = support::frame(Request::Flush, Epoch(1));
    slow.send_bytes(&write[..20], &[])?;
    match slow.receive() {
        Err(ClientError::Goodbye {
            reason: GoodbyeReason::TooSlow,
            ..
        }) => Ok(()),
        other => bail!("half a frame gave {other:?}"),
    }
}

#[test]
fn a_stopping_server_says_so() -> Result<()> {
    let mut fixture = Fixture::new()?;
    let mut client = fixture.open(1)?;
    client.write(0, vec![1; BLOCK])?;
    fixture.restart()?;
    match client.receive() {
        Err(ClientError::Goodbye {
            reason: GoodbyeReason::ShuttingDown,
            ..
        }) => {}
        other => bail!("a stopped server gave {other:?}"),
    }
    ensure!(fixture.open(1)?.read(0, BLOCK as u64)?[..] == [1; BLOCK]);
    Ok(())
}

#[test]
fn there_is_a_limit_to_connections() -> Result<()> {
    let fixture = Fixture::with(|config| config.connections_max = 2)?;
    let (_one, _two) = (fixture.connect()?, fixture.connect()?);
    match fixture.connect() {
        Err(ClientError::Goodbye {
            reason: GoodbyeReason::TooManyConnections,
            ..
        }) => Ok(()),
        other => bail!("a third connection gave {:?}", other.map(drop)),
    }
}

#[test]
fn a_volume_can_be_made_by_a_client_where_that_is_allowed() -> Result<()> {
    let fixture = Fixture::derived()?;
    let volume = VolumeName::new("new-one")?;
    let key = VolumeKey::derive(b"site secret", &volume);
    let mut client = Client::connect(fixture.address(), &volume, &key, Duration::from_secs(20))?;
    ensure!(client.welcome().mode == ReplicaMode::Absent);
    ensure!(refused_with(
        client.call(Request::Status).map(drop),
        StatusCode::NotFound
    ));
    ensure!(refused_with(
        client.done(Request::CreateVolume { size_bytes: 100 }),
        StatusCode::BadRequest
    ));
    client.done(Request::CreateVolume {
        size_bytes: SIZE_BYTES,
    })?;
    client.open(Epoch(1))?;
    client.write(0, vec![4; BLOCK])?;
    ensure!(refused_with(
        client.done(Request::CreateVolume {
            size_bytes: SIZE_BYTES
        }),
        StatusCode::AlreadyExists
    ));
    ensure!(fixture.server().volumes()? == std::slice::from_ref(&volume));
    fixture.server().delete_volume(&volume)?;
    ensure!(client.read(0, 512).is_err() && fixture.server().volumes()?.is_empty());
    Ok(())
}

/// Some thousand mutated conversations through a live socket, while another client works undisturbed.
#[test]
fn mutated_conversations_hurt_nobody() -> Result<()> {
    let fixture = Fixture::new()?;
    let mut good = fixture.open(1)?;
    good.write(8 * BLOCK as u64, vec![5; BLOCK])?;
    let conversations = support::conversations();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for turn in 0..3000_u64 {
        let mut bytes = conversations[turn as usize % conversations.len()].clone();
        for _ in 0..=support::next_random(&mut seed) % 4 {
            let at = (support::next_random(&mut seed) % bytes.len() as u64) as usize;
            bytes[at] = support::next_random(&mut seed) as u8;
        }
        if turn % 3 == 0 {
            support::repair_header(&mut bytes);
        }
        // Half go to the handshake, half behind it.
        if turn % 2 == 0 {
            let mut raw = TcpStream::connect(fixture.address())?;
            let _ = raw.write_all(&bytes);
            let _ = raw.shutdown(Shutdown::Both);
        } else {
            let mut bad = fixture.connect()?;
            let _ = bad.send_bytes(&bytes, &[]);
            let _ = bad.stream().shutdown(Shutdown::Write);
        }
        if turn % 100 == 0 {
            ensure!(
                good.read(8 * BLOCK as u64, BLOCK as u64)?[..] == [5; BLOCK],
                "turn {turn}"
            );
        }
    }
    ensure!(good.read(8 * BLOCK as u64, BLOCK as u64)?[..] == [5; BLOCK]);
    Ok(())
}
