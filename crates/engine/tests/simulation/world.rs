//! Everything around the engine, in simulated time.

mod clients;
mod faults;
mod machines;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use block_core::epoch::Tenure;
use block_core::wire::{Reply, Request as WireRequest, StatusCode};
use block_core::{BLOCK_BYTES, Epoch, ReplicaName};
use engine::control::{Notice, Proposal};
use engine::core::{
    Action, CoreConfig, EngineCore, Event, Incarnation, JobId, LinkRefusal, MemberAddress,
    MemberIndex, Moment,
};
use engine::frontend::{Endpoint, FrontendState};
use engine::io::{Operation, RequestId};

use crate::replica::{ModelReplica, Tag};
use crate::seen::{Dice, Seen};

const REPLICAS: usize = 3;
const BLOCKS: u64 = 160;
/// Writes to these overlap each other; only their equality is checked.
const CONTENDED_BLOCKS: u64 = 16;
const END_OF_FAULTS_US: u64 = 2_500_000;
/// Some time is left after the faults for what they broke.
const END_OF_CLIENTS_US: u64 = END_OF_FAULTS_US + 500_000;
const END_US: u64 = 60_000_000;
/// What an engine says that gives up because the last machine has forgotten writes.
const GAVE_UP: &str = "the last replica in sync, was restarted";
/// In these schedules; none of those that once failed is one.
const MACHINES_RESTART_ONE_IN: u64 = 5;

struct Engine {
    core: EngineCore,
    epoch: Epoch,
    running: bool,
    serving: bool,
    /// The connection number by which each replica knows this engine's newest link.
    links: BTreeMap<MemberIndex, (Incarnation, usize)>,
    addresses: BTreeMap<MemberIndex, usize>,
}

enum Happening {
    ToEngine {
        engine: usize,
        event: Event,
    },
    ToReplica {
        engine: usize,
        member: MemberIndex,
        incarnation: Incarnation,
        replica: usize,
        job: JobId,
        request: Box<WireRequest>,
    },
    Handshake {
        engine: usize,
        member: MemberIndex,
        incarnation: Incarnation,
        replica: usize,
    },
    ClientStep,
    Fault,
    Commit {
        engine: usize,
        proposal: Proposal,
    },
    StartEngine,
    ReplicaBack(usize),
    Agent,
    PowerCut,
    MachineRestart,
    Tick {
        engine: usize,
    },
}

