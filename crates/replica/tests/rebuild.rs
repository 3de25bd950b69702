//! A rebuild over real sockets: the exchange of `docs/replica-protocol.md`, step by step.

mod support;

use anyhow::{Context, Result, bail, ensure};
use block_core::wire::layer::{HASH_CHUNK_BYTES, REBUILD_WRITE_BYTES_MAX};
use block_core::wire::request::{ExtentScope, RebuildLayer};
use block_core::wire::{
    ExtentKind, Flags, LayerInfo, LayerRef, ReplicaMode, ReplicaStatus, Reply, Request, StatusCode,
    SyncMeta,
};
use block_core::{ReplicaName, SnapshotName};
use replica::client::Client;
use support::{BLOCK, Fixture, SIZE_BYTES, refused_with};

fn name(text: &str) -> SnapshotName {
    SnapshotName::new(text).expect("a name")
}

fn snapshot(client: &mut Client, text: &str) -> Result<()> {
    Ok(client.done(Request::SnapshotCreate {
        name: name(text),
        created_unix_ms: 1,
        user_created: true,
    })?)
}

fn layers(client: &mut Client) -> Result<Vec<LayerInfo>> {
    match client.call(Request::ListLayers)? {
        Reply::Layers(layers) => Ok(layers),
        other => bail!("layers were asked for, not {other:?}"),
    }
}

fn status(client: &mut Client) -> Result<ReplicaStatus> {
    match client.call(Request::Status)? {
        Reply::Status(status) => Ok(status),
        other => bail!("a status was asked for, not {other:?}"),
    }
}

fn digest(client: &mut Client, of: &SnapshotName) -> Result<[u8; 32]> {
    match client.call(Request::SnapshotDigest {
        name: of.clone(),
        recompute: true,
    })? {
        Reply::Digest(digest) => Ok(digest),
        other => bail!("a digest was asked for, not {other:?}"),
    }
}

/// Begins a rebuild with the source's layers as they are.
fn begin(source: &mut Client, target: &mut Client) -> Result<Vec<SnapshotName>> {
    let (mut plan, mut head_parent) = (Vec::new(), None);
    for info in layers(source)? {
        let LayerRef::Snapshot(name) = info.layer else {
            head_parent = info.parent;
            continue;
        };
        let LayerInfo {
            parent,
            created_unix_ms,
            user_created,
            removed,
            size_bytes,
            ..
        } = info;
        plan.push(RebuildLayer {
            name,
            parent,
            created_unix_ms,
            user_created,
            removed,
            size_bytes,
        });
    }
    let names = plan.iter().map(|layer| layer.name.clone()).collect();
    target.call(Request::RebuildBegin {
        size_bytes: SIZE_BYTES,
        layers: plan,
        head_parent,
    })?;
    Ok(names)
}

