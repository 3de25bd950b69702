//! A connection to an engine's control socket, for many questions at once.
//!
//! What the engine sends by itself is kept as state, not as a queue: the proposal that is open, and how often
//! something happened. So a slow reader costs nothing, and nothing can be lost in between.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::control::{
    Answer, CONTROL_VERSION, Command, CommandError, ControlPush, ControlRequest, EngineStatus,
    FromEngine, Notice, Proposal, Verdict,
};
use thiserror::Error;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex, oneshot, watch};
use tokio::task::JoinHandle;

/// The longest line that an engine may send; a status of 32 replicas takes a hundredth of it.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// For questions that are answered at once.
const QUICK: Duration = Duration::from_secs(10);

/// Notices kept until people were told.
const NOTICES_MAX: usize = 16;

#[derive(Debug, Error)]
pub enum ControlError {
    #[error("the engine's control connection broke")]
    Broken(#[source] io::Error),
    #[error("the engine closed its control connection")]
    Closed,
    #[error("the engine did not answer within {} s", QUICK.as_secs())]
    Late,
    #[error("the engine refused")]
    Refused(#[source] CommandError),
    #[error("the engine answered something else")]
    Unexpected,
}

/// What came without being asked.
#[derive(Clone, Debug, Default)]
pub struct Pushed {
    /// Rises with each notice and proposal.
    pub count: u64,
    pub proposal: Option<Proposal>,
    /// Each with its number.
    notices: VecDeque<(u64, Notice)>,
    pub closed: bool,
}

type Awaited = Arc<std::sync::Mutex<HashMap<u64, oneshot::Sender<Result<Answer, CommandError>>>>>;

pub struct Connection {
    writer: Mutex<OwnedWriteHalf>,
    awaited: Awaited,
    next: AtomicU64,
    pushed: watch::Receiver<Pushed>,
    reader: JoinHandle<()>,
}

impl Connection {
    /// Connects, subscribes, and becomes the one who records in-sync sets.
    pub async fn attach(path: &Path) -> Result<Self, ControlError> {
        let socket = UnixStream::connect(path)
            .await
            .map_err(ControlError::Broken)?;
        let (reading, writing) = socket.into_split();
        let (sender, pushed) = watch::channel(Pushed::default());
        let awaited = Awaited::default();
        let reader = tokio::spawn(read_all(reading, sender, awaited.clone()));
        let connection = Self {
            writer: Mutex::new(writing),
            awaited,
            next: AtomicU64::new(1),
            pushed,
            reader,
        };
        connection.quick(Command::Subscribe).await?;
        connection.quick(Command::AttachCommitter).await?;
        Ok(connection)
    }

    /// What the engine said by itself; it tells of changes, too.
    #[must_use]
    pub fn pushed(&self) -> watch::Receiver<Pushed> {
        self.pushed.clone()
    }

    pub async fn status(&self) -> Result<EngineStatus, ControlError> {
        match self.quick(Command::Status).await? {
            Answer::Status(status) => Ok(*status),
            Answer::Done | Answer::Snapshots(_) => Err(ControlError::Unexpected),
        }
    }

    pub async fn commit(&self, generation: u64, verdict: Verdict) -> Result<(), ControlError> {
        self.quick(Command::Commit {
            generation,
            verdict,
        })
        .await
        .map(drop)
    }

    /// For a command that is answered at once.
    pub async fn quick(&self, command: Command) -> Result<Answer, ControlError> {
        tokio::time::timeout(QUICK, self.request(command))
            .await
            .unwrap_or(Err(ControlError::Late))
    }

    /// For a command that is answered when it is done, however long that takes.
    pub async fn request(&self, command: Command) -> Result<Answer, ControlError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let request = ControlRequest {
            version: CONTROL_VERSION,
            id,
            command,
        };
        let mut line = serde_json::to_vec(&request).expect("control messages are plain data");
        line.push(b'\n');
        let (sender, answer) = oneshot::channel();
        lock(&self.awaited).insert(id, sender);
        if self.pushed.borrow().closed {
            return Err(ControlError::Closed);
        }
        let written = self.writer.lock().await.write_all(&line).await;
        written.map_err(ControlError::Broken)?;
        answer
            .await
            .map_err(|_| ControlError::Closed)?
            .map_err(ControlError::Refused)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn read_all(reading: OwnedReadHalf, pushed: watch::Sender<Pushed>, awaited: Awaited) {
    let mut reader = BufReader::new(reading);
    loop {
        let mut line = Vec::new();
        match (&mut reader)
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)
            .await
        {
            Ok(_) if line.ends_with(b"\n") => {}
            Ok(_) | Err(_) => break,
        }
        match serde_json::from_slice::<FromEngine>(&line) {
            Ok(FromEngine::Reply(reply)) => {
                if let Some(sender) = lock(&awaited).remove(&reply.id) {
                    // Whoever asked may have given up.
                    let _ = sender.send(reply.result);
                }
            }
            Ok(FromEngine::Push(push)) => pushed.send_modify(|pushed| pushed.take(push)),
            Err(error) => {
                tracing::warn!(%error, "an engine sent a line that is not understood");
                break;
            }
        }
    }
    pushed.send_modify(|pushed| pushed.closed = true);
    // Dropping the senders tells those who wait.
    lock(&awaited).clear();
}

impl Pushed {
    fn take(&mut self, push: ControlPush) {
        self.count += 1;
        match push {
            ControlPush::Propose(proposal) => self.proposal = Some(proposal),
            ControlPush::Event(notice) => {
                if self.notices.len() == NOTICES_MAX {
                    self.notices.pop_front();
                }
                self.notices.push_back((self.count, notice));
            }
        }
    }

    /// Those behind this number.
    pub fn notices_since(&self, count: u64) -> impl Iterator<Item = &Notice> {
        let newer = self.notices.iter().filter(move |(at, _)| *at > count);
        newer.map(|(_, notice)| notice)
    }
}

fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // What is inside is valid after every step; a panic elsewhere does not change that.
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_new_once() {
        let mut pushed = Pushed::default();
        let opened = |epoch| ControlPush::Event(Notice::Opened { epoch });
        let mut told = 0;
        for (epochs, expected) in [(1..3, 2), (3..3, 0), (3..4, 1), (4..40, NOTICES_MAX)] {
            epochs.for_each(|epoch| pushed.take(opened(epoch)));
            assert_eq!(pushed.notices_since(told).count(), expected, "{told}");
            told = pushed.count;
        }
    }
}
