//! A few engines and replicas without chance: everything that is sent arrives at once, or never.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use block_core::epoch::Tenure;
use block_core::wire::{Reply, Request as WireRequest};
use block_core::{BLOCK_BYTES, Epoch, ReplicaName};
use bytes::Bytes;
use engine::control::{Command, Notice, Proposal};
use engine::core::{
    Action, CommandId, CommitVerdict, CoreConfig, EngineCore, Event, Expected, Incarnation, JobId,
    LinkRefusal, MemberAddress, MemberIndex, Moment,
};
use engine::frontend::{Endpoint, FrontendState};
use engine::io::{ByteRange, Operation, Outcome, Request, RequestId};

use crate::liars::{Liar, assert_fits_a_frame};
use crate::replica::{ModelReplica, Tag, block_of, tag_of};

pub const LEASE_US: u64 = 100_000;
pub const GRACE_US: u64 = 10_000;
pub const DEADLINE_US: u64 = 10_000_000;
pub const BLOCKS: u64 = 8;
/// One event leads to fewer others, or they never end.
const CONSEQUENCES_MAX: usize = 100_000;

/// Whether a request is one of those that are meant.
pub type Asks = fn(&WireRequest) -> bool;

pub struct Script {
    pub now: u64,
    pub replicas: Vec<ModelReplica>,
    pub engines: Vec<ScriptedEngine>,
    /// What is sent between this engine and this replica is lost.
    pub cut: BTreeSet<(usize, usize)>,
    /// Where a replica is served that is not at the address which is its number.
    pub moved: BTreeMap<usize, String>,
    /// Who tries to connect to these addresses never hears whether it worked.
    pub silent: BTreeSet<String>,
    /// Engines that are started are told not to wait for these.
    pub written_off: BTreeSet<usize>,
    /// Whether proposals are recorded; else nobody answers them.
    pub records: bool,
    /// This replica is lost at the first question for hashes.
    pub lost_when_compared: Option<usize>,
    /// So many more flushes are answered.
    pub flushes_left: Option<u32>,
    /// Records of an orderly end are made, and nobody hears of it.
    pub loses_last_word: bool,
    /// Requests that these replicas do not answer, and do not do; they answer others.
    pub unanswered: Vec<(usize, Asks)>,
    /// Requests that these replicas do, and nobody hears of it.
    pub unheard: Vec<(usize, Asks)>,
    /// One of the replicas does not answer as it should.
    pub liar: Option<Liar>,
    /// The size of the volume that engines which are started are told.
    pub size_bytes: u64,
    /// Of each write that was sent, to whom and as what.
    pub writes_sent: Vec<(MemberIndex, Incarnation, JobId)>,
    /// What a read takes at each replica; nothing, where it is not said.
    pub read_takes_us: BTreeMap<usize, u64>,
    /// The next beginning of a rebuild at this replica is held up on its way.
    pub hold_begin_of: Option<usize>,
    held: Option<(usize, Tenure, WireRequest)>,
    request_next: u64,
    command_next: u64,
}

pub struct ScriptedEngine {
    pub core: EngineCore,
    pub epoch: Epoch,
    pub serving: bool,
    /// The size of its device.
    pub shown_bytes: u64,
    /// Whether it ended, and if so in order.
    pub ended: Option<bool>,
    pub proposals: Vec<Proposal>,
    pub answers: BTreeMap<RequestId, Outcome>,
    /// Commands that were answered, and whether they were done.
    pub commands: BTreeMap<CommandId, bool>,
    pub notices: Vec<Notice>,
    links: BTreeMap<MemberIndex, (usize, Incarnation)>,
}

impl Script {
    pub fn new(replicas: usize) -> Self {
        Self {
            now: 0,
            replicas: (0..replicas)
                .map(|_| ModelReplica::new(BLOCKS * BLOCK_BYTES))
                .collect(),
            engines: Vec::new(),
            cut: BTreeSet::new(),
            moved: BTreeMap::new(),
            silent: BTreeSet::new(),
            written_off: BTreeSet::new(),
            records: true,
            lost_when_compared: None,
            flushes_left: None,
            loses_last_word: false,
            unanswered: Vec::new(),
            unheard: Vec::new(),
            liar: None,
            size_bytes: BLOCKS * BLOCK_BYTES,
            writes_sent: Vec::new(),
            read_takes_us: BTreeMap::new(),
            hold_begin_of: None,
            held: None,
            request_next: 1,
            command_next: 0,
        }
    }

