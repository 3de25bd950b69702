//! What holds for every view there can be.

use std::collections::BTreeMap;

use attach_core::attacher::{AttacherKind, TABLE};
use attach_core::migration::{MigrationRecord, Phase};
use attach_core::view::{
    Engine, Engines, Node, Nodes, Robustness, Settings, Sharing, View, Volume, VolumeSpec,
    VolumeState, VolumeStatus,
};
use attach_core::{
    Action, Attacher, Frontend, Generation, NodeName, Plan, Ticket, TicketId, Verdict, decide,
};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use crate::scene::{noon, seconds_after_noon};

fn node_name() -> impl Strategy<Value = NodeName> {
    prop::sample::select(vec!["n1", "n2", "n3"]).prop_map(NodeName::from)
}

fn attacher() -> impl Strategy<Value = Attacher> {
    prop_oneof![
        12 => (0..TABLE.len()).prop_map(|at| Attacher::Known(TABLE[at].kind)),
        8 => Just(Attacher::Known(AttacherKind::Csi)),
        1 => Just(Attacher::from_wire("teleport")),
    ]
}

fn a_ticket() -> impl Strategy<Value = Ticket> {
    let frontend = prop::sample::select(vec!["false", "false", "any", "true", "perhaps"]);
    (attacher(), node_name(), frontend, 0..3i64).prop_map(
        |(attacher, node, frontend, generation)| {
            let mut ticket = Ticket::new(attacher, "", node);
            ticket.set_parameters(&BTreeMap::from([(
                "disableFrontend".to_owned(),
                frontend.to_owned(),
            )]));
            ticket.generation = Generation(generation);
            ticket
        },
    )
}

fn tickets() -> impl Strategy<Value = BTreeMap<TicketId, Ticket>> {
    btree_map("[a-f]", a_ticket(), 0..6).prop_map(|tickets| {
        let named = tickets.into_iter().map(|(id, ticket)| {
            let id = TicketId::from(id);
            (id.clone(), Ticket { id, ..ticket })
        });
        named.collect()
    })
}

fn volume() -> impl Strategy<Value = Volume> {
    use VolumeState::*;
    let state = prop::sample::select(vec![
        Creating, Detached, Detached, Attaching, Attached, Attached, Detaching, Deleting,
    ]);
    let robustness = prop::sample::select(vec![
        Robustness::Healthy,
        Robustness::Healthy,
        Robustness::Degraded,
        Robustness::Faulted,
    ]);
    let sharing = prop::sample::select(vec![
        Sharing::Exclusive,
        Sharing::Shared,
        Sharing::Migratable,
    ]);
    let nodes = (
        option::of(node_name()),
        option::of(node_name()),
        option::of(node_name()),
        option::of(node_name()),
    );
    let phase = prop::sample::select(vec![
        Phase::Preparing,
        Phase::Ready,
        Phase::Confirming,
        Phase::RollingBack,
        Phase::Expired,
        Phase::Interrupted,
        Phase::Recovered,
    ]);
    let record = (node_name(), node_name(), phase, -100..100i64).prop_map(
        |(source, target, phase, left)| MigrationRecord {
            source,
            target,
            phase,
            since: seconds_after_noon(left - 600),
            deadline: seconds_after_noon(left),
        },
    );
    (
        state,
        robustness,
        sharing,
        nodes,
        option::of(record),
        any::<[bool; 3]>(),
        option::of(-100..1i64),
    )
        .prop_map(
            |(
                state,
                robustness,
                sharing,
                (node, second, current, current_second),
                migration,
                [frontend, copied, shared],
                failed_at,
            )| {
                // Half of all volumes are where they should be; otherwise hardly any would be attached.
                let current = if state == Attached && copied {
                    node.clone()
                } else {
                    current
                };
                let (second, current_second) = if frontend || shared {
                    (None, None)
                } else {
                    (second, current_second)
                };
                let mut volume = Volume::detached("vol");
                volume.sharing = sharing;
                volume.spec = VolumeSpec {
                    node,
                    migration_node: second,
                    disable_frontend: frontend && copied,
                    last_attached_by: "".into(),
                };
                volume.status = VolumeStatus {
                    state,
                    robustness,
                    current_node: if state == Detached { None } else { current },
                    current_migration_node: current_second,
                    clone_copied: copied,
                    share_available: shared,
                    engine_failed_at: failed_at.map(seconds_after_noon),
                };
                volume.migration = migration;
                volume
            },
        )
}

