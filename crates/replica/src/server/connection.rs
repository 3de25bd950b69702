//! One connection, from its first byte to its end.

mod hand_over;

use std::io;
use std::net::{Shutdown, TcpStream};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use block_core::Epoch;
use block_core::epoch::Tenure;
use block_core::wire::frame::FRAME_BYTES_MAX;
use block_core::wire::{
    Failure, GoodbyeReason, HEADER_BYTES, Header, Kind, Parsed, Reply, Request, StatusCode, parse,
};
use rustix::io::Errno;
use rustix::net::sockopt;
use tls_line::Secured;

use super::busy_poll::BusyPoll;
use super::handshake::{Ending, Session, chain, shake_hands};
use super::perform::{Effort, check_length, effort, perform, read_request, write_options};
use super::replies::{OutBuffer, Replies};
use super::{KeyPolicy, Shared};
use crate::disk::real::RealDisk;
use crate::store::{Replica, ReplicaSpec, StoreError, WriteOptions};

/// Received at once beyond a frame that was begun: 64 small writes.
const READ_AHEAD_BYTES: usize = 256 * 1024;
/// A client whose machine died without a word is noticed after about ten times the interval of probes.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
/// Replies are sent when no more requests are there, and at the latest when there are this many bytes.
const REPLY_BYTES_MAX: usize = 256 * 1024;

pub(crate) fn refuse(stream: &TcpStream, shared: &Shared) {
    shared.counters.connections_refused.fetch_add(1, Relaxed);
    if let Ok(stream) = stream.try_clone() {
        let _ = stream.set_write_timeout(Some(Duration::from_millis(100)));
        let Ending { reason, text } = Ending::too_many();
        Replies::new(stream, 0).goodbye(reason, &text);
    }
}

pub(crate) fn run(shared: &Arc<Shared>, number: u64, accepted: &TcpStream) {
    let _ = accepted.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(accepted, true);
    let _ = sockopt::set_tcp_keepidle(accepted, KEEPALIVE_AFTER);
    let _ = accepted.set_write_timeout(Some(shared.config.reply_deadline));
    let secured = secure(shared, accepted);
    let (stream, binding) = match &secured {
        Ok(Some(secured)) => (&secured.socket, Some(&secured.binding)),
        Ok(None) | Err(_) => (accepted, None),
    };
    let _ = stream.set_write_timeout(Some(shared.config.reply_deadline));
    let Ok(sending) = stream.try_clone() else {
        return;
    };
    let replies = Arc::new(Replies::new(sending, shared.config.in_flight_bytes_max));
    let greeted = match &secured {
        Ok(_) => shake_hands(shared, number, stream, binding, &replies),
        Err(ending) => Err(ending.clone()),
    };
    let ended = match greeted {
        Ok(Some(session)) => Connection::new(shared, session, replies.clone()).serve(),
        // To this thread it looks as if the client had ended the line.
        Ok(None) if shared.is_given_up(number) => Err(Ending::too_many()),
        Ok(None) => Ok(()),
        Err(ending) => Err(ending),
    };
    // Whoever finds that out closes the line, which looks to the reader as if the client had.
    let ended = replies
        .broken()
        .map_or(ended, |error| Err(Ending::not_taken(error)));
    if shared.stopping.load(Acquire) {
        replies.goodbye(GoodbyeReason::ShuttingDown, "the replica server stops");
    } else if let Err(ending) = ended {
        shared.counters.connections_refused.fetch_add(1, Relaxed);
        tracing::info!(reason = %ending.reason, text = ending.text, "a connection is ended");
        replies.goodbye(ending.reason, &ending.text);
        drain(stream);
    }
    let _ = stream.shutdown(Shutdown::Both);
    replies.wait_for_jobs();
}

