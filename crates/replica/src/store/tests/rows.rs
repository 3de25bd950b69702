//! Single operations, by rows, on the faulty disk and on a real one.

mod mistrust;
mod staging;
mod unwritten;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use block_core::epoch::EpochRefusal;
use block_core::wire::request::ExtentScope;
use block_core::wire::{ExtentKind, HostBoot, StatusCode, SyncMeta, VolumeKey};
use block_core::{Epoch, ReplicaName, SnapshotName, VolumeName};

use crate::disk::Disk;
use crate::disk::faulty::{Fault, FaultyDisk};
use crate::disk::real::RealDisk;
use crate::store::{OpenReplicaError, Replica, ReplicaSpec, StoreError, WriteOptions};

const EPOCH: Epoch = Epoch(1);
const BLOCK: usize = 4096;

fn name(text: &str) -> SnapshotName {
    SnapshotName::new(text).expect("a name")
}

fn spec(size_bytes: u64) -> ReplicaSpec {
    ReplicaSpec {
        volume: VolumeName::new("v").expect("a name"),
        key: VolumeKey::from_bytes([0; 32]),
        size_bytes,
    }
}

fn create<D: Disk>(disk: D, size_bytes: u64) -> Replica<D> {
    let replica = Replica::create(disk, &spec(size_bytes)).expect("a replica");
    replica.open_epoch(EPOCH).expect("an epoch");
    replica
}

fn write<D: Disk>(replica: &Replica<D>, block: u64, blocks: usize, tag: u8) {
    let data = vec![tag; blocks * BLOCK];
    replica
        .write(EPOCH, block * BLOCK as u64, &data, WriteOptions::default())
        .expect("a write");
}

fn read<D: Disk>(replica: &Replica<D>, block: u64) -> u8 {
    let mut data = [0xee; BLOCK];
    replica
        .read(EPOCH, block * BLOCK as u64, &mut data)
        .expect("a read");
    assert!(
        data.iter().all(|byte| *byte == data[0]),
        "block {block} is mixed"
    );
    data[0]
}

fn snapshot<D: Disk>(replica: &Replica<D>, text: &str) {
    replica
        .create_snapshot(EPOCH, &name(text), 0, true)
        .expect("a snapshot");
}

/// A volume far larger than its data, on a real file system: holes, windows of the index, marks, reopening.
#[test]
fn a_large_sparse_volume_on_a_real_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("v");
    let size_bytes = 4_u64 << 40;
    let replica = create(RealDisk::create(&path).expect("a disk"), size_bytes);
    let last = size_bytes / BLOCK as u64 - 1;
    let far = [0, 1, 16_383, 16_384, 16_385, 1 << 20, 12_345_678, last];
    for (at, tag) in far.iter().zip(1..) {
        write(&replica, *at, 1, tag);
    }
    snapshot(&replica, "a");
    replica
        .write_zeroes(EPOCH, 16_383 * BLOCK as u64, 2 * BLOCK as u64)
        .expect("zeroes");
    write(&replica, 16_384, 1, 99);
    replica
        .write_zeroes(EPOCH, last * BLOCK as u64, BLOCK as u64)
        .expect("zeroes");
    let check = |replica: &Replica<RealDisk>| {
        for (at, wanted) in [
            (0, 1),
            (16_383, 0),
            (16_384, 99),
            (16_385, 5),
            (1 << 20, 6),
            (last, 0),
            (77, 0),
        ] {
            assert_eq!(read(replica, at), wanted, "block {at}");
        }
    };
    check(&replica);
    replica.flush(EPOCH).expect("a flush");
    assert!(
        replica.status().expect("a status").allocated_bytes < 1 << 20,
        "it takes what it holds"
    );
    assert!(RealDisk::open(&path).is_err(), "one process at a time");
    drop(replica);
    let replica = Replica::open(RealDisk::open(&path).expect("a disk")).expect("a replica");
    check(&replica);
    let page = replica
        .layer_extents(&name("a"), ExtentScope::View, 0)
        .expect("extents");
    let shown: Vec<(u64, u64)> = page
        .extents
        .iter()
        .map(|extent| (extent.offset_bytes / 4096, extent.length_bytes / 4096))
        .collect();
    assert_eq!(
        shown,
        [
            (0, 2),
            (16_383, 3),
            (1 << 20, 1),
            (12_345_678, 1),
            (last, 1)
        ]
    );
    replica
        .delete_snapshot(EPOCH, &name("a"))
        .expect("a deletion");
    replica.purge(EPOCH).expect("a purge");
    check(&replica);
    assert_eq!(replica.list_layers().expect("layers").len(), 1);
}