/// Copies the chunks of a layer that differ. Returns the bytes sent.
fn copy_layer(source: &mut Client, target: &mut Client, layer: &SnapshotName) -> Result<u64> {
    let hashes = |client: &mut Client| -> Result<_> {
        let range = Request::LayerHashes {
            name: layer.clone(),
            offset_bytes: 0,
            length_bytes: SIZE_BYTES,
        };
        match client.call(range)? {
            Reply::Hashes(hashes) => Ok(hashes),
            other => bail!("hashes were asked for, not {other:?}"),
        }
    };
    let (theirs, ours) = (hashes(source)?, hashes(target)?);
    ensure!(theirs.len() as u64 == SIZE_BYTES / HASH_CHUNK_BYTES);
    let own = Request::LayerExtents {
        name: layer.clone(),
        scope: ExtentScope::Own,
        from_offset_bytes: 0,
    };
    let Reply::Extents(page) = source.call(own)? else {
        bail!("no extents")
    };
    ensure!(page.next_offset_bytes.is_none());
    let mut sent = 0;
    for (chunk, _) in theirs
        .iter()
        .zip(&ours)
        .enumerate()
        .filter(|(_, (theirs, ours))| theirs != ours)
    {
        let first = chunk as u64 * HASH_CHUNK_BYTES;
        let mark = |offset_bytes, length_bytes, kind| Request::RebuildMark {
            name: layer.clone(),
            offset_bytes,
            length_bytes,
            kind,
        };
        target.done(mark(first, HASH_CHUNK_BYTES, None))?;
        for extent in &page.extents {
            let offset_bytes = extent.offset_bytes.max(first);
            let end = (extent.offset_bytes + extent.length_bytes).min(first + HASH_CHUNK_BYTES);
            let length_bytes = end.saturating_sub(offset_bytes);
            ensure!(length_bytes <= REBUILD_WRITE_BYTES_MAX);
            match extent.kind {
                _ if length_bytes == 0 => {}
                ExtentKind::Zero => {
                    target.done(mark(offset_bytes, length_bytes, Some(ExtentKind::Zero)))?;
                }
                ExtentKind::Data => {
                    let read = Request::ReadLayer {
                        name: layer.clone(),
                        offset_bytes,
                        length_bytes,
                    };
                    let Reply::Data(data) = source.call(read)? else {
                        bail!("no data")
                    };
                    target.done(Request::RebuildWrite {
                        name: layer.clone(),
                        offset_bytes,
                        data,
                    })?;
                    sent += length_bytes;
                }
            }
        }
    }
    Ok(sent)
}

#[test]
fn a_replica_that_fell_behind_is_rebuilt_under_load() -> Result<()> {
    let (source_server, target_server) = (Fixture::new()?, Fixture::new()?);
    let (mut source, mut target) = (source_server.open(1)?, target_server.open(1)?);
    for client in [&mut source, &mut target] {
        for chunk in 0..20 {
            client.write(chunk << 20, vec![7; 1 << 20])?;
        }
        snapshot(client, "common")?;
    }
    // The target misses this, and has a write of its own that nobody else has.
    source.write(3 << 20, vec![8; 3 * BLOCK])?;
    source.done(Request::Discard {
        offset_bytes: 5 << 20,
        length_bytes: 1 << 20,
    })?;
    target.write(0, vec![99; BLOCK])?;
    // The engine's point in the write order.
    snapshot(&mut source, "r")?;
    let plan = begin(&mut source, &mut target)?;
    ensure!(
        plan == [name("common"), name("r")] && status(&mut target)?.mode == ReplicaMode::Rebuilding
    );
    ensure!(refused_with(
        target.read(0, 512).map(drop),
        StatusCode::WrongMode
    ));
    ensure!(
        refused_with(target.done(Request::RebuildCommit), StatusCode::WrongMode),
        "not verified"
    );
    // Live writes during the copy, also of single sectors whose block is not there yet.
    let mut live = |offset_bytes: u64, tag: u8, length: usize| -> Result<()> {
        for client in [&mut source, &mut target] {
            client.write(offset_bytes, vec![tag; length])?;
        }
        Ok(())
    };
    live(512, 1, 512)?;
    live((3 << 20) + 1024, 2, 512)?;
    live((5 << 20) + 512, 3, 2 * BLOCK)?;
    let mut sent = Vec::new();
    for layer in &plan {
        sent.push(copy_layer(&mut source, &mut target, layer)?);
    }
    ensure!(sent[0] == 0, "the common snapshot was sent again: {sent:?}");
    ensure!(
        sent[1] == 3 * BLOCK as u64,
        "more than what differs was sent: {sent:?}"
    );
    let newest = name("r");
    let wanted = digest(&mut source, &newest)?;
    let wrong = Request::RebuildVerify {
        name: newest.clone(),
        digest: [0; 32],
    };
    ensure!(refused_with(target.done(wrong), StatusCode::Corrupt));
    target.done(Request::RebuildVerify {
        name: newest.clone(),
        digest: wanted,
    })?;
    target.done(Request::RebuildCommit)?;
    for at in (0..SIZE_BYTES).step_by(1 << 20) {
        ensure!(
            source.read(at, 1 << 20)? == target.read(at, 1 << 20)?,
            "at {at}"
        );
    }
    ensure!(
        digest(&mut target, &newest)? == wanted && digest(&mut target, &name("common"))? != wanted
    );
    Ok(())
}

