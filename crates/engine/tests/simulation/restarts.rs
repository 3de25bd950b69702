//! Machines that restart while an engine lives.

use block_core::wire::Request;
use engine::control::Command;
use engine::core::{CommandId, CommitVerdict, Event};

use crate::scripted::{LEASE_US, Script};

/// Both replicas lose power while only the one that is left in the end has a write, in its memory.
#[test]
fn a_write_that_the_last_replica_had_in_memory_is_done_again_before_it_is_acknowledged() {
    let mut script = Script::new(2);
    let engine = script.start_engine(1, &[0, 1], &[]);
    assert!(script.written(engine, 3, 7));
    let flush = script.flush(engine);
    assert!(script.is_done(engine, flush));
    script.records = false;
    script.cut.insert((engine, 0));
    let write = script.write(engine, 3, 8);
    assert_eq!(script.replicas[1].live(3), 8, "it has answered");
    for replica in &mut script.replicas {
        replica.restart_machine(script.now);
    }
    script.reset(engine, 0);
    script.reset(engine, 1);
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
    assert!(script.is_done(engine, write), "replica 1 goes on alone");
    assert_eq!(script.replicas[1].live(3), 8, "and has it");
    let flush = script.flush(engine);
    assert!(script.is_done(engine, flush));
    assert_eq!(script.replicas[1].durable_blocks()[3], 8);
}

/// What an engine that was killed has acknowledged is no less acknowledged than what this one has.
#[test]
fn no_flush_covers_what_was_lost_of_a_killed_engine_s_writes() {
    let flushed_after = |flushes_before: bool| {
        let mut script = Script::new(1);
        let killed = script.start_engine(1, &[0], &[]);
        assert!(script.written(killed, 3, 7));
        script.cut.insert((killed, 0));
        let engine = script.start_engine(1, &[0], &[]);
        assert!(script.engines[engine].serving);
        if flushes_before {
            let flush = script.flush(engine);
            assert!(script.is_done(engine, flush));
        }
        script.replicas[0].restart_machine(script.now);
        script.reset(engine, 0);
        script.pass(LEASE_US);
        let flush = script.flush(engine);
        script.pass(LEASE_US);
        script.is_done(engine, flush)
    };
    assert!(flushed_after(true), "it was on the disk");
    assert!(!flushed_after(false), "it is gone");
}

/// A snapshot is in memory until it is flushed, as a write is.
#[test]
fn a_snapshot_that_a_restarted_machine_has_lost_is_not_said_to_be_there() {
    let mut script = Script::new(1);
    let engine = script.start_engine(1, &[0], &[]);
    script.flushes_left = Some(1);
    let id = CommandId(1);
    let command = Command::Snapshot {
        name: "s".into(),
        created_unix_ms: 1,
    };
    script.tell(engine, Event::Command { id, command });
    assert_eq!(script.replicas[0].layer_count(), 2, "it is taken");
    script.flushes_left = None;
    script.replicas[0].restart_machine(script.now);
    assert_eq!(script.replicas[0].layer_count(), 1, "and lost");
    script.reset(engine, 0);
    script.pass(LEASE_US);
    assert_eq!(script.engines[engine].commands.get(&id), Some(&false));
}

/// The process of a replica whose disk could not keep what was written comes back on the same machine.
#[test]
fn a_replica_that_says_that_it_lacks_writes_is_believed() {
    let flushed_after = |lacks_writes: bool| {
        let mut script = Script::new(1);
        let engine = script.start_engine(1, &[0], &[]);
        assert!(script.written(engine, 3, 7));
        let failing = |request: &Request| matches!(request, Request::Flush);
        script.unanswered.push((0, failing));
        let first = script.flush(engine);
        script.unanswered.clear();
        script.replicas[0].restarted = lacks_writes;
        script.reset(engine, 0);
        script.pass(LEASE_US);
        script.is_done(engine, first)
    };
    assert!(flushed_after(false));
    assert!(!flushed_after(true));
}

/// A restart that cost nothing is no excuse for the next loss.
#[test]
fn a_failed_sync_is_believed_after_a_harmless_restart() {
    let mut script = Script::new(1);
    let engine = script.start_engine(1, &[0], &[]);
    assert!(script.written(engine, 3, 7));
    let flush = script.flush(engine);
    assert!(script.is_done(engine, flush));
    script.replicas[0].restart_machine(script.now);
    script.reset(engine, 0);
    script.pass(LEASE_US);
    assert!(script.written(engine, 4, 8), "all was on the disk");
    // Its disk fails, and its next process, of the same machine, says so.
    script.replicas[0].restarted = true;
    script.reset(engine, 0);
    script.pass(LEASE_US);
    let flush = script.flush(engine);
    script.pass(LEASE_US);
    assert!(
        !script.is_done(engine, flush),
        "it would cover what is gone"
    );
}
