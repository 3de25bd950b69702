//! What goes on while a snapshot is staged and its flush takes long, and what of it a kill and a loss of power leave.

use std::sync::mpsc;

use super::*;

const FIRST_BOOT: HostBoot = [1; 16];
const SECOND_BOOT: HostBoot = [2; 16];
const NEXT: Epoch = Epoch(2);
const PATIENCE: Duration = Duration::from_secs(20);

fn open(disk: &FaultyDisk, boot: HostBoot) -> Replica<FaultyDisk> {
    Replica::open_in(disk.clone(), boot).expect("a replica")
}

/// A replica that an engine has opened, with snapshot `old` durable.
fn opened(disk: &FaultyDisk) -> Arc<Replica<FaultyDisk>> {
    drop(create(disk.clone(), 1 << 20));
    let replica = open(disk, FIRST_BOOT);
    replica.open_epoch(EPOCH).expect("an epoch");
    write(&replica, 0, 1, 1);
    snapshot(&replica, "old");
    Arc::new(replica)
}

/// Does it while no flush comes to its end.
fn beside_a_slow_flush(
    replica: &Arc<Replica<FaultyDisk>>,
    act: impl FnOnce(&Replica<FaultyDisk>) + Send + 'static,
) {
    let held = replica.hold_flushes();
    let (done, is_done) = mpsc::channel();
    let actor = {
        let replica = replica.clone();
        std::thread::spawn(move || {
            act(&replica);
            done.send(()).expect("somebody waits");
        })
    };
    let waited = is_done.recv_timeout(PATIENCE);
    drop(held);
    actor.join().expect("all of it is answered");
    waited.expect("it waits for a flush");
}

fn record() -> SyncMeta {
    let member = ReplicaName::new("r").expect("a name");
    SyncMeta {
        replica: member.clone(),
        generation: 5,
        in_sync: vec![member],
        clean: false,
    }
}

/// Everything that an engine or its agent expects an answer to within seconds.
fn everything_that_is_short(replica: &Replica<FaultyDisk>) {
    let frozen = replica.freeze(EPOCH, &name("first"), 0, true);
    frozen.expect("a snapshot");
    replica.fence(NEXT).expect("a fence");
    replica.open_epoch(NEXT).expect("an epoch");
    replica.set_sync_meta(NEXT, &record()).expect("a record");
    let deleted = replica.delete_snapshot(NEXT, &name("old"));
    deleted.expect("a deletion");
    let data = [2; BLOCK];
    let written = replica.write(NEXT, 0, &data, WriteOptions::default());
    written.expect("a write");
    let frozen = replica.freeze(NEXT, &name("second"), 0, true);
    frozen.expect("a snapshot");
    let deleted = replica.delete_snapshot(NEXT, &name("first"));
    deleted.expect("a deletion");
}

/// Names, with a minus before those that are marked as removed.
fn snapshots(replica: &Replica<FaultyDisk>) -> String {
    let state = replica.shared();
    let mut found: Vec<String> = Vec::new();
    for layer in state.metadata.tree.layers().values() {
        if let Some(name) = &layer.name {
            let mark = if layer.removed { "-" } else { "" };
            found.push(format!("{mark}{name}"));
        }
    }
    found.sort();
    found.join(" ")
}

fn check(replica: &Replica<FaultyDisk>, expected: &str) {
    assert_eq!(snapshots(replica), expected);
    assert_eq!(replica.accepted_epoch(), NEXT, "it was answered");
    let status = replica.status().expect("a status");
    assert_eq!(status.sync.map(|sync| sync.generation), Some(5));
}

#[test]
fn nothing_short_waits_for_the_flush_of_a_snapshot() {
    let all = "-first -old second";
    // What is left of it: by a kill, by a loss of power, by one behind a flush.
    for (flushed, boot, expected) in [
        (false, FIRST_BOOT, all),
        (false, SECOND_BOOT, "-old"),
        (true, SECOND_BOOT, all),
    ] {
        let disk = FaultyDisk::new();
        let replica = opened(&disk);
        beside_a_slow_flush(&replica, everything_that_is_short);
        check(&replica, all);
        if flushed {
            replica.flush(NEXT).expect("a flush");
        }
        drop(replica);
        if boot == SECOND_BOOT {
            disk.restart(|| 0);
        }
        let replica = open(&disk, boot);
        check(&replica, expected);
        // And again, behind whatever the opening has done.
        drop(replica);
        check(&open(&disk, boot), expected);
    }
}

/// A kill finds the staged snapshot, and the next engine is not held up by it either.
#[test]
fn who_opens_it_after_a_kill_waits_for_no_flush() {
    let disk = FaultyDisk::new();
    let replica = opened(&disk);
    let frozen = replica.freeze(EPOCH, &name("first"), 0, true);
    frozen.expect("a snapshot");
    drop(replica);
    let replica = Arc::new(open(&disk, FIRST_BOOT));
    beside_a_slow_flush(&replica, |replica| {
        replica.open_epoch(NEXT).expect("an epoch");
        replica.set_sync_meta(NEXT, &record()).expect("a record");
        let deleted = replica.delete_snapshot(NEXT, &name("first"));
        deleted.expect("a deletion");
    });
    check(&replica, "-first old");
    drop(replica);
    disk.restart(|| 0);
    check(&open(&disk, SECOND_BOOT), "old");
}