/// The index is made of what is there: a thousand times the size takes not one operation more, and data by its amount.
#[test]
fn opening_takes_as_long_as_the_data_and_not_as_the_size() {
    /// Finding a block that is alone, and that nothing is behind it.
    const OPERATIONS_A_BLOCK: u64 = 8;
    let operations = |size_bytes: u64, blocks: u64| {
        let disk = FaultyDisk::new();
        let replica = create(disk.clone(), size_bytes);
        // Each in a window of its own: there is no dearer way to have them.
        let apart = size_bytes / BLOCK as u64 / blocks.max(1);
        for number in 0..blocks {
            write(&replica, number * apart, 1, 7);
        }
        replica.flush(EPOCH).expect("a flush");
        drop(replica);
        let before = disk.operations();
        let replica = Replica::open(disk.clone()).expect("a replica");
        let counted = disk.operations() - before;
        for number in 0..blocks {
            assert_eq!(read(&replica, number * apart), 7, "block {number}");
        }
        counted
    };
    assert_eq!(operations(1 << 30, 8), operations(1 << 40, 8));
    let (none, some) = (operations(1 << 40, 0), operations(1 << 40, 80));
    assert!(none < 50, "{none} operations for nothing");
    assert!(
        (1..=80 * OPERATIONS_A_BLOCK).contains(&(some - none)),
        "{none} operations for nothing, {some} for 80 blocks"
    );
}

#[test]
fn purges_copy_the_smaller_side_and_change_nothing_that_is_shown() {
    // (blocks of the removed layer, blocks of its child)
    for (old_blocks, young_blocks) in [(200, 3), (3, 200)] {
        let replica = create(FaultyDisk::new(), 1 << 20);
        snapshot(&replica, "base");
        write(&replica, 0, old_blocks, 1);
        snapshot(&replica, "old");
        write(&replica, 1, young_blocks, 2);
        replica
            .write_zeroes(EPOCH, 0, BLOCK as u64)
            .expect("zeroes");
        snapshot(&replica, "young");
        write(&replica, 2, 1, 3);
        let digest = replica
            .snapshot_digest(&name("young"), true)
            .expect("a digest");
        replica
            .delete_snapshot(EPOCH, &name("old"))
            .expect("a deletion");
        replica.purge(EPOCH).expect("a purge");
        assert_eq!(
            replica
                .snapshot_digest(&name("young"), true)
                .expect("a digest"),
            digest
        );
        let live: Vec<u8> = [0, 1, 2, 3, 150, 201]
            .into_iter()
            .map(|block| read(&replica, block))
            .collect();
        assert_eq!(
            live,
            if old_blocks == 200 {
                [0, 2, 3, 2, 1, 0]
            } else {
                [0, 2, 3, 2, 2, 0]
            }
        );
        let own = replica
            .layer_extents(&name("young"), ExtentScope::Own, 0)
            .expect("extents");
        assert_eq!(
            own.extents[0].kind,
            ExtentKind::Zero,
            "a zero over older data is still one"
        );
        assert!(matches!(
            replica.snapshot_digest(&name("old"), false),
            Err(StoreError::Tree(_))
        ));
    }
}

/// Writers wait for a snapshot that was prepared, so a purge does: it ends only after it.
#[test]
fn a_purge_gives_way_to_a_prepared_snapshot() {
    let replica = create(FaultyDisk::new(), 1 << 20);
    write(&replica, 0, 200, 1);
    snapshot(&replica, "old");
    write(&replica, 1, 3, 2);
    replica
        .delete_snapshot(EPOCH, &name("old"))
        .expect("a deletion");
    replica.prepare_snapshot(EPOCH).expect("a preparation");
    std::thread::scope(|scope| {
        let purge = scope.spawn(|| replica.purge(EPOCH));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!purge.is_finished());
        replica
            .freeze(EPOCH, &name("young"), 0, true)
            .expect("a snapshot");
        purge.join().expect("no panic").expect("a purge");
    });
    assert_eq!([read(&replica, 0), read(&replica, 1)], [1, 2]);
    let layers = replica.list_layers().expect("layers");
    assert_eq!(layers.len(), 2, "{layers:?}");
}

