//! Members that fail and come back.

use block_core::wire::{ReplicaMode, Reply, Request, StatusCode};
use block_core::{BLOCK_BYTES, SnapshotName};
use engine::control::Command;
use engine::core::{CommandId, CommitVerdict, Event};

use crate::replica::Refuses;
use crate::scripted::{DEADLINE_US, GRACE_US, LEASE_US, Script};

/// The last replica refuses a write, is lost, comes back and takes it: it is not lost once more for what it refused before.
#[test]
fn a_write_that_is_repeated_with_success_was_not_refused() {
    let mut script = Script::new(2);
    let engine = script.start_engine(1, &[0, 1], &[]);
    script.records = false;
    script.replicas[0].full = true;
    script.cut.insert((engine, 1));
    let write = script.write(engine, 3, 7);
    script.pass(2 * DEADLINE_US);
    assert!(
        !script.is_done(engine, write),
        "replica 1 is still recorded"
    );
    script.replicas[0].full = false;
    script.reset(engine, 0);
    script.pass(LEASE_US);
    let generation = script.engines[engine].proposals[0].generation;
    let verdict = CommitVerdict::Recorded;
    script.tell(
        engine,
        Event::Commit {
            generation,
            verdict,
        },
    );
    assert!(script.is_done(engine, write), "replica 0 has it now");
    let status = script.engines[engine].core.status();
    assert!(status.members[0].connected, "{:?}", status.members[0]);
}

/// The machine of the last replica restarts under a living engine, and has forgotten what was not on its disk.
#[test]
fn no_flush_covers_what_a_restarted_machine_has_lost() {
    let flushed_after = |flushes_before: bool, restarts: bool| {
        let mut script = Script::new(1);
        let engine = script.start_engine(1, &[0], &[]);
        assert!(script.written(engine, 3, 7));
        if flushes_before {
            let flush = script.flush(engine);
            assert!(script.is_done(engine, flush));
        }
        script.replicas[0].host_boot += u8::from(restarts);
        script.reset(engine, 0);
        script.pass(LEASE_US);
        let flush = script.flush(engine);
        script.pass(LEASE_US);
        script.is_done(engine, flush)
    };
    assert!(
        flushed_after(false, false),
        "another process, the same machine"
    );
    assert!(flushed_after(true, true), "it was on the disk");
    assert!(!flushed_after(false, true), "it is gone");
}

/// The engine is killed and the machine of one of its replicas restarts at the same moment: what was acknowledged is on the
/// other, whichever of them the engine would have asked first, and however often engines are killed before one gets to act.
#[test]
fn a_restarted_machine_is_not_believed_where_another_went_on() {
    for restarted in [0, 1] {
        for killed_early in [false, true] {
            let mut script = Script::new(2);
            let killed = script.start_engine(1, &[0, 1], &[]);
            assert!(script.written(killed, 3, 7));
            assert!(script.replicas[restarted].restart_machine(script.now));
            if killed_early {
                // It has opened the restarted one, and the other never.
                let intact = 1 - restarted;
                script.start_engine(1, &[0, 1], &[intact]);
            }
            let engine = script.start_engine(1, &[0, 1], &[]);
            script.pass(2 * LEASE_US);
            let read = script.read(engine, 3);
            assert_eq!(script.found(engine, read), Some(7), "{restarted}");
            let status = script.engines[engine].core.status();
            assert_eq!(status.in_sync, [format!("r{}", 1 - restarted)]);
            let member = &status.members[restarted];
            let why = member.trouble.as_deref().unwrap_or_default();
            assert!(why.contains("restarted"), "{member:?}");
        }
    }
}

