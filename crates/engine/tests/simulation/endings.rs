//! Engines that end, and their successors.

use block_core::Epoch;
use engine::control::Command;
use engine::core::{CommandId, Event};

use crate::scripted::{LEASE_US, Script};

const SHUTDOWN: CommandId = CommandId(1000);

fn shut_down(script: &mut Script, engine: usize) {
    let command = Command::Shutdown;
    let id = SHUTDOWN;
    script.tell(engine, Event::Command { id, command });
}

#[test]
fn an_end_is_not_held_up_by_a_replica_that_fails_in_the_last_flush() {
    for lost in [0, 1] {
        let mut script = Script::new(2);
        let engine = script.start_engine(1, &[0, 1], &[]);
        assert!(script.written(engine, 3, 7));
        script.flushes_left = Some(0);
        shut_down(&mut script, engine);
        assert_eq!(script.engines[engine].ended, None, "flushing");
        script.reset(engine, lost);
        script.pass(LEASE_US);
        assert_eq!(script.engines[engine].ended, Some(false), "{lost}");
        let answer = script.engines[engine].commands.get(&SHUTDOWN);
        assert_eq!(answer, Some(&false), "its epoch must not be used again");
    }
}

#[test]
fn an_end_is_not_held_up_by_a_line_that_breaks_at_the_last_word() {
    for replicas in [1, 2] {
        let mut script = Script::new(replicas);
        let in_sync: Vec<usize> = (0..replicas).collect();
        let engine = script.start_engine(1, &in_sync, &[]);
        assert!(script.written(engine, 3, 7));
        script.loses_last_word = true;
        shut_down(&mut script, engine);
        assert_eq!(script.engines[engine].ended, None, "telling the replicas");
        script.reset(engine, 0);
        script.pass(LEASE_US);
        assert_eq!(script.engines[engine].ended, Some(false), "{replicas}");
    }
}

/// A process that is started again with the epoch of the one before knows nothing of its connections, and does not share any: what
/// the one before had sent must not run behind what this one sends.
#[test]
fn an_engine_that_is_started_again_goes_on_behind_its_last_connection() {
    for resets in [0, 30] {
        let mut script = Script::new(1);
        let first = script.start_engine_of(Epoch(1), 1, &[0], &[]);
        for _ in 0..resets {
            script.reset(first, 0);
            script.pass(LEASE_US);
        }
        let last = script.replicas[0].accepted.session;
        assert!(last > resets);
        shut_down(&mut script, first);
        assert_eq!(script.engines[first].ended, Some(true));
        assert_eq!(script.engines[first].commands.get(&SHUTDOWN), Some(&true));
        let again = script.start_engine_of(Epoch(1), 1, &[0], &[]);
        script.pass(20_000);
        assert!(script.engines[again].serving, "it asks a second time");
        assert!(script.replicas[0].accepted.session > last);
        assert!(script.written(again, 3, 7));
    }
}