/// The snapshot of an engine that was replaced will not come.
#[test]
fn a_purge_that_rests_notices_that_its_engine_was_replaced() {
    let mut replica = create(FaultyDisk::new(), 1 << 20);
    replica.quiet_max = Duration::from_secs(600);
    write(&replica, 0, 200, 1);
    snapshot(&replica, "old");
    replica
        .delete_snapshot(EPOCH, &name("old"))
        .expect("a deletion");
    replica.prepare_snapshot(EPOCH).expect("a preparation");
    let purged = std::thread::scope(|scope| {
        let purge = scope.spawn(|| replica.purge(EPOCH));
        std::thread::sleep(Duration::from_millis(100));
        replica.open_epoch(Epoch(2)).expect("a newer engine");
        purge.join().expect("no panic")
    });
    assert!(
        matches!(purged, Err(StoreError::Epoch(EpochRefusal::Stale { .. }))),
        "{purged:?}"
    );
}

#[test]
fn branches_stay_readable_after_a_revert() {
    let replica = create(FaultyDisk::new(), 1 << 20);
    write(&replica, 0, 1, 1);
    snapshot(&replica, "a");
    write(&replica, 0, 1, 2);
    snapshot(&replica, "b");
    write(&replica, 0, 1, 3);
    replica.revert(EPOCH, &name("a")).expect("a revert");
    assert_eq!(read(&replica, 0), 1);
    let mut data = [0; BLOCK];
    replica
        .read_layer(&name("b"), 0, &mut data)
        .expect("the other branch");
    assert_eq!(data, [2; BLOCK]);
    // Two branches build on it, so it has to stay.
    replica
        .delete_snapshot(EPOCH, &name("a"))
        .expect("a deletion");
    replica.purge(EPOCH).expect("a purge");
    assert_eq!(replica.list_layers().expect("layers").len(), 3);
    replica
        .delete_snapshot(EPOCH, &name("b"))
        .expect("a deletion");
    replica.purge(EPOCH).expect("a purge");
    assert_eq!(
        (
            replica.list_layers().expect("layers").len(),
            read(&replica, 0)
        ),
        (1, 1)
    );
}

#[test]
fn changed_bits_are_noticed() {
    let disk = FaultyDisk::new();
    let replica = create(disk.clone(), 1 << 20);
    write(&replica, 5, 1, 1);
    snapshot(&replica, "a");
    replica
        .snapshot_digest(&name("a"), false)
        .expect("a digest");
    disk.rot("layer-0000000000000001.data", 5 * 4096 + 17);
    replica
        .snapshot_digest(&name("a"), false)
        .expect("the kept one");
    let error = replica.snapshot_digest(&name("a"), true).expect_err("rot");
    assert_eq!(error.failure().code, StatusCode::Corrupt, "{error}");
}

#[test]
fn the_live_volume_has_the_digest_of_the_snapshot_that_freezes_it() {
    let replica = create(FaultyDisk::new(), 1 << 20);
    let live = || replica.volume_digest().expect("a digest");
    let empty = live();
    write(&replica, 3, 2, 1);
    snapshot(&replica, "below");
    write(&replica, 4, 2, 2);
    let written = live();
    assert_ne!(written, empty);
    snapshot(&replica, "all");
    let frozen = replica.snapshot_digest(&name("all"), false);
    assert_eq!(frozen.expect("a digest"), written);
    assert_eq!(live(), written, "however it is divided into layers");
    write(&replica, 9, 1, 0);
    assert_eq!(live(), written, "zeroes are zeroes, written or not");
    write(&replica, 3, 1, 3);
    assert_ne!(live(), written);
}

#[test]
fn zeroes_give_space_back() {
    let disk = FaultyDisk::new();
    let replica = create(disk.clone(), 1 << 20);
    let before = disk.pages_used();
    write(&replica, 0, 10, 1);
    replica
        .write_zeroes(EPOCH, 0, 10 * BLOCK as u64)
        .expect("zeroes");
    assert_eq!(disk.pages_used(), before, "nothing is below");
    write(&replica, 0, 10, 1);
    snapshot(&replica, "a");
    write(&replica, 0, 10, 2);
    let full = disk.pages_used();
    replica
        .write_zeroes(EPOCH, 0, 10 * BLOCK as u64)
        .expect("zeroes");
    write(&replica, 4, 1, 3);
    replica.flush(EPOCH).expect("a flush");
    // Nine blocks less, one page of marks more.
    assert_eq!(disk.pages_used(), full - 8);
    assert_eq!(
        (read(&replica, 3), read(&replica, 4), read(&replica, 9)),
        (0, 3, 0)
    );
    let zeroes = vec![0; 10 * BLOCK];
    let detect = WriteOptions {
        detect_zeroes: true,
        ..WriteOptions::default()
    };
    replica.write(EPOCH, 0, &zeroes, detect).expect("a write");
    replica.flush(EPOCH).expect("a flush");
    assert_eq!((disk.pages_used(), read(&replica, 4)), (full - 9, 0));
}

