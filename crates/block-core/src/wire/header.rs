//! The fixed part of every frame: 56 bytes, little-endian, guarded by its own checksum.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::frame::DecodeError;
use super::{PAYLOAD_BYTES_MAX, VERSION_MAX, VERSION_MIN};
use crate::epoch::Epoch;

pub const MAGIC: [u8; 4] = *b"LRT\xB1";
pub const HEADER_BYTES: usize = 56;
/// The header's checksum covers all bytes before it.
const HEADER_CRC_AT: usize = 52;

/// A client's name for a request; a reply repeats it. Ids may be reused once answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// What a frame asks for. The reply to kind `k` has bit 7 set as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    Hello = 0x01,
    Prove = 0x02,
    CreateVolume = 0x10,
    OpenVolume = 0x11,
    Read = 0x20,
    Write = 0x21,
    WriteZeroes = 0x22,
    Discard = 0x23,
    Flush = 0x24,
    SnapshotCreate = 0x30,
    SnapshotDelete = 0x31,
    SnapshotRevert = 0x32,
    SnapshotPurge = 0x33,
    SnapshotDigest = 0x34,
    SnapshotPrepare = 0x35,
    VolumeDigest = 0x36,
    Expand = 0x40,
    ListLayers = 0x50,
    LayerExtents = 0x51,
    ReadLayer = 0x52,
    LayerHashes = 0x53,
    RebuildBegin = 0x60,
    RebuildWrite = 0x61,
    RebuildMark = 0x62,
    RebuildVerify = 0x63,
    RebuildCommit = 0x64,
    Status = 0x70,
    SetMeta = 0x71,
    Goodbye = 0x7f,
}

impl Kind {
    pub const ALL: [Self; 29] = [
        Self::Hello,
        Self::Prove,
        Self::CreateVolume,
        Self::OpenVolume,
        Self::Read,
        Self::Write,
        Self::WriteZeroes,
        Self::Discard,
        Self::Flush,
        Self::SnapshotCreate,
        Self::SnapshotDelete,
        Self::SnapshotRevert,
        Self::SnapshotPurge,
        Self::SnapshotDigest,
        Self::SnapshotPrepare,
        Self::VolumeDigest,
        Self::Expand,
        Self::ListLayers,
        Self::LayerExtents,
        Self::ReadLayer,
        Self::LayerHashes,
        Self::RebuildBegin,
        Self::RebuildWrite,
        Self::RebuildMark,
        Self::RebuildVerify,
        Self::RebuildCommit,
        Self::Status,
        Self::SetMeta,
        Self::Goodbye,
    ];

    /// The kind with this number, if there is one. A `match` and not a search of [`Kind::ALL`]: this runs per frame.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x01 => Self::Hello,
            0x02 => Self::Prove,
            0x10 => Self::CreateVolume,
            0x11 => Self::OpenVolume,
            0x20 => Self::Read,
            0x21 => Self::Write,
            0x22 => Self::WriteZeroes,
            0x23 => Self::Discard,
            0x24 => Self::Flush,
            0x30 => Self::SnapshotCreate,
            0x31 => Self::SnapshotDelete,
            0x32 => Self::SnapshotRevert,
            0x33 => Self::SnapshotPurge,
            0x34 => Self::SnapshotDigest,
            0x35 => Self::SnapshotPrepare,
            0x36 => Self::VolumeDigest,
            0x40 => Self::Expand,
            0x50 => Self::ListLayers,
            0x51 => Self::LayerExtents,
            0x52 => Self::ReadLayer,
            0x53 => Self::LayerHashes,
            0x60 => Self::RebuildBegin,
            0x61 => Self::RebuildWrite,
            0x62 => Self::RebuildMark,
            0x63 => Self::RebuildVerify,
            0x64 => Self::RebuildCommit,
            0x70 => Self::Status,
            0x71 => Self::SetMeta,
            0x7f => Self::Goodbye,
            _ => return None,
        })
    }
}

/// Modifiers of a request. Unknown bits are refused, so that they can get a meaning later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u16);

impl Flags {
    pub const NONE: Self = Self(0);
    /// On a write: durable before it is answered.
    pub const FORCE_UNIT_ACCESS: Self = Self(1 << 0);
    /// On a write: blocks that are all zero become marks and take no space.
    pub const DETECT_ZEROES: Self = Self(1 << 1);
    const KNOWN: u16 = 0b11;

    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A frame's header without what is computed (magic, checksums, payload length).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub version: u8,
    pub kind: Kind,
    pub is_reply: bool,
    pub flags: Flags,
    pub request_id: RequestId,
    /// The epoch of the engine that sent the request. A reply carries the epoch that the replica has accepted.
    pub epoch: Epoch,
    pub offset_bytes: u64,
    /// The bytes of volume concerned, whether or not they are in the payload.
    pub length_bytes: u64,
    /// 0 in requests and good replies, else a [`StatusCode`](super::StatusCode).
    pub status: u16,
}

