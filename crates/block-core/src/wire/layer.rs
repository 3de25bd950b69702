//! What messages say about layers and about a replica as a whole.

use super::body::{BodyError, BodyReader, BodyWriter};
use super::status::TEXT_BYTES_MAX;
use crate::epoch::Epoch;
use crate::names::{ReplicaName, SnapshotName, VolumeName};

/// The most layers that a replica can have, the head included: the index names a layer in one byte.
pub const LAYERS_MAX: usize = 250;
/// The most replicas in an in-sync set.
pub const REPLICAS_MAX: usize = 32;
/// The most extents in one [`ExtentPage`].
pub const EXTENTS_MAX: usize = 16 * 1024;
/// The unit of [`ChunkHash`]es and so of copying what differs.
pub const HASH_CHUNK_BYTES: u64 = 256 * 1024;
/// The most hashes in one reply: 4 GiB of volume.
pub const HASHES_MAX: usize = 16 * 1024;
/// The most data in one `RebuildWrite`, whose payload also names the layer.
pub const REBUILD_WRITE_BYTES_MAX: u64 = 512 * 1024;

/// The hash of a layer's own blocks in one chunk, or none where it has no block of its own.
pub type ChunkHash = Option<[u8; 32]>;

/// One layer of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerRef {
    Head,
    Snapshot(SnapshotName),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerInfo {
    pub layer: LayerRef,
    pub parent: Option<SnapshotName>,
    pub created_unix_ms: u64,
    /// Asked for by a person or a schedule, as against made by a rebuild.
    pub user_created: bool,
    /// Deleted by name and waiting to be merged away.
    pub removed: bool,
    /// The volume's size when the layer was last written.
    pub size_bytes: u64,
    /// What the layer takes on disk.
    pub allocated_bytes: u64,
    /// The last digest computed of the volume as this snapshot shows it.
    pub digest: Option<[u8; 32]>,
}

impl LayerInfo {
    pub(super) fn write(&self, body: &mut BodyWriter) {
        match &self.layer {
            LayerRef::Head => body.bool(false),
            LayerRef::Snapshot(name) => body.bool(true).text(name.as_str()),
        };
        body.option(self.parent.as_ref(), |body, parent| {
            body.text(parent.as_str());
        });
        body.u64(self.created_unix_ms)
            .bool(self.user_created)
            .bool(self.removed);
        body.u64(self.size_bytes).u64(self.allocated_bytes);
        body.option(self.digest.as_ref(), |body, digest| {
            body.bytes(digest);
        });
    }

    pub(super) fn read(body: &mut BodyReader<'_>) -> Result<Self, BodyError> {
        let name = body.option("layer name", |body| body.snapshot_name("layer name"))?;
        Ok(Self {
            layer: name.map_or(LayerRef::Head, LayerRef::Snapshot),
            parent: body.option("parent", |body| body.snapshot_name("parent"))?,
            created_unix_ms: body.u64("created")?,
            user_created: body.bool("user created")?,
            removed: body.bool("removed")?,
            size_bytes: body.u64("size")?,
            allocated_bytes: body.u64("allocated")?,
            digest: body.option("digest", |body| body.array("digest"))?,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// The layer has data here.
    Data,
    /// The layer says zero here, whatever the layers below have.
    Zero,
}

/// A run of whole blocks of one kind. What no extent covers, the layer knows nothing of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub offset_bytes: u64,
    pub length_bytes: u64,
    pub kind: ExtentKind,
}

/// Some extents in order, and where to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentPage {
    pub extents: Vec<Extent>,
    pub next_offset_bytes: Option<u64>,
}

impl ExtentPage {
    pub(super) fn write(&self, body: &mut BodyWriter) {
        body.list(&self.extents, |body, extent| {
            body.u64(extent.offset_bytes).u64(extent.length_bytes);
            body.bool(extent.kind == ExtentKind::Zero);
        });
        body.option(self.next_offset_bytes.as_ref(), |body, next| {
            body.u64(*next);
        });
    }

    pub(super) fn read(body: &mut BodyReader<'_>) -> Result<Self, BodyError> {
        let extents = body.list("extents", EXTENTS_MAX, |body| {
            Ok(Extent {
                offset_bytes: body.u64("extent offset")?,
                length_bytes: body.u64("extent length")?,
                kind: if body.bool("extent kind")? {
                    ExtentKind::Zero
                } else {
                    ExtentKind::Data
                },
            })
        })?;
        Ok(Self {
            extents,
            next_offset_bytes: body.option("next offset", |body| body.u64("next offset"))?,
        })
    }
}

/// Which layers of a rebuild's plan the target has in some state already: compare hashes before copying those.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildPlanReply {
    pub existing: Vec<SnapshotName>,
}

