//! Looking at snapshots: for backup, clone, rebuild and checking, while the head is being written.
//!
//! None of this needs an epoch: layers below the head do not change, and merges keep what their children show.

use std::io;
use std::sync::Arc;

use block_core::geometry::{BlockRange, check_range};
use block_core::layers::tree::TreeError;
use block_core::layers::{LayerId, LayerSlot, LayerTree};
use block_core::wire::layer::{EXTENTS_MAX, HASH_CHUNK_BYTES, HASHES_MAX};
use block_core::wire::request::ExtentScope;
use block_core::wire::{ChunkHash, Extent, ExtentKind, ExtentPage};
use block_core::{BLOCK_BYTES, SnapshotName};

use super::{LiveIndex, Replica, State, StoreError, check_mode, lock};
use crate::disk::{Disk, DiskFile};
use crate::layer_files::LayerFiles;

type SharedLayer<D> = Arc<LayerFiles<<D as Disk>::File>>;

const BLOCK: usize = BLOCK_BYTES as usize;
const PIECE_BLOCKS: u64 = 32;
const HASHED_AT_ONCE: usize = 128 * 1024;

/// How much of what a snapshot shows an index knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Only what the snapshot's own layer has: as fast to find as that is small, however many layers are below.
    Own,
    Whole,
}

/// The volume as one snapshot shows it, with an index of its own.
pub struct View<F> {
    pub(super) top: LayerId,
    pub(super) reach: Reach,
    index: LiveIndex<F>,
    size_bytes: u64,
}

impl<D: Disk> Replica<D> {
    /// Reads the volume as a snapshot shows it: also one that is marked as removed and not merged away yet, for a rebuild
    /// copies what is there.
    pub fn read_layer(
        &self,
        name: &SnapshotName,
        offset_bytes: u64,
        buffer: &mut [u8],
    ) -> Result<(), StoreError> {
        let length_bytes = buffer.len() as u64;
        // Rebuilds ask for what the layer itself has, layer by layer: they need no look at all those below.
        let mut view = self.view(name, LayerTree::find_removed_too, Reach::Own)?;
        check_range(offset_bytes, length_bytes, view.size_bytes)?;
        if !view.knows(offset_bytes, length_bytes) {
            view = self.view(name, LayerTree::find_removed_too, Reach::Whole)?;
            check_range(offset_bytes, length_bytes, view.size_bytes)?;
        }
        view.index.read(offset_bytes, buffer)
    }

    /// Like [`Replica::read_layer`], but answers `false` if it would have to wait for a device, or to look through files first.
    pub fn read_layer_without_waiting(
        &self,
        name: &SnapshotName,
        offset_bytes: u64,
        buffer: &mut [u8],
    ) -> Result<bool, StoreError> {
        // Whoever builds one holds the lock meanwhile.
        let Ok(mut views) = self.views.try_lock() else {
            return Ok(false);
        };
        let top = self.find_to_view(name, LayerTree::find_removed_too)?;
        let kept = views.find(top, Reach::Own);
        drop(views);
        let Some(view) = kept else {
            return Ok(false);
        };
        check_range(offset_bytes, buffer.len() as u64, view.size_bytes)?;
        if !view.knows(offset_bytes, buffer.len() as u64) {
            return Ok(false);
        }
        let mut complete = true;
        view.index
            .for_each_run(offset_bytes, buffer, |file, piece, at| {
                complete = complete && file.read_at_without_waiting(piece, at)?;
                Ok(())
            })?;
        Ok(complete)
    }

    /// Where a snapshot has data: its own layer's, or all that it shows.
    pub fn layer_extents(
        &self,
        name: &SnapshotName,
        scope: ExtentScope,
        from_offset_bytes: u64,
    ) -> Result<ExtentPage, StoreError> {
        let first = from_offset_bytes / BLOCK_BYTES;
        let mut page = PageBuilder::default();
        match scope {
            ExtentScope::Own => {
                let (layer, blocks) = self.own_layer(name)?;
                let walked = layer
                    .for_each_opinion(BlockRange { first, end: blocks }, |run, kind| {
                        page.add(run, kind)
                    });
                if let Err(PageStop::Io(source)) = walked {
                    return Err(StoreError::io("read", layer.id, source));
                }
            }
            ExtentScope::View => {
                let view = self.view(name, LayerTree::find, Reach::Whole)?;
                let (map, mut at) = (&view.index.map, first);
                while at < map.blocks() {
                    let run = map.run_at(at, map.blocks());
                    let range = BlockRange {
                        first: at,
                        end: run.end_block,
                    };
                    if run.slot.is_some() && page.add(range, ExtentKind::Data).is_err() {
                        break;
                    }
                    at = run.end_block;
                }
            }
        }
        Ok(page.finish())
    }

