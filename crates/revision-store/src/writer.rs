//! The one thread that writes.
//!
//! It takes every command that waits, makes one group of them, commits the group, publishes what has become durable,
//! and answers. History that is due to be forgotten leaves in the same commit, so in a busy store
//! compaction costs no sync of its own.
//!
//! ```text
//!            commit ok                      commit failed
//!  Healthy ────────────► Healthy   Healthy ──────────────► reopen ──ok──► Healthy
//!                                                            │              ▲ reopen ok
//!                                                            └─failed─► Broken ─┐
//!                                                                         ▲─────┘ writes fail, reads go on
//! ```

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::backend::{Backend, BackendError, Compaction};
use crate::store::Shared;
use crate::write::Group;
use crate::{Committed, CompactError, Event, Operation, Revision, WriteError};

/// One commit takes at most this much, so that a flood of large values cannot make the first of them wait
/// for gigabytes.
const GROUP_COMMANDS_MAX: usize = 1024;
const GROUP_BYTES_MAX: usize = 8 << 20;

/// History leaves at least this fast, and twice as fast as it arrives: a backlog shrinks under any load, and
/// no commit grows by more than a few milliseconds.
const COMPACTION_EVENTS_MIN: usize = 256;

type Reply<T> = oneshot::Sender<T>;

pub(crate) enum Command {
    Write {
        operations: Vec<Operation>,
        reply: Reply<Result<Committed, WriteError>>,
    },
    Compact {
        through: Revision,
        reply: Reply<Result<(), CompactError>>,
    },
    Close {
        reply: Reply<()>,
    },
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    backend: Box<dyn Backend>,
    queue: mpsc::Receiver<Command>,
    health: Health,
    /// After a failed commit, history waits for the next successful one, or for the timer: trying at
    /// once would spin.
    is_compaction_paused: bool,
    /// The latest compaction that somebody asked for, and who waits for which.
    compact_through: Revision,
    compact_waiters: Vec<(Revision, Reply<Result<(), CompactError>>)>,
    /// Held for as long as the writer runs.
    _lock: Option<File>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Healthy,
    /// The last commit failed and the back end could not be reopened.
    Broken,
}

/// What woke the writer.
enum Wake {
    Commands(Vec<Command>),
    /// Nothing for a while, or history to forget.
    Idle,
    /// All handles are gone.
    Abandoned,
}

enum Next {
    Continue,
    Stop { replies: Vec<Reply<()>> },
}

impl Writer {
    pub(crate) fn start(
        shared: Arc<Shared>,
        backend: Box<dyn Backend>,
        lock: Option<File>,
        queue: mpsc::Receiver<Command>,
    ) -> io::Result<()> {
        let writer = Self {
            shared,
            backend,
            queue,
            health: Health::Healthy,
            is_compaction_paused: false,
            compact_through: Revision::EMPTY,
            compact_waiters: Vec::new(),
            _lock: lock,
        };
        // Only for its timer: a thread of its own, because a commit blocks.
        let runtime = Builder::new_current_thread().enable_time().build()?;
        thread::Builder::new()
            .name("revision-store".to_owned())
            .spawn(move || writer.run(&runtime))?;
        Ok(())
    }

    fn run(mut self, runtime: &Runtime) {
        // Also on a panic: whoever waits must learn that nothing will come.
        let closing = CloseOnDrop(self.shared.clone());
        let replies = loop {
            match runtime.block_on(self.wait()) {
                Wake::Commands(commands) => {
                    if let Next::Stop { replies } = self.apply(commands) {
                        break replies;
                    }
                }
                Wake::Idle => {
                    self.commit(Vec::new());
                }
                Wake::Abandoned => break Vec::new(),
            }
        };
        // Answered only when the folder is free for the next store.
        drop(self);
        drop(closing);
        for reply in replies {
            let _ = reply.send(());
        }
    }

    async fn wait(&mut self) -> Wake {
        let first = if !self.is_compaction_paused && self.plan_compaction(1).is_some() {
            match self.queue.try_recv() {
                Ok(command) => command,
                Err(mpsc::error::TryRecvError::Empty) => return Wake::Idle,
                Err(mpsc::error::TryRecvError::Disconnected) => return Wake::Abandoned,
            }
        } else {
            match timeout(self.shared.options.maintenance_interval, self.queue.recv()).await {
                Ok(Some(command)) => command,
                Ok(None) => return Wake::Abandoned,
                Err(_) => {
                    self.is_compaction_paused = false;
                    return Wake::Idle;
                }
            }
        };
        let mut bytes = first.value_bytes();
        let mut commands = vec![first];
        while commands.len() < GROUP_COMMANDS_MAX && bytes < GROUP_BYTES_MAX {
            let Ok(command) = self.queue.try_recv() else {
                break;
            };
            bytes += command.value_bytes();
            commands.push(command);
        }
        Wake::Commands(commands)
    }

    fn apply(&mut self, commands: Vec<Command>) -> Next {
        let mut writes = Vec::new();
        let mut close_replies = Vec::new();
        for command in commands {
            match command {
                Command::Write { operations, reply } => writes.push((operations, reply)),
                Command::Compact { through, reply } => self.request_compaction(through, reply),
                Command::Close { reply } => close_replies.push(reply),
            }
        }
        self.commit(writes);
        if close_replies.is_empty() {
            return Next::Continue;
        }
        Next::Stop {
            replies: close_replies,
        }
    }
}

type PendingWrite = (Vec<Operation>, Reply<Result<Committed, WriteError>>);
type StagedWrite = (
    Result<Committed, WriteError>,
    Reply<Result<Committed, WriteError>>,
);

