//! One suite for all front ends, over a volume in memory, with real mounts and real clients.
//!
//! It needs root, FUSE, loop devices, and the packages fio, libnbd-bin, qemu-utils and e2fsprogs.

mod harness;
mod nbd_client;
#[path = "../support/programs.rs"]
mod programs;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use engine::frontend::{Endpoint, FrontendKind, FrontendState};
use engine::io::IoFault;
use harness::{Device, Harness};
use nbd_client::NbdClient;
use programs::run;

const MIB: u64 = 1 << 20;

/// What every front end must do.
fn check_conformance(mut harness: Harness) -> Result<()> {
    let kind = harness.kind();
    let mut device = harness.device()?;
    ensure!(device.size_bytes()? == 64 * MIB, "the size is shown");

    // A fresh volume reads as zeroes.
    ensure!(device.read(0, 8192)?.iter().all(|byte| *byte == 0));

    // What was written is read back, at both ends and across every internal limit.
    for (offset, length, seed) in [
        (0, 4096, 1u8),
        (64 * MIB - 4096, 4096, 2),
        (MIB - 4096, 8192, 3),
        (8 * MIB, 5 * MIB, 4),
    ] {
        let data = pattern(length, seed);
        device.write(offset, &data)?;
        ensure!(
            device.read(offset, length)? == data,
            "{kind}: {length} bytes at {offset}"
        );
        ensure!(
            harness.peek(offset, length) == data,
            "{kind}: the engine got them"
        );
    }

    // A flush reaches the engine, after what was written before it.
    let flushes = harness.counts().flushes;
    device.flush()?;
    ensure!(harness.counts().flushes > flushes, "{kind}: flush");

    // Discards and zeroes reach it as such, and read as zeroes.
    let before = harness.counts();
    device.discard(8 * MIB, 2 * MIB)?;
    ensure!(
        harness.counts().discarded_bytes - before.discarded_bytes == 2 * MIB,
        "{kind}: discard"
    );
    ensure!(device.read(8 * MIB, 2 * MIB)?.iter().all(|byte| *byte == 0));
    device.write_zeroes(10 * MIB, MIB)?;
    ensure!(
        harness.counts().zeroed_bytes > before.zeroed_bytes,
        "{kind}: zeroes"
    );
    ensure!(device.read(10 * MIB, MIB)?.iter().all(|byte| *byte == 0));
    ensure!(device.read(11 * MIB, MIB)? == pattern(5 * MIB, 4)[3 * MIB as usize..4 * MIB as usize]);

    // Several users at once do not mix their data up.
    let mut devices = Vec::new();
    for _ in 0..4 {
        devices.push(harness.device()?);
    }
    std::thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = devices
            .iter_mut()
            .enumerate()
            .map(|(index, device)| {
                scope.spawn(move || -> Result<()> {
                    for round in 0..50u64 {
                        let offset = 20 * MIB + (round * 4 + index as u64) * 8192;
                        let data = pattern(8192, (round * 7 + index as u64) as u8);
                        device.write(offset, &data)?;
                        ensure!(device.read(offset, 8192)? == data);
                    }
                    Ok(())
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic")?;
        }
        Ok(())
    })?;
    drop(devices);

    // A request past the end is refused and the device goes on.
    ensure!(
        device.write(64 * MIB, &pattern(4096, 9)).is_err(),
        "{kind}: past the end"
    );

    // The engine's errors become the user's errors, and only for as long as there are any.
    harness.fail_with(Some(IoFault::Failed));
    ensure!(
        device.write(0, &pattern(4096, 5)).is_err(),
        "{kind}: a failed write"
    );
    ensure!(
        device.read(30 * MIB, 4096).is_err(),
        "{kind}: a failed read"
    );
    harness.fail_with(None);
    device.write(0, &pattern(4096, 6))?;
    ensure!(device.read(0, 4096)? == pattern(4096, 6));

    // A larger volume is seen, by old users where the protocol can tell them.
    harness.resize(96 * MIB)?;
    let mut grown = harness.device()?;
    ensure!(
        grown.size_bytes()? == 96 * MIB,
        "{kind}: the new size is shown"
    );
    grown.write(96 * MIB - 4096, &pattern(4096, 7))?;
    ensure!(grown.read(96 * MIB - 4096, 4096)? == pattern(4096, 7));
    drop(grown);

    drop(device);
    harness.close()?;
    harness.ensure_nothing_is_left()
}

fn pattern(length: u64, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|at| (at / 512) as u8 ^ (at % 251) as u8 ^ seed)
        .collect()
}

