//! Rows: what runs, what is wanted, what happens next.

use super::*;

fn set(names: &str) -> BTreeSet<String> {
    names.split_whitespace().map(str::to_owned).collect()
}

/// An engine of this epoch that should run with "a b", in version 3.
fn wanted(epoch: u64) -> Wanted {
    Wanted {
        name: format!("v-e-{epoch}"),
        generation: 1,
        epoch,
        role: EngineRole::Writer,
        run: true,
        frontend: true,
        in_sync: set("a b"),
        version: 3,
        roles: set("a b")
            .into_iter()
            .map(|name| (name, ReplicaRole::InSync))
            .collect(),
        addresses: set("a b")
            .into_iter()
            .map(|name| (name.clone(), format!("{name}:1")))
            .collect(),
        size_bytes: 100,
        snapshot_requests: BTreeMap::new(),
        deleting: false,
        started: false,
    }
}

fn known(name: &str, role: &str) -> Member {
    Member {
        role: role.to_owned(),
        address: format!("{name}:1"),
    }
}

fn running(epoch: u64) -> Running {
    Running {
        epoch,
        frontend: true,
        serving: true,
        standby: false,
        fenced: None,
        generation: 3,
        proposal: None,
        size_bytes: 100,
        members: ["a", "b"]
            .map(|name| (name.to_owned(), known(name, "inSync")))
            .into(),
        rebuild_later: BTreeSet::new(),
        move_later: BTreeSet::new(),
        expand_later: false,
        snapshots: Snapshots {
            listed: Some(BTreeMap::new()),
            ..Snapshots::default()
        },
    }
}

fn with<T>(mut value: T, change: impl FnOnce(&mut T)) -> T {
    change(&mut value);
    value
}

fn show(step: &Step) -> String {
    match step {
        Step::Rest => "rest".into(),
        Step::Wait(_) => "wait".into(),
        Step::Start { engine } => format!("start {engine}"),
        Step::Shutdown { again, .. } => format!("shutdown{}", if *again { " again" } else { "" }),
        Step::Command(commands) => show_all(commands),
    }
}

pub(super) fn show_all(commands: &[EngineCommand]) -> String {
    let show = |command: &EngineCommand| match command {
        EngineCommand::Set {
            promote,
            version,
            in_sync,
        } => {
            let verb = if *promote { "promote" } else { "follow" };
            let set = in_sync.iter().map(|(name, address)| {
                let unknown = if address.is_empty() { "?" } else { "" };
                format!("{name}{unknown}")
            });
            let set: Vec<String> = set.collect();
            format!("{verb} {version}: {}", set.join(" "))
        }
        EngineCommand::Move { name, address } => format!("move {name} to {address}"),
        EngineCommand::Rebuild { name, address } => format!("rebuild {name} at {address}"),
        EngineCommand::Remove { name } => format!("remove {name}"),
        EngineCommand::Expand { size_bytes } => format!("expand {size_bytes}"),
        EngineCommand::ListSnapshots => "list".to_owned(),
        EngineCommand::TakeSnapshot { name } => format!("take {name}"),
        EngineCommand::MarkSnapshot { name } => format!("mark {name}"),
        EngineCommand::MergeSnapshots => "merge".to_owned(),
    };
    let commands: Vec<String> = commands.iter().map(show).collect();
    commands.join("; ")
}

#[track_caller]
#[allow(
    clippy::needless_pass_by_value,
    reason = "rows read better without references"
)]
fn check(running: Option<Running>, engines: &[Wanted], expected: &str) {
    assert_eq!(show(&plan(running.as_ref(), engines, None)), expected);
}

#[test]
fn a_process_is_started_once_for_its_epoch() {
    check(None, &[], "rest");
    check(None, &[wanted(1)], "start v-e-1");
    check(None, &[wanted(1), wanted(2)], "start v-e-2");
    check(None, &[with(wanted(1), |w| w.run = false)], "rest");
    check(None, &[with(wanted(1), |w| w.deleting = true)], "rest");
    // Started before, and gone: only a new epoch helps.
    check(None, &[with(wanted(1), |w| w.started = true)], "rest");
    check(
        None,
        &[with(wanted(1), |w| w.started = true), wanted(2)],
        "start v-e-2",
    );
    // Unless this agent itself ended it to start it in another form.
    let step = plan(None, &[with(wanted(1), |w| w.started = true)], Some(1));
    assert_eq!(show(&step), "start v-e-1");
}

