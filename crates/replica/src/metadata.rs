//! The metadata file: everything about a replica that is not a block.
//!
//! It is replaced as a whole by each change, so every change is there or is not. Byte by byte it is described in
//! `docs/replica-format.md`.

use std::collections::BTreeMap;
use std::io;

use block_core::layers::{Layer, LayerId, LayerTree, TreeError};
use block_core::wire::body::{BodyError, BodyReader, BodyWriter};
use block_core::wire::layer::LAYERS_MAX;
use block_core::wire::{HostBoot, ReplicaMode, SyncMeta, VolumeKey};
use block_core::{Epoch, VolumeName};

use crate::disk::{self, Disk, DiskFile};

pub const FILE_NAME: &str = "replica.meta";
const TEMPORARY_NAME: &str = "replica.meta.tmp";
/// Newer than [`FILE_NAME`], and not durable yet.
const STAGED_NAME: &str = "replica.meta.next";
/// The metadata of a replica that must not be opened, because it could not be noted that it may lack writes.
pub const SET_ASIDE_NAME: &str = "replica.meta.suspect";
const MAGIC: [u8; 8] = *b"LRTMETA\n";
/// Version 1: the first. Version 2: the machine's start in which an engine opened it. Version 3: whether a sync has failed.
const VERSION: u32 = 3;
const VERSION_MIN: u32 = 1;
/// Magic, version and body length before the body, the checksum after it.
const HEADER_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 4;
/// 250 layers with the longest names are below 100 KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    pub volume: VolumeName,
    pub key: VolumeKey,
    pub accepted_epoch: Epoch,
    pub mode: ReplicaMode,
    /// The last in-sync record and the epoch that wrote it.
    pub sync: Option<(Epoch, SyncMeta)>,
    /// The start of the machine in which an engine last opened it.
    pub opened_in: Option<HostBoot>,
    /// Another start of the machine opened it than the one before, without an orderly end in between, or a sync has failed: writes
    /// that were answered may be missing.
    pub restarted: bool,
    /// A sync has failed, and no rebuild has begun since: the kernel may show what is not on the disk, so comparing what
    /// is there proves nothing. An in-sync record does not settle that.
    pub sync_failed: bool,
    pub tree: LayerTree,
}

