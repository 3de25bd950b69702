//! The flows of attaching and detaching, and the ways in which they get stuck.

use std::collections::BTreeSet;

use super::World;
use crate::decide;
use crate::event::EventTarget;

/// The attachments after the script.
fn check(script: &str, expected: &str) {
    let mut world = World::new();
    world.run(script);
    assert_eq!(
        world.show(),
        expected,
        "{script}\n{:#?}",
        world.plan.reasons
    );
}

/// The reasons of the script's last decision.
fn check_why(script: &str, expected: &[&str]) {
    let mut world = World::new();
    world.run(script);
    let reasons: Vec<String> = world.plan.reasons.iter().map(ToString::to_string).collect();
    assert_eq!(reasons, expected, "{script}: {}", world.show());
}

/// All events since the start, or since `quiet`.
fn check_events(script: &str, expected: &[&str]) {
    let mut world = World::new();
    world.run(script);
    assert_eq!(world.events, expected, "{script}: {}", world.show());
}

/// Whom the script's last decision tells what.
fn check_told(script: &str, expected: &[&str]) {
    let mut world = World::new();
    world.run(script);
    let events = world.plan.events.iter();
    let told: Vec<String> = events
        .map(|event| match &event.target {
            EventTarget::Pod(pod) => format!("pod {}: {}", pod.name, event.message),
            EventTarget::Claim(claim) => format!("claim {}: {}", claim.name, event.message),
            EventTarget::Volume(volume) => format!("volume {volume}: {}", event.message),
        })
        .collect();
    assert_eq!(told, expected, "{script}: {}", world.show());
}

#[test]
fn a_scheduled_pod_gets_its_volume() {
    check("pod a pv1 n1; step", "pv1@n1?");
    check_why("pod a pv1 n1; step", &["volume pv1 is attached to node n1"]);
    check("pod a pv1 n1; settle", "pv1@n1");
    check_why(
        "stuck; pod a pv1 n1; step; step",
        &["waiting until the driver has attached volume pv1 to node n1"],
    );
    check_events(
        "pod a pv1 n1; settle",
        &["AttachVolume.Attach succeeded for volume \"pv1\""],
    );
    // Nodes learn it after it is attached.
    let mut world = World::new();
    world.run("pod a pv1 n1; step");
    assert!(world.view.nodes[&"n1".into()].volumes_attached.is_empty());
    world.run("settle");
    assert!(
        world.view.nodes[&"n1".into()]
            .volumes_attached
            .contains(&super::unique("pv1"))
    );
}

#[test]
fn a_deleted_pod_gives_it_back() {
    check("pod a pv1 n1; settle; delete-pod a; step", "pv1@n1");
    check_why(
        "pod a pv1 n1; settle; delete-pod a; step",
        &["volume pv1 is not detached from node n1 yet: it is still mounted there"],
    );
    check("pod a pv1 n1; settle; delete-pod a; settle", "");
    check("pod a pv1 n1; settle; finish a; settle", "");
    check("pod a pv1 n1; settle; terminate a; settle", "pv1@n1");
    check(
        "pod a pv1 n1; settle; terminate a; stop-containers a; settle",
        "",
    );
    check(
        "pod a pv1 n1; pod b pv1 n1; settle; delete-pod a; settle",
        "pv1@n1",
    );
    check_events(
        "pod a pv1 n1; settle; quiet; delete-pod a; settle",
        &["DetachVolume.Detach succeeded for volume \"pv1\" on node \"n1\""],
    );
}

/// The watch may be behind what was written last, in which the volume was attached.
#[test]
fn a_node_is_told_of_a_loss_also_where_its_list_seems_right() {
    let mut world = World::new();
    world.run("pod a pv1 n1; settle; delete-pod a");
    world.edit("n1", |node| {
        node.volumes_in_use.clear();
        node.volumes_attached.clear();
    });
    let plan = decide(&world.view, &world.memory, world.now);
    assert_eq!(plan.delete.len(), 1);
    let told: Vec<_> = plan.node_status.into_iter().collect();
    assert_eq!(told, [("n1".into(), BTreeSet::new())]);
}

