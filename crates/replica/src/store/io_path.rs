//! Reads, writes, zeroes and flushes of the live volume.

use std::io;

use block_core::BLOCK_BYTES;
use block_core::epoch::Tenure;
use block_core::geometry::{BlockRange, check_range};
use block_core::layers::{LayerId, Run, ZeroAction, plan_zeroes};
use block_core::wire::ReplicaMode;

use super::{Replica, State, StoreError, lock, show_layer};
use crate::disk::{Disk, DiskFile};

/// How a write is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Durable before it is answered.
    pub force_unit_access: bool,
    /// Blocks that are all zero are marked or freed, not written.
    pub detect_zeroes: bool,
}

/// Syncs are counted, so that one can answer for many.
#[derive(Debug, Default)]
pub(super) struct Syncs {
    begun: u64,
    /// The newest that went well.
    done: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SyncNumber(u64);

const BLOCK: usize = BLOCK_BYTES as usize;
static ZEROES: [u8; 256 * 1024] = [0; 256 * 1024];
/// Zeroed under one hold of the lock: some milliseconds, should all of it have to be overwritten.
const ZEROES_AT_ONCE_BYTES: u64 = 16 << 20;
/// Holes punched under one hold of the lock, about a millisecond.
const PUNCHES_AT_ONCE: usize = 64;

impl<D: Disk> Replica<D> {
    /// Fills `buffer` from the live volume.
    pub fn read(
        &self,
        tenure: impl Into<Tenure>,
        offset_bytes: u64,
        buffer: &mut [u8],
    ) -> Result<(), StoreError> {
        let tenure = tenure.into();
        let state = self.shared();
        self.check_readable(&state, tenure)?;
        check_range(
            offset_bytes,
            buffer.len() as u64,
            state.metadata.tree.size_bytes(),
        )?;
        state.read(offset_bytes, buffer)
    }

    /// Like [`Replica::read`], but answers `false` if it would have to wait for a device.
    pub fn read_without_waiting(
        &self,
        tenure: impl Into<Tenure>,
        offset_bytes: u64,
        buffer: &mut [u8],
    ) -> Result<bool, StoreError> {
        let tenure = tenure.into();
        let state = self.shared();
        self.check_readable(&state, tenure)?;
        check_range(
            offset_bytes,
            buffer.len() as u64,
            state.metadata.tree.size_bytes(),
        )?;
        let mut complete = true;
        state.for_each_run(offset_bytes, buffer, |file, piece, at| {
            complete = complete && file.read_at_without_waiting(piece, at)?;
            Ok(())
        })?;
        Ok(complete)
    }

    /// Writes to the head. Not durable before a flush unless `options` say so.
    pub fn write(
        &self,
        tenure: impl Into<Tenure>,
        offset_bytes: u64,
        data: &[u8],
        options: WriteOptions,
    ) -> Result<(), StoreError> {
        let tenure = tenure.into();
        {
            let state = self.shared();
            self.check_writable(&state, tenure)?;
            check_range(
                offset_bytes,
                data.len() as u64,
                state.metadata.tree.size_bytes(),
            )?;
            if offset_bytes.is_multiple_of(BLOCK_BYTES)
                && data.len().is_multiple_of(BLOCK)
                && !options.detect_zeroes
            {
                self.write_blocks(&state, offset_bytes / BLOCK_BYTES, data)?;
            } else {
                self.write_pieces(&state, offset_bytes, data, options.detect_zeroes)?;
            }
        }
        if options.force_unit_access {
            self.sync_all()
        } else {
            Ok(())
        }
    }