/// An engine that has seen only the restarted one, left another behind and was killed then, has settled nothing: the third may
/// have what the first lacks.
#[test]
fn a_restart_is_remembered_until_all_members_were_seen() {
    let mut script = Script::new(3);
    let killed = script.start_engine(1, &[0, 1, 2], &[]);
    assert!(script.written(killed, 3, 7));
    assert!(script.replicas[0].restart_machine(script.now));
    script.cut.extend((0..3).map(|replica| (killed, replica)));
    script.pass(2 * LEASE_US);
    script.written_off.insert(1);
    let early = script.start_engine(1, &[0, 1, 2], &[1, 2]);
    script.pass(GRACE_US / 2);
    let status = script.engines[early].core.status();
    assert_eq!(status.in_sync, ["r0", "r2"], "r1 was not waited for");
    script.cut.extend((0..3).map(|replica| (early, replica)));
    let engine = script.start_engine(2, &[0, 2], &[]);
    script.pass(2 * LEASE_US);
    assert_eq!(script.engines[engine].core.status().in_sync, ["r2"]);
    let read = script.read(engine, 3);
    assert_eq!(script.found(engine, read), Some(7));
}

/// Where all were restarted, none is better than another, and the volume goes on with all of them.
#[test]
fn restarted_machines_go_on_where_no_other_is_left() {
    let mut script = Script::new(2);
    let killed = script.start_engine(1, &[0, 1], &[]);
    assert!(script.written(killed, 3, 7));
    let flush = script.flush(killed);
    assert!(script.is_done(killed, flush));
    assert!(script.written(killed, 4, 8));
    for replica in &mut script.replicas {
        replica.restart_machine(script.now);
    }
    let engine = script.start_engine(1, &[0, 1], &[]);
    script.pass(2 * LEASE_US);
    let status = script.engines[engine].core.status();
    assert_eq!(status.in_sync, ["r0", "r1"]);
    let read = script.read(engine, 3);
    assert_eq!(script.found(engine, read), Some(7), "it was flushed");

    // From here on only what happens next counts: one restarts, and the other has what was acknowledged since.
    assert!(script.written(engine, 4, 9));
    assert!(script.replicas[0].restart_machine(script.now));
    let next = script.start_engine(1, &[0, 1], &[]);
    script.pass(2 * LEASE_US);
    assert_eq!(script.engines[next].core.status().in_sync, ["r1"]);
    let read = script.read(next, 4);
    assert_eq!(script.found(next, read), Some(9));
}

/// A machine may restart as it likes after an orderly end.
#[test]
fn a_restart_after_an_orderly_end_costs_nothing() {
    let mut script = Script::new(2);
    let first = script.start_engine(1, &[0, 1], &[]);
    assert!(script.written(first, 3, 7));
    let id = CommandId(1);
    let command = Command::Shutdown;
    script.tell(first, Event::Command { id, command });
    script.pass(LEASE_US);
    script.replicas[0].restart_machine(script.now);
    let next = script.start_engine(1, &[0, 1], &[]);
    script.pass(LEASE_US);
    let status = script.engines[next].core.status();
    assert_eq!(status.in_sync, ["r0", "r1"]);
    assert!(status.tasks.is_empty(), "nothing to compare: {status:?}");
}

/// A rebuild's first attempt loses its source while the target has not begun yet; the second one succeeds; then the first
/// one's beginning arrives.
#[test]
fn a_rebuild_that_broke_off_does_not_begin_behind_the_next_one() {
    let mut script = Script::new(3);
    let engine = script.start_engine(1, &[0, 1], &[]);
    let written = script.write(engine, 3, 7);
    assert!(script.is_done(engine, written));
    script.hold_begin_of = Some(2);
    let command = Command::Rebuild {
        name: "r2".into(),
        address: "2".into(),
    };
    let id = CommandId(1);
    script.tell(engine, Event::Command { id, command });
    script.pass(LEASE_US);
    assert!(script.hold_begin_of.is_none(), "it is on its way");
    script.reset(engine, 0);
    script.pass(10 * LEASE_US);
    let status = script.engines[engine].core.status();
    assert_eq!(status.in_sync, ["r1", "r2"], "the second attempt");
    assert!(status.tasks.is_empty());
    let late = script.release();
    assert!(
        matches!(&late, Reply::Failed(failure) if failure.code == StatusCode::Superseded),
        "{late:?}"
    );
    assert_eq!(script.replicas[2].mode, ReplicaMode::Ready);
    assert_eq!(script.replicas[2].live(3), 7);
}

