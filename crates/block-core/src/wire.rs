//! The protocol between an engine and a replica.
//!
//! A connection carries frames in both directions: a fixed [`header`] and a payload of at most
//! [`PAYLOAD_BYTES_MAX`]. [`frame`] turns bytes into frames and back without doing I/O; [`request`] and [`reply`] are
//! the messages; [`auth`] is the handshake that comes before all others. The byte-level description for people is
//! `docs/replica-protocol.md`.
//!
//! One connection serves one volume. Requests may be pipelined; replies carry the request's id and come in any order.

pub mod auth;
pub mod body;
pub mod frame;
pub mod header;
pub mod layer;
pub mod outgoing;
pub mod reply;
pub mod request;
pub mod status;

pub use auth::{AuthError, Nonce, Proof, VolumeKey};
pub use frame::{DecodeError, Frame, FrameDecoder, Parsed, parse};
pub use header::{Flags, HEADER_BYTES, Header, Kind, RequestId};
pub use layer::{
    ChunkHash, Extent, ExtentKind, ExtentPage, HostBoot, LayerInfo, LayerRef, RebuildPlanReply,
    ReplicaMode, ReplicaStatus, SyncMeta,
};
pub use outgoing::{DataChecksum, Outgoing};
pub use reply::{Challenge, Reply, Welcome};
pub use request::{Hello, MessageError, Request};
pub use status::{Failure, GoodbyeReason, StatusCode};

/// The newest protocol version that this code speaks, and the oldest.
pub const VERSION_MAX: u8 = 1;
pub const VERSION_MIN: u8 = 1;

/// The largest payload of a frame. Engines split larger I/O.
pub const PAYLOAD_BYTES_MAX: u32 = 1 << 20;

/// The newest version that both sides speak, if any.
#[must_use]
pub fn negotiate_version(ours: (u8, u8), theirs: (u8, u8)) -> Option<u8> {
    let newest = ours.1.min(theirs.1);
    let oldest = ours.0.max(theirs.0);
    (newest >= oldest).then_some(newest)
}

#[cfg(test)]
mod tests;