#[test]
fn a_start_waits_for_what_it_needs() {
    check(None, &[with(wanted(1), |w| w.in_sync.clear())], "wait");
    check(
        None,
        &[with(wanted(1), |w| drop(w.addresses.remove("b")))],
        "wait",
    );
}

#[test]
fn nobody_waits_for_replicas_that_the_engine_should_do_without() {
    let roles = |roles: &str| {
        let roles = set(roles);
        with(wanted(1), |w| {
            w.roles.retain(|name, _| roles.contains(name));
        })
    };
    assert_eq!(roles("a b").written_off(), [""; 0]);
    assert_eq!(roles("b").written_off(), ["a"]);
    let silent = roles("").written_off();
    assert_eq!(silent, [""; 0], "an object that does not say");

    // Their disk is gone, or their object: nobody will ever say where they are.
    let unknown = |roles| with(roles, |w: &mut Wanted| drop(w.addresses.remove("a")));
    check(None, &[unknown(roles("b"))], "start v-e-1");
    check(None, &[unknown(roles("a b"))], "wait");
    check(None, &[unknown(roles(""))], "wait");
    // All that are recorded are in the set all the same, or it would be another one.
    let standby = with(running(1), |r| (r.standby, r.serving) = (true, false));
    let expected = "promote 3: a? b";
    check(Some(standby), &[unknown(roles("b"))], expected);
}

#[test]
fn an_engine_is_told_where_a_replica_is_now() {
    let moved = || {
        with(wanted(1), |w| {
            w.addresses.insert("b".into(), "b:2".into());
        })
    };
    check(Some(running(1)), &[moved()], "move b to b:2");
    // It may be the one that an engine waits for that does not serve yet.
    let opening = with(running(1), |r| r.serving = false);
    check(Some(opening), &[moved()], "move b to b:2");
    let standby = with(running(1), |r| (r.standby, r.serving) = (true, false));
    let target = with(moved(), |w| w.role = EngineRole::Standby);
    check(Some(standby), &[target], "move b to b:2");
    // It was told, or could not be told, a moment ago.
    let told = with(running(1), |r| r.move_later = set("b"));
    check(Some(told), &[moved()], "rest");
    // One that is left behind gets its address with its rebuild.
    for role in ["failed", "out"] {
        let left = with(running(1), |r| {
            r.members.insert("b".into(), known("b", role));
        });
        check(Some(left), &[moved()], "rest");
    }
    // Where nobody serves it, it is looked for where it was.
    let nowhere = with(wanted(1), |w| drop(w.addresses.remove("b")));
    check(Some(running(1)), &[nowhere], "rest");
    let former = with(moved(), |w| w.role = EngineRole::Former);
    check(Some(running(1)), &[former], "rest");
}

#[test]
fn a_standby_follows_and_takes_over_when_it_is_recorded() {
    let standby = || with(running(2), |r| (r.standby, r.serving) = (true, false));
    let role = |role| with(wanted(2), |w| w.role = role);
    check(None, &[role(EngineRole::Standby)], "start v-e-2");
    check(Some(standby()), &[role(EngineRole::Standby)], "rest");
    let newer = |role| {
        with(wanted(2), |w| {
            (w.role, w.version, w.in_sync) = (role, 4, set("a"));
        })
    };
    let expected = "follow 4: a";
    check(Some(standby()), &[newer(EngineRole::Standby)], expected);
    let expected = "promote 3: a b";
    check(Some(standby()), &[role(EngineRole::Writer)], expected);
    let expected = "promote 4: a";
    check(Some(standby()), &[newer(EngineRole::Writer)], expected);
    let unknown = with(newer(EngineRole::Writer), |w| w.addresses.clear());
    check(Some(standby()), &[unknown], "wait");
    // Its front end changes like any other's.
    let closed = with(role(EngineRole::Standby), |w| w.frontend = false);
    check(Some(standby()), &[closed], "shutdown again");
    // Once it is the writer, it is like any other.
    check(Some(running(2)), &[role(EngineRole::Writer)], "rest");
    check(Some(running(2)), &[role(EngineRole::Standby)], "shutdown");
    check(Some(standby()), &[], "shutdown");
}

#[test]
fn a_former_writer_is_left_to_its_users_and_its_replicas() {
    let former = || with(wanted(1), |w| w.role = EngineRole::Former);
    check(Some(running(1)), &[former()], "rest");
    // The new writer's sets are none of its business.
    let newer = with(former(), |w| (w.version, w.in_sync) = (9, set("a")));
    check(Some(running(1)), &[newer], "rest");
    let fenced = with(running(1), |r| r.fenced = Some("newer".into()));
    check(Some(fenced), &[former()], "shutdown");
    let unwanted = with(former(), |w| w.run = false);
    check(Some(running(1)), &[unwanted], "shutdown");
    check(None, &[former()], "rest");
}

