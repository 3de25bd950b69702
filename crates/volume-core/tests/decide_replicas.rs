//! Scenarios around replicas, growth and migration: a script, and what the volume looks like after it. See `support` for the vocabulary.

mod support;

use support::World;

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
fn a_lost_replica_leaves_the_set_and_is_replaced() {
    check(
        "attach n1; settle; lose n2; settle",
        "attached degraded @n1 e1 [0@n1 2@n3 | 1@n2!]",
    );
    check_why(
        "attach n1; settle; lose n2; settle",
        &["replica v-r-00000001 may come back; another takes its place in 600 s"],
    );
    check(
        "attach n1; settle; lose n2; settle; back n2; tick 5; settle",
        "attached healthy @n1 e1 [0@n1 1@n2 2@n3]",
    );
    check(
        "nodes n1 n2 n3 n4; attach n1; settle; lose n2; settle; tick 600; settle",
        "attached healthy @n1 e1 [0@n1 2@n3 3@n4]",
    );
    check_why(
        "attach n1; settle; lose n2; settle; tick 600; settle",
        &[
            "no disk can take another replica: n1/d: node already has a replica; n2/d: node is lost; n3/d: node already has a replica",
        ],
    );
    // An error of its own is not waited for; a silent node is.
    check(
        "nodes n1 n2 n3 n4; attach n1; settle; fail 1; settle",
        "attached healthy @n1 e1 [0@n1 2@n3 3@n4]",
    );
    check(
        "nodes n1 n2 n3 n4; attach n1; settle; delete-node n2; settle",
        "attached healthy @n1 e1 [0@n1 2@n3 3@n4]",
    );
    // The last member is never left behind.
    check(
        "replicas 1; attach n1; settle; detach; settle; attach n2; settle; lose n1; settle",
        "attached unknown @n2 e2 [0@n1]",
    );
    // A replacement whose node is lost before it was built is replaced in turn.
    check(
        "nodes n1 n2 n3 n4 n5; attach n1; settle; busy n4; fail 1; settle; lose n4; settle; tick 600; settle",
        "attached healthy @n1 e1 [0@n1 2@n3 4@n5]",
    );
    // Rebuilds wait for each other and for busy nodes.
    check_why(
        "nodes n1 n2 n3 n4; attach n1; settle; busy n4; fail 1; settle",
        &["the rebuild of replica v-r-00000003 waits for others to finish on node n4"],
    );
}

/// What keeps the node busy is another volume, whose end changes nothing of this one's.
#[test]
fn a_rebuild_that_waits_for_a_busy_node_looks_again() {
    let mut world = World::new();
    world.run("nodes n1 n2 n3 n4; attach n1; settle; busy n4; fail 1; settle");
    let waiting = volume_core::decide(&world.view, world.now);
    assert!(waiting.recheck_after.is_some(), "{:?}", waiting.reasons);
}

/// Nobody will ever say where the lost one is served, and the engine would wait for that.
#[test]
fn an_engine_that_has_not_started_does_without_what_was_lost_meanwhile() {
    let listed = |script: &str| {
        let mut world = World::new();
        world.run(script);
        let engine = world.view.engines.values().last().expect("an engine");
        let names = engine.spec.replicas.keys();
        let ordinals = names.map(|name| name.ordinal().expect("our own name"));
        ordinals.collect::<Vec<_>>()
    };
    let planned = "attach n1; step; act; step";
    assert_eq!(listed(planned), [0, 1, 2]);
    assert_eq!(listed(&format!("{planned}; fail 2; step")), [0, 1]);
    assert_eq!(listed(&format!("{planned}; remove-disk n3; step")), [0, 1]);
    assert_eq!(
        listed(&format!("{planned}; remove-replica 2; step")),
        [0, 1]
    );
    let all = format!("{planned}; fail 0; fail 1; fail 2; step");
    assert_eq!(listed(&all), [0, 1, 2], "there is nothing to start with");
    // A silent node's replica may answer the engine.
    assert_eq!(listed(&format!("{planned}; lose n3; step")), [0, 1, 2]);
    // One that has a process sees for itself.
    assert_eq!(listed(&format!("{planned}; act; fail 2; step")), [0, 1, 2]);
    let launched = format!("{planned}; launch-engine");
    assert_eq!(listed(&format!("{launched}; close 2; step")), [0, 1, 2]);
    // One that is served again in time is used after all.
    let blink = format!("{planned}; close 2; step");
    assert_eq!(listed(&blink), [0, 1]);
    assert_eq!(listed(&format!("{blink}; serve 2; step")), [0, 1, 2]);
    check(
        &format!("{blink}; serve 2; step; settle"),
        "attached healthy @n1 e1 [0@n1 1@n2 2@n3]",
    );
    let other = format!("{blink}; close 1; step; serve 2; close 0; step");
    assert_eq!(listed(&other), [2], "the others wait for nobody");
    let late = format!("{blink}; launch-engine; serve 2; step");
    assert_eq!(listed(&late), [0, 1], "it was started without");
    // Nobody begins to count on a silent node, whose last word was that it serves.
    let failover = "attach n1; settle; lose n1; settle; attach n2; step; act; step";
    assert_eq!(listed(failover), [1, 2]);
    assert_eq!(listed(&format!("{failover}; step")), [1, 2]);
    check(
        &format!("{planned}; fail 2; step; settle"),
        "attached healthy @n1 e1 [0@n1 1@n2 3@n3]",
    );
}

