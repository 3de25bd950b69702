//! The loop that owns everything: it turns readiness into events and carries out what the core answers.
//!
//! One thread has all sockets and the front end. A turn takes what is ready, lets the core decide, and only then
//! sends: so frames to a replica go out in one gathering write per turn, and answers likewise.
//!
//! Waking a sleeping thread costs more than most requests: the loop looks a few more times before it sleeps, for
//! replicas' answers and, when none is awaited, for the next request. How long follows for each from how often that
//! paid off, and an idle volume sleeps.

mod spin;

use std::collections::HashMap;
use std::io;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use block_core::Epoch;
use block_core::wire::{DataChecksum, ReplicaStatus, Reply};
use thiserror::Error;

use crate::brain::Brain;
use crate::control::server::{self, ClientNews, Clients, ControlSocket, FromControl};
use crate::control::{ControlPush, Notice, Proposal, Verdict};
use crate::core::{
    Action, CommitVerdict, CoreConfig, Event, Incarnation, JobId, LinkRefusal, MemberIndex, Moment,
};
use crate::frontend::{Frontend, FrontendKind, FrontendOptions, FrontendState};
use crate::io::{IoFault, Request};
use crate::link::{self, Identity, ReplicaLink};
use crate::poller::{Mailbox, Owner, Poller, Post, Readiness, Token};
use crate::state_file::VolumeRecord;
use spin::Spin;

/// How often deadlines and retries are looked at, with work under way and without.
const TICK_BUSY_US: u64 = 20_000;
const TICK_IDLE_US: u64 = 500_000;

const MAILBOX: Token = Token {
    owner: Owner::Mailbox,
    index: 0,
};

/// Everything that an engine needs to know.
#[derive(Clone, Debug)]
pub struct ShellConfig {
    pub core: CoreConfig,
    pub identity: Identity,
    pub frontend: FrontendKind,
    pub frontend_options: FrontendOptions,
    pub control_path: PathBuf,
    pub committer: CommitterKind,
    /// Starts as a standby, which another engine's volume is handed over to.
    pub standby: bool,
}

/// Who records in-sync sets.
#[derive(Clone, Debug)]
pub enum CommitterKind {
    /// Whoever attaches at the control socket.
    Attached,
    /// This process, in a file: for volumes run by hand.
    File(PathBuf),
}

#[derive(Debug, Error)]
pub enum RunError {
    #[error("cannot {attempt}")]
    System {
        attempt: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("cannot listen for commands at {path}")]
    Control {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// How an engine ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Everything is flushed, and every replica knows that the end was orderly.
    pub clean: bool,
}

/// What other threads tell the loop.
enum Mail {
    Linked {
        member: MemberIndex,
        incarnation: Incarnation,
        result: Result<(TcpStream, ReplicaStatus), LinkRefusal>,
    },
    Control(FromControl),
    Committed {
        generation: u64,
        verdict: Verdict,
    },
    /// A signal asked for an orderly end.
    Stop,
}

/// Asks a running engine to end in order, from another thread or a signal handler's.
#[derive(Clone)]
pub struct Stopper {
    post: Post<Mail>,
}

impl Stopper {
    pub fn stop(&self) {
        self.post.send(Mail::Stop);
    }
}

/// A member's connection, and which of its connections it is.
struct Connected {
    incarnation: Incarnation,
    link: ReplicaLink,
}

pub struct Shell {
    config: ShellConfig,
    poller: Arc<Poller>,
    mailbox: Mailbox<Mail>,
    core: Brain,
    started: Instant,
    /// Connections that are being made: one that nobody waits for any more is dropped when it comes.
    connecting: HashMap<MemberIndex, Incarnation>,
    links: HashMap<MemberIndex, Connected>,
    /// Of the write that is being queued for one replica after the other.
    checksum: DataChecksum,
    frontend: Option<Box<dyn Frontend>>,
    frontend_seen: FrontendState,
    clients: Clients,
    _control: ControlSocket,
    actions: Vec<Action>,
    requests: Vec<Request>,
    replies: Vec<(JobId, Reply)>,
    next_tick: Moment,
    /// While replies are awaited, and while nothing is.
    spin_for_replies: Spin,
    spin_for_requests: Spin,
    ended: Option<Ended>,
}

impl Shell {
    pub fn new(config: ShellConfig) -> Result<Self, RunError> {
        let system = |attempt| move |source| RunError::System { attempt, source };
        let poller = Arc::new(Poller::new().map_err(system("make an epoll set"))?);
        let mailbox = Mailbox::new(&poller, MAILBOX).map_err(system("make a mailbox"))?;
        let control = server::listen(&config.control_path, mailbox.post(), Mail::Control).map_err(
            |source| RunError::Control {
                path: config.control_path.clone(),
                source,
            },
        )?;
        Ok(Self {
            core: if config.standby {
                Brain::standby(config.core.clone())
            } else {
                Brain::writer(config.core.clone())
            },
            config,
            poller,
            mailbox,
            started: Instant::now(),
            connecting: HashMap::new(),
            links: HashMap::new(),
            checksum: DataChecksum::default(),
            frontend: None,
            frontend_seen: FrontendState::Closed,
            clients: Clients::default(),
            _control: control,
            actions: Vec::new(),
            requests: Vec::new(),
            replies: Vec::new(),
            next_tick: Moment(0),
            spin_for_replies: Spin::default(),
            spin_for_requests: Spin::default(),
            ended: None,
        })
    }

    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper {
            post: self.mailbox.post(),
        }
    }