#[test]
fn what_is_not_ours_is_left_alone() {
    check("unmanaged n1; pod a pv1 n1; settle", "");
    check("attachless; pod a pv1 n1; settle", "");
    check("foreign-attachment n1; settle", "inline@n1");
    check_why(
        "unbind pv1; pod a pv1 n1; settle",
        &["pod default/a: claim default/pv1 is not bound"],
    );
    check_why(
        "reclaim pv1; pod a pv1 n1; settle",
        &["pod default/a: volume pv1 belongs to another claim than default/pv1"],
    );
    check_why(
        "delete-pv pv1; pod a pv1 n1; settle",
        &["pod default/a: volume pv1 does not exist"],
    );
    check_why(
        "pod a pv1 n9; settle",
        &["pod default/a: node n9 does not exist"],
    );
}

#[test]
fn one_node_at_a_time_for_exclusive_volumes() {
    let both = "pod a pv1 n1; settle; pod b pv1 n2; settle";
    check(both, "pv1@n1");
    check_why(
        both,
        &["volume pv1 waits for node n2: it is attached to node n1"],
    );
    check_events(
        &format!("{both}; settle; settle"),
        &[
            "AttachVolume.Attach succeeded for volume \"pv1\"",
            "Multi-Attach error for volume \"pv1\" Volume is already used by pod(s) a",
            "volume pv1 waits for node n2: it is attached to node n1",
        ],
    );
    check(&format!("{both}; delete-pod a; settle"), "pv1@n2");
    check(
        "pod a pv2 n1; pod b pv2 n2; pod c pv2 n3; settle",
        "pv2@n1 pv2@n2 pv2@n3",
    );
    check(
        "pv pv3 ROX; pod a pv3 n1; pod b pv3 n2; settle",
        "pv3@n1 pv3@n2",
    );
    check(
        "pv pv3 RWOP; pod a pv3 n1; settle; pod b pv3 n2; settle",
        "pv3@n1",
    );
    // Two pods at once: the older one.
    check("pod b pv1 n2; pod a pv1 n1; settle", "pv1@n2");
    check_why(
        "pod b pv1 n2; pod a pv1 n1; step",
        &[
            "volume pv1 waits for node n1: a pod on node n2 came first",
            "volume pv1 is attached to node n2",
        ],
    );
}

#[test]
fn doubt_counts_as_attached() {
    // An attach that never came back.
    let attaching = "stuck; pod a pv1 n1; step; delete-pod a; pod b pv1 n2; step; step";
    check(attaching, "pv1@n1~");
    check_why(
        "stuck; pod a pv1 n1; step; pod b pv1 n2; step",
        &[
            "volume pv1 waits for node n2: it may be attached to node n1",
            "waiting until the driver has attached volume pv1 to node n1",
        ],
    );
    // A detach that never came back.
    let detaching = "pod a pv1 n1; settle; stuck; delete-pod a; pod b pv1 n2; settle";
    check(detaching, "pv1@n1~");
    let mut world = World::new();
    world.run(detaching);
    let reasons: Vec<String> = world.plan.reasons.iter().map(ToString::to_string).collect();
    assert_eq!(
        reasons[1],
        "volume pv1 waits for node n2: it may still be attached to node n1"
    );
    check(&format!("{detaching}; unstuck; settle"), "pv1@n2");
    // The attachment was removed by hand, but the node still has it mounted.
    let by_hand = "pod a pv1 n1; settle; lose-attachments; delete-pod a; pod b pv1 n2; step";
    check(by_hand, "");
    check_why(
        by_hand,
        &["volume pv1 waits for node n2: it is still mounted on node n1"],
    );
    check(&format!("{by_hand}; fence pv1 n1; step"), "pv1@n2?");
    check(&format!("{by_hand}; settle"), "pv1@n2");
    // A silent node's list is old: removing the attachment by hand is the last resort, and works.
    check(
        "pod a pv1 n1; settle; lose n1; delete-pod a; lose-attachments; pod b pv1 n2; settle",
        "pv1@n2",
    );
}