struct Scheduled {
    at: u64,
    order: u64,
    what: Happening,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// Whose it is, and which one.
type Connection = (usize, MemberIndex, Incarnation);

struct Node {
    replica: ModelReplica,
    up: bool,
    /// Stopped until then: nothing is executed or answered before.
    frozen_until: u64,
    /// The newest connection that it accepted: the only one over which answers arrive.
    connection: Option<Connection>,
    /// Those over which requests arrive, however late: what was sent before a line broke may be on its way for long.
    readable: BTreeSet<Connection>,
    reachable: bool,
    /// Engines from this one on cannot reach it, older ones can.
    hidden_from: Option<usize>,
}

impl Node {
    fn is_reachable_by(&self, engine: usize) -> bool {
        self.reachable && self.hidden_from.is_none_or(|first| engine < first)
    }
}

/// What a block may hold, as far as clients can know.
#[derive(Clone, Debug, Default)]
struct Expected {
    settled: Tag,
    /// Written and never answered: may be there, or not.
    floating: BTreeSet<Tag>,
    /// When the latest of them was given up.
    floating_since: u64,
    pending: Option<Tag>,
}

struct Open {
    engine: usize,
    operation: Operation,
    asked_at: u64,
    /// A newer engine that had answered somebody before this was asked.
    replaced_by: Option<usize>,
    /// For a read: what each block may show.
    allowed: Vec<BTreeSet<Tag>>,
}

pub struct World {
    dice: Dice,
    /// Of their own, so that schedules which once failed stay what they were.
    beliefs: Dice,
    power: Dice,
    machines: Dice,
    /// Connections over which no answer arrives any more, also not what is on its way.
    silenced: BTreeSet<Connection>,
    now: u64,
    order: u64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    engines: Vec<Engine>,
    nodes: Vec<Node>,
    record: (Epoch, u64, Vec<String>),
    committer_up: bool,
    held_proposals: Vec<(usize, Proposal)>,
    expected: Vec<Expected>,
    open: BTreeMap<RequestId, Open>,
    /// The newest engine that has done something for a client.
    newest_answered: Option<usize>,
    request_next: u64,
    tag_next: Tag,
    command_next: u64,
    shutting_down: bool,
    seen: Seen,
    verbose: bool,
}

impl World {
    pub fn new(seed: u64, verbose: bool) -> Self {
        let size_bytes = BLOCKS * BLOCK_BYTES;
        let node = || Node {
            replica: ModelReplica::new(size_bytes),
            up: true,
            frozen_until: 0,
            connection: None,
            readable: BTreeSet::new(),
            reachable: true,
            hidden_from: None,
        };
        let mut world = Self {
            dice: Dice(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x5eed),
            beliefs: Dice(seed ^ 0xbe11_ef5e),
            power: Dice(seed ^ 0x0ff_0ff),
            machines: Dice(seed ^ 0x00ac_41e5),
            silenced: BTreeSet::new(),
            now: 0,
            order: 0,
            queue: BinaryHeap::new(),
            engines: Vec::new(),
            nodes: (0..REPLICAS).map(|_| node()).collect(),
            record: (Epoch(0), 1, (0..REPLICAS).map(name_of).collect()),
            committer_up: true,
            held_proposals: Vec::new(),
            expected: vec![Expected::default(); BLOCKS as usize],
            open: BTreeMap::new(),
            newest_answered: None,
            request_next: 1,
            tag_next: 1,
            command_next: 1,
            shutting_down: false,
            seen: Seen::default(),
            verbose,
        };
        world.schedule(0, Happening::StartEngine);
        world.schedule(1_000, Happening::ClientStep);
        world.schedule(50_000, Happening::Fault);
        world.schedule(80_000, Happening::Agent);
        if seed.is_multiple_of(MACHINES_RESTART_ONE_IN) {
            let first = world.machines.below(600_000);
            world.schedule(first, Happening::MachineRestart);
        }
        world
    }

    pub fn run(mut self) -> Seen {
        while let Some(Reverse(next)) = self.queue.pop() {
            self.now = next.at;
            if self.now > END_US {
                break;
            }
            self.happen(next.what);
            if self.shutting_down && self.engines.iter().all(|engine| !engine.running) {
                break;
            }
        }
        self.check_the_end();
        self.seen
    }

    fn schedule(&mut self, after_us: u64, what: Happening) {
        self.order += 1;
        let (at, order) = (self.now + after_us, self.order);
        self.queue.push(Reverse(Scheduled { at, order, what }));
    }

    /// Mostly short; sometimes long, while there are faults.
    fn delay_us(&mut self) -> u64 {
        if !self.faults_are_over() && self.dice.one_in(50) {
            self.dice.below(300_000)
        } else {
            20 + self.dice.below(400)
        }
    }

    fn faults_are_over(&self) -> bool {
        self.now >= END_OF_FAULTS_US
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::ToEngine { engine, event } => self.tell_engine(engine, event),
            Happening::Tick { engine } => {
                if self.engines[engine].running {
                    self.tell_engine(engine, Event::Tick);
                    self.schedule(20_000, Happening::Tick { engine });
                }
            }
            Happening::Handshake {
                engine,
                member,
                incarnation,
                replica,
            } => {
                self.handshake(engine, member, incarnation, replica);
            }
            Happening::ToReplica {
                engine,
                member,
                incarnation,
                replica,
                job,
                request,
            } => {
                self.tell_replica(engine, member, incarnation, replica, job, *request);
            }
            Happening::ClientStep => self.client_step(),
            Happening::Fault => self.fault(),
            Happening::Commit { engine, proposal } => self.commit(engine, proposal),
            Happening::StartEngine => self.start_engine(),
            Happening::ReplicaBack(at) => self.nodes[at].up = true,
            Happening::Agent => self.agent(),
            Happening::PowerCut => self.cut_power(),
            Happening::MachineRestart => self.restart_machines(),
        }
    }

