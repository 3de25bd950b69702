//! What operations and the reaper need to know of Volumes, Snapshots and Backups.

use api_types::names::VOLUME_HEAD;
use api_types::{BackupState, VolumeCloneState};

use crate::holders::{Backup, Snapshot, VolumeFacts};
use crate::names::NodeName;
use crate::reaper::Fate;

use super::FieldError;

/// A Volume as operations see it. What is not in the object itself keeps the value of an idle volume: the caller, who
/// knows replicas, disks and settings, fills in `eviction_possible`, `replacement_possible`, `lacks_replicas`,
/// `offline_rebuilding` and `first_ready_node`.
pub fn volume_facts(object: &api_types::Volume) -> Result<VolumeFacts, FieldError> {
    let (volume, _) = super::volume(object)?;
    let default = api_types::VolumeStatus::default();
    let status = object.status.as_ref().unwrap_or(&default);
    Ok(VolumeFacts {
        sharing: volume.sharing,
        state: volume.status.state,
        robustness: volume.status.robustness,
        deleting: object.metadata.deletion_timestamp.is_some(),
        standby: object.spec.standby || status.is_standby,
        frontend_disabled: status.frontend_disabled,
        current_node: NodeName::from_wire(&status.current_node_id),
        restore_required: status.restore_required,
        expansion_required: status.expansion_required,
        clone_copying: status.clone_status.state == VolumeCloneState::Initiated,
        ..VolumeFacts::idle(volume.name.as_str(), &status.owner_id)
    })
}

/// What is not in a Snapshot itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct SnapshotSurroundings {
    /// The engine has its data; None when no engine can be asked.
    pub in_engine: Option<bool>,
    /// The volume can have no more snapshots.
    pub refused: bool,
    /// Removing snapshots is switched off.
    pub purge_disabled: bool,
}

/// A Snapshot as its holder sees it.
#[must_use]
pub fn snapshot(object: &api_types::Snapshot, around: SnapshotSurroundings) -> Snapshot {
    let default = api_types::SnapshotStatus::default();
    let status = object.status.as_ref().unwrap_or(&default);
    Snapshot {
        name: object.metadata.name.as_deref().unwrap_or_default().into(),
        create: object.spec.create_snapshot,
        refused: around.refused,
        requested: !status.requested_time.is_empty(),
        created: !status.creation_time.is_empty(),
        deleting: object.metadata.deletion_timestamp.is_some(),
        purged: around.in_engine == Some(false),
        is_head_parent: status.children.contains_key(VOLUME_HEAD),
        has_branches: status.children.len() > 1,
        purge_disabled: around.purge_disabled,
    }
}

/// Whether a Snapshot may still need its volume.
#[must_use]
pub fn snapshot_fate(object: &api_types::Snapshot) -> Fate {
    let facts = snapshot(object, SnapshotSurroundings::default());
    if facts.created && !facts.deleting {
        return Fate::Final {
            result: "it is taken".into(),
        };
    }
    Fate::Active
}

/// A Backup as its holder sees it.
#[must_use]
pub fn backup(object: &api_types::Backup, snapshot_exists: bool) -> Backup {
    let default = api_types::BackupStatus::default();
    let status = object.status.as_ref().unwrap_or(&default);
    Backup {
        name: object.metadata.name.as_deref().unwrap_or_default().into(),
        is_final: status.state.is_final(),
        synced: status.last_synced_at.is_some(),
        deleting: object.metadata.deletion_timestamp.is_some(),
        snapshot_exists,
    }
}

/// Whether a Backup may still need its volume.
#[must_use]
pub fn backup_fate(object: &api_types::Backup, snapshot_exists: bool) -> Fate {
    let facts = backup(object, snapshot_exists);
    let state = object
        .status
        .as_ref()
        .map(|status| status.state.clone())
        .unwrap_or_default();
    if facts.is_final {
        return Fate::Final {
            result: state.as_str().into(),
        };
    }
    if facts.deleting {
        return Fate::Final {
            result: "it is being deleted".into(),
        };
    }
    // A copy that has begun reads what it needs; one that waits for a snapshot that is gone waits for ever.
    let waits = matches!(state, BackupState::New | BackupState::Pending);
    if waits && !snapshot_exists {
        let name = &object.spec.snapshot_name;
        return Fate::Hopeless {
            reason: format!("its snapshot {name:?} does not exist").into(),
        };
    }
    Fate::Active
}