fn engine() -> impl Strategy<Value = Engine> {
    (node_name(), any::<[bool; 4]>()).prop_map(
        |(node, [running, has_rw_replica, is_sole_writer, snapshot])| Engine {
            node,
            active: true,
            running,
            has_rw_replica,
            is_sole_writer,
            snapshots: snapshot.then(|| ["s".into()].into()),
            error: (!running && snapshot).then(|| "broken".into()),
        },
    )
}

fn a_view() -> impl Strategy<Value = View> {
    let nodes = btree_map(node_name(), any::<[bool; 2]>(), 0..4);
    (
        volume(),
        tickets(),
        nodes,
        vec(engine(), 0..3),
        any::<[bool; 3]>(),
    )
        .prop_map(
            |(volume, tickets, nodes, engines, [nodes_complete, engines_complete, cordon])| View {
                now: noon(),
                volume,
                tickets,
                statuses: BTreeMap::new(),
                nodes: Nodes {
                    complete: nodes_complete,
                    listed: nodes
                        .into_iter()
                        .map(|(name, [down, cordoned])| {
                            (
                                name,
                                Node {
                                    ready: !down,
                                    cordoned,
                                },
                            )
                        })
                        .collect(),
                },
                engines: Engines {
                    complete: engines_complete,
                    listed: engines,
                },
                settings: Settings {
                    detach_manual_when_cordoned: cordon,
                    ..Settings::default()
                },
            },
        )
}

/// Tickets that are there after the decision and take part in it.
fn counted<'a>(view: &'a View, plan: &'a Plan) -> impl Iterator<Item = &'a Ticket> {
    view.tickets.values().filter(|ticket| {
        let removed = plan.tickets_to_remove.contains(&ticket.id);
        let summed_up = view.volume.sharing == Sharing::Shared && ticket.is(AttacherKind::Csi);
        !removed && !summed_up
    })
}

