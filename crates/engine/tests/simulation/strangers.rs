//! Addresses that lead to another replica of the same volume.

use block_core::wire::ReplicaMode;
use engine::control::Command;
use engine::core::{CommandId, Event};

use crate::scripted::{GRACE_US, LEASE_US, Script};

fn set_address(script: &mut Script, engine: usize, name: &str, address: &str) {
    let id = CommandId(1);
    let command = Command::SetAddress {
        name: name.into(),
        address: address.into(),
    };
    script.tell(engine, Event::Command { id, command });
    assert_eq!(script.engines[engine].commands.remove(&id), Some(true));
}

fn trouble(script: &Script, engine: usize, name: &str) -> String {
    let members = script.engines[engine].core.status().members;
    let member = members.into_iter().find(|member| member.name == name);
    member.and_then(|it| it.trouble).unwrap_or_default()
}

/// The only replica in sync has moved, and one that was left behind is served where it was: to an engine that starts, and to one
/// that lost the connection.
#[test]
fn a_stale_replica_does_not_pass_for_the_one_that_was_at_its_address() {
    for starts in [true, false] {
        let mut script = Script::new(2);
        let mut engine = script.start_engine(1, &[0, 1], &[]);
        assert!(script.written(engine, 3, 7));
        script.cut.insert((engine, 0));
        script.reset(engine, 0);
        assert!(script.written(engine, 3, 8));
        script.cut.clear();
        script.moved.extend([(0, "1".into()), (1, "new".into())]);
        if starts {
            script.cut.extend([(engine, 0), (engine, 1)]);
            engine = script.start_engine(2, &[1], &[]);
        } else {
            script.reset(engine, 1);
        }
        script.pass(10 * LEASE_US);
        let read = script.read(engine, 3);
        assert_eq!(script.found(engine, read), None, "7 is the past");
        let why = trouble(&script, engine, "r1");
        assert!(why.contains("leads to replica r0"), "{why}");
        set_address(&mut script, engine, "r1", "new");
        script.pass(LEASE_US);
        let read = script.read(engine, 3);
        assert_eq!(script.found(engine, read), Some(8), "{starts}");
    }
}

/// Two members' addresses lead to the same replica: it stays connected as the one that it is.
#[test]
fn a_replica_is_not_taken_from_its_own_connection() {
    let mut script = Script::new(3);
    let killed = script.start_engine(1, &[0, 1, 2], &[]);
    assert!(script.written(killed, 3, 7));
    script.cut.extend((0..3).map(|replica| (killed, replica)));
    script.moved.insert(1, "gone".into());
    let engine = script.start_engine(1, &[0, 1, 2], &[]);
    set_address(&mut script, engine, "r1", "0");
    let why = trouble(&script, engine, "r1");
    assert!(why.contains("leads to replica r0"), "{why}");
    script.pass(GRACE_US + 2 * LEASE_US);
    let status = script.engines[engine].core.status();
    assert_eq!(status.in_sync, ["r0", "r2"], "nobody waits for r1");
    assert!(script.written(engine, 3, 8));
    assert_eq!([0, 2].map(|at| script.replicas[at].live(3)), [8, 8]);
}

/// Somebody mistakes the address of a replica that is to be rebuilt for that of one in sync.
#[test]
fn a_rebuild_does_not_overwrite_a_replica_that_is_a_part_of_the_volume() {
    let mut script = Script::new(2);
    let engine = script.start_engine(1, &[0, 1], &[]);
    assert!(script.written(engine, 3, 7));
    let id = CommandId(2);
    let command = Command::Rebuild {
        name: "r2".into(),
        address: "1".into(),
    };
    script.tell(engine, Event::Command { id, command });
    script.pass(100 * LEASE_US);
    assert_eq!(script.engines[engine].commands.get(&id), Some(&false));
    let status = script.engines[engine].core.status();
    assert_eq!(status.in_sync, ["r0", "r1"]);
    assert_eq!(script.replicas[1].mode, ReplicaMode::Ready);
    assert_eq!(script.replicas[1].live(3), 7);

    // One that was left behind is nobody's any more.
    let name = "r1".into();
    let command = Command::RemoveReplica { name };
    let id = CommandId(3);
    script.tell(engine, Event::Command { id, command });
    let id = CommandId(4);
    let command = Command::Rebuild {
        name: "r2".into(),
        address: "1".into(),
    };
    script.tell(engine, Event::Command { id, command });
    script.pass(20 * LEASE_US);
    let status = script.engines[engine].core.status();
    assert_eq!(status.in_sync, ["r0", "r2"]);
}