#[test]
fn fuse_conforms() -> Result<()> {
    check_conformance(Harness::open(FrontendKind::Fuse, 64 * MIB)?)
}

/// With a keeper, requests and answers go another way through the kernel.
#[test]
fn fuse_conforms_with_a_keeper() -> Result<()> {
    check_conformance(Harness::open_with_keeper(FrontendKind::Fuse, 64 * MIB)?)
}

#[test]
fn nbd_conforms() -> Result<()> {
    check_conformance(Harness::open(FrontendKind::Nbd, 64 * MIB)?)
}

#[test]
fn none_shows_nothing() -> Result<()> {
    let mut harness = Harness::open(FrontendKind::None, MIB)?;
    ensure!(
        harness.state()
            == FrontendState::Ready {
                endpoint: Endpoint::Nowhere
            }
    );
    harness.close()
}

/// An engine that dies without a word leaves errors behind, and no loop device or mount that a successor could
/// not take away.
#[test]
fn fuse_death_gives_errors_and_leftovers_are_cleared() -> Result<()> {
    let mut harness = Harness::open(FrontendKind::Fuse, 16 * MIB)?;
    let mut device = harness.device()?;
    device.write(0, &pattern(4096, 1))?;
    harness.die();
    ensure!(
        device.read(8 * MIB, 4096).is_err(),
        "reads fail once the engine is gone"
    );
    // The successor opens while somebody still has the dead device open.
    let mut successor = harness.reopen()?;
    let mut fresh = successor.device()?;
    fresh.write(4096, &pattern(4096, 2))?;
    ensure!(fresh.read(4096, 4096)? == pattern(4096, 2));
    drop((device, fresh));
    successor.close()?;
    successor.ensure_nothing_is_left()
}

/// The engine is replaced under a user who is in the middle of a write: it takes longer, and that is all.
#[test]
fn fuse_connection_is_taken_over_with_a_keeper() -> Result<()> {
    let mut harness = Harness::open_with_keeper(FrontendKind::Fuse, 16 * MIB)?;
    let mut device = harness.device()?;
    device.write(0, &pattern(4096, 1))?;
    harness.hold_answers(true);
    let writer = std::thread::spawn(move || -> Result<Box<dyn Device>> {
        device.write(4096, &pattern(4096, 2))?;
        Ok(device)
    });
    harness.await_held()?;
    harness.die();
    let mut successor = harness.reopen()?;
    let mut device = writer
        .join()
        .expect("no panic")
        .context("the write survives")?;
    ensure!(device.read(0, 4096)? == pattern(4096, 1));
    ensure!(device.read(4096, 4096)? == pattern(4096, 2));
    drop(device);
    successor.close()?;
    successor.ensure_nothing_is_left()
}

/// As on a kernel that does not resend: what the dead engine had taken fails, nobody waits for ever, and there is a new device.
#[test]
fn fuse_users_get_errors_where_the_connection_cannot_be_taken_over() -> Result<()> {
    let mut harness = Harness::open_with_keeper(FrontendKind::Fuse, 16 * MIB)?;
    let mut device = harness.device()?;
    device.write(0, &pattern(4096, 1))?;
    harness.hold_answers(true);
    let writer = std::thread::spawn(move || device.write(4096, &pattern(4096, 2)));
    harness.await_held()?;
    harness.die();
    let kept = harness.spoil_what_is_kept()?;
    let mut successor = harness.reopen()?;
    let written = writer.join().expect("no panic");
    ensure!(written.is_err(), "the write is not left waiting");
    let told = successor.made_anew().unwrap_or_default();
    ensure!(told.contains("does not resend"), "why: {told:?}");
    drop(kept);
    let mut fresh = successor.device()?;
    fresh.write(8192, &pattern(4096, 3))?;
    ensure!(fresh.read(8192, 4096)? == pattern(4096, 3));
    // The keeper has the new one: the next death is a pause again.
    successor.die();
    let mut third = successor.reopen()?;
    ensure!(third.made_anew().is_none(), "{:?}", third.made_anew());
    ensure!(fresh.read(8192, 4096)? == pattern(4096, 3));
    drop(fresh);
    third.close()?;
    third.ensure_nothing_is_left()
}