/// A snapshot that is marked as removed stays in the chain until a purge has merged it: it is copied like the others.
#[test]
fn a_snapshot_that_waits_to_be_merged_away_is_copied_too() -> Result<()> {
    let (source_server, target_server) = (Fixture::new()?, Fixture::new()?);
    let (mut source, mut target) = (source_server.open(1)?, target_server.open(1)?);
    source.write(0, vec![5; 2 * BLOCK])?;
    snapshot(&mut source, "gone")?;
    source.done(Request::SnapshotDelete { name: name("gone") })?;
    source.write(BLOCK as u64, vec![6; BLOCK])?;
    snapshot(&mut source, "r")?;
    let plan = begin(&mut source, &mut target)?;
    ensure!(plan == [name("gone"), name("r")]);
    for layer in &plan {
        copy_layer(&mut source, &mut target, layer)?;
    }
    let newest = name("r");
    let digest = digest(&mut source, &newest)?;
    target.done(Request::RebuildVerify {
        name: newest,
        digest,
    })?;
    target.done(Request::RebuildCommit)?;
    for client in [&mut source, &mut target] {
        client.done(Request::SnapshotPurge)?;
        ensure!(client.read(0, BLOCK as u64)?[..] == [5; BLOCK]);
        ensure!(client.read(BLOCK as u64, BLOCK as u64)?[..] == [6; BLOCK]);
    }
    Ok(())
}

#[test]
fn records_of_the_in_sync_set_are_kept_and_void_while_rebuilding() -> Result<()> {
    let mut fixture = Fixture::new()?;
    let member = |text: &str| ReplicaName::new(text).context("a name");
    let record = SyncMeta {
        replica: member("a")?,
        generation: 6,
        in_sync: vec![member("a")?, member("b")?],
        clean: true,
    };
    fixture.open(4)?.done(Request::SetMeta(record.clone()))?;
    fixture.restart()?;
    let mut looking = fixture.connect()?;
    let found = status(&mut looking)?;
    ensure!(
        found.sync == Some(record.clone())
            && found.sync_epoch.0 == 4
            && found.accepted_epoch.0 == 4
    );
    let mut client = fixture.open(5)?;
    ensure!(
        status(&mut client)?.sync
            == Some(SyncMeta {
                clean: false,
                ..record
            }),
        "an open ends a clean record"
    );
    let nothing = Request::RebuildBegin {
        size_bytes: SIZE_BYTES,
        layers: Vec::new(),
        head_parent: None,
    };
    client.call(nothing)?;
    ensure!(status(&mut looking)?.sync.is_none());
    Ok(())
}

#[test]
fn durable_and_zero_detecting_writes_do_what_they_say() -> Result<()> {
    let fixture = Fixture::new()?;
    let mut client = fixture.open(1)?;
    let write = |flags| Request::Write {
        offset_bytes: 0,
        data: vec![0; 16 * BLOCK].into(),
        flags,
    };
    client.done(write(Flags::FORCE_UNIT_ACCESS))?;
    let full = layers(&mut client)?[0].allocated_bytes;
    client.done(write(Flags::DETECT_ZEROES.with(Flags::FORCE_UNIT_ACCESS)))?;
    let sparse = layers(&mut client)?[0].allocated_bytes;
    ensure!(
        full >= 16 * BLOCK as u64 && sparse < full,
        "{full} {sparse}"
    );
    ensure!(
        client
            .read(0, 16 * BLOCK as u64)?
            .iter()
            .all(|byte| *byte == 0)
    );
    Ok(())
}
