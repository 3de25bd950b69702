//! What can happen, and what must hold.

use stateright::{Expectation, Model, Property};

use super::controller::{Controller, write};
use super::engine::{forget_the_dead, learn, submit};
use super::world::{Budget, Engine, Mask, Phase, REPLICAS, State, bits};

/// One way to get the protocol wrong. Each has a test that shows what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Replicas serve any epoch.
    NoEpochCheck,
    /// The record is overwritten whatever it has become.
    NoCompareAndSwap,
    /// A proposal that was replaced is forgotten although it may be committed yet.
    ForgetsProposals,
    /// A failed replica is left behind first, and the commit follows.
    ShrinksBeforeCommit,
    /// A rebuilt replica is proposed while it still lacks an acknowledged write.
    JoinsTooEarly,
}

pub struct EpochModel {
    pub flaw: Option<Flaw>,
    pub budget: Budget,
    /// Nodes that may be believed lost.
    pub nodes_lost: Mask,
    pub writes_max: u8,
    pub epochs_max: u8,
    pub versions_max: u8,
    /// Plans that may wait to be written at the same time: two means that a replaced controller is
    /// still writing.
    pub plans_max: usize,
    /// The *sometimes* properties that this instance is large enough to reach.
    pub reached: &'static [&'static str],
    pub controller: Controller,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The controller looks and plans.
    Plan,
    /// A plan is written; a crash stops that half-way.
    Write {
        plan: usize,
        crash: bool,
    },
    /// The controller restarts, or loses its lease, and its plan is never written.
    Forget {
        plan: usize,
    },
    /// A node's lease is believed to have run out, or to be renewed, rightly or not.
    ChangeHealth {
        node: u8,
    },
    /// The volume is wanted elsewhere.
    Move {
        node: u8,
    },
    /// A live migration begins.
    Migrate {
        node: u8,
    },
    /// It is confirmed: the target becomes the volume's node.
    Confirm,
    RollBack,
    /// The guest writes on the migration's target for the first time.
    WriteOnTarget {
        epoch: u8,
    },
    /// A replica's agent has read the record's epoch.
    AcceptByAgent {
        replica: u8,
    },
    /// A starting engine's request to accept its epoch arrives, and the answer.
    AcceptByEngine {
        epoch: u8,
        replica: u8,
    },
    /// A starting engine has heard enough: it goes on with the members that equal `source`.
    Choose {
        epoch: u8,
        source: u8,
    },
    /// A client writes.
    Submit {
        epoch: u8,
    },
    /// A write reaches a replica, and its answer the engine.
    Deliver {
        epoch: u8,
        write: u8,
        replica: u8,
    },
    /// The client is told.
    Acknowledge {
        epoch: u8,
        write: u8,
    },
    /// The engine gives a replica up: its patience, not the truth, decides.
    Suspect {
        epoch: u8,
        replica: u8,
    },
    /// A replica is brought up to date.
    Rebuild {
        epoch: u8,
        replica: u8,
    },
    /// It is proposed as a member.
    Join {
        epoch: u8,
    },
    /// The engine reads the record.
    Learn {
        epoch: u8,
    },
    Crash {
        epoch: u8,
    },
    /// The agent stops an engine as it was told to.
    Stop {
        epoch: u8,
    },
}

