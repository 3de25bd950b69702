//! How long slow replicas are waited for, and silent ones.

use block_core::wire::{Flags, Request};
use engine::control::Command;
use engine::core::{CommandId, Event};

use crate::scripted::{DEADLINE_US, LEASE_US, Script};

fn syncs(request: &Request) -> bool {
    match request {
        Request::Flush => true,
        Request::Write { flags, .. } => flags.contains(Flags::FORCE_UNIT_ACCESS),
        _ => false,
    }
}

/// Disks that have much to write take their time; that is no reason to rebuild replicas.
#[test]
fn replicas_that_flush_for_long_and_answer_pings_stay_in_sync() {
    for through in [false, true] {
        let mut script = Script::new(2);
        let engine = script.start_engine(1, &[0, 1], &[]);
        assert!(script.written(engine, 3, 7));
        script.unanswered.push((0, syncs));
        script.unanswered.push((1, syncs));
        let request = if through {
            script.write_through(engine, 4, 8)
        } else {
            script.flush(engine)
        };
        script.pass(5 * DEADLINE_US);
        assert_eq!(script.engines[engine].core.status().in_sync, ["r0", "r1"]);
        assert!(!script.is_done(engine, request), "{through}");
        assert!(script.written(engine, 5, 9), "others go on");
    }
}

/// One whose disk hangs is known by the other, which had the same to write.
#[test]
fn a_replica_that_flushes_much_longer_than_the_other_is_left_behind() {
    let mut script = Script::new(2);
    let engine = script.start_engine(1, &[0, 1], &[]);
    assert!(script.written(engine, 3, 7));
    script.unanswered.push((0, syncs));
    let flush = script.flush(engine);
    script.pass(4 * DEADLINE_US - 10_000);
    assert_eq!(script.engines[engine].core.status().in_sync, ["r0", "r1"]);
    script.pass(20_000);
    assert_eq!(script.engines[engine].core.status().in_sync, ["r1"]);
    assert!(script.is_done(engine, flush));
}

/// A replica that says nothing at all is left behind as soon as one that misses the deadline of a write.
#[test]
fn a_replica_that_is_silent_is_left_behind_while_it_flushes() {
    let mut script = Script::new(2);
    let engine = script.start_engine(1, &[0, 1], &[]);
    assert!(script.written(engine, 3, 7));
    script.pass(LEASE_US);
    script.cut.insert((engine, 0));
    let flush = script.flush(engine);
    script.pass(DEADLINE_US - 10_000);
    assert_eq!(script.engines[engine].core.status().in_sync, ["r0", "r1"]);
    script.pass(20_000);
    assert_eq!(script.engines[engine].core.status().in_sync, ["r1"]);
    assert!(script.is_done(engine, flush));
}

/// A write that waits for no disk has its deadline as before, whatever else is answered.
#[test]
fn a_plain_write_has_a_deadline() {
    let mut script = Script::new(2);
    let engine = script.start_engine(1, &[0, 1], &[]);
    let writes = |request: &Request| matches!(request, Request::Write { .. });
    script.unanswered.push((0, writes));
    let write = script.write(engine, 3, 7);
    script.pass(DEADLINE_US + 10_000);
    assert_eq!(script.engines[engine].core.status().in_sync, ["r1"]);
    assert!(script.is_done(engine, write));
}

/// One that was rebuilt has little to make durable yet: how soon it has done so says nothing about the others.
#[test]
fn replicas_are_not_measured_by_one_that_was_just_rebuilt() {
    for flushed_together in [false, true] {
        let mut script = Script::new(3);
        let engine = script.start_engine(1, &[0, 1], &[]);
        assert!(script.written(engine, 3, 7));
        let command = Command::Rebuild {
            name: "r2".into(),
            address: "2".into(),
        };
        let id = CommandId(1);
        script.tell(engine, Event::Command { id, command });
        script.pass(10 * LEASE_US);
        let in_sync = |script: &Script| script.engines[engine].core.status().in_sync;
        assert_eq!(in_sync(&script), ["r0", "r1", "r2"]);
        if flushed_together {
            let flush = script.flush(engine);
            assert!(script.is_done(engine, flush));
        }
        assert!(script.written(engine, 4, 8));
        script.unanswered.push((0, syncs));
        script.unanswered.push((1, syncs));
        script.flush(engine);
        script.pass(5 * DEADLINE_US);
        let stay: &[&str] = if flushed_together {
            &["r2"]
        } else {
            &["r0", "r1", "r2"]
        };
        assert_eq!(in_sync(&script), stay);
    }
}

/// Whoever was faster before: to cut off the last one would have it begin again.
#[test]
fn the_last_replica_is_waited_for_however_long_it_flushes() {
    let mut script = Script::new(2);
    let engine = script.start_engine(1, &[0, 1], &[]);
    assert!(script.written(engine, 3, 7));
    script.unanswered.push((0, syncs));
    script.flush(engine);
    script.cut.insert((engine, 1));
    script.reset(engine, 1);
    script.pass(2 * DEADLINE_US);
    assert_eq!(script.engines[engine].core.status().in_sync, ["r0"]);
    let connection = script.replicas[0].accepted.session;
    script.pass(10 * DEADLINE_US);
    assert_eq!(script.replicas[0].accepted.session, connection);
}

/// To grow is to sync what was written before.
#[test]
fn replicas_that_take_long_to_grow_stay_in_sync() {
    let mut script = Script::new(2);
    let engine = script.start_engine(1, &[0, 1], &[]);
    let grows = |request: &Request| matches!(request, Request::Expand { .. });
    script.unanswered.push((0, grows));
    script.unanswered.push((1, grows));
    let command = Command::Expand {
        size_bytes: 1 << 20,
    };
    let id = CommandId(1);
    script.tell(engine, Event::Command { id, command });
    script.pass(5 * DEADLINE_US);
    assert_eq!(script.engines[engine].core.status().in_sync, ["r0", "r1"]);
    assert_eq!(script.engines[engine].commands.get(&id), None);
}
