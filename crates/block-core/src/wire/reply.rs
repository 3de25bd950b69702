//! What a replica answers.

use bytes::Bytes;

use super::auth::{Nonce, Proof};
use super::body::{BodyError, BodyReader, BodyWriter, cut_text};
use super::frame::Frame;
use super::header::{Header, Kind};
use super::layer::{
    ChunkHash, ExtentPage, HASHES_MAX, LAYERS_MAX, LayerInfo, RebuildPlanReply, ReplicaMode,
    ReplicaStatus, read_mode,
};
use super::request::MessageError;
use super::status::{Failure, StatusCode, TEXT_BYTES_MAX};
use crate::epoch::Epoch;

/// The answer to a `Hello`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    pub version: u8,
    pub nonce: Nonce,
    pub proof: Proof,
}

/// The answer to a right proof: what the client may do on this connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    pub payload_bytes_max: u32,
    /// Requests and replies that the replica holds for one connection; beyond this it stops reading.
    pub in_flight_bytes_max: u32,
    pub mode: ReplicaMode,
    pub size_bytes: u64,
    pub accepted_epoch: Epoch,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Challenge(Challenge),
    Welcome(Welcome),
    /// It was done; there is nothing to say.
    Done,
    /// What `Read` and `ReadLayer` asked for.
    Data(Bytes),
    Digest([u8; 32]),
    Layers(Vec<LayerInfo>),
    Extents(ExtentPage),
    Hashes(Vec<ChunkHash>),
    RebuildPlan(RebuildPlanReply),
    Status(ReplicaStatus),
    Failed(Failure),
}

impl Reply {
    /// The frame that answers `request`. Read data is shared, not copied.
    #[must_use]
    pub fn into_frame(self, request: &Header, accepted: Epoch) -> Frame {
        let mut header = request.reply(accepted);
        let mut body = BodyWriter::new();
        match self {
            Self::Data(data) => {
                return Frame {
                    header,
                    payload: data,
                };
            }
            Self::Done => {}
            Self::Challenge(challenge) => {
                body.u8(challenge.version)
                    .bytes(&challenge.nonce)
                    .bytes(&challenge.proof);
            }
            Self::Welcome(welcome) => {
                body.u32(welcome.payload_bytes_max)
                    .u32(welcome.in_flight_bytes_max)
                    .u8(welcome.mode as u8);
                body.u64(welcome.size_bytes).u64(welcome.accepted_epoch.0);
            }
            Self::Digest(digest) => {
                body.bytes(&digest);
            }
            Self::Layers(layers) => {
                body.list(&layers, |body, layer| layer.write(body));
            }
            Self::Extents(page) => page.write(&mut body),
            Self::Hashes(hashes) => {
                body.list(&hashes, |body, hash| {
                    body.option(hash.as_ref(), |body, hash| {
                        body.bytes(hash);
                    });
                });
            }
            Self::RebuildPlan(plan) => {
                body.list(&plan.existing, |body, name| {
                    body.text(name.as_str());
                });
            }
            Self::Status(status) => status.write(&mut body),
            Self::Failed(failure) => {
                header.status = failure.code as u16;
                body.bytes(cut_text(&failure.text, TEXT_BYTES_MAX).as_bytes());
            }
        }
        Frame {
            header,
            payload: body.into_vec().into(),
        }
    }

    /// Reads the reply in a frame; its kind says what it answers.
    pub fn from_frame(header: &Header, payload: &Bytes) -> Result<Self, MessageError> {
        let kind = header.kind;
        if !header.is_reply {
            return Err(MessageError::UnexpectedRequest { kind });
        }
        if header.status != 0 {
            let code = StatusCode::from_code(header.status).ok_or(MessageError::UnknownStatus {
                kind,
                status: header.status,
            })?;
            return Ok(Self::Failed(Failure::new(
                code,
                String::from_utf8_lossy(payload),
            )));
        }
        if matches!(kind, Kind::Read | Kind::ReadLayer) {
            if payload.len() as u64 != header.length_bytes {
                let (payload_bytes, length_bytes) = (payload.len(), header.length_bytes);
                return Err(MessageError::LengthMismatch {
                    kind,
                    payload_bytes,
                    length_bytes,
                });
            }
            return Ok(Self::Data(payload.clone()));
        }
        let mut body = BodyReader::new(payload);
        let reply =
            Self::read(kind, &mut body).map_err(|source| MessageError::Body { kind, source })?;
        body.finish()
            .map_err(|source| MessageError::Body { kind, source })?;
        Ok(reply)
    }

    fn read(kind: Kind, body: &mut BodyReader<'_>) -> Result<Self, BodyError> {
        Ok(match kind {
            Kind::Hello => Self::Challenge(Challenge {
                version: body.u8("version")?,
                nonce: body.array("nonce")?,
                proof: body.array("proof")?,
            }),
            Kind::Prove => Self::Welcome(Welcome {
                payload_bytes_max: body.u32("payload limit")?,
                in_flight_bytes_max: body.u32("in-flight limit")?,
                mode: read_mode(body)?,
                size_bytes: body.u64("size")?,
                accepted_epoch: Epoch(body.u64("accepted epoch")?),
            }),
            Kind::SnapshotDigest | Kind::VolumeDigest => Self::Digest(body.array("digest")?),
            Kind::ListLayers => Self::Layers(body.list("layers", LAYERS_MAX, LayerInfo::read)?),
            Kind::LayerExtents => Self::Extents(ExtentPage::read(body)?),
            Kind::LayerHashes => Self::Hashes(body.list("hashes", HASHES_MAX, |body| {
                body.option("hash", |body| body.array("hash"))
            })?),
            Kind::RebuildBegin => Self::RebuildPlan(RebuildPlanReply {
                existing: body.list("existing", LAYERS_MAX, |body| body.snapshot_name("name"))?,
            }),
            Kind::Status => Self::Status(ReplicaStatus::read(body)?),
            Kind::CreateVolume
            | Kind::OpenVolume
            | Kind::Read
            | Kind::Write
            | Kind::WriteZeroes
            | Kind::Discard
            | Kind::Flush
            | Kind::SnapshotCreate
            | Kind::SnapshotDelete
            | Kind::SnapshotRevert
            | Kind::SnapshotPrepare
            | Kind::SnapshotPurge
            | Kind::Expand
            | Kind::ReadLayer
            | Kind::RebuildWrite
            | Kind::RebuildMark
            | Kind::RebuildVerify
            | Kind::RebuildCommit
            | Kind::SetMeta
            | Kind::Goodbye => Self::Done,
        })
    }
}
