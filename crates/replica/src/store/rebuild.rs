//! The target's side of a rebuild.
//!
//! An engine takes a snapshot of the healthy replicas and, at the same point of the write order, begins the rebuild
//! here: the target gets an empty head over the source's layers, of which it keeps those that it has in some state, unless
//! a sync has failed: then hashes of what the kernel shows say nothing about the disk, and all is copied anew. From then on it takes live writes and snapshots, while the engine compares and copies layers. Reads of the live volume are refused until
//! the newest copied snapshot's digest equals the source's and the rebuild is committed.
//!
//! A broken-off rebuild is begun again: the head is emptied once more, since it missed writes, and the layers'
//! hashes say how much of them is there.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ScopedJoinHandle;

use block_core::epoch::Tenure;
use block_core::geometry::{BlockRange, RangeError, check_size};
use block_core::layers::tree::TreeError;
use block_core::layers::{Layer, LayerId, LayerTree, ZeroAction};
use block_core::wire::request::RebuildLayer;
use block_core::wire::{ExtentKind, ReplicaMode};
use block_core::{BLOCK_BYTES, SECTOR_BYTES, SnapshotName};

use super::view::to_hex;
use super::{LiveIndex, Replica, State, StoreError, lock};
use crate::disk::{Disk, DiskFile};
use crate::layer_files::LayerFiles;
use crate::metadata::Metadata;

const BLOCK: usize = BLOCK_BYTES as usize;
/// Blocks written in part whose rest is not known yet: 1 Mi of them take about 50 MiB.
const PARTIAL_BLOCKS_MAX: usize = 1 << 20;

/// One try at a rebuild, from its begin to its commit or to the end of the process.
pub(super) struct RebuildSession {
    /// Blocks of the head, or of a snapshot taken since, of which only some sectors were written: their other sectors
    /// come from below at the end.
    partial: Mutex<BTreeMap<(LayerId, u64), u8>>,
    /// The layers that are copied, and the newest of them.
    copied: BTreeSet<LayerId>,
    copied_top: Option<LayerId>,
    /// Counts changes of copied layers, so that a verification of an older state does not count.
    changes: AtomicU64,
    /// The layer that was verified, and after how many changes.
    verified: Mutex<Option<(LayerId, u64)>>,
}

impl RebuildSession {
    fn new(tree: &LayerTree) -> Self {
        Self {
            partial: Mutex::new(BTreeMap::new()),
            copied: tree
                .layers()
                .keys()
                .copied()
                .filter(|id| *id != tree.head())
                .collect(),
            copied_top: tree.layers()[&tree.head()].parent,
            changes: AtomicU64::new(0),
            verified: Mutex::new(None),
        }
    }

    /// Blocks that were written whole are not partial any more.
    pub(super) fn forget_partial(&self, layer: LayerId, first: u64, end: u64) {
        let mut partial = lock(&self.partial);
        if !partial.is_empty() {
            let range = (layer, first)..(layer, end);
            let whole: Vec<(LayerId, u64)> = partial.range(range).map(|(key, _)| *key).collect();
            for key in whole {
                partial.remove(&key);
            }
        }
    }

    pub(super) fn write_part<F: DiskFile>(
        &self,
        state: &State<F>,
        block: u64,
        at: usize,
        data: &[u8],
    ) -> Result<(), StoreError> {
        let failed = |source| StoreError::io("write", state.head.id, source);
        let mut partial = lock(&self.partial);
        let in_head = state.map.get(block) == Some(state.head_slot);
        if !in_head && state.head.is_marked(block).map_err(failed)? {
            // Zeroed since the rebuild began: the rest of the block is zero, not what is below.
            let mut whole = [0; BLOCK];
            whole[at..at + data.len()].copy_from_slice(data);
            state
                .head
                .data
                .write_at(&whole, block * BLOCK_BYTES)
                .map_err(failed)?;
            state.map.set(block, block + 1, Some(state.head_slot));
            return Ok(());
        }
        if partial.len() >= PARTIAL_BLOCKS_MAX {
            return Err(StoreError::TooManyPartialBlocks);
        }
        state
            .head
            .data
            .write_at(data, block * BLOCK_BYTES + at as u64)
            .map_err(failed)?;
        let key = (state.head.id, block);
        if !in_head || partial.contains_key(&key) {
            let sectors = at / SECTOR_BYTES as usize..(at + data.len()) / SECTOR_BYTES as usize;
            let mask = partial.entry(key).or_default();
            *mask |= sectors.fold(0, |mask, sector| mask | 1 << sector);
            if *mask == u8::MAX {
                partial.remove(&key);
            }
            state.map.set(block, block + 1, Some(state.head_slot));
        }
        Ok(())
    }