    /// Serves the volume until it is shut down.
    pub fn run(mut self) -> Result<Ended, RunError> {
        let mut ready: Vec<Readiness> = Vec::with_capacity(64);
        self.apply(Event::Start);
        if matches!(self.config.committer, CommitterKind::File(_)) {
            self.apply(Event::CommitterAttached);
        }
        self.carry_out();
        loop {
            if let Some(ended) = self.ended {
                self.close_links();
                self.clients.finish();
                return Ok(ended);
            }
            ready.clear();
            self.wait(&mut ready)?;
            for readiness in &ready {
                self.on_ready(*readiness);
            }
            let now = self.now();
            if now >= self.next_tick {
                self.apply(Event::Tick);
                let busy = self.core.is_busy();
                self.next_tick = now.after(if busy { TICK_BUSY_US } else { TICK_IDLE_US });
            }
            self.carry_out();
        }
    }

    fn now(&self) -> Moment {
        Moment(self.started.elapsed().as_micros() as u64)
    }

    fn apply(&mut self, event: Event) {
        let now = self.now();
        self.core.apply(now, event, &mut self.actions);
    }

    fn wait(&mut self, ready: &mut Vec<Readiness>) -> Result<(), RunError> {
        let failed = |source| RunError::System {
            attempt: "wait for events",
            source,
        };
        let spin = if self.core.awaits_replies() {
            &mut self.spin_for_replies
        } else {
            &mut self.spin_for_requests
        };
        let limit_us = spin.limit_us();
        let begun = Instant::now();
        loop {
            self.poller.wait(Some(0), ready).map_err(failed)?;
            if !ready.is_empty() {
                spin.paid_off();
                return Ok(());
            }
            if begun.elapsed().as_micros() as u64 >= limit_us {
                break;
            }
            // Whoever we wait for may need this very core.
            rustix::thread::sched_yield();
        }
        spin.was_in_vain();
        let timeout_us = self.next_tick.since_us(self.now());
        self.poller.wait(Some(timeout_us), ready).map_err(failed)
    }

    fn on_ready(&mut self, readiness: Readiness) {
        match readiness.token.owner {
            Owner::Frontend => {
                if let Some(frontend) = &mut self.frontend {
                    frontend.ready(readiness, &mut self.requests);
                }
                self.submit_requests();
                self.look_at_frontend();
            }
            Owner::Replica => {
                let member = MemberIndex::from_position(readiness.token.index as usize);
                self.on_replica_ready(member, readiness);
            }
            Owner::Mailbox => self.take_mail(),
        }
    }

    fn submit_requests(&mut self) {
        let now = self.now();
        for request in self.requests.drain(..) {
            self.core
                .apply(now, Event::Submit(request), &mut self.actions);
        }
    }

    fn look_at_frontend(&mut self) {
        let Some(frontend) = &self.frontend else {
            return;
        };
        let state = frontend.state();
        if state != self.frontend_seen {
            self.frontend_seen = state.clone();
            self.apply(Event::FrontendChanged(state));
        }
    }

