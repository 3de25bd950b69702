//! The control socket's server: threads that move lines between clients and the engine's loop.

use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::{
    Answer, CONTROL_VERSION, Command, CommandError, ControlPush, ControlReply, ControlRequest,
    FromEngine, Notice,
};
use crate::core::CommandId;
use crate::poller::Post;

/// The longest line that a client may send.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// A client that does not read what it asked for loses its connection.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an engine that ends waits for clients to take their last answers.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// What the threads tell the loop.
#[derive(Debug)]
pub enum FromControl {
    Opened {
        connection: u64,
        sender: Sender<Outgoing>,
    },
    Request {
        connection: u64,
        request: ControlRequest,
    },
    Closed {
        connection: u64,
    },
}

/// What a connection's writer does next.
#[derive(Debug)]
pub enum Outgoing {
    Line(String),
    /// Everything before is written when this is dropped.
    Written(Sender<()>),
}

/// Listens at `path`, for the file's owner only.
pub fn listen<T: Send + 'static>(
    path: &Path,
    post: Post<T>,
    wrap: impl Fn(FromControl) -> T + Send + Clone + 'static,
) -> io::Result<ControlSocket> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    std::thread::Builder::new()
        .name("control".into())
        .spawn(move || {
            for (connection, socket) in (1u64..).zip(listener.incoming()) {
                let Ok(socket) = socket else { continue };
                let (post, wrap) = (post.clone(), wrap.clone());
                std::thread::spawn(move || serve(connection, &socket, &post, &wrap));
            }
        })?;
    Ok(ControlSocket {
        path: path.to_owned(),
    })
}

/// Removes the socket's file in the end.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn serve<T: Send + 'static>(
    connection: u64,
    socket: &UnixStream,
    post: &Post<T>,
    wrap: &impl Fn(FromControl) -> T,
) {
    let (sender, lines) = channel::<Outgoing>();
    let Ok(writing) = socket.try_clone() else {
        return;
    };
    std::thread::spawn(move || write_lines(writing, &lines));
    post.send(wrap(FromControl::Opened {
        connection,
        sender: sender.clone(),
    }));
    let mut reader = BufReader::new(socket);
    loop {
        let mut line = String::new();
        match reader.by_ref().take(LINE_BYTES_MAX).read_line(&mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) if !line.ends_with('\n') => break,
            Ok(_) => {}
        }
        match parse(&line) {
            Ok(request) => {
                if !post.send(wrap(FromControl::Request {
                    connection,
                    request,
                })) {
                    break;
                }
            }
            Err(reply) => {
                let _ = sender.send(Outgoing::Line(line_of(&FromEngine::Reply(reply))));
            }
        }
    }
    post.send(wrap(FromControl::Closed { connection }));
}

fn parse(line: &str) -> Result<ControlRequest, ControlReply> {
    let refuse = |id, message| ControlReply {
        id,
        result: Err(CommandError::new(message)),
    };
    // The version is looked at first: a newer client's command need not be known here.
    let value: serde_json::Value = serde_json::from_str(line)
        .map_err(|error| refuse(0, format!("a line that is not JSON: {error}")))?;
    let id = value
        .get("id")
        .and_then(serde_json::Value::as_u64)
        .unwrap_or(0);
    let version = value.get("version").and_then(serde_json::Value::as_u64);
    if version != Some(u64::from(CONTROL_VERSION)) {
        let message =
            format!("this engine speaks version {CONTROL_VERSION} of the control protocol");
        return Err(refuse(id, message));
    }
    serde_json::from_value(value)
        .map_err(|error| refuse(id, format!("not a command of this engine: {error}")))
}

fn write_lines(mut socket: UnixStream, lines: &Receiver<Outgoing>) {
    let _ = socket.set_write_timeout(Some(WRITE_TIMEOUT));
    while let Ok(next) = lines.recv() {
        let line = match next {
            Outgoing::Line(line) => line,
            Outgoing::Written(_) => continue,
        };
        if socket.write_all(line.as_bytes()).is_err() {
            let _ = socket.shutdown(std::net::Shutdown::Both);
            return;
        }
    }
}

fn line_of(message: &FromEngine) -> String {
    let mut line = serde_json::to_string(message).expect("control messages are plain data");
    line.push('\n');
    line
}

/// The loop's view of its clients.
#[derive(Default)]
pub struct Clients {
    senders: HashMap<u64, Sender<Outgoing>>,
    subscribers: HashSet<u64>,
    committer: Option<u64>,
    /// What happened while an engine began and must be heard of, until somebody listens.
    unheard: Option<Notice>,
    /// Who awaits a command's answer, and under which number of its own.
    awaited: HashMap<CommandId, (u64, u64)>,
    command_next: u64,
}

