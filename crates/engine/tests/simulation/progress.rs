//! What the status says of a rebuild that goes on.

use block_core::BLOCK_BYTES;
use block_core::wire::Request;
use engine::control::Command;
use engine::core::{CommandId, Event};

use crate::scripted::{LEASE_US, Script};

type Asks = fn(&Request) -> bool;

const HASHES: Asks = |request| matches!(request, Request::LayerHashes { .. });
const DATA: Asks = |request| matches!(request, Request::ReadLayer { .. });
const VERIFICATION: Asks = |request| matches!(request, Request::RebuildVerify { .. });

/// What the target has already is done as well: all of it is when all is there, whether much or little had to be copied.
#[test]
fn a_rebuild_counts_what_it_finds_equal() {
    for (is_known, stops_at, step, done_blocks) in [
        (true, HASHES, "comparing", 0),
        (true, DATA, "copying", 4),
        (true, VERIFICATION, "verifying", 5),
        (false, DATA, "copying", 0),
        (false, VERIFICATION, "verifying", 5),
    ] {
        let mut script = Script::new(3);
        let engine = script.start_engine(1, &[0, 1], &[]);
        for block in [0, 2, 4, 6] {
            assert!(script.written(engine, block, 7));
        }
        let id = CommandId(1);
        let command = Command::Snapshot {
            name: "s".into(),
            created_unix_ms: 1,
        };
        script.tell(engine, Event::Command { id, command });
        script.pass(LEASE_US);
        // The one knows the snapshot and is away from here on; the other is new.
        script.cut.insert((engine, 1));
        script.reset(engine, 1);
        assert!(script.written(engine, 0, 8));
        script.cut.clear();
        let target = if is_known { 1 } else { 2 };
        script
            .unanswered
            .extend([(0, stops_at), (target, stops_at)]);
        let id = CommandId(2);
        let command = Command::Rebuild {
            name: format!("r{target}"),
            address: target.to_string(),
        };
        script.tell(engine, Event::Command { id, command });
        script.pass(LEASE_US);
        let tasks = script.engines[engine].core.status().tasks;
        let rebuild = tasks.iter().find(|task| task.kind == "rebuild");
        let rebuild = rebuild.expect("it is under way");
        assert_eq!(
            (
                rebuild.step.as_str(),
                rebuild.done_bytes,
                rebuild.total_bytes
            ),
            (step, done_blocks * BLOCK_BYTES, 5 * BLOCK_BYTES),
            "{is_known}: {step}"
        );
    }
}