    pub(super) fn plan_zeroes<F: DiskFile>(
        &self,
        state: &State<F>,
        range: BlockRange,
    ) -> Vec<ZeroAction> {
        self.forget_partial(state.head.id, range.first, range.end);
        let mut actions = Vec::new();
        let mut first = range.first;
        while first < range.end {
            let run = state.map.run_at(first, range.end);
            let blocks = BlockRange {
                first,
                end: run.end_block,
            };
            actions.push(match run.slot {
                Some(_) => ZeroAction::OverwriteAndMark(blocks),
                None => ZeroAction::Mark(blocks),
            });
            first = run.end_block;
        }
        actions
    }

    fn is_verified(&self) -> bool {
        let now = self.changes.load(Ordering::Acquire);
        self.copied_top
            .is_none_or(|top| *lock(&self.verified) == Some((top, now)))
    }

    /// The layer of that name, if it is one of those that are copied.
    fn copied_layer(&self, tree: &LayerTree, name: &SnapshotName) -> Result<LayerId, TreeError> {
        let id = tree.find_any(name).filter(|id| self.copied.contains(id));
        id.ok_or_else(|| TreeError::NotFound { name: name.clone() })
    }
}

impl<D: Disk> Replica<D> {
    /// Makes this replica a rebuild's target. Returns which of the layers it has in some state. Who asked is answered before
    /// [`Replica::remove_leftovers`]: writers wait for it.
    pub fn rebuild_begin(
        &self,
        tenure: impl Into<Tenure>,
        size_bytes: u64,
        plan: &[RebuildLayer],
        head_parent: Option<&SnapshotName>,
    ) -> Result<Vec<SnapshotName>, StoreError> {
        let tenure = tenure.into();
        check_size(size_bytes)?;
        let Ok(_long) = self.long.try_lock() else {
            return Err(StoreError::Busy { what: "a purge" });
        };
        let _structure = self.settled_structure()?;
        let mut state = self.alone();
        self.check(&state, tenure)?;
        let (old, keeps) = (&state.metadata.tree, !state.metadata.sync_failed);
        let tree = plan_tree(old, keeps, size_bytes, plan, head_parent)?;
        let mut files: HashMap<LayerId, Arc<LayerFiles<D::File>>> = HashMap::new();
        let mut existing = Vec::new();
        for (id, layer) in tree.layers() {
            let kept = state.files.get(id).cloned();
            if let (Some(files), Some(name)) = (&kept, &layer.name) {
                let resized = files.data.set_len(layer.size_bytes);
                resized.map_err(|source| StoreError::io("resize", *id, source))?;
                existing.push(name.clone());
            }
            let layer_files = kept.map_or_else(|| self.create_layer(*id, layer.size_bytes), Ok)?;
            files.insert(*id, layer_files);
        }
        // The record of an in-sync set is void: this replica is in none until it is told so.
        let next = Metadata {
            tree,
            mode: ReplicaMode::Rebuilding,
            sync: None,
            restarted: false,
            sync_failed: false,
            ..state.metadata.clone()
        };
        self.store_metadata(&next)?;
        let gone: Vec<LayerId> = state
            .files
            .keys()
            .filter(|id| !files.contains_key(id))
            .copied()
            .collect();
        lock(&self.unsynced).retain(|layer| files.contains_key(&layer.id));
        lock(&self.pending_punches).clear();
        let head = next.tree.head();
        *state =
            State::build(next, files).map_err(|source| StoreError::io("index", head, source))?;
        state.rebuild = Some(RebuildSession::new(&state.metadata.tree));
        drop(state);
        // Not before: who looks for a view holds this lock while it waits for the state.
        lock(&self.views).clear();
        lock(&self.leftovers).extend(gone);
        Ok(existing)
    }

    /// Puts copied blocks into a layer.
    pub fn rebuild_write(
        &self,
        tenure: impl Into<Tenure>,
        name: &SnapshotName,
        offset_bytes: u64,
        data: &[u8],
    ) -> Result<(), StoreError> {
        let tenure = tenure.into();
        self.change_copied_layer(tenure, name, offset_bytes, data.len() as u64, |layer, _| {
            layer.data.write_at(data, offset_bytes)
        })
    }