#[test]
fn an_attachment_that_is_being_deleted_is_waited_for() {
    check_why(
        "pod a pv1 n1; settle; stuck; delete-attachments; step",
        &[
            &format!(
                "waiting until the driver has detached {} from node n1",
                super::unique("pv1").attachment_on(&"n1".into())
            ),
            &format!(
                "attachment {} to node n1 is being deleted; a new one follows",
                super::unique("pv1").attachment_on(&"n1".into())
            ),
        ],
    );
    check("pod a pv1 n1; settle; delete-attachments; settle", "pv1@n1");
}

#[test]
fn a_crashed_node_holds_its_volume_until_it_is_safe() {
    let crashed = "pod a pv1 n1; settle; lose n1; delete-pod a; pod b pv1 n2; settle";
    check(crashed, "pv1@n1");
    check_why(
        crashed,
        &[
            "volume pv1 is not detached from node n1 yet: the node does not answer; released in 360 s, or at once with a fence proof",
            "volume pv1 waits for node n2: it is attached to node n1",
        ],
    );
    check(&format!("{crashed}; tick 359; settle"), "pv1@n1");
    check(&format!("{crashed}; tick 360; settle"), "pv1@n2");
    check(
        &format!("{crashed}; never-force; tick 360; settle"),
        "pv1@n1",
    );
    check(&format!("{crashed}; off n1; settle"), "pv1@n2");
    check(&format!("{crashed}; fence pv1 n1; settle"), "pv1@n2");
    check(&format!("{crashed}; back n1; settle"), "pv1@n2");
    // `kubectl delete node`: the node may still run, unless there is a proof.
    check(&format!("{crashed}; delete-node n1; settle"), "pv1@n1");
    check(
        &format!("{crashed}; delete-node n1; tick 360; settle"),
        "pv1@n2",
    );
    check(
        &format!("{crashed}; delete-node n1; fence pv1 n1; settle"),
        "pv1@n2",
    );
    // A controller that restarts begins to wait again; it does not forget.
    check(
        &format!("{crashed}; tick 300; restart; settle; tick 300; settle"),
        "pv1@n1",
    );
    check(
        &format!("{crashed}; tick 300; restart; settle; tick 360; settle"),
        "pv1@n2",
    );
}

#[test]
fn a_migrations_lost_target_gives_up_what_is_written_elsewhere() {
    let lost =
        "pv shared RWX; pod a shared n1; pod b shared n2; settle; lose n2; delete-pod b; settle";
    check(lost, "shared@n1 shared@n2");
    check(&format!("{lost}; writer shared n1; settle"), "shared@n1");
    // The writer itself is lost: only a proof shuts it out.
    check(
        &format!("{lost}; writer shared n2; settle"),
        "shared@n1 shared@n2",
    );
}

#[test]
fn with_a_proof_the_pod_on_the_lost_node_does_not_matter() {
    // Nobody deletes the pod: its owner is an operator that waits.
    let lost = "pod a pv1 n1; settle; lose n1; pod b pv1 n2; settle";
    check(lost, "pv1@n1");
    check(&format!("{lost}; fence pv1 n1; settle"), "pv1@n2");
    check_events(
        &format!("{lost}; quiet; fence pv1 n1; settle"),
        &[
            "Volume \"pv1\" is detached from node \"n1\" although it is in use there: the volume is fenced, so nothing there can write",
            "DetachVolume.Detach succeeded for volume \"pv1\" on node \"n1\"",
            "AttachVolume.Attach succeeded for volume \"pv1\"",
        ],
    );
    // Another volume's proof is no proof.
    check(&format!("{lost}; fence pv2 n1; settle"), "pv1@n1");
    check(&format!("{lost}; fence pv1 n2; settle"), "pv1@n1");
    // Back again, its pod waits its turn.
    check(
        &format!("{lost}; fence pv1 n1; settle; back n1; settle"),
        "pv1@n2",
    );
}

