//! The ticket protocol as a model: what can happen next, and what must hold whatever happens.

use attach_core::migration::Phase;
use attach_core::view::{Sharing, VolumeState};
use attach_core::{AttacherKind, decide};
use stateright::{Model, Property};

use super::world::{Filed, NODES, NodeAt, TICKETS, Vol, World};

/// How large the model is.
#[derive(Clone, Debug)]
pub struct TicketModel {
    pub sharing: Sharing,
    /// The types that may be filed in each place.
    pub kinds: [&'static [AttacherKind]; TICKETS],
    pub changes: u8,
    pub crashes: u8,
    /// How the controller carries out a plan. Only `StatusesFirst` is right; the other exists to show that the checker
    /// notices.
    pub order: WriteOrder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOrder {
    /// Statuses, then the volume: a "no" is told before the volume moves.
    StatusesFirst,
    /// The volume, then statuses. A controller that dies in between leaves a "yes" behind that is not true any more.
    VolumeFirst,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    // The world outside.
    File {
        place: usize,
        kind: AttacherKind,
        node: NodeAt,
    },
    Withdraw {
        place: usize,
    },
    Crash(NodeAt),
    Recover(NodeAt),
    // What the ticket controller has seen catches up.
    SeeVolume,
    SeeAttachment,
    SeeMachines,
    // The ticket controller.
    Decide,
    WritePending,
    Restart,
    // The volume controller and the node agents.
    Volume(Vol),
    StartEngine(NodeAt),
    StopEngine(NodeAt),
}

impl Model for TicketModel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.changes, self.crashes)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        self.outside(world, actions);
        self.system(world, actions);
        if world.pending.is_some() {
            actions.push(Action::Restart);
        }
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        match action {
            Action::File { place, kind, node } => {
                world.changes_left -= 1;
                let generation = match (
                    world.attachment.tickets[place],
                    world.attachment.answers[place],
                ) {
                    (Some(filed), _) => filed.generation + 1,
                    (None, Some(answer)) => answer.generation + 1,
                    (None, None) => 0,
                };
                world.attachment.tickets[place] = Some(Filed {
                    kind,
                    node,
                    generation,
                });
            }
            Action::Withdraw { place } => {
                world.changes_left -= 1;
                world.attachment.tickets[place] = None;
            }
            Action::Crash(node) => {
                world.crashes_left -= 1;
                world.machines.up[node] = false;
                world.machines.engine[node] = false;
            }
            Action::Recover(node) => world.machines.up[node] = true,
            Action::SeeVolume => world.seen_vol = world.vol,
            Action::SeeAttachment => world.seen_attachment = world.attachment.clone(),
            Action::SeeMachines => world.seen_machines = world.machines.clone(),
            Action::Decide => self.decide(&mut world),
            Action::WritePending => write_pending(&mut world),
            Action::Restart => world.pending = None,
            Action::Volume(vol) => world.vol = vol,
            Action::StartEngine(node) => world.machines.engine[node] = true,
            Action::StopEngine(node) => world.machines.engine[node] = false,
        }
        (world != *before).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("the volume is in one place", |_, world| one_place(world)),
            Property::always("the volume never jumps", |_, world: &World| !world.jumped),
            Property::always(
                "no satisfied ticket has its volume elsewhere",
                |_, world| nobody_is_lied_to(world),
            ),
            Property::always(
                "at rest every ticket is satisfied or knows why not",
                |model: &Self, world| !model.is_at_rest(world) || everybody_has_an_answer(world),
            ),
            Property::always(
                "at rest somebody is served if anybody can be",
                |model: &Self, world| !model.is_at_rest(world) || somebody_is_served(model, world),
            ),
        ];
        // That the hard paths are really taken, in instances that have them.
        if self
            .kinds
            .iter()
            .any(|kinds| kinds.contains(&AttacherKind::Backup))
        {
            properties.push(Property::sometimes("a workload interrupts", |_, world| {
                has_reason(world, "InterruptedByWorkload")
            }));
        }
        if self.crashes > 0 {
            properties.push(Property::sometimes(
                "a node with the volume is down",
                |_, world: &World| {
                    world
                        .vol
                        .current
                        .is_some_and(|node| !world.machines.up[node])
                },
            ));
        }
        if self.sharing == Sharing::Migratable && self.changes > 2 {
            properties.extend([
                Property::sometimes("a migration is confirmed", |_, world| {
                    is_in(world, Phase::Confirming)
                }),
                Property::sometimes("a migration is rolled back", |_, world| {
                    is_in(world, Phase::RollingBack)
                }),
            ]);
        }
        if self.sharing == Sharing::Migratable && self.crashes > 0 {
            properties.extend([
                Property::sometimes("a migration is interrupted", |_, world| {
                    is_in(world, Phase::Interrupted)
                }),
                Property::sometimes("a volume recovers on the target", |_, world| {
                    is_in(world, Phase::Recovered)
                }),
            ]);
        }
        properties
    }
}

