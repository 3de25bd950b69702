//! Machines that restart under a living engine.
//!
//! A machine forgets what was not flushed, and nobody can promise that back. So they restart only at moments when a restart
//! takes nothing from clients but writes that were not answered yet: what was acknowledged must be there afterwards. Until an
//! engine notices, it could acknowledge a write that is gone, as happens with disks that lose power; so answers that are on
//! their way are lost with the machine, and engines are told at once: whatever is acknowledged from then on must be there as well.

use engine::core::Event;

use super::{Happening, World, address_of};

/// How often it is looked whether this is such a moment: writes take less than a millisecond.
const LOOK_US: u64 = 700;

impl World {
    /// All machines of the recorded replicas at once, or one of them.
    pub(super) fn restart_machines(&mut self) {
        if self.faults_are_over() {
            return;
        }
        if self.try_restart_machines().is_none() {
            self.schedule(LOOK_US, Happening::MachineRestart);
            return;
        }
        self.seen.machine_restarts += 1;
        let pause = 200_000 + self.machines.below(800_000);
        self.schedule(pause, Happening::MachineRestart);
    }

    /// If this is the moment for it.
    fn try_restart_machines(&mut self) -> Option<()> {
        let newest = self.engines.len() - 1;
        let writes = |open: &super::Open| open.engine == newest && !open.operation.is_read();
        if !self.engines[newest].serving || !self.open.values().any(writes) {
            return None;
        }
        let status = self.engines[newest].core.status();
        if status.proposal.is_some() || status.in_sync != self.record.2 {
            return None;
        }
        let number = |name: &String| address_of(name).address.parse().expect("a number");
        let mut chosen: Vec<usize> = self.record.2.iter().map(number).collect();
        if self.machines.one_in(3) {
            let at = self.machines.below(chosen.len() as u64) as usize;
            chosen = vec![chosen[at]];
        }
        let mut forgotten = 0;
        for at in &chosen {
            forgotten += self.would_forget(*at)?;
        }
        if forgotten == 0 {
            return None;
        }
        for at in &chosen {
            self.say(|| format!("the machine of replica {at} restarts under engine {newest}"));
            self.nodes[*at].connection = None;
            self.nodes[*at].readable.clear();
            self.nodes[*at].up = false;
            self.nodes[*at].replica.restart_machine(self.now);
            let back = 5_000 + self.machines.below(300_000);
            self.schedule(back, Happening::ReplicaBack(*at));
        }
        for at in chosen {
            self.end_connections_to(at);
        }
        Some(())
    }

    fn end_connections_to(&mut self, at: usize) {
        let mut ended = Vec::new();
        for (engine, state) in self.engines.iter().enumerate() {
            let links = state.links.iter().filter(|(_, (_, to))| *to == at);
            ended.extend(links.map(|(member, (incarnation, _))| (engine, *member, *incarnation)));
        }
        self.silenced.extend(ended.iter().copied());
        for (engine, member, incarnation) in ended {
            let reason = "the power went".into();
            let event = Event::LinkDown {
                member,
                incarnation,
                reason,
            };
            self.tell_engine(engine, event);
        }
    }

    /// How many blocks a restart of a replica's machine would take back, if that is nothing but unanswered writes.
    fn would_forget(&self, at: usize) -> Option<usize> {
        let replica = &self.nodes[at].replica;
        let mut forgotten = 0;
        let blocks = replica.live_blocks().into_iter();
        for (block, (lost, kept)) in blocks.zip(replica.durable_blocks()).enumerate() {
            let expected = &self.expected[block];
            if lost == kept {
                continue;
            }
            if expected.pending != Some(lost) || !expected.allowed().contains(&kept) {
                return None;
            }
            forgotten += 1;
        }
        Some(forgotten)
    }

    pub(super) fn is_silenced(&self, engine: usize, event: &Event) -> bool {
        match event {
            Event::Reply {
                member,
                incarnation,
                ..
            } => self.silenced.contains(&(engine, *member, *incarnation)),
            _ => false,
        }
    }
}