/// Writers are held back until all members have frozen their heads, and not until those are flushed; the command is
/// answered when they are.
#[test]
fn a_snapshot_is_flushed_while_writes_go_on() {
    let snapshot = |flushes_left| {
        let mut script = Script::new(2);
        let engine = script.start_engine(1, &[0, 1], &[]);
        script.flushes_left = flushes_left;
        let command = Command::Snapshot {
            name: "s".into(),
            created_unix_ms: 1,
        };
        let id = CommandId(1);
        script.tell(engine, Event::Command { id, command });
        let before = script.write(engine, 3, 7);
        script.pass(LEASE_US);
        let behind = script.write(engine, 3, 8);
        assert!(script.is_done(engine, before));
        assert!(script.is_done(engine, behind), "nothing holds it back");
        let frozen = script.replicas.iter().all(|it| it.layer_count() == 2);
        assert!(frozen, "both have the snapshot");
        script.engines[engine].commands.get(&id).copied()
    };
    assert_eq!(snapshot(None), Some(true));
    // The flushes before are answered, those behind are not.
    assert_eq!(snapshot(Some(2)), None);
}

fn snapshot(script: &mut Script, engine: usize, name: &str) {
    let command = Command::Snapshot {
        name: name.into(),
        created_unix_ms: 1,
    };
    let id = CommandId(script.now + 100);
    script.tell(engine, Event::Command { id, command });
    script.pass(LEASE_US);
    assert_eq!(script.engines[engine].commands.get(&id), Some(&true));
}

fn is_comparing(script: &Script, engine: usize) -> bool {
    let tasks = script.engines[engine].core.status().tasks;
    tasks.iter().any(|task| task.kind.starts_with("compare"))
}

/// Two engines, the first of which has been killed while one of its replicas had done a request and the other had not.
fn killed_after_one_replica_did(request: Request) -> (Script, usize) {
    let mut script = Script::new(3);
    let old = script.start_engine(1, &[0, 1, 2], &[]);
    assert!(script.written(old, 3, 7));
    snapshot(&mut script, old, "a");
    assert!(script.written(old, 3, 8));
    snapshot(&mut script, old, "b");
    script.cut.extend([(old, 0), (old, 1), (old, 2)]);
    let tenure = script.replicas[0].accepted;
    let done = script.replicas[0].execute(script.now, tenure, request);
    assert!(matches!(done, Reply::Done), "{done:?}");
    let new = script.start_engine(1, &[0, 1, 2], &[]);
    script.pass(20 * LEASE_US);
    assert!(script.engines[new].serving && !is_comparing(&script, new));
    (script, new)
}

/// All members still have the same snapshots then; only what their live volume builds on differs.
#[test]
fn a_revert_that_was_cut_short_leaves_nobody_behind_who_shows_something_else() {
    let name = SnapshotName::new("a").expect("a name");
    let (script, engine) = killed_after_one_replica_did(Request::SnapshotRevert { name });
    assert_eq!(script.replicas[0].live(3), 7, "it is reverted");
    let status = script.engines[engine].core.status();
    assert_eq!(status.in_sync, ["r1", "r2"], "as most have it");
}

#[test]
fn a_deletion_that_was_cut_short_is_brought_to_its_end() {
    let name = SnapshotName::new("a").expect("a name");
    let (script, engine) = killed_after_one_replica_did(Request::SnapshotDelete { name });
    let status = script.engines[engine].core.status();
    assert_eq!(status.in_sync, ["r0", "r1", "r2"]);
    for replica in &script.replicas {
        assert_eq!(replica.layer_count(), 2, "b and the head are left");
        assert_eq!(replica.live(3), 8);
    }
}