fn is_in(world: &World, expected: Phase) -> bool {
    world
        .vol
        .record
        .is_some_and(|(_, _, phase)| phase == expected)
}

impl TicketModel {
    /// The instance of this name, if there is one. Types stand for their class: a pod and a person are workloads, a
    /// backup and a snapshot can be interrupted, an expansion can not and interrupts nobody.
    pub fn named(name: &str, changes: u8, crashes: u8) -> Option<Self> {
        use AttacherKind::{Backup, Csi, Expansion, Manual, ShareManager, Snapshot};
        let (sharing, kinds): (_, [&[_]; TICKETS]) = match name {
            "exclusive-pod" => (Sharing::Exclusive, [&[Csi], &[], &[]]),
            "pair" => (Sharing::Exclusive, [&[Csi, Backup], &[Csi], &[]]),
            "exclusive" => (
                Sharing::Exclusive,
                [
                    &[Csi, Backup, Manual],
                    &[Csi, Backup, Expansion],
                    &[Csi, Snapshot],
                ],
            ),
            "shared" => (
                Sharing::Shared,
                [&[Backup, ShareManager], &[ShareManager, Expansion], &[Csi]],
            ),
            "migrating-pair" => (Sharing::Migratable, [&[Csi], &[Csi], &[]]),
            "migratable" => (
                Sharing::Migratable,
                [&[Csi, Backup], &[Csi], &[Csi, Manual]],
            ),
            _ => return None,
        };
        Some(Self {
            sharing,
            kinds,
            changes,
            crashes,
            order: WriteOrder::StatusesFirst,
        })
    }

    fn outside(&self, world: &World, actions: &mut Vec<Action>) {
        let nodes = world.nodes_in_play();
        if world.changes_left > 0 {
            for place in 0..TICKETS {
                // Places are filled in order: which of two equal places a ticket is in makes no difference.
                let reachable = place == 0 || world.attachment.tickets[place - 1].is_some();
                for &kind in self.kinds[place].iter().filter(|_| reachable) {
                    actions.extend((0..nodes).map(|node| Action::File { place, kind, node }));
                }
                if world.attachment.tickets[place].is_some() {
                    actions.push(Action::Withdraw { place });
                }
            }
        }
        for node in 0..nodes {
            if world.crashes_left > 0 && world.machines.up[node] {
                actions.push(Action::Crash(node));
            }
            if !world.machines.up[node] {
                actions.push(Action::Recover(node));
            }
        }
    }

    /// What the system does by itself. When none of this is possible, it is at rest.
    fn system(&self, world: &World, actions: &mut Vec<Action>) {
        if world.seen_vol != world.vol {
            actions.push(Action::SeeVolume);
        }
        if world.seen_attachment != world.attachment {
            actions.push(Action::SeeAttachment);
        }
        if world.seen_machines != world.machines {
            actions.push(Action::SeeMachines);
        }
        actions.push(if world.pending.is_some() {
            Action::WritePending
        } else {
            Action::Decide
        });
        actions.extend(volume_step(world).map(Action::Volume));
        for node in 0..NODES {
            let allowed = engine_allowed(&world.vol, node);
            if allowed && world.machines.up[node] && !world.machines.engine[node] {
                actions.push(Action::StartEngine(node));
            }
            if !allowed && world.machines.engine[node] {
                actions.push(Action::StopEngine(node));
            }
        }
    }

    fn is_at_rest(&self, world: &World) -> bool {
        let mut actions = Vec::new();
        self.system(world, &mut actions);
        // A decision is always possible and rarely changes anything; everything else does by being possible.
        actions == [Action::Decide] && self.next_state(world, Action::Decide).is_none()
    }

    /// One round of the ticket controller: the first write, and the second one pending.
    fn decide(&self, world: &mut World) {
        let plan = decide(&world.seen(self.sharing));
        let attachment = world.seen_attachment.with(&plan);
        let vol = world.seen_vol.with(&plan);
        let says_yes = (0..TICKETS)
            .any(|at| attachment.is_satisfied(at) && !world.attachment.is_satisfied(at));
        // A "yes" is said only on a live look at volume and engines: nothing else would notice outdated ones.
        let outdated = world.seen_vol != world.vol || world.seen_machines != world.machines;
        if says_yes && outdated {
            return;
        }
        // Every write names the version it was decided from.
        let attachment_is_current = world.seen_attachment == world.attachment;
        let change = (vol != world.seen_vol).then_some((world.seen_vol, vol));
        match self.order {
            WriteOrder::StatusesFirst => {
                if attachment_is_current {
                    world.attachment = attachment;
                    world.pending = change;
                }
            }
            WriteOrder::VolumeFirst => {
                world.pending = change;
                if world.pending.is_some() {
                    write_pending(world);
                } else if attachment_is_current {
                    world.attachment = attachment;
                }
            }
        }
    }
}

