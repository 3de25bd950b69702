//! Metadata on its way to the disk.
//!
//! A snapshot is staged: the metadata that names it is written and not durable, and the next flush makes it so, after all blocks that
//! the name covers. A snapshot's name must not outlive what it names. Meanwhile everything else goes on without waiting for that
//! flush, which on a slow disk takes minutes: what says nothing about layers is written to both, the staged metadata and the
//! durable one below it; further snapshots are staged over the first. Only what needs the layers as they are on the disk waits.
//!
//! ```text
//! settled ──stage──> being staged ──note──> staged ──flush──> settled
//!                         └──────<──stage──────┘
//! ```

use std::sync::MutexGuard;

use block_core::epoch::Tenure;
use block_core::layers::LayerTree;

use super::{Replica, StoreError, lock};
use crate::disk::Disk;
use crate::metadata::{Metadata, StoreMetadataError};

/// What of the newest metadata is not durable yet.
#[derive(Debug, Default)]
pub(super) struct Staged {
    /// While something is staged: the layers as they are durable.
    durable_tree: Option<LayerTree>,
    /// How often something was staged, in the file and in memory. They differ while a snapshot is being made.
    in_file: u64,
    in_memory: u64,
    /// Nothing was stored since the open. A kill may have left what it found to the kernel's memory alone.
    is_found: bool,
}

/// What a flush promises to make durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StageNumber(u64);

impl Staged {
    /// As an open finds it.
    pub fn found(durable_tree: Option<LayerTree>) -> Self {
        Self {
            durable_tree,
            is_found: true,
            ..Self::default()
        }
    }

    fn is_staged(&self) -> bool {
        self.durable_tree.is_some()
    }
}

impl<D: Disk> Replica<D> {
    /// For whoever changes layers on the disk: one at a time, and on top of what is durable.
    pub(super) fn settled_structure(&self) -> Result<MutexGuard<'_, ()>, StoreError> {
        loop {
            // Not while others are held up that need no disk.
            if self.stage_to_settle().is_some() {
                self.sync_all()?;
            }
            let structure = lock(&self.structure);
            if self.stage_to_settle().is_none() {
                return Ok(structure);
            }
        }
    }

    /// Changes no files. It is durable when this returns, but for what it says of layers that are only staged.
    pub(super) fn change_metadata(
        &self,
        tenure: Tenure,
        change: impl Fn(&mut Metadata) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let _structure = lock(&self.structure);
        let mut next = {
            let state = self.shared();
            self.check(&state, tenure)?;
            state.metadata.clone()
        };
        change(&mut next)?;
        // What is refused there speaks of layers that are only staged.
        self.store_beside_layers(&next, |durable| drop(change(durable)))?;
        self.alone().metadata = next;
        Ok(())
    }

    /// Replaces the metadata as a whole. Nothing is staged.
    pub(super) fn store_metadata(&self, next: &Metadata) -> Result<(), StoreError> {
        let staged = lock(&self.staged);
        self.check_fault()?;
        assert!(
            !staged.is_staged(),
            "the next open would take what was staged before"
        );
        next.store(&self.disk)
            .map_err(|error| self.metadata_failed(error))
    }

    /// The same for what needs no layer to be durable. If something is staged, `change` makes the change to the layers below it.
    pub(super) fn store_beside_layers(
        &self,
        next: &Metadata,
        change: impl FnOnce(&mut Metadata),
    ) -> Result<(), StoreError> {
        let mut staged = lock(&self.staged);
        self.check_fault()?;
        let Some(durable_tree) = &mut staged.durable_tree else {
            next.store(&self.disk)
                .map_err(|error| self.metadata_failed(error))?;
            staged.is_found = false;
            return Ok(());
        };
        let mut durable = next.clone();
        durable.tree = durable_tree.clone();
        change(&mut durable);
        // The staged one first: a kill in between leaves the newest, and a loss of power the old.
        next.stage(&self.disk)
            .map_err(|error| self.metadata_failed(error))?;
        durable.store(&self.disk).map_err(|error| {
            // The next process might find the change, which is answered as one that failed.
            let (StoreMetadataError::NotStored(error) | StoreMetadataError::Uncertain(error)) =
                error;
            self.metadata_failed(StoreMetadataError::Uncertain(error))
        })?;
        *durable_tree = durable.tree;
        staged.is_found = false;
        Ok(())
    }

    /// Makes durable what the open found, for whoever builds on it without a change: a process that was killed may have replaced
    /// metadata and told nobody. Where nothing is staged this takes no room, so a disk that is full refuses no engine its return.
    pub(super) fn keep_found(&self, found: &Metadata) -> Result<(), StoreError> {
        {
            let mut staged = lock(&self.staged);
            self.check_fault()?;
            if !staged.is_found {
                return Ok(());
            }
            if !staged.is_staged() {
                // The content was synced before it got its name.
                self.disk
                    .sync_folder()
                    .map_err(|error| self.metadata_failed(StoreMetadataError::Uncertain(error)))?;
                staged.is_found = false;
                return Ok(());
            }
        }
        self.store_beside_layers(found, |_| {})
    }

    /// Writes metadata that names a new snapshot. No flush makes it durable before [`Replica::note_staged`].
    pub(super) fn stage_metadata(&self, next: &Metadata) -> Result<(), StoreError> {
        let mut staged = lock(&self.staged);
        self.check_fault()?;
        next.stage(&self.disk)
            .map_err(|error| self.metadata_failed(error))?;
        staged.in_file += 1;
        Ok(())
    }

    /// All that the staged metadata speaks of will be found by the next flush. `before` is the tree without the snapshot.
    pub(super) fn note_staged(&self, before: LayerTree) {
        let mut staged = lock(&self.staged);
        staged.durable_tree.get_or_insert(before);
        staged.in_memory = staged.in_file;
    }

    /// What a flush that begins now has to settle.
    pub(super) fn stage_to_settle(&self) -> Option<StageNumber> {
        let staged = lock(&self.staged);
        staged.is_staged().then_some(StageNumber(staged.in_memory))
    }

    /// Makes staged metadata durable, for a flush that has synced what it speaks of. `false` if the file speaks of more than that:
    /// a snapshot came over it.
    pub(super) fn settle_metadata(&self, synced: StageNumber) -> Result<bool, StoreError> {
        let mut staged = lock(&self.staged);
        self.check_fault()?;
        if staged.in_file != synced.0 {
            return Ok(false);
        }
        if staged.is_found {
            Metadata::stage_again(&self.disk).map_err(|error| self.metadata_failed(error))?;
        }
        Metadata::settle(&self.disk)
            .map_err(|error| self.metadata_failed(StoreMetadataError::Uncertain(error)))?;
        staged.durable_tree = None;
        staged.is_found = false;
        Ok(true)
    }

    fn metadata_failed(&self, error: StoreMetadataError) -> StoreError {
        if let StoreMetadataError::Uncertain(source) = &error {
            self.set_fault(format!("metadata may or may not be stored: {source}"));
        }
        StoreError::Metadata(error)
    }
}
