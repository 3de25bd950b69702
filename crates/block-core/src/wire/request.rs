//! What a client can ask of a replica.

use bytes::Bytes;

use super::auth::{Nonce, Proof};
use super::body::{BodyError, BodyReader, BodyWriter, cut_text};
use super::frame::Frame;
use super::header::{Flags, Header, Kind, RequestId};
use super::layer::{ExtentKind, LAYERS_MAX, REBUILD_WRITE_BYTES_MAX, SyncMeta};
use super::outgoing::Outgoing;
use super::status::{GoodbyeReason, TEXT_BYTES_MAX};
use crate::epoch::Epoch;
use crate::names::{SnapshotName, VolumeName};

/// The first message of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The oldest and the newest protocol version that the client speaks.
    pub versions: (u8, u8),
    pub volume: VolumeName,
    pub nonce: Nonce,
}

/// One layer of the chain that a rebuild's target must get, parents before children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildLayer {
    pub name: SnapshotName,
    pub parent: Option<SnapshotName>,
    pub created_unix_ms: u64,
    pub user_created: bool,
    pub removed: bool,
    pub size_bytes: u64,
}

/// Which extents are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentScope {
    /// Only what this layer itself has.
    Own,
    /// What the volume had as of this layer, through all layers below; only data, no zero marks.
    View,
}

/// A typed request. In the frame, offsets and lengths are in the header and the rest in the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Hello(Hello),
    Prove(Proof),
    /// Makes an empty replica, where the server allows clients to.
    CreateVolume {
        size_bytes: u64,
    },
    /// Takes the volume for the epoch in the header, for this connection: the engine's `session`th to this replica.
    OpenVolume {
        session: u64,
    },
    Read {
        offset_bytes: u64,
        length_bytes: u64,
    },
    Write {
        offset_bytes: u64,
        data: Bytes,
        flags: Flags,
    },
    WriteZeroes {
        offset_bytes: u64,
        length_bytes: u64,
        flags: Flags,
    },
    /// Same as zeroes: replicas must stay equal, so discarded blocks read as zero.
    Discard {
        offset_bytes: u64,
        length_bytes: u64,
    },
    /// All writes answered before this was sent are durable when it is answered.
    Flush,
    SnapshotCreate {
        name: SnapshotName,
        created_unix_ms: u64,
        user_created: bool,
    },
    /// Marks a snapshot as removed; a purge merges it away.
    SnapshotDelete {
        name: SnapshotName,
    },
    /// The live volume becomes what the snapshot shows.
    SnapshotRevert {
        name: SnapshotName,
    },
    /// A snapshot comes soon: flushes, and makes ready what can be made before writers are held back for it.
    SnapshotPrepare,
    /// Merges away all removed snapshots; answered when done.
    SnapshotPurge,
    /// The digest of the volume as the snapshot shows it: kept one, or computed anew and compared with it.
    SnapshotDigest {
        name: SnapshotName,
        recompute: bool,
    },
    /// The digest of the live volume. It means something only while no engine writes.
    VolumeDigest,
    Expand {
        size_bytes: u64,
    },
    ListLayers,
    LayerExtents {
        name: SnapshotName,
        scope: ExtentScope,
        from_offset_bytes: u64,
    },
    /// Reads the volume as the snapshot shows it.
    ReadLayer {
        name: SnapshotName,
        offset_bytes: u64,
        length_bytes: u64,
    },
    /// Hashes of the layer's own blocks, one for each chunk of the range; both ends are multiples of the chunk size.
    LayerHashes {
        name: SnapshotName,
        offset_bytes: u64,
        length_bytes: u64,
    },
    /// Turns the replica into a rebuild's target: an empty head over the named layers.
    RebuildBegin {
        size_bytes: u64,
        layers: Vec<RebuildLayer>,
        head_parent: Option<SnapshotName>,
    },
    RebuildWrite {
        name: SnapshotName,
        offset_bytes: u64,
        data: Bytes,
    },
    /// Makes a range of a copied layer a zero mark, or (`None`) empties it.
    RebuildMark {
        name: SnapshotName,
        offset_bytes: u64,
        length_bytes: u64,
        kind: Option<ExtentKind>,
    },
    /// Computes the digest of a copied layer's view and compares it with the source's.
    RebuildVerify {
        name: SnapshotName,
        digest: [u8; 32],
    },
    /// After verification: the replica becomes ready.
    RebuildCommit,
    Status,
    SetMeta(SyncMeta),
    /// The last frame of a connection, from either side. Has no reply.
    Goodbye {
        reason: GoodbyeReason,
        text: String,
    },
}