/// Writers wait for the beginning of a rebuild, and files can be large: they are removed behind the answer, or by the next process.
#[test]
fn a_rebuild_begins_before_the_old_files_are_removed() {
    let head = "layer-0000000000000001.data".to_owned();
    for killed in [false, true] {
        let disk = FaultyDisk::new();
        let replica = create(disk.clone(), 1 << 20);
        write(&replica, 0, 4, 1);
        let begun = replica.rebuild_begin(EPOCH, 1 << 20, &[], None);
        begun.expect("a rebuild");
        assert!(disk.list().expect("names").contains(&head));
        if killed {
            drop(replica);
            Replica::open(disk.clone()).expect("a replica");
        } else {
            replica.remove_leftovers();
        }
        assert!(!disk.list().expect("names").contains(&head), "{killed}");
    }
}

/// A head that becomes a former one while a flush syncs it may have taken a write that this flush did not see. The next
/// flush answers for that write.
#[test]
fn a_flush_covers_writes_that_came_while_another_one_ran() {
    for nth in 1..=4 {
        let disk = FaultyDisk::new();
        drop(create(disk.clone(), 16 * BLOCK as u64));
        let replica = Arc::new(Replica::open(disk.clone()).expect("a replica"));
        replica.open_epoch(EPOCH).expect("an epoch");
        write(&replica, 0, 1, 1);
        let meanwhile = replica.clone();
        disk.after_sync(nth, move || {
            write(&meanwhile, 1, 1, 2);
            meanwhile
                .freeze(EPOCH, &name("s"), 0, false)
                .expect("a snapshot");
        });
        for _ in 0..3 {
            replica.flush(EPOCH).expect("a flush");
        }
        let Some(replica) = Arc::into_inner(replica) else {
            panic!("no flush has a sync number {nth}");
        };
        drop(replica);
        // Nothing that was not synced survives.
        disk.restart(|| 1);
        let replica = Replica::open(disk).expect("a replica");
        replica.open_epoch(EPOCH).expect("an epoch");
        assert_eq!((read(&replica, 0), read(&replica, 1)), (1, 2), "sync {nth}");
    }
}

/// A rebuild reads layer by layer what each has: that must not look through all layers below each of them.
#[test]
fn reading_what_a_layer_has_looks_at_no_other_layer() {
    let operations_with = |below: u8| {
        let disk = FaultyDisk::new();
        let replica = create(disk.clone(), 16 * BLOCK as u64);
        for number in 0..below {
            write(&replica, 0, 8, 1 + number);
            let below = name(&format!("below-{number}"));
            replica
                .create_snapshot(EPOCH, &below, 0, true)
                .expect("a snapshot");
        }
        write(&replica, 2, 2, 100);
        replica
            .write_zeroes(EPOCH, 5 * BLOCK as u64, BLOCK as u64)
            .expect("zeroes");
        replica
            .create_snapshot(EPOCH, &name("top"), 0, true)
            .expect("a snapshot");
        let read = |first: u64, blocks: usize| {
            let mut data = vec![0xee; blocks * BLOCK];
            replica
                .read_layer(&name("top"), first * BLOCK as u64, &mut data)
                .expect("a read");
            data.chunks(BLOCK)
                .map(|block| block[0])
                .collect::<Vec<u8>>()
        };
        let before = disk.operations();
        assert_eq!(read(2, 2), [100, 100]);
        let operations = disk.operations() - before;
        // What is not all its own is as the snapshot shows it.
        assert_eq!(read(3, 3), [100, below, 0]);
        assert_eq!(read(2, 2), [100, 100]);
        assert_eq!(
            read(0, 9),
            [below, below, 100, 100, below, 0, below, below, 0]
        );
        operations
    };
    assert_eq!(operations_with(1), operations_with(8));
}