impl Model for EpochModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::healthy(self.budget)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.environment_actions(state, actions);
        for engine in &state.engines {
            self.engine_actions(state, engine, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.apply(&mut state, action)?;
        forget_the_dead(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("one writer", |_, state: &State| {
                state.acknowledged & state.too_late == 0
            }),
            Property::always(
                "members have every acknowledged write",
                |_, state: &State| {
                    bits(state.api.record.members)
                        .all(|index| state.acknowledged & !state.replica(index).content == 0)
                },
            ),
            Property::always(
                "the next engine has every acknowledged write",
                |_, state: &State| {
                    // An older engine that is still alive may lack what came after it; it cannot write.
                    let newest = state.engine(state.served);
                    newest
                        .filter(|engine| engine.phase == Phase::Serving)
                        .is_none_or(|engine| {
                            bits(engine.known.members).all(|index| {
                                state.acknowledged & !state.replica(index).content == 0
                            })
                        })
                },
            ),
            Property::sometimes("failover while the old engine lives", |_, state: &State| {
                let serving = |engine: &&Engine| engine.phase == Phase::Serving;
                let mut nodes: Vec<u8> = state
                    .engines
                    .iter()
                    .filter(serving)
                    .map(|engine| engine.node)
                    .collect();
                nodes.dedup();
                nodes.len() > 1 && state.acknowledged != 0
            }),
            Property::sometimes(
                "a fence proof while the old engine lives",
                |_, state: &State| {
                    state.engines.iter().any(|engine| {
                        engine.phase == Phase::Serving && engine.epoch < state.api.proof
                    })
                },
            ),
            Property::sometimes("a fenced engine attempts a write", |_, state: &State| {
                state
                    .engines
                    .iter()
                    .filter(|engine| engine.is_alive())
                    .any(|engine| {
                        let refused = |index: u8| state.replica(index).accepted > engine.epoch;
                        engine
                            .requests
                            .iter()
                            .any(|request| bits(request.in_flight).any(refused))
                    })
            }),
            Property::sometimes("the in-sync set shrinks", |_, state: &State| {
                state.api.record.members != 0b111
            }),
            Property::sometimes("a rebuilt replica joins", |_, state: &State| {
                state.engines.iter().any(|engine| {
                    engine
                        .rebuild
                        .is_some_and(|index| state.api.record.members & (1 << index) != 0)
                        && state.acknowledged != 0
                })
            }),
            Property::sometimes(
                "a new engine leaves a silent member behind",
                |_, state: &State| {
                    let members = state.api.record.members;
                    state.engines.iter().any(|engine| {
                        engine.epoch > 1
                            && engine.phase == Phase::Serving
                            && engine.known.members == members
                    }) && members.count_ones() < 3
                },
            ),
            Property::sometimes(
                "a migration hands over while the source lives",
                |_, state: &State| {
                    let source = state.engines.iter().any(|engine| {
                        engine.phase == Phase::Serving && engine.epoch < state.served
                    });
                    source && state.api.migration.is_some() && state.acknowledged != 0
                },
            ),
            Property::sometimes("two controllers write", |_, state: &State| {
                state.pending.len() > 1
            }),
        ];
        properties.retain(|property| {
            property.expectation == Expectation::Always || self.reached.contains(&property.name)
        });
        properties
    }
}

