//! Scenarios: a script, and what the volume looks like after it. See `support` for the vocabulary.

mod support;

use support::{World, apply};
use volume_core::{EngineDesired, EngineName, Epoch, decide};

/// The state after the script.
fn check(script: &str, expected: &str) {
    let mut world = World::new();
    world.run(script);
    assert_eq!(world.show(), expected, "{script}\n{:#?}", world.reasons);
}

/// The reasons of the script's last decision.
fn check_why(script: &str, expected: &[&str]) {
    let mut world = World::new();
    world.run(script);
    assert_eq!(world.reasons, expected, "{script}: {}", world.show());
}

#[test]
fn a_volume_is_created_attached_and_detached() {
    check("step", "detached unknown e0 [0@n1 1@n2 2@n3]");
    check(
        "settle; attach n1; settle",
        "attached healthy @n1 e1 [0@n1 1@n2 2@n3]",
    );
    check(
        "settle; attach n1; settle; detach; settle",
        "detached unknown e1 [0@n1 1@n2 2@n3]",
    );
    check(
        "attach n1; settle; detach; settle; attach n2; settle",
        "attached healthy @n2 e2 [0@n1 1@n2 2@n3]",
    );
    check_why("attach n1; settle", &[]);
    check_why(
        "attach n1; step; act; step",
        &[
            "engine epoch 1 starts on node n1 with replicas v-r-00000000, v-r-00000001, v-r-00000002",
        ],
    );
}

#[test]
fn creation_waits_for_disks_or_goes_ahead_degraded() {
    check(
        "nodes n1 n2; attach n1; settle",
        "attached degraded @n1 e1 [0@n1 1@n2]",
    );
    check(
        "nodes n1 n2; no-degraded; attach n1; settle",
        "creating unknown e0 [ | 0@n1 1@n2]",
    );
    check(
        "nodes n1 n2 n3; cordon n3; settle; uncordon n3; settle",
        "detached unknown e0 [0@n1 1@n2 2@n3]",
    );
    check_why(
        "nodes n1 n2; no-degraded; settle",
        &[
            "no disk can take another replica: n1/d: node already has a replica; n2/d: node already has a replica",
        ],
    );
    // The record was written but the replicas were not: nothing is lost, names are not reused.
    check(
        "settle; lose-objects; settle",
        "detached unknown e0 [3@n1 4@n2 5@n3]",
    );
}

/// An engine closes its front end by itself: one that were started again for that would only have to be ended twice.
#[test]
fn stopping_goes_engine_replicas() {
    let attached = "attach n1; settle; detach; step";
    check_why(attached, &["engine epoch 1 is stopping on node n1"]);
    check(attached, "detaching unknown @n1 e1 [0@n1 1@n2 2@n3]");
    check_why(
        &format!("{attached}; act; step"),
        &["replicas are stopping: v-r-00000000, v-r-00000001, v-r-00000002"],
    );
    check(
        &format!("{attached}; settle"),
        "detached unknown e1 [0@n1 1@n2 2@n3]",
    );
    // Wanted again half-way: down first, up with a new epoch.
    check(
        &format!("{attached}; attach n1; settle"),
        "attached healthy @n1 e2 [0@n1 1@n2 2@n3]",
    );
    check(
        "attach n1; settle; attach n2; step",
        "detaching unknown @n1 e1 [0@n1 1@n2 2@n3]",
    );
    check(
        "attach n1; settle; attach n2; settle",
        "attached healthy @n2 e2 [0@n1 1@n2 2@n3]",
    );
    check_why(
        "attach n1; settle; migrate n2; settle; roll-back; step",
        &["engine epoch 2 is stopping on node n2"],
    );
}

/// The record is written before the engines, which are written side by side: a conflict or a crash leaves any of them as it was.
#[test]
fn a_hand_over_that_is_cut_short_is_finished() {
    let confirmed = "attach n1; settle; migrate n2; settle; attach n2; roll-back";
    for told in [&[][..], &[1], &[2], &[1, 2]] {
        let mut world = World::new();
        world.run(confirmed);
        let mut plan = decide(&world.view, world.now);
        assert_eq!(plan.status.record.epoch, Epoch(2));
        for (name, spec) in &mut plan.engines {
            if !told.contains(&spec.epoch.0) {
                *spec = world.view.engines[name].spec.clone();
            }
        }
        apply(&mut world.view, plan);
        let standby = EngineName::of(&world.view.volume.name, Epoch(2));
        for _ in 0..20 {
            world.step();
            let spec = &world.view.engines[&standby].spec;
            assert_ne!(spec.desired, EngineDesired::Stopped, "{told:?}");
            world.run("act");
        }
        assert_eq!(
            world.show(),
            "attached healthy @n2 e2 [0@n1 1@n2 2@n3]",
            "{told:?}"
        );
    }
}

