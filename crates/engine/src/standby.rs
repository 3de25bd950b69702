//! An engine that waits to take a volume over from another one: the target of a live migration.
//!
//! It shows the volume on its node and reads from the same replicas as the writer, but has them accept nothing: it only
//! looks, so the writer goes on undisturbed. The first write is held, and asks for the hand-over; whoever
//! issues epochs decides, and [`crate::brain`] then puts an [`EngineCore`](crate::core::EngineCore) in its place.
//!
//! A reader that holds no epoch must know by itself that a replica was not left behind. A writer acknowledges what a replica lacks only
//! when the members of the newer set have it on their record; so a read counts if every member of the set that we know
//! still had that set on its record when it was asked, and it was asked together with the read. (A set of which not one
//! member is in the set before it would go unnoticed until the record reaches us; that takes the failure of every replica
//! at the moment when a rebuild ends.)

use std::collections::BTreeMap;

use block_core::geometry::check_range;
use block_core::wire::{self, ReplicaStatus, Reply};
use bytes::Bytes;

use crate::control::{
    Answer, Command, CommandError, EngineState, EngineStatus, Notice, StatisticsReport, read_set,
};
use crate::core::{
    Action, CommandId, CoreConfig, Event, Expected, Incarnation, JobId, Link, LinkRefusal, Member,
    MemberAddress, MemberIndex, Moment, Role, report_member,
};
use crate::frontend::FrontendState;
use crate::io::{ByteRange, IoFault, Operation, Request};

/// Before a lost replica is tried again, and before a read that told nothing is.
const RETRY_US: u64 = 200_000;

/// A replica that fails a read is not the only one; all of them, several times, are.
const FAILURES_MAX: u32 = 12;

/// A read, and what every member says that it still has the set on its record.
struct Look {
    request: Request,
    range: ByteRange,
    /// Empty while nobody was asked.
    open: Vec<(JobId, MemberIndex)>,
    data: Option<Bytes>,
    /// A member did not confirm the set, or failed: what comes does not count.
    spoilt: bool,
    failures: u32,
    again_at: Moment,
    deadline: Moment,
}

pub struct StandbyCore {
    config: CoreConfig,
    now: Moment,
    members: Vec<Member>,
    incarnation_last: Incarnation,
    looks: BTreeMap<u64, Look>,
    look_next: u64,
    job_next: u64,
    /// Writes that wait for the hand-over, in the order of their arrival.
    held: Vec<Request>,
    wants_take_over: bool,
    committer_attached: bool,
    frontend: FrontendState,
    frontend_asked_for: bool,
    shutdown: Option<CommandId>,
    done: bool,
    out: Vec<Action>,
}

/// What the engine in its place goes on with.
pub struct Legacy {
    pub config: CoreConfig,
    /// Larger than all numbers of connections that were used.
    pub incarnation: Incarnation,
    /// Everything that was not answered.
    pub requests: Vec<Request>,
    pub frontend: FrontendState,
    pub committer_attached: bool,
    /// Ends the connections.
    pub actions: Vec<Action>,
}

impl StandbyCore {
    #[must_use]
    pub fn new(config: CoreConfig) -> Self {
        Self {
            now: Moment(0),
            members: members_of(&config),
            incarnation_last: Incarnation(0),
            looks: BTreeMap::new(),
            look_next: 1,
            job_next: 1,
            held: Vec::new(),
            wants_take_over: false,
            committer_attached: false,
            frontend: FrontendState::Closed,
            frontend_asked_for: false,
            shutdown: None,
            done: false,
            out: Vec::new(),
            config,
        }
    }

    pub fn apply(&mut self, now: Moment, event: Event, actions: &mut Vec<Action>) {
        self.now = self.now.max(now);
        if self.done {
            return;
        }
        match event {
            Event::Start | Event::Tick => self.on_tick(),
            Event::Submit(request) => self.on_submit(request),
            Event::LinkUp {
                member,
                incarnation,
                facts,
            } => self.on_link_up(member, incarnation, &facts),
            Event::LinkRefused {
                member,
                incarnation,
                refusal:
                    LinkRefusal::StaleEpoch(why)
                    | LinkRefusal::Superseded { why, .. }
                    | LinkRefusal::Unreachable(why),
            }
            | Event::LinkDown {
                member,
                incarnation,
                reason: why,
            } => {
                if self.is_current(member, incarnation) {
                    self.lose(member, &why);
                }
            }
            Event::Reply {
                member,
                incarnation,
                job,
                reply,
            } => {
                if self.is_current(member, incarnation) {
                    self.on_reply(job, reply);
                }
            }
            Event::CommitterAttached => self.committer_attached = true,
            Event::CommitterLost => self.committer_attached = false,
            // It never proposes.
            Event::Commit { .. } => {}
            Event::Command { id, command } => self.on_command(id, command),
            Event::FrontendChanged(state) => self.on_frontend_changed(state),
        }
        actions.append(&mut self.out);
    }