    /// Hashes of what a snapshot's own layer has, chunk by chunk, for finding where two replicas differ.
    pub fn layer_hashes(
        &self,
        name: &SnapshotName,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<Vec<ChunkHash>, StoreError> {
        let max_bytes = HASHES_MAX as u64 * HASH_CHUNK_BYTES;
        let whole = offset_bytes.is_multiple_of(HASH_CHUNK_BYTES)
            && length_bytes.is_multiple_of(HASH_CHUNK_BYTES);
        if !whole || length_bytes > max_bytes {
            return Err(StoreError::BadLength {
                length_bytes,
                max_bytes,
                unit_bytes: HASH_CHUNK_BYTES,
            });
        }
        let (layer, blocks) = self.own_layer(name)?;
        let range = BlockRange::touched_by(offset_bytes, length_bytes);
        let range = BlockRange {
            first: range.first.min(blocks),
            end: range.end.min(blocks),
        };
        let mut hashers: Vec<Option<Box<blake3::Hasher>>> =
            vec![None; (length_bytes / HASH_CHUNK_BYTES) as usize];
        let mut data = vec![0; HASH_CHUNK_BYTES as usize];
        let mut hashed = Vec::new();
        layer
            .for_each_opinion(range, |run, kind| -> io::Result<()> {
                for piece in pieces(run, HASH_CHUNK_BYTES / BLOCK_BYTES) {
                    let chunk =
                        ((piece.first * BLOCK_BYTES - offset_bytes) / HASH_CHUNK_BYTES) as usize;
                    let hasher =
                        hashers[chunk].get_or_insert_with(|| Box::new(blake3::Hasher::new()));
                    let data = &mut data[..(piece.blocks() * BLOCK_BYTES) as usize];
                    match kind {
                        ExtentKind::Zero => data.fill(0),
                        ExtentKind::Data => layer.data.read_at(data, piece.first * BLOCK_BYTES)?,
                    }
                    hashed.clear();
                    for (block, content) in (piece.first..).zip(data.chunks_exact(BLOCK)) {
                        // Zeroes that were written and zeroes that were marked are the same opinion.
                        hashed.extend_from_slice(&block.to_le_bytes());
                        hashed.extend_from_slice(if is_zero(content) { &[] } else { content });
                    }
                    hasher.update(&hashed);
                }
                Ok(())
            })
            .map_err(|source| StoreError::io("read", layer.id, source))?;
        Ok(hashers
            .into_iter()
            .map(|hasher| hasher.map(|hasher| *hasher.finalize().as_bytes()))
            .collect())
    }

    /// The digest of the volume as a snapshot shows it: the same on all replicas, whatever was merged below. Computed
    /// once and kept; `recompute` reads everything again, from the device, and fails if the data is not what it was.
    pub fn snapshot_digest(
        &self,
        name: &SnapshotName,
        recompute: bool,
    ) -> Result<[u8; 32], StoreError> {
        let kept = {
            let state = self.shared();
            let tree = &state.metadata.tree;
            tree.layers()[&tree.find(name)?].digest
        };
        if let (Some(digest), false) = (kept, recompute) {
            return Ok(digest);
        }
        // What is kept durably must be of what is durable.
        self.sync_all()?;
        let found = {
            let view = self.view(name, LayerTree::find, Reach::Whole)?;
            if recompute {
                view.forget_cached()?;
            }
            view.digest()?
        };
        match kept {
            Some(kept) if kept != found => {
                let (kept, found) = (to_hex(&kept), to_hex(&found));
                Err(StoreError::Corrupt {
                    name: name.clone(),
                    kept,
                    found,
                })
            }
            Some(_) => Ok(found),
            None => {
                self.keep_digest(name, found)?;
                Ok(found)
            }
        }
    }

    /// The digest of the live volume, by the same rule as a snapshot's. It is nobody's content if writes go on meanwhile.
    pub fn volume_digest(&self) -> Result<[u8; 32], StoreError> {
        self.check_fault()?;
        let view = self.build_found_view(Reach::Whole, |state| {
            check_mode(state.metadata.mode)?;
            Ok(state.metadata.tree.head())
        })?;
        view.digest()
    }

    fn keep_digest(&self, name: &SnapshotName, digest: [u8; 32]) -> Result<(), StoreError> {
        self.give_way();
        let _structure = self.settled_structure()?;
        self.check_fault()?;
        let mut next = self.shared().metadata.clone();
        // It may have been merged away while it was read.
        let Some(id) = next.tree.find_any(name) else {
            return Ok(());
        };
        next.tree.set_digest(id, Some(digest));
        self.store_metadata(&next)?;
        self.alone().metadata = next;
        Ok(())
    }

    /// Reads of a complete snapshot share a view of it.
    fn view(
        &self,
        name: &SnapshotName,
        find: impl Fn(&LayerTree, &SnapshotName) -> Result<LayerId, TreeError>,
        reach: Reach,
    ) -> Result<Arc<View<D::File>>, StoreError> {
        let mut views = lock(&self.views);
        let top = self.find_to_view(name, &find)?;
        if let Some(view) = views.find(top, reach) {
            return Ok(view);
        }
        // Found anew: nothing has kept the layers as they were since.
        let view = Arc::new(self.build_found_view(reach, |state| {
            check_mode(state.metadata.mode)?;
            Ok(find(&state.metadata.tree, name)?)
        })?);
        views.keep(view.clone());
        Ok(view)
    }

    /// To be called with `views` locked: they are cleared when a layer gets another's number, and when a rebuild begins.
    fn find_to_view(
        &self,
        name: &SnapshotName,
        find: impl Fn(&LayerTree, &SnapshotName) -> Result<LayerId, TreeError>,
    ) -> Result<LayerId, StoreError> {
        self.check_fault()?;
        let state = self.shared();
        check_mode(state.metadata.mode)?;
        Ok(find(&state.metadata.tree, name)?)
    }

    /// For whoever knows that the layer stays, or can take it that it has gone.
    pub(super) fn build_view(&self, top: LayerId) -> Result<View<D::File>, StoreError> {
        self.build_found_view(Reach::Whole, |_| Ok(top))
    }

    /// What is to be seen is found under the same lock as what it is made of: a revert, a merge or a rebuild that begins
    /// may take layers away as soon as nobody holds it.
    fn build_found_view(
        &self,
        reach: Reach,
        find: impl FnOnce(&State<D::File>) -> Result<LayerId, StoreError>,
    ) -> Result<View<D::File>, StoreError> {
        let (top, files, path, size_bytes) = {
            let state = self.shared();
            let top = find(&state)?;
            let tree = &state.metadata.tree;
            let layer = tree.layers().get(&top).ok_or(StoreError::Busy {
                what: "a change of the layers",
            })?;
            let path = match reach {
                Reach::Own => vec![top],
                Reach::Whole => tree.path_to(top),
            };
            (top, state.files.clone(), path, layer.size_bytes)
        };
        // Without the lock: a merge that goes on meanwhile does not change what the path shows.
        let index = LiveIndex::build(&files, &path, size_bytes)
            .map_err(|source| StoreError::io("index", top, source))?;
        Ok(View {
            top,
            reach,
            index,
            size_bytes,
        })
    }

    /// Drops the kept views of a layer, and says whether nobody is using them.
    pub(super) fn forget_views_of(&self, top: LayerId) -> bool {
        lock(&self.views).forget(top)
    }

    fn own_layer(&self, name: &SnapshotName) -> Result<(SharedLayer<D>, u64), StoreError> {
        self.check_fault()?;
        let state = self.shared();
        let tree = &state.metadata.tree;
        // A rebuild copies what is there.
        let id = tree.find_removed_too(name)?;
        Ok((
            state.files[&id].clone(),
            tree.layers()[&id].size_bytes / BLOCK_BYTES,
        ))
    }
}

impl<F: DiskFile> LiveIndex<F> {
    /// Reads what the layers show together; past their end it is zero.
    pub(super) fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        let range = BlockRange::touched_by(offset_bytes, buffer.len() as u64);
        let end = range.end.min(self.map.blocks());
        if range.first < end && self.map.run_at(range.first, end).end_block < end {
            // Else each piece would wait for the device before the next is asked for.
            self.for_each_run(offset_bytes, buffer, |file, piece, at| {
                file.fetch_ahead(at, piece.len() as u64);
                Ok(())
            })?;
        }
        self.for_each_run(offset_bytes, buffer, F::read_at)
    }