#[test]
fn eviction_copies_first_and_removes_after() {
    let four = "nodes n1 n2 n3 n4; attach n1; settle";
    check(
        &format!("{four}; evict n1; settle"),
        "attached healthy @n1 e1 [1@n2 2@n3 3@n4]",
    );
    check(
        &format!("{four}; evict-node n2; settle"),
        "attached healthy @n1 e1 [0@n1 2@n3 3@n4]",
    );
    check(
        &format!("{four}; evict n2; step"),
        "attached healthy @n1 e1 [0@n1 1@n2 2@n3 | 3@n4]",
    );
    check_why(
        "attach n1; settle; evict n2; settle",
        &[
            "replica v-r-00000001 leaves n2/d as soon as another has taken its place",
            "no disk can take another replica: n1/d: node already has a replica; \
             n2/d: disk does not allow scheduling, disk is being evicted; n3/d: node already has a replica",
        ],
    );
    check(
        "attach n1; settle; evict n2; settle",
        "attached healthy @n1 e1 [0@n1 1@n2 2@n3]",
    );
}

#[test]
fn a_disk_that_was_taken_from_its_node_is_left_at_once() {
    let four = "nodes n1 n2 n3 n4; attach n1; settle";
    let healthy = "attached healthy @n1 e1 [0@n1 2@n3 3@n4]";
    // One that is there still is copied from its replica or the others', one that is gone from the others.
    check(&format!("{four}; unlist-disk n2; settle"), healthy);
    check(
        &format!("{four}; break-disk n2; unlist-disk n2; settle"),
        healthy,
    );
    // Without that the volume waits whether it comes back.
    let missed = "attached degraded @n1 e1 [0@n1 2@n3 | 1@n2!]";
    check(&format!("{four}; break-disk n2; settle"), missed);
    check(
        &format!("{four}; break-disk n2; settle; unlist-disk n2; settle"),
        healthy,
    );
    // Nothing is rebuilt onto it when it comes back.
    check(
        "attach n1; settle; break-disk n2; settle; unlist-disk n2; mend-disk n2; tick 6; settle",
        "attached degraded @n1 e1 [0@n1 2@n3]",
    );
    // What is the only one stays.
    check(
        "replicas 1; nodes n2; attach n2; settle; unlist-disk n2; settle",
        "attached healthy @n2 e1 [0@n2]",
    );
}

/// Whether a ticket of an eviction, or of the replacement that follows one, would do something.
#[test]
fn a_volume_is_attached_for_its_replicas_only_if_that_helps() {
    let check = |script: &str, expected: (bool, bool)| {
        let mut world = World::new();
        world.run(script);
        let said = (
            world.view.eviction_possible(),
            world.view.replacement_possible(),
        );
        assert_eq!(said, expected, "{script}: {}", world.show());
    };
    let four = "nodes n1 n2 n3 n4; attach n1; settle; detach; settle";
    let two = "nodes n1 n2; replicas 1; attach n1; settle; detach; settle";
    check(four, (false, false));
    check(&format!("{four}; evict n2"), (true, false));
    check(&format!("{four}; evict-node n2"), (true, false));
    check(
        &format!("{four}; break-disk n2; unlist-disk n2"),
        (true, false),
    );
    // There is nowhere to go.
    check(&format!("{four}; cordon n4; evict n2"), (false, false));
    // The only one can be copied from, unless its disk is away.
    check(&format!("{two}; unlist-disk n1"), (true, false));
    check(
        &format!("{two}; break-disk n1; unlist-disk n1"),
        (false, false),
    );
    check(&format!("{two}; lose n1; evict n1"), (false, false));
    // It leaves at once when the volume is attached without it, and another one is still to be made.
    let left = format!("{four}; evict n2; break-disk n2; attach n1; step");
    let rounds = |count: usize| format!("{left}{}", "; act; step".repeat(count));
    check(&rounds(1), (true, false));
    check(&rounds(2), (false, true));
    check(&rounds(4), (false, true));
    check(&rounds(5), (false, false));
    // One that can be read stays until the other one is there, which has the last place.
    let copied = |rounds: usize| {
        let rounds = "; act; step".repeat(rounds);
        format!("{four}; evict n2; attach n1; step{rounds}")
    };
    for count in 0..8 {
        check(&copied(count), (true, false));
    }
    check(&format!("{}; settle", copied(8)), (false, false));
    let copying = copied(2);
    check(&format!("{copying}; detach; settle"), (true, false));
    check(
        &format!("{copying}; detach; settle; attach n1; settle"),
        (false, false),
    );
    // Nobody could make one.
    check(
        &format!("{left}; settle; cordon n1; cordon n3; fail 3; cordon n4; settle"),
        (false, false),
    );
}