/// Both are named in the same file, and what the second one holds was not synced by the flush that began before it.
#[test]
fn a_snapshot_that_overtakes_a_flush_takes_nothing_from_it() {
    let disk = FaultyDisk::new();
    let replica = opened(&disk);
    write(&replica, 0, 1, 2);
    let frozen = replica.freeze(EPOCH, &name("first"), 0, true);
    frozen.expect("a snapshot");
    let meanwhile = replica.clone();
    disk.after_sync(1, move || {
        write(&meanwhile, 1, 1, 3);
        let frozen = meanwhile.freeze(EPOCH, &name("second"), 0, true);
        frozen.expect("a snapshot");
    });
    replica.flush(EPOCH).expect("a flush");
    drop(replica);
    disk.restart(|| 0);
    let replica = open(&disk, SECOND_BOOT);
    replica.open_epoch(EPOCH).expect("an epoch");
    assert_eq!(snapshots(&replica), "first old second");
    for (of, blocks) in [("first", [2, 0]), ("second", [2, 3])] {
        for (block, expected) in (0..).zip(blocks) {
            let mut data = [0xee; BLOCK];
            let read = replica.read_layer(&name(of), block * BLOCK as u64, &mut data);
            read.expect("a read");
            assert_eq!(data, [expected; BLOCK], "{of} {block}");
        }
    }
}

/// It is in no durable file, and looks to the next process like all the rest.
#[test]
fn an_epoch_that_a_kill_left_is_durable_once_it_is_answered() {
    for staged in [false, true] {
        let mut left = 0;
        for operation in 0.. {
            let disk = FaultyDisk::new();
            let replica = opened(&disk);
            if staged {
                let frozen = replica.freeze(EPOCH, &name("first"), 0, true);
                frozen.expect("a snapshot");
            }
            disk.set_fault(Fault::CrashAfter(operation));
            let answered = replica.open_epoch(NEXT).is_ok();
            drop(replica);
            disk.kill();
            let replica = open(&disk, FIRST_BOOT);
            left += u32::from(!answered && replica.accepted_epoch() == NEXT);
            replica.open_epoch(NEXT).expect("the same again");
            drop(replica);
            disk.restart(|| 0);
            let found = open(&disk, SECOND_BOOT).accepted_epoch();
            assert_eq!(found, NEXT, "staged {staged}, operation {operation}");
            if answered {
                break;
            }
        }
        assert!(left > 0);
    }
}

/// The next process finds the snapshot in its place, and writes to the head above it.
#[test]
fn what_is_flushed_behind_a_killed_flush_stays() {
    for operation in 0.. {
        let disk = FaultyDisk::new();
        let replica = opened(&disk);
        let frozen = replica.freeze(EPOCH, &name("first"), 0, true);
        frozen.expect("a snapshot");
        disk.set_fault(Fault::CrashAfter(operation));
        let flushed = replica.flush(EPOCH).is_ok();
        drop(replica);
        disk.kill();
        let replica = open(&disk, FIRST_BOOT);
        replica.open_epoch(EPOCH).expect("the same again");
        write(&replica, 0, 1, 2);
        replica.flush(EPOCH).expect("a flush");
        drop(replica);
        disk.restart(|| 0);
        let replica = open(&disk, SECOND_BOOT);
        replica.open_epoch(EPOCH).expect("the same again");
        assert_eq!(read(&replica, 0), 2, "operation {operation}");
        assert_eq!(snapshots(&replica), "first old", "operation {operation}");
        if flushed {
            break;
        }
    }
}

/// The next process reads such a file as it was written, and the kernel does not say again that the disk lacks it.
#[test]
fn a_staged_file_whose_sync_failed_is_written_anew() {
    let settle = |replica: &Replica<FaultyDisk>, by_an_engine: bool| {
        if by_an_engine {
            let opened = replica.open_epoch(EPOCH);
            opened.and_then(|()| replica.flush(EPOCH)).is_ok()
        } else {
            replica.snapshot_digest(&name("old"), true).is_ok()
        }
    };
    for by_an_engine in [false, true] {
        // More than a flush needs.
        for failed in 0..8 {
            for operation in 0.. {
                let disk = FaultyDisk::new();
                let replica = opened(&disk);
                let frozen = replica.freeze(EPOCH, &name("first"), 0, true);
                frozen.expect("a snapshot");
                disk.set_fault(Fault::ErrorAt(failed));
                let _ = replica.flush(EPOCH);
                drop(replica);
                disk.kill();
                let replica = open(&disk, FIRST_BOOT);
                disk.set_fault(Fault::CrashAfter(operation));
                let settled = settle(&replica, by_an_engine);
                drop(replica);
                disk.restart(|| 1);
                let opened = Replica::open_in(disk, SECOND_BOOT).map(drop);
                opened.unwrap_or_else(|error| {
                    panic!("engine {by_an_engine}, {failed}, {operation}: {error}")
                });
                if settled {
                    break;
                }
            }
        }
    }
}
