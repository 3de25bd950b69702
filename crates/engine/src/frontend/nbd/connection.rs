//! One NBD client: bytes in, requests out; outcomes in, bytes out.

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream;

use bytes::Bytes;

use super::handshake::{self, Agreement, Export, Step};
use super::wire::{self, CommandHeader};
use crate::io::{
    ByteRange, IoFault, Operation, Outcome, REQUEST_DATA_BYTES_MAX, REQUEST_SPAN_BYTES_MAX,
    Request, RequestId,
};
use crate::poller::{Poller, Readiness, Token};
use crate::transport::{ChunkBuffer, OutQueue};

/// Data of unanswered requests and of unsent replies that one client may keep us holding.
const HELD_BYTES_MAX: u64 = 64 << 20;

/// What a command takes besides its data, about.
const COMMAND_BYTES: u64 = 256;

/// Room for one read: a few small requests, or part of a large one.
const READ_BYTES: usize = 256 << 10;

/// What a connection needs from the front end while it handles input.
pub struct Context<'a> {
    pub poller: &'a Poller,
    pub export: &'a Export,
    pub requests: &'a mut Vec<Request>,
    pub request_next: &'a mut u64,
}

/// Whether a connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Lives,
    Ended(&'static str),
}

/// ```text
/// Flags ──> Options ──> Transmission ──> Leaving
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Flags,
    Options,
    Transmission,
    /// No more input is read; the connection ends when all is answered and sent.
    Leaving,
}

/// What epoll is asked for, to ask again only when that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interest {
    Input,
    Both,
    OutputOnly,
    Nothing,
}

/// A client's command; large ones are several requests.
#[derive(Debug)]
struct Command {
    header: CommandHeader,
    parts_open: usize,
    fault: Option<IoFault>,
    /// A read's data, by part.
    data: Vec<Bytes>,
}

pub struct Connection {
    socket: UnixStream,
    token: Token,
    interest: Interest,
    phase: Phase,
    agreement: Agreement,
    input: ChunkBuffer,
    output: OutQueue,
    commands: HashMap<u64, Command>,
    command_next: u64,
    /// The command and the part of it that a request is.
    parts: HashMap<RequestId, (u64, usize)>,
    held_bytes: u64,
    /// Input was received for which there was no room.
    backlog: bool,
}