    /// Makes a range of a layer a zero mark, or empties it.
    pub fn rebuild_mark(
        &self,
        tenure: impl Into<Tenure>,
        name: &SnapshotName,
        offset_bytes: u64,
        length_bytes: u64,
        kind: Option<ExtentKind>,
    ) -> Result<(), StoreError> {
        let tenure = tenure.into();
        self.change_copied_layer(tenure, name, offset_bytes, length_bytes, |layer, range| {
            match kind {
                Some(_) => layer.set_marks(range)?,
                None => layer.clear_marks(range)?,
            }
            layer.data.punch(offset_bytes, length_bytes)
        })
    }

    fn change_copied_layer(
        &self,
        tenure: Tenure,
        name: &SnapshotName,
        offset_bytes: u64,
        length_bytes: u64,
        change: impl FnOnce(&LayerFiles<D::File>, BlockRange) -> std::io::Result<()>,
    ) -> Result<(), StoreError> {
        let state = self.shared();
        self.check(&state, tenure)?;
        let session = state.rebuild.as_ref().ok_or(StoreError::NoRebuild)?;
        let tree = &state.metadata.tree;
        let id = session.copied_layer(tree, name)?;
        let size_bytes = tree.layers()[&id].size_bytes;
        if !offset_bytes.is_multiple_of(BLOCK_BYTES) || !length_bytes.is_multiple_of(BLOCK_BYTES) {
            return Err(StoreError::BadLength {
                length_bytes,
                max_bytes: size_bytes,
                unit_bytes: BLOCK_BYTES,
            });
        }
        if offset_bytes
            .checked_add(length_bytes)
            .is_none_or(|end| end > size_bytes)
        {
            return Err(RangeError::OutOfRange {
                offset_bytes,
                length_bytes,
                size_bytes,
            }
            .into());
        }
        if length_bytes == 0 {
            return Ok(());
        }
        session.changes.fetch_add(1, Ordering::AcqRel);
        let range = BlockRange::inside(offset_bytes, length_bytes);
        change(&state.files[&id], range).map_err(|source| StoreError::io("copy into", id, source))
    }

    /// Compares what a copied snapshot shows with the source's digest.
    pub fn rebuild_verify(
        &self,
        tenure: impl Into<Tenure>,
        name: &SnapshotName,
        wanted: [u8; 32],
    ) -> Result<(), StoreError> {
        let tenure = tenure.into();
        let (id, changes) = {
            let state = self.shared();
            self.check(&state, tenure)?;
            let session = state.rebuild.as_ref().ok_or(StoreError::NoRebuild)?;
            let id = session.copied_layer(&state.metadata.tree, name)?;
            (id, session.changes.load(Ordering::Acquire))
        };
        let view = self.build_view(id)?;
        let files = self.shared().files.clone();
        // Both read and write the whole of it, one waits for the processor and the other for the disk. What is durable now
        // need not be waited for by the commit.
        let (found, synced) = std::thread::scope(|scope| {
            let sync = || self.sync_layers(files.values());
            let syncing = std::thread::Builder::new().spawn_scoped(scope, sync);
            (view.digest(), syncing.map(ScopedJoinHandle::join))
        });
        // Without a thread for it, the commit has all of it to do.
        if let Ok(synced) = synced {
            synced.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        let found = found?;
        if found != wanted {
            let (wanted, found) = (to_hex(&wanted), to_hex(&found));
            return Err(StoreError::NotVerified {
                name: name.clone(),
                wanted,
                found,
            });
        }
        let state = self.shared();
        self.check(&state, tenure)?;
        let session = state.rebuild.as_ref().ok_or(StoreError::NoRebuild)?;
        *lock(&session.verified) = Some((id, changes));
        Ok(())
    }

    /// Makes a verified target ready. Live writes wait while the head is joined with the layers.
    pub fn rebuild_commit(&self, tenure: impl Into<Tenure>) -> Result<(), StoreError> {
        let tenure = tenure.into();
        let Ok(_long) = self.long.try_lock() else {
            return Err(StoreError::Busy {
                what: "another commit",
            });
        };
        let (copied_top, files) = {
            let state = self.shared();
            (
                self.check_verified(&state, tenure)?.copied_top,
                state.files.clone(),
            )
        };
        // The bulk without the lock; what is written meanwhile is little.
        self.sync_layers(files.values())?;
        let mut index = match copied_top {
            Some(top) => self.build_view(top)?.into_index(),
            None => LiveIndex::build(&files, &[], 0).expect("nothing is read for no layers"),
        };
        let _structure = self.settled_structure()?;
        let mut state = self.alone();
        let session = self.check_verified(&state, tenure)?;
        let mut next = state.metadata.clone();
        next.mode = ReplicaMode::Ready;
        index.map.grow(next.tree.size_bytes() / BLOCK_BYTES);
        let path = next.tree.live_path();
        for id in path.iter().filter(|id| !session.copied.contains(id)) {
            let layer = state.files[id].clone();
            complete_partial_blocks(session, &layer, &index)?;
            self.sync_layers([&layer])?;
            index
                .add(layer)
                .map_err(|source| StoreError::io("index", *id, source))?;
        }
        self.store_metadata(&next)?;
        *state = State::with_index(next, state.files.clone(), index);
        Ok(())
    }

    fn sync_layers<'a>(
        &self,
        layers: impl IntoIterator<Item = &'a Arc<LayerFiles<D::File>>>,
    ) -> Result<(), StoreError> {
        layers
            .into_iter()
            .try_for_each(|layer| self.sync_layer(layer))
    }