/// Why a metadata file cannot be used. Nothing is guessed from a damaged one.
#[derive(Debug, thiserror::Error)]
pub enum LoadMetadataError {
    #[error("cannot read {FILE_NAME}")]
    Read(#[source] io::Error),
    #[error("{FILE_NAME} is not a replica's metadata")]
    NotMetadata,
    #[error(
        "{FILE_NAME} has format version {found}, this program knows {VERSION_MIN} to {VERSION}"
    )]
    Version { found: u32 },
    #[error("{FILE_NAME} is damaged: its checksum does not match")]
    Checksum,
    #[error("{FILE_NAME} cannot be understood")]
    Body(#[from] BodyError),
    #[error("{FILE_NAME} describes impossible layers")]
    Tree(#[from] TreeError),
}

/// Metadata as an open finds it.
#[derive(Debug)]
pub struct Loaded {
    pub metadata: Metadata,
    /// If it is not durable yet: the layers of what is.
    pub durable_tree: Option<LayerTree>,
}

/// Why metadata was not stored.
#[derive(Debug, thiserror::Error)]
pub enum StoreMetadataError {
    /// The old file is untouched.
    #[error("cannot write {TEMPORARY_NAME}")]
    NotStored(#[source] io::Error),
    /// The old or the new one may be found after a crash: no further change may build on either.
    #[error("cannot tell whether {FILE_NAME} was replaced")]
    Uncertain(#[source] io::Error),
}

impl Metadata {
    /// Whether writes that were answered and not flushed may be missing, as seen in this start of the machine. One that
    /// does not say which it is (zeroes) is taken for the same.
    pub fn may_lack_writes(&self, boot: HostBoot) -> bool {
        let ended_in_order = self.sync.as_ref().is_some_and(|(_, sync)| sync.clean);
        self.restarted || (!ended_in_order && self.is_of_another_start(boot))
    }

    fn is_of_another_start(&self, boot: HostBoot) -> bool {
        let unknown = HostBoot::default();
        let is_another = |opened| opened != boot && opened != unknown && boot != unknown;
        self.opened_in.is_some_and(is_another)
    }

    /// An engine opens it. What may be missing must not be forgotten with that: the engine may end before it has
    /// drawn its conclusions.
    pub fn note_opening(&mut self, epoch: Epoch, boot: HostBoot) {
        self.restarted = self.may_lack_writes(boot);
        self.opened_in = Some(boot);
        self.accepted_epoch = epoch;
        if let Some((_, sync)) = &mut self.sync {
            sync.clean = false;
        }
    }

    /// What was staged counts if the machine has not been started again since: then all of it is there, and all that it
    /// speaks of. After a loss of power it may be there without the blocks of the snapshot that it names, and each
    /// replica would lack other ones. Nobody was promised it.
    pub fn load<D: Disk>(disk: &D, boot: HostBoot) -> Result<Loaded, LoadMetadataError> {
        match Self::load_staged(disk) {
            Ok(metadata) if !metadata.is_of_another_start(boot) => {
                return Ok(Loaded {
                    metadata,
                    durable_tree: Some(Self::load_stored(disk)?.tree),
                });
            }
            Err(LoadMetadataError::Read(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(LoadMetadataError::Read(error)) => return Err(LoadMetadataError::Read(error)),
            Ok(_) | Err(_) => disk.remove(STAGED_NAME).map_err(LoadMetadataError::Read)?,
        }
        Ok(Loaded {
            metadata: Self::load_stored(disk)?,
            durable_tree: None,
        })
    }

    pub fn store<D: Disk>(&self, disk: &D) -> Result<(), StoreMetadataError> {
        let write = || -> io::Result<()> {
            let file = disk.create(TEMPORARY_NAME)?;
            file.write_at(&self.encode(), 0)?;
            file.sync_data()
        };
        write().map_err(StoreMetadataError::NotStored)?;
        disk.rename(TEMPORARY_NAME, FILE_NAME)
            .map_err(StoreMetadataError::Uncertain)?;
        disk.sync_folder().map_err(StoreMetadataError::Uncertain)
    }

    /// Notes the change without waiting for the disk: the next process finds it, and after a loss of power it may be missing
    /// until [`Metadata::settle`]. It takes the place of what was staged before.
    pub fn stage<D: Disk>(&self, disk: &D) -> Result<(), StoreMetadataError> {
        disk.create(TEMPORARY_NAME)
            .and_then(|file| file.write_at(&self.encode(), 0))
            .map_err(StoreMetadataError::NotStored)?;
        disk.rename(TEMPORARY_NAME, STAGED_NAME)
            .map_err(StoreMetadataError::Uncertain)
    }

    /// Writes once more what was staged by an earlier process. A sync of its file may have failed there, and would not fail again.
    pub fn stage_again<D: Disk>(disk: &D) -> Result<(), StoreMetadataError> {
        let staged = Self::load_staged(disk)
            .map_err(|error| StoreMetadataError::NotStored(io::Error::other(error)))?;
        staged.stage(disk)
    }

    /// Makes durable what was staged. All that it speaks of must be durable already.
    pub fn settle<D: Disk>(disk: &D) -> io::Result<()> {
        disk.open(STAGED_NAME)?.sync_data()?;
        disk.rename(STAGED_NAME, FILE_NAME)?;
        disk.sync_folder()
    }

    /// Notes for the next process that writes which were answered may be missing. It need not be durable: a restart of the machine
    /// is noticed without it, and the disk has just failed. Where not even that can be noted, no process is to open the replica.
    pub fn mark_suspect<D: Disk>(disk: &D) -> io::Result<()> {
        let mark = || -> Result<(), LoadMetadataError> {
            let mut newest = Self::load_staged(disk).or_else(|_| Self::load_stored(disk))?;
            newest.restarted = true;
            newest.sync_failed = true;
            let write = || {
                let file = disk.create(TEMPORARY_NAME)?;
                file.write_at(&newest.encode(), 0)?;
                let _ = file.sync_data();
                // At once in the place of what was staged before, if anything was.
                disk.rename(TEMPORARY_NAME, STAGED_NAME)
            };
            write().map_err(LoadMetadataError::Read)
        };
        mark().or_else(|_| {
            match disk.remove(STAGED_NAME) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            disk.rename(FILE_NAME, SET_ASIDE_NAME)
        })?;
        let _ = disk.sync_folder();
        Ok(())
    }

    fn load_staged<D: Disk>(disk: &D) -> Result<Self, LoadMetadataError> {
        let file = disk::read_file(disk, STAGED_NAME, FILE_BYTES_MAX);
        Self::decode(&file.map_err(LoadMetadataError::Read)?)
    }

    fn load_stored<D: Disk>(disk: &D) -> Result<Self, LoadMetadataError> {
        let file = disk::read_file(disk, FILE_NAME, FILE_BYTES_MAX);
        Self::decode(&file.map_err(LoadMetadataError::Read)?)
    }

    fn encode(&self) -> Vec<u8> {
        let mut body = BodyWriter::new();
        body.text(self.volume.as_str())
            .bytes(self.key.as_bytes())
            .u64(self.accepted_epoch.0);
        body.bool(self.mode == ReplicaMode::Rebuilding);
        body.option(self.sync.as_ref(), |body, (epoch, sync)| {
            body.u64(epoch.0);
            sync.write(body);
        });
        body.option(self.opened_in.as_ref(), |body, boot| {
            body.bytes(boot);
        });
        body.bool(self.restarted).bool(self.sync_failed);
        body.u64(self.tree.head().0).u64(self.tree.next_id());
        let layers: Vec<(&LayerId, &Layer)> = self.tree.layers().iter().collect();
        body.list(&layers, |body, (id, layer)| write_layer(body, **id, layer));
        let body = body.into_vec();
        let mut file = MAGIC.to_vec();
        file.extend_from_slice(&VERSION.to_le_bytes());
        file.extend_from_slice(
            &u32::try_from(body.len())
                .expect("metadata is small")
                .to_le_bytes(),
        );
        file.extend_from_slice(&body);
        file.extend_from_slice(&crc32c::crc32c(&file).to_le_bytes());
        file
    }

    fn decode(file: &[u8]) -> Result<Self, LoadMetadataError> {
        let header = file
            .first_chunk::<HEADER_BYTES>()
            .ok_or(LoadMetadataError::NotMetadata)?;
        if header[..8] != MAGIC {
            return Err(LoadMetadataError::NotMetadata);
        }
        let mut reader = BodyReader::new(&header[8..]);
        let version = reader.u32("version")?;
        if !(VERSION_MIN..=VERSION).contains(&version) {
            return Err(LoadMetadataError::Version { found: version });
        }
        let body_bytes = reader.u32("body length")? as usize;
        let body_end = HEADER_BYTES + body_bytes;
        if file.len() != body_end + CHECKSUM_BYTES
            || crc32c::crc32c(&file[..body_end]).to_le_bytes() != file[body_end..]
        {
            return Err(LoadMetadataError::Checksum);
        }
        let mut body = BodyReader::new(&file[HEADER_BYTES..body_end]);
        let volume = body.volume_name("volume")?;
        let key = VolumeKey::from_bytes(body.array("key")?);
        let accepted_epoch = Epoch(body.u64("accepted epoch")?);
        let mode = if body.bool("mode")? {
            ReplicaMode::Rebuilding
        } else {
            ReplicaMode::Ready
        };
        let sync = body.option("sync", |body| {
            Ok((Epoch(body.u64("sync epoch")?), SyncMeta::read(body)?))
        })?;
        let (opened_in, restarted) = if version >= 2 {
            let opened_in = body.option("opened in", |body| body.array("opened in"))?;
            (opened_in, body.bool("restarted")?)
        } else {
            (None, false)
        };
        let sync_failed = version >= 3 && body.bool("sync failed")?;
        let (head, next_id) = (LayerId(body.u64("head")?), body.u64("next layer")?);
        let layers: BTreeMap<LayerId, Layer> = body
            .list("layers", LAYERS_MAX, read_layer)?
            .into_iter()
            .collect();
        body.finish()?;
        let tree = LayerTree::from_parts(layers, head, next_id)?;
        Ok(Self {
            volume,
            key,
            accepted_epoch,
            mode,
            sync,
            opened_in,
            restarted,
            sync_failed,
            tree,
        })
    }
}

fn write_layer(body: &mut BodyWriter, id: LayerId, layer: &Layer) {
    body.u64(id.0);
    body.option(layer.name.as_ref(), |body, name| {
        body.text(name.as_str());
    });
    body.option(layer.parent.as_ref(), |body, parent| {
        body.u64(parent.0);
    });
    body.u64(layer.created_unix_ms)
        .bool(layer.user_created)
        .bool(layer.removed)
        .u64(layer.size_bytes);
    body.option(layer.digest.as_ref(), |body, digest| {
        body.bytes(digest);
    });
}

fn read_layer(body: &mut BodyReader<'_>) -> Result<(LayerId, Layer), BodyError> {
    let id = LayerId(body.u64("layer")?);
    let layer = Layer {
        name: body.option("name", |body| body.snapshot_name("name"))?,
        parent: body
            .option("parent", |body| body.u64("parent"))?
            .map(LayerId),
        created_unix_ms: body.u64("created")?,
        user_created: body.bool("user created")?,
        removed: body.bool("removed")?,
        size_bytes: body.u64("size")?,
        digest: body.option("digest", |body| body.array("digest"))?,
    };
    Ok((id, layer))
}

#[cfg(test)]
mod tests {
    use block_core::{ReplicaName, SnapshotName};

    use super::*;

    fn sample() -> Metadata {
        let mut tree = LayerTree::new(1 << 20);
        tree.snapshot(&SnapshotName::new("a").expect("a name"), 5, true)
            .expect("a snapshot");
        tree.set_digest(LayerId(1), Some([3; 32]));
        let member = ReplicaName::new("r1").expect("a name");
        let sync = SyncMeta {
            replica: member.clone(),
            generation: 3,
            in_sync: vec![member],
            clean: true,
        };
        Metadata {
            volume: VolumeName::new("v").expect("a name"),
            key: VolumeKey::from_bytes([1; 32]),
            accepted_epoch: Epoch(8),
            mode: ReplicaMode::Rebuilding,
            sync: Some((Epoch(7), sync)),
            opened_in: Some([4; 16]),
            restarted: true,
            sync_failed: true,
            tree,
        }
    }

    #[test]
    fn metadata_comes_back_as_it_was() {
        assert_eq!(
            Metadata::decode(&sample().encode()).expect("good metadata"),
            sample()
        );
    }

    /// As files of older versions are: without what the later ones added.
    #[test]
    fn the_older_versions_are_read() {
        let newer = Metadata {
            opened_in: None,
            restarted: false,
            sync_failed: false,
            ..sample()
        };
        let mut before = BodyWriter::new();
        before.text("v").bytes(&[1; 32]).u64(8).bool(true);
        before.option(newer.sync.as_ref(), |body, (epoch, sync)| {
            body.u64(epoch.0);
            sync.write(body);
        });
        let behind_record = HEADER_BYTES + before.into_vec().len();
        // Behind the record: no start of the machine, not restarted, no sync has failed.
        for (version, known) in [(1_u32, 0), (2, 2)] {
            let mut file = newer.encode();
            let added = behind_record + known..behind_record + 3;
            assert!(file.drain(added).all(|byte| byte == 0));
            file.truncate(file.len() - CHECKSUM_BYTES);
            file[8..12].copy_from_slice(&version.to_le_bytes());
            let body_bytes = (file.len() - HEADER_BYTES) as u32;
            file[12..16].copy_from_slice(&body_bytes.to_le_bytes());
            file.extend_from_slice(&crc32c::crc32c(&file).to_le_bytes());
            let read = Metadata::decode(&file).expect("good metadata");
            assert_eq!(read, newer, "version {version}");
        }
    }

    #[test]
    fn only_a_restart_without_an_orderly_end_can_lose_writes() {
        let opened_in = |boot: u8, clean: bool| {
            let mut metadata = Metadata {
                opened_in: Some([boot; 16]),
                restarted: false,
                ..sample()
            };
            metadata.sync.as_mut().expect("a record").1.clean = clean;
            metadata
        };
        for (metadata, boot, expected) in [
            (opened_in(1, false), 1, false),
            (opened_in(1, false), 2, true),
            (opened_in(1, true), 2, false),
            (opened_in(0, false), 2, false),
            (opened_in(1, false), 0, false),
        ] {
            assert_eq!(metadata.may_lack_writes([boot; 16]), expected, "{boot}");
            let mut next = metadata;
            next.note_opening(Epoch(9), [boot; 16]);
            assert_eq!(next.may_lack_writes([boot; 16]), expected, "still, {boot}");
            next.note_opening(Epoch(10), [boot; 16]);
            assert_eq!(next.restarted, expected, "until something settles it");
        }
    }

    #[test]
    fn every_damaged_byte_and_every_cut_is_noticed() {
        let good = sample().encode();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(Metadata::decode(&bad).is_err(), "byte {at}");
            assert!(Metadata::decode(&good[..at]).is_err(), "cut at {at}");
        }
    }
}
