//! Rebuilds from a source replica to a target, the way an engine drives them.

use block_core::wire::layer::HASH_CHUNK_BYTES;
use block_core::wire::request::{ExtentScope, RebuildLayer};
use block_core::wire::{ExtentKind, LayerRef, ReplicaMode, SyncMeta, VolumeKey};
use block_core::{Epoch, ReplicaName, SnapshotName, VolumeName};
use proptest::prelude::*;

use crate::disk::faulty::{Fault, FaultyDisk};
use crate::store::{Replica, ReplicaSpec, StoreError, WriteOptions};

const EPOCH: Epoch = Epoch(1);
const SIZE_BYTES: u64 = 40 * 4096;
const SECTOR: u64 = 512;

type Faulty = Replica<FaultyDisk>;

fn name(text: &str) -> SnapshotName {
    SnapshotName::new(text).expect("a name")
}

fn create(disk: FaultyDisk) -> Faulty {
    let volume = VolumeName::new("v").expect("a name");
    let spec = ReplicaSpec {
        volume,
        key: VolumeKey::from_bytes([0; 32]),
        size_bytes: SIZE_BYTES,
    };
    let replica = Replica::create(disk, &spec).expect("a replica");
    replica.open_epoch(EPOCH).expect("an epoch");
    replica
}

fn plan(source: &Faulty) -> (Vec<RebuildLayer>, Option<SnapshotName>) {
    let mut layers = Vec::new();
    let mut head_parent = None;
    for info in source.list_layers().expect("layers") {
        match info.layer {
            LayerRef::Head => head_parent = info.parent,
            LayerRef::Snapshot(name) => layers.push(RebuildLayer {
                name,
                parent: info.parent,
                created_unix_ms: info.created_unix_ms,
                user_created: info.user_created,
                removed: info.removed,
                size_bytes: info.size_bytes,
            }),
        }
    }
    (layers, head_parent)
}

/// Copies the chunks of one layer that differ. Returns how many.
fn copy_layer(source: &Faulty, target: &Faulty, layer: &SnapshotName) -> Result<usize, StoreError> {
    let length_bytes = SIZE_BYTES.next_multiple_of(HASH_CHUNK_BYTES);
    let theirs = source.layer_hashes(layer, 0, length_bytes)?;
    let ours = target.layer_hashes(layer, 0, length_bytes)?;
    let extents = source.layer_extents(layer, ExtentScope::Own, 0)?.extents;
    let mut copied = 0;
    for (chunk, _) in theirs
        .iter()
        .zip(&ours)
        .enumerate()
        .filter(|(_, (theirs, ours))| theirs != ours)
    {
        copied += 1;
        let first = chunk as u64 * HASH_CHUNK_BYTES;
        let end = (first + HASH_CHUNK_BYTES).min(SIZE_BYTES);
        target.rebuild_mark(EPOCH, layer, first, end - first, None)?;
        for extent in &extents {
            let at = extent.offset_bytes.max(first);
            let until = (extent.offset_bytes + extent.length_bytes).min(end);
            if at >= until {
                continue;
            }
            match extent.kind {
                ExtentKind::Zero => {
                    target.rebuild_mark(EPOCH, layer, at, until - at, Some(ExtentKind::Zero))?;
                }
                ExtentKind::Data => {
                    let mut data = vec![0; (until - at) as usize];
                    source.read_layer(layer, at, &mut data)?;
                    target.rebuild_write(EPOCH, layer, at, &data)?;
                }
            }
        }
    }
    Ok(copied)
}

fn rebuild(
    source: &Faulty,
    target: &Faulty,
    live: &[Operation],
    mark: &str,
) -> Result<usize, StoreError> {
    source
        .create_snapshot(EPOCH, &name(mark), 0, false)
        .expect("the source is well");
    let (layers, head_parent) = plan(source);
    target.rebuild_begin(EPOCH, SIZE_BYTES, &layers, head_parent.as_ref())?;
    assert!(matches!(
        target.rebuild_commit(EPOCH),
        Err(StoreError::VerifyFirst)
    ));
    let mut live = live.iter();
    let mut copied = 0;
    for layer in &layers {
        if let Some(operation) = live.next() {
            apply_both(source, target, operation)?;
        }
        copied += copy_layer(source, target, &layer.name)?;
    }
    for operation in live {
        apply_both(source, target, operation)?;
    }
    let newest = name(mark);
    let digest = source.snapshot_digest(&newest, true).expect("a digest");
    target.rebuild_verify(EPOCH, &newest, digest)?;
    target.rebuild_commit(EPOCH)?;
    Ok(copied)
}

