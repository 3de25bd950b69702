//! Expansions that are cut short, at each of their steps: the volume has one size afterwards, all that was written, and can be expanded.

use block_core::BLOCK_BYTES;
use block_core::wire::Request;
use engine::control::Command;

use crate::scripted::{Asks, BLOCKS, LEASE_US, Script};

const OLD_BYTES: u64 = BLOCKS * BLOCK_BYTES;
const NEW_BYTES: u64 = 2 * OLD_BYTES;
const REPLICAS: usize = 3;

fn is_expansion(request: &Request) -> bool {
    matches!(request, Request::Expand { .. })
}

fn sizes(script: &Script) -> Vec<u64> {
    let size = |replica: &crate::replica::ModelReplica| replica.status().size_bytes;
    script.replicas.iter().map(size).collect()
}

/// A volume with something in every block.
fn filled() -> (Script, usize) {
    let mut script = Script::new(REPLICAS);
    let engine = script.start_engine(1, &[0, 1, 2], &[]);
    for block in 0..BLOCKS {
        assert!(script.written(engine, block, 10 + block));
    }
    (script, engine)
}

fn expand(script: &mut Script, engine: usize) -> Option<bool> {
    let id = script.command(
        engine,
        Command::Expand {
            size_bytes: NEW_BYTES,
        },
    );
    script.engines[engine].commands.get(&id).copied()
}

fn in_sync(script: &Script, engine: usize) -> usize {
    let status = script.engines[engine].core.status();
    let settled = status.tasks.is_empty() && status.proposal.is_none();
    if settled && script.engines[engine].serving {
        status.in_sync.len()
    } else {
        0
    }
}

fn rebuild(script: &mut Script, engine: usize, replica: usize) {
    script.command(
        engine,
        Command::Rebuild {
            name: format!("r{replica}"),
            address: replica.to_string(),
        },
    );
    script.pass_until("all in sync", |it| in_sync(it, engine) == REPLICAS);
}

/// All replicas and the device have the same size, this one, and nothing is lost; then it can be expanded, to the end.
fn check(script: &mut Script, engine: usize, wanted_bytes: u64, case: &str) {
    assert_eq!(sizes(script), [wanted_bytes; REPLICAS], "{case}");
    assert_eq!(script.engines[engine].shown_bytes, wanted_bytes, "{case}");
    assert_eq!(
        script.engines[engine].core.status().size_bytes,
        wanted_bytes
    );
    assert_eq!(expand(script, engine), Some(true), "{case}: once more");
    assert_eq!(sizes(script), [NEW_BYTES; REPLICAS], "{case}");
    assert_eq!(script.engines[engine].shown_bytes, NEW_BYTES, "{case}");
    assert!(script.written(engine, 2 * BLOCKS - 1, 99), "{case}");
    for replica in &script.replicas {
        let mut expected: Vec<u64> = (10..10 + BLOCKS).collect();
        expected.resize(2 * BLOCKS as usize - 1, 0);
        expected.push(99);
        assert_eq!(replica.live_blocks(), expected, "{case}");
    }
}

/// The engine is killed when so many replicas have done it, whether it has heard of that or not; and the next one is told the old size or
/// the new one.
#[test]
fn an_engine_that_is_killed_while_it_expands_leaves_one_size() {
    for expanded in 0..=REPLICAS {
        for heard in [false, true] {
            for recorded_bytes in [OLD_BYTES, NEW_BYTES] {
                let case = format!("{expanded} of {REPLICAS}, {heard}, {recorded_bytes}");
                let (mut script, engine) = filled();
                let rest = |at| (at, is_expansion as Asks);
                script.unanswered = (expanded..REPLICAS).map(rest).collect();
                if !heard {
                    script.unheard = (0..expanded).map(rest).collect();
                }
                let answered = expand(&mut script, engine);
                assert_eq!(answered.is_some(), heard && expanded == REPLICAS, "{case}");
                assert_eq!(
                    sizes(&script)[expanded..],
                    [OLD_BYTES; REPLICAS][expanded..]
                );
                script.kill_engine(engine);
                script.unanswered.clear();
                script.unheard.clear();
                script.size_bytes = recorded_bytes;
                let next = script.start_engine(1, &[0, 1, 2], &[]);
                script.pass_until("all in sync", |it| in_sync(it, next) == REPLICAS);
                let wanted_bytes = if expanded > 0 {
                    NEW_BYTES
                } else {
                    recorded_bytes
                };
                check(&mut script, next, wanted_bytes, &case);
            }
        }
    }
}