/// Why a sound frame does not hold a sound message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("payload of {kind:?} cannot be read")]
    Body { kind: Kind, source: BodyError },
    #[error("{kind:?} has a payload of {payload_bytes} bytes for a length of {length_bytes}")]
    LengthMismatch {
        kind: Kind,
        payload_bytes: usize,
        length_bytes: u64,
    },
    #[error("a reply of kind {kind:?} came where a request was expected")]
    UnexpectedReply { kind: Kind },
    #[error("a request of kind {kind:?} came where a reply was expected")]
    UnexpectedRequest { kind: Kind },
    #[error("status {status} of a reply of kind {kind:?} is unknown")]
    UnknownStatus { kind: Kind, status: u16 },
}

impl Request {
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Hello(_) => Kind::Hello,
            Self::Prove(_) => Kind::Prove,
            Self::CreateVolume { .. } => Kind::CreateVolume,
            Self::OpenVolume { .. } => Kind::OpenVolume,
            Self::Read { .. } => Kind::Read,
            Self::Write { .. } => Kind::Write,
            Self::WriteZeroes { .. } => Kind::WriteZeroes,
            Self::Discard { .. } => Kind::Discard,
            Self::Flush => Kind::Flush,
            Self::SnapshotCreate { .. } => Kind::SnapshotCreate,
            Self::SnapshotDelete { .. } => Kind::SnapshotDelete,
            Self::SnapshotRevert { .. } => Kind::SnapshotRevert,
            Self::SnapshotPrepare => Kind::SnapshotPrepare,
            Self::SnapshotPurge => Kind::SnapshotPurge,
            Self::SnapshotDigest { .. } => Kind::SnapshotDigest,
            Self::VolumeDigest => Kind::VolumeDigest,
            Self::Expand { .. } => Kind::Expand,
            Self::ListLayers => Kind::ListLayers,
            Self::LayerExtents { .. } => Kind::LayerExtents,
            Self::ReadLayer { .. } => Kind::ReadLayer,
            Self::LayerHashes { .. } => Kind::LayerHashes,
            Self::RebuildBegin { .. } => Kind::RebuildBegin,
            Self::RebuildWrite { .. } => Kind::RebuildWrite,
            Self::RebuildMark { .. } => Kind::RebuildMark,
            Self::RebuildVerify { .. } => Kind::RebuildVerify,
            Self::RebuildCommit => Kind::RebuildCommit,
            Self::Status => Kind::Status,
            Self::SetMeta(_) => Kind::SetMeta,
            Self::Goodbye { .. } => Kind::Goodbye,
        }
    }

    /// The frame that carries this request. Payload of writes is shared, not copied.
    ///
    /// # Panics
    /// If a write has more data than a frame can carry: engines split.
    #[must_use]
    pub fn into_frame(self, request_id: RequestId, epoch: Epoch) -> Frame {
        self.into_outgoing(request_id, epoch).into_frame()
    }

    /// The same for who sends data from where it is, also that of a copied layer.
    ///
    /// # Panics
    /// If a write has more data than a frame can carry: engines split.
    #[must_use]
    pub fn into_outgoing(self, request_id: RequestId, epoch: Epoch) -> Outgoing {
        let mut data_sent = Bytes::new();
        let mut header = Header::request(self.kind(), request_id, epoch);
        let mut body = BodyWriter::new();
        match self {
            Self::Write {
                offset_bytes,
                data,
                flags,
            } => {
                set_range(&mut header, offset_bytes, data.len() as u64);
                header.flags = flags;
                data_sent = data;
            }
            Self::Flush
            | Self::SnapshotPrepare
            | Self::SnapshotPurge
            | Self::VolumeDigest
            | Self::ListLayers
            | Self::RebuildCommit
            | Self::Status => {}
            Self::OpenVolume { session } => header.offset_bytes = session,
            Self::Hello(hello) => {
                body.u8(hello.versions.0)
                    .u8(hello.versions.1)
                    .bytes(&hello.nonce)
                    .text(hello.volume.as_str());
            }
            Self::Prove(proof) => {
                body.bytes(&proof);
            }
            Self::CreateVolume { size_bytes } | Self::Expand { size_bytes } => {
                header.length_bytes = size_bytes;
            }
            Self::Read {
                offset_bytes,
                length_bytes,
            }
            | Self::Discard {
                offset_bytes,
                length_bytes,
            } => {
                set_range(&mut header, offset_bytes, length_bytes);
            }
            Self::WriteZeroes {
                offset_bytes,
                length_bytes,
                flags,
            } => {
                set_range(&mut header, offset_bytes, length_bytes);
                header.flags = flags;
            }
            Self::SnapshotCreate {
                name,
                created_unix_ms,
                user_created,
            } => {
                body.text(name.as_str())
                    .u64(created_unix_ms)
                    .bool(user_created);
            }
            Self::SnapshotDelete { name } | Self::SnapshotRevert { name } => {
                body.text(name.as_str());
            }
            Self::SnapshotDigest { name, recompute } => {
                body.text(name.as_str()).bool(recompute);
            }
            Self::LayerExtents {
                name,
                scope,
                from_offset_bytes,
            } => {
                header.offset_bytes = from_offset_bytes;
                body.text(name.as_str()).bool(scope == ExtentScope::View);
            }
            Self::ReadLayer {
                name,
                offset_bytes,
                length_bytes,
            }
            | Self::LayerHashes {
                name,
                offset_bytes,
                length_bytes,
            } => {
                set_range(&mut header, offset_bytes, length_bytes);
                body.text(name.as_str());
            }
            Self::RebuildBegin {
                size_bytes,
                layers,
                head_parent,
            } => {
                header.length_bytes = size_bytes;
                write_rebuild_plan(&mut body, &layers, head_parent.as_ref());
            }
            Self::RebuildWrite {
                name,
                offset_bytes,
                data,
            } => {
                assert!(
                    data.len() as u64 <= REBUILD_WRITE_BYTES_MAX,
                    "rebuild write of {} bytes",
                    data.len()
                );
                set_range(&mut header, offset_bytes, data.len() as u64);
                body.text(name.as_str());
                data_sent = data;
            }
            Self::RebuildMark {
                name,
                offset_bytes,
                length_bytes,
                kind,
            } => {
                set_range(&mut header, offset_bytes, length_bytes);
                body.text(name.as_str()).bool(kind.is_some());
            }
            Self::RebuildVerify { name, digest } => {
                body.text(name.as_str()).bytes(&digest);
            }
            Self::SetMeta(meta) => meta.write(&mut body),
            Self::Goodbye { reason, text } => {
                body.u16(reason as u16)
                    .text(cut_text(&text, TEXT_BYTES_MAX));
            }
        }
        Outgoing {
            header,
            fields: body.into_vec(),
            data: data_sent,
        }
    }

    /// Reads the request in a frame.
    pub fn from_frame(header: &Header, payload: &Bytes) -> Result<Self, MessageError> {
        let kind = header.kind;
        if header.is_reply {
            return Err(MessageError::UnexpectedReply { kind });
        }
        let (offset_bytes, length_bytes) = (header.offset_bytes, header.length_bytes);
        if kind == Kind::Write {
            if payload.len() as u64 != length_bytes {
                return Err(MessageError::LengthMismatch {
                    kind,
                    payload_bytes: payload.len(),
                    length_bytes,
                });
            }
            return Ok(Self::Write {
                offset_bytes,
                data: payload.clone(),
                flags: header.flags,
            });
        }
        // The data of a copied layer is shared with the frame, too.
        let (fields, data_found) = split_fields(header, payload)?;
        let mut request = Self::read_fields(header, fields)?;
        if let Self::RebuildWrite { data, .. } = &mut request {
            *data = payload.slice_ref(data_found);
        }
        Ok(request)
    }

    /// Reads a [`Request::RebuildWrite`] without copying its data: into which layer, and what.
    pub fn parse_rebuild_write<'payload>(
        header: &Header,
        payload: &'payload [u8],
    ) -> Result<(SnapshotName, &'payload [u8]), MessageError> {
        let (fields, data) = split_fields(header, payload)?;
        match Self::read_fields(header, fields)? {
            Self::RebuildWrite { name, .. } => Ok((name, data)),
            other => unreachable!("{:?} is not asked for here", other.kind()),
        }
    }

    fn read_fields(header: &Header, fields: &[u8]) -> Result<Self, MessageError> {
        let kind = header.kind;
        let unreadable = |source| MessageError::Body { kind, source };
        let mut body = BodyReader::new(fields);
        let request = Self::read(header, &mut body).map_err(unreadable)?;
        body.finish().map_err(unreadable)?;
        Ok(request)
    }

    fn read(header: &Header, body: &mut BodyReader<'_>) -> Result<Self, BodyError> {
        let (offset_bytes, length_bytes) = (header.offset_bytes, header.length_bytes);
        Ok(match header.kind {
            Kind::Hello => {
                let versions = (body.u8("version")?, body.u8("version")?);
                let nonce = body.array("nonce")?;
                Self::Hello(Hello {
                    versions,
                    nonce,
                    volume: body.volume_name("volume")?,
                })
            }
            Kind::Prove => Self::Prove(body.array("proof")?),
            Kind::CreateVolume => Self::CreateVolume {
                size_bytes: length_bytes,
            },
            Kind::OpenVolume => Self::OpenVolume {
                session: header.offset_bytes,
            },
            Kind::Read => Self::Read {
                offset_bytes,
                length_bytes,
            },
            Kind::Write => Self::Write {
                offset_bytes,
                data: Bytes::new(),
                flags: header.flags,
            },
            Kind::WriteZeroes => Self::WriteZeroes {
                offset_bytes,
                length_bytes,
                flags: header.flags,
            },
            Kind::Discard => Self::Discard {
                offset_bytes,
                length_bytes,
            },
            Kind::Flush => Self::Flush,
            Kind::SnapshotCreate => Self::SnapshotCreate {
                name: body.snapshot_name("name")?,
                created_unix_ms: body.u64("created")?,
                user_created: body.bool("user created")?,
            },
            Kind::SnapshotDelete => Self::SnapshotDelete {
                name: body.snapshot_name("name")?,
            },
            Kind::SnapshotRevert => Self::SnapshotRevert {
                name: body.snapshot_name("name")?,
            },
            Kind::SnapshotPrepare => Self::SnapshotPrepare,
            Kind::SnapshotPurge => Self::SnapshotPurge,
            Kind::SnapshotDigest => Self::SnapshotDigest {
                name: body.snapshot_name("name")?,
                recompute: body.bool("recompute")?,
            },
            Kind::VolumeDigest => Self::VolumeDigest,
            Kind::Expand => Self::Expand {
                size_bytes: length_bytes,
            },
            Kind::ListLayers => Self::ListLayers,
            Kind::LayerExtents => Self::LayerExtents {
                name: body.snapshot_name("name")?,
                scope: if body.bool("scope")? {
                    ExtentScope::View
                } else {
                    ExtentScope::Own
                },
                from_offset_bytes: offset_bytes,
            },
            Kind::ReadLayer => Self::ReadLayer {
                name: body.snapshot_name("name")?,
                offset_bytes,
                length_bytes,
            },
            Kind::LayerHashes => Self::LayerHashes {
                name: body.snapshot_name("name")?,
                offset_bytes,
                length_bytes,
            },
            Kind::RebuildBegin => read_rebuild_plan(length_bytes, body)?,
            // The data is behind the body; `from_frame` takes it from there.
            Kind::RebuildWrite => Self::RebuildWrite {
                name: body.snapshot_name("name")?,
                offset_bytes,
                data: Bytes::new(),
            },
            Kind::RebuildMark => Self::RebuildMark {
                name: body.snapshot_name("name")?,
                offset_bytes,
                length_bytes,
                kind: body.bool("kind")?.then_some(ExtentKind::Zero),
            },
            Kind::RebuildVerify => Self::RebuildVerify {
                name: body.snapshot_name("name")?,
                digest: body.array("digest")?,
            },
            Kind::RebuildCommit => Self::RebuildCommit,
            Kind::Status => Self::Status,
            Kind::SetMeta => Self::SetMeta(SyncMeta::read(body)?),
            Kind::Goodbye => {
                let code = body.u16("reason")?;
                let reason = GoodbyeReason::from_code(code).ok_or(BodyError::UnknownValue {
                    field: "reason",
                    value: code.into(),
                })?;
                Self::Goodbye {
                    reason,
                    text: body.text("text", TEXT_BYTES_MAX)?.to_owned(),
                }
            }
        })
    }
}