    /// Starts an engine with the next epoch; answers its number.
    pub fn start_engine(&mut self, generation: u64, in_sync: &[usize], cut: &[usize]) -> usize {
        let epoch = Epoch(self.engines.len() as u64 + 1);
        self.start_engine_of(epoch, generation, in_sync, cut)
    }

    pub fn start_engine_of(
        &mut self,
        epoch: Epoch,
        generation: u64,
        in_sync: &[usize],
        cut: &[usize],
    ) -> usize {
        let engine = self.engines.len();
        self.cut
            .extend(cut.iter().map(|replica| (engine, *replica)));
        let address = |at: &usize| MemberAddress {
            name: ReplicaName::new(&format!("r{at}")).expect("a plain name"),
            address: at.to_string(),
        };
        let core = EngineCore::new(CoreConfig {
            create: false,
            detect_zeroes: false,
            volume: "v".into(),
            epoch,
            size_bytes: self.size_bytes,
            in_sync: in_sync.iter().map(address).collect(),
            written_off: self.written_off.iter().map(|at| address(at).name).collect(),
            generation,
            job_deadline_us: DEADLINE_US,
            open_grace_us: GRACE_US,
            read_lease_us: LEASE_US,
            rebuild_bytes_per_second_max: 0,
            started_unix_ms: 0,
        });
        self.engines.push(ScriptedEngine {
            core,
            epoch,
            serving: false,
            shown_bytes: 0,
            ended: None,
            proposals: Vec::new(),
            answers: BTreeMap::new(),
            commands: BTreeMap::new(),
            notices: Vec::new(),
            links: BTreeMap::new(),
        });
        self.tell(engine, Event::Start);
        self.tell(engine, Event::CommitterAttached);
        engine
    }

    /// An engine is killed: nothing is heard of it any more.
    pub fn kill_engine(&mut self, engine: usize) {
        let replicas = 0..self.replicas.len();
        self.cut.extend(replicas.map(|replica| (engine, replica)));
        self.engines[engine].ended = Some(false);
    }