/// As before, and one of the replicas is not there when the next engine comes: it is rebuilt later, also where it has the new size and
/// the volume the old one.
#[test]
fn a_replica_that_comes_back_later_has_the_size_of_the_others() {
    for expanded in 0..REPLICAS {
        for absent in 0..REPLICAS {
            let case = format!("{expanded} of {REPLICAS}, without {absent}");
            let (mut script, engine) = filled();
            let rest = |at| (at, is_expansion as Asks);
            script.unanswered = (expanded..REPLICAS).map(rest).collect();
            assert_eq!(expand(&mut script, engine), None, "{case}");
            script.kill_engine(engine);
            script.unanswered.clear();
            let next = script.start_engine(1, &[0, 1, 2], &[absent]);
            script.pass_until("the others", |it| in_sync(it, next) == REPLICAS - 1);
            let any_expanded = (0..expanded).any(|at| at != absent);
            let wanted_bytes = if any_expanded { NEW_BYTES } else { OLD_BYTES };
            assert_eq!(script.engines[next].shown_bytes, wanted_bytes, "{case}");
            script.cut.remove(&(next, absent));
            rebuild(&mut script, next, absent);
            check(&mut script, next, wanted_bytes, &case);
        }
    }
}

/// A replica is killed before, while and after it does it: the others are expanded, and whoever asked hears so.
#[test]
fn a_replica_that_is_lost_while_the_volume_expands_is_not_waited_for() {
    for killed in 0..REPLICAS {
        for has_done_it in [false, true] {
            let case = format!("{killed}, {has_done_it}");
            let (mut script, engine) = filled();
            let lost = vec![(killed, is_expansion as Asks)];
            if has_done_it {
                script.unheard = lost;
            } else {
                script.unanswered = lost;
            }
            assert_eq!(
                expand(&mut script, engine),
                None,
                "{case}: it is waited for"
            );
            script.cut.insert((engine, killed));
            script.reset(engine, killed);
            script.pass_until("the others", |it| in_sync(it, engine) == REPLICAS - 1);
            assert_eq!(script.engines[engine].shown_bytes, NEW_BYTES, "{case}");
            assert!(script.engines[engine].commands.values().all(|done| *done));
            script.unheard.clear();
            script.unanswered.clear();
            script.cut.remove(&(engine, killed));
            script.replicas[killed].restart(script.now);
            rebuild(&mut script, engine, killed);
            check(&mut script, engine, NEW_BYTES, &case);
        }
    }
}

/// The volume opens after an expansion that was cut short, and a replica is lost, or the engine killed, while the rest is expanded.
#[test]
fn an_opening_that_makes_replicas_equally_large_can_be_cut_short_as_well() {
    for replica_is_lost in [true, false] {
        let case = format!("{replica_is_lost}");
        let (mut script, engine) = filled();
        let rest = |at| (at, is_expansion as Asks);
        script.unanswered = vec![rest(1), rest(2)];
        assert_eq!(expand(&mut script, engine), None);
        script.kill_engine(engine);
        script.unanswered = vec![rest(2)];
        let second = script.start_engine(1, &[0, 1, 2], &[]);
        script.pass(LEASE_US);
        assert!(!script.engines[second].serving, "one is smaller");
        assert_eq!(sizes(&script), [NEW_BYTES, NEW_BYTES, OLD_BYTES]);
        let last = if replica_is_lost {
            script.cut.insert((second, 2));
            script.reset(second, 2);
            script.pass_until("the others", |it| in_sync(it, second) == 2);
            script.unanswered.clear();
            script.cut.remove(&(second, 2));
            rebuild(&mut script, second, 2);
            second
        } else {
            script.kill_engine(second);
            script.unanswered.clear();
            let third = script.start_engine(1, &[0, 1, 2], &[]);
            script.pass_until("all in sync", |it| in_sync(it, third) == REPLICAS);
            third
        };
        check(&mut script, last, NEW_BYTES, &case);
    }
}

fn is_snapshot(request: &Request) -> bool {
    matches!(request, Request::SnapshotCreate { .. })
}