/// A payload's fields, and the data behind them if the request has any.
fn split_fields<'payload>(
    header: &Header,
    payload: &'payload [u8],
) -> Result<(&'payload [u8], &'payload [u8]), MessageError> {
    let data_bytes = match header.kind {
        Kind::RebuildWrite => header.length_bytes,
        _ => 0,
    };
    match (payload.len() as u64).checked_sub(data_bytes) {
        Some(fields_bytes) if data_bytes <= REBUILD_WRITE_BYTES_MAX => {
            Ok(payload.split_at(fields_bytes as usize))
        }
        _ => Err(MessageError::LengthMismatch {
            kind: header.kind,
            payload_bytes: payload.len(),
            length_bytes: header.length_bytes,
        }),
    }
}

fn set_range(header: &mut Header, offset_bytes: u64, length_bytes: u64) {
    header.offset_bytes = offset_bytes;
    header.length_bytes = length_bytes;
}

fn write_rebuild_plan(
    body: &mut BodyWriter,
    layers: &[RebuildLayer],
    head_parent: Option<&SnapshotName>,
) {
    body.list(layers, |body, layer| {
        body.text(layer.name.as_str());
        body.option(layer.parent.as_ref(), |body, parent| {
            body.text(parent.as_str());
        });
        body.u64(layer.created_unix_ms)
            .bool(layer.user_created)
            .bool(layer.removed)
            .u64(layer.size_bytes);
    });
    body.option(head_parent, |body, parent| {
        body.text(parent.as_str());
    });
}

fn read_rebuild_plan(size_bytes: u64, body: &mut BodyReader<'_>) -> Result<Request, BodyError> {
    let layers = body.list("layers", LAYERS_MAX, |body| {
        Ok(RebuildLayer {
            name: body.snapshot_name("name")?,
            parent: body.option("parent", |body| body.snapshot_name("parent"))?,
            created_unix_ms: body.u64("created")?,
            user_created: body.bool("user created")?,
            removed: body.bool("removed")?,
            size_bytes: body.u64("size")?,
        })
    })?;
    let head_parent = body.option("head parent", |body| body.snapshot_name("head parent"))?;
    Ok(Request::RebuildBegin {
        size_bytes,
        layers,
        head_parent,
    })
}
