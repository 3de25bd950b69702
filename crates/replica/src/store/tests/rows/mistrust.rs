//! What a replica remembers of writes that it may lack: failed syncs, restarts of its machine, ends that were not orderly.

use super::*;

#[test]
fn a_failed_sync_stops_the_replica() {
    let disk = FaultyDisk::new();
    let replica = create(disk.clone(), 1 << 20);
    write(&replica, 0, 1, 1);
    disk.set_fault(Fault::ErrorAt(0));
    assert!(replica.flush(EPOCH).is_err());
    for result in [
        replica.flush(EPOCH),
        replica.write(EPOCH, 0, &[0; 512], WriteOptions::default()),
    ] {
        assert!(
            matches!(result, Err(StoreError::Faulted { .. })),
            "{result:?}"
        );
    }
    assert!(!replica.status().expect("a status").fault.is_empty());
}

/// It syncs the file that flushes sync, and the kernel tells of a failure once.
#[test]
fn a_flush_behind_a_failed_expansion_tells_the_truth() {
    let mut refused = 0;
    for operation in 0.. {
        let disk = FaultyDisk::new();
        let replica = create(disk.clone(), 1 << 20);
        replica.flush(EPOCH).expect("a flush");
        write(&replica, 1, 1, 2);
        // Another one between the flush that an expansion begins with and the sync that it ends with.
        let replica = Arc::new(replica);
        let meanwhile = replica.clone();
        disk.after_sync(1, move || {
            let write = || meanwhile.write(EPOCH, 0, &[1; BLOCK], WriteOptions::default());
            // It may be the operation that fails.
            let _ = write().or_else(|_| write());
        });
        disk.set_fault(Fault::ErrorAt(operation));
        let expanded = replica.expand(EPOCH, 2 << 20);
        let flushed = replica.flush(EPOCH);
        refused += u32::from(expanded.is_err() && flushed.is_err());
        if disk.fault_is_set() {
            break;
        }
        drop(replica);
        // Nothing that was not synced survives.
        disk.restart(|| 1);
        if flushed.is_ok() {
            let replica = Replica::open(disk).expect("a replica");
            replica.open_epoch(EPOCH).expect("an epoch");
            let found = [read(&replica, 0), read(&replica, 1)];
            assert_eq!(found, [1, 2], "operation {operation}");
        }
    }
    assert!(refused > 0);
}

/// The next process finds all files in order, on the same machine; that writes may be missing is told until a rebuild, or an in-sync
/// record of an engine that found no better replica, settles it.
#[test]
fn a_failed_sync_is_remembered_by_the_next_process() {
    for staged in [false, true] {
        let disk = FaultyDisk::new();
        let replica = create(disk.clone(), 1 << 20);
        write(&replica, 0, 1, 1);
        if staged {
            // The newest metadata is in no file that is durable.
            let frozen = replica.freeze(EPOCH, &name("s"), 0, true);
            frozen.expect("a snapshot");
        }
        disk.set_fault(Fault::ErrorAt(0));
        assert!(replica.flush(EPOCH).is_err());
        drop(replica);
        let replica = Replica::open(disk).expect("a replica");
        let status = replica.status().expect("a status");
        assert!(status.restarted_since_opened, "{staged}");
        assert_eq!(status.layers, 1 + u32::from(staged), "nothing else is lost");
        replica.open_epoch(Epoch(2)).expect("an epoch");
        let begun = replica.rebuild_begin(Epoch(2), 1 << 20, &[], None);
        begun.expect("a rebuild");
        let status = replica.status().expect("a status");
        assert!(!status.restarted_since_opened, "it gets everything anew");
    }
}

/// On a disk that takes nothing any more.
#[test]
fn a_replica_is_not_opened_if_a_failed_sync_cannot_be_noted() {
    for staged in [false, true] {
        let disk = FaultyDisk::new();
        let replica = create(disk.clone(), 1 << 20);
        write(&replica, 0, 1, 1);
        if staged {
            let frozen = replica.freeze(EPOCH, &name("s"), 0, true);
            frozen.expect("a snapshot");
        }
        disk.set_pages_max(Some(disk.pages_used()));
        disk.set_fault(Fault::ErrorAt(0));
        assert!(replica.flush(EPOCH).is_err());
        drop(replica);
        disk.set_pages_max(None);
        let opened = Replica::open(disk);
        assert!(matches!(opened, Err(OpenReplicaError::Metadata(_))));
    }
}

/// The machine restarts under an engine that did not end in order: whoever opens next is told, until an in-sync record settles it.
#[test]
fn a_restart_of_the_machine_is_told_until_a_record_settles_it() {
    const FIRST: HostBoot = [1; 16];
    const SECOND: HostBoot = [2; 16];
    let disk = FaultyDisk::new();
    let open_in = |boot| Replica::open_in(disk.clone(), boot).expect("a replica");
    let restarted = |replica: &Replica<FaultyDisk>| {
        let status = replica.status().expect("a status");
        status.restarted_since_opened
    };
    let member = ReplicaName::new("r").expect("a name");
    let record = |clean| SyncMeta {
        replica: member.clone(),
        generation: 4,
        in_sync: vec![member.clone()],
        clean,
    };
    drop(Replica::create(disk.clone(), &spec(1 << 20)).expect("a replica"));

    let replica = open_in(FIRST);
    assert!(!restarted(&replica), "no engine has opened it yet");
    replica.open_epoch(EPOCH).expect("an epoch");
    assert!(!restarted(&open_in(FIRST)), "another process");
    let replica = open_in(SECOND);
    assert!(restarted(&replica), "before it is opened, too");
    replica.open_epoch(Epoch(2)).expect("an epoch");
    let replica = open_in(SECOND);
    replica.open_epoch(Epoch(3)).expect("an epoch");
    assert!(restarted(&replica), "the engine before did not get far");
    replica
        .set_sync_meta(Epoch(3), &record(false))
        .expect("a record");
    assert!(!restarted(&open_in(SECOND)), "that engine has chosen");

    replica
        .set_sync_meta(Epoch(3), &record(true))
        .expect("a record");
    let replica = open_in(FIRST);
    assert!(
        !restarted(&replica),
        "after an orderly end nothing is missing"
    );
    replica.open_epoch(Epoch(4)).expect("an epoch");
    assert!(!restarted(&replica));
    let replica = open_in(SECOND);
    assert!(restarted(&replica));
    replica.open_epoch(Epoch(5)).expect("an epoch");
    replica
        .rebuild_begin(Epoch(5), 1 << 20, &[], None)
        .expect("a rebuild");
    assert!(!restarted(&replica), "it gets everything anew");
}

#[test]
fn an_open_ends_a_clean_record() {
    let replica = create(FaultyDisk::new(), 1 << 20);
    let member = ReplicaName::new("r").expect("a name");
    let sync = SyncMeta {
        replica: member.clone(),
        generation: 4,
        in_sync: vec![member],
        clean: true,
    };
    replica.set_sync_meta(EPOCH, &sync).expect("a record");
    let clean = || {
        replica
            .status()
            .expect("a status")
            .sync
            .is_some_and(|sync| sync.clean)
    };
    assert!(clean());
    replica.open_epoch(EPOCH).expect("the same again");
    assert!(!clean());
    let status = replica.status().expect("a status");
    assert_eq!((status.sync_epoch, status.accepted_epoch), (EPOCH, EPOCH));
}