    fn start_engine(&mut self) {
        let epoch = Epoch(self.record.0.0 + 1);
        self.record.0 = epoch;
        let in_sync: Vec<MemberAddress> =
            self.record.2.iter().map(|name| address_of(name)).collect();
        let written_off = self.write_off();
        let core = EngineCore::new(CoreConfig {
            create: false,
            detect_zeroes: false,
            volume: "v".into(),
            epoch,
            size_bytes: BLOCKS * BLOCK_BYTES,
            in_sync,
            written_off,
            generation: self.record.1,
            job_deadline_us: 200_000,
            open_grace_us: 300_000,
            read_lease_us: 100_000,
            rebuild_bytes_per_second_max: if self.dice.one_in(2) { 0 } else { 4 << 20 },
            started_unix_ms: 0,
        });
        self.seen.engines += 1;
        self.engines.push(Engine {
            core,
            epoch,
            running: true,
            serving: false,
            links: BTreeMap::new(),
            addresses: BTreeMap::new(),
        });
        let engine = self.engines.len() - 1;
        self.say(|| format!("engine {engine} starts with epoch {epoch}"));
        self.tell_engine(engine, Event::Start);
        self.tell_engine(engine, Event::CommitterAttached);
        self.schedule(20_000, Happening::Tick { engine });
    }

    fn tell_engine(&mut self, engine: usize, event: Event) {
        if !self.engines[engine].running || self.is_silenced(engine, &event) {
            return;
        }
        if let Event::Reply {
            member,
            incarnation,
            ..
        } = &event
        {
            let newest = self.engines[engine].links.get(member);
            let is_old = newest.is_some_and(|(newest, _)| newest > incarnation);
            self.seen.replies_of_older_connections += u64::from(is_old);
        }
        let mut actions = Vec::new();
        self.engines[engine]
            .core
            .apply(Moment(self.now), event, &mut actions);
        for action in actions {
            self.carry_out(engine, action);
        }
    }

    fn carry_out(&mut self, engine: usize, action: Action) {
        match action {
            Action::Connect {
                member,
                incarnation,
                to,
                ..
            } => {
                let replica: usize = to.address.parse().expect("addresses are numbers here");
                self.engines[engine].addresses.insert(member, replica);
                let delay = self.delay_us();
                self.schedule(
                    delay,
                    Happening::Handshake {
                        engine,
                        member,
                        incarnation,
                        replica,
                    },
                );
            }
            Action::Disconnect { member, .. } => {
                self.engines[engine].links.remove(&member);
            }
            Action::Send {
                member,
                job,
                request,
            } => {
                if let Some((incarnation, replica)) =
                    self.engines[engine].links.get(&member).copied()
                {
                    let delay = self.delay_us();
                    let request = Box::new(request);
                    self.schedule(
                        delay,
                        Happening::ToReplica {
                            engine,
                            member,
                            incarnation,
                            replica,
                            job,
                            request,
                        },
                    );
                }
            }
            Action::Complete { request, outcome } => self.completed(request, outcome),
            Action::Propose(proposal) => {
                let delay = self.delay_us();
                self.schedule(delay, Happening::Commit { engine, proposal });
            }
            Action::OpenFrontend { .. } => {
                self.engines[engine].serving = true;
                let event = Event::FrontendChanged(FrontendState::Ready {
                    endpoint: Endpoint::Nowhere,
                });
                self.schedule(100, Happening::ToEngine { engine, event });
            }
            Action::CloseFrontend => {
                self.engines[engine].serving = false;
                let event = Event::FrontendChanged(FrontendState::Closed);
                self.schedule(100, Happening::ToEngine { engine, event });
            }
            Action::ResizeFrontend { .. } => {}
            Action::Answer { result, .. } => {
                if let Err(error) = result {
                    self.say(|| format!("engine {engine} refuses: {error}"));
                }
            }
            Action::Notify(notice) => self.noticed(engine, &notice),
            Action::Exit { clean } => {
                self.say(|| format!("engine {engine} ends, clean: {clean}"));
                self.engines[engine].running = false;
                self.engines[engine].serving = false;
                self.seen.clean_ends += u64::from(clean);
            }
        }
    }