    fn on_replica_ready(&mut self, member: MemberIndex, readiness: Readiness) {
        let Some(connected) = self.links.get_mut(&member) else {
            return;
        };
        let incarnation = connected.incarnation;
        let mut trouble = None;
        if readiness.readable
            && let Err(reason) = connected.link.receive(&mut self.replies)
        {
            trouble = Some(reason);
        }
        // Nothing else may follow from this event, and then nobody else would send what waits.
        if readiness.writable
            && let Err(error) = connected.link.flush(&self.poller)
        {
            trouble.get_or_insert(format!("the connection broke: {error}"));
        }
        let now = self.now();
        for (job, reply) in self.replies.drain(..) {
            let event = Event::Reply {
                member,
                incarnation,
                job,
                reply,
            };
            self.core.apply(now, event, &mut self.actions);
        }
        if let Some(reason) = trouble {
            self.drop_link(member, "the connection failed");
            self.apply(Event::LinkDown {
                member,
                incarnation,
                reason,
            });
        }
    }

    fn drop_link(&mut self, member: MemberIndex, reason: &str) {
        if let Some(connected) = self.links.remove(&member) {
            connected.link.end(&self.poller, reason);
        }
    }

    fn close_links(&mut self) {
        for (_, connected) in self.links.drain() {
            connected.link.end(&self.poller, "the engine ends");
        }
    }

    fn take_mail(&mut self) {
        let mail: Vec<Mail> = self.mailbox.drain().collect();
        for mail in mail {
            match mail {
                Mail::Linked {
                    member,
                    incarnation,
                    result,
                } => self.on_linked(member, incarnation, result),
                Mail::Control(message) => match self.clients.handle(message) {
                    ClientNews::Command(id, command) => self.apply(Event::Command { id, command }),
                    ClientNews::CommitterAttached => self.apply(Event::CommitterAttached),
                    ClientNews::CommitterLost => self.apply(Event::CommitterLost),
                    ClientNews::Nothing => {}
                },
                Mail::Committed {
                    generation,
                    verdict,
                } => {
                    let verdict = match verdict {
                        Verdict::Recorded => CommitVerdict::Recorded,
                        Verdict::NotNow { why } => CommitVerdict::NotNow(why),
                        Verdict::Fenced { why } => CommitVerdict::Fenced(why),
                    };
                    self.apply(Event::Commit {
                        generation,
                        verdict,
                    });
                }
                Mail::Stop => {
                    let id = crate::core::CommandId(0);
                    self.apply(Event::Command {
                        id,
                        command: crate::control::Command::Shutdown,
                    });
                }
            }
        }
    }

    fn on_linked(
        &mut self,
        member: MemberIndex,
        incarnation: Incarnation,
        result: Result<(TcpStream, ReplicaStatus), LinkRefusal>,
    ) {
        if self.connecting.get(&member) != Some(&incarnation) {
            return;
        }
        self.connecting.remove(&member);
        let refusal = match result {
            Err(refusal) => refusal,
            Ok((socket, facts)) => {
                let index = u32::try_from(member.position()).expect("at most 32 members");
                let token = Token::new(Owner::Replica, index);
                self.drop_link(member, "replaced by a newer connection");
                let epoch = if self.core.claims_replicas() {
                    self.config.identity.epoch
                } else {
                    Epoch::NONE
                };
                match ReplicaLink::new(socket, &self.poller, token, epoch) {
                    Ok(link) => {
                        self.links.insert(member, Connected { incarnation, link });
                        self.apply(Event::LinkUp {
                            member,
                            incarnation,
                            facts,
                        });
                        return;
                    }
                    Err(error) => LinkRefusal::Unreachable(error.to_string()),
                }
            }
        };
        self.apply(Event::LinkRefused {
            member,
            incarnation,
            refusal,
        });
    }

    /// Carries out what the core asked for, until nothing more follows.
    fn carry_out(&mut self) {
        while !self.actions.is_empty() {
            let mut actions = std::mem::take(&mut self.actions);
            for action in actions.drain(..) {
                self.perform(action);
            }
            if self.actions.is_empty() {
                self.actions = actions;
            }
            self.flush_links();
            if let Some(frontend) = &mut self.frontend {
                frontend.flush();
            }
            self.look_at_frontend();
        }
    }