/// An encrypted line, if the client begins one: no frame begins as TLS does. A plain one is not touched.
fn secure(shared: &Shared, accepted: &TcpStream) -> Result<Option<Secured>, Ending> {
    let deadline = shared.config.handshake_deadline;
    let _ = accepted.set_read_timeout(Some(deadline));
    let mut first = [0];
    match accepted.peek(&mut first) {
        Ok(1) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(Ending::too_slow()),
        // Who went away is dealt with by the handshake, which reads the same bytes.
        Ok(_) | Err(_) => return Ok(None),
    }
    if first[0] == tls_line::FIRST_BYTE {
        let secured = accepted
            .try_clone()
            .map_err(tls_line::TlsError::Line)
            .and_then(|accepted| shared.acceptor.accept(accepted, deadline));
        return match secured {
            Ok(secured) => Ok(Some(secured)),
            Err(error) => Err(Ending::new(GoodbyeReason::BadFrame, &chain(&error))),
        };
    }
    if shared.config.requires_tls {
        let text = "only encrypted lines are taken here: the engine has to be told to use TLS";
        return Err(Ending::new(GoodbyeReason::AuthenticationFailed, text));
    }
    Ok(None)
}

/// Takes what the client still sends, for a moment: closing with bytes unread would reset the connection, and the
/// client would not get to read why.
fn drain(stream: &TcpStream) {
    let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
    let mut bytes = [0; 16 * 1024];
    for _ in 0..64 {
        match io::Read::read(&mut &*stream, &mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

struct Connection<'a> {
    shared: &'a Arc<Shared>,
    session: Session,
    replies: Arc<Replies>,
    /// The epoch under which this connection opened the volume, and which of the engine's connections it is.
    tenure: Tenure,
    /// Received and not yet handled bytes are `buffer[start..end]`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Since when a frame is only partly here.
    begun_at: Option<Instant>,
    out: OutBuffer,
    busy_poll: BusyPoll,
}

impl<'a> Connection<'a> {
    fn new(shared: &'a Arc<Shared>, session: Session, replies: Arc<Replies>) -> Self {
        // Zeroed memory that is not touched takes none: an idle connection costs little.
        let mut buffer = vec![0; FRAME_BYTES_MAX + READ_AHEAD_BYTES];
        let end = session.received.len();
        buffer[..end].copy_from_slice(&session.received);
        Self {
            busy_poll: BusyPoll::new(shared.config.busy_poll),
            shared,
            session,
            replies,
            tenure: Tenure::default(),
            buffer,
            start: 0,
            end,
            begun_at: None,
            out: OutBuffer::default(),
        }
    }

    fn serve(&mut self) -> Result<(), Ending> {
        let _ = self
            .replies
            .stream()
            .set_read_timeout(Some(self.shared.config.frame_deadline));
        loop {
            if self.handle_received()?.is_break() {
                return Ok(());
            }
            if !self.receive()? {
                return Ok(());
            }
        }
    }

    /// Handles every whole frame in the buffer and sends the replies.
    fn handle_received(&mut self) -> Result<ControlFlow<()>, Ending> {
        if self.tenure.epoch != Epoch::NONE
            && let Some(replica) = &self.session.replica
        {
            replica.hear();
        }
        // The buffer is taken out, so that payloads can be used where they are while `self` changes.
        let buffer = std::mem::take(&mut self.buffer);
        let mut result = Ok(ControlFlow::Continue(()));
        while self.start < self.end && matches!(result, Ok(ControlFlow::Continue(()))) {
            match parse(&buffer[self.start..self.end]) {
                Ok(Parsed::Incomplete { .. }) => break,
                Ok(Parsed::Frame {
                    header,
                    payload,
                    bytes_used,
                }) => {
                    self.start += bytes_used;
                    self.begun_at = None;
                    result = self.handle(&header, payload);
                }
                Err(error) => result = Err(Ending::new(GoodbyeReason::BadFrame, &error)),
            }
        }
        self.buffer = buffer;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        // What was done before a bad frame is still answered.
        let sent = self.send_replies();
        let result = result?;
        sent?;
        Ok(result)
    }

    fn send_replies(&mut self) -> Result<(), Ending> {
        if self.out.filled().is_empty() {
            return Ok(());
        }
        let sent = self.replies.send(self.out.filled());
        self.out.clear();
        sent.map_err(|error| Ending::not_taken(&error))
    }

    /// Waits for more bytes. `false` when the client has gone.
    fn receive(&mut self) -> Result<bool, Ending> {
        let begun = self.end - self.start;
        if begun > 0 {
            let begun_at = *self.begun_at.get_or_insert_with(Instant::now);
            if begun_at.elapsed() > self.shared.config.frame_deadline {
                return Err(self.too_slow());
            }
        }
        if self.buffer.len() - self.end < READ_AHEAD_BYTES.min(FRAME_BYTES_MAX - begun) {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, begun);
        }
        // No more than one large frame at a time, so that a connection of small ones touches little memory.
        let wanted = match parse_needed(&self.buffer[self.start..self.end]) {
            Some(needed) => (needed - begun).max(READ_AHEAD_BYTES),
            None => READ_AHEAD_BYTES,
        };
        let until = (self.end + wanted).min(self.buffer.len());
        let space = &mut self.buffer[self.end..until];
        match self.busy_poll.receive(self.replies.stream(), space) {
            Ok(0) if begun > 0 => Err(Ending::new(
                GoodbyeReason::BadFrame,
                "the connection ended within a frame",
            )),
            Ok(0) => Ok(false),
            Ok(count) => {
                self.end += count;
                Ok(true)
            }
            Err(Errno::AGAIN) if begun > 0 => Err(self.too_slow()),
            // Idle, which a client may be for as long as it likes.
            Err(Errno::AGAIN | Errno::INTR) => Ok(true),
            Err(_) => Ok(false),
        }
    }

    fn too_slow(&self) -> Ending {
        let deadline = self.shared.config.frame_deadline;
        Ending::new(
            GoodbyeReason::TooSlow,
            &format!("the rest of a frame did not come within {deadline:?}"),
        )
    }

    fn handle(&mut self, header: &Header, payload: &[u8]) -> Result<ControlFlow<()>, Ending> {
        if header.is_reply {
            return Err(Ending::new(
                GoodbyeReason::OutOfOrder,
                "a client sends requests, not replies",
            ));
        }
        if self.out.filled().len() >= REPLY_BYTES_MAX {
            self.send_replies()?;
        }
        match header.kind {
            Kind::Goodbye => return Ok(ControlFlow::Break(())),
            Kind::Hello | Kind::Prove => {
                return Err(Ending::new(
                    GoodbyeReason::OutOfOrder,
                    "the handshake is over",
                ));
            }
            Kind::CreateVolume => return self.create(header),
            _ => {}
        }
        let Some(replica) = self.session.replica.clone() else {
            let text = format!(
                "there is no replica of volume {} here yet: create it",
                self.session.volume
            );
            return self.answer(
                header,
                Reply::Failed(Failure::new(StatusCode::NotFound, text)),
                Epoch::NONE,
            );
        };
        let looks_only = header.epoch == Epoch::NONE;
        if header.kind != Kind::OpenVolume && !looks_only && header.epoch != self.tenure.epoch {
            let text = format!(
                "epoch {} did not open the volume on this connection",
                header.epoch
            );
            return Err(Ending::new(GoodbyeReason::StaleEpoch, &text));
        }
        match header.kind {
            Kind::Read => {
                let (offset_bytes, length_bytes) = (header.offset_bytes, header.length_bytes);
                let tenure = self.tenure_of(header);
                let request = Request::Read {
                    offset_bytes,
                    length_bytes,
                };
                self.read(&replica, header, request, |data| {
                    replica.read_without_waiting(tenure, offset_bytes, data)
                })
            }
            Kind::Write => self.write(&replica, header, payload),
            Kind::RebuildWrite => self.copy(&replica, header, payload),
            Kind::OpenVolume => self.open(&replica, header),
            _ => {
                // Also what needs no epoch is refused to an engine that is not the newest any more.
                if !looks_only && let Err(refusal) = replica.check_tenure(self.tenure) {
                    return self.failed(&replica, header, &refusal);
                }
                let request = read_request(header, payload)
                    .map_err(|error| Ending::new(GoodbyeReason::BadFrame, &chain(&error)))?;
                if let Request::ReadLayer {
                    name, offset_bytes, ..
                } = &request
                {
                    let (name, offset_bytes) = (name.clone(), *offset_bytes);
                    return self.read(&replica, header, request, |data| {
                        replica.read_layer_without_waiting(&name, offset_bytes, data)
                    });
                }
                match effort(header) {
                    Effort::None => match perform(&replica, self.tenure_of(header), request) {
                        Ok(reply) => return self.answer(header, reply, header.epoch),
                        Err(error) => return self.failed(&replica, header, &error),
                    },
                    Effort::Short => self.hand_over(&replica, header, request, payload.len())?,
                    Effort::Sync => self.hand_over_sync(&replica, header, request)?,
                    Effort::Long => self.hand_over_long(&replica, header, request)?,
                }
                Ok(ControlFlow::Continue(()))
            }
        }
    }

    /// At once if that needs no device, else by another thread.
    fn read(
        &mut self,
        replica: &Arc<Replica<RealDisk>>,
        header: &Header,
        request: Request,
        read_without_waiting: impl FnOnce(&mut [u8]) -> Result<bool, StoreError>,
    ) -> Result<ControlFlow<()>, Ending> {
        if let Err(error) = check_length(header.length_bytes) {
            return self.failed(replica, header, &error);
        }
        // Straight to where it is sent from.
        let frame_bytes = HEADER_BYTES + header.length_bytes as usize;
        let (place, data) = self.out.space(frame_bytes).split_at_mut(HEADER_BYTES);
        match read_without_waiting(data) {
            Ok(true) => {
                place.copy_from_slice(&header.reply(header.epoch).encode(data));
                self.out.keep(frame_bytes);
                if header.kind == Kind::Read {
                    let counters = &self.shared.counters;
                    counters.reads.fetch_add(1, Relaxed);
                    counters.read_bytes.fetch_add(header.length_bytes, Relaxed);
                }
                Ok(ControlFlow::Continue(()))
            }
            Ok(false) => {
                self.hand_over(replica, header, request, 0)?;
                Ok(ControlFlow::Continue(()))
            }
            Err(error) => self.failed(replica, header, &error),
        }
    }

    fn write(
        &mut self,
        replica: &Arc<Replica<RealDisk>>,
        header: &Header,
        payload: &[u8],
    ) -> Result<ControlFlow<()>, Ending> {
        if payload.len() as u64 != header.length_bytes {
            let text = format!(
                "a write of {} bytes has {} of payload",
                header.length_bytes,
                payload.len()
            );
            return Err(Ending::new(GoodbyeReason::BadFrame, &text));
        }
        let options = write_options(header.flags);
        // That it is on the disk is waited for elsewhere, and without its payload: however many wait, this goes on to read.
        let in_memory = WriteOptions {
            force_unit_access: false,
            ..options
        };
        let (tenure, offset_bytes) = (self.tenure_of(header), header.offset_bytes);
        match replica.write(tenure, offset_bytes, payload, in_memory) {
            Ok(()) => {
                if options.force_unit_access {
                    self.hand_over_sync(replica, header, Request::Flush)?;
                } else {
                    self.out.push(&header.reply(header.epoch).encode(&[]));
                }
                self.shared.counters.writes.fetch_add(1, Relaxed);
                self.shared
                    .counters
                    .write_bytes
                    .fetch_add(header.length_bytes, Relaxed);
                Ok(ControlFlow::Continue(()))
            }
            Err(error) => self.failed(replica, header, &error),
        }
    }

    /// Writes copied blocks from where they were received.
    fn copy(
        &mut self,
        replica: &Arc<Replica<RealDisk>>,
        header: &Header,
        payload: &[u8],
    ) -> Result<ControlFlow<()>, Ending> {
        let (name, data) = Request::parse_rebuild_write(header, payload)
            .map_err(|error| Ending::new(GoodbyeReason::BadFrame, &chain(&error)))?;
        match replica.rebuild_write(self.tenure_of(header), &name, header.offset_bytes, data) {
            Ok(()) => self.answer(header, Reply::Done, header.epoch),
            Err(error) => self.failed(replica, header, &error),
        }
    }

    fn open(
        &mut self,
        replica: &Arc<Replica<RealDisk>>,
        header: &Header,
    ) -> Result<ControlFlow<()>, Ending> {
        let offered = Tenure {
            epoch: header.epoch,
            session: header.offset_bytes,
        };
        match replica.open_epoch(offered) {
            Ok(()) => {
                self.tenure = offered;
                self.answer(header, Reply::Done, header.epoch)
            }
            Err(error) => {
                // An engine that was started anew, and counts from the beginning, learns where to go on.
                let offset_bytes = error.newest_session().unwrap_or(header.offset_bytes);
                let header = Header {
                    offset_bytes,
                    ..*header
                };
                self.failed(replica, &header, &error)
            }
        }
    }

    fn create(&mut self, header: &Header) -> Result<ControlFlow<()>, Ending> {
        let allowed = matches!(
            self.shared.config.keys,
            KeyPolicy::Derived {
                clients_may_create: true,
                ..
            }
        );
        if !allowed {
            let text = "this server's volumes are not made by clients";
            return self.answer(
                header,
                Reply::Failed(Failure::new(StatusCode::NotPermitted, text)),
                Epoch::NONE,
            );
        }
        let (volume, key) = (self.session.volume.clone(), self.session.key.clone());
        let spec = ReplicaSpec {
            volume,
            key,
            size_bytes: header.length_bytes,
        };
        let reply = match self.shared.volumes.create(&spec) {
            Ok(replica) => {
                self.session.replica = Some(replica);
                Reply::Done
            }
            Err(error) => {
                let code = match &error {
                    super::VolumeError::Exists { .. } => StatusCode::AlreadyExists,
                    super::VolumeError::Create {
                        source: crate::CreateReplicaError::Size(_),
                        ..
                    } => StatusCode::BadRequest,
                    _ => StatusCode::Io,
                };
                Reply::Failed(Failure::new(code, chain(&error)))
            }
        };
        self.answer(header, reply, Epoch::NONE)
    }

    fn answer(
        &mut self,
        header: &Header,
        reply: Reply,
        accepted: Epoch,
    ) -> Result<ControlFlow<()>, Ending> {
        let frame = reply.into_frame(header, accepted);
        self.out.push(&frame.encode_header());
        self.out.push(&frame.payload);
        Ok(ControlFlow::Continue(()))
    }

    fn failed(
        &mut self,
        replica: &Arc<Replica<RealDisk>>,
        header: &Header,
        error: &StoreError,
    ) -> Result<ControlFlow<()>, Ending> {
        self.shared.counters.failures.fetch_add(1, Relaxed);
        let answered = self.answer(
            header,
            Reply::Failed(error.failure()),
            replica.accepted_epoch(),
        );
        match error.ends_connection() {
            Some(reason) => Err(Ending::new(reason, error)),
            None => answered,
        }
    }
}

fn parse_needed(buffer: &[u8]) -> Option<usize> {
    match parse(buffer) {
        Ok(Parsed::Incomplete { bytes_needed }) => Some(bytes_needed),
        Ok(Parsed::Frame { .. }) | Err(_) => None,
    }
}
