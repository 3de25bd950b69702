//! What goes wrong, and the agent that sets it right.

use std::collections::BTreeSet;

use block_core::ReplicaName;
use engine::control::{Command, EngineState, Proposal};
use engine::core::{CommandId, CommitVerdict, Event};

use super::{END_OF_CLIENTS_US, GAVE_UP, Happening, REPLICAS, World, address_of, name_of};

impl World {
    pub(super) fn fault(&mut self) {
        if self.faults_are_over() {
            self.heal();
            self.schedule(1_000, Happening::PowerCut);
            return;
        }
        let at = self.dice.below(REPLICAS as u64) as usize;
        match self.dice.below(12) {
            0 | 1 => {
                self.say(|| format!("replica {at} is killed"));
                self.nodes[at].up = false;
                self.drop_connection(at);
                self.nodes[at].readable.clear();
                self.nodes[at].replica.restart(self.now);
                let back = 10_000 + self.dice.below(600_000);
                self.schedule(back, Happening::ReplicaBack(at));
            }
            2 => {
                let until = self.now + self.dice.below(800_000);
                self.say(|| format!("replica {at} is stopped"));
                self.nodes[at].frozen_until = until;
            }
            3 => {
                self.say(|| format!("replica {at} cannot be reached"));
                self.nodes[at].reachable = false;
                if self.dice.one_in(2) {
                    self.drop_connection(at);
                }
            }
            4 | 5 => {
                self.nodes[at].reachable = true;
                self.nodes[at].hidden_from = None;
            }
            6 => self.nodes[at].replica.full = !self.nodes[at].replica.full && self.dice.one_in(3),
            7 => {
                self.committer_up = false;
                self.lose_committer(Event::CommitterLost);
            }
            8 => self.committer_back(),
            9 => self.kill_engine(),
            10 if self.dice.one_in(3) => {
                // Another one is started while this one lives, as after a partition.
                if self.dice.one_in(2) {
                    self.say(|| format!("replica {at} is hidden from the next engine"));
                    self.nodes[at].hidden_from = Some(self.engines.len());
                }
                self.schedule(0, Happening::StartEngine);
            }
            _ => self.drop_connection(at),
        }
        let pause = 20_000 + self.dice.below(250_000);
        self.schedule(pause, Happening::Fault);
    }

    pub(super) fn commit(&mut self, engine: usize, proposal: Proposal) {
        if !self.committer_up && !self.faults_are_over() {
            self.seen.stalled_commits += 1;
            self.held_proposals.push((engine, proposal));
            return;
        }
        let (epoch, generation, set) = &mut self.record;
        let verdict = if proposal.epoch != epoch.0 {
            CommitVerdict::Fenced("a newer epoch is recorded".into())
        } else if proposal.generation == *generation + 1 {
            assert!(!proposal.in_sync.is_empty(), "nobody proposes an empty set");
            *generation += 1;
            *set = proposal.in_sync.clone();
            CommitVerdict::Recorded
        } else if proposal.generation == *generation {
            CommitVerdict::Recorded
        } else {
            CommitVerdict::Fenced("the generation does not follow".into())
        };
        self.say(|| format!("{proposal:?}: {verdict:?}"));
        let delay = self.delay_us();
        let event = Event::Commit {
            generation: proposal.generation,
            verdict,
        };
        self.schedule(delay, Happening::ToEngine { engine, event });
    }

    pub(super) fn lose_committer(&mut self, event: Event) {
        let newest = self.engines.len() - 1;
        self.tell_engine(newest, event);
    }

    pub(super) fn committer_back(&mut self) {
        self.committer_up = true;
        for (engine, proposal) in std::mem::take(&mut self.held_proposals) {
            self.commit(engine, proposal);
        }
        let newest = self.engines.len() - 1;
        self.tell_engine(newest, Event::CommitterAttached);
    }

    pub(super) fn kill_engine(&mut self) {
        let newest = self.engines.len() - 1;
        if !self.engines[newest].running {
            return;
        }
        self.say(|| format!("engine {newest} is killed"));
        self.engines[newest].running = false;
        self.engines[newest].serving = false;
        self.forget_requests_of(newest);
        let delay = 1_000 + self.dice.below(100_000);
        self.schedule(delay, Happening::StartEngine);
    }