impl Writer {
    /// One turn: stages the writes, makes them durable together with whatever history is due to leave, answers.
    fn commit(&mut self, writes: Vec<PendingWrite>) {
        if self.health == Health::Broken
            && let Err(error) = self.recover()
        {
            self.is_compaction_paused = true;
            let source = Arc::new(error);
            for (_, reply) in writes {
                // Nothing of these was staged, whatever became of the group that broke the back end.
                let _ = reply.send(Err(WriteError::Failed {
                    source: source.clone(),
                }));
            }
            self.fail_compactions(&source);
            return;
        }
        let (events, staged) = self.stage(writes);
        let compaction = self.plan_compaction((2 * events.len()).max(COMPACTION_EVENTS_MIN));
        if !events.is_empty() || compaction.is_some() {
            if let Err(error) = self.backend.commit(&events, compaction.as_ref()) {
                self.fail(&events, staged, error);
                return;
            }
            self.is_compaction_paused = false;
            self.publish(&events, compaction.as_ref());
        }
        for (result, reply) in staged {
            // A client that has gone does not want its answer.
            let _ = reply.send(result);
        }
        self.answer_compactions();
    }

    fn stage(&self, writes: Vec<PendingWrite>) -> (Vec<Arc<Event>>, Vec<StagedWrite>) {
        // Nobody else changes the state, so it cannot move between staging and publishing.
        let state = self.shared.read_state();
        let mut group = Group::new(&state, self.shared.options.clock.now_ms());
        let staged = writes
            .into_iter()
            .map(|(operations, reply)| (group.stage(operations), reply))
            .collect();
        (group.into_events(), staged)
    }

    fn publish(&self, events: &[Arc<Event>], compaction: Option<&Compaction>) {
        let mut state = self.shared.write_state();
        for event in events {
            state.apply(event);
        }
        let channels = state.subscriptions.publish(events);
        let dropped = compaction.map(|compaction| state.apply_compaction(compaction.through));
        self.shared.set_published(state.current());
        drop(state);
        for channel in channels {
            channel.wake();
        }
        // Freeing megabytes of old values is not worth a reader's waiting: here, outside the lock.
        drop(dropped);
    }

    /// A commit failed. Finds out what the disk really holds, and answers accordingly.
    fn fail(&mut self, events: &[Arc<Event>], staged: Vec<StagedWrite>, error: BackendError) {
        tracing::error!(error = &error as &dyn std::error::Error, "commit failed");
        self.is_compaction_paused = true;
        let source = Arc::new(error);
        let may_have_happened = match self.recover() {
            // Found on the disk after all. It is published, but the failed sync leaves its durability in doubt.
            Ok(()) => events
                .last()
                .is_some_and(|last| self.shared.read_state().current() >= last.revision),
            Err(_) => true,
        };
        for (result, reply) in staged {
            let source = source.clone();
            let error = if result.is_ok() && may_have_happened {
                WriteError::Uncertain { source }
            } else {
                // A conflict too: it may have been with a write of this group.
                WriteError::Failed { source }
            };
            let _ = reply.send(Err(error));
        }
        self.fail_compactions(&source);
    }

    /// Reopens the back end and takes in what it holds beyond the state.
    fn recover(&mut self) -> Result<(), BackendError> {
        self.health = Health::Broken;
        let recovered = self.backend.reopen().and_then(|()| self.catch_up());
        match &recovered {
            Ok(()) => {
                self.health = Health::Healthy;
                tracing::info!("the database was reopened");
            }
            Err(error) => tracing::error!(
                error = error as &dyn std::error::Error,
                "the database could not be reopened; writes fail until it can"
            ),
        }
        recovered
    }

    fn catch_up(&mut self) -> Result<(), BackendError> {
        let marks = self.backend.marks()?;
        let current = self.shared.read_state().current();
        if marks.current < current {
            return Err(BackendError::WentBack {
                found: marks.current,
                expected: current,
            });
        }
        let mut records = Vec::new();
        self.backend.scan(current, &mut |record| {
            records.push(record);
            Ok(())
        })?;
        for record in records {
            let event = Arc::new(self.shared.read_state().event_of(record)?);
            self.publish(&[event], None);
        }
        let compaction = Compaction {
            through: marks.compacted,
            superseded: Vec::new(),
        };
        self.publish(&[], Some(&compaction));
        Ok(())
    }

    fn plan_compaction(&self, events_max: usize) -> Option<Compaction> {
        let options = &self.shared.options;
        self.shared.read_state().plan_compaction(
            options,
            options.clock.now_ms(),
            self.compact_through,
            events_max,
        )
    }

    fn request_compaction(&mut self, through: Revision, reply: Reply<Result<(), CompactError>>) {
        let current = self.shared.published();
        if through > current {
            let _ = reply.send(Err(CompactError::Future {
                requested: through,
                current,
            }));
            return;
        }
        self.compact_through = self.compact_through.max(through);
        self.compact_waiters.push((through, reply));
    }

    fn answer_compactions(&mut self) {
        let compacted = self.shared.read_state().compacted();
        for (_, reply) in self
            .compact_waiters
            .extract_if(.., |(through, _)| *through <= compacted)
        {
            let _ = reply.send(Ok(()));
        }
    }

    fn fail_compactions(&mut self, source: &Arc<BackendError>) {
        for (_, reply) in self.compact_waiters.drain(..) {
            let source = source.clone();
            let _ = reply.send(Err(CompactError::Failed { source }));
        }
    }
}

impl Command {
    fn value_bytes(&self) -> usize {
        match self {
            Self::Write { operations, .. } => operations.iter().map(Operation::value_bytes).sum(),
            Self::Compact { .. } | Self::Close { .. } => 0,
        }
    }
}

/// Ends every watch when the writer ends, however it ends.
struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Release);
        for channel in self.0.read_state().subscriptions.all() {
            channel.wake();
        }
    }
}