#[test]
fn a_process_that_nobody_wants_is_ended() {
    check(Some(running(1)), &[], "shutdown");
    check(Some(running(1)), &[wanted(2)], "shutdown");
    check(Some(running(1)), &[wanted(1), wanted(2)], "shutdown");
    check(
        Some(running(1)),
        &[with(wanted(1), |w| w.run = false)],
        "shutdown",
    );
    check(
        Some(running(1)),
        &[with(wanted(1), |w| w.deleting = true)],
        "shutdown",
    );
    check(
        Some(with(running(1), |r| r.fenced = Some("newer".into()))),
        &[wanted(1)],
        "shutdown",
    );
    // An older object that is on its way out does not matter.
    check(
        Some(running(2)),
        &[with(wanted(1), |w| w.deleting = true), wanted(2)],
        "rest",
    );
    check(
        Some(running(2)),
        &[wanted(2), with(wanted(3), |w| w.run = false)],
        "rest",
    );
}

#[test]
fn the_front_end_is_changed_by_a_restart_without_open_proposals() {
    let closed = [with(wanted(1), |w| w.frontend = false)];
    check(Some(running(1)), &closed, "shutdown again");
    let proposing = with(running(1), |r| r.proposal = Some((4, set("a"))));
    check(Some(proposing), &closed, "wait");
}

#[test]
fn a_record_that_the_engine_did_not_propose_ends_it() {
    let next = |members: &str| {
        [with(wanted(1), |w| {
            w.version = 4;
            w.in_sync = set(members);
        })]
    };
    check(Some(running(1)), &next("a"), "shutdown");
    let proposing = with(running(1), |r| r.proposal = Some((4, set("a"))));
    check(Some(proposing.clone()), &next("a"), "rest");
    check(Some(proposing), &next("b"), "shutdown");
    // The object is behind the engine: its copy comes later.
    let ahead = with(running(1), |r| r.generation = 4);
    check(Some(ahead), &[wanted(1)], "rest");
}

#[test]
fn replicas_and_size_follow_the_object() {
    let rebuild = |w: &mut Wanted| {
        w.roles.insert("c".into(), ReplicaRole::Rebuild);
        w.addresses.insert("c".into(), "c:1".into());
    };
    check(
        Some(running(1)),
        &[with(wanted(1), rebuild)],
        "rebuild c at c:1",
    );
    let member = |role: &str| {
        with(running(1), |r| {
            r.members.insert("c".into(), known("c", role));
        })
    };
    check(
        Some(member("out")),
        &[with(wanted(1), rebuild)],
        "rebuild c at c:1",
    );
    check(Some(member("failed")), &[with(wanted(1), rebuild)], "rest");
    check(
        Some(member("rebuilding")),
        &[with(wanted(1), rebuild)],
        "rest",
    );
    check(Some(member("inSync")), &[with(wanted(1), rebuild)], "rest");
    let tried = with(running(1), |r| r.rebuild_later = set("c"));
    check(Some(tried), &[with(wanted(1), rebuild)], "rest");
    let unknown = [with(wanted(1), |w| {
        rebuild(w);
        w.addresses.remove("c");
    })];
    check(Some(running(1)), &unknown, "rest");

    check(Some(member("inSync")), &[wanted(1)], "remove c");
    check(Some(member("out")), &[wanted(1)], "rest");
    check(
        Some(member("inSync")),
        &[with(wanted(1), |w| w.roles.clear())],
        "rest",
    );
    check(
        Some(running(1)),
        &[with(wanted(1), |w| w.size_bytes = 200)],
        "expand 200",
    );
    check(
        Some(running(1)),
        &[with(wanted(1), |w| w.size_bytes = 50)],
        "rest",
    );
    // Before it serves, nothing is asked of it.
    let opening = with(running(1), |r| r.serving = false);
    check(Some(opening), &[with(wanted(1), rebuild)], "rest");
}

/// One that was ended to be started again, and that nobody wants any more, has ended.
#[test]
fn an_engine_is_awaited_only_while_it_is_wanted() {
    assert!(is_awaited(&[wanted(1)], 1));
    assert!(!is_awaited(&[with(wanted(1), |w| w.run = false)], 1));
    assert!(!is_awaited(&[with(wanted(1), |w| w.deleting = true)], 1));
    assert!(!is_awaited(&[wanted(2)], 1));
    assert!(!is_awaited(&[], 1));
}
