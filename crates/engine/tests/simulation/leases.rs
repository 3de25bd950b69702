//! An engine that was replaced and does not know it reads nothing that is no longer true.

use engine::core::{CommitVerdict, Event};

use crate::scripted::{DEADLINE_US, GRACE_US, LEASE_US, Script};

/// Two engines, of which the newer cannot reach replica 0 and the older can reach nothing else.
fn replaced_behind_a_partition() -> (Script, usize, usize) {
    let mut script = Script::new(2);
    let old = script.start_engine(1, &[0, 1], &[]);
    let written = script.write(old, 3, 7);
    assert!(script.is_done(old, written), "both replicas have it");
    script.cut.insert((old, 1));
    let new = script.start_engine(1, &[0, 1], &[0]);
    (script, old, new)
}

#[test]
fn a_replaced_engine_does_not_read_from_a_replica_that_was_left_behind() {
    let (mut script, old, new) = replaced_behind_a_partition();
    script.pass(GRACE_US + 2 * LEASE_US);
    assert!(script.engines[new].serving, "the newer engine goes on");
    let written = script.write(new, 3, 8);
    assert!(script.is_done(new, written), "acknowledged by replica 1");
    let read = script.read(old, 3);
    assert_eq!(script.found(old, read), None, "7 is not true any more");
    let stalled = script.engines[old].core.status().stalled;
    assert!(
        stalled.as_ref().is_some_and(|why| why.contains("r1")),
        "{stalled:?}"
    );
}

#[test]
fn a_replica_that_has_not_accepted_is_left_behind_only_when_no_older_engine_reads() {
    let (mut script, old, new) = replaced_behind_a_partition();
    script.pass(GRACE_US + LEASE_US / 2);
    assert!(!script.engines[new].serving);
    // Not even proposed: an engine that is started next would know of replica 1 alone, and not wait.
    assert!(script.engines[new].proposals.is_empty());
    let read = script.read(old, 3);
    assert_eq!(script.found(old, read), Some(7), "it is still true");
}

/// Also if the caller knows that the replica's node is lost: knowing that it is silent towards us is not knowing that it is
/// silent towards others.
#[test]
fn a_replica_that_is_written_off_is_waited_for_as_long_as_older_engines_read() {
    let mut script = Script::new(2);
    let old = script.start_engine(1, &[0, 1], &[]);
    script.cut.insert((old, 1));
    script.written_off.insert(0);
    let new = script.start_engine(1, &[0, 1], &[0]);
    script.pass(LEASE_US);
    assert!(!script.engines[new].serving);
    assert!(script.engines[new].proposals.is_empty());
    script.pass(LEASE_US / 4);
    assert!(script.engines[new].serving, "and no longer");
}

#[test]
fn nobody_waits_for_a_dead_engine_that_has_been_silent_for_long() {
    let mut script = Script::new(2);
    let old = script.start_engine(1, &[0, 1], &[]);
    let written = script.write(old, 3, 7);
    assert!(script.is_done(old, written), "both replicas have it");
    // Its node is lost, with replica 0, and that is noticed after a while.
    script.cut.extend([(old, 0), (old, 1)]);
    script.pass(2 * LEASE_US);
    script.written_off.insert(0);
    let new = script.start_engine(1, &[0, 1], &[0]);
    script.pass(GRACE_US / 10);
    assert!(script.engines[new].serving);
    let read = script.read(new, 3);
    assert_eq!(script.found(new, read), Some(7));
    let read = script.read(old, 3);
    assert_eq!(script.found(old, read), None);
}

#[test]
fn nobody_waits_where_every_replica_accepts() {
    let mut script = Script::new(2);
    let old = script.start_engine(1, &[0, 1], &[]);
    let new = script.start_engine(1, &[0, 1], &[]);
    assert!(script.engines[new].serving, "at once");
    let read = script.read(old, 3);
    assert_eq!(script.found(old, read), None, "it is refused everywhere");
}

#[test]
fn reads_of_a_quiet_volume_need_no_waiting() {
    let mut script = Script::new(3);
    let engine = script.start_engine(1, &[0, 1, 2], &[]);
    let written = script.write(engine, 3, 7);
    assert!(script.is_done(engine, written));
    script.pass(20 * LEASE_US);
    let read = script.read(engine, 3);
    assert_eq!(script.found(engine, read), Some(7));
    // The whole process stood still: the members are asked, and then it goes on.
    script.now += 20 * LEASE_US;
    let read = script.read(engine, 3);
    assert_eq!(script.found(engine, read), Some(7));
}

/// What a read has shown must stay. A replica that was lost before it was compared may hold something else, and as long as
/// it is recorded as in sync, the next engine may believe it.
#[test]
fn a_comparison_ends_when_those_that_were_not_compared_are_out_of_the_record() {
    let mut script = Script::new(2);
    let _killed = script.start_engine(1, &[0, 1], &[]);
    script.records = false;
    script.lost_when_compared = Some(0);
    let engine = script.start_engine(1, &[0, 1], &[]);
    script.pass(2 * DEADLINE_US);
    assert!(script.engines[engine].serving);
    let compares = |script: &Script| {
        let tasks = script.engines[engine].core.status().tasks;
        tasks.iter().any(|task| task.kind.starts_with("compare"))
    };
    assert!(compares(&script), "replica 0 is recorded, and not compared");
    let generation = script.engines[engine].proposals[0].generation;
    let verdict = CommitVerdict::Recorded;
    script.tell(
        engine,
        Event::Commit {
            generation,
            verdict,
        },
    );
    script.pass(LEASE_US);
    assert!(!compares(&script));
}