/// A comparison needs a snapshot. Until its members have room for one, reads stay with one of them, room can be made, and no end is
/// an orderly one.
#[test]
fn a_comparison_waits_for_room_and_lets_it_be_made() {
    let mut script = Script::new(2);
    let killed = script.start_engine(1, &[0, 1], &[]);
    assert!(script.written(killed, 3, 7));
    for replica in &mut script.replicas {
        let snapshots = |request: &Request| matches!(request, Request::SnapshotCreate { .. });
        replica.refuses = Some(Refuses {
            what: snapshots,
            code: StatusCode::LimitReached,
        });
    }
    let engine = script.start_engine(1, &[0, 1], &[]);
    script.pass(3_000_000);
    assert!(script.engines[engine].serving, "nobody waits for it");
    assert!(is_comparing(&script, engine), "it is not given up");
    let purge = CommandId(1);
    let command = Command::Purge;
    script.tell(engine, Event::Command { id: purge, command });
    assert_eq!(script.engines[engine].commands.get(&purge), Some(&true));
    for replica in &mut script.replicas {
        replica.refuses = None;
    }
    script.pass(2_000_000);
    assert!(!is_comparing(&script, engine));
    let status = script.engines[engine].core.status();
    assert_eq!(status.in_sync, ["r0", "r1"]);
}

#[test]
fn a_replica_that_cannot_read_what_it_has_does_not_hold_up_a_comparison() {
    let mut script = Script::new(2);
    let killed = script.start_engine(1, &[0, 1], &[]);
    assert!(script.written(killed, 3, 7));
    let hashes = |request: &Request| matches!(request, Request::LayerHashes { .. });
    script.replicas[0].refuses = Some(Refuses {
        what: hashes,
        code: StatusCode::Io,
    });
    let engine = script.start_engine(1, &[0, 1], &[]);
    script.pass(3_000_000);
    assert!(!is_comparing(&script, engine));
    assert_eq!(script.engines[engine].core.status().in_sync, ["r1"]);
}

/// An earlier engine's purge may still run on a replica: that is no reason to rebuild it.
#[test]
fn a_replica_that_cannot_purge_now_stays_in_sync() {
    let mut script = Script::new(2);
    let engine = script.start_engine(1, &[0, 1], &[]);
    let purges = |request: &Request| matches!(request, Request::SnapshotPurge);
    script.replicas[0].refuses = Some(Refuses {
        what: purges,
        code: StatusCode::Busy,
    });
    let id = CommandId(1);
    let command = Command::Purge;
    script.tell(engine, Event::Command { id, command });
    script.pass(LEASE_US);
    assert_eq!(script.engines[engine].commands.get(&id), Some(&true));
    assert_eq!(script.engines[engine].core.status().in_sync, ["r0", "r1"]);
}

/// Nobody else would delete it, and it keeps what it freezes from being overwritten.
#[test]
fn a_rebuild_deletes_the_snapshots_of_rebuilds_that_were_killed() {
    let mut script = Script::new(2);
    let killed = script.start_engine(1, &[0], &[]);
    assert!(script.written(killed, 3, 7));
    let request = Request::SnapshotCreate {
        name: SnapshotName::new("rebuild-1-1").expect("a name"),
        created_unix_ms: 1,
        user_created: false,
    };
    let tenure = script.replicas[0].accepted;
    script.replicas[0].execute(script.now, tenure, request);
    let engine = script.start_engine(1, &[0], &[]);
    let id = CommandId(1);
    let command = Command::Rebuild {
        name: "r1".into(),
        address: "1".into(),
    };
    script.tell(engine, Event::Command { id, command });
    script.pass(20 * LEASE_US);
    assert_eq!(script.engines[engine].core.status().in_sync, ["r0", "r1"]);
    for replica in &script.replicas {
        assert_eq!(replica.layer_count(), 1, "only the head is left");
        assert_eq!(replica.live(3), 7);
    }
}

#[test]
fn names_of_the_engine_s_own_snapshots_are_refused() {
    let mut script = Script::new(1);
    let engine = script.start_engine(1, &[0], &[]);
    for name in ["reconcile-1", "rebuild-1-1"] {
        let id = CommandId(1);
        let command = Command::Snapshot {
            name: name.into(),
            created_unix_ms: 1,
        };
        script.tell(engine, Event::Command { id, command });
        assert_eq!(script.engines[engine].commands.get(&id), Some(&false));
    }
}