impl Connection {
    pub fn start(socket: UnixStream, poller: &Poller, token: Token) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        poller.watch(&socket, token)?;
        let mut output = OutQueue::default();
        output.push(wire::greeting());
        let mut connection = Self {
            socket,
            token,
            interest: Interest::Input,
            phase: Phase::Flags,
            agreement: Agreement::default(),
            input: ChunkBuffer::new(4 * READ_BYTES),
            output,
            commands: HashMap::new(),
            command_next: 0,
            parts: HashMap::new(),
            held_bytes: 0,
            backlog: false,
        };
        match connection.flush(poller) {
            Fate::Lives => Ok(connection),
            Fate::Ended(reason) => Err(io::Error::other(reason)),
        }
    }

    pub fn end(self, poller: &Poller) {
        // It fails only if the descriptor is not watched, which is what we want.
        let _ = poller.forget(&self.socket);
    }

    pub fn begin_close(&mut self) {
        self.phase = Phase::Leaving;
    }

    pub fn ready(&mut self, readiness: Readiness, context: &mut Context<'_>) -> Fate {
        if readiness.readable && self.phase != Phase::Leaving && self.has_room() {
            self.input.reserve(READ_BYTES);
            match self.input.fill(&self.socket) {
                Ok(None) => {}
                Ok(Some(0)) => return Fate::Ended("end of stream"),
                Ok(Some(_)) => {
                    if let Fate::Ended(reason) = self.take_input(context) {
                        return Fate::Ended(reason);
                    }
                }
                Err(_) => return Fate::Ended("the socket failed"),
            }
        } else if self.backlog
            && self.has_room()
            && let Fate::Ended(reason) = self.take_input(context)
        {
            return Fate::Ended(reason);
        }
        self.flush(context.poller)
    }

    pub fn has_answers_to_take(&self) -> bool {
        !self.output.is_empty()
    }

    /// Whether one more command may be taken, so that what a client has open is bounded whatever it asks for.
    fn has_room(&self) -> bool {
        self.held_bytes + (self.output.queued_bytes() as u64) < HELD_BYTES_MAX
    }

    fn take_input(&mut self, context: &mut Context<'_>) -> Fate {
        loop {
            self.backlog = !self.has_room();
            if self.backlog {
                return Fate::Lives;
            }
            let step = match self.phase {
                Phase::Flags => handshake::client_flags(self.input.data(), &mut self.agreement),
                Phase::Options => {
                    handshake::option(self.input.data(), context.export, &mut self.agreement)
                }
                Phase::Transmission => match self.take_command(context) {
                    Ok(true) => continue,
                    Ok(false) => return Fate::Lives,
                    Err(reason) => return Fate::Ended(reason),
                },
                Phase::Leaving => return Fate::Lives,
            };
            match step {
                Step::NeedMore => return Fate::Lives,
                Step::Reply { used, reply } => {
                    self.input.skip(used);
                    self.output.push(reply);
                    self.phase = Phase::Options;
                }
                Step::Transmission { used, reply } => {
                    self.input.skip(used);
                    self.output.push(reply);
                    self.phase = Phase::Transmission;
                }
                Step::HangUp { reply } => {
                    self.output.push(reply);
                    self.phase = Phase::Leaving;
                }
            }
        }
    }

    /// Takes one command, if it is there whole.
    fn take_command(&mut self, context: &mut Context<'_>) -> Result<bool, &'static str> {
        let Some(raw) = self.input.data().first_chunk::<{ wire::REQUEST_BYTES }>() else {
            return Ok(false);
        };
        let header = wire::parse_command(raw).ok_or("a request without its magic number")?;
        let payload_bytes = if header.command == wire::CMD_WRITE {
            header.length as usize
        } else {
            0
        };
        if header.length > wire::PAYLOAD_BYTES_MAX && payload_bytes > 0 {
            return Err("a write larger than the limit");
        }
        let whole = wire::REQUEST_BYTES + payload_bytes;
        if self.input.data().len() < whole {
            self.input.reserve(whole - self.input.data().len());
            return Ok(false);
        }
        self.input.skip(wire::REQUEST_BYTES);
        let payload = self.input.take(payload_bytes);
        if header.command == wire::CMD_DISC {
            self.phase = Phase::Leaving;
            return Ok(true);
        }
        match operations(&header, &payload, context.export) {
            Ok(operations) => self.submit(header, operations, context),
            Err(error) => self.reply(&header, Err(error)),
        }
        Ok(true)
    }

    fn submit(
        &mut self,
        header: CommandHeader,
        operations: Vec<Operation>,
        context: &mut Context<'_>,
    ) {
        if operations.is_empty() {
            self.reply(&header, Ok(Vec::new()));
            return;
        }
        let command = self.command_next;
        self.command_next += 1;
        self.held_bytes += held_by(&header);
        let data = if header.command == wire::CMD_READ {
            vec![Bytes::new(); operations.len()]
        } else {
            Vec::new()
        };
        self.commands.insert(
            command,
            Command {
                header,
                parts_open: operations.len(),
                fault: None,
                data,
            },
        );
        for (part, operation) in operations.into_iter().enumerate() {
            let id = RequestId(*context.request_next);
            *context.request_next += 1;
            self.parts.insert(id, (command, part));
            context.requests.push(Request { id, operation });
        }
    }

    pub fn complete(&mut self, id: RequestId, outcome: Outcome) {
        let Some((number, part)) = self.parts.remove(&id) else {
            return;
        };
        let command = self
            .commands
            .get_mut(&number)
            .expect("a part has its command");
        command.parts_open -= 1;
        match outcome {
            Ok(data) => {
                if let Some(slot) = command.data.get_mut(part) {
                    *slot = data;
                }
            }
            Err(fault) => command.fault = Some(fault),
        }
        if command.parts_open > 0 {
            return;
        }
        let command = self.commands.remove(&number).expect("looked up above");
        self.held_bytes -= held_by(&command.header);
        let result = match command.fault {
            None => Ok(command.data),
            Some(fault) => Err(wire::error_number(fault)),
        };
        self.reply(&command.header, result);
    }

    fn reply(&mut self, header: &CommandHeader, result: Result<Vec<Bytes>, u32>) {
        let cookie = header.cookie;
        if !self.agreement.structured_replies {
            self.output.push(wire::simple_reply(
                cookie,
                result.as_ref().err().copied().unwrap_or(0),
            ));
            for part in result.unwrap_or_default() {
                self.output.push(part);
            }
            return;
        }
        match result {
            Ok(parts) if header.command == wire::CMD_READ && header.length > 0 => {
                let prefix = header.offset.to_be_bytes();
                let kind = wire::REPLY_TYPE_OFFSET_DATA;
                self.output.push(wire::chunk_header(
                    cookie,
                    kind,
                    &prefix,
                    header.length as usize,
                ));
                for part in parts {
                    self.output.push(part);
                }
            }
            Ok(_) => self
                .output
                .push(wire::chunk_header(cookie, wire::REPLY_TYPE_NONE, b"", 0)),
            Err(error) => {
                let mut prefix = error.to_be_bytes().to_vec();
                prefix.extend_from_slice(&[0, 0]);
                self.output.push(wire::chunk_header(
                    cookie,
                    wire::REPLY_TYPE_ERROR,
                    &prefix,
                    0,
                ));
            }
        }
    }

    /// Sends what is queued, and asks epoll for what is needed next.
    pub fn flush(&mut self, poller: &Poller) -> Fate {
        let Ok(sent) = self.output.flush(&self.socket) else {
            return Fate::Ended("the socket failed");
        };
        if sent && self.phase == Phase::Leaving && self.commands.is_empty() {
            return Fate::Ended("done");
        }
        // Of one that leaves nothing is read any more; its socket would be reported as readable again and again.
        let takes_input = self.has_room() && self.phase != Phase::Leaving;
        let interest = match (sent, takes_input) {
            (true, false) => Interest::Nothing,
            (false, false) => Interest::OutputOnly,
            // The socket takes more at once, which is when the backlog is taken.
            (true, true) if self.backlog => Interest::Both,
            (true, true) => Interest::Input,
            (false, true) => Interest::Both,
        };
        if interest == self.interest {
            return Fate::Lives;
        }
        self.interest = interest;
        let asked = match interest {
            Interest::Input => poller.watch_writable(&self.socket, self.token, false),
            Interest::Both => poller.watch_writable(&self.socket, self.token, true),
            Interest::OutputOnly => poller.watch_no_input(&self.socket, self.token, true),
            Interest::Nothing => poller.watch_no_input(&self.socket, self.token, false),
        };
        if asked.is_ok() {
            Fate::Lives
        } else {
            Fate::Ended("cannot watch the socket")
        }
    }
}