/// Pieces from several layers are all asked for before the first is waited for.
#[test]
fn pieces_of_a_read_are_fetched_together() {
    let disk = FaultyDisk::new();
    let replica = create(disk.clone(), 16 * BLOCK as u64);
    write(&replica, 0, 4, 1);
    for text in ["below", "top"] {
        let frozen = replica.create_snapshot(EPOCH, &name(text), 0, true);
        frozen.expect("a snapshot");
        write(&replica, 1, 1, 2);
    }
    let fetched = |first: u64, blocks: usize| {
        let (at, mut data) = (first * BLOCK as u64, vec![0xee; blocks * BLOCK]);
        replica.read(EPOCH, at, &mut data).expect("a read");
        let live = disk.take_fetched_ahead();
        let read = replica.read_layer(&name("top"), at, &mut data);
        read.expect("a read");
        assert_eq!(disk.take_fetched_ahead(), live);
        live
    };
    let [zero, one, two] = [0, 1, 2].map(|block| block * BLOCK as u64);
    assert_eq!(fetched(0, 4), [(zero, one), (one, one), (two, two)]);
    assert_eq!(fetched(2, 2), []);
}

/// Those who came before a sync began share it. Whoever came while it ran, or behind one that failed, gets one of its own.
#[test]
fn flushes_that_wait_for_the_same_turn_share_a_sync() {
    let disk = FaultyDisk::new();
    let replica = Arc::new(create(disk.clone(), 16 * BLOCK as u64));
    write(&replica, 0, 1, 1);
    let came_before = [replica.next_sync(), replica.next_sync()];
    let (meanwhile, came_during) = (replica.clone(), Arc::new(OnceLock::new()));
    let during = came_during.clone();
    disk.after_sync(1, move || {
        write(&meanwhile, 1, 1, 2);
        during.set(meanwhile.next_sync()).expect("one sync");
    });
    replica.sync_for(came_before[0]).expect("a sync");
    let operations = disk.operations();
    replica.sync_for(came_before[1]).expect("a shared one");
    assert_eq!(disk.operations(), operations);
    let came_during = *came_during.get().expect("it was called");
    replica.sync_for(came_during).expect("a sync");
    let too_late = [replica.next_sync(), replica.next_sync()];
    disk.set_fault(Fault::ErrorAt(0));
    assert!(replica.sync_for(too_late[0]).is_err());
    assert!(replica.sync_for(too_late[1]).is_err());
    drop(replica);
    disk.restart(|| 1);
    let replica = Replica::open(disk).expect("a replica");
    replica.open_epoch(EPOCH).expect("an epoch");
    assert_eq!((read(&replica, 0), read(&replica, 1)), (1, 2));
}

#[test]
fn damaged_replicas_are_not_opened() {
    let disk = FaultyDisk::new();
    drop(create(disk.clone(), 1 << 20));
    disk.rot("replica.meta", 40);
    assert!(matches!(
        Replica::open(disk.clone()),
        Err(OpenReplicaError::Metadata(_))
    ));
    disk.rot("replica.meta", 40);
    disk.remove("layer-0000000000000001.data")
        .expect("a removal");
    assert!(matches!(
        Replica::open(disk),
        Err(OpenReplicaError::Layer { .. })
    ));
}

/// Writers of an older epoch hammer the replica while a newer one opens it: once it has, not one more write lands.
#[test]
fn in_flight_writes_of_older_epochs_do_not_land_after_the_fence() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = RealDisk::create(&folder.path().join("v")).expect("a disk");
    let replica = Arc::new(create(disk, 1 << 20));
    for round in 0..20_u64 {
        let old = Epoch(1 + round);
        let writers: Vec<_> = (0..3)
            .map(|_| {
                let replica = replica.clone();
                std::thread::spawn(move || {
                    let mut written = 0_u64;
                    loop {
                        let data = [1 + (written % 200) as u8; BLOCK];
                        match replica.write(old, 0, &data, WriteOptions::default()) {
                            Ok(()) => written += 1,
                            Err(StoreError::Epoch(EpochRefusal::Stale { .. })) => return written,
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        let new = Epoch(2 + round);
        replica.open_epoch(new).expect("a newer epoch");
        replica
            .write(new, 0, &[255; BLOCK], WriteOptions::default())
            .expect("a write");
        let mut data = [0; BLOCK];
        for _ in 0..50 {
            replica.read(new, 0, &mut data).expect("a read");
            assert_eq!(data, [255; BLOCK], "a fenced write landed");
        }
        for writer in writers {
            writer.join().expect("a writer");
        }
    }
}
