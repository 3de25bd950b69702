//! Requests that overlap others wait for those before them, and not for those that come later.

use block_core::BLOCK_BYTES;
use block_core::wire::Request;
use bytes::Bytes;
use engine::io::{ByteRange, Operation};

use crate::late::say_done;
use crate::scripted::Script;

const ROUNDS: u64 = 20;

/// Of the writes that were sent; `answered` of them were before.
fn answer_oldest(script: &mut Script, engine: usize, answered: &mut usize) -> bool {
    let Some((member, connection, job)) = script.writes_sent.get(*answered).copied() else {
        return false;
    };
    *answered += 1;
    say_done(script, engine, member, connection, job);
    true
}

/// Somebody writes two blocks in turn, so that one of them is always being written, and somebody else wants both.
#[test]
fn a_request_for_much_is_not_starved_by_writes_to_parts_of_it() {
    let range = ByteRange::new(0, 2 * BLOCK_BYTES);
    let data = Bytes::from(vec![7; 2 * BLOCK_BYTES as usize]);
    let (offset, durable, may_unmap) = (0, false, true);
    for wide in [
        Operation::Read { range },
        Operation::Discard { range },
        Operation::WriteZeroes {
            range,
            may_unmap,
            durable,
        },
        Operation::Write {
            offset,
            data,
            durable,
        },
    ] {
        let mut script = Script::new(1);
        let engine = script.start_engine(1, &[0], &[]);
        // Each is answered when the script says so.
        script.unanswered = vec![(0, |request| matches!(request, Request::Write { .. }))];
        let mut writes = vec![script.write(engine, 0, 1)];
        let asked = script.submit(engine, wide.clone());
        assert!(!script.is_done(engine, asked), "{wide:?} waits");
        let mut answered = 0;
        for round in 1..=ROUNDS {
            writes.push(script.write(engine, round % 2, round));
            answer_oldest(&mut script, engine, &mut answered);
            // Its own answer may be the second.
            let is_due = round >= 2;
            assert!(
                script.is_done(engine, asked) || !is_due,
                "{wide:?}: not in round {round}"
            );
        }
        // Nor is anybody forgotten who came behind it.
        while answer_oldest(&mut script, engine, &mut answered) {}
        for write in writes {
            assert!(script.is_done(engine, write), "{wide:?}: {write:?}");
        }
    }
}

/// Whoever wants none of what is waited for goes on.
#[test]
fn requests_beside_one_that_waits_go_on() {
    let mut script = Script::new(1);
    let engine = script.start_engine(1, &[0], &[]);
    let first_blocks = |request: &Request| matches!(request, Request::Write { offset_bytes, .. } if *offset_bytes < 2 * BLOCK_BYTES);
    script.unanswered = vec![(0, first_blocks)];
    script.write(engine, 0, 1);
    let range = ByteRange::new(0, 2 * BLOCK_BYTES);
    let waiting = script.submit(engine, Operation::Discard { range });
    let behind = script.write(engine, 1, 2);
    assert!(script.written(engine, 2, 3), "beside it");
    let read = script.read(engine, 1);
    assert_eq!(script.found(engine, read), Some(0), "a read is in no way");
    assert!(!script.is_done(engine, waiting) && !script.is_done(engine, behind));
}
