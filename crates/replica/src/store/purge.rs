//! Purge: merging removed snapshots away while the volume is in use.
//!
//! A removed layer and its only child are merged in one of two ways, whichever copies less. Either the child gets the
//! removed layer's opinions where it has none, or the removed layer gets all of the child's and takes its place. In both
//! cases a reader through the child sees the same at every moment, so a crash needs no undoing: the next purge begins
//! again and finds part of the work done.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use block_core::BLOCK_BYTES;
use block_core::epoch::Tenure;
use block_core::geometry::BlockRange;
use block_core::layers::{LayerId, MergeStep};
use block_core::wire::ExtentKind;

use super::{Replica, State, StoreError, lock};
use crate::disk::{Disk, DiskFile};
use crate::layer_files::LayerFiles;

/// Blocks copied under one hold of the lock: 1 MiB, about a millisecond when the head is the child.
const PIECE_BLOCKS: u64 = 256;

type Layer<D> = Arc<LayerFiles<<D as Disk>::File>>;

impl<D: Disk> Replica<D> {
    /// Merges all removed snapshots that can be merged. I/O, snapshots and deletions go on meanwhile.
    pub fn purge(&self, tenure: impl Into<Tenure>) -> Result<(), StoreError> {
        let tenure = tenure.into();
        let Ok(_long) = self.long.try_lock() else {
            return Err(StoreError::Busy {
                what: "another purge, a revert or a rebuild",
            });
        };
        let result = self.purge_all(tenure);
        self.purge_done_bytes.store(0, Relaxed);
        self.purge_total_bytes.store(0, Relaxed);
        result
    }

    fn purge_all(&self, tenure: Tenure) -> Result<(), StoreError> {
        loop {
            let step = {
                let state = self.shared();
                self.check_ready(&state, tenure)?;
                state.metadata.tree.next_merge()
            };
            match step {
                None => return Ok(()),
                Some(MergeStep::Drop { .. }) => {}
                Some(MergeStep::Merge { from, into }) => {
                    let (from, into) = {
                        let state = self.shared();
                        (state.files[&from].clone(), state.files[&into].clone())
                    };
                    if self.absorbing_is_cheaper(&from, &into)? {
                        self.absorb(tenure, &from, &into)?;
                        continue;
                    }
                    self.copy_up(tenure, &from, &into)?;
                }
            }
            self.finish(tenure, step.expect("it was matched"))?;
        }
    }

    fn absorbing_is_cheaper(&self, from: &Layer<D>, into: &Layer<D>) -> Result<bool, StoreError> {
        let allocated = |layer: &Layer<D>| {
            layer
                .allocated_bytes()
                .map_err(|source| StoreError::io("stat", layer.id, source))
        };
        let (from_bytes, into_bytes) = (allocated(from)?, allocated(into)?);
        self.purge_done_bytes.store(0, Relaxed);
        self.purge_total_bytes
            .store(from_bytes.min(into_bytes), Relaxed);
        // The head changes while it is read: only frozen layers can be absorbed. And whoever still reads the removed
        // snapshot itself must not see it change.
        let into_is_head = self.shared().head.id == into.id;
        Ok(!into_is_head && into_bytes < from_bytes && self.forget_views_of(from.id))
    }

    /// The child gets what only the removed layer has.
    fn copy_up(&self, tenure: Tenure, from: &Layer<D>, into: &Layer<D>) -> Result<(), StoreError> {
        let (end, has_parent) = {
            let state = self.shared();
            let layer = &state.metadata.tree.layers()[&from.id];
            (layer.size_bytes / BLOCK_BYTES, layer.parent.is_some())
        };
        let mut buffer = vec![0; (PIECE_BLOCKS * BLOCK_BYTES) as usize];
        for_each_piece(from, end, |piece, kind| {
            self.give_way();
            // A mark says nothing where nothing is below.
            if kind == ExtentKind::Data || has_parent {
                self.copy_piece(tenure, from, into, piece, kind, &mut buffer)?;
            }
            self.purge_done_bytes
                .fetch_add(piece.blocks() * BLOCK_BYTES, Relaxed);
            Ok(())
        })?;
        self.sync_layer(into)
    }