#[test]
fn an_engine_is_never_left_waiting_for_a_replica_that_goes_as_it_joins() {
    let joining =
        "nodes n1 n2 n3 n4; attach n1; settle; lose n2; settle; back n2; tick 5; until-proposed 1";
    check(
        &format!("{joining}; settle"),
        "attached healthy @n1 e1 [0@n1 1@n2 2@n3]",
    );
    check(
        &format!("{joining}; fail 1; settle"),
        "attached healthy @n1 e1 [0@n1 2@n3 3@n4]",
    );
    check(
        &format!("{joining}; lose n2; settle"),
        "attached degraded @n1 e1 [0@n1 2@n3 | 1@n2!]",
    );
    check(
        &format!("{joining}; evict n2; settle"),
        "attached healthy @n1 e1 [0@n1 2@n3 3@n4]",
    );
    check(
        &format!("{joining}; remove-disk n2; settle"),
        "attached healthy @n1 e1 [0@n1 2@n3 3@n4]",
    );
    check(
        &format!("{joining}; remove-replica 1; settle"),
        "attached healthy @n1 e1 [0@n1 2@n3 3@n4]",
    );
    // One that is deleted or detached meanwhile ends in order, too.
    check(
        &format!("{joining}; delete; step; expect-answer; settle"),
        "deleting degraded e1 [0@? 1@? 2@?]",
    );
    check(
        &format!("{joining}; detach; settle"),
        "detached unknown e1 [0@n1 1@n2 2@n3]",
    );
}

#[test]
fn fewer_replicas_and_local_replicas() {
    check(
        "attach n1; settle; replicas 1; settle",
        "attached healthy @n1 e1 [0@n1]",
    );
    check(
        "attach n1; settle; replicas 2; settle",
        "attached healthy @n1 e1 [0@n1 1@n2]",
    );
    check(
        "best-effort; attach n3; settle; replicas 1; settle",
        "attached healthy @n3 e1 [2@n3]",
    );
    check(
        "nodes n1:a n2:a n3:b; attach n1; settle; replicas 2; settle",
        "attached healthy @n1 e1 [0@n1 1@n3]",
    );
    check(
        "replicas 1; best-effort; settle; attach n2; settle",
        "attached healthy @n2 e1 [1@n2]",
    );
    check(
        "replicas 1; best-effort; settle; cordon n2; attach n2; settle",
        "attached healthy @n2 e1 [0@n1]",
    );
    check(
        "replicas 1; strict-local; attach n2; settle",
        "attached healthy @n2 e1 [0@n2]",
    );
    check_why(
        "replicas 1; strict-local; settle; attach n2; settle",
        &[
            "data locality is strict-local and replica v-r-00000000 is on node n1, so the volume cannot attach to n2",
        ],
    );
}

#[test]
fn replicas_made_together_share_the_room() {
    // Two fit on the first node's disk, and the third goes to the next.
    check(
        "nodes n1 n2; soft-node; size 400; attach n1; settle",
        "attached healthy @n1 e1 [0@n1 1@n2 2@n1]",
    );
    check_why(
        "nodes n1; soft-node; size 400; settle",
        &["no disk can take another replica: n1/d: 400 bytes wanted, 200 left to promise"],
    );
}

