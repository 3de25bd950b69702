//! What replicas and engines do: the part of the protocol that runs outside the controller.

use volume_core::{Epoch, Proposal, Version};

use super::controller::{to_mask, to_record};
use super::model::{EpochModel, Flaw};
use super::world::{Engine, Mask, Phase, Record, Request, State, bits};

impl EpochModel {
    /// A replica stores the largest epoch and refuses smaller ones.
    pub(super) fn accept(&self, state: &mut State, epoch: u8, replica: u8) -> Option<()> {
        let replica = state.replica_mut(replica);
        if replica.accepted > epoch && self.flaw != Some(Flaw::NoEpochCheck) {
            return None;
        }
        replica.accepted = replica.accepted.max(epoch);
        Some(())
    }

    pub(super) fn choose(&self, state: &mut State, epoch: u8, source: u8) -> Option<()> {
        let content = state.replica(source).content;
        let engine = state.engine(epoch)?;
        let Phase::Starting { accepted } = engine.phase else {
            return None;
        };
        let chosen: Mask = bits(accepted & engine.known.members)
            .filter(|index| state.replica(*index).content == content)
            .fold(0, |mask, bit| mask | 1 << bit);
        let engine = state.engine_mut(epoch)?;
        if chosen == engine.known.members {
            // Nothing may be outstanding: a set that is committed later would not be the one in use.
            if !engine.proposals.is_empty() {
                return None;
            }
            engine.phase = Phase::Serving;
            state.served = state.served.max(epoch);
        } else {
            self.propose(engine, chosen)?;
        }
        Some(())
    }

    pub(super) fn deliver(
        &self,
        state: &mut State,
        epoch: u8,
        write: u8,
        replica: u8,
    ) -> Option<()> {
        let accepted = self.accept(state, epoch, replica).is_some();
        if accepted {
            state.replica_mut(replica).content |= 1 << write;
        }
        let engine = state.engine_mut(epoch)?;
        let alive = engine.is_alive();
        let request = engine
            .requests
            .iter_mut()
            .find(|request| request.write == write)?;
        request.in_flight &= !(1 << replica);
        if accepted && alive {
            request.done |= 1 << replica;
        }
        Some(())
    }

    pub(super) fn acknowledge(&self, state: &mut State, epoch: u8, write: u8) -> Option<()> {
        let engine = state.engine(epoch)?;
        let request = engine
            .requests
            .iter()
            .find(|request| request.write == write)?;
        if self.required(engine) & !request.done != 0 {
            return None;
        }
        state.acknowledged |= 1 << write;
        Some(())
    }

    /// What the real protocol asks an engine to wait for.
    fn required(&self, engine: &Engine) -> Mask {
        let version = Version(u64::from(engine.known.version));
        let record = to_record(engine.known);
        let unanswered: Vec<Proposal> = engine
            .proposals
            .iter()
            .map(|members| Proposal {
                epoch: Epoch(u64::from(engine.known.epoch)),
                based_on: version,
                members: to_record(Record {
                    members: *members,
                    ..engine.known
                })
                .members,
            })
            .collect();
        let required = to_mask(record.required(&unanswered).into_iter());
        match self.flaw {
            Some(Flaw::ShrinksBeforeCommit) => engine
                .proposals
                .last()
                .map_or(required, |last| required & last),
            _ => required,
        }
    }

    fn propose(&self, engine: &mut Engine, members: Mask) -> Option<()> {
        if members == 0 || engine.proposals.last() == Some(&members) {
            return None;
        }
        if self.flaw == Some(Flaw::ForgetsProposals) {
            engine.proposals.clear();
        }
        engine.proposals.retain(|other| *other != members);
        engine.proposals.push(members);
        Some(())
    }

