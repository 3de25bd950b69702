//! Everything at once, from many threads, on a real disk: writers, flushes, snapshots, deletions, purges and readers of
//! snapshots. Each writer has blocks of its own, so it knows what they hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use block_core::epoch::Tenure;
use block_core::wire::{StatusCode, VolumeKey};
use block_core::{Epoch, SnapshotName, VolumeName};

use crate::disk::real::RealDisk;
use crate::store::{Replica, ReplicaSpec, StoreError, WriteOptions};

const EPOCH: Epoch = Epoch(1);
const WRITERS: u64 = 3;
const BLOCKS_EACH: u64 = 64;
const SECTOR: u64 = 512;
const SECTORS_EACH: u64 = BLOCKS_EACH * 8;
const WRITES_EACH: u64 = 1500;

fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state >> 5
}

/// Writes and zeroes its own sectors and reads them back. Returns what they must hold.
fn write_own(replica: &Replica<RealDisk>, writer: u64) -> Vec<u8> {
    let mut shadow = vec![0_u8; SECTORS_EACH as usize];
    let base = writer * SECTORS_EACH;
    let mut seed = 0x1234_5678 + writer;
    for turn in 0..WRITES_EACH {
        let first = next_random(&mut seed) % SECTORS_EACH;
        let sectors = (1 + next_random(&mut seed) % 24).min(SECTORS_EACH - first);
        let (at, length) = ((base + first) * SECTOR, sectors * SECTOR);
        let tag = 1 + (turn % 250) as u8;
        let own = first as usize..(first + sectors) as usize;
        if next_random(&mut seed).is_multiple_of(4) {
            replica.write_zeroes(EPOCH, at, length).expect("zeroes");
            shadow[own].fill(0);
        } else {
            let options = WriteOptions {
                detect_zeroes: turn % 2 == 0,
                ..WriteOptions::default()
            };
            replica
                .write(EPOCH, at, &vec![tag; length as usize], options)
                .expect("a write");
            shadow[own].fill(tag);
        }
        if turn % 50 == 0 {
            check_own(replica, writer, &shadow);
        }
    }
    shadow
}

fn check_own(replica: &Replica<RealDisk>, writer: u64, shadow: &[u8]) {
    let mut found = vec![0xee; (SECTORS_EACH * SECTOR) as usize];
    replica
        .read(EPOCH, writer * SECTORS_EACH * SECTOR, &mut found)
        .expect("a read");
    for (at, (sector, wanted)) in found.chunks(SECTOR as usize).zip(shadow).enumerate() {
        assert!(
            sector.iter().all(|byte| byte == wanted),
            "writer {writer}, sector {at}: {} not {wanted}",
            sector[0]
        );
    }
}

/// Takes snapshots and deletes all but the newest few, purging as it goes.
fn take_snapshots(replica: &Replica<RealDisk>, done: &AtomicBool, taken: &AtomicU64) {
    let name = |number: u64| SnapshotName::new(&format!("s{number}")).expect("a name");
    let mut number = 0;
    while !done.load(Ordering::Acquire) || number < 4 {
        replica
            .create_snapshot(EPOCH, &name(number), number, true)
            .expect("a snapshot");
        taken.store(number + 1, Ordering::Release);
        if number >= 3 {
            replica
                .delete_snapshot(EPOCH, &name(number - 3))
                .expect("a deletion");
        }
        if number % 2 == 1 {
            replica.purge(EPOCH).expect("a purge");
        }
        number += 1;
    }
}

/// The digest of a snapshot is the same whenever it is computed. Returns how often it was compared.
fn read_snapshots(replica: &Replica<RealDisk>, done: &AtomicBool, taken: &AtomicU64) -> u64 {
    let mut compared = 0;
    while !done.load(Ordering::Acquire) {
        let newest = taken.load(Ordering::Acquire);
        if newest == 0 {
            std::thread::yield_now();
            continue;
        }
        let name = SnapshotName::new(&format!("s{}", newest - 1)).expect("a name");
        for recompute in [false, true, true] {
            match replica.snapshot_digest(&name, recompute) {
                Ok(_) => compared += 1,
                // It was deleted meanwhile.
                Err(error @ StoreError::Tree(_)) => {
                    assert_eq!(error.failure().code, StatusCode::NotFound);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    compared
}

#[test]
fn all_operations_run_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("v");
    let spec = ReplicaSpec {
        volume: VolumeName::new("v").expect("a name"),
        key: VolumeKey::from_bytes([0; 32]),
        size_bytes: WRITERS * SECTORS_EACH * SECTOR,
    };
    let replica = Arc::new(
        Replica::create(RealDisk::create(&path).expect("a disk"), &spec).expect("a replica"),
    );
    replica.open_epoch(EPOCH).expect("an epoch");
    let (done, taken) = (AtomicBool::new(false), AtomicU64::new(0));
    let shadows = std::thread::scope(|scope| {
        scope.spawn(|| take_snapshots(&replica, &done, &taken));
        let reader = scope.spawn(|| read_snapshots(&replica, &done, &taken));
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                replica.flush(EPOCH).expect("a flush");
            }
        });
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let replica = &replica;
                scope.spawn(move || write_own(replica, writer))
            })
            .collect();
        let shadows: Vec<Vec<u8>> = writers
            .into_iter()
            .map(|writer| writer.join().expect("a writer"))
            .collect();
        done.store(true, Ordering::Release);
        assert!(
            reader.join().expect("a reader") > 0,
            "no digest was compared"
        );
        shadows
    });
    assert!(taken.load(Ordering::Acquire) >= 4);
    let check = |replica: &Replica<RealDisk>| {
        for (writer, shadow) in (0..).zip(&shadows) {
            check_own(replica, writer, shadow);
        }
    };
    check(&replica);
    replica.purge(EPOCH).expect("a purge");
    check(&replica);
    drop(replica);
    check(&Replica::open(RealDisk::open(&path).expect("a disk")).expect("a replica"));
}

/// Whatever an older connection has under way is over when a newer one is told that it has the volume.
#[test]
fn nothing_of_an_older_connection_runs_behind_a_newer_ones_opening() {
    let folder = tempfile::tempdir().expect("a folder");
    let spec = ReplicaSpec {
        volume: VolumeName::new("v").expect("a name"),
        key: VolumeKey::from_bytes([0; 32]),
        size_bytes: 1 << 20,
    };
    let disk = RealDisk::create(&folder.path().join("v")).expect("a disk");
    let replica = Replica::create(disk, &spec).expect("a replica");
    let tenure = |session| Tenure {
        epoch: EPOCH,
        session,
    };
    let value = |session: u64| vec![(session % 251) as u8; 64 << 10];
    replica.open_epoch(tenure(0)).expect("an epoch");
    std::thread::scope(|scope| {
        for session in 1..=200 {
            let (replica, old) = (&replica, tenure(session - 1));
            let late = scope.spawn(move || {
                let options = WriteOptions::default();
                // Until it is refused.
                while replica.write(old, 0, &value(old.session), options).is_ok() {}
            });
            replica.open_epoch(tenure(session)).expect("a connection");
            let new = tenure(session);
            let options = WriteOptions::default();
            replica
                .write(new, 0, &value(session), options)
                .expect("a write");
            late.join().expect("the older one is refused");
            let mut found = vec![0; 64 << 10];
            replica.read(new, 0, &mut found).expect("a read");
            assert_eq!(found, value(session), "at connection {session}");
        }
    });
}