#[derive(Clone, Debug)]
enum Operation {
    Write { first: u64, sectors: u64, tag: u8 },
    Zero { first: u64, sectors: u64 },
    Snapshot(u8),
}

fn operation() -> impl Strategy<Value = Operation> {
    let range = (0_u64..300, 1_u64..20);
    let blocks = (0_u64..36, 1_u64..4).prop_map(|(first, blocks)| (first * 8, blocks * 8));
    (prop_oneof![range, blocks], any::<u8>()).prop_map(|((first, sectors), tag)| match tag % 4 {
        0 => Operation::Zero { first, sectors },
        1 if tag > 200 => Operation::Snapshot(tag),
        _ => Operation::Write {
            first,
            sectors,
            tag,
        },
    })
}

fn apply(replica: &Faulty, operation: &Operation) -> Result<(), StoreError> {
    match operation {
        Operation::Write {
            first,
            sectors,
            tag,
        } => {
            let data = vec![*tag; (sectors * SECTOR) as usize];
            replica.write(EPOCH, first * SECTOR, &data, WriteOptions::default())
        }
        Operation::Zero { first, sectors } => {
            replica.write_zeroes(EPOCH, first * SECTOR, sectors * SECTOR)
        }
        Operation::Snapshot(tag) => {
            match replica.create_snapshot(EPOCH, &name(&format!("u{tag}")), 0, true) {
                // The same one was drawn before.
                Err(StoreError::Tree(_)) => Ok(()),
                result => result,
            }
        }
    }
}

fn apply_both(source: &Faulty, target: &Faulty, operation: &Operation) -> Result<(), StoreError> {
    apply(source, operation).expect("the source is well");
    apply(target, operation)
}

fn live(replica: &Faulty) -> Vec<u8> {
    let mut data = vec![0xee; SIZE_BYTES as usize];
    replica.read(EPOCH, 0, &mut data).expect("a read");
    data
}

fn assert_equal(source: &Faulty, target: &Faulty) {
    assert_eq!(target.mode(), ReplicaMode::Ready);
    assert!(live(source) == live(target), "live volumes differ");
    let (layers, _) = plan(source);
    for layer in layers.iter().filter(|layer| !layer.removed) {
        let digest = |replica: &Faulty| {
            replica
                .snapshot_digest(&layer.name, true)
                .expect("a digest")
        };
        assert_eq!(digest(source), digest(target), "snapshot {}", layer.name);
    }
}

proptest! {
    #![proptest_config(super::cases(150))]
    /// The target is rebuilt while writes go on, crashes somewhere, is rebuilt again, and is equal in the end.
    #[test]
    fn a_rebuilt_replica_is_equal(
        seed in any::<u64>(),
        before in proptest::collection::vec(proptest::collection::vec(operation(), 0..8), 1..4),
        stale in proptest::collection::vec(operation(), 0..6),
        during in proptest::collection::vec(operation(), 0..12),
        after in proptest::collection::vec(operation(), 0..6),
        crash_in in 0_u64..400,
    ) {
        let (source_disk, target_disk) = (FaultyDisk::new(), FaultyDisk::new());
        let (source, mut target) = (create(source_disk), create(target_disk.clone()));
        // Both have the first snapshot in common; then the target falls behind, with writes of its own in its head.
        for (number, operations) in before.iter().enumerate() {
            for operation in operations {
                apply(&source, operation).expect("a write");
                if number == 0 {
                    apply(&target, operation).expect("a write");
                }
            }
            source.create_snapshot(EPOCH, &name(&format!("s{number}")), 0, true).expect("a snapshot");
            if number == 0 {
                target.create_snapshot(EPOCH, &name("s0"), 0, true).expect("a snapshot");
            }
        }
        for operation in &stale {
            apply(&target, operation).expect("a write");
        }
        target_disk.set_fault(Fault::CrashAfter(crash_in));
        if rebuild(&source, &target, &during, "r1").is_err() {
            drop(target);
            let mut random = seed | 1;
            target_disk.restart(|| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                random >> 33
            });
            target = Replica::open(target_disk.clone()).expect("a replica opens after any crash");
            if target.mode() == ReplicaMode::Rebuilding {
                let refused = apply(&target, &Operation::Zero { first: 0, sectors: 8 });
                prop_assert!(matches!(refused, Err(StoreError::NoRebuild)), "its head misses writes");
                prop_assert!(target.read(EPOCH, 0, &mut [0; 512]).is_err());
            }
            rebuild(&source, &target, &after, "r2").expect("the second rebuild meets no crash");
        } else {
            target_disk.set_fault(Fault::None);
            // The power may have gone right behind the commit.
            prop_assume!(!target_disk.has_crashed());
        }
        assert_equal(&source, &target);
        target.flush(EPOCH).expect("a flush");
        drop(target);
        let target = Replica::open(target_disk).expect("a replica");
        assert_equal(&source, &target);
    }
}