/// What the loop does about a message from a client.
#[derive(Debug)]
pub enum ClientNews {
    Command(CommandId, Command),
    CommitterAttached,
    CommitterLost,
    Nothing,
}

impl Clients {
    pub fn handle(&mut self, message: FromControl) -> ClientNews {
        match message {
            FromControl::Opened { connection, sender } => {
                self.senders.insert(connection, sender);
                ClientNews::Nothing
            }
            FromControl::Closed { connection } => {
                self.senders.remove(&connection);
                self.subscribers.remove(&connection);
                self.awaited.retain(|_, (owner, _)| *owner != connection);
                if self.committer == Some(connection) {
                    self.committer = None;
                    return ClientNews::CommitterLost;
                }
                ClientNews::Nothing
            }
            FromControl::Request {
                connection,
                request,
            } => self.on_request(connection, request),
        }
    }

    fn on_request(&mut self, connection: u64, request: ControlRequest) -> ClientNews {
        match request.command {
            Command::Subscribe => {
                self.subscribers.insert(connection);
                self.reply(connection, request.id, Ok(Answer::Done));
                if let Some(notice) = self.unheard.take() {
                    self.notify(&ControlPush::Event(notice));
                }
                ClientNews::Nothing
            }
            Command::AttachCommitter => {
                // The newest wins: an agent that was restarted takes over from its old self.
                self.committer = Some(connection);
                self.reply(connection, request.id, Ok(Answer::Done));
                ClientNews::CommitterAttached
            }
            Command::Commit { .. } if self.committer != Some(connection) => {
                let error = CommandError::new("only the attached committer may answer proposals");
                self.reply(connection, request.id, Err(error));
                ClientNews::Nothing
            }
            command => {
                self.command_next += 1;
                let id = CommandId(self.command_next);
                self.awaited.insert(id, (connection, request.id));
                ClientNews::Command(id, command)
            }
        }
    }

    pub fn answer(&mut self, command: CommandId, result: Result<Answer, CommandError>) {
        if let Some((connection, id)) = self.awaited.remove(&command) {
            self.reply(connection, id, result);
        }
    }

    fn reply(&self, connection: u64, id: u64, result: Result<Answer, CommandError>) {
        self.send(connection, &FromEngine::Reply(ControlReply { id, result }));
    }

    pub fn notify(&mut self, push: &ControlPush) {
        if let ControlPush::Event(notice @ Notice::DeviceMadeAnew { .. }) = push
            && self.subscribers.is_empty()
        {
            self.unheard = Some(notice.clone());
        }
        let to: Vec<u64> = match push {
            ControlPush::Propose(_) => self.committer.into_iter().collect(),
            ControlPush::Event(_) => self.subscribers.iter().copied().collect(),
        };
        for connection in to {
            self.send(connection, &FromEngine::Push(push.clone()));
        }
    }

    /// Waits until clients have got their answers, for a moment: the process ends after this.
    pub fn finish(&mut self) {
        let (written, all_written) = channel();
        for (_, sender) in self.senders.drain() {
            let _ = sender.send(Outgoing::Written(written.clone()));
        }
        drop(written);
        // It ends when the last sender is dropped; nothing is ever sent.
        let _ = all_written.recv_timeout(FINISH_TIMEOUT);
    }

    fn send(&self, connection: u64, message: &FromEngine) {
        if let Some(sender) = self.senders.get(&connection) {
            let _ = sender.send(Outgoing::Line(line_of(message)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a client has been sent: words of the lines.
    fn heard(lines: &Receiver<Outgoing>, word: &str) -> usize {
        let lines = lines.try_iter().filter(|line| match line {
            Outgoing::Line(line) => line.contains(word),
            Outgoing::Written(_) => false,
        });
        lines.count()
    }

    /// An engine opens its device before an agent has found its socket.
    #[test]
    fn a_device_that_was_made_anew_is_told_once_to_whoever_comes_first() {
        let mut clients = Clients::default();
        let why = "no resend".to_owned();
        clients.notify(&ControlPush::Event(Notice::Opened { epoch: 1 }));
        clients.notify(&ControlPush::Event(Notice::DeviceMadeAnew { why }));
        for (connection, expected) in [(1, 1), (2, 0)] {
            let (sender, lines) = channel();
            clients.handle(FromControl::Opened { connection, sender });
            let request = ControlRequest {
                version: CONTROL_VERSION,
                id: 1,
                command: Command::Subscribe,
            };
            clients.handle(FromControl::Request {
                connection,
                request,
            });
            assert_eq!(heard(&lines, "deviceMadeAnew"), expected, "{connection}");
        }
    }
}
