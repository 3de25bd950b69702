//! Reads that one replica after the other does not answer.

use block_core::wire::{Request, StatusCode};
use engine::control::Command;

use crate::replica::Refuses;
use crate::scripted::Script;

fn reads(request: &Request) -> bool {
    matches!(request, Request::Read { .. })
}

/// The first replica cannot read it and is rebuilt, while the second one takes its time and is lost then: what the first has now is not what it
/// could not read.
#[test]
fn a_replica_that_was_rebuilt_is_asked_again_what_it_could_not_read_before() {
    let mut script = Script::new(2);
    let engine = script.start_engine(1, &[0, 1], &[]);
    assert!(script.written(engine, 3, 7));
    script.replicas[0].refuses = Some(Refuses {
        what: reads,
        code: StatusCode::Io,
    });
    script.unanswered = vec![(1, reads)];
    let read = script.read(engine, 3);
    let in_sync = |script: &Script| script.engines[engine].core.status().in_sync;
    assert_eq!(in_sync(&script), ["r1"], "the first was asked first");
    script.replicas[0].refuses = None;
    let (name, address) = ("r0".into(), "0".into());
    let rebuild = script.command(engine, Command::Rebuild { name, address });
    script.pass_until("the rebuild", |it| {
        it.engines[engine].commands.contains_key(&rebuild)
    });
    assert_eq!(in_sync(&script).len(), 2);
    assert_eq!(script.found(engine, read), None, "the second is waited for");
    script.cut.insert((engine, 1));
    script.reset(engine, 1);
    script.pass_until("the read", |it| it.is_done(engine, read));
    assert_eq!(script.found(engine, read), Some(7));
}
