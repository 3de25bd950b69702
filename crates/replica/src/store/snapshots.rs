//! Snapshots, reverts and expansion: changes of the metadata with a little preparation.
//!
//! Each makes new files durable first, then replaces the metadata, then changes memory and removes old files. A crash
//! before the replacement leaves files that the next open removes; one after it leaves the new state.
//!
//! Writers wait while a snapshot is taken, so taking one waits for no disk if it was prepared: the new head's files are there, and
//! the metadata is only staged. A kill loses neither; the next flush, which promises everything, makes it durable first.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use block_core::epoch::Tenure;
use block_core::geometry::check_size;
use block_core::layers::{BlockMap, LayerId};
use block_core::wire::ReplicaMode;
use block_core::{BLOCK_BYTES, SnapshotName};

use super::{Replica, Spare, State, StoreError, lock};
use crate::disk::{Disk, DiskFile};
use crate::layer_files::LayerFiles;

/// How long a prepared snapshot may take to come: the other replicas prepare theirs first.
pub(super) const QUIET_MAX: Duration = Duration::from_secs(5);

impl<D: Disk> Replica<D> {
    /// Freezes the volume as it is, durably: [`Replica::freeze`] and a flush.
    pub fn create_snapshot(
        &self,
        tenure: impl Into<Tenure>,
        name: &SnapshotName,
        created_unix_ms: u64,
        user_created: bool,
    ) -> Result<(), StoreError> {
        self.freeze(tenure, name, created_unix_ms, user_created)?;
        self.sync_all()
    }

    /// Flushes, and makes the files that the next snapshot will need.
    pub fn prepare_snapshot(&self, tenure: impl Into<Tenure>) -> Result<(), StoreError> {
        let tenure = tenure.into();
        {
            let _structure = lock(&self.structure);
            let (id, size_bytes) = {
                let state = self.shared();
                self.check_writable(&state, tenure)?;
                let tree = &state.metadata.tree;
                (LayerId(tree.next_id()), tree.size_bytes())
            };
            let files = self.create_layer(id, size_bytes)?;
            *lock(&self.spare) = Some(Spare { files, size_bytes });
            self.keep_quiet();
        }
        let flushed = self.flush(tenure);
        // Of an engine that was replaced meanwhile no snapshot will come.
        if flushed.is_ok() && self.check_tenure(tenure).is_ok() {
            self.keep_quiet();
        } else {
            self.end_quiet();
        }
        flushed
    }

    fn keep_quiet(&self) {
        *lock(&self.quiet_until) = Some(Instant::now() + self.quiet_max);
    }

    pub(super) fn end_quiet(&self) {
        *lock(&self.quiet_until) = None;
        self.quiet_ended.notify_all();
    }