    fn copy_piece(
        &self,
        tenure: Tenure,
        from: &Layer<D>,
        into: &Layer<D>,
        piece: BlockRange,
        kind: ExtentKind,
        buffer: &mut [u8],
    ) -> Result<(), StoreError> {
        {
            let state = self.shared();
            self.check_ready(&state, tenure)?;
            if state.head.id != into.id {
                return self.copy_missing(&state, from, into, piece, kind, buffer);
            }
        }
        // The head: nobody may write between the look at what it has and the copy.
        let begin = Instant::now();
        {
            let state = self.alone();
            self.check_ready(&state, tenure)?;
            self.copy_missing(&state, from, into, piece, kind, buffer)?;
        }
        // Whoever waits for the lock alone gets it before those who share it: leave them as much time as was taken.
        std::thread::sleep(begin.elapsed());
        Ok(())
    }

    fn copy_missing(
        &self,
        state: &State<D::File>,
        from: &Layer<D>,
        into: &Layer<D>,
        piece: BlockRange,
        kind: ExtentKind,
        buffer: &mut [u8],
    ) -> Result<(), StoreError> {
        let failed = |source| StoreError::io("merge into", into.id, source);
        let has = into.opinions(piece).map_err(failed)?;
        for run in gaps(piece, has.iter().map(|(run, _)| *run)) {
            let (at, length) = (run.first * BLOCK_BYTES, run.blocks() * BLOCK_BYTES);
            match kind {
                ExtentKind::Zero => into.set_marks(run).map_err(failed)?,
                ExtentKind::Data => {
                    let data = &mut buffer[..length as usize];
                    from.data
                        .read_at(data, at)
                        .map_err(|source| StoreError::io("read", from.id, source))?;
                    if let Err(source) = into.data.write_at(data, at) {
                        // A piece of a block in the child would hide the whole one in the removed layer.
                        if let Err(error) = into.data.punch(at, length) {
                            self.distrust(format!("a failed copy cannot be undone: {error}"));
                        }
                        return Err(failed(source));
                    }
                }
            }
        }
        if let (Some(from_slot), Some(into_slot)) =
            (state.slots.get(&from.id), state.slots.get(&into.id))
        {
            state
                .map
                .replace(piece.first, piece.end, *from_slot, *into_slot);
        }
        Ok(())
    }

    /// The removed layer gets all that the child has, and becomes the child.
    fn absorb(&self, tenure: Tenure, from: &Layer<D>, into: &Layer<D>) -> Result<(), StoreError> {
        let size_bytes = self.shared().metadata.tree.layers()[&into.id].size_bytes;
        let failed = |source| StoreError::io("merge into", from.id, source);
        from.data.set_len(size_bytes).map_err(failed)?;
        let mut buffer = vec![0; (PIECE_BLOCKS * BLOCK_BYTES) as usize];
        let end = size_bytes / BLOCK_BYTES;
        for_each_piece(into, end, |piece, kind| {
            self.give_way();
            let state = self.shared();
            self.check_ready(&state, tenure)?;
            let (at, length) = (piece.first * BLOCK_BYTES, piece.blocks() * BLOCK_BYTES);
            match kind {
                ExtentKind::Zero => from.set_marks(piece).map_err(failed)?,
                ExtentKind::Data => {
                    let data = &mut buffer[..length as usize];
                    into.data
                        .read_at(data, at)
                        .map_err(|source| StoreError::io("read", into.id, source))?;
                    from.data.write_at(data, at).map_err(failed)?;
                    if let (Some(of_into), Some(of_from)) =
                        (state.slots.get(&into.id), state.slots.get(&from.id))
                    {
                        state
                            .map
                            .replace(piece.first, piece.end, *of_into, *of_from);
                    }
                }
            }
            self.purge_done_bytes.fetch_add(length, Relaxed);
            Ok(())
        })?;
        // Data wins over a mark of the same layer, so what the child has zeroed must go, after its mark is durable.
        self.sync_layer(from)?;
        for_each_piece(into, end, |piece, kind| match kind {
            ExtentKind::Data => Ok(()),
            ExtentKind::Zero => from
                .data
                .punch(piece.first * BLOCK_BYTES, piece.blocks() * BLOCK_BYTES)
                .map_err(failed),
        })?;
        self.sync_layer(from)?;
        self.change_layers(tenure, into.id, |tree| tree.finish_absorb(from.id, into.id))
    }