    /// Makes a range zero and frees what it took, where possible. Discards are the same: replicas stay equal.
    pub fn write_zeroes(
        &self,
        tenure: impl Into<Tenure>,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<(), StoreError> {
        let tenure = tenure.into();
        check_range(offset_bytes, length_bytes, self.size_bytes())?;
        let end_bytes = offset_bytes + length_bytes;
        let mut at = offset_bytes;
        loop {
            // Piece by piece: whoever wants the state alone, a snapshot or a new epoch, must not wait for a terabyte.
            let end = ((at / ZEROES_AT_ONCE_BYTES + 1) * ZEROES_AT_ONCE_BYTES).min(end_bytes);
            let state = self.shared();
            self.check_writable(&state, tenure)?;
            self.write_zeroes_at_once(&state, at, end)?;
            if end == end_bytes {
                return Ok(());
            }
            at = end;
        }
    }

    fn write_zeroes_at_once(
        &self,
        state: &State<D::File>,
        from_bytes: u64,
        to_bytes: u64,
    ) -> Result<(), StoreError> {
        let whole = BlockRange::inside(from_bytes, to_bytes - from_bytes);
        let zero_part = |at, length: usize| self.write_part(state, at, &ZEROES[..length]);
        if whole.is_empty() {
            return for_each_part(from_bytes, to_bytes, zero_part);
        }
        for_each_part(from_bytes, whole.first * BLOCK_BYTES, zero_part)?;
        for_each_part(whole.end * BLOCK_BYTES, to_bytes, zero_part)?;
        self.zero_blocks(state, whole)
    }

    /// Makes everything durable that was answered before.
    pub fn flush(&self, tenure: impl Into<Tenure>) -> Result<(), StoreError> {
        let tenure = tenure.into();
        self.check(&self.shared(), tenure)?;
        let (layer, justified) = lock(&self.pending_punches).take();
        self.sync_all()?;
        // The marks of these blocks are durable now: their zeroes need not take space any more.
        for some in justified.chunks(PUNCHES_AT_ONCE) {
            self.punch_zeroes(layer, some)?;
        }
        Ok(())
    }

    /// Syncs the head, all former heads that were not synced, and what the snapshots between them are called.
    pub(super) fn sync_all(&self) -> Result<(), StoreError> {
        self.sync_for(self.next_sync())
    }

    /// The first sync that will cover everything written so far: one that runs already may have passed it by.
    pub(super) fn next_sync(&self) -> SyncNumber {
        SyncNumber(lock(&self.syncs).begun + 1)
    }

    /// Returns once a sync of that number, or a later one, is over. One at a time: a second caller must not be told
    /// that all is durable while the first is still at it. Those who wait for the same turn share it.
    pub(super) fn sync_for(&self, wanted: SyncNumber) -> Result<(), StoreError> {
        let _flushing = lock(&self.flushing);
        let number = {
            let mut syncs = lock(&self.syncs);
            if syncs.done >= wanted.0 {
                return Ok(());
            }
            syncs.begun += 1;
            syncs.begun
        };
        loop {
            // Of a snapshot that is made meanwhile not all may be covered.
            let staged = self.stage_to_settle();
            self.sync_once()?;
            match staged {
                None => break,
                Some(staged) if self.settle_metadata(staged)? => break,
                // Both are named in the same file by now: once more, for both.
                Some(_) => {}
            }
        }
        self.check_fault()?;
        // Only now: whoever waits behind one that failed finds out by itself.
        lock(&self.syncs).done = number;
        Ok(())
    }

    fn sync_once(&self) -> Result<(), StoreError> {
        let head = self.shared().head.clone();
        // Taken out: a head that becomes a former one while this syncs it has writes that this does not cover, and is
        // there for the next.
        let former = std::mem::take(&mut *lock(&self.unsynced));
        for layer in former.iter().chain([&head]) {
            self.sync_layer(layer)?;
        }
        Ok(())
    }

    fn punch_zeroes(
        &self,
        layer: Option<LayerId>,
        blocks: &[BlockRange],
    ) -> Result<(), StoreError> {
        let state = self.alone();
        // Of a former head nothing is freed: a purge does that.
        let is_head = layer == Some(state.head.id);
        let blocks = if is_head { blocks } else { &[] };
        for range in blocks {
            let mut first = range.first;
            while first < range.end {
                let run = state.map.run_at(first, range.end);
                // What was written again meanwhile stays.
                if run.slot.is_none() {
                    let (at, length) = (first * BLOCK_BYTES, (run.end_block - first) * BLOCK_BYTES);
                    state
                        .head
                        .data
                        .punch(at, length)
                        .map_err(|error| StoreError::io("free", state.head.id, error))?;
                }
                first = run.end_block;
            }
        }
        Ok(())
    }

    pub(super) fn check_writable(
        &self,
        state: &State<D::File>,
        tenure: Tenure,
    ) -> Result<(), StoreError> {
        self.check(state, tenure)?;
        match (state.metadata.mode, &state.rebuild) {
            (ReplicaMode::Ready, _) | (ReplicaMode::Rebuilding, Some(_)) => Ok(()),
            // A crash or a restart broke the rebuild: this head misses writes.
            (ReplicaMode::Rebuilding, None) => Err(StoreError::NoRebuild),
            (mode @ ReplicaMode::Absent, _) => Err(StoreError::WrongMode { mode }),
        }
    }

    fn write_blocks(
        &self,
        state: &State<D::File>,
        first: u64,
        data: &[u8],
    ) -> Result<(), StoreError> {
        let end = first + (data.len() / BLOCK) as u64;
        if first == end {
            return Ok(());
        }
        let was_in_head = state.map.run_at(first, end)
            == Run {
                slot: Some(state.head_slot),
                end_block: end,
            };
        if let Err(source) = state.head.data.write_at(data, first * BLOCK_BYTES) {
            self.undo_write(state, BlockRange { first, end });
            return Err(StoreError::io("write", state.head.id, source));
        }
        if !was_in_head {
            state.map.set(first, end, Some(state.head_slot));
        }
        if let Some(session) = &state.rebuild {
            session.forget_partial(state.head.id, first, end);
        }
        Ok(())
    }

    /// A failed write may have left some blocks, or a piece of one, in the head. Over a block of a layer below, which is
    /// still the valid one, it must go. Where the volume reads as zero it may stay, but then it must be seen from now on
    /// and not only after the next open.
    fn undo_write(&self, state: &State<D::File>, range: BlockRange) {
        let mut first = range.first;
        while first < range.end {
            let end = state.map.run_at(first, range.end).end_block;
            let run = BlockRange { first, end };
            let undone = match state.map.get(first) {
                None => show_layer(&state.map, &state.head, state.head_slot, run),
                Some(slot) if slot == state.head_slot => Ok(()),
                Some(_) => state
                    .head
                    .data
                    .punch(first * BLOCK_BYTES, run.blocks() * BLOCK_BYTES),
            };
            if let Err(error) = undone {
                self.distrust(format!("a failed write cannot be undone: {error}"));
            }
            first = end;
        }
    }

    fn write_pieces(
        &self,
        state: &State<D::File>,
        offset_bytes: u64,
        data: &[u8],
        detect_zeroes: bool,
    ) -> Result<(), StoreError> {
        let mut at = offset_bytes;
        let mut rest = data;
        while !rest.is_empty() {
            let to_boundary = BLOCK - (at % BLOCK_BYTES) as usize;
            let length = if to_boundary < BLOCK || rest.len() < BLOCK {
                let length = to_boundary.min(rest.len());
                self.write_part(state, at, &rest[..length])?;
                length
            } else {
                self.write_similar_blocks(state, at / BLOCK_BYTES, rest, detect_zeroes)?
            };
            at += length as u64;
            rest = &rest[length..];
        }
        Ok(())
    }

    /// Writes as many whole blocks as are of the same kind (zero or not, if that matters).
    fn write_similar_blocks(
        &self,
        state: &State<D::File>,
        first: u64,
        data: &[u8],
        detect_zeroes: bool,
    ) -> Result<usize, StoreError> {
        let is_zero = |block: &[u8]| detect_zeroes && block == &ZEROES[..BLOCK];
        let zero = is_zero(&data[..BLOCK]);
        let blocks = data
            .chunks_exact(BLOCK)
            .take_while(|block| is_zero(block) == zero)
            .count();
        if zero {
            self.zero_blocks(
                state,
                BlockRange {
                    first,
                    end: first + blocks as u64,
                },
            )?;
        } else {
            self.write_blocks(state, first, &data[..blocks * BLOCK])?;
        }
        Ok(blocks * BLOCK)
    }

    /// Writes less than a block. If the head does not have the block yet, it gets the whole of it, with the rest from
    /// below: a hole must mean that *all* of the block is below.
    fn write_part(
        &self,
        state: &State<D::File>,
        offset_bytes: u64,
        data: &[u8],
    ) -> Result<(), StoreError> {
        let block = offset_bytes / BLOCK_BYTES;
        let _alone =
            lock(&self.partial_writes[(block % self.partial_writes.len() as u64) as usize]);
        let at = (offset_bytes % BLOCK_BYTES) as usize;
        let write = |data: &[u8], at| {
            state
                .head
                .data
                .write_at(data, at)
                .map_err(|source| StoreError::io("write", state.head.id, source))
        };
        if let Some(session) = &state.rebuild {
            return session.write_part(state, block, at, data);
        }
        if state.map.get(block) == Some(state.head_slot) {
            return write(data, offset_bytes);
        }
        let mut whole = [0; BLOCK];
        state.read(block * BLOCK_BYTES, &mut whole)?;
        whole[at..at + data.len()].copy_from_slice(data);
        if let Err(error) = write(&whole, block * BLOCK_BYTES) {
            self.undo_write(
                state,
                BlockRange {
                    first: block,
                    end: block + 1,
                },
            );
            return Err(error);
        }
        state.map.set(block, block + 1, Some(state.head_slot));
        Ok(())
    }

    pub(super) fn zero_blocks(
        &self,
        state: &State<D::File>,
        range: BlockRange,
    ) -> Result<(), StoreError> {
        let head = &state.head;
        let failed = |source| StoreError::io("zero", head.id, source);
        let actions = match &state.rebuild {
            // What will be below is not known yet: mark everything.
            Some(session) => session.plan_zeroes(state, range),
            None => plan_zeroes(&state.map, range, state.head_slot, state.slots.len() > 1),
        };
        for action in actions {
            let (ZeroAction::Punch(run)
            | ZeroAction::Mark(run)
            | ZeroAction::OverwriteAndMark(run)) = action;
            let (at, length) = (run.first * BLOCK_BYTES, run.blocks() * BLOCK_BYTES);
            match action {
                ZeroAction::Punch(_) => head.data.punch(at, length).map_err(failed)?,
                ZeroAction::Mark(_) => head.set_marks(run).map_err(failed)?,
                ZeroAction::OverwriteAndMark(_) => {
                    head.set_marks(run).map_err(failed)?;
                    write_zero_bytes(&head.data, at, length).map_err(failed)?;
                    lock(&self.pending_punches).add(head.id, run);
                }
            }
            state.map.set(run.first, run.end, None);
        }
        Ok(())
    }
}

impl<F: DiskFile> State<F> {
    pub(super) fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        let range = BlockRange::touched_by(offset_bytes, buffer.len() as u64);
        if !range.is_empty() && self.map.run_at(range.first, range.end).end_block < range.end {
            // Else each piece would wait for the device before the next is asked for.
            self.for_each_run(offset_bytes, buffer, |file, piece, at| {
                file.fetch_ahead(at, piece.len() as u64);
                Ok(())
            })?;
        }
        self.for_each_run(offset_bytes, buffer, F::read_at)
    }