#[test]
fn salvage_verifies_and_never_guesses() {
    let all_failed = "attach n1; settle; detach; settle; fail 0; fail 1; fail 2; settle";
    check(all_failed, "detached faulted e1 [0@n1! 1@n2! 2@n3!]");
    check(
        &format!("{all_failed}; mend 1; settle"),
        "detached unknown e2 [1@n2 | 0@n1! 2@n3!]",
    );
    check(
        &format!("{all_failed}; mend 0; mend 1; content 0 1.5.1; content 1 1.6.1; settle"),
        "detached unknown e2 [1@n2 | 0@n1! 2@n3!]",
    );
    check(
        &format!("{all_failed}; mend 0; mend 1; settle"),
        "detached unknown e2 [0@n1 1@n2 | 2@n3!]",
    );
    check(
        &format!("{all_failed}; no-auto-salvage; mend 1; settle"),
        "detached faulted e1 [0@n1! 1@n2! 2@n3!]",
    );
    check_why(
        &format!("{all_failed}; mend 1; no-content 1; step"),
        &[
            "not salvaged: replica v-r-00000001 has not reported what it contains yet",
            "every in-sync replica has failed",
        ],
    );
    let tie = format!("{all_failed}; content 0 1.5.1; content 1 1.5.2; mend 0; mend 1; settle");
    check_why(
        &tie,
        &[
            "not salvaged: replicas v-r-00000000 and v-r-00000001 claim the same revision with different content: \
             choose one of them by name",
            "every in-sync replica has failed",
        ],
    );
    check(
        &format!("{tie}; salvage-from 1; settle"),
        "detached unknown e2 [1@n2 | 0@n1! 2@n3!]",
    );
    // A replica that was left behind is not used, however readable it is.
    let behind =
        "attach n1; settle; lose n2; settle; detach; settle; fail 0; fail 2; back n2; settle";
    check_why(
        behind,
        &[
            "not salvaged: no in-sync replica can be read: v-r-00000000, v-r-00000002 would have the newest data; \
             replicas left behind earlier: v-r-00000001",
            "every in-sync replica has failed",
        ],
    );
    // Unless a person says so.
    check(
        &format!("{behind}; salvage-from 1; settle"),
        "detached unknown e2 [1@n2 | 0@n1! 2@n3!]",
    );
}

#[test]
fn salvage_gives_up_after_three_attempts() {
    let again = "fail 0; settle; mend 0; settle;";
    let start = "replicas 1; attach n1; settle; detach; settle;";
    check(
        &format!("{start} {again} {again} {again}"),
        "detached unknown e4 [0@n1]",
    );
    check(
        &format!("{start} {again} {again} {again} {again}"),
        "detached faulted e4 [0@n1!]",
    );
    check_why(
        &format!("{start} {again} {again} {again} {again}"),
        &[
            "not salvaged: 3 automatic salvages did not last: look at the replicas' errors, then salvage by name",
            "every in-sync replica has failed",
        ],
    );
    check(
        &format!("{start} {again} {again} {again} {again} salvage-from 0; settle"),
        "detached unknown e5 [0@n1]",
    );
}

#[test]
fn expansion_needs_room_and_never_shrinks() {
    let sizes = |script: &str| {
        let mut world = World::new();
        world.run(script);
        let replicas: Vec<u64> = world
            .view
            .replicas
            .values()
            .map(|replica| replica.spec.size_bytes)
            .collect();
        (
            world.view.status.size_bytes,
            world.view.status.expansion_required,
            replicas,
        )
    };
    assert_eq!(sizes("settle; size 200; settle"), (100, true, vec![100; 3]));
    assert_eq!(
        sizes("settle; size 200; attach n1; settle"),
        (200, false, vec![200; 3])
    );
    assert_eq!(
        sizes("attach n1; settle; size 200; settle"),
        (200, false, vec![200; 3])
    );
    assert_eq!(
        sizes("attach n1; settle; fill n2; size 200; settle"),
        (100, true, vec![100; 3])
    );
    check_why(
        "attach n1; settle; fill n2; size 200; settle",
        &["expansion waits: n2/d has no room for 100 more bytes"],
    );
    check_why(
        "attach n1; settle; size 50; settle",
        &["a volume cannot shrink from 100 to 50 bytes"],
    );
}

