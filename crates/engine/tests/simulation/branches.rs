//! Snapshots beside the live volume: a revert leaves those that are newer as a branch, and they are kept like all others.

use block_core::wire::Request;
use block_core::{BLOCK_BYTES, SnapshotName};
use engine::control::{Command, Notice};
use engine::core::{CommandId, Event};

use crate::replica::Tag;
use crate::scripted::{LEASE_US, Script};

/// What a schedule of these does with replica 2.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// It is lost before this step, and rebuilt behind the last one.
    lost_at: usize,
    /// The snapshot that both branches build on is deleted.
    deletes_first: bool,
    /// The rebuild breaks off when all is copied, and is begun again.
    breaks_off: bool,
    /// What is copied for it.
    copied_blocks: u64,
}

fn done(script: &mut Script, engine: usize, command: Command) {
    let id = CommandId(script.now + 100);
    script.tell(engine, Event::Command { id, command });
    script.pass(20 * LEASE_US);
    assert_eq!(script.engines[engine].commands.get(&id), Some(&true));
}

fn snapshot(script: &mut Script, engine: usize, name: &str) {
    let command = Command::Snapshot {
        name: name.into(),
        created_unix_ms: 1,
    };
    done(script, engine, command);
}

/// One replica's snapshots are told by what they show at blocks 3 and 4.
fn shown(script: &Script, replica: usize) -> Vec<(String, [Tag; 2])> {
    let snapshots = script.replicas[replica].snapshots();
    let shown = |(name, tags): (SnapshotName, Vec<Tag>)| (name.to_string(), [tags[3], tags[4]]);
    snapshots.into_iter().map(shown).collect()
}

#[test]
fn a_rebuild_brings_the_snapshots_beside_the_live_volume_too() {
    for (lost_at, copied_blocks) in [(0, 3), (2, 2), (4, 1), (6, 1)] {
        for (deletes_first, breaks_off) in [(false, false), (true, false), (false, true)] {
            check(Row {
                lost_at,
                deletes_first,
                breaks_off,
                copied_blocks,
            });
        }
    }
}

fn check(row: Row) {
    let mut script = Script::new(3);
    let engine = script.start_engine(1, &[0, 1, 2], &[]);
    script.pass(LEASE_US);
    for step in 0..7 {
        if step == row.lost_at {
            script.cut.insert((engine, 2));
            script.reset(engine, 2);
        }
        match step {
            0 => assert!(script.written(engine, 3, 7)),
            1 => snapshot(&mut script, engine, "first"),
            2 => assert!(script.written(engine, 3, 8)),
            3 => snapshot(&mut script, engine, "second"),
            4 => assert!(script.written(engine, 3, 9)),
            5 => {
                let name = "first".into();
                done(&mut script, engine, Command::Revert { name });
            }
            _ => assert!(script.written(engine, 4, 5)),
        }
    }
    if row.deletes_first {
        let name = "first".into();
        done(&mut script, engine, Command::DeleteSnapshot { name });
        done(&mut script, engine, Command::Purge);
    }
    assert_eq!(script.engines[engine].core.status().in_sync, ["r0", "r1"]);
    script.cut.clear();
    rebuild(&mut script, engine, row.breaks_off);
    let mut newest_first = script.engines[engine].notices.iter().rev();
    let copied = newest_first.find_map(|notice| match notice {
        Notice::RebuildFinished { copied_bytes, .. } => Some(*copied_bytes),
        _ => None,
    });
    assert_eq!(copied, Some(row.copied_blocks * BLOCK_BYTES), "{row:?}");
    check_all_have_them(&script, row);

    // The engine is killed; the next one asks all members for what they have, and finds it equal.
    script.cut.extend((0..3).map(|replica| (engine, replica)));
    let next = script.start_engine(3, &[0, 1, 2], &[]);
    script.pass(20 * LEASE_US);
    let status = script.engines[next].core.status();
    assert_eq!(status.in_sync, ["r0", "r1", "r2"], "{row:?}");
    assert!(status.tasks.is_empty(), "{status:?}");
    check_all_have_them(&script, row);
}

fn rebuild(script: &mut Script, engine: usize, breaks_off: bool) {
    let verifies = |request: &Request| matches!(request, Request::RebuildVerify { .. });
    if breaks_off {
        script.unanswered.push((2, verifies));
    }
    let id = CommandId(1);
    let command = Command::Rebuild {
        name: "r2".into(),
        address: "2".into(),
    };
    script.tell(engine, Event::Command { id, command });
    script.pass(LEASE_US);
    if breaks_off {
        script.unanswered.clear();
        script.reset(engine, 2);
    }
    script.pass(20 * LEASE_US);
    assert_eq!(script.engines[engine].commands.get(&id), Some(&true));
}

fn check_all_have_them(script: &Script, row: Row) {
    let mut expected = vec![("first", [7, 0]), ("second", [8, 0])];
    expected.drain(..usize::from(row.deletes_first));
    let expected: Vec<(String, [Tag; 2])> = expected
        .into_iter()
        .map(|(name, tags)| (name.to_owned(), tags))
        .collect();
    for (at, replica) in script.replicas.iter().enumerate() {
        assert_eq!(shown(script, at), expected, "{row:?}: r{at}");
        assert_eq!([replica.live(3), replica.live(4)], [7, 5], "{row:?}: r{at}");
        // The first, the second and the head, and nothing of the engine's own.
        assert_eq!(replica.layer_count(), 3, "{row:?}: r{at}");
    }
}
