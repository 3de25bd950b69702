//! Members that fail and come back.

use block_core::wire::{ReplicaMode, Reply, StatusCode};
use engine::control::Command;
use engine::core::{CommandId, CommitVerdict, Event};

use crate::scripted::{DEADLINE_US, LEASE_US, Script};

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