fn write_pending(world: &mut World) {
    let Some((expected, vol)) = world.pending.take() else {
        return;
    };
    if expected != world.vol {
        return;
    }
    let moved = matches!((expected.node, vol.node), (Some(from), Some(to)) if from != to);
    let confirmed = expected.migration.is_some() && expected.migration == vol.node;
    world.jumped |= moved && !confirmed && !expected.is_detached();
    world.vol = vol;
}

/// The volume controller's next step, from the truth: its own delays are modelled by steps that have not happened yet.
fn volume_step(world: &World) -> Option<Vol> {
    let (vol, engine) = (&world.vol, &world.machines.engine);
    let idle = engine.iter().all(|running| !running);
    let mut next = *vol;
    match (vol.state, vol.node) {
        (VolumeState::Detached, Some(_)) if idle => next.state = VolumeState::Attaching,
        (VolumeState::Attaching, Some(node)) if engine[node] => {
            next.state = VolumeState::Attached;
            next.current = Some(node);
        }
        (VolumeState::Attaching | VolumeState::Attached, None) => {
            next.state = VolumeState::Detaching;
        }
        (VolumeState::Detaching, _) if idle => {
            (next.state, next.current, next.current_migration) =
                (VolumeState::Detached, None, None);
        }
        (VolumeState::Attached, Some(wanted)) => attached_step(world, wanted, &mut next),
        _ => {}
    }
    (next != *vol).then_some(next)
}

fn attached_step(world: &World, wanted: NodeAt, next: &mut Vol) {
    let (vol, engine) = (&world.vol, &world.machines.engine);
    let Some(current) = vol.current else { return };
    // Confirmed: the source's engine goes, the target is what is left.
    if vol.migration.is_none() && vol.current_migration == Some(wanted) {
        if !engine[current] {
            (next.current, next.current_migration) = (Some(wanted), None);
        }
        return;
    }
    match (vol.migration, vol.current_migration) {
        // Rolled back.
        (None, Some(target)) if !engine[target] => next.current_migration = None,
        (Some(target), None) if engine[current] => next.current_migration = Some(target),
        _ if !engine[current] => next.state = VolumeState::Detaching,
        _ => {}
    }
}

/// Whether the volume controller wants, or still tolerates, an engine on this node.
fn engine_allowed(vol: &Vol, node: NodeAt) -> bool {
    let wanted = vol.node == Some(node);
    match vol.state {
        VolumeState::Attaching => wanted,
        VolumeState::Attached => {
            let confirmed = vol.migration.is_none()
                && vol.node == vol.current_migration
                && vol.node != vol.current;
            let serves = vol.current == Some(node) && vol.node.is_some() && !confirmed;
            let migrates =
                vol.current_migration == Some(node) && (vol.migration == Some(node) || wanted);
            serves || migrates
        }
        _ => false,
    }
}

fn one_place(world: &World) -> bool {
    let running: Vec<_> = (0..NODES)
        .filter(|&node| world.machines.engine[node])
        .collect();
    let migrating = |node: &NodeAt| {
        world.vol.current == Some(*node) || world.vol.current_migration == Some(*node)
    };
    running.len() <= 1 || (running.len() == 2 && running.iter().all(migrating))
}

/// A ticket whose answer is yes has its volume on its node, or the volume is meant to be there and its engine is being
/// brought back; it is never meant to be, and running, somewhere else.
fn nobody_is_lied_to(world: &World) -> bool {
    let running = world.machines.engine.contains(&true);
    (0..TICKETS)
        .filter(|&at| world.attachment.is_satisfied(at))
        .all(|at| {
            let Some(filed) = world.attachment.tickets[at] else {
                return true;
            };
            let here = world.machines.engine[filed.node];
            let meant_here =
                world.vol.node == Some(filed.node) || world.vol.migration == Some(filed.node);
            here || meant_here || !running
        })
}

fn everybody_has_an_answer(world: &World) -> bool {
    (0..TICKETS).all(
        |at| match (world.attachment.tickets[at], world.attachment.answers[at]) {
            (Some(filed), Some(answer)) => {
                answer.generation == filed.generation
                    && (answer.satisfied || !answer.reason.is_empty())
            }
            (Some(_), None) => false,
            (None, answer) => answer.is_none(),
        },
    )
}

fn somebody_is_served(model: &TicketModel, world: &World) -> bool {
    let shared = model.sharing == Sharing::Shared;
    let filed = world.attachment.tickets.iter().flatten();
    let counted: Vec<_> = filed
        .filter(|filed| !(shared && filed.kind == AttacherKind::Csi))
        .collect();
    let waits_for_a_node = world.vol.node.is_some_and(|node| !world.machines.up[node]);
    let csi = counted
        .iter()
        .filter(|filed| filed.kind == AttacherKind::Csi)
        .count();
    let ambiguous = model.sharing == Sharing::Migratable && csi > 1;
    counted.is_empty()
        || waits_for_a_node
        || ambiguous
        || (0..TICKETS).any(|at| world.attachment.is_satisfied(at))
}

fn has_reason(world: &World, code: &str) -> bool {
    world
        .attachment
        .answers
        .iter()
        .flatten()
        .any(|answer| answer.reason == code)
}
