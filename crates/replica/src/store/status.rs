//! What a replica says of itself and of its layers.

use std::sync::atomic::Ordering::Relaxed;

use block_core::Epoch;
use block_core::layers::LayerId;
use block_core::wire::{LayerInfo, LayerRef, ReplicaStatus};

use super::{Replica, StoreError};
use crate::disk::Disk;

impl<D: Disk> Replica<D> {
    /// The replica as it describes itself.
    pub fn status(&self) -> Result<ReplicaStatus, StoreError> {
        let layers = self.list_layers()?;
        let state = self.shared();
        let metadata = &state.metadata;
        Ok(ReplicaStatus {
            volume: self.volume.clone(),
            mode: metadata.mode,
            size_bytes: metadata.tree.size_bytes(),
            accepted_epoch: metadata.accepted_epoch,
            sync_epoch: metadata
                .sync
                .as_ref()
                .map_or(Epoch::NONE, |(epoch, _)| *epoch),
            sync: metadata.sync.as_ref().map(|(_, sync)| sync.clone()),
            allocated_bytes: layers.iter().map(|layer| layer.allocated_bytes).sum(),
            layers: u32::try_from(layers.len()).unwrap_or(u32::MAX),
            purge_done_bytes: self.purge_done_bytes.load(Relaxed),
            purge_total_bytes: self.purge_total_bytes.load(Relaxed),
            older_silent_us: self.heard.older_silent_us(),
            host_boot: self.host_boot,
            restarted_since_opened: metadata.may_lack_writes(self.host_boot),
            fault: self.fault.get().cloned().unwrap_or_default(),
        })
    }

    /// All layers, parents before children, the head last.
    pub fn list_layers(&self) -> Result<Vec<LayerInfo>, StoreError> {
        let state = self.shared();
        let tree = &state.metadata.tree;
        let name_of = |id: LayerId| tree.layers()[&id].name.clone();
        let mut layers = Vec::new();
        // A merge can leave a child with a smaller number than its parent: order by depth, not by number.
        let mut ids: Vec<LayerId> = tree.layers().keys().copied().collect();
        ids.sort_by_key(|id| (*id == tree.head(), tree.path_to(*id).len(), *id));
        for id in ids {
            let layer = &tree.layers()[&id];
            let allocated = state.files[&id].allocated_bytes();
            layers.push(LayerInfo {
                layer: layer
                    .name
                    .clone()
                    .map_or(LayerRef::Head, LayerRef::Snapshot),
                parent: layer.parent.and_then(name_of),
                created_unix_ms: layer.created_unix_ms,
                user_created: layer.user_created,
                removed: layer.removed,
                size_bytes: layer.size_bytes,
                allocated_bytes: allocated.map_err(|source| StoreError::io("stat", id, source))?,
                digest: layer.digest,
            });
        }
        Ok(layers)
    }
}