    fn for_each_run(
        &self,
        offset_bytes: u64,
        buffer: &mut [u8],
        mut read: impl FnMut(&F, &mut [u8], u64) -> io::Result<()>,
    ) -> Result<(), StoreError> {
        let end = BlockRange::touched_by(offset_bytes, buffer.len() as u64).end;
        let (mut at, mut rest) = (offset_bytes, buffer);
        while !rest.is_empty() {
            if at / BLOCK_BYTES >= self.map.blocks() {
                rest.fill(0);
                return Ok(());
            }
            let run = self.map.run_at(at / BLOCK_BYTES, end);
            let length = ((run.end_block * BLOCK_BYTES - at) as usize).min(rest.len());
            let (piece, behind) = rest.split_at_mut(length);
            match run.slot {
                None => piece.fill(0),
                Some(slot) => {
                    let layer = self.layer(slot);
                    read(&layer.data, piece, at)
                        .map_err(|source| StoreError::io("read", layer.id, source))?;
                }
            }
            rest = behind;
            at += length as u64;
        }
        Ok(())
    }

    fn layer(&self, slot: LayerSlot) -> &LayerFiles<F> {
        self.by_slot[usize::from(slot.number())]
            .as_ref()
            .expect("mapped slots have a layer")
    }
}

impl<F: DiskFile> View<F> {
    /// Whether the range can be read from this view.
    fn knows(&self, offset_bytes: u64, length_bytes: u64) -> bool {
        let range = BlockRange::touched_by(offset_bytes, length_bytes);
        if self.reach == Reach::Whole || range.is_empty() {
            return true;
        }
        let run = self.index.map.run_at(range.first, range.end);
        run.slot.is_some() && run.end_block == range.end
    }