    /// For work in the background, whose locks may be held for a second on a busy disk: a snapshot that was prepared goes first,
    /// since writers wait for it.
    pub(super) fn give_way(&self) {
        let mut until = lock(&self.quiet_until);
        while let Some(left) = until.and_then(|until| until.checked_duration_since(Instant::now()))
        {
            let waited = self.quiet_ended.wait_timeout(until, left);
            until = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Freezes the volume as it is. Everything that was answered before is in the snapshot. That there is one, and what it
    /// holds, is durable with the next flush, like all that was written. So whoever holds writers back for the
    /// snapshot need not hold them back for the flush. I/O stops only for as long as it takes to change the head in memory.
    pub fn freeze(
        &self,
        tenure: impl Into<Tenure>,
        name: &SnapshotName,
        created_unix_ms: u64,
        user_created: bool,
    ) -> Result<(), StoreError> {
        let frozen = self.change_head(tenure.into(), name, created_unix_ms, user_created);
        self.end_quiet();
        frozen
    }

    fn change_head(
        &self,
        tenure: Tenure,
        name: &SnapshotName,
        created_unix_ms: u64,
        user_created: bool,
    ) -> Result<(), StoreError> {
        let _structure = lock(&self.structure);
        let mut next = {
            let state = self.shared();
            self.check_writable(&state, tenure)?;
            state.metadata.clone()
        };
        let before = next.tree.clone();
        let new_id = next.tree.snapshot(name, created_unix_ms, user_created)?;
        let new_head = self.create_layer(new_id, next.tree.size_bytes())?;
        // Writes between here and the change below still go to the old head. They are not answered as part of
        // the new one, so they belong to the snapshot; should the power go now, that is what is found.
        self.stage_metadata(&next)?;
        let mut state = self.alone();
        let old_head = state.head.clone();
        if state.rebuild.is_some() {
            // Only the head counts until the layers below are complete, and it is a new one.
            state.by_slot.fill(None);
            state.slots.clear();
            state.map = BlockMap::new(next.tree.size_bytes() / BLOCK_BYTES);
        }
        let slot = state
            .free_slot()
            .expect("there are fewer layers than slots");
        state.by_slot[usize::from(slot.number())] = Some(new_head.clone());
        state.slots.insert(new_id, slot);
        state.files.insert(new_id, new_head.clone());
        state.head = new_head;
        state.head_slot = slot;
        state.metadata = next;
        // A flush that comes next must sync the old head, too, and finds it here.
        lock(&self.unsynced).push(old_head);
        self.note_staged(before);
        Ok(())
    }

    /// Marks a snapshot as removed; a purge merges it away.
    pub fn delete_snapshot(
        &self,
        tenure: impl Into<Tenure>,
        name: &SnapshotName,
    ) -> Result<(), StoreError> {
        let tenure = tenure.into();
        self.change_metadata(tenure, |next| Ok(next.tree.mark_removed(name)?))
    }

    /// Makes the live volume what the snapshot shows. What was written since is gone, and takes space until
    /// [`Replica::remove_leftovers`].
    pub fn revert(&self, tenure: impl Into<Tenure>, name: &SnapshotName) -> Result<(), StoreError> {
        let tenure = tenure.into();
        let Ok(_long) = self.long.try_lock() else {
            return Err(StoreError::Busy { what: "a purge" });
        };
        let _structure = self.settled_structure()?;
        let mut state = self.alone();
        self.check_ready(&state, tenure)?;
        let mut next = state.metadata.clone();
        let dropped = next.tree.revert(name)?;
        let new_id = next.tree.head();
        let new_head = self.create_layer(new_id, next.tree.size_bytes())?;
        let mut files = state.files.clone();
        files.remove(&dropped);
        files.insert(new_id, new_head);
        let changed =
            State::build(next, files).map_err(|source| StoreError::io("index", new_id, source))?;
        self.store_metadata(&changed.metadata)?;
        *state = changed;
        lock(&self.pending_punches).clear();
        lock(&self.leftovers).push(dropped);
        Ok(())
    }

    /// Makes the volume larger. The new part reads as zero.
    pub fn expand(&self, tenure: impl Into<Tenure>, size_bytes: u64) -> Result<(), StoreError> {
        let tenure = tenure.into();
        check_size(size_bytes)?;
        // The bulk before the lock, for which others wait; what is written meanwhile is little.
        self.flush(tenure)?;
        let _structure = self.settled_structure()?;
        let (mut next, head) = {
            let state = self.shared();
            self.check(&state, tenure)?;
            if state.metadata.mode == ReplicaMode::Rebuilding && state.rebuild.is_none() {
                return Err(StoreError::NoRebuild);
            }
            (state.metadata.clone(), state.head.clone())
        };
        next.tree.expand(size_bytes)?;
        // A longer file than the metadata says does no harm, a shorter one would.
        let resized = head.data.set_len(size_bytes);
        resized.map_err(|source| StoreError::io("resize", head.id, source))?;
        // It syncs what was written, too, so its failure is one of the next flush.
        self.sync_layer(&head)?;
        self.store_metadata(&next)?;
        let mut state = self.alone();
        state.map.grow(size_bytes / BLOCK_BYTES);
        state.metadata = next;
        Ok(())
    }

    pub(super) fn create_layer(
        &self,
        id: LayerId,
        size_bytes: u64,
    ) -> Result<Arc<LayerFiles<D::File>>, StoreError> {
        // One that does not fit is forgotten here: its files may be those that are made next.
        let spare = lock(&self.spare).take();
        if let Some(spare) = spare.filter(|it| it.files.id == id && it.size_bytes == size_bytes) {
            return Ok(spare.files);
        }
        LayerFiles::create(&self.disk, id, size_bytes)
            .map(Arc::new)
            .map_err(|source| {
                // Best effort: the next open removes it as well.
                let _ = LayerFiles::<D::File>::remove(&self.disk, id);
                StoreError::io("create", id, source)
            })
    }

    /// Removes the files of layers that a revert or the beginning of a rebuild has left. Numbers of layers are not used again,
    /// so whatever happens meanwhile is of others; and what a crash leaves, the next open removes.
    pub fn remove_leftovers(&self) {
        let leftovers = std::mem::take(&mut *lock(&self.leftovers));
        for id in leftovers {
            self.remove_layer(id);
        }
    }

    /// Removes files that the metadata does not name any more. That they stay is no error: the next open removes them.
    pub(super) fn remove_layer(&self, id: LayerId) {
        if let Err(error) = LayerFiles::<D::File>::remove(&self.disk, id) {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(volume.name = %self.volume, layer.id = id.0, error, "a layer's files stay for now");
        }
    }
}