/// The kernel shows as written what a failed sync did not write, also to the next process: hashes of it prove nothing. An in-sync
/// record, of an engine that found no better replica, does not write it either.
#[test]
fn a_rebuild_behind_a_failed_sync_copies_everything() {
    let member = ReplicaName::new("r").expect("a name");
    let record = SyncMeta {
        replica: member.clone(),
        generation: 1,
        in_sync: vec![member],
        clean: false,
    };
    for recorded in [false, true] {
        let disk = FaultyDisk::new();
        let (source, target) = (create(FaultyDisk::new()), create(disk.clone()));
        let (first, sectors, tag) = (0, 64, 1);
        for replica in [&source, &target] {
            apply(
                replica,
                &Operation::Write {
                    first,
                    sectors,
                    tag,
                },
            )
            .expect("a write");
            let frozen = replica.freeze(EPOCH, &name("common"), 0, true);
            frozen.expect("a snapshot");
        }
        source.flush(EPOCH).expect("a flush");
        // Behind the marks: the data of the snapshot.
        disk.set_fault(Fault::ErrorAt(1));
        assert!(target.flush(EPOCH).is_err());
        drop(target);
        let target = Replica::open(disk.clone()).expect("a replica");
        assert!(live(&target).iter().all(|byte| *byte == 0), "as on disk");
        if recorded {
            let set = target.set_sync_meta(EPOCH, &record);
            set.expect("a record");
        }
        let (layers, head_parent) = plan(&source);
        let begun = target.rebuild_begin(EPOCH, SIZE_BYTES, &layers, head_parent.as_ref());
        assert_eq!(begun.expect("a begin"), [], "{recorded}");
        rebuild(&source, &target, &[], "r").expect("a rebuild");
        assert_equal(&source, &target);
        drop(target);
        // Nothing that was not synced survives.
        disk.restart(|| 1);
        let target = Replica::open(disk).expect("a replica");
        target.open_epoch(EPOCH).expect("an epoch");
        assert_equal(&source, &target);
    }
}

#[test]
fn only_what_differs_is_copied_and_a_wrong_copy_does_not_join() {
    let (source, target) = (create(FaultyDisk::new()), create(FaultyDisk::new()));
    for replica in [&source, &target] {
        apply(
            replica,
            &Operation::Write {
                first: 0,
                sectors: 64,
                tag: 1,
            },
        )
        .expect("a write");
        replica
            .create_snapshot(EPOCH, &name("common"), 0, true)
            .expect("a snapshot");
    }
    apply(
        &source,
        &Operation::Write {
            first: 8,
            sectors: 8,
            tag: 2,
        },
    )
    .expect("a write");
    assert_eq!(
        rebuild(&source, &target, &[], "r").expect("a rebuild"),
        1,
        "one chunk of one layer"
    );
    assert_equal(&source, &target);
    // Again, with a layer that is not as the source's.
    source
        .create_snapshot(EPOCH, &name("r2"), 0, false)
        .expect("a snapshot");
    let (layers, head_parent) = plan(&source);
    let existing = target
        .rebuild_begin(EPOCH, SIZE_BYTES, &layers, head_parent.as_ref())
        .expect("a begin");
    assert_eq!(existing, [name("common"), name("r")]);
    target
        .rebuild_write(EPOCH, &name("common"), 0, &[9; 4096])
        .expect("a copy");
    let digest = source
        .snapshot_digest(&name("r2"), false)
        .expect("a digest");
    let verified = target.rebuild_verify(EPOCH, &name("r2"), digest);
    assert!(
        matches!(verified, Err(StoreError::NotVerified { .. })),
        "{verified:?}"
    );
    assert!(matches!(
        target.rebuild_commit(EPOCH),
        Err(StoreError::VerifyFirst)
    ));
    // A change behind a verification makes it void.
    copy_layer(&source, &target, &name("common")).expect("a copy");
    target
        .rebuild_verify(EPOCH, &name("r2"), digest)
        .expect("equal now");
    target
        .rebuild_write(EPOCH, &name("common"), 0, &[9; 4096])
        .expect("a copy");
    assert!(matches!(
        target.rebuild_commit(EPOCH),
        Err(StoreError::VerifyFirst)
    ));
}