    /// Lets time pass until this is so.
    pub fn pass_until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let until = self.now + 20 * DEADLINE_US;
        while !holds(self) {
            let last = self.engines.last().map(|engine| engine.core.status());
            assert!(self.now < until, "{what}: never, the last one is {last:#?}");
            self.pass(LEASE_US);
        }
    }

    pub fn command(&mut self, engine: usize, command: Command) -> CommandId {
        self.command_next += 1;
        let id = CommandId(1000 + self.command_next);
        self.tell(engine, Event::Command { id, command });
        id
    }

    /// The connection of an engine to a replica is reset.
    pub fn reset(&mut self, engine: usize, replica: usize) {
        let links = &self.engines[engine].links;
        let Some((member, (_, incarnation))) = links
            .iter()
            .find(|(_, (to, _))| *to == replica)
            .map(|(member, link)| (*member, *link))
        else {
            return;
        };
        let reason = "reset".into();
        self.tell(
            engine,
            Event::LinkDown {
                member,
                incarnation,
                reason,
            },
        );
    }

    /// What was held up arrives.
    pub fn release(&mut self) -> Reply {
        let (replica, tenure, request) = self.held.take().expect("something was held up");
        self.replicas[replica].execute(self.now, tenure, request)
    }

    /// Lets time pass for all engines, in small steps.
    pub fn pass(&mut self, us: u64) {
        let until = self.now + us;
        while self.now < until {
            self.now = (self.now + 5_000).min(until);
            for engine in 0..self.engines.len() {
                if self.engines[engine].ended.is_none() {
                    self.tell(engine, Event::Tick);
                }
            }
        }
    }

    pub fn write(&mut self, engine: usize, block: u64, tag: Tag) -> RequestId {
        self.submit_write(engine, block, tag, false)
    }

    /// A write that is to be on the disks when it is answered.
    pub fn write_through(&mut self, engine: usize, block: u64, tag: Tag) -> RequestId {
        self.submit_write(engine, block, tag, true)
    }

    fn submit_write(&mut self, engine: usize, block: u64, tag: Tag, durable: bool) -> RequestId {
        let data = Bytes::copy_from_slice(&block_of(tag));
        let offset = block * BLOCK_BYTES;
        let operation = Operation::Write {
            offset,
            data,
            durable,
        };
        self.submit(engine, operation)
    }

    pub fn written(&mut self, engine: usize, block: u64, tag: Tag) -> bool {
        let write = self.write(engine, block, tag);
        self.is_done(engine, write)
    }

    pub fn flush(&mut self, engine: usize) -> RequestId {
        self.submit(engine, Operation::Flush)
    }

    pub fn read(&mut self, engine: usize, block: u64) -> RequestId {
        let range = ByteRange::new(block * BLOCK_BYTES, BLOCK_BYTES);
        self.submit(engine, Operation::Read { range })
    }

    /// What a read was answered with, if it was.
    pub fn found(&self, engine: usize, read: RequestId) -> Option<Tag> {
        let outcome = self.engines[engine].answers.get(&read)?;
        outcome.as_ref().ok().map(|data| tag_of(data))
    }

    pub fn is_done(&self, engine: usize, request: RequestId) -> bool {
        matches!(self.engines[engine].answers.get(&request), Some(Ok(_)))
    }

    pub fn submit(&mut self, engine: usize, operation: Operation) -> RequestId {
        let id = RequestId(self.request_next);
        self.request_next += 1;
        self.tell(engine, Event::Submit(Request { id, operation }));
        id
    }

    pub fn tell(&mut self, engine: usize, event: Event) {
        let mut events = VecDeque::from([event]);
        let mut consequences = 0;
        while let Some(event) = events.pop_front() {
            consequences += 1;
            assert!(consequences < CONSEQUENCES_MAX, "it never comes to rest");
            let mut actions = Vec::new();
            let core = &mut self.engines[engine].core;
            core.apply(Moment(self.now), event, &mut actions);
            for action in actions {
                let followed = self.carry_out(engine, action);
                events.extend(
                    followed
                        .into_iter()
                        .flat_map(|event| self.told(engine, event)),
                );
            }
        }
    }

    /// What becomes of an event on its way, if it is an answer of a liar.
    fn told(&mut self, engine: usize, event: Event) -> Vec<Event> {
        let (Event::Reply { member, .. } | Event::LinkUp { member, .. }) = &event else {
            return vec![event];
        };
        let links = &self.engines[engine].links;
        let from = links.get(member).map(|(replica, _)| *replica);
        match &mut self.liar {
            Some(liar) if Some(liar.replica) == from => liar.distort(event),
            _ => vec![event],
        }
    }

    fn carry_out(&mut self, engine: usize, action: Action) -> Option<Event> {
        match action {
            Action::Connect {
                member,
                incarnation,
                to,
                expected,
                ..
            } => self.connect(engine, member, incarnation, &to.address, &expected),
            Action::Disconnect { member, .. } => {
                self.engines[engine].links.remove(&member);
                None
            }
            Action::Send {
                member,
                job,
                request,
            } => {
                let (replica, incarnation) = *self.engines[engine].links.get(&member)?;
                assert_fits_a_frame(&request);
                if matches!(request, WireRequest::Write { .. }) {
                    self.writes_sent.push((member, incarnation, job));
                }
                let reply = self.execute(engine, replica, incarnation, request)?;
                Some(Event::Reply {
                    member,
                    incarnation,
                    job,
                    reply,
                })
            }
            Action::Complete { request, outcome } => {
                let twice = self.engines[engine].answers.insert(request, outcome);
                assert!(twice.is_none(), "{request:?} was answered twice");
                None
            }
            Action::Propose(proposal) => {
                let generation = proposal.generation;
                self.engines[engine].proposals.push(proposal);
                let verdict = CommitVerdict::Recorded;
                self.records.then_some(Event::Commit {
                    generation,
                    verdict,
                })
            }
            Action::OpenFrontend { size_bytes } => {
                self.engines[engine].serving = true;
                self.engines[engine].shown_bytes = size_bytes;
                let endpoint = Endpoint::Nowhere;
                Some(Event::FrontendChanged(FrontendState::Ready { endpoint }))
            }
            Action::CloseFrontend => {
                self.engines[engine].serving = false;
                Some(Event::FrontendChanged(FrontendState::Closed))
            }
            Action::Answer { command, result } => {
                self.engines[engine]
                    .commands
                    .insert(command, result.is_ok());
                None
            }
            Action::Exit { clean } => {
                self.engines[engine].ended = Some(clean);
                None
            }
            Action::Notify(notice) => {
                self.engines[engine].notices.push(notice);
                None
            }
            Action::ResizeFrontend { size_bytes } => {
                self.engines[engine].shown_bytes = size_bytes;
                None
            }
        }
    }

    fn connect(
        &mut self,
        engine: usize,
        member: MemberIndex,
        incarnation: Incarnation,
        address: &str,
        expected: &Expected,
    ) -> Option<Event> {
        let refused = |why: String| Event::LinkRefused {
            member,
            incarnation,
            refusal: LinkRefusal::Unreachable(why),
        };
        if self.silent.contains(address) {
            return None;
        }
        let serves = |replica: &usize| match self.moved.get(replica) {
            Some(moved) => moved == address,
            None => replica.to_string() == address,
        };
        let replica = (0..self.replicas.len()).find(serves);
        let Some(replica) = replica.filter(|at| !self.cut.contains(&(engine, *at))) else {
            return Some(refused("nobody answers".into()));
        };
        if let Some(why) = expected.refusal(&self.replicas[replica].status()) {
            return Some(refused(why));
        }
        let tenure = Tenure {
            epoch: self.engines[engine].epoch,
            session: incarnation.0,
        };
        Some(match self.replicas[replica].open(self.now, tenure) {
            Ok(facts) => {
                let link = (replica, incarnation);
                self.engines[engine].links.insert(member, link);
                Event::LinkUp {
                    member,
                    incarnation,
                    facts,
                }
            }
            Err(failure) => Event::LinkRefused {
                member,
                incarnation,
                refusal: self.replicas[replica].refusal_of(failure),
            },
        })
    }

    fn execute(
        &mut self,
        engine: usize,
        replica: usize,
        incarnation: Incarnation,
        request: WireRequest,
    ) -> Option<Reply> {
        if matches!(request, WireRequest::LayerHashes { .. })
            && self.lost_when_compared == Some(replica)
        {
            self.cut.insert((engine, replica));
        }
        let reached = !self.cut.contains(&(engine, replica));
        let tenure = Tenure {
            epoch: self.engines[engine].epoch,
            session: incarnation.0,
        };
        if let (WireRequest::Flush | WireRequest::SnapshotPrepare, Some(left)) =
            (&request, &mut self.flushes_left)
        {
            *left = left.checked_sub(1)?;
        }
        if matches!(request, WireRequest::Read { .. }) {
            self.now += self.read_takes_us.get(&replica).copied().unwrap_or(0);
        }
        if matches!(request, WireRequest::RebuildBegin { .. })
            && self.hold_begin_of == Some(replica)
        {
            self.hold_begin_of = None;
            self.held = Some((replica, tenure, request));
            return None;
        }
        let unanswered = |(at, what): &(usize, Asks)| *at == replica && what(&request);
        if self.unanswered.iter().any(unanswered) {
            return None;
        }
        if let Some(liar) = self.liar.as_mut().filter(|it| it.replica == replica)
            && let Some(lie) = liar.instead(&request)
        {
            return reached.then_some(lie);
        }
        let unheard = |(at, what): &(usize, Asks)| *at == replica && what(&request);
        let is_unheard = self.unheard.iter().any(unheard);
        let is_last_word = matches!(&request, WireRequest::SetMeta(meta) if meta.clean);
        let is_lost = is_unheard || (is_last_word && self.loses_last_word);
        let reply = reached.then(|| self.replicas[replica].execute(self.now, tenure, request));
        reply.filter(|_| !is_lost)
    }
}