    /// Ends the standby; `config` of its successor has the set that it was told now.
    #[must_use]
    pub fn hand_over(&mut self, generation: u64, in_sync: Vec<MemberAddress>) -> Legacy {
        self.end_links("the volume is taken over");
        let reads = std::mem::take(&mut self.looks).into_values();
        let mut requests: Vec<Request> = reads.map(|look| look.request).collect();
        requests.append(&mut self.held);
        let mut config = self.config.clone();
        config.generation = generation;
        config.in_sync = in_sync;
        self.done = true;
        Legacy {
            config,
            incarnation: self.incarnation_last,
            requests,
            frontend: self.frontend.clone(),
            committer_attached: self.committer_attached,
            actions: std::mem::take(&mut self.out),
        }
    }

    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.looks.is_empty() || self.members.iter().any(|member| !member.is_up())
    }

    #[must_use]
    pub fn awaits_replies(&self) -> bool {
        self.looks.values().any(|look| !look.open.is_empty())
    }

    fn is_current(&self, member: MemberIndex, incarnation: Incarnation) -> bool {
        self.members.get(member.position()).is_some_and(|member| {
            member.incarnation == incarnation && !matches!(member.link, Link::Down { .. })
        })
    }

    fn on_tick(&mut self) {
        let late: Vec<MemberIndex> = self
            .looks
            .values()
            .filter(|look| look.deadline <= self.now)
            .flat_map(|look| look.open.iter().map(|(_, member)| *member))
            .collect();
        for member in late {
            let waited_ms = self.config.job_deadline_us / 1000;
            self.lose(member, &format!("no answer in {waited_ms} ms"));
        }
        for position in 0..self.members.len() {
            let member = &mut self.members[position];
            if let Link::Down { retry_at } = member.link
                && retry_at <= self.now
            {
                self.incarnation_last.0 += 1;
                member.incarnation = self.incarnation_last;
                member.link = Link::Connecting { since: self.now };
                self.out.push(Action::Connect {
                    member: MemberIndex::from_position(position),
                    incarnation: member.incarnation,
                    to: member.to.clone(),
                    expected: Expected::Only(member.name().clone()),
                    // Who only looks makes nothing.
                    create_size_bytes: None,
                });
            }
        }
        self.ask_waiting();
    }

    fn on_link_up(&mut self, member: MemberIndex, incarnation: Incarnation, facts: &ReplicaStatus) {
        if !self.is_current(member, incarnation) {
            return;
        }
        let state = &mut self.members[member.position()];
        state.link = Link::Up;
        state.trouble = None;
        state.size_bytes = facts.size_bytes;
        self.out.push(Action::Notify(Notice::MemberConnected {
            member: state.to.name.to_string(),
        }));
        if self.members.iter().all(Member::is_up) && !self.frontend_asked_for {
            self.frontend_asked_for = true;
            self.out.push(Action::OpenFrontend {
                size_bytes: self.config.size_bytes,
            });
        }
        self.ask_waiting();
    }

    fn lose(&mut self, member: MemberIndex, why: &str) {
        let retry_at = self.now.after(RETRY_US);
        let state = &mut self.members[member.position()];
        self.out.push(Action::Disconnect {
            member,
            reason: why.to_owned(),
        });
        state.link = Link::Down { retry_at };
        state.trouble = Some(why.to_owned());
        for look in self.looks.values_mut() {
            if look.open.iter().any(|(_, asked)| *asked == member) {
                look.spoilt = true;
                look.open.retain(|(_, asked)| *asked != member);
            }
        }
    }

    fn on_submit(&mut self, request: Request) {
        let complete = |out: &mut Vec<Action>, outcome| {
            let request = request.id;
            out.push(Action::Complete { request, outcome });
        };
        if let Some(range) = request.operation.range()
            && check_range(range.offset, range.length, self.config.size_bytes).is_err()
        {
            complete(&mut self.out, Err(IoFault::Invalid));
            return;
        }
        match request.operation {
            // Nothing that went through this engine waits to be made durable.
            Operation::Flush => complete(&mut self.out, Ok(Bytes::new())),
            Operation::Read { range } if range.length == 0 => {
                complete(&mut self.out, Ok(Bytes::new()));
            }
            Operation::Read { range } => {
                let look = Look {
                    request,
                    range,
                    open: Vec::new(),
                    data: None,
                    spoilt: false,
                    failures: 0,
                    again_at: self.now,
                    deadline: self.now,
                };
                self.looks.insert(self.look_next, look);
                self.look_next += 1;
                self.ask_waiting();
            }
            Operation::Write { .. } | Operation::WriteZeroes { .. } | Operation::Discard { .. } => {
                self.held.push(request);
                if !self.wants_take_over {
                    self.wants_take_over = true;
                    self.out.push(Action::Notify(Notice::WantsTakeOver));
                }
            }
        }
    }

    /// Asks for the reads that wait, if everybody who must be asked can be.
    fn ask_waiting(&mut self) {
        if !self.members.iter().all(Member::is_up) {
            return;
        }
        for look in self.looks.values_mut() {
            if !look.open.is_empty() || look.again_at > self.now {
                continue;
            }
            let reader = look.failures as usize % self.members.len();
            look.spoilt = false;
            look.data = None;
            look.deadline = self.now.after(self.config.job_deadline_us);
            for position in 0..self.members.len() {
                let member = MemberIndex::from_position(position);
                let read = (position == reader).then_some(wire::Request::Read {
                    offset_bytes: look.range.offset,
                    length_bytes: look.range.length,
                });
                // The record is asked for behind the data.
                for request in read.into_iter().chain([wire::Request::Status]) {
                    let job = JobId(self.job_next);
                    self.job_next += 1;
                    look.open.push((job, member));
                    self.out.push(Action::Send {
                        member,
                        job,
                        request,
                    });
                }
            }
        }
    }

    fn on_reply(&mut self, job: JobId, reply: Reply) {
        let generation = self.config.generation;
        let Some((id, look)) = self
            .looks
            .iter_mut()
            .find(|(_, look)| look.open.iter().any(|(open, _)| *open == job))
        else {
            return;
        };
        let id = *id;
        look.open.retain(|(open, _)| *open != job);
        match reply {
            Reply::Data(data) if data.len() as u64 == look.range.length => look.data = Some(data),
            Reply::Status(status) => {
                let known = status.sync.as_ref().map(|sync| sync.generation);
                look.spoilt |= known != Some(generation) || !status.fault.is_empty();
            }
            // Whoever answers something else than was asked is not asked again, either.
            _ => {
                look.spoilt = true;
                look.failures += 1;
            }
        }
        if !look.open.is_empty() {
            return;
        }
        let outcome = match look.data.take() {
            Some(data) if !look.spoilt => Ok(data),
            _ if look.failures > FAILURES_MAX => Err(IoFault::Failed),
            _ => {
                look.again_at = self.now.after(RETRY_US);
                return;
            }
        };
        let request = look.request.id;
        self.looks.remove(&id);
        self.out.push(Action::Complete { request, outcome });
    }

    fn on_command(&mut self, id: CommandId, command: Command) {
        let result = match command {
            Command::Status => Ok(Answer::Status(Box::new(self.status()))),
            Command::Follow {
                generation,
                in_sync,
            } => read_set(in_sync).map(|in_sync| {
                if generation > self.config.generation {
                    self.follow(generation, in_sync);
                }
                Answer::Done
            }),
            Command::SetAddress { name, address } => self.set_address(&name, address),
            Command::Shutdown if self.shutdown.is_some() => {
                Err(CommandError::new("the engine is shutting down already"))
            }
            Command::Shutdown => {
                self.shutdown = Some(id);
                self.out.push(Action::CloseFrontend);
                self.advance_closing();
                return;
            }
            _ => Err(CommandError::new(
                "this engine is a standby: it only reads until it takes the volume over; ask the writer's",
            )),
        };
        self.out.push(Action::Answer {
            command: id,
            result,
        });
    }

    /// The writer's set has changed.
    fn follow(&mut self, generation: u64, in_sync: Vec<MemberAddress>) {
        self.end_links("the in-sync set has changed");
        self.config.generation = generation;
        self.config.in_sync = in_sync;
        self.members = members_of(&self.config);
        for look in self.looks.values_mut() {
            look.open.clear();
            look.again_at = self.now;
        }
        self.on_tick();
    }

    fn set_address(&mut self, name: &str, address: String) -> Result<Answer, CommandError> {
        let named = |member: &Member| member.name().as_str() == name;
        let Some(position) = self.members.iter().position(named) else {
            return Err(CommandError::new(format!(
                "the volume has no replica {name}"
            )));
        };
        let state = &mut self.members[position];
        if state.to.address != address && state.move_to(address, self.now) {
            self.out.push(Action::Disconnect {
                member: MemberIndex::from_position(position),
                reason: "it is served elsewhere".to_owned(),
            });
        }
        self.on_tick();
        Ok(Answer::Done)
    }

    fn end_links(&mut self, reason: &str) {
        for position in 0..self.members.len() {
            self.out.push(Action::Disconnect {
                member: MemberIndex::from_position(position),
                reason: reason.to_owned(),
            });
        }
    }

    fn on_frontend_changed(&mut self, state: FrontendState) {
        if let FrontendState::Ready { endpoint } = &state {
            self.out.push(Action::Notify(Notice::Ready {
                endpoint: endpoint.to_string(),
            }));
        }
        if let FrontendState::Failed { reason } = &state {
            self.out.push(Action::Notify(Notice::FrontendFailed {
                reason: reason.clone(),
            }));
        }
        self.frontend = state;
        self.advance_closing();
    }

    fn advance_closing(&mut self) {
        let closed = matches!(
            self.frontend,
            FrontendState::Closed | FrontendState::Failed { .. }
        );
        let Some(command) = self.shutdown.filter(|_| closed) else {
            return;
        };
        let reads = std::mem::take(&mut self.looks).into_values();
        let waiting = reads.map(|look| look.request).chain(self.held.drain(..));
        for request in waiting {
            self.out.push(Action::Complete {
                request: request.id,
                outcome: Err(IoFault::ShuttingDown),
            });
        }
        self.out.push(Action::Answer {
            command,
            result: Ok(Answer::Done),
        });
        // It has nothing to flush, and no replica knows of it.
        self.out.push(Action::Exit { clean: true });
        self.done = true;
    }

    #[must_use]
    pub fn status(&self) -> EngineStatus {
        let waiting_for = self
            .members
            .iter()
            .filter(|member| !member.is_up())
            .map(|member| match &member.trouble {
                Some(trouble) => format!("{}: {trouble}", member.name()),
                None => member.name().to_string(),
            })
            .collect();
        EngineStatus {
            volume: self.config.volume.clone(),
            epoch: self.config.epoch.0,
            size_bytes: self.config.size_bytes,
            state: EngineState::Standby {
                wants_take_over: self.wants_take_over,
                waiting_for,
            },
            stalled: self
                .wants_take_over
                .then(|| "a write waits until the volume is handed over to this node".to_owned()),
            frontend: self.frontend.clone(),
            endpoint: match &self.frontend {
                FrontendState::Ready { endpoint } => Some(endpoint.to_string()),
                _ => None,
            },
            generation: self.config.generation,
            in_sync: self
                .members
                .iter()
                .map(|member| member.name().to_string())
                .collect(),
            members: self.members.iter().map(report_member).collect(),
            proposal: None,
            committer_attached: self.committer_attached,
            fence_proof: None,
            tasks: Vec::new(),
            statistics: StatisticsReport {
                open_requests: (self.looks.len() + self.held.len()) as u64,
                ..StatisticsReport::default()
            },
            // Only the writer changes snapshots, and only it is asked for them.
            snapshots_version: 0,
            process_id: std::process::id(),
        }
    }
}

fn members_of(config: &CoreConfig) -> Vec<Member> {
    let members = config.in_sync.iter().cloned();
    members.map(|to| Member::new(to, Role::InSync)).collect()
}

#[cfg(test)]
mod tests;