/// What a replica may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReplicaMode {
    /// The server knows the volume's name and key but has no replica of it.
    Absent = 0,
    /// Complete: reads and writes.
    Ready = 1,
    /// Takes live writes and copied layers; answers no reads of the live volume.
    Rebuilding = 2,
}

/// The engine's record, on each replica, of who had every acknowledged write.
///
/// An engine writes this to all members of a new in-sync set before it acknowledges a write under that set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncMeta {
    /// The name under which the set knows this replica.
    pub replica: ReplicaName,
    pub generation: u64,
    pub in_sync: Vec<ReplicaName>,
    /// Set by an engine that closed in order, cleared by the next open: all members are equal to the last byte.
    pub clean: bool,
}

impl SyncMeta {
    pub fn write(&self, body: &mut BodyWriter) {
        body.text(self.replica.as_str()).u64(self.generation);
        body.list(&self.in_sync, |body, member| {
            body.text(member.as_str());
        });
        body.bool(self.clean);
    }

    pub fn read(body: &mut BodyReader<'_>) -> Result<Self, BodyError> {
        Ok(Self {
            replica: body.replica_name("replica")?,
            generation: body.u64("generation")?,
            in_sync: body.list("in-sync set", REPLICAS_MAX, |body| {
                body.replica_name("member")
            })?,
            clean: body.bool("clean")?,
        })
    }
}

/// Names one start of a machine.
pub type HostBoot = [u8; 16];

/// A replica as it describes itself, readable without an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    pub volume: VolumeName,
    pub mode: ReplicaMode,
    pub size_bytes: u64,
    pub accepted_epoch: Epoch,
    /// The epoch under which [`ReplicaStatus::sync`] was written.
    pub sync_epoch: Epoch,
    pub sync: Option<SyncMeta>,
    pub allocated_bytes: u64,
    pub layers: u32,
    /// Bytes that a running purge has looked at, and all that it will; both 0 when none runs.
    pub purge_done_bytes: u64,
    pub purge_total_bytes: u64,
    /// How long ago the replica last took a request of an engine that is older than the accepted one: since it was opened,
    /// if it knows of none.
    pub older_silent_us: u64,
    /// Which start of its machine this is: another one has lost what was written and not flushed. Zeroes if it is not known.
    pub host_boot: HostBoot,
    /// Its machine was restarted since an engine opened it, which did not end in order: what was acknowledged and not flushed may
    /// be missing. True until the next in-sync record is kept, or a rebuild begins.
    pub restarted_since_opened: bool,
    /// Why the replica stopped taking writes by itself, such as a failed fdatasync. Empty when all is well.
    pub fault: String,
}

impl ReplicaStatus {
    pub(super) fn write(&self, body: &mut BodyWriter) {
        body.text(self.volume.as_str())
            .u8(self.mode as u8)
            .u64(self.size_bytes);
        body.u64(self.accepted_epoch.0).u64(self.sync_epoch.0);
        body.option(self.sync.as_ref(), |body, sync| sync.write(body));
        body.u64(self.allocated_bytes).u32(self.layers);
        body.u64(self.purge_done_bytes).u64(self.purge_total_bytes);
        body.u64(self.older_silent_us).bytes(&self.host_boot);
        body.bool(self.restarted_since_opened);
        body.text(super::body::cut_text(&self.fault, TEXT_BYTES_MAX));
    }

    pub(super) fn read(body: &mut BodyReader<'_>) -> Result<Self, BodyError> {
        Ok(Self {
            volume: body.volume_name("volume")?,
            mode: read_mode(body)?,
            size_bytes: body.u64("size")?,
            accepted_epoch: Epoch(body.u64("accepted epoch")?),
            sync_epoch: Epoch(body.u64("sync epoch")?),
            sync: body.option("sync", SyncMeta::read)?,
            allocated_bytes: body.u64("allocated")?,
            layers: body.u32("layers")?,
            purge_done_bytes: body.u64("purge done")?,
            purge_total_bytes: body.u64("purge total")?,
            older_silent_us: body.u64("silence of older engines")?,
            host_boot: body.array("start of the machine")?,
            restarted_since_opened: body.bool("restarted")?,
            fault: body.text("fault", TEXT_BYTES_MAX)?.to_owned(),
        })
    }
}

pub(super) fn read_mode(body: &mut BodyReader<'_>) -> Result<ReplicaMode, BodyError> {
    match body.u8("mode")? {
        0 => Ok(ReplicaMode::Absent),
        1 => Ok(ReplicaMode::Ready),
        2 => Ok(ReplicaMode::Rebuilding),
        value => Err(BodyError::UnknownValue {
            field: "mode",
            value: value.into(),
        }),
    }
}