#[test]
fn an_engine_that_stops_is_told_the_answer_to_its_proposal_before() {
    let desired = |script: &str| {
        let mut world = World::new();
        world.run(script);
        let engines = world.view.engines.values();
        engines
            .map(|engine| engine.spec.desired)
            .collect::<Vec<_>>()
    };
    let proposed = "attach n1; settle; lose n2; act; detach; step; expect-answer";
    assert_eq!(
        desired(proposed),
        [EngineDesired::Running { frontend: true }]
    );
    assert_eq!(
        desired(&format!("{proposed}; act; step")),
        [EngineDesired::Stopped]
    );
    check(
        &format!("{proposed}; settle"),
        "detached unknown e1 [0@n1 2@n3 | 1@n2!]",
    );
}

#[test]
fn the_frontend_follows_the_spec() {
    check(
        "no-frontend; attach n1; settle",
        "attached healthy @n1 e1 [0@n1 1@n2 2@n3]",
    );
    check(
        "attach n1; settle; no-frontend; settle",
        "attached healthy @n1 e1 [0@n1 1@n2 2@n3]",
    );
    check_why(
        "attach n1; settle; no-frontend; step",
        &["the block device is being closed on node n1"],
    );
    check_why(
        "no-frontend; attach n1; settle; frontend; step",
        &["the block device is being opened on node n1"],
    );
}

#[test]
fn deletion_takes_engines_then_replicas() {
    check(
        "attach n1; settle; delete; step",
        "deleting healthy @n1 e1 [0@n1 1@n2 2@n3]",
    );
    check(
        "attach n1; settle; delete; settle",
        "deleting healthy e1 [0@? 1@? 2@?]",
    );
    check(
        "attach n1; settle; lose n1; settle; delete; settle",
        "deleting unknown e2 [0@? 1@? 2@?] fenced n1 by e2",
    );
}

#[test]
fn a_dead_disk_that_keeps_a_deleted_volume_is_named() {
    let detached = "attach n1; settle; detach; settle; break-disk n2";
    let keeps = "replica v-r-00000001 cannot be deleted while disk d of node n2 is not served: mount the disk again, or give \
                 it up with `lariat disk remove n2 d --dead`";
    check_why(
        &format!("{detached}; delete; step"),
        &["the volume is being deleted", keeps],
    );
    // It was given up already, and its node lets the replica go.
    check_why(
        &format!("{detached}; unlist-disk n2; delete; step"),
        &["the volume is being deleted"],
    );
    // Of a node that does not answer, nobody knows the disks; it is not waited for.
    check_why(
        &format!("{detached}; lose n2; delete; step"),
        &["the volume is being deleted"],
    );
}

#[test]
fn a_lost_node_is_fenced_before_anything_else_starts() {
    let lost = "attach n1; settle; lose n1";
    check(
        &format!("{lost}; step"),
        "detaching unknown @n1 e2 [0@n1 1@n2 2@n3]",
    );
    check_why(
        &format!("{lost}; step"),
        &[
            "node n1 does not answer, so engine epoch 1 may still be running there",
            "the engine on node n1 is superseded by epoch 2; waiting until it is accepted by v-r-00000001, v-r-00000002",
        ],
    );
    check(
        &format!("{lost}; settle"),
        "detached unknown e2 [0@n1 1@n2 2@n3] fenced n1 by e2",
    );
    check(
        &format!("{lost}; settle; attach n2; settle"),
        "attached degraded @n2 e3 [1@n2 2@n3 | 0@n1!] fenced n1 by e2",
    );
    check(
        &format!("{lost}; settle; detach; settle"),
        "detached unknown e2 [0@n1 1@n2 2@n3] fenced n1 by e2",
    );
    // No answer from the replicas, no proof, no new engine.
    check(
        &format!("{lost}; attach n2; freeze; settle"),
        "detaching unknown @n1 e2 [0@n1 1@n2 2@n3]",
    );
    // Out of service and deleted nodes are lost at once.
    check(
        "attach n1; settle; off n1; settle",
        "detached unknown e2 [0@n1 1@n2 2@n3] fenced n1 by e2",
    );
    check(
        "attach n1; settle; delete-node n1; settle; attach n2; settle",
        "attached degraded @n2 e3 [1@n2 2@n3] fenced n1 by e2",
    );
    // Lost while it was being detached.
    check(
        "attach n1; settle; detach; step; lose n1; settle",
        "detached unknown e2 [0@n1 1@n2 2@n3] fenced n1 by e2",
    );
}

