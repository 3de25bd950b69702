//! A connection to one replica: how it is made, and frames over it.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use block_core::wire::auth::Transcript;
use block_core::wire::{
    self, DataChecksum, Frame, FrameDecoder, Hello, Kind, ReplicaMode, ReplicaStatus, Reply,
    Request, RequestId, StatusCode, VERSION_MAX, VERSION_MIN, VolumeKey,
};
use block_core::{Epoch, VolumeName};
use bytes::BytesMut;
use thiserror::Error;

use crate::core::{Expected, Incarnation, JobId, LinkRefusal};
use crate::poller::{Poller, Token};
use crate::transport::{OutQueue, read_into};

/// How long a replica may take to accept a connection, and to answer each message of the handshake. Accepting a
/// new epoch includes waiting for what an older engine had asked for.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Payloads up to this size are copied behind their header: one memcpy is cheaper than one more slice.
const COPIED_PAYLOAD_BYTES_MAX: usize = 16 << 10;

/// Room for one read.
const READ_BYTES: usize = 256 << 10;

/// Frames taken per turn, so that one busy replica does not starve the others.
const READS_PER_TURN_MAX: usize = 4;

/// Who we are to every replica of the volume.
#[derive(Clone, Debug)]
pub struct Identity {
    pub volume: VolumeName,
    pub key: VolumeKey,
    pub epoch: Epoch,
    /// Whether lines to replicas are encrypted.
    pub tls: bool,
}

#[derive(Debug, Error)]
pub enum ConnectError {
    #[error("cannot connect to {address}")]
    Connect {
        address: String,
        #[source]
        source: io::Error,
    },
    #[error("nobody knows where it is served")]
    NoAddress,
    #[error("the line to {address} cannot be encrypted")]
    Tls {
        address: String,
        #[source]
        source: Box<tls_line::TlsError>,
    },
    #[error("the connection broke during the handshake")]
    Broken(#[source] io::Error),
    #[error("not a replica server: {0}")]
    Protocol(String),
    #[error("{0}")]
    Refused(wire::Failure),
    #[error(
        "the server has no replica of the volume: its data is gone; restore its folder, or rebuild it"
    )]
    Absent,
    #[error("{0}")]
    Another(String),
    #[error("a newer engine owns the volume: {0}")]
    Stale(String),
    #[error("it obeys connection {} of this engine: {why}", newest.0)]
    Superseded { newest: Incarnation, why: String },
}

impl ConnectError {
    #[must_use]
    pub fn into_refusal(self) -> LinkRefusal {
        match self {
            ConnectError::Stale(why) => LinkRefusal::StaleEpoch(why),
            ConnectError::Superseded { newest, why } => LinkRefusal::Superseded { newest, why },
            other => LinkRefusal::Unreachable(other.chain()),
        }
    }

    /// It and its causes, on one line.
    pub(crate) fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        text
    }
}

/// Connects, proves both sides' knowledge of the key, and has the replica accept our epoch. Blocks. A replica that is not
/// there is made only if the size of an empty one is given.
///
/// Requests that an earlier connection has sent may still be on their way, or wait in a replica that was stopped. They
/// must not run after those of this one: its number is larger, and the replica refuses theirs from now on.
pub fn connect(
    address: &str,
    identity: &Identity,
    incarnation: Incarnation,
    expected: &Expected,
    create_size_bytes: Option<u64>,
) -> Result<(TcpStream, ReplicaStatus), ConnectError> {
    let mut conversation = Conversation::start(address, identity.tls)?;
    let welcome = conversation.handshake(identity)?;
    if welcome.mode == ReplicaMode::Absent {
        let size_bytes = create_size_bytes.ok_or(ConnectError::Absent)?;
        conversation.ask(Request::CreateVolume { size_bytes })?;
    }
    // Opening takes the mark of an orderly end away, so it is asked for before.
    let was_clean = conversation
        .status_of(expected)?
        .sync
        .is_some_and(|sync| sync.clean);
    conversation.epoch = identity.epoch;
    let session = incarnation.0;
    conversation.ask(Request::OpenVolume { session })?;
    let mut status = conversation.status()?;
    if let Some(sync) = &mut status.sync {
        sync.clean = was_clean;
    }
    Ok((conversation.socket, status))
}