/// What a command keeps in memory until it is answered.
fn held_by(header: &CommandHeader) -> u64 {
    let data_bytes = match header.command {
        wire::CMD_READ | wire::CMD_WRITE => u64::from(header.length),
        _ => 0,
    };
    data_bytes + COMMAND_BYTES
}

/// Turns a command into requests of a size that the engine takes, or into an error number.
fn operations(
    header: &CommandHeader,
    payload: &Bytes,
    export: &Export,
) -> Result<Vec<Operation>, u32> {
    let range = ByteRange::new(header.offset, u64::from(header.length));
    let known = wire::CMD_FLAG_FUA | wire::CMD_FLAG_NO_HOLE | wire::CMD_FLAG_DF;
    if header.flags & !known != 0 {
        return Err(wire::EINVAL);
    }
    let sector = u64::from(export.sector_bytes);
    if header.command != wire::CMD_FLUSH {
        if range.end().is_none_or(|end| end > export.size_bytes) {
            let writes = matches!(header.command, wire::CMD_WRITE | wire::CMD_WRITE_ZEROES);
            return Err(if writes { wire::ENOSPC } else { wire::EINVAL });
        }
        if !range.offset.is_multiple_of(sector) || !range.length.is_multiple_of(sector) {
            return Err(wire::EINVAL);
        }
    }
    let durable = header.flags & wire::CMD_FLAG_FUA != 0;
    Ok(match header.command {
        wire::CMD_READ if header.length > wire::PAYLOAD_BYTES_MAX => return Err(wire::EOVERFLOW),
        wire::CMD_READ => range
            .pieces(REQUEST_DATA_BYTES_MAX)
            .map(|range| Operation::Read { range })
            .collect(),
        wire::CMD_WRITE => range
            .pieces(REQUEST_DATA_BYTES_MAX)
            .map(|piece| {
                let start = usize::try_from(piece.offset - range.offset).expect("within 32 MiB");
                let length = usize::try_from(piece.length).expect("within 1 MiB");
                let data = payload.slice(start..start + length);
                Operation::Write {
                    offset: piece.offset,
                    data,
                    durable,
                }
            })
            .collect(),
        wire::CMD_FLUSH => vec![Operation::Flush],
        // A discard is durable with the next flush; what is to be durable at once is written.
        wire::CMD_TRIM if durable => range
            .pieces(REQUEST_SPAN_BYTES_MAX)
            .map(|range| Operation::WriteZeroes {
                range,
                may_unmap: true,
                durable,
            })
            .collect(),
        wire::CMD_TRIM => range
            .pieces(REQUEST_SPAN_BYTES_MAX)
            .map(|range| Operation::Discard { range })
            .collect(),
        wire::CMD_WRITE_ZEROES => {
            let may_unmap = header.flags & wire::CMD_FLAG_NO_HOLE == 0;
            range
                .pieces(REQUEST_SPAN_BYTES_MAX)
                .map(|range| Operation::WriteZeroes {
                    range,
                    may_unmap,
                    durable,
                })
                .collect()
        }
        _ => return Err(wire::EINVAL),
    })
}