#[test]
fn fencing_waits_as_long_as_it_is_told() {
    let lost = "attach n1; settle; fence-after 30; lose n1; settle";
    check(lost, "attached unknown @n1 e1 [0@n1 1@n2 2@n3]");
    check(
        &format!("{lost}; tick 29; settle"),
        "attached unknown @n1 e1 [0@n1 1@n2 2@n3]",
    );
    check(
        &format!("{lost}; tick 30; settle"),
        "detached unknown e2 [0@n1 1@n2 2@n3] fenced n1 by e2",
    );
    check(
        &format!("{lost}; tick 29; back n1; settle"),
        "attached healthy @n1 e1 [0@n1 1@n2 2@n3]",
    );
}

#[test]
fn the_only_replica_on_the_lost_node_cannot_be_fenced() {
    let lost = "replicas 1; attach n1; settle; lose n1; settle";
    check(lost, "attached unknown @n1 e1 [0@n1]");
    check_why(
        lost,
        &[
            "node n1 does not answer, so engine epoch 1 may still be running there",
            "no in-sync replica outside node n1 can be reached, so its engine cannot be fenced",
        ],
    );
    check(
        &format!("{lost}; back n1; settle"),
        "attached healthy @n1 e1 [0@n1]",
    );
}

#[test]
fn a_returned_node_finds_itself_fenced_and_its_replica_is_rebuilt() {
    let moved = "attach n1; settle; lose n1; settle; attach n2; settle";
    check_why(
        &format!("{moved}; back n1; settle"),
        &["replica v-r-00000000 may come back; another takes its place in 5 s"],
    );
    check(
        &format!("{moved}; back n1; settle; tick 6; settle"),
        "attached healthy @n2 e3 [0@n1 1@n2 2@n3] fenced n1 by e2",
    );
    // Back before anyone moved it: a new incarnation in the old place.
    check(
        "attach n1; settle; lose n1; settle; back n1; settle",
        "attached healthy @n1 e3 [0@n1 1@n2 2@n3] fenced n1 by e2",
    );
}

#[test]
fn a_crashed_engine_is_replaced_with_growing_patience() {
    check(
        "attach n1; settle; crash-engine; settle",
        "attached healthy @n1 e2 [0@n1 1@n2 2@n3]",
    );
    let twice = "attach n1; settle; crash-engine; settle; crash-engine; step";
    check_why(
        twice,
        &[
            "engine epoch 2 on node n1 failed: killed",
            "the engine failed 2 times in a row; next start in 1 s",
        ],
    );
    check(
        &format!("{twice}; tick 1; settle"),
        "attached healthy @n1 e3 [0@n1 1@n2 2@n3]",
    );
    // A quiet while, and the count starts again.
    check_why(
        &format!("{twice}; tick 1; settle; tick 300; settle; crash-engine; step"),
        &[
            "engine epoch 3 on node n1 failed: killed",
            "engine epoch 4 starts on node n1 with replicas v-r-00000000, v-r-00000001, v-r-00000002",
        ],
    );
    // A detach too: who attaches again has a patience of his own.
    check(
        &format!("{twice}; detach; settle; attach n1; settle"),
        "attached healthy @n1 e3 [0@n1 1@n2 2@n3]",
    );
}

/// What releases the Kubernetes attachment of a lost node.
#[test]
fn a_fenced_node_is_named_until_it_has_the_volume_again() {
    let fenced = |script: &str| {
        let mut world = World::new();
        world.run(script);
        world.view.status.fenced_node().map(ToString::to_string)
    };
    assert_eq!(fenced("attach n1; settle"), None);
    assert_eq!(
        fenced("attach n1; settle; lose n1; step"),
        None,
        "not before the replicas have answered"
    );
    let lost = "attach n1; settle; lose n1; settle";
    assert_eq!(fenced(lost).as_deref(), Some("n1"));
    assert_eq!(
        fenced(&format!("{lost}; attach n2; settle")).as_deref(),
        Some("n1")
    );
    assert_eq!(fenced(&format!("{lost}; back n1; settle")), None);
}

/// Mounts made before a device was replaced are dead.
#[test]
fn a_replaced_device_asks_for_a_remount() {
    let asked = |script: &str| {
        let mut world = World::new();
        world.run(script);
        world.view.status.remount_requested_at.is_some()
    };
    assert!(!asked(
        "attach n1; settle; detach; settle; attach n1; settle"
    ));
    assert!(asked("attach n1; settle; crash-engine; step"));
    assert!(asked("attach n1; settle; lose n1; step"));
    assert!(asked(
        "attach n1; settle; detach; settle; fail 0; fail 1; fail 2; settle; mend 1; settle"
    ));
}