fn nbd_client_of(harness: &Harness) -> Result<NbdClient> {
    let Endpoint::NbdSocket(path) = harness.endpoint()? else {
        anyhow::bail!("not a socket");
    };
    NbdClient::connect(&path)
}

/// More than a client may have open: the rest is taken when there is room again, and nothing is forgotten.
#[test]
fn nbd_answers_more_than_it_holds_at_once() -> Result<()> {
    let mut harness = Harness::open(FrontendKind::Nbd, 64 * MIB)?;
    let mut client = nbd_client_of(&harness)?;
    client.write(MIB, &pattern(MIB, 5))?;
    let mut answered = client.read_at_once(12, 0, 32 * MIB)?;
    answered.dedup();
    ensure!(answered.len() == 1, "all show the same");
    ensure!(answered[0].len() as u64 == 32 * MIB);
    ensure!(answered[0][MIB as usize..2 * MIB as usize] == pattern(MIB, 5));
    client.flush()?;
    drop(client);
    harness.close()?;
    harness.ensure_nothing_is_left()
}

/// No more is held for it than for any other client, those are served meanwhile, and a front end that is asked to close does so.
#[test]
fn nbd_client_that_takes_no_answers_holds_up_nobody() -> Result<()> {
    let mut harness = Harness::open(FrontendKind::Nbd, 64 * MIB)?;
    let mut deaf = nbd_client_of(&harness)?;
    deaf.send_reads(400, 0, MIB)?;
    let mut other = harness.device()?;
    let mut other_bytes = 0;
    for round in 0..500u64 {
        let offset = 8 * MIB + round * 4096;
        let data = pattern(4096, round as u8);
        other.write(offset, &data)?;
        ensure!(other.read(offset, 4096)? == data, "round {round}");
        other_bytes += 4096;
    }
    // 64 MiB may be held, and the socket has taken some.
    let deaf_bytes = harness.counts().read_bytes - other_bytes;
    ensure!(deaf_bytes >= MIB, "it was never served: {deaf_bytes}");
    ensure!(
        deaf_bytes < 80 * MIB,
        "{deaf_bytes} bytes for one who takes none"
    );
    harness.close()?;
    ensure!(other.read(0, 4096).is_err(), "that one has left");
    harness.ensure_nothing_is_left()
}

/// It gets what it had asked for before, whole, also if it goes on to ask; that is not answered.
#[test]
fn nbd_client_gets_its_last_answers_when_the_front_end_closes() -> Result<()> {
    let mut harness = Harness::open(FrontendKind::Nbd, 64 * MIB)?;
    let mut client = nbd_client_of(&harness)?;
    client.write(MIB, &pattern(MIB, 5))?;
    // Much more than a socket holds.
    client.send_reads(1, 0, 32 * MIB)?;
    harness.await_reads(32 * MIB)?;
    harness.begin_close()?;
    client.send_reads(1, 0, MIB)?;
    let answer = client.take_answer()?;
    ensure!(answer.len() as u64 == 32 * MIB);
    ensure!(answer[MIB as usize..2 * MIB as usize] == pattern(MIB, 5));
    ensure!(client.take_answer().is_err(), "asked for too late");
    harness.close()?;
    harness.ensure_nothing_is_left()
}

/// Who waits for the engine, and not the engine for him, is waited for beyond the time that clients get to take their answers.
#[test]
fn nbd_client_is_not_hung_up_on_for_what_the_engine_owes_it() -> Result<()> {
    let mut harness = Harness::open(FrontendKind::Nbd, 64 * MIB)?;
    let mut client = nbd_client_of(&harness)?;
    client.write(MIB, &pattern(MIB, 5))?;
    harness.hold_answers(true);
    client.send_reads(1, MIB, MIB)?;
    harness.await_held()?;
    harness.begin_close()?;
    std::thread::sleep(Duration::from_secs(12));
    harness.hold_answers(false);
    ensure!(client.take_answer()? == pattern(MIB, 5));
    harness.close()?;
    harness.ensure_nothing_is_left()
}