    /// BLAKE3 over the size and then number and content of every block that is not all zero.
    pub(super) fn digest(&self) -> Result<[u8; 32], StoreError> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.size_bytes.to_le_bytes());
        let mut buffer = vec![0; PIECE_BLOCKS as usize * BLOCK];
        // The hash is several times as fast over one long run as over many short ones, copying included.
        let mut hashed = Vec::with_capacity(HASHED_AT_ONCE + 2 * BLOCK);
        let (map, mut first) = (&self.index.map, 0);
        while first < map.blocks() {
            let run = map.run_at(first, map.blocks());
            if let Some(slot) = run.slot {
                let layer = self.index.layer(slot);
                for piece in pieces(
                    BlockRange {
                        first,
                        end: run.end_block,
                    },
                    PIECE_BLOCKS,
                ) {
                    let data = &mut buffer[..(piece.blocks() * BLOCK_BYTES) as usize];
                    let read = layer.data.read_at(data, piece.first * BLOCK_BYTES);
                    read.map_err(|source| StoreError::io("read", layer.id, source))?;
                    for (block, content) in (piece.first..).zip(data.chunks_exact(BLOCK)) {
                        if !is_zero(content) {
                            hashed.extend_from_slice(&block.to_le_bytes());
                            hashed.extend_from_slice(content);
                        }
                        if hashed.len() >= HASHED_AT_ONCE {
                            hasher.update(&hashed);
                            hashed.clear();
                        }
                    }
                }
            }
            first = run.end_block;
        }
        hasher.update(&hashed);
        Ok(*hasher.finalize().as_bytes())
    }

    /// Has the next reads come from the device: what memory has of its data may be better than what is there.
    fn forget_cached(&self) -> Result<(), StoreError> {
        for layer in self.index.by_slot.iter().flatten() {
            let forgotten = layer.data.forget_cached();
            forgotten.map_err(|source| StoreError::io("read anew", layer.id, source))?;
        }
        Ok(())
    }

    pub(super) fn into_index(self) -> LiveIndex<F> {
        self.index
    }
}

#[derive(Default)]
struct PageBuilder {
    extents: Vec<Extent>,
    next_offset_bytes: Option<u64>,
}

enum PageStop {
    Full,
    Io(io::Error),
}

impl From<io::Error> for PageStop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl PageBuilder {
    fn add(&mut self, run: BlockRange, kind: ExtentKind) -> Result<(), PageStop> {
        let (offset_bytes, length_bytes) = (run.first * BLOCK_BYTES, run.blocks() * BLOCK_BYTES);
        if let Some(last) = self.extents.last_mut()
            && last.kind == kind
            && last.offset_bytes + last.length_bytes == offset_bytes
        {
            last.length_bytes += length_bytes;
            return Ok(());
        }
        if self.extents.len() == EXTENTS_MAX {
            self.next_offset_bytes = Some(offset_bytes);
            return Err(PageStop::Full);
        }
        self.extents.push(Extent {
            offset_bytes,
            length_bytes,
            kind,
        });
        Ok(())
    }

    fn finish(self) -> ExtentPage {
        ExtentPage {
            extents: self.extents,
            next_offset_bytes: self.next_offset_bytes,
        }
    }
}

/// Cuts a range at multiples of `blocks`.
fn pieces(range: BlockRange, blocks: u64) -> impl Iterator<Item = BlockRange> {
    let mut first = range.first;
    std::iter::from_fn(move || {
        if first >= range.end {
            return None;
        }
        let end = ((first / blocks + 1) * blocks).min(range.end);
        let piece = BlockRange { first, end };
        first = end;
        Some(piece)
    })
}

fn is_zero(block: &[u8]) -> bool {
    // Compares in words: a byte at a time would cost as much as hashing.
    block.chunks_exact(16).all(|part| part == [0; 16])
}

pub(super) fn to_hex(digest: &[u8; 32]) -> String {
    blake3::Hash::from_bytes(*digest).to_hex().to_string()
}