#[test]
fn a_missing_volume_object_does_not_stop_a_detach() {
    check(
        "pod a pv1 n1; settle; delete-pod a; delete-pv pv1; settle",
        "",
    );
    check(
        "pod a pv1 n1; settle; lose n1; delete-pod a; delete-pv pv1; settle",
        "pv1@n1",
    );
}

#[test]
fn nodes_have_limits() {
    check("limit n1 1; pod a pv1 n1; pod b pv2 n1; settle", "pv1@n1");
    check_why(
        "limit n1 1; pod a pv1 n1; pod b pv2 n1; settle",
        &["volume pv2 waits: node n1 has 1 volumes of driver.longhorn.io, and 1 are allowed"],
    );
    check(
        "limit n1 1; pod a pv1 n1; pod b pv2 n1; settle; delete-pod a; settle",
        "pv2@n1",
    );
    check(
        "limit n1 0; pod a pv1 n1; pod b pv2 n1; settle",
        "pv1@n1 pv2@n1",
    );
    check(
        "limit n1 none; pod a pv1 n1; pod b pv2 n1; settle",
        "pv1@n1 pv2@n1",
    );
}

#[test]
fn failures_are_told_once() {
    let failing = "stuck; pod a pv1 n1; step; fail-attach boom; step";
    check_events(
        &format!("{failing}; step; step"),
        &[
            "AttachVolume.Attach failed for volume \"pv1\" : boom",
            "attaching volume pv1 to node n1 fails: boom",
        ],
    );
    check_why(failing, &["attaching volume pv1 to node n1 fails: boom"]);
    check_events(
        &format!("{failing}; fail-attach bang; step; quiet; unstuck; settle"),
        &["AttachVolume.Attach succeeded for volume \"pv1\""],
    );
    // Changed problems are told anew.
    check_events(
        &format!("{failing}; quiet; fail-attach bang; step"),
        &[
            "AttachVolume.Attach failed for volume \"pv1\" : bang",
            "attaching volume pv1 to node n1 fails: bang",
        ],
    );
    check_events(
        "pod a pv1 n1; settle; quiet; stuck; delete-pod a; settle; fail-detach busy; step; step",
        &["DetachVolume.Detach failed for volume \"pv1\" on node \"n1\" : busy"],
    );
}

#[test]
fn a_refusal_is_told_to_the_pod_and_to_the_volume() {
    check_told(
        "pod a pv1 n1; settle; pod b pv1 n2; step",
        &[
            "pod b: Multi-Attach error for volume \"pv1\" Volume is already used by pod(s) a",
            "volume pv1: volume pv1 waits for node n2: it is attached to node n1",
        ],
    );
    check_told(
        "pod b pv1 n2; pod a pv1 n1; step",
        &[
            "pod a: Multi-Attach error for volume \"pv1\" Volume is already used by pod(s) b",
            "volume pv1: volume pv1 waits for node n1: a pod on node n2 came first",
        ],
    );
    check_told(
        "stuck; pod a pv1 n1; step; fail-attach boom; step",
        &[
            "pod a: AttachVolume.Attach failed for volume \"pv1\" : boom",
            "volume pv1: attaching volume pv1 to node n1 fails: boom",
        ],
    );
    let full = "volume pv2 waits: node n1 has 1 volumes of driver.longhorn.io, and 1 are allowed";
    check_told(
        "limit n1 1; pod a pv1 n1; settle; pod b pv2 n1; step",
        &[
            &format!("pod b: AttachVolume.Attach failed for volume \"pv2\" : {full}"),
            &format!("volume pv2: {full}"),
        ],
    );
    // Waiting is not told again, also if it is for another reason meanwhile; a new wait is.
    let waits = "pod a pv1 n1; settle; pod b pv1 n2; step";
    check_told(&format!("{waits}; stuck; delete-pod a; act; step"), &[]);
    check_told(
        &format!("{waits}; delete-pod b; step; pod b pv1 n2; step"),
        &[
            "pod b: Multi-Attach error for volume \"pv1\" Volume is already used by pod(s) a",
            "volume pv1: volume pv1 waits for node n2: it is attached to node n1",
        ],
    );
}
