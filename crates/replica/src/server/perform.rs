//! Everything that is not the hot path: one typed request in, one typed reply out.

use std::sync::Arc;

use block_core::epoch::Tenure;
use block_core::wire::{
    Failure, Header, Kind, PAYLOAD_BYTES_MAX, RebuildPlanReply, Reply, Request, StatusCode,
};
use bytes::Bytes;

use crate::disk::real::RealDisk;
use crate::store::{Replica, StoreError, WriteOptions};

/// How long a kind of request may take, and so who does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Waits for nothing but memory: handing it over would cost more than doing it.
    None,
    /// May wait for a device.
    Short,
    /// Waits until the device has all that was written. That may be minutes, and one waits for the other: nothing that is short
    /// may queue behind these.
    Sync,
    /// Takes time by the amount of data.
    Long,
}

pub(crate) fn effort(header: &Header) -> Effort {
    match header.kind {
        Kind::Flush | Kind::SnapshotPrepare | Kind::Expand => Effort::Sync,
        Kind::WriteZeroes if write_options(header.flags).force_unit_access => Effort::Sync,
        Kind::SnapshotPurge
        | Kind::SnapshotDigest
        | Kind::VolumeDigest
        | Kind::SnapshotRevert
        | Kind::LayerHashes
        | Kind::RebuildVerify
        | Kind::RebuildCommit
        | Kind::RebuildBegin => Effort::Long,
        // Like a write, it goes to the page cache.
        Kind::RebuildWrite => Effort::None,
        // An engine asks for this to learn whether the replica lives: it must not wait for those who wait for a device.
        Kind::Status => Effort::None,
        Kind::Hello
        | Kind::Prove
        | Kind::CreateVolume
        | Kind::OpenVolume
        | Kind::Read
        | Kind::Write
        | Kind::WriteZeroes
        | Kind::Discard
        | Kind::SnapshotCreate
        | Kind::SnapshotDelete
        | Kind::ListLayers
        | Kind::LayerExtents
        | Kind::ReadLayer
        | Kind::RebuildMark
        | Kind::SetMeta
        | Kind::Goodbye => Effort::Short,
    }
}

/// Bytes that the reply will hold while it waits to be sent.
pub(crate) fn reply_bytes(header: &Header) -> usize {
    match header.kind {
        Kind::Read | Kind::ReadLayer => header.length_bytes.min(PAYLOAD_BYTES_MAX.into()) as usize,
        Kind::LayerExtents | Kind::LayerHashes => PAYLOAD_BYTES_MAX as usize,
        _ => 1024,
    }
}

