//! Random histories: what must hold for every plan is asserted on each step in `check_plan`.

use proptest::prelude::*;

use super::World;

const COMMANDS: &[&str] = &[
    "pod a pv1 n1",
    "pod b pv1 n2",
    "pod c pv2 n1",
    "pod d pv2 n3",
    "pod e pv1 n3",
    "delete-pod a",
    "delete-pod b",
    "delete-pod c",
    "terminate a",
    "stop-containers a",
    "finish b",
    "lose n1",
    "lose n2",
    "back n1",
    "back n2",
    "off n1",
    "delete-node n1",
    "node n1",
    "fence pv1 n1",
    "fence pv1 n2",
    "writer pv1 n1",
    "writer pv2 n3",
    "stuck",
    "unstuck",
    "restart",
    "tick 1",
    "tick 400",
    "limit n1 1",
    "unmanaged n3",
    "delete-pv pv2",
    "pv pv2 RWO",
    "unbind pv1",
    "delete-attachments",
    "lose-attachments",
    "fail-attach boom",
    "fail-detach busy",
    "foreign-attachment n2",
    "never-force",
    "step",
    "step",
    "act",
    "act",
    "settle",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn any_history_is_decided(commands in prop::collection::vec(prop::sample::select(COMMANDS), 0..40)) {
        let mut world = World::new();
        for command in commands {
            world.run(command);
        }
        world.run("unstuck; settle");
        for ((volume, node), pods) in crate::desired::desired_state(&world.view).0 {
            let attached = world.show().split(' ').any(|shown| shown == format!("{volume}@{node}"));
            let explained = world.plan.reasons.iter().any(|reason| {
                let text = reason.to_string();
                text.contains(volume.as_str()) && text.contains(node.as_str())
            });
            prop_assert!(attached || explained, "{volume} for {pods:?} on {node}: {:?}", world.plan.reasons);
        }
    }
}
