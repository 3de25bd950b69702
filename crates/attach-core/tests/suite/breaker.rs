//! The circuit breaker, told as stories: each line is something that happens, and what is decided then.

use attach_core::breaker::AttachRecord;
use attach_core::view::{Engine, Robustness, VolumeState};
use attach_core::{NodeName, View, decide};
use expect_test::{Expect, expect};
use jiff::SignedDuration;

use crate::scene::{noon, view};

/// Plays a story. Each word is an event, after which the volume is decided until nothing changes. What comes before a
/// `|` is played and not told.
#[track_caller]
fn check(scene: &str, story: &str, expected: Expect) {
    let mut view = view(scene);
    let mut told = String::new();
    let quiet = story
        .split_whitespace()
        .position(|event| event == "|")
        .map_or(0, |at| at + 1);
    for (at, event) in story
        .split_whitespace()
        .enumerate()
        .filter(|(_, event)| *event != "|")
    {
        happen(&mut view, event);
        let mut words = Vec::new();
        for _ in 0..4 {
            let plan = decide(&view);
            let changed = plan.changes_volume(&view);
            view = plan.applied_to(&view);
            if changed || words.is_empty() {
                let codes: Vec<_> = plan.reasons.iter().map(attach_core::Reason::code).collect();
                words.push(format!("{} {}", plan.action, codes.join("+")));
            }
            if !changed {
                break;
            }
        }
        let record = view
            .volume
            .attach
            .as_ref()
            .map_or("-".to_owned(), |record: &AttachRecord| {
                format!(
                    "failures={}{}",
                    record.failures,
                    if record.attempt.is_some() {
                        " trying"
                    } else {
                        ""
                    }
                )
            });
        if at < quiet {
            continue;
        }
        told += &format!("{event}: {} [{record}]\n", words.join(", "));
    }
    expected.assert_eq(&told);
}

fn happen(view: &mut View, event: &str) {
    let status = &mut view.volume.status;
    match event.split_once('=').unwrap_or((event, "")) {
        ("look", _) => {}
        ("wait", seconds) => view.now += SignedDuration::from_secs(seconds.parse().unwrap()),
        ("starts", _) => status.state = VolumeState::Attaching,
        ("attached", _) => {
            status.state = VolumeState::Attached;
            status.current_node = view.volume.spec.node.clone();
        }
        ("detached", _) => {
            status.state = VolumeState::Detached;
            status.current_node = None;
            view.engines.listed.clear();
        }
        ("faults", _) => status.robustness = Robustness::Faulted,
        ("salvaged", _) => status.robustness = Robustness::Unknown,
        ("error", reason) => {
            status.state = VolumeState::Attaching;
            let node = view
                .volume
                .spec
                .node
                .clone()
                .unwrap_or_else(|| NodeName::from("n1"));
            view.engines.listed = vec![Engine {
                node,
                active: true,
                running: false,
                has_rw_replica: false,
                is_sole_writer: false,
                snapshots: Default::default(),
                error: Some(reason.into()),
            }];
        }
        ("ticket", text) => {
            let ticket = crate::scene::ticket(text);
            view.tickets.insert(ticket.id.clone(), ticket);
        }
        ("without", id) => drop(view.tickets.remove(id)),
        ("resume", token) => view.volume.resume = token.into(),
        // So many seconds ago, or now.
        ("replaced", ago) => {
            let ago = SignedDuration::from_secs(ago.parse().unwrap_or(0));
            view.volume.status.engine_failed_at = Some(view.now - ago);
            view.engines.listed.clear();
        }
        other => panic!("what is {other:?}?"),
    }
}