    fn check_verified<'a>(
        &self,
        state: &'a State<D::File>,
        tenure: Tenure,
    ) -> Result<&'a RebuildSession, StoreError> {
        self.check(state, tenure)?;
        let session = state.rebuild.as_ref().ok_or(StoreError::NoRebuild)?;
        if session.is_verified() {
            Ok(session)
        } else {
            Err(StoreError::VerifyFirst)
        }
    }
}

/// Gives a live layer's partial blocks the sectors that they lack, from the layers below. They stay in the list: if this
/// fails, it can be done again.
fn complete_partial_blocks<F: DiskFile>(
    session: &RebuildSession,
    layer: &LayerFiles<F>,
    below: &LiveIndex<F>,
) -> Result<(), StoreError> {
    let partial = lock(&session.partial);
    let sector_bytes = SECTOR_BYTES as usize;
    for ((_, block), mask) in partial.range((layer.id, 0)..=(layer.id, u64::MAX)) {
        let mut whole = [0; BLOCK];
        below.read(block * BLOCK_BYTES, &mut whole)?;
        for sector in (0..BLOCK / sector_bytes).filter(|sector| mask & (1 << sector) == 0) {
            let at = sector * sector_bytes;
            let written = &whole[at..at + sector_bytes];
            layer
                .data
                .write_at(written, block * BLOCK_BYTES + at as u64)
                .map_err(|source| StoreError::io("complete", layer.id, source))?;
        }
    }
    Ok(())
}

/// The tree that a rebuild gives: the plan's layers, with the files of old ones of the same name if it keeps them, under a
/// new head.
fn plan_tree(
    old: &LayerTree,
    keeps: bool,
    size_bytes: u64,
    plan: &[RebuildLayer],
    head_parent: Option<&SnapshotName>,
) -> Result<LayerTree, StoreError> {
    let mut next_id = old.next_id();
    let mut new_id = || {
        next_id += 1;
        LayerId(next_id - 1)
    };
    let mut ids: BTreeMap<&SnapshotName, LayerId> = BTreeMap::new();
    let mut layers = BTreeMap::new();
    let parent_id = |ids: &BTreeMap<&SnapshotName, LayerId>, name: Option<&SnapshotName>| match name
    {
        None => Ok(None),
        Some(name) => match ids.get(name) {
            Some(id) => Ok(Some(*id)),
            None => Err(TreeError::NotFound { name: name.clone() }),
        },
    };
    for layer in plan {
        check_size(layer.size_bytes)?;
        let parent = parent_id(&ids, layer.parent.as_ref())?;
        let kept = old.find_any(&layer.name).filter(|_| keeps);
        let id = kept.unwrap_or_else(&mut new_id);
        if ids.insert(&layer.name, id).is_some() {
            return Err(TreeError::Exists {
                name: layer.name.clone(),
            }
            .into());
        }
        let entry = Layer {
            name: Some(layer.name.clone()),
            parent,
            created_unix_ms: layer.created_unix_ms,
            user_created: layer.user_created,
            removed: layer.removed,
            size_bytes: layer.size_bytes,
            digest: None,
        };
        layers.insert(id, entry);
    }
    let head = new_id();
    let parent = parent_id(&ids, head_parent)?;
    let entry = Layer {
        name: None,
        parent,
        created_unix_ms: 0,
        user_created: false,
        removed: false,
        size_bytes,
        digest: None,
    };
    layers.insert(head, entry);
    Ok(LayerTree::from_parts(layers, head, next_id)?)
}