impl EpochModel {
    fn environment_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.pending.len() < self.plans_max {
            actions.push(Action::Plan);
        }
        for plan in 0..state.pending.len() {
            actions.push(Action::Write { plan, crash: false });
            if state.budget.crashes > 0 {
                actions.push(Action::Write { plan, crash: true });
            }
            actions.push(Action::Forget { plan });
        }
        if state.budget.health_changes > 0 {
            actions.extend(bits(self.nodes_lost).map(|node| Action::ChangeHealth { node }));
        }
        if state.budget.moves > 0 {
            actions.extend(
                (0..2)
                    .filter(|node| *node != state.api.wanted)
                    .map(|node| Action::Move { node }),
            );
        }
        match state.api.migration {
            None if state.budget.migrations > 0 => actions.push(Action::Migrate {
                node: 1 - state.api.wanted,
            }),
            None => {}
            Some(_) => actions.extend([Action::Confirm, Action::RollBack]),
        }
        actions.extend((0..REPLICAS).map(|replica| Action::AcceptByAgent { replica }));
    }

    fn engine_actions(&self, state: &State, engine: &Engine, actions: &mut Vec<Action>) {
        let epoch = engine.epoch;
        for request in &engine.requests {
            let write = request.write;
            actions.extend(bits(request.in_flight).map(|replica| Action::Deliver {
                epoch,
                write,
                replica,
            }));
        }
        if let Phase::Starting { accepted } = engine.phase {
            let asked = bits(engine.known.members & !accepted);
            actions.extend(asked.map(|replica| Action::AcceptByEngine { epoch, replica }));
            actions.extend(bits(accepted).map(|source| Action::Choose { epoch, source }));
        }
        if engine.phase == (Phase::Standby { written: false }) {
            actions.push(Action::WriteOnTarget { epoch });
        }
        if engine.phase == Phase::Serving {
            if state.writes < self.writes_max {
                actions.push(Action::Submit { epoch });
            }
            let unacknowledged = engine
                .requests
                .iter()
                .filter(|request| state.acknowledged & (1 << request.write) == 0);
            actions.extend(unacknowledged.map(|request| Action::Acknowledge {
                epoch,
                write: request.write,
            }));
            if state.budget.suspicions > 0 {
                actions.extend((0..REPLICAS).map(|replica| Action::Suspect { epoch, replica }));
            }
            let told = state
                .api
                .engines
                .iter()
                .find(|object| object.epoch == epoch)
                .map_or(0, |object| object.rebuild);
            actions.extend(
                bits(told & !engine.known.members)
                    .map(|replica| Action::Rebuild { epoch, replica }),
            );
            actions.push(Action::Join { epoch });
        }
        if engine.is_alive() {
            actions.push(Action::Learn { epoch });
            if state.budget.crashes > 0 {
                actions.push(Action::Crash { epoch });
            }
            actions.push(Action::Stop { epoch });
        }
    }

    fn apply(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Plan => {
                let pending = self.controller.plan(state)?;
                let record = pending.planned.record;
                if record.issued > self.epochs_max || record.version > self.versions_max {
                    return None;
                }
                state.pending.push(pending);
                state.pending.sort();
                state.pending.dedup();
            }
            Action::Write { plan, crash } => {
                let pending = state.pending.remove(plan);
                if crash {
                    state.budget.crashes -= 1;
                }
                write(
                    state,
                    &pending,
                    crash,
                    self.flaw != Some(Flaw::NoCompareAndSwap),
                );
            }
            Action::Forget { plan } => drop(state.pending.remove(plan)),
            Action::ChangeHealth { node } => {
                state.budget.health_changes -= 1;
                state.api.lost ^= 1 << node;
            }
            Action::Move { node } => {
                state.budget.moves -= 1;
                state.api.wanted = node;
            }
            Action::Migrate { node } => {
                state.budget.migrations -= 1;
                state.api.migration = Some(node);
            }
            Action::Confirm => state.api.wanted = state.api.migration.take()?,
            Action::RollBack => drop(state.api.migration.take()),
            Action::WriteOnTarget { epoch } => {
                state.engine_mut(epoch)?.phase = Phase::Standby { written: true };
            }
            Action::AcceptByAgent { replica } => {
                let epoch = state.api.record.epoch;
                let replica = state.replica_mut(replica);
                replica.accepted = replica.accepted.max(epoch);
            }
            Action::AcceptByEngine { epoch, replica } => {
                self.accept(state, epoch, replica)?;
                let engine = state.engine_mut(epoch)?;
                let Phase::Starting { accepted } = &mut engine.phase else {
                    return None;
                };
                *accepted |= 1 << replica;
            }
            Action::Choose { epoch, source } => self.choose(state, epoch, source)?,
            Action::Submit { epoch } => submit(state, epoch)?,
            Action::Deliver {
                epoch,
                write,
                replica,
            } => self.deliver(state, epoch, write, replica)?,
            Action::Acknowledge { epoch, write } => self.acknowledge(state, epoch, write)?,
            Action::Suspect { epoch, replica } => self.suspect(state, epoch, replica)?,
            Action::Rebuild { epoch, replica } => self.rebuild(state, epoch, replica)?,
            Action::Join { epoch } => self.join(state, epoch)?,
            Action::Learn { epoch } => learn(state, epoch)?,
            Action::Crash { epoch } => {
                state.budget.crashes -= 1;
                state.engine_mut(epoch)?.die();
            }
            Action::Stop { epoch } => {
                let told = state
                    .api
                    .engines
                    .iter()
                    .find(|object| object.epoch == epoch)
                    .is_none_or(|object| !object.running);
                if !told {
                    return None;
                }
                state.engine_mut(epoch)?.die();
            }
        }
        Some(())
    }
}