#[test]
fn an_attach_that_lasts_leaves_no_trace() {
    check(
        "detached; csi@n1",
        "look starts attached wait=59 wait=1 look",
        expect![[r#"
            look: attach Selected [failures=0 trying]
            starts: wait Attaching [failures=0 trying]
            attached: keep HeldBy [failures=0 trying]
            wait=59: keep HeldBy [failures=0 trying]
            wait=1: keep HeldBy [-]
            look: keep HeldBy [-]
        "#]],
    );
}

#[test]
fn an_engine_that_fails_once_attached_is_restarted_where_it_was() {
    check(
        "detached; csi@n1",
        "look starts attached error=killed error=killed starts attached error=killed starts attached wait=60",
        expect![[r#"
            look: attach Selected [failures=0 trying]
            starts: wait Attaching [failures=0 trying]
            attached: keep HeldBy [failures=0 trying]
            error=killed: wait AttachFailed+Attaching [failures=1 trying]
            error=killed: wait Attaching [failures=1 trying]
            starts: wait Attaching [failures=1 trying]
            attached: keep HeldBy [failures=1 trying]
            error=killed: wait AttachFailed+Attaching [failures=2 trying]
            starts: wait Attaching [failures=2 trying]
            attached: keep HeldBy [failures=2 trying]
            wait=60: keep HeldBy [-]
        "#]],
    );
}

#[test]
fn an_engine_that_gave_way_to_the_next_one_has_failed_although_nobody_saw_its_error() {
    check(
        "detached; csi@n1",
        "look starts replaced detached wait=1 starts replaced detached wait=2 starts attached",
        expect![[r#"
            look: attach Selected [failures=0 trying]
            starts: wait Attaching [failures=0 trying]
            replaced: detach AttachFailed [failures=1]
            detached: wait AttachBackingOff [failures=1]
            wait=1: attach Selected [failures=1 trying]
            starts: wait Attaching [failures=1 trying]
            replaced: detach AttachFailed [failures=2]
            detached: wait AttachBackingOff [failures=2]
            wait=2: attach Selected [failures=2 trying]
            starts: wait Attaching [failures=2 trying]
            attached: keep HeldBy [failures=2 trying]
        "#]],
    );
}

#[test]
fn an_engine_that_failed_before_the_attempt_does_not_count() {
    check(
        "detached; csi@n1",
        "look wait=10 starts replaced=11 replaced=10",
        expect![[r#"
            look: attach Selected [failures=0 trying]
            wait=10: wait Attaching [failures=0 trying]
            starts: wait Attaching [failures=0 trying]
            replaced=11: wait Attaching [failures=0 trying]
            replaced=10: detach AttachFailed [failures=1]
        "#]],
    );
}

#[test]
fn engines_that_give_way_while_the_volume_is_restarted_are_one_failure() {
    check(
        "detached; csi@n1",
        "look starts attached error=killed replaced replaced attached wait=60",
        expect![[r#"
            look: attach Selected [failures=0 trying]
            starts: wait Attaching [failures=0 trying]
            attached: keep HeldBy [failures=0 trying]
            error=killed: wait AttachFailed+Attaching [failures=1 trying]
            replaced: wait Attaching [failures=1 trying]
            replaced: wait Attaching [failures=1 trying]
            attached: keep HeldBy [failures=1 trying]
            wait=60: keep HeldBy [-]
        "#]],
    );
}

#[test]
fn failures_back_off_and_then_hold() {
    check(
        "detached; csi@n1",
        "look starts error=a detached look wait=1 error=b detached wait=1 wait=1 error=c detached wait=4 \
         error=d detached wait=8 error=e detached wait=16 error=f detached wait=86400",
        expect![[r#"
            look: attach Selected [failures=0 trying]
            starts: wait Attaching [failures=0 trying]
            error=a: detach AttachFailed [failures=1]
            detached: wait AttachBackingOff [failures=1]
            look: wait AttachBackingOff [failures=1]
            wait=1: attach Selected [failures=1 trying]
            error=b: detach AttachFailed [failures=2]
            detached: wait AttachBackingOff [failures=2]
            wait=1: wait AttachBackingOff [failures=2]
            wait=1: attach Selected [failures=2 trying]
            error=c: detach AttachFailed [failures=3]
            detached: wait AttachBackingOff [failures=3]
            wait=4: attach Selected [failures=3 trying]
            error=d: detach AttachFailed [failures=4]
            detached: wait AttachBackingOff [failures=4]
            wait=8: attach Selected [failures=4 trying]
            error=e: detach AttachFailed [failures=5]
            detached: wait AttachBackingOff [failures=5]
            wait=16: attach Selected [failures=5 trying]
            error=f: detach AttachFailed [failures=6]
            detached: hold AttachHeld [failures=6]
            wait=86400: hold AttachHeld [failures=6]
        "#]],
    );
}

#[test]
fn a_held_volume_goes_on_when_something_changes() {
    let held = "look error=a detached wait=1 error=b detached wait=2 error=c detached wait=4 error=d detached wait=8 \
                error=e detached wait=16 error=f | detached";
    check(
        "detached; csi@n1",
        &format!("{held} ticket=csi@n2"),
        expect![[r#"
            detached: hold AttachHeld [failures=6]
            ticket=csi@n2: attach AttachBudgetReset+Selected [failures=0 trying]
        "#]],
    );
    check(
        "detached; csi@n1",
        &format!("{held} resume=again"),
        expect![[r#"
            detached: hold AttachHeld [failures=6]
            resume=again: attach AttachResumed+Selected [failures=0 trying]
        "#]],
    );
    check(
        "detached; csi@n1",
        &format!("{held} without=csi@n1"),
        expect![[r#"
            detached: hold AttachHeld [failures=6]
            without=csi@n1: keep AttachBudgetReset+NoTickets [-]
        "#]],
    );
}

#[test]
fn an_attach_that_takes_too_long_has_failed() {
    check(
        "detached; csi@n1",
        "look starts wait=179 wait=1 detached wait=1",
        expect![[r#"
            look: attach Selected [failures=0 trying]
            starts: wait Attaching [failures=0 trying]
            wait=179: wait Attaching [failures=0 trying]
            wait=1: detach AttachFailed [failures=1]
            detached: wait AttachBackingOff [failures=1]
            wait=1: attach Selected [failures=1 trying]
        "#]],
    );
}

#[test]
fn a_volume_that_faults_or_falls_off_again_and_again_is_held_too() {
    check(
        "detached; csi@n1",
        "look attached faults detached salvaged wait=1 attached faults",
        expect![[r#"
            look: attach Selected [failures=0 trying]
            attached: keep HeldBy [failures=0 trying]
            faults: detach VolumeFaulted [failures=1]
            detached: wait VolumeFaulted [failures=1]
            salvaged: wait AttachBackingOff [failures=1]
            wait=1: attach Selected [failures=1 trying]
            attached: keep HeldBy [failures=1 trying]
            faults: detach VolumeFaulted [failures=2]
        "#]],
    );
    check(
        "detached; csi@n1",
        "look attached starts attached starts attached starts attached starts attached starts attached starts",
        expect![[r#"
            look: attach Selected [failures=0 trying]
            attached: keep HeldBy [failures=0 trying]
            starts: wait AttachFailed+Attaching [failures=1 trying]
            attached: keep HeldBy [failures=1 trying]
            starts: wait AttachFailed+Attaching [failures=2 trying]
            attached: keep HeldBy [failures=2 trying]
            starts: wait AttachFailed+Attaching [failures=3 trying]
            attached: keep HeldBy [failures=3 trying]
            starts: wait AttachFailed+Attaching [failures=4 trying]
            attached: keep HeldBy [failures=4 trying]
            starts: wait AttachFailed+Attaching [failures=5 trying]
            attached: keep HeldBy [failures=5 trying]
            starts: detach AttachFailed [failures=6]
        "#]],
    );
}

#[test]
fn letting_go_on_purpose_is_no_failure() {
    check(
        "detached; csi@n1",
        "look starts without=csi@n1 detached ticket=csi@n2",
        expect![[r#"
            look: attach Selected [failures=0 trying]
            starts: wait Attaching [failures=0 trying]
            without=csi@n1: detach NoMatchingTicket [-]
            detached: keep NoTickets [-]
            ticket=csi@n2: attach Selected [failures=0 trying]
        "#]],
    );
}

#[test]
fn the_reason_of_the_last_failure_reaches_the_ticket() {
    let mut view = view("detached; csi@n1");
    for event in ["look", "error=disk-on-fire", "detached"] {
        happen(&mut view, event);
        view = decide(&view).applied_to(&view);
    }
    let condition = &view.statuses["csi@n1"].condition;
    assert_eq!(condition.reason, "AttachBackingOff");
    assert!(
        condition.message.contains("disk-on-fire"),
        "{}",
        condition.message
    );
    let plan = decide(&view);
    assert_eq!(plan.recheck_after, Some(SignedDuration::from_secs(1)));
    assert_eq!(view.now, noon());
}