    fn noticed(&mut self, engine: usize, notice: &Notice) {
        self.say(|| format!("engine {engine}: {notice:?}"));
        match notice {
            Notice::MemberFailed { .. } => self.seen.failed_members += 1,
            Notice::LastMemberLost { .. } => self.seen.last_members_lost += 1,
            Notice::RebuildFinished { .. } => self.seen.rebuilds += 1,
            Notice::RebuildInterrupted { .. } => self.seen.rebuilds_interrupted += 1,
            Notice::Fenced { why } => {
                self.seen.fenced += 1;
                self.engines[engine].serving = false;
                if why.contains(GAVE_UP) {
                    self.seen.machine_restarts_that_fenced += 1;
                    self.schedule(1_000, Happening::StartEngine);
                }
            }
            Notice::Reconciled { differing_bytes } => {
                self.seen.reconciled += 1;
                self.seen.repaired += u64::from(*differing_bytes > 0);
            }
            Notice::CommitRefused { .. } => self.seen.stalled_commits += 1,
            _ => {}
        }
    }

    fn handshake(
        &mut self,
        engine: usize,
        member: MemberIndex,
        incarnation: Incarnation,
        replica: usize,
    ) {
        let tenure = self.tenure_of(engine, incarnation);
        let node = &mut self.nodes[replica];
        let refusal = if !node.up || !node.is_reachable_by(engine) || node.frozen_until > self.now {
            Err(LinkRefusal::Unreachable("nobody answers".into()))
        } else {
            let opened = node.replica.open(self.now, tenure);
            opened.map_err(|failure| node.replica.refusal_of(failure))
        };
        let delay = self.delay_us();
        match refusal {
            Ok(facts) => {
                let connection = (engine, member, incarnation);
                self.nodes[replica].connection = Some(connection);
                self.nodes[replica].readable.insert(connection);
                self.engines[engine]
                    .links
                    .insert(member, (incarnation, replica));
                let event = Event::LinkUp {
                    member,
                    incarnation,
                    facts,
                };
                self.schedule(delay, Happening::ToEngine { engine, event });
            }
            Err(refusal) => {
                let event = Event::LinkRefused {
                    member,
                    incarnation,
                    refusal,
                };
                self.schedule(delay, Happening::ToEngine { engine, event });
            }
        }
    }

    fn tell_replica(
        &mut self,
        engine: usize,
        member: MemberIndex,
        incarnation: Incarnation,
        replica: usize,
        job: JobId,
        request: WireRequest,
    ) {
        let tenure = self.tenure_of(engine, incarnation);
        let connection = (engine, member, incarnation);
        let now = self.now;
        let node = &mut self.nodes[replica];
        if node.frozen_until > now && node.up {
            let wait = node.frozen_until - now + 1;
            let request = Box::new(request);
            self.schedule(
                wait,
                Happening::ToReplica {
                    engine,
                    member,
                    incarnation,
                    replica,
                    job,
                    request,
                },
            );
            return;
        }
        if !node.up || !node.readable.contains(&connection) {
            return;
        }
        let reply = node.replica.execute(self.now, tenure, request);
        if node.connection != Some(connection) {
            // Nobody hears of it; whether it was refused is what matters.
            let refused =
                matches!(&reply, Reply::Failed(failure) if failure.code == StatusCode::Superseded);
            self.seen.superseded_requests += u64::from(refused);
            return;
        }
        let delivered = node.is_reachable_by(engine);
        if !delivered {
            // A stream does not go on behind a reply that was lost: from here on the connection is dead, and nobody
            // is told.
            node.connection = None;
        }
        let delay = self.delay_us();
        if delivered {
            if self.dice.one_in(30) && !matches!(reply, Reply::Data(_)) {
                self.seen.late_replies += 1;
                let event = Event::Reply {
                    member,
                    incarnation,
                    job,
                    reply: reply.clone(),
                };
                let later = delay + self.dice.below(400_000);
                self.schedule(later, Happening::ToEngine { engine, event });
            }
            let event = Event::Reply {
                member,
                incarnation,
                job,
                reply,
            };
            self.schedule(delay, Happening::ToEngine { engine, event });
        }
    }

    fn tenure_of(&self, engine: usize, incarnation: Incarnation) -> Tenure {
        Tenure {
            epoch: self.engines[engine].epoch,
            session: incarnation.0,
        }
    }

    fn say(&self, text: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:>9} {}", self.now, text());
        }
    }
}

fn name_of(replica: usize) -> String {
    format!("r{replica}")
}

fn address_of(name: &str) -> MemberAddress {
    MemberAddress {
        name: ReplicaName::new(name).expect("a plain name"),
        address: name[1..].to_owned(),
    }
}
