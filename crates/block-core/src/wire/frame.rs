//! Bytes to frames and frames to bytes, without I/O.
//!
//! [`parse`] looks at a borrowed buffer and copies nothing; a replica writes a payload to its file straight from the
//! receive buffer. [`FrameDecoder`] owns its buffer and yields payloads as [`Bytes`] that share it; engines keep them
//! beyond the next read. Neither ever asks for more memory than one frame of the largest size.

use bytes::{Bytes, BytesMut};

use super::PAYLOAD_BYTES_MAX;
use super::header::{HEADER_BYTES, Header, PayloadClaim};

/// The most that a reader must be able to hold to get any frame.
pub const FRAME_BYTES_MAX: usize = HEADER_BYTES + PAYLOAD_BYTES_MAX as usize;

/// A decoded frame whose payload shares the receive buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub header: Header,
    pub payload: Bytes,
}

impl Frame {
    /// The header's bytes; send them and then [`Frame::payload`], in one vectored write.
    #[must_use]
    pub fn encode_header(&self) -> [u8; HEADER_BYTES] {
        self.header.encode(&self.payload)
    }

    /// The whole frame in one buffer, for handshakes and tests.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = self.encode_header().to_vec();
        bytes.extend_from_slice(&self.payload);
        bytes
    }
}

/// Why a stream of bytes is not a stream of frames. There is no way to find the next frame: close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("bytes {found:02x?} do not start a frame")]
    BadMagic { found: [u8; 4] },
    #[error("header checksum is {claimed:#010x} but its bytes give {computed:#010x}")]
    HeaderChecksum { computed: u32, claimed: u32 },
    #[error("protocol version {found} is not spoken here")]
    Version { found: u8 },
    #[error("frame kind {found:#04x} is unknown")]
    UnknownKind { found: u8 },
    #[error("frame flags {found:#06x} are unknown")]
    UnknownFlags { found: u16 },
    #[error("payload of {payload_bytes} bytes is above the limit of {PAYLOAD_BYTES_MAX}")]
    Oversized { payload_bytes: u32 },
    #[error("payload checksum is {claimed:#010x} but its bytes give {computed:#010x}")]
    PayloadChecksum { computed: u32, claimed: u32 },
}

/// What [`parse`] found at the start of a buffer.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<'buffer> {
    /// Not a whole frame yet: the buffer must grow to at least this many bytes.
    Incomplete { bytes_needed: usize },
    /// A frame, and how many bytes of the buffer it took.
    Frame {
        header: Header,
        payload: &'buffer [u8],
        bytes_used: usize,
    },
}

/// Looks for one frame at the start of `buffer`.
pub fn parse(buffer: &[u8]) -> Result<Parsed<'_>, DecodeError> {
    let Some((header_bytes, rest)) = buffer.split_first_chunk::<HEADER_BYTES>() else {
        return Ok(Parsed::Incomplete {
            bytes_needed: HEADER_BYTES,
        });
    };
    let (header, claim) = Header::decode(header_bytes)?;
    let Some(payload) = rest.get(..claim.bytes) else {
        return Ok(Parsed::Incomplete {
            bytes_needed: HEADER_BYTES + claim.bytes,
        });
    };
    check_payload(payload, claim)?;
    Ok(Parsed::Frame {
        header,
        payload,
        bytes_used: HEADER_BYTES + claim.bytes,
    })
}

fn check_payload(payload: &[u8], claim: PayloadClaim) -> Result<(), DecodeError> {
    let computed = crc32c::crc32c(payload);
    if computed == claim.crc32c {
        Ok(())
    } else {
        Err(DecodeError::PayloadChecksum {
            computed,
            claimed: claim.crc32c,
        })
    }
}

/// Collects received bytes and yields frames, whatever pieces the bytes arrive in.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: BytesMut,
    /// The header at the buffer's start, once it was read: not decoded again for each piece of a large payload.
    pending: Option<(Header, PayloadClaim)>,
}

impl FrameDecoder {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Where received bytes go, by `extend_from_slice` or a `read_buf`. Has room for at least the rest of the frame
    /// that was begun and never grows past one frame of the largest size plus `read_ahead_bytes`.
    pub fn space(&mut self, read_ahead_bytes: usize) -> &mut BytesMut {
        self.buffer
            .reserve(self.bytes_missing().max(read_ahead_bytes).max(1));
        &mut self.buffer
    }

    /// Adds received bytes by copying them.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether a frame was begun and not finished: the state in which a slow peer must be given a deadline.
    #[must_use]
    pub fn is_mid_frame(&self) -> bool {
        self.pending.is_some() || !self.buffer.is_empty()
    }

    /// The next whole frame. After an error the stream has no meaning any more and every later call repeats an error.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, DecodeError> {
        let (header, claim) = match self.pending {
            Some(pending) => pending,
            None => {
                let Some(header_bytes) = self.buffer.first_chunk::<HEADER_BYTES>() else {
                    return Ok(None);
                };
                *self.pending.insert(Header::decode(header_bytes)?)
            }
        };
        let frame_bytes = HEADER_BYTES + claim.bytes;
        if self.buffer.len() < frame_bytes {
            return Ok(None);
        }
        check_payload(&self.buffer[HEADER_BYTES..frame_bytes], claim)?;
        let mut frame = self.buffer.split_to(frame_bytes);
        let payload = frame.split_off(HEADER_BYTES).freeze();
        self.pending = None;
        Ok(Some(Frame { header, payload }))
    }

    fn bytes_missing(&self) -> usize {
        let frame_bytes = HEADER_BYTES + self.pending.map_or(0, |(_, claim)| claim.bytes);
        frame_bytes.saturating_sub(self.buffer.len())
    }
}
