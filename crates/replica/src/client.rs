//! A blocking client, for tools, tests and copying between replicas.
//!
//! [`Client::call`] sends one request and waits for its reply. [`Client::send`] and [`Client::receive`] allow many under
//! way; replies then come in any order. Engines have a client of their own inside their event loop.

use std::collections::HashMap;
use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use block_core::epoch::Tenure;
use block_core::wire::auth::Transcript;
use block_core::wire::{
    AuthError, DecodeError, Failure, Flags, Frame, FrameDecoder, GoodbyeReason, Hello, Kind,
    MessageError, Reply, Request, RequestId, VERSION_MAX, VERSION_MIN, VolumeKey, Welcome,
};
use block_core::{Epoch, VolumeName};
use bytes::Bytes;

use crate::server::random_nonce;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("cannot connect to replica {address}")]
    Connect {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("the line to the replica broke")]
    Line(#[source] io::Error),
    #[error("the replica closed the line")]
    Closed,
    #[error("the replica ended the connection: {reason}: {text}")]
    Goodbye { reason: GoodbyeReason, text: String },
    #[error("the replica sent bytes that are no frame")]
    Decode(#[from] DecodeError),
    #[error("the replica sent a message that cannot be read")]
    Message(#[from] MessageError),
    #[error("the replica cannot be trusted")]
    Auth(#[from] AuthError),
    #[error("the replica sent a reply of the wrong kind to {kind:?}")]
    UnexpectedReply { kind: Kind },
    #[error("the replica refused")]
    Refused(#[source] Failure),
}

pub struct Client {
    stream: TcpStream,
    decoder: FrameDecoder,
    welcome: Welcome,
    epoch: Epoch,
    next_id: u64,
    /// Replies that came while another was waited for.
    early: HashMap<RequestId, Reply>,
    scratch: Vec<u8>,
}

impl Client {
    /// Connects and proves the key. `deadline` is for each wait on the line.
    pub fn connect(
        address: SocketAddr,
        volume: &VolumeName,
        key: &VolumeKey,
        deadline: Duration,
    ) -> Result<Self, ClientError> {
        let connect = || -> io::Result<TcpStream> {
            let stream = TcpStream::connect_timeout(&address, deadline)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(deadline))?;
            stream.set_write_timeout(Some(deadline))?;
            Ok(stream)
        };
        let stream = connect().map_err(|source| ClientError::Connect { address, source })?;
        let no_welcome = Welcome {
            payload_bytes_max: 0,
            in_flight_bytes_max: 0,
            mode: block_core::wire::ReplicaMode::Absent,
            size_bytes: 0,
            accepted_epoch: Epoch::NONE,
        };
        let mut client = Self {
            stream,
            decoder: FrameDecoder::new(),
            welcome: no_welcome,
            epoch: Epoch::NONE,
            next_id: 1,
            early: HashMap::new(),
            scratch: vec![0; 256 * 1024],
        };
        client.shake_hands(volume, key)?;
        Ok(client)
    }

    fn shake_hands(&mut self, volume: &VolumeName, key: &VolumeKey) -> Result<(), ClientError> {
        let nonce = random_nonce().map_err(ClientError::Line)?;
        let versions = (VERSION_MIN, VERSION_MAX);
        let hello = Request::Hello(Hello {
            versions,
            volume: volume.clone(),
            nonce,
        });
        let Reply::Challenge(challenge) = self.call(hello)? else {
            return Err(ClientError::UnexpectedReply { kind: Kind::Hello });
        };
        let transcript = Transcript {
            versions_offered: versions,
            version_chosen: challenge.version,
            volume,
            client_nonce: &nonce,
            replica_nonce: &challenge.nonce,
            line_binding: None,
        };
        transcript.check_replica_proof(key, &challenge.proof)?;
        let Reply::Welcome(welcome) = self.call(Request::Prove(transcript.client_proof(key)))?
        else {
            return Err(ClientError::UnexpectedReply { kind: Kind::Prove });
        };
        self.welcome = welcome;
        Ok(())
    }

    #[must_use]
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Takes the volume for an epoch; later requests carry it.
    pub fn open(&mut self, epoch: Epoch) -> Result<(), ClientError> {
        self.open_as(epoch.into())
    }

    /// Like [`Client::open`], and ends the hold of connections of smaller numbers.
    pub fn open_as(&mut self, tenure: Tenure) -> Result<(), ClientError> {
        let before = std::mem::replace(&mut self.epoch, tenure.epoch);
        let session = tenure.session;
        self.done(Request::OpenVolume { session })
            .inspect_err(|_| self.epoch = before)
    }

    pub fn read(&mut self, offset_bytes: u64, length_bytes: u64) -> Result<Bytes, ClientError> {
        match self.call(Request::Read {
            offset_bytes,
            length_bytes,
        })? {
            Reply::Data(data) => Ok(data),
            _ => Err(ClientError::UnexpectedReply { kind: Kind::Read }),
        }
    }

    pub fn write(&mut self, offset_bytes: u64, data: impl Into<Bytes>) -> Result<(), ClientError> {
        self.done(Request::Write {
            offset_bytes,
            data: data.into(),
            flags: Flags::NONE,
        })
    }

    pub fn flush(&mut self) -> Result<(), ClientError> {
        self.done(Request::Flush)
    }

    /// Sends a request whose reply says nothing but that it was done.
    pub fn done(&mut self, request: Request) -> Result<(), ClientError> {
        let kind = request.kind();
        match self.call(request)? {
            Reply::Done => Ok(()),
            _ => Err(ClientError::UnexpectedReply { kind }),
        }
    }

    /// Sends one request and waits for its reply. A refusal is an error here.
    pub fn call(&mut self, request: Request) -> Result<Reply, ClientError> {
        let id = self.send(request)?;
        loop {
            if let Some(reply) = self.early.remove(&id) {
                return match reply {
                    Reply::Failed(failure) => Err(ClientError::Refused(failure)),
                    reply => Ok(reply),
                };
            }
            let (of, reply) = self.receive_next()?;
            self.early.insert(of, reply);
        }
    }

    /// Sends a request and does not wait.
    pub fn send(&mut self, request: Request) -> Result<RequestId, ClientError> {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let frame = request.into_frame(id, self.epoch);
        self.send_bytes(&frame.encode_header(), &frame.payload)?;
        Ok(id)
    }

    /// Sends bytes as they are, in one system call where the line takes them.
    pub fn send_bytes(&mut self, header: &[u8], payload: &[u8]) -> Result<(), ClientError> {
        let (mut header, mut payload) = (header, payload);
        while !header.is_empty() || !payload.is_empty() {
            let parts = [IoSlice::new(header), IoSlice::new(payload)];
            let sent = match (&self.stream).write_vectored(&parts) {
                Ok(0) => return Err(ClientError::Closed),
                Ok(sent) => sent,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.line_error(error)),
            };
            let of_header = sent.min(header.len());
            header = &header[of_header..];
            payload = &payload[sent - of_header..];
        }
        Ok(())
    }

    /// The next reply, whichever request it is of.
    pub fn receive(&mut self) -> Result<(RequestId, Reply), ClientError> {
        let early = self.early.keys().next().copied();
        match early.and_then(|id| self.early.remove_entry(&id)) {
            Some(entry) => Ok(entry),
            None => self.receive_next(),
        }
    }

    /// Whether [`Client::receive`] would find at least the beginning of a reply without waiting.
    #[must_use]
    pub fn has_reply(&self) -> bool {
        !self.early.is_empty() || self.decoder.is_mid_frame()
    }

    fn receive_next(&mut self) -> Result<(RequestId, Reply), ClientError> {
        loop {
            if let Some(Frame { header, payload }) = self.decoder.next_frame()? {
                if header.kind == Kind::Goodbye {
                    return Err(match Request::from_frame(&header, &payload)? {
                        Request::Goodbye { reason, text } => ClientError::Goodbye { reason, text },
                        _ => ClientError::Closed,
                    });
                }
                return Ok((header.request_id, Reply::from_frame(&header, &payload)?));
            }
            match self.stream.read(&mut self.scratch) {
                Ok(0) => return Err(ClientError::Closed),
                Ok(count) => self.decoder.push(&self.scratch[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ClientError::Line(error)),
            }
        }
    }

    /// A line that cannot be written to may still hold the reason.
    fn line_error(&mut self, error: io::Error) -> ClientError {
        loop {
            match self.receive_next() {
                Ok(_) => {}
                Err(goodbye @ ClientError::Goodbye { .. }) => return goodbye,
                Err(_) => return ClientError::Line(error),
            }
        }
    }

    /// The socket, for tests that break the rules.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}