    /// Splits a read by layer. Pieces that no layer has are zeroed.
    fn for_each_run(
        &self,
        offset_bytes: u64,
        buffer: &mut [u8],
        mut read: impl FnMut(&F, &mut [u8], u64) -> io::Result<()>,
    ) -> Result<(), StoreError> {
        let range = BlockRange::touched_by(offset_bytes, buffer.len() as u64);
        let (mut at, mut rest) = (offset_bytes, buffer);
        while !rest.is_empty() {
            let run = self.map.run_at(at / BLOCK_BYTES, range.end);
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
}

pub(super) fn write_zero_bytes<F: DiskFile>(
    file: &F,
    offset_bytes: u64,
    length_bytes: u64,
) -> io::Result<()> {
    let mut at = offset_bytes;
    let end_bytes = offset_bytes + length_bytes;
    while at < end_bytes {
        let piece = (end_bytes - at).min(ZEROES.len() as u64);
        file.write_at(&ZEROES[..piece as usize], at)?;
        at += piece;
    }
    Ok(())
}

/// Splits a range that is not made of whole blocks at the blocks' boundaries.
fn for_each_part(
    from_bytes: u64,
    to_bytes: u64,
    mut visit: impl FnMut(u64, usize) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut at = from_bytes;
    while at < to_bytes {
        let end = ((at / BLOCK_BYTES + 1) * BLOCK_BYTES).min(to_bytes);
        visit(at, (end - at) as usize)?;
        at = end;
    }
    Ok(())
}
