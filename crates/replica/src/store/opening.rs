//! A replica's beginnings: its folder made, and its folder opened after whatever happened to the process before.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, OnceLock, RwLock};

use block_core::geometry::check_size;
use block_core::layers::LayerTree;
use block_core::wire::{HostBoot, ReplicaMode};
use block_core::{BLOCK_BYTES, Epoch};

use super::error::{CreateReplicaError, OpenReplicaError};
use super::heard::Heard;
use super::io_path::Syncs;
use super::kept_views::KeptViews;
use super::pending_punches::PendingPunches;
use super::staging::Staged;
use super::{Replica, ReplicaSpec, State, snapshots};
use crate::disk::{Disk, DiskFile};
use crate::host::host_boot;
use crate::layer_files::{LayerFiles, data_name, marks_name};
use crate::metadata::{Loaded, Metadata};

/// Of a file that shows how this file system keeps holes.
const PROBE_NAME: &str = "probe";

impl<D: Disk> Replica<D> {
    /// Makes an empty replica in an empty folder.
    pub fn create(disk: D, spec: &ReplicaSpec) -> Result<Self, CreateReplicaError> {
        check_size(spec.size_bytes)?;
        if !disk.list().map_err(CreateReplicaError::Io)?.is_empty() {
            return Err(CreateReplicaError::FolderNotEmpty);
        }
        check_holes(&disk)?;
        let tree = LayerTree::new(spec.size_bytes);
        LayerFiles::create(&disk, tree.head(), spec.size_bytes).map_err(CreateReplicaError::Io)?;
        let metadata = Metadata {
            volume: spec.volume.clone(),
            key: spec.key.clone(),
            accepted_epoch: Epoch::NONE,
            mode: ReplicaMode::Ready,
            sync: None,
            opened_in: None,
            restarted: false,
            sync_failed: false,
            tree,
        };
        metadata.store(&disk)?;
        Ok(Self::open(disk)?)
    }

    /// Opens a replica, finishing or undoing what a crash interrupted.
    pub fn open(disk: D) -> Result<Self, OpenReplicaError> {
        Self::open_in(disk, host_boot())
    }

    /// The same in a start of the machine that a test chooses.
    pub(super) fn open_in(disk: D, host_boot: HostBoot) -> Result<Self, OpenReplicaError> {
        let Loaded {
            metadata,
            durable_tree,
        } = Metadata::load(&disk, host_boot)?;
        remove_strays(&disk, &metadata.tree).map_err(OpenReplicaError::Io)?;
        let mut files = HashMap::new();
        for id in metadata.tree.layers().keys() {
            let layer = LayerFiles::open(&disk, *id).map_err(|source| OpenReplicaError::Layer {
                file: data_name(*id),
                source,
            })?;
            if metadata.sync_failed {
                // Whoever reads is to see what the disk has, not what it failed to take.
                layer.forget_cached().map_err(OpenReplicaError::Io)?;
            }
            if metadata.opened_in != Some(host_boot) {
                // Nobody can have written since the machine started: before the first write that is noted.
                layer.free_unwritten().map_err(OpenReplicaError::Io)?;
            }
            files.insert(*id, Arc::new(layer));
        }
        // The first flush syncs them all: the process before this one may have been killed before it did.
        let unsynced = files.values().cloned().collect();
        let state = State::build(metadata, files).map_err(OpenReplicaError::Io)?;
        Ok(Self {
            disk,
            host_boot,
            volume: state.metadata.volume.clone(),
            key: state.metadata.key.clone(),
            state: RwLock::new(state),
            long: Mutex::new(()),
            structure: Mutex::new(()),
            flushing: Mutex::new(()),
            syncs: Mutex::new(Syncs::default()),
            unsynced: Mutex::new(unsynced),
            staged: Mutex::new(Staged::found(durable_tree)),
            spare: Mutex::new(None),
            quiet_until: Mutex::new(None),
            quiet_ended: Condvar::new(),
            quiet_max: snapshots::QUIET_MAX,
            pending_punches: Mutex::new(PendingPunches::default()),
            leftovers: Mutex::new(Vec::new()),
            partial_writes: std::array::from_fn(|_| Mutex::new(())),
            views: Mutex::new(KeptViews::default()),
            purge_done_bytes: AtomicU64::new(0),
            purge_total_bytes: AtomicU64::new(0),
            session: AtomicU64::new(0),
            heard: Heard::new(),
            fault: OnceLock::new(),
        })
    }
}

/// Files that no metadata speaks of: made before a crash that came before the metadata, or not yet removed after it.
fn remove_strays<D: Disk>(disk: &D, tree: &LayerTree) -> io::Result<()> {
    let wanted: Vec<String> = tree
        .layers()
        .keys()
        .flat_map(|id| [data_name(*id), marks_name(*id)])
        .collect();
    let mut removed = false;
    for name in disk.list()? {
        let ours = name.starts_with("layer-") || name == PROBE_NAME || name.ends_with(".tmp");
        if ours && !wanted.contains(&name) {
            disk.remove(&name)?;
            removed = true;
        }
    }
    if removed { disk.sync_folder() } else { Ok(()) }
}

/// The index is read from holes, so holes must be kept block by block. File systems with larger clusters, or with smaller
/// blocks, do not.
fn check_holes<D: Disk>(disk: &D) -> Result<(), CreateReplicaError> {
    let probe = || -> io::Result<bool> {
        let file = disk.create(PROBE_NAME)?;
        file.set_len(16 * BLOCK_BYTES)?;
        file.write_at(&[1; BLOCK_BYTES as usize], 3 * BLOCK_BYTES)?;
        file.write_at(&[1; BLOCK_BYTES as usize], 5 * BLOCK_BYTES)?;
        // A part of a block must allocate all of it, or a crash could leave a block that is neither old nor new.
        file.write_at(&[1; 512], 7 * BLOCK_BYTES)?;
        file.sync_data()?;
        let wanted = |block: u64| Some((block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES));
        let mut kept = true;
        for block in [3, 5, 7] {
            kept &= file.next_data((block - 1) * BLOCK_BYTES)? == wanted(block);
        }
        disk.remove(PROBE_NAME)?;
        Ok(kept)
    };
    match probe() {
        Ok(true) => Ok(()),
        Ok(false) => Err(CreateReplicaError::CoarseHoles),
        Err(error) => Err(CreateReplicaError::Io(error)),
    }
}