/// Connects to look only: the replica accepts nothing, and goes on to obey whom it obeys. Blocks.
pub fn look(
    address: &str,
    identity: &Identity,
    expected: &Expected,
) -> Result<(TcpStream, ReplicaStatus), ConnectError> {
    let mut conversation = Conversation::start(address, identity.tls)?;
    conversation.handshake(identity)?;
    let status = conversation.status_of(expected)?;
    Ok((conversation.socket, status))
}

/// One question, one answer. Until the volume is opened, it only looks.
pub(crate) struct Conversation {
    socket: TcpStream,
    binding: Option<tls_line::Binding>,
    decoder: FrameDecoder,
    epoch: Epoch,
    request_next: u64,
}

impl Conversation {
    pub fn start(address: &str, tls: bool) -> Result<Self, ConnectError> {
        let at = |source| ConnectError::Connect {
            address: address.to_owned(),
            source,
        };
        if address.is_empty() {
            return Err(ConnectError::NoAddress);
        }
        let mut last = io::Error::other("the address leads nowhere");
        for candidate in address.to_socket_addrs().map_err(at)? {
            match TcpStream::connect_timeout(&candidate, CONNECT_TIMEOUT) {
                Ok(socket) => {
                    socket.set_nodelay(true).map_err(at)?;
                    let (socket, binding) = if tls {
                        let secured = tls_line::connect(socket, HANDSHAKE_TIMEOUT);
                        let secured = secured.map_err(|source| ConnectError::Tls {
                            address: address.to_owned(),
                            source: Box::new(source),
                        })?;
                        (secured.socket, Some(secured.binding))
                    } else {
                        (socket, None)
                    };
                    socket
                        .set_read_timeout(Some(HANDSHAKE_TIMEOUT))
                        .map_err(at)?;
                    socket
                        .set_write_timeout(Some(HANDSHAKE_TIMEOUT))
                        .map_err(at)?;
                    return Ok(Self {
                        socket,
                        binding,
                        decoder: FrameDecoder::new(),
                        // Until the volume is opened we only look.
                        epoch: Epoch::NONE,
                        request_next: 1,
                    });
                }
                Err(error) => last = error,
            }
        }
        Err(at(last))
    }