    pub(super) fn suspect(&self, state: &mut State, epoch: u8, replica: u8) -> Option<()> {
        state.budget.suspicions -= 1;
        let engine = state.engine_mut(epoch)?;
        if engine.rebuild == Some(replica) {
            engine.rebuild = None;
            // Taken back by proposing what is committed: until that has its own version, the other
            // proposal may still be committed.
            if !engine.proposals.is_empty() {
                let members = engine.known.members;
                self.propose(engine, members)?;
            }
            return Some(());
        }
        let members = engine.known.members & !(1 << replica);
        (members != engine.known.members).then_some(())?;
        self.propose(engine, members)
    }

    /// Copies from a member, and from now on sends every write; those not acknowledged yet too.
    pub(super) fn rebuild(&self, state: &mut State, epoch: u8, replica: u8) -> Option<()> {
        let engine = state.engine(epoch)?;
        let source =
            bits(engine.known.members).find(|index| state.replica(*index).accepted == epoch)?;
        if engine.rebuild.is_some() || !engine.proposals.is_empty() {
            return None;
        }
        self.accept(state, epoch, replica)?;
        let (content, acknowledged) = (state.replica(source).content, state.acknowledged);
        state.replica_mut(replica).content = content;
        let engine = state.engine_mut(epoch)?;
        engine.rebuild = Some(replica);
        for request in engine
            .requests
            .iter_mut()
            .filter(|request| acknowledged & (1 << request.write) == 0)
        {
            request.in_flight |= 1 << replica;
            request.done &= !(1 << replica);
        }
        Some(())
    }

    pub(super) fn join(&self, state: &mut State, epoch: u8) -> Option<()> {
        let acknowledged = state.acknowledged;
        let engine = state.engine_mut(epoch)?;
        let bit = 1 << engine.rebuild?;
        // From the proposal on the replica is waited for; what was acknowledged before, it must have.
        let lacks_one = engine.requests.iter().any(|request| {
            acknowledged & (1 << request.write) != 0 && request.in_flight & bit != 0
        });
        if (lacks_one && self.flaw != Some(Flaw::JoinsTooEarly)) || engine.known.members & bit != 0
        {
            return None;
        }
        let members = engine.known.members | bit;
        self.propose(engine, members)
    }
}

pub(super) fn submit(state: &mut State, epoch: u8) -> Option<()> {
    let write = state.writes;
    if state.served > epoch {
        state.too_late |= 1 << write;
    }
    let engine = state.engine_mut(epoch)?;
    let rebuild = engine.rebuild.map_or(0, |index| 1 << index);
    let proposed = engine
        .proposals
        .iter()
        .fold(0, |mask, members| mask | members);
    let in_flight = engine.known.members | proposed | rebuild;
    engine.requests.push(Request {
        write,
        in_flight,
        done: 0,
    });
    state.writes += 1;
    Some(())
}

/// Reads the record: a newer version answers every proposal, a newer epoch ends the engine.
pub(super) fn learn(state: &mut State, epoch: u8) -> Option<()> {
    let record = state.api.record;
    let engine = state.engine_mut(epoch)?;
    if record.epoch > epoch {
        engine.die();
        return Some(());
    }
    if record.version == engine.known.version {
        return None;
    }
    engine.known = record;
    engine.proposals.clear();
    if let Phase::Standby { .. } = engine.phase
        && record.epoch == epoch
    {
        // Now it is the writer, and starts as every writer does: by asking the members to accept it.
        engine.phase = Phase::Starting { accepted: 0 };
    }
    if engine
        .rebuild
        .is_some_and(|index| record.members & (1 << index) != 0)
    {
        engine.rebuild = None;
    }
    Some(())
}

/// What can no longer matter is removed, so that equal worlds are equal states.
pub(super) fn forget_the_dead(state: &mut State) {
    let api = &state.api;
    state.engines.retain(|engine| {
        engine.is_alive()
            || !engine.requests.is_empty()
            || api
                .engines
                .iter()
                .any(|object| object.epoch == engine.epoch)
    });
    let acknowledged = state.acknowledged;
    for engine in &mut state.engines {
        engine
            .requests
            .retain(|request| request.in_flight != 0 || acknowledged & (1 << request.write) == 0);
    }
}