#[test]
fn a_rebuild_keeps_to_its_rate_and_says_how_far_it_is() {
    let mut script = Script::new(2);
    let engine = script.start_engine(1, &[0], &[]);
    for block in [0, 2, 4, 6] {
        assert!(script.written(engine, block, 7));
    }
    let command = Command::SetRebuildRate {
        bytes_per_second_max: BLOCK_BYTES,
    };
    let id = CommandId(1);
    script.tell(engine, Event::Command { id, command });
    let command = Command::Rebuild {
        name: "r1".into(),
        address: "1".into(),
    };
    let id = CommandId(2);
    script.tell(engine, Event::Command { id, command });
    script.pass(2_500_000);
    let status = script.engines[engine].core.status();
    assert_eq!(status.in_sync, ["r0"], "it takes four seconds");
    let rebuild = status.tasks.iter().find(|task| task.kind == "rebuild");
    let rebuild = rebuild.expect("it is under way");
    assert!(
        0 < rebuild.done_bytes && rebuild.done_bytes < rebuild.total_bytes,
        "{rebuild:?}"
    );
    script.pass(2_500_000);
    assert_eq!(script.engines[engine].core.status().in_sync, ["r0", "r1"]);
    assert_eq!(script.replicas[1].live(6), 7);
}

fn refuses_reads() -> Refuses {
    Refuses {
        what: |request: &Request| matches!(request, Request::Read { .. }),
        code: StatusCode::Io,
    }
}

#[test]
fn a_read_that_one_replica_cannot_do_is_done_by_another() {
    let mut script = Script::new(2);
    let engine = script.start_engine(1, &[0, 1], &[]);
    assert!(script.written(engine, 3, 7));
    script.pass(20 * LEASE_US);
    assert!(!is_comparing(&script, engine));
    let proposed_before = script.engines[engine].proposals.len();
    script.replicas[0].refuses = Some(refuses_reads());
    let read = script.read(engine, 3);
    assert_eq!(script.found(engine, read), Some(7), "the other has it");
    let proposals = &script.engines[engine].proposals[proposed_before..];
    assert_eq!(proposals.len(), 1, "{proposals:?}");
    assert_eq!(proposals[0].replaces, ["r0", "r1"]);
    assert_eq!(proposals[0].in_sync, ["r1"]);
    let why = proposals[0].reasons.join(", ");
    assert!(why.contains("as the test wants it"), "{why}");
    assert_eq!(script.engines[engine].core.status().in_sync, ["r1"]);

    // Nobody is left to ask: the reader hears of it, and the last one is kept.
    script.replicas[1].refuses = Some(refuses_reads());
    let read = script.read(engine, 3);
    let answer = script.engines[engine].answers.get(&read);
    assert!(matches!(answer, Some(Err(_))), "{answer:?}");
    script.replicas[1].refuses = None;
    let read = script.read(engine, 3);
    assert_eq!(script.found(engine, read), Some(7));
    assert_eq!(script.engines[engine].core.status().in_sync, ["r1"]);
}

/// Each takes another time to read, so that the time which passes tells who was asked.
#[test]
fn single_reads_go_to_the_replica_that_was_fastest_lately() {
    const SLOW_US: u64 = 8_000;
    const FAST_US: u64 = 80;
    const MIDDLE_US: u64 = 800;
    let mut script = Script::new(3);
    let engine = script.start_engine(1, &[0, 1, 2], &[]);
    assert!(script.written(engine, 3, 7));
    script.pass(20 * LEASE_US);
    assert!(!is_comparing(&script, engine));
    script
        .read_takes_us
        .extend([(0, SLOW_US), (1, FAST_US), (2, MIDDLE_US)]);
    let read_takes_us = |script: &mut Script| {
        let asked_at = script.now;
        let read = script.read(engine, 3);
        assert_eq!(script.found(engine, read), Some(7));
        script.now - asked_at
    };
    // Who has not been asked yet is tried.
    let tried: Vec<u64> = (0..3).map(|_| read_takes_us(&mut script)).collect();
    assert_eq!(tried, [SLOW_US, FAST_US, MIDDLE_US]);
    for _ in 0..50 {
        assert_eq!(read_takes_us(&mut script), FAST_US);
    }
    // It becomes the slowest, as one read shows, and the next best is asked from then on.
    script.read_takes_us.insert(1, 2 * SLOW_US);
    assert_eq!(read_takes_us(&mut script), 2 * SLOW_US);
    for _ in 0..5 {
        assert_eq!(read_takes_us(&mut script), MIDDLE_US);
    }
}

