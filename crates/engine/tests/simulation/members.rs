//! Members that fail and come back.

use engine::core::{CommitVerdict, Event};

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
