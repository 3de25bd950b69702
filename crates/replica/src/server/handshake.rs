//! The first four messages: nothing else is looked at before they are right.

use std::io::{self, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use block_core::wire::auth::Transcript;
use block_core::wire::{
    Challenge, Frame, FrameDecoder, GoodbyeReason, Header, Nonce, PAYLOAD_BYTES_MAX, ReplicaMode,
    Reply, Request, VERSION_MAX, VERSION_MIN, VolumeKey, Welcome, negotiate_version,
};
use block_core::{Epoch, VolumeName};

use super::Shared;
use super::replies::Replies;
use crate::disk::real::RealDisk;
use crate::store::Replica;

/// A connection whose client has proved the volume's key.
pub(crate) struct Session {
    pub volume: VolumeName,
    pub key: VolumeKey,
    /// None if the volume is not here yet and the client may make it.
    pub replica: Option<Arc<Replica<RealDisk>>>,
    /// Bytes that came behind the handshake.
    pub received: Vec<u8>,
}

/// Why a connection is ended, and what the client is told.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub reason: GoodbyeReason,
    pub text: String,
}

impl Ending {
    pub fn new(reason: GoodbyeReason, text: &(impl std::fmt::Display + ?Sized)) -> Self {
        Self {
            reason,
            text: text.to_string(),
        }
    }

    pub fn not_taken(error: &io::Error) -> Self {
        let text = format!("replies were not taken: {error}");
        Self::new(GoodbyeReason::TooSlow, &text)
    }

    pub fn too_many() -> Self {
        Self::new(GoodbyeReason::TooManyConnections, "try again later")
    }

    pub fn too_slow() -> Self {
        Self::new(GoodbyeReason::TooSlow, "the handshake took too long")
    }
}

/// `Ok(None)` if the client went away by itself.
pub(crate) fn shake_hands(
    shared: &Shared,
    number: u64,
    stream: &TcpStream,
    binding: Option<&tls_line::Binding>,
    replies: &Replies,
) -> Result<Option<Session>, Ending> {
    let mut line = Line {
        stream,
        decoder: FrameDecoder::new(),
        until: Instant::now() + shared.config.handshake_deadline,
    };
    let Some((hello_header, hello)) = line.receive()? else {
        return Ok(None);
    };
    let Request::Hello(hello) = hello else {
        return Err(Ending::new(
            GoodbyeReason::OutOfOrder,
            "the first message must be Hello",
        ));
    };
    let ours = (VERSION_MIN, VERSION_MAX);
    let version = negotiate_version(ours, hello.versions).ok_or_else(|| {
        let (theirs, ours) = (hello.versions, ours);
        let text = format!(
            "versions {} to {} are offered, {} to {} are spoken here",
            theirs.0, theirs.1, ours.0, ours.1
        );
        Ending::new(GoodbyeReason::VersionMismatch, &text)
    })?;
    let key = shared.key_of(&hello.volume).ok_or_else(|| {
        Ending::new(
            GoodbyeReason::UnknownVolume,
            &format!("there is no replica of volume {} here", hello.volume),
        )
    })?;
    let nonce = random_nonce().map_err(|error| Ending::new(GoodbyeReason::ShuttingDown, &error))?;
    let transcript = Transcript {
        versions_offered: hello.versions,
        version_chosen: version,
        volume: &hello.volume,
        client_nonce: &hello.nonce,
        replica_nonce: &nonce,
        line_binding: binding,
    };
    let challenge = Challenge {
        version,
        nonce,
        proof: transcript.replica_proof(&key),
    };
    send(
        replies,
        &Reply::Challenge(challenge).into_frame(&hello_header, Epoch::NONE),
    )?;
    let Some((prove_header, prove)) = line.receive()? else {
        return Ok(None);
    };
    let Request::Prove(proof) = prove else {
        return Err(Ending::new(
            GoodbyeReason::OutOfOrder,
            "the second message must be Prove",
        ));
    };
    transcript
        .check_client_proof(&key, &proof)
        .map_err(|error| Ending::new(GoodbyeReason::AuthenticationFailed, &error))?;
    shared.admit(number)?;
    let replica = match shared.volumes.get(&hello.volume) {
        Ok(replica) => Some(replica),
        Err(super::VolumeError::NotFound { .. } | super::VolumeError::SetAside { .. }) => None,
        Err(error) => return Err(Ending::new(GoodbyeReason::UnknownVolume, &chain(&error))),
    };
    let welcome = Welcome {
        payload_bytes_max: PAYLOAD_BYTES_MAX,
        in_flight_bytes_max: shared.config.in_flight_bytes_max,
        mode: replica
            .as_ref()
            .map_or(ReplicaMode::Absent, |replica| replica.mode()),
        size_bytes: replica.as_ref().map_or(0, |replica| replica.size_bytes()),
        accepted_epoch: replica
            .as_ref()
            .map_or(Epoch::NONE, |replica| replica.accepted_epoch()),
    };
    let accepted = welcome.accepted_epoch;
    send(
        replies,
        &Reply::Welcome(welcome).into_frame(&prove_header, accepted),
    )?;
    let received = line.decoder.space(0).to_vec();
    Ok(Some(Session {
        volume: hello.volume,
        key,
        replica,
        received,
    }))
}

struct Line<'a> {
    stream: &'a TcpStream,
    decoder: FrameDecoder,
    until: Instant,
}

impl Line<'_> {
    fn receive(&mut self) -> Result<Option<(Header, Request)>, Ending> {
        loop {
            let frame = self
                .decoder
                .next_frame()
                .map_err(|error| Ending::new(GoodbyeReason::BadFrame, &error))?;
            if let Some(Frame { header, payload }) = frame {
                let request = Request::from_frame(&header, &payload);
                let request = request
                    .map_err(|error| Ending::new(GoodbyeReason::BadFrame, &chain(&error)))?;
                return Ok(Some((header, request)));
            }
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Ending::too_slow());
            }
            let _ = self.stream.set_read_timeout(Some(left));
            // Handshake messages are small: a peer that has not proved anything gets no large buffer.
            let mut bytes = [0; 1024];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(None),
                Ok(count) => self.decoder.push(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(Ending::too_slow());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Ok(None),
            }
            if self.decoder.space(0).len() > HANDSHAKE_BYTES_MAX {
                return Err(Ending::new(
                    GoodbyeReason::BadFrame,
                    "a handshake message is not that long",
                ));
            }
        }
    }
}

/// A `Hello` with the longest name, and what a client may already have sent behind its proof.
const HANDSHAKE_BYTES_MAX: usize = 64 * 1024;

/// A client that is gone needs no reason.
fn send(replies: &Replies, frame: &Frame) -> Result<(), Ending> {
    let sent = replies.send_frame(frame);
    sent.map_err(|error| Ending::new(GoodbyeReason::TooSlow, &error))
}

pub(crate) fn random_nonce() -> io::Result<Nonce> {
    let mut nonce = [0; 32];
    rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())?;
    Ok(nonce)
}

/// An error with its causes, for a peer that only gets text.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