/// A volume that lives for long, and whose replicas are replaced now and then: it has more of them than it has places.
#[test]
fn places_of_replicas_that_are_gone_are_used_again() {
    let mut script = Script::new(2);
    let engine = script.start_engine(1, &[0], &[]);
    assert!(script.written(engine, 3, 7));
    for round in 0..70 {
        let name = format!("n{round}");
        let rebuild = Command::Rebuild {
            name: name.clone(),
            address: "1".into(),
        };
        let remove = Command::RemoveReplica { name: name.clone() };
        for (at, command) in [rebuild, remove].into_iter().enumerate() {
            let id = CommandId(2 * round + at as u64);
            script.tell(engine, Event::Command { id, command });
            script.pass(20 * LEASE_US);
            assert_eq!(
                script.engines[engine].commands.get(&id),
                Some(&true),
                "{name}"
            );
            let status = script.engines[engine].core.status();
            assert_eq!(status.in_sync.contains(&name), at == 0, "{status:?}");
        }
        assert!(script.written(engine, 3, round), "{name}");
    }
}

fn set_address(script: &mut Script, engine: usize, name: &str, address: &str) -> bool {
    let id = CommandId(1);
    let command = Command::SetAddress {
        name: name.into(),
        address: address.into(),
    };
    script.tell(engine, Event::Command { id, command });
    script.engines[engine].commands.remove(&id) == Some(true)
}

/// The agent of the only replica comes back with another address. The engine looks for the replica where it was, refused at
/// once or never answered, until it is told.
#[test]
fn a_replica_that_has_moved_is_found_when_the_engine_is_told() {
    for silent in [false, true] {
        let mut script = Script::new(1);
        let engine = script.start_engine(1, &[0], &[]);
        assert!(script.written(engine, 3, 7));
        script.moved.insert(0, "new".into());
        script.silent.extend(silent.then(|| "0".to_owned()));
        script.reset(engine, 0);
        let write = script.write(engine, 4, 8);
        script.pass(10 * LEASE_US);
        assert!(!script.is_done(engine, write), "it looks at the old one");
        assert!(set_address(&mut script, engine, "r0", "new"));
        assert!(script.is_done(engine, write), "found at once");
        for (block, tag) in [(3, 7), (4, 8)] {
            let read = script.read(engine, block);
            assert_eq!(script.found(engine, read), Some(tag));
        }
    }
}

#[test]
fn a_volume_that_opens_is_told_of_a_replica_that_has_moved() {
    let mut script = Script::new(1);
    script.moved.insert(0, "new".into());
    let engine = script.start_engine(1, &[0], &[]);
    script.pass(10 * LEASE_US);
    assert!(!script.engines[engine].serving);
    assert!(set_address(&mut script, engine, "r0", "new"));
    assert!(script.engines[engine].serving);
    assert!(!set_address(&mut script, engine, "r1", "new"), "a stranger");
}

/// An address is for the next connection: the one that is there leads to the replica.
#[test]
fn a_replica_that_is_connected_is_not_disturbed_by_its_new_address() {
    let mut script = Script::new(2);
    let engine = script.start_engine(1, &[0, 1], &[]);
    assert!(set_address(&mut script, engine, "r1", "new"));
    assert!(script.written(engine, 3, 7));
    let status = script.engines[engine].core.status();
    assert!(status.members.iter().all(|member| member.connected));
    assert_eq!(status.members[1].address, "new");
    assert_eq!(status.in_sync, ["r0", "r1"]);
    assert_eq!(script.engines[engine].proposals, []);
}