/// Whichever is asked for first: a snapshot has the size that its replica had then, and is to have the same one on all.
#[test]
fn an_expansion_and_a_snapshot_do_not_overtake_each_other() {
    for expands_first in [true, false] {
        let (mut script, engine) = filled();
        let snapshot = Command::Snapshot {
            name: "s".into(),
            created_unix_ms: 1,
        };
        let expansion = Command::Expand {
            size_bytes: NEW_BYTES,
        };
        let (commands, slow): (_, Asks) = if expands_first {
            ([expansion, snapshot], is_expansion)
        } else {
            ([snapshot, expansion], is_snapshot)
        };
        script.unanswered = vec![(2, slow)];
        let ids = commands.map(|command| script.command(engine, command));
        script.pass(LEASE_US);
        let has_snapshot = |at: usize| !script.replicas[at].snapshots().is_empty();
        let snapshots = (0..REPLICAS).filter(|at| has_snapshot(*at)).count();
        let expanded = sizes(&script).iter().filter(|it| **it == NEW_BYTES).count();
        let first_only = if expands_first { (0, 2) } else { (2, 0) };
        assert_eq!((snapshots, expanded), first_only, "{expands_first}");
        assert_eq!(script.engines[engine].commands.len(), 0, "{expands_first}");
        if expands_first {
            // Nobody has to wait who only writes.
            assert!(script.written(engine, 3, 77));
        }
        script.cut.insert((engine, 2));
        script.reset(engine, 2);
        script.pass_until("both", |it| {
            ids.iter()
                .all(|id| it.engines[engine].commands.get(id) == Some(&true))
        });
        for replica in &script.replicas[..2] {
            assert_eq!(replica.snapshots().len(), 1, "{expands_first}");
        }
        assert_eq!(script.engines[engine].shown_bytes, NEW_BYTES);
    }
}

/// Two at once, as an agent asks that was started again: one behind the other, and the smaller one finds that it came too late.
#[test]
fn expansions_do_not_overtake_one_another() {
    for (first, second, answers) in [
        (NEW_BYTES, 2 * NEW_BYTES, [Some(true), Some(true)]),
        (2 * NEW_BYTES, NEW_BYTES, [Some(true), Some(false)]),
        (NEW_BYTES, NEW_BYTES, [Some(true), Some(true)]),
    ] {
        let (mut script, engine) = filled();
        // One of the replicas takes its time.
        script.unanswered = vec![(0, is_expansion as Asks)];
        let commands = [first, second]
            .map(|size_bytes| script.command(engine, Command::Expand { size_bytes }));
        assert_eq!(
            sizes(&script)[1..],
            [first; REPLICAS - 1],
            "the second one waits"
        );
        // It never answers: it is left behind, and the others go on.
        script.unanswered.clear();
        script.pass_until("both answered", |it| {
            let answered = |id| it.engines[engine].commands.contains_key(id);
            commands.iter().all(answered)
        });
        let found = commands.map(|id| script.engines[engine].commands.get(&id).copied());
        assert_eq!(found, answers, "{first} {second}");
        let size_bytes = first.max(second);
        assert_eq!(script.engines[engine].core.status().size_bytes, size_bytes);
        assert_eq!(sizes(&script)[1..], [size_bytes; REPLICAS - 1]);
    }
}

/// A revert that waits for an expansion would go out while some replicas merge, and these refuse it.
#[test]
fn a_purge_does_not_come_before_a_revert_that_waits() {
    let (mut script, engine) = filled();
    let name = "before".to_owned();
    let taken = script.command(
        engine,
        Command::Snapshot {
            name: name.clone(),
            created_unix_ms: 0,
        },
    );
    assert_eq!(
        script.engines[engine].commands.get(&taken).copied(),
        Some(true)
    );
    script.unanswered = vec![(0, is_expansion as Asks)];
    assert_eq!(expand(&mut script, engine), None, "it waits for replica 0");
    let reverted = script.command(engine, Command::Revert { name });
    let purged = script.command(engine, Command::Purge);
    let answer = |it: &Script, id| it.engines[engine].commands.get(&id).copied();
    assert_eq!(
        answer(&script, reverted),
        None,
        "it waits for the expansion"
    );
    assert_eq!(answer(&script, purged), Some(false));
    script.unanswered.clear();
    script.pass_until("reverted", |it| answer(it, reverted).is_some());
    assert_eq!(answer(&script, reverted), Some(true));
    let purged = script.command(engine, Command::Purge);
    script.pass_until("purged", |it| answer(it, purged).is_some());
    assert_eq!(answer(&script, purged), Some(true));
}
