//! Random histories. What must hold for every single plan is asserted in `support` on each step:
//! deterministic, idempotent, epochs and versions only grow, one writer, nobody's data deleted.

mod support;

use proptest::prelude::*;
use support::World;
use volume_core::{Reason, VolumePlan, decide};

const COMMANDS: &[&str] = &[
    "attach n1",
    "attach n2",
    "attach n4",
    "detach",
    "migrate n2",
    "migrate n3",
    "roll-back",
    "write-at n2",
    "write-at n3",
    "lose n1",
    "lose n2",
    "lose n3",
    "back n1",
    "back n2",
    "back n3",
    "off n1",
    "delete-node n2",
    "crash-engine",
    "fail 0",
    "fail 1",
    "fail 2",
    "fail 3",
    "mend 0",
    "mend 1",
    "mend 2",
    "evict n1",
    "evict-node n2",
    "cordon n4",
    "break-disk n3",
    "mend-disk n3",
    "remove-disk n1",
    "unlist-disk n2",
    "replicas 1",
    "replicas 2",
    "replicas 3",
    "size 150",
    "size 50",
    "no-frontend",
    "frontend",
    "tick 1",
    "tick 6",
    "tick 700",
    "fence-after 5",
    "best-effort",
    "soft-node",
    "step",
    "step",
    "act",
    "act",
    "step; act",
    "settle",
    "settle",
    "delete",
    "salvage-from 1",
    "busy n4",
    "fill n4",
];

fn histories() -> impl Strategy<Value = Vec<&'static str>> {
    // Deletion ends a history, so it is rare.
    let command =
        prop::sample::select(COMMANDS).prop_filter("rare", |command| *command != "delete");
    (
        prop::collection::vec(command, 0..25),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(mut commands, delete)| {
            commands.extend(delete.then_some("delete; settle"));
            commands
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn any_history_is_decided(commands in histories(), source in prop::sample::select(vec!["", "clone-of u;", "restore-of b;"])) {
        let mut world = World::new();
        world.run(&format!("nodes n1:a n2:a n3:b n4; {source} settle"));
        for command in &commands {
            world.run(command);
        }
        world.settle();
        let plan = decide(&world.view, world.now);
        world.check_plan(&plan);
        if !world.view.volume.deleting {
            prop_assert!(is_explained(&world, &plan), "{} {:?}", world.show(), plan.reasons);
        }
    }
}

/// A volume that is not where it should be says why.
fn is_explained(world: &World, plan: &VolumePlan) -> bool {
    let wanted = world.view.volume.node.as_ref();
    let there = plan.status.current_node.as_ref();
    let settled = matches!(
        plan.status.state,
        volume_core::VolumeState::Attached | volume_core::VolumeState::Detached
    );
    (wanted == there && settled)
        || plan
            .reasons
            .iter()
            .any(|reason| !matches!(reason, Reason::Faulted))
}
