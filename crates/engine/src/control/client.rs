//! The control socket's other end, for command lines, agents and tests.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use super::{
    Answer, CONTROL_VERSION, Command, CommandError, ControlPush, ControlReply, ControlRequest,
    EngineStatus, FromEngine, Verdict,
};

#[derive(Debug, Error)]
pub enum ControlError {
    #[error("no engine answers at {path}; is one running for this volume?")]
    Connect {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the engine's control connection broke")]
    Broken(#[source] io::Error),
    #[error("the engine sent a line that is not understood")]
    Malformed(#[source] serde_json::Error),
    #[error("the engine refused")]
    Refused(#[source] CommandError),
    #[error("the engine answered {0} to another question")]
    Unexpected(&'static str),
}

/// One connection to an engine. Pushes that arrive while an answer is awaited are kept for [`next_push`](Self::next_push).
pub struct ControlClient {
    reader: BufReader<UnixStream>,
    request_next: u64,
    pushed: std::collections::VecDeque<ControlPush>,
}

impl ControlClient {
    pub fn connect(path: &Path) -> Result<Self, ControlError> {
        let socket = UnixStream::connect(path).map_err(|source| ControlError::Connect {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            reader: BufReader::new(socket),
            request_next: 1,
            pushed: Default::default(),
        })
    }

    /// Gives up on answers and pushes after this long.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> Result<(), ControlError> {
        self.reader
            .get_ref()
            .set_read_timeout(timeout)
            .map_err(ControlError::Broken)
    }

    /// Sends a command and waits for its answer.
    pub fn command(&mut self, command: Command) -> Result<Answer, ControlError> {
        let id = self.send(command)?;
        loop {
            match self.read()? {
                FromEngine::Reply(ControlReply {
                    id: answered,
                    result,
                }) if answered == id => {
                    return result.map_err(ControlError::Refused);
                }
                FromEngine::Reply(_) => {}
                FromEngine::Push(push) => self.pushed.push_back(push),
            }
        }
    }

    pub fn status(&mut self) -> Result<EngineStatus, ControlError> {
        match self.command(Command::Status)? {
            Answer::Status(status) => Ok(*status),
            Answer::Done | Answer::Snapshots(_) => Err(ControlError::Unexpected("something else")),
        }
    }

    /// The next event or proposal, after `Subscribe` or `AttachCommitter`.
    pub fn next_push(&mut self) -> Result<ControlPush, ControlError> {
        if let Some(push) = self.pushed.pop_front() {
            return Ok(push);
        }
        loop {
            if let FromEngine::Push(push) = self.read()? {
                return Ok(push);
            }
        }
    }

    /// Answers a proposal, without waiting for the engine to say that it has heard.
    pub fn commit(&mut self, generation: u64, verdict: Verdict) -> Result<(), ControlError> {
        self.send(Command::Commit {
            generation,
            verdict,
        })
        .map(|_| ())
    }

    fn send(&mut self, command: Command) -> Result<u64, ControlError> {
        let id = self.request_next;
        self.request_next += 1;
        let request = ControlRequest {
            version: CONTROL_VERSION,
            id,
            command,
        };
        let mut line = serde_json::to_vec(&request).map_err(ControlError::Malformed)?;
        line.push(b'\n');
        self.reader
            .get_mut()
            .write_all(&line)
            .map_err(ControlError::Broken)?;
        Ok(id)
    }

    fn read(&mut self) -> Result<FromEngine, ControlError> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => Err(ControlError::Broken(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => serde_json::from_str(&line).map_err(ControlError::Malformed),
            Err(error) => Err(ControlError::Broken(error)),
        }
    }
}