#[test]
fn clone_and_restore_fill_the_volume_before_its_device_opens() {
    let device = |script: &str| {
        let mut world = World::new();
        world.run(script);
        let open = world.view.engines.values().any(|engine| {
            matches!(&engine.observed, volume_core::EngineObserved::Running(running) if running.endpoint.is_some())
        });
        format!(
            "{:?} {:?} {open}",
            world.view.status.restore, world.view.status.clone
        )
    };
    assert_eq!(device("restore-of b; settle"), "Required NotNeeded false");
    assert_eq!(
        device("restore-of b; attach n1; step; act; step; act; step"),
        "Required NotNeeded false"
    );
    assert_eq!(
        device("restore-of b; attach n1; settle"),
        "Completed NotNeeded true"
    );
    assert_eq!(device("clone-of u; settle"), "NotNeeded Initiated false");
    assert_eq!(
        device("clone-of u; attach n1; settle"),
        "NotNeeded Completed true"
    );
    assert_eq!(
        device("nodes n1 n2; clone-of u; attach n1; settle"),
        "NotNeeded CopyCompletedAwaitingHealthy true"
    );
    let failed =
        "restore-of b; attach n1; step; act; step; act; step; act; step; fail-job; freeze; settle";
    assert_eq!(
        device(failed),
        "Failed { message: \"no space\" } NotNeeded false"
    );
    check_why(failed, &["the restore failed: no space"]);
}

#[test]
fn what_is_left_of_a_broken_replica_makes_room_for_another() {
    // Nowhere else will do: the agent would refuse a second one beside it, and so on for ever.
    check(
        "attach n1; settle; fail 1; settle; tick 10; settle",
        "attached healthy @n1 e1 [0@n1 2@n3 3@n2]",
    );
    // A new volume's replica that was only away for a moment counts again.
    check(
        "settle; lose n2; settle; back n2; settle; attach n1; settle",
        "attached healthy @n1 e1 [0@n1 1@n2 2@n3]",
    );
}

#[test]
fn migration_opens_a_standby_and_hands_over_once() {
    let both = "attach n1; settle; migrate n2; settle";
    check(both, "attached healthy @n1→n2 e1 [0@n1 1@n2 2@n3]");
    check(
        &format!("{both}; attach n2; settle"),
        "attached healthy @n2 e2 [0@n1 1@n2 2@n3]",
    );
    check(
        &format!("{both}; roll-back; settle"),
        "attached healthy @n1 e1 [0@n1 1@n2 2@n3]",
    );
    // Rolled back is not for ever: the same target again, with an engine of its own, which can take over.
    check(
        &format!("{both}; roll-back; settle; migrate n2; settle"),
        "attached healthy @n1→n2 e1 [0@n1 1@n2 2@n3]",
    );
    check(
        &format!("{both}; roll-back; settle; migrate n2; settle; attach n2; settle"),
        "attached healthy @n2 e3 [0@n1 1@n2 2@n3]",
    );
    // The guest's first write on the target comes before the confirmation.
    check(
        &format!("{both}; write-at n2; settle"),
        "attached healthy @n1→n2 e2 [0@n1 1@n2 2@n3]",
    );
    check(
        &format!("{both}; write-at n2; settle; attach n2; settle"),
        "attached healthy @n2 e2 [0@n1 1@n2 2@n3]",
    );
    check(
        &format!("{both}; write-at n2; settle; roll-back; settle"),
        "attached healthy @n1 e3 [0@n1 1@n2 2@n3]",
    );
    check_why(
        &format!("{both}; write-at n2; step"),
        &[
            "migration: node n2 is the writer from epoch 2 on",
            "migration: node n2 writes already; waiting until the migration is confirmed",
        ],
    );
    // The replicas end the source's engine: that is how a hand-over goes, and no failure.
    check(
        &format!("{both}; write-at n2; settle; crash-engine n1; settle"),
        "attached healthy @n1→n2 e2 [0@n1 1@n2 2@n3]",
    );
    check(
        &format!("{both}; write-at n2; settle; crash-engine n1; settle; attach n2; settle"),
        "attached healthy @n2 e2 [0@n1 1@n2 2@n3]",
    );
    // Confirmed, and the target is lost before it took over.
    check(
        &format!("{both}; attach n2; lose n2; settle"),
        "detached unknown e1 [0@n1 1@n2 2@n3]",
    );
    // Roles survive the loss of either engine.
    check(
        &format!("{both}; lose n1; settle"),
        "detached unknown e3 [0@n1 1@n2 2@n3] fenced n1 by e3",
    );
    check(
        &format!("{both}; lose n2; settle"),
        "attached degraded @n1 e1 [0@n1 2@n3 | 1@n2!]",
    );
    check(
        &format!("{both}; lose n1; settle; attach n2; settle"),
        "attached degraded @n2 e4 [1@n2 2@n3 | 0@n1!] fenced n1 by e3",
    );
    check_why(
        "attach n1; settle; lose n2; settle; migrate n2; step",
        &[
            "node n2 is not ready; the engine starts when it is back",
            "replica v-r-00000001 may come back; another takes its place in 600 s",
        ],
    );
}