/// Selection as one would explain it to a colleague: sort all, take the first.
fn oracle<'a>(view: &'a View, plan: &'a Plan) -> Option<&'a Ticket> {
    let mut line: Vec<_> = counted(view, plan)
        .filter(|ticket| ticket.defect.is_none())
        .collect();
    line.retain(|ticket| ticket.attacher.priority().is_some());
    line.sort_by(|a, b| {
        let by_priority = b.attacher.priority().cmp(&a.attacher.priority());
        by_priority.then_with(|| a.id.as_str().cmp(b.id.as_str()))
    });
    let csi = line
        .iter()
        .filter(|ticket| ticket.is(AttacherKind::Csi))
        .count();
    if view.volume.sharing == Sharing::Migratable && csi > 1 {
        return None;
    }
    line.first().copied()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000.max(ProptestConfig::default().cases), ..ProptestConfig::default() })]

    #[test]
    fn every_view_has_one_plan_and_every_ticket_an_answer(view in a_view()) {
        let plan = decide(&view);
        prop_assert_eq!(&plan, &decide(&view.clone()));
        for ticket in view.tickets.values() {
            if plan.tickets_to_remove.contains(&ticket.id) {
                prop_assert!(!plan.ticket_statuses.contains_key(&ticket.id));
                continue;
            }
            let status = &plan.ticket_statuses[&ticket.id];
            prop_assert_eq!(status.generation, ticket.generation);
            prop_assert_eq!(status.satisfied, status.condition.status);
            let judgement = &plan.verdicts[&ticket.id];
            prop_assert_eq!(judgement.reason.is_none(), status.satisfied, "a ticket waits for no reason: {:?}", judgement);
        }
        prop_assert!(plan.volume_spec.migration_node.is_none() || plan.volume_spec.node.is_some());
    }

    #[test]
    fn deciding_again_changes_nothing(view in a_view()) {
        let plan = decide(&view);
        let mut after = plan.applied_to(&view);
        // What is cancelled is over at once if nothing runs any more; the attach that follows is a step of its own.
        if plan.action == Action::CancelMigration {
            after = decide(&after).applied_to(&after);
        }
        let again = decide(&after);
        prop_assert!(!again.changes_volume(&after), "{:#?}\nthen {:#?}", plan, again);
        prop_assert_eq!(&again.ticket_statuses, &after.statuses);
        prop_assert!(again.tickets_to_remove.is_empty());
    }

    #[test]
    fn the_volume_never_jumps(view in a_view()) {
        let plan = decide(&view);
        let (from, to) = (&view.volume.spec.node, &plan.volume_spec.node);
        let Some(to) = to else { return Ok(()) };
        if from.as_ref() == Some(to) {
            return Ok(());
        }
        if plan.action == Action::ConfirmMigration {
            prop_assert_eq!(view.volume.spec.migration_node.as_ref(), Some(to));
            prop_assert!(!view.engines.complete || view.engines.is_available_on(to));
        } else {
            prop_assert_eq!(plan.action, Action::Attach);
            prop_assert!(view.volume.status.is_detached());
        }
        prop_assert!(plan.volume_spec.migration_node.is_none());
    }

    #[test]
    fn nothing_is_taken_from_an_uninterruptible_holder(view in a_view()) {
        let plan = decide(&view);
        let Some(node) = &view.volume.spec.node else { return Ok(()) };
        if plan.volume_spec.node.as_ref() == Some(node) || view.volume.is_faulted() {
            return Ok(());
        }
        // A migration has roles of its own; see the model.
        if view.volume.spec.migration_node.is_some() {
            return Ok(());
        }
        let holder = counted(&view, &plan).find(|ticket| {
            ticket.node == *node
                && ticket.frontend.accepts(view.volume.spec.disable_frontend)
                && !ticket.attacher.is_interruptible(view.volume.status.clone_copied)
        });
        prop_assert!(holder.is_none(), "taken from {:?}", holder);
    }

    #[test]
    fn selection_is_what_a_slow_oracle_selects(view in a_view()) {
        let mut view = view;
        view.volume.spec = VolumeSpec::default();
        view.volume.status = VolumeStatus { state: VolumeState::Detached, ..VolumeStatus::default() };
        view.volume.migration = None;
        let plan = decide(&view);
        match oracle(&view, &plan) {
            Some(winner) => {
                prop_assert_eq!(plan.action, Action::Attach);
                prop_assert_eq!(plan.volume_spec.node.as_ref(), Some(&winner.node));
                prop_assert_eq!(plan.volume_spec.disable_frontend, winner.frontend == Frontend::Disabled);
                prop_assert_eq!(plan.verdicts[&winner.id].verdict, Verdict::Selected);
            }
            None => prop_assert_eq!(plan.volume_spec.node, None),
        }
    }

    #[test]
    fn a_satisfied_ticket_has_its_volume(view in a_view()) {
        let plan = decide(&view);
        let after = plan.applied_to(&view);
        let status = &after.volume.status;
        for ticket in counted(&view, &plan) {
            if !plan.ticket_statuses[&ticket.id].satisfied {
                continue;
            }
            prop_assert!(ticket.frontend.accepts(after.volume.spec.disable_frontend));
            let here = status.is_attached_on(&ticket.node);
            let migrates = after.volume.sharing == Sharing::Migratable && ticket.is(AttacherKind::Csi);
            prop_assert!(here || (migrates && (!view.engines.complete || view.engines.is_available_on(&ticket.node))));
        }
    }

    #[test]
    fn a_fresh_volume_never_depends_on_the_order_of_its_tickets(view in a_view(), seed in any::<u64>()) {
        // A map has no order of its own; what could leak is the order in which it was filled.
        let mut entries: Vec<_> = view.tickets.clone().into_iter().collect();
        let turn = seed as usize % entries.len().max(1);
        entries.rotate_left(turn);
        entries.reverse();
        let shuffled = View { tickets: entries.into_iter().collect(), ..view.clone() };
        prop_assert_eq!(decide(&view), decide(&shuffled));
    }
}