    /// Everything is refused if it fails: the kernel may have dropped the dirty pages and will not tell a second time.
    pub(super) fn sync_layer(&self, layer: &Layer<D>) -> Result<(), StoreError> {
        layer.sync().map_err(|source| {
            self.distrust(format!("sync failed: {source}"));
            StoreError::io("sync", layer.id, source)
        })
    }

    fn finish(&self, tenure: Tenure, step: MergeStep) -> Result<(), StoreError> {
        let (MergeStep::Drop { layer: gone } | MergeStep::Merge { from: gone, .. }) = step;
        self.change_layers(tenure, gone, |tree| tree.finish_merge(step))
    }

    /// Forgets one layer, durably first.
    fn change_layers(
        &self,
        tenure: Tenure,
        gone: LayerId,
        change: impl FnOnce(&mut block_core::layers::LayerTree),
    ) -> Result<(), StoreError> {
        self.give_way();
        {
            // Before the structure: whoever builds a view holds this for as long as it takes to look at all of a layer, and those who
            // need a moment of the structure must not wait for that. A rebuild, which takes them the other way round, excludes us.
            let mut views = lock(&self.views);
            let _structure = self.settled_structure()?;
            let mut next = {
                let state = self.shared();
                self.check_ready(&state, tenure)?;
                state.metadata.clone()
            };
            change(&mut next.tree);
            self.store_metadata(&next)?;
            // They are held until they are gone: the layer of a kept view may have another name from now on.
            let mut state = self.alone();
            state.metadata = next;
            state.files.remove(&gone);
            if let Some(slot) = state.slots.remove(&gone) {
                state.by_slot[usize::from(slot.number())] = None;
            }
            views.clear();
        }
        lock(&self.unsynced).retain(|layer| layer.id != gone);
        self.remove_layer(gone);
        Ok(())
    }
}

fn for_each_piece<F: DiskFile>(
    layer: &LayerFiles<F>,
    end: u64,
    mut visit: impl FnMut(BlockRange, ExtentKind) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    layer
        .for_each_opinion(BlockRange { first: 0, end }, |run, kind| {
            let mut first = run.first;
            while first < run.end {
                let piece = BlockRange {
                    first,
                    end: (first + PIECE_BLOCKS).min(run.end),
                };
                visit(piece, kind).map_err(Stop::Visit)?;
                first = piece.end;
            }
            Ok(())
        })
        .map_err(|stop| match stop {
            Stop::Visit(error) => error,
            Stop::Io(source) => StoreError::io("read", layer.id, source),
        })
}

/// Why a walk over opinions ended early.
enum Stop {
    Visit(StoreError),
    Io(std::io::Error),
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// What of `range` none of the runs, which are in order, covers.
fn gaps(range: BlockRange, runs: impl Iterator<Item = BlockRange>) -> Vec<BlockRange> {
    let mut gaps = Vec::new();
    let mut first = range.first;
    for run in runs {
        if first < run.first {
            gaps.push(BlockRange {
                first,
                end: run.first,
            });
        }
        first = run.end;
    }
    if first < range.end {
        gaps.push(BlockRange {
            first,
            end: range.end,
        });
    }
    gaps
}
