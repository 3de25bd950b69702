//! Answers that come late, twice, or over a connection that is not the newest.

use block_core::wire::{Reply, Request};
use engine::core::{Event, Incarnation, JobId, MemberIndex};

use crate::scripted::{LEASE_US, Script};

/// A replica's word that something is done, whether it is or not.
pub fn say_done(
    script: &mut Script,
    engine: usize,
    member: MemberIndex,
    incarnation: Incarnation,
    job: JobId,
) {
    let reply = Reply::Done;
    let event = Event::Reply {
        member,
        incarnation,
        job,
        reply,
    };
    script.tell(engine, event);
}

/// A write that the only replica has not done is asked again over the next connection: nothing that belongs to the first one
/// says that it is done.
#[test]
fn what_an_older_connection_says_is_no_answer_to_what_the_newer_one_was_asked() {
    let mut script = Script::new(1);
    let engine = script.start_engine(1, &[0], &[]);
    assert!(script.written(engine, 3, 7));
    script.unanswered = vec![(0, |request| matches!(request, Request::Write { .. }))];
    let write = script.write(engine, 3, 8);
    script.reset(engine, 0);
    script.pass_until("the write is asked again", |it| it.writes_sent.len() == 3);
    let (member, old_connection, old_job) = script.writes_sent[1];
    let (_, new_connection, new_job) = script.writes_sent[2];
    assert!(new_connection > old_connection && new_job != old_job);
    for (connection, job) in [
        (old_connection, old_job),
        (new_connection, old_job),
        (old_connection, new_job),
    ] {
        say_done(&mut script, engine, member, connection, job);
        assert!(!script.is_done(engine, write), "{connection:?} {job:?}");
    }
    assert_eq!(script.replicas[0].live(3), 7);
    script.unanswered.clear();
    script.reset(engine, 0);
    script.pass(LEASE_US);
    assert!(script.is_done(engine, write));
    assert_eq!(script.replicas[0].live(3), 8);
    // And all of it once more: the script does not take a second answer to a request.
    for (member, connection, job) in script.writes_sent.clone() {
        say_done(&mut script, engine, member, connection, job);
    }
    let read = script.read(engine, 3);
    assert_eq!(script.found(engine, read), Some(8));
}

/// The same where others go on: the one that was lost, and is rebuilt, is not in sync because of what it said before.
#[test]
fn a_late_answer_of_a_replica_that_was_left_behind_changes_nothing() {
    let mut script = Script::new(2);
    let engine = script.start_engine(1, &[0, 1], &[]);
    script.unanswered = vec![(1, |request| matches!(request, Request::Write { .. }))];
    script.records = false;
    let write = script.write(engine, 3, 8);
    script.reset(engine, 1);
    let (member, connection, job) = *script.writes_sent.last().expect("it was sent");
    say_done(&mut script, engine, member, connection, job);
    script.pass(LEASE_US);
    assert!(!script.is_done(engine, write), "nobody has recorded it");
    assert_eq!(script.engines[engine].core.status().in_sync, ["r0", "r1"]);
}