    pub fn handshake(&mut self, identity: &Identity) -> Result<wire::Welcome, ConnectError> {
        let mut nonce = [0u8; 32];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut nonce))
            .map_err(ConnectError::Broken)?;
        let versions = (VERSION_MIN, VERSION_MAX);
        let hello = Hello {
            versions,
            volume: identity.volume.clone(),
            nonce,
        };
        let Reply::Challenge(challenge) = self.ask(Request::Hello(hello))? else {
            return Err(ConnectError::Protocol(
                "no challenge in answer to hello".into(),
            ));
        };
        let transcript = Transcript {
            versions_offered: versions,
            version_chosen: challenge.version,
            volume: &identity.volume,
            client_nonce: &nonce,
            replica_nonce: &challenge.nonce,
            line_binding: self.binding.as_ref(),
        };
        transcript
            .check_replica_proof(&identity.key, &challenge.proof)
            .map_err(|error| ConnectError::Protocol(error.to_string()))?;
        match self.ask(Request::Prove(transcript.client_proof(&identity.key)))? {
            Reply::Welcome(welcome) => Ok(welcome),
            _ => Err(ConnectError::Protocol(
                "no welcome in answer to a proof".into(),
            )),
        }
    }

    pub fn status(&mut self) -> Result<ReplicaStatus, ConnectError> {
        match self.ask(Request::Status)? {
            Reply::Status(status) => Ok(status),
            _ => Err(ConnectError::Protocol(
                "no status in answer to status".into(),
            )),
        }
    }

    fn status_of(&mut self, expected: &Expected) -> Result<ReplicaStatus, ConnectError> {
        let status = self.status()?;
        match expected.refusal(&status) {
            Some(why) => Err(ConnectError::Another(why)),
            None => Ok(status),
        }
    }

    pub fn ask(&mut self, request: Request) -> Result<Reply, ConnectError> {
        let wanted = self.send(request)?;
        loop {
            let frame = self.next_frame()?;
            let reply = Self::reply_in(&frame);
            // Else it is the late answer to whether the replica lives.
            if reply.is_err() || frame.header.request_id == wanted {
                return reply;
            }
        }
    }

    /// For what takes time by the amount of data. A replica that works on it goes on to answer other questions, so it is
    /// waited for as long as it does.
    pub fn ask_long(&mut self, request: Request) -> Result<Reply, ConnectError> {
        let wanted = self.send(request)?;
        let mut asked_whether_it_lives = false;
        loop {
            match self.next_frame() {
                Ok(frame) if frame.header.request_id == wanted => return Self::reply_in(&frame),
                Ok(frame) => {
                    Self::reply_in(&frame)?;
                    asked_whether_it_lives = false;
                }
                Err(ConnectError::Broken(error))
                    if error.kind() == io::ErrorKind::WouldBlock && !asked_whether_it_lives =>
                {
                    self.send(Request::Status)?;
                    asked_whether_it_lives = true;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn send(&mut self, request: Request) -> Result<RequestId, ConnectError> {
        let id = RequestId(self.request_next);
        self.request_next += 1;
        let frame = request.into_frame(id, self.epoch);
        self.socket
            .write_all(&frame.to_vec())
            .map_err(ConnectError::Broken)?;
        Ok(id)
    }

    fn reply_in(frame: &Frame) -> Result<Reply, ConnectError> {
        if frame.header.kind == Kind::Goodbye {
            return Err(goodbye(frame));
        }
        let reply = Reply::from_frame(&frame.header, &frame.payload)
            .map_err(|error| ConnectError::Protocol(error.to_string()))?;
        match reply {
            Reply::Failed(failure) if failure.code == StatusCode::StaleEpoch => {
                Err(ConnectError::Stale(failure.text))
            }
            Reply::Failed(failure) if failure.code == StatusCode::Superseded => {
                Err(ConnectError::Superseded {
                    newest: Incarnation(frame.header.offset_bytes),
                    why: failure.text,
                })
            }
            Reply::Failed(failure) => Err(ConnectError::Refused(failure)),
            reply => Ok(reply),
        }
    }

    fn next_frame(&mut self) -> Result<Frame, ConnectError> {
        loop {
            let found = self.decoder.next_frame();
            if let Some(frame) = found.map_err(|error| ConnectError::Protocol(error.to_string()))? {
                return Ok(frame);
            }
            let mut buffer = [0u8; 4096];
            let count = self
                .socket
                .read(&mut buffer)
                .map_err(ConnectError::Broken)?;
            if count == 0 {
                return Err(ConnectError::Broken(io::ErrorKind::UnexpectedEof.into()));
            }
            self.decoder.push(&buffer[..count]);
        }
    }
}

fn goodbye(frame: &Frame) -> ConnectError {
    match Request::from_frame(&frame.header, &frame.payload) {
        Ok(Request::Goodbye {
            reason: wire::GoodbyeReason::StaleEpoch,
            text,
        }) => ConnectError::Stale(text),
        Ok(Request::Goodbye { reason, text }) => {
            ConnectError::Protocol(format!("it hung up: {reason}: {text}"))
        }
        _ => ConnectError::Protocol("it hung up".into()),
    }
}

/// An open connection, owned by the loop.
pub struct ReplicaLink {
    socket: TcpStream,
    token: Token,
    epoch: Epoch,
    decoder: FrameDecoder,
    /// Headers and small payloads that were not yet given to `output`.
    staging: BytesMut,
    output: OutQueue,
    waits_to_write: bool,
}

impl ReplicaLink {
    pub fn new(
        socket: TcpStream,
        poller: &Arc<Poller>,
        token: Token,
        epoch: Epoch,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        poller.watch(&socket, token)?;
        Ok(Self {
            socket,
            token,
            epoch,
            decoder: FrameDecoder::new(),
            staging: BytesMut::new(),
            output: OutQueue::default(),
            waits_to_write: false,
        })
    }

    pub fn queue(&mut self, job: JobId, request: Request, checksum: &mut DataChecksum) {
        let parts = request.into_outgoing(RequestId(job.0), self.epoch);
        self.staging
            .extend_from_slice(&parts.encode_header(checksum));
        self.staging.extend_from_slice(&parts.fields);
        if parts.data.len() <= COPIED_PAYLOAD_BYTES_MAX {
            self.staging.extend_from_slice(&parts.data);
        } else {
            self.output.push(self.staging.split().freeze());
            self.output.push(parts.data);
        }
    }

    /// Sends what the socket takes.
    pub fn flush(&mut self, poller: &Poller) -> io::Result<()> {
        if !self.staging.is_empty() {
            self.output.push(self.staging.split().freeze());
        }
        if self.output.is_empty() && !self.waits_to_write {
            return Ok(());
        }
        let all_sent = self.output.flush(&self.socket)?;
        if self.waits_to_write == all_sent {
            self.waits_to_write = !all_sent;
            poller.watch_writable(&self.socket, self.token, self.waits_to_write)?;
        }
        Ok(())
    }

    /// Takes what has arrived; an error ends the link.
    pub fn receive(&mut self, replies: &mut Vec<(JobId, Reply)>) -> Result<(), String> {
        for _ in 0..READS_PER_TURN_MAX {
            let space = self.decoder.space(READ_BYTES);
            let room = space.capacity() - space.len();
            let count = match read_into(&self.socket, space) {
                Ok(None) => return Ok(()),
                Ok(Some(0)) => return Err("the replica has hung up".into()),
                Ok(Some(count)) => count,
                Err(error) => return Err(format!("the connection broke: {error}")),
            };
            while let Some(frame) = self
                .decoder
                .next_frame()
                .map_err(|error| error.to_string())?
            {
                if frame.header.kind == Kind::Goodbye {
                    return Err(goodbye(&frame).to_string());
                }
                // It has accepted ours, so this is no answer to anything that came over this connection.
                if frame.header.epoch < self.epoch {
                    let (found, ours) = (frame.header.epoch, self.epoch);
                    return Err(format!(
                        "the replica answers for epoch {found}, and has accepted {ours}"
                    ));
                }
                let reply = Reply::from_frame(&frame.header, &frame.payload)
                    .map_err(|error| error.to_string())?;
                replies.push((JobId(frame.header.request_id.0), reply));
            }
            if count < room {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Says goodbye where that needs no waiting, and hangs up.
    pub fn end(mut self, poller: &Poller, reason: &str) {
        let request = Request::Goodbye {
            reason: wire::GoodbyeReason::Finished,
            text: reason.to_owned(),
        };
        if self.output.is_empty() {
            self.queue(JobId(0), request, &mut DataChecksum::default());
            let _ = self.flush(poller);
        }
        let _ = poller.forget(&self.socket);
    }
}

#[cfg(test)]
mod tests {
    use replica::{KeyPolicy, ReplicaServer, ServerConfig};

    use super::*;

    #[test]
    fn a_refused_connection_learns_the_number_of_the_newest() {
        let folder = tempfile::tempdir().expect("a folder");
        let secret = b"secret".to_vec();
        let volume = VolumeName::new("v").expect("a name");
        let identity = Identity {
            key: VolumeKey::derive(&secret, &volume),
            volume,
            epoch: Epoch(3),
            tls: false,
        };
        let mut config = ServerConfig::new(folder.path().to_owned());
        config.keys = KeyPolicy::Derived {
            secret,
            clients_may_create: true,
        };
        let server = ReplicaServer::bind(config).expect("a server");
        let address = server.local_addr().to_string();
        let open = |number| {
            let expected = Expected::NoneOf(Vec::new());
            let incarnation = Incarnation(number);
            connect(&address, &identity, incarnation, &expected, Some(1 << 20))
        };
        let _newest = open(17).expect("a connection");
        let refused = open(2).map(drop).map_err(ConnectError::into_refusal);
        let Err(LinkRefusal::Superseded { newest, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(newest, Incarnation(17));
        open(18).expect("the next one");
    }
}