    fn flush_links(&mut self) {
        self.checksum.forget();
        let mut broken = Vec::new();
        for (member, connected) in &mut self.links {
            if let Err(error) = connected.link.flush(&self.poller) {
                broken.push((*member, connected.incarnation, error));
            }
        }
        for (member, incarnation, error) in broken {
            self.drop_link(member, "the connection failed");
            let reason = format!("the connection broke: {error}");
            self.apply(Event::LinkDown {
                member,
                incarnation,
                reason,
            });
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Connect {
                member,
                incarnation,
                to,
                expected,
                create_size_bytes,
            } => {
                let (post, identity) = (self.mailbox.post(), self.config.identity.clone());
                self.connecting.insert(member, incarnation);
                let claims = self.core.claims_replicas();
                std::thread::spawn(move || {
                    let (address, create) = (&to.address, create_size_bytes);
                    let linked = if claims {
                        link::connect(address, &identity, incarnation, &expected, create)
                    } else {
                        link::look(address, &identity, &expected)
                    };
                    let result = linked.map_err(link::ConnectError::into_refusal);
                    post.send(Mail::Linked {
                        member,
                        incarnation,
                        result,
                    });
                });
            }
            Action::Disconnect { member, reason } => {
                self.connecting.remove(&member);
                self.drop_link(member, &reason);
            }
            Action::Send {
                member,
                job,
                request,
            } => {
                if let Some(connected) = self.links.get_mut(&member) {
                    connected.link.queue(job, request, &mut self.checksum);
                }
            }
            Action::Complete { request, outcome } => {
                if let Some(frontend) = &mut self.frontend {
                    frontend.complete(request, outcome);
                }
            }
            Action::Propose(proposal) => self.propose(proposal),
            Action::OpenFrontend { size_bytes } => self.open_frontend(size_bytes),
            Action::ResizeFrontend { size_bytes } => {
                if let Some(resize) = self
                    .frontend
                    .as_mut()
                    .and_then(|frontend| frontend.resize())
                {
                    resize.set_size(size_bytes);
                }
            }
            Action::CloseFrontend => match &mut self.frontend {
                Some(frontend) => frontend.begin_close(),
                None => self.apply(Event::FrontendChanged(FrontendState::Closed)),
            },
            Action::Answer { command, result } => self.clients.answer(command, result),
            Action::Notify(notice) => self.notify(notice),
            Action::Exit { clean } => self.ended = Some(Ended { clean }),
        }
    }

    fn notify(&mut self, notice: Notice) {
        tracing::info!(volume.name = %self.config.core.volume, ?notice, "engine");
        self.clients.notify(&ControlPush::Event(notice));
    }

    fn propose(&mut self, proposal: Proposal) {
        match &self.config.committer {
            CommitterKind::Attached => self.clients.notify(&ControlPush::Propose(proposal)),
            CommitterKind::File(path) => {
                // It waits for the disk, which the loop must not.
                let (path, post) = (path.clone(), self.mailbox.post());
                std::thread::spawn(move || {
                    let verdict = VolumeRecord::commit(&path, &proposal);
                    post.send(Mail::Committed {
                        generation: proposal.generation,
                        verdict,
                    });
                });
            }
        }
    }

    fn open_frontend(&mut self, size_bytes: u64) {
        if let Some(frontend) = &mut self.frontend {
            // It was opened for a standby, and serves its successor.
            if let Some(resize) = frontend.resize() {
                resize.set_size(size_bytes);
            }
            let state = frontend.state();
            self.apply(Event::FrontendChanged(state));
            return;
        }
        let options = FrontendOptions {
            size_bytes,
            ..self.config.frontend_options.clone()
        };
        match self.config.frontend.open(&self.poller, options) {
            Ok(opened) => {
                self.frontend = Some(opened.frontend);
                if let Some(why) = opened.made_anew {
                    self.notify(Notice::DeviceMadeAnew { why });
                }
            }
            Err(error) => {
                let mut reason = error.to_string();
                if let Some(source) = std::error::Error::source(&error) {
                    reason = format!("{reason}: {source}");
                }
                self.frontend_seen = FrontendState::Failed {
                    reason: reason.clone(),
                };
                self.apply(Event::FrontendChanged(FrontendState::Failed { reason }));
            }
        }
        self.look_at_frontend();
    }
}

impl Drop for Shell {
    /// Whoever still waits gets an error instead of silence.
    fn drop(&mut self) {
        if let Some(frontend) = &mut self.frontend {
            for request in self.requests.drain(..) {
                frontend.complete(request.id, Err(IoFault::ShuttingDown));
            }
            frontend.flush();
        }
    }
}