    pub(super) fn drop_connection(&mut self, replica: usize) {
        if let Some(connection) = self.nodes[replica].connection.take() {
            let (engine, member, incarnation) = connection;
            if self.dice.one_in(2) {
                self.nodes[replica].readable.remove(&connection);
            }
            let delay = self.delay_us();
            let event = Event::LinkDown {
                member,
                incarnation,
                reason: "reset".into(),
            };
            self.schedule(delay, Happening::ToEngine { engine, event });
        }
    }

    /// From here on everything works; what was broken recovers.
    pub(super) fn heal(&mut self) {
        for node in &mut self.nodes {
            node.reachable = true;
            node.hidden_from = None;
            node.up = true;
            node.frozen_until = 0;
            node.replica.full = false;
        }
        self.committer_back();
    }

    /// The newest engine is killed, and the machine of one of its replicas restarts at that moment, once in most schedules.
    /// All others work: so every acknowledged write is still there, flushed or not.
    pub(super) fn cut_power(&mut self) {
        if self.shutting_down || self.now >= END_OF_CLIENTS_US || self.power.one_in(50) {
            return;
        }
        let newest = self.engines.len() - 1;
        let status = self.engines[newest].core.status();
        let recorded = &self.record.2;
        // While a set is being recorded, nobody can say who else has everything.
        let settled = status.proposal.is_none() && status.in_sync == *recorded;
        if !self.engines[newest].serving || !settled || recorded.len() < 2 {
            self.schedule(5_000, Happening::PowerCut);
            return;
        }
        let chosen = &recorded[self.power.below(recorded.len() as u64) as usize];
        let at: usize = address_of(chosen).address.parse().expect("a number");
        self.say(|| format!("the machine of replica {at} is restarted"));
        self.kill_engine();
        self.nodes[at].connection = None;
        self.nodes[at].readable.clear();
        let lost = self.nodes[at].replica.restart_machine(self.now);
        self.seen.power_cuts += 1;
        self.seen.power_cuts_that_lost += u64::from(lost);
    }

    /// What a node agent would do: one engine, all replicas in sync, in the end an orderly shutdown.
    pub(super) fn agent(&mut self) {
        let newest = self.engines.len() - 1;
        let status = self.engines[newest].core.status();
        let stuck = matches!(&status.state, EngineState::Fenced { why } if !why.contains(GAVE_UP));
        if self.engines[newest].running && stuck && self.faults_are_over() {
            panic!("the newest engine is fenced: {status:?}");
        }
        if self.engines[newest].serving {
            for member in &status.members {
                if member.role == "out" && self.dice.one_in(3) {
                    let command = Command::Rebuild {
                        name: member.name.clone(),
                        address: member.name[1..].to_owned(),
                    };
                    self.command(newest, command);
                }
            }
            for at in 0..REPLICAS {
                let name = name_of(at);
                if !status.members.iter().any(|member| member.name == name) && self.dice.one_in(3) {
                    self.command(
                        newest,
                        Command::Rebuild {
                            name,
                            address: at.to_string(),
                        },
                    );
                }
            }
            if self.dice.one_in(6) && !self.faults_are_over() {
                let name = format!("s{}", self.command_next);
                self.seen.snapshots += 1;
                self.command(
                    newest,
                    Command::Snapshot {
                        name,
                        created_unix_ms: 0,
                    },
                );
            }
            let settled = status.in_sync.len() == REPLICAS
                && status.tasks.is_empty()
                && status.proposal.is_none()
                && self.open.is_empty();
            if self.faults_are_over() && settled && !self.shutting_down {
                self.shutting_down = true;
                for zombie in 0..newest {
                    self.engines[zombie].running = false;
                }
                self.command(newest, Command::Shutdown);
            }
        }
        self.schedule(60_000, Happening::Agent);
    }

    pub(super) fn command(&mut self, engine: usize, command: Command) {
        let id = CommandId(self.command_next);
        self.command_next += 1;
        self.tell_engine(engine, Event::Command { id, command });
    }

    /// Whom the caller takes for lost: often one that is, sometimes one that is not.
    pub(super) fn write_off(&mut self) -> BTreeSet<ReplicaName> {
        let mut written_off = BTreeSet::new();
        for name in &self.record.2 {
            let to = address_of(name);
            let node = &self.nodes[to.address.parse::<usize>().expect("a number")];
            let is_lost = !node.up || !node.reachable || node.hidden_from.is_some();
            if self.beliefs.one_in(if is_lost { 2 } else { 8 }) {
                written_off.insert(to.name);
            }
        }
        self.seen.written_off += written_off.len() as u64;
        written_off
    }
}