impl Header {
    /// A request's header with nothing but its kind, id and epoch.
    #[must_use]
    pub fn request(kind: Kind, request_id: RequestId, epoch: Epoch) -> Self {
        Self {
            version: VERSION_MAX,
            kind,
            is_reply: false,
            flags: Flags::NONE,
            request_id,
            epoch,
            offset_bytes: 0,
            length_bytes: 0,
            status: 0,
        }
    }

    /// The header of the good reply to this request.
    #[must_use]
    pub fn reply(&self, accepted: Epoch) -> Self {
        Self {
            is_reply: true,
            flags: Flags::NONE,
            epoch: accepted,
            status: 0,
            ..*self
        }
    }

    /// The bytes that go before `payload` on the wire.
    ///
    /// # Panics
    /// If the payload is larger than [`PAYLOAD_BYTES_MAX`]: callers split.
    #[must_use]
    pub fn encode(&self, payload: &[u8]) -> [u8; HEADER_BYTES] {
        self.encode_for(PayloadClaim {
            bytes: payload.len(),
            crc32c: crc32c::crc32c(payload),
        })
    }

    /// The same for who knows the payload's checksum.
    pub(super) fn encode_for(&self, payload: PayloadClaim) -> [u8; HEADER_BYTES] {
        assert!(
            payload.bytes <= PAYLOAD_BYTES_MAX as usize,
            "payload of {} bytes must be split",
            payload.bytes
        );
        let raw = RawHeader {
            magic: MAGIC,
            version: self.version,
            kind: self.kind as u8 | if self.is_reply { REPLY_BIT } else { 0 },
            flags: self.flags.0.into(),
            request_id: self.request_id.0.into(),
            epoch: self.epoch.0.into(),
            offset_bytes: self.offset_bytes.into(),
            length_bytes: self.length_bytes.into(),
            payload_bytes: u32::try_from(payload.bytes).unwrap_or(u32::MAX).into(),
            payload_crc32c: payload.crc32c.into(),
            status: self.status.into(),
            reserved: 0.into(),
            header_crc32c: 0.into(),
        };
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        let checksum = crc32c::crc32c(&bytes[..HEADER_CRC_AT]);
        bytes[HEADER_CRC_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a header and what its payload must be. The payload's length is within bounds when this returns.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<(Self, PayloadClaim), DecodeError> {
        let Ok(raw) = RawHeader::ref_from_bytes(bytes) else {
            unreachable!("an unaligned struct of exactly this size can always be viewed");
        };
        if raw.magic != MAGIC {
            return Err(DecodeError::BadMagic { found: raw.magic });
        }
        let computed = crc32c::crc32c(&bytes[..HEADER_CRC_AT]);
        if computed != raw.header_crc32c.get() {
            return Err(DecodeError::HeaderChecksum {
                computed,
                claimed: raw.header_crc32c.get(),
            });
        }
        if !(VERSION_MIN..=VERSION_MAX).contains(&raw.version) {
            return Err(DecodeError::Version { found: raw.version });
        }
        let kind = Kind::from_code(raw.kind & !REPLY_BIT)
            .ok_or(DecodeError::UnknownKind { found: raw.kind })?;
        if raw.flags.get() & !Flags::KNOWN != 0 || raw.reserved.get() != 0 {
            return Err(DecodeError::UnknownFlags {
                found: raw.flags.get(),
            });
        }
        if raw.payload_bytes.get() > PAYLOAD_BYTES_MAX {
            return Err(DecodeError::Oversized {
                payload_bytes: raw.payload_bytes.get(),
            });
        }
        let header = Self {
            version: raw.version,
            kind,
            is_reply: raw.kind & REPLY_BIT != 0,
            flags: Flags(raw.flags.get()),
            request_id: RequestId(raw.request_id.get()),
            epoch: Epoch(raw.epoch.get()),
            offset_bytes: raw.offset_bytes.get(),
            length_bytes: raw.length_bytes.get(),
            status: raw.status.get(),
        };
        let claim = PayloadClaim {
            bytes: raw.payload_bytes.get() as usize,
            crc32c: raw.payload_crc32c.get(),
        };
        Ok((header, claim))
    }
}

/// What a header says about the payload behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PayloadClaim {
    pub bytes: usize,
    pub crc32c: u32,
}

const REPLY_BIT: u8 = 0x80;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 4],
    version: u8,
    kind: u8,
    flags: U16,
    request_id: U64,
    epoch: U64,
    offset_bytes: U64,
    length_bytes: U64,
    payload_bytes: U32,
    payload_crc32c: U32,
    status: U16,
    reserved: U16,
    header_crc32c: U32,
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);