/// Does what a request asks for. `tenure` is of its connection, with the epoch in its frame.
pub(crate) fn perform(
    replica: &Arc<Replica<RealDisk>>,
    tenure: Tenure,
    request: Request,
) -> Result<Reply, StoreError> {
    let done = |()| Reply::Done;
    match request {
        Request::Read {
            offset_bytes,
            length_bytes,
        } => {
            let mut buffer = buffer_for(length_bytes)?;
            replica.read(tenure, offset_bytes, &mut buffer)?;
            Ok(Reply::Data(buffer.into()))
        }
        Request::Write {
            offset_bytes,
            data,
            flags,
        } => replica
            .write(tenure, offset_bytes, &data, write_options(flags))
            .map(done),
        Request::WriteZeroes {
            offset_bytes,
            length_bytes,
            flags,
        } => {
            replica.write_zeroes(tenure, offset_bytes, length_bytes)?;
            if write_options(flags).force_unit_access {
                replica.flush(tenure)?;
            }
            Ok(Reply::Done)
        }
        Request::Discard {
            offset_bytes,
            length_bytes,
        } => replica
            .write_zeroes(tenure, offset_bytes, length_bytes)
            .map(done),
        Request::Flush => replica.flush(tenure).map(done),
        Request::SnapshotCreate {
            name,
            created_unix_ms,
            user_created,
        } => replica
            .freeze(tenure, &name, created_unix_ms, user_created)
            .map(done),
        Request::SnapshotPrepare => replica.prepare_snapshot(tenure).map(done),
        Request::SnapshotDelete { name } => replica.delete_snapshot(tenure, &name).map(done),
        Request::SnapshotRevert { name } => replica.revert(tenure, &name).map(done),
        Request::SnapshotPurge => replica.purge(tenure).map(done),
        Request::SnapshotDigest { name, recompute } => {
            replica.snapshot_digest(&name, recompute).map(Reply::Digest)
        }
        Request::VolumeDigest => replica.volume_digest().map(Reply::Digest),
        Request::Expand { size_bytes } => replica.expand(tenure, size_bytes).map(done),
        Request::ListLayers => replica.list_layers().map(Reply::Layers),
        Request::LayerExtents {
            name,
            scope,
            from_offset_bytes,
        } => replica
            .layer_extents(&name, scope, from_offset_bytes)
            .map(Reply::Extents),
        Request::ReadLayer {
            name,
            offset_bytes,
            length_bytes,
        } => {
            let mut buffer = buffer_for(length_bytes)?;
            replica.read_layer(&name, offset_bytes, &mut buffer)?;
            Ok(Reply::Data(buffer.into()))
        }
        Request::LayerHashes {
            name,
            offset_bytes,
            length_bytes,
        } => replica
            .layer_hashes(&name, offset_bytes, length_bytes)
            .map(Reply::Hashes),
        Request::RebuildBegin {
            size_bytes,
            layers,
            head_parent,
        } => {
            let existing =
                replica.rebuild_begin(tenure, size_bytes, &layers, head_parent.as_ref())?;
            Ok(Reply::RebuildPlan(RebuildPlanReply { existing }))
        }
        Request::RebuildWrite {
            name,
            offset_bytes,
            data,
        } => replica
            .rebuild_write(tenure, &name, offset_bytes, &data)
            .map(done),
        Request::RebuildMark {
            name,
            offset_bytes,
            length_bytes,
            kind,
        } => replica
            .rebuild_mark(tenure, &name, offset_bytes, length_bytes, kind)
            .map(done),
        Request::RebuildVerify { name, digest } => {
            replica.rebuild_verify(tenure, &name, digest).map(done)
        }
        Request::RebuildCommit => replica.rebuild_commit(tenure).map(done),
        Request::Status => replica.status().map(Reply::Status),
        Request::SetMeta(sync) => replica.set_sync_meta(tenure, &sync).map(done),
        // The connection answers these itself.
        Request::Hello(_)
        | Request::Prove(_)
        | Request::CreateVolume { .. }
        | Request::OpenVolume { .. }
        | Request::Goodbye { .. } => Ok(Reply::Failed(Failure::new(
            StatusCode::BadRequest,
            "not at this point of a connection",
        ))),
    }
}

pub(crate) fn write_options(flags: block_core::wire::Flags) -> WriteOptions {
    use block_core::wire::Flags;
    WriteOptions {
        force_unit_access: flags.contains(Flags::FORCE_UNIT_ACCESS),
        detect_zeroes: flags.contains(Flags::DETECT_ZEROES),
    }
}

fn buffer_for(length_bytes: u64) -> Result<Vec<u8>, StoreError> {
    check_length(length_bytes)?;
    Ok(vec![0; length_bytes as usize])
}

/// A reply carries at most one payload.
pub(crate) fn check_length(length_bytes: u64) -> Result<(), StoreError> {
    let max_bytes = PAYLOAD_BYTES_MAX.into();
    if length_bytes <= max_bytes {
        return Ok(());
    }
    Err(StoreError::BadLength {
        length_bytes,
        max_bytes,
        unit_bytes: 512,
    })
}

/// Reads the request of a frame whose payload must outlive the receive buffer.
pub(crate) fn read_request(
    header: &Header,
    payload: &[u8],
) -> Result<Request, block_core::wire::MessageError> {
    Request::from_frame(header, &Bytes::copy_from_slice(payload))
}