/// Clients that other people wrote.
#[test]
fn nbd_serves_real_clients() -> Result<()> {
    let mut harness = Harness::open(FrontendKind::Nbd, 64 * MIB)?;
    let uri = harness.endpoint()?.to_string();
    let info = run("nbdinfo", &["--json", &uri])?;
    ensure!(info.contains("67108864"), "nbdinfo shows the size: {info}");
    for ability in [
        "structured",
        "can_multi_conn",
        "can_trim",
        "can_zero",
        "can_fua",
        "can_flush",
    ] {
        let shown = format!("\"{ability}\": true");
        ensure!(info.contains(&shown), "nbdinfo shows {shown}: {info}");
    }

    let folder = tempfile::tempdir()?;
    let image = folder.path().join("image");
    std::fs::write(&image, pattern(64 * MIB, 3))?;
    run(
        "nbdcopy",
        &["--connections=4", &image.to_string_lossy(), &uri],
    )?;
    ensure!(
        harness.peek(0, 64 * MIB) == pattern(64 * MIB, 3),
        "nbdcopy wrote everything"
    );
    let back = folder.path().join("back");
    run(
        "nbdcopy",
        &["--connections=4", &uri, &back.to_string_lossy()],
    )?;
    ensure!(
        std::fs::read(&back)? == std::fs::read(&image)?,
        "nbdcopy read everything"
    );

    let socket = match harness.endpoint()? {
        Endpoint::NbdSocket(path) => path,
        other => anyhow::bail!("not a socket: {other}"),
    };
    let options = format!(
        "driver=raw,file.driver=nbd,file.server.type=unix,file.server.path={}",
        socket.display()
    );
    let compared = run(
        "qemu-img",
        &[
            "compare",
            "--image-opts",
            &options,
            &format!("driver=raw,file.filename={}", image.display()),
        ],
    )?;
    ensure!(compared.contains("identical"), "{compared}");
    run(
        "qemu-io",
        &[
            "--image-opts",
            &options,
            "-c",
            "write -z 0 1M",
            "-c",
            "discard 1M 1M",
            "-c",
            "flush",
        ],
    )?;
    ensure!(
        harness.peek(0, 2 * MIB).iter().all(|byte| *byte == 0),
        "qemu-io zeroed and discarded"
    );

    run(
        "fio",
        &[
            "--name=verify",
            "--ioengine=nbd",
            &format!("--uri={uri}"),
            "--rw=randrw",
            "--bs=4k",
            "--size=32m",
            "--iodepth=16",
            "--verify=crc32c",
            "--verify_state_save=0",
            "--verify_fatal=1",
            "--number_ios=4000",
        ],
    )?;
    harness.close()?;
    harness.ensure_nothing_is_left()
}

/// A file system on the device, from making it to checking it.
#[test]
fn fuse_carries_a_file_system() -> Result<()> {
    let mut harness = Harness::open(FrontendKind::Fuse, 64 * MIB)?;
    let Endpoint::BlockDevice(device) = harness.endpoint()? else {
        anyhow::bail!("not a device");
    };
    let device = device.to_string_lossy().into_owned();
    run("mkfs.ext4", &["-q", "-F", &device])?;
    let folder = tempfile::tempdir()?;
    let mount = harness::MountGuard::mount(&device, "ext4", folder.path())?;
    std::fs::write(folder.path().join("file"), pattern(8 * MIB, 4))?;
    run("fstrim", &[&folder.path().to_string_lossy()])?;
    ensure!(
        harness.counts().discarded_bytes > 0,
        "fstrim reaches the engine"
    );
    drop(mount);
    run("e2fsck", &["-f", "-n", &device])?;
    let mount = harness::MountGuard::mount(&device, "ext4", folder.path())?;
    ensure!(std::fs::read(folder.path().join("file"))? == pattern(8 * MIB, 4));
    drop(mount);
    harness.close()?;
    harness.ensure_nothing_is_left()
}
