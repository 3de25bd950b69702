//! `backupvolumes.longhorn.io`: the backups of one volume on one backup target.

use std::collections::BTreeMap;

use kube::CustomResource;

use crate::wire::{is_default, object};

object! {
    /// What a backup volume should be.
    #[derive(CustomResource)]
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "BackupVolume", namespaced,
        shortname = "lhbv", status = "BackupVolumeStatus", derive = "PartialEq", derive = "Default",
        label("longhorn-manager", ""),
        doc = "The backups of one volume on one backup target.",
        printcolumn(name = "BackupTarget", type_ = "string", json_path = ".spec.backupTargetName", description = "The backup target name"),
        printcolumn(name = "CreatedAt", type_ = "string", json_path = ".status.createdAt", description = "When the first backup was made"),
        printcolumn(name = "LastBackupName", type_ = "string", json_path = ".status.lastBackupName", description = "The newest backup"),
        printcolumn(name = "LastBackupAt", type_ = "string", json_path = ".status.lastBackupAt", description = "When the newest backup was made"),
        printcolumn(name = "LastSyncedAt", type_ = "string", json_path = ".status.lastSyncedAt", description = "When it was last compared with its target")
    )]
    pub struct BackupVolumeSpec {
        /// The backup target it is on.
        pub backup_target_name: String,
        /// When a comparison with the target was last asked for, in RFC 3339.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(extend("format" = "date-time"))]
        pub sync_requested_at: Option<String>,
        /// The volume.
        pub volume_name: String,
    }

    /// What a backup volume is.
    pub struct BackupVolumeStatus {
        /// The node whose manager looks after it.
        #[serde(rename = "ownerID")]
        pub owner_id: String,
        /// When its record on the target last changed, in RFC 3339.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(extend("format" = "date-time"))]
        pub last_modification_time: Option<String>,
        /// The volume's bytes, as a decimal string.
        pub size: String,
        /// Labels kept with the backups.
        pub labels: BTreeMap<String, String>,
        /// When the first backup was made.
        pub created_at: String,
        /// The newest backup.
        pub last_backup_name: String,
        /// When the newest backup was made.
        pub last_backup_at: String,
        /// The bytes that its backups take on the target, as a decimal string.
        pub data_stored: String,
        /// What went wrong when it was listed or read, by kind.
        pub messages: BTreeMap<String, String>,
        /// The volume's backing image.
        pub backing_image_name: String,
        /// The hash of that image.
        pub backing_image_checksum: String,
        /// The storage class that the volume was made with.
        pub storage_class_name: String,
        /// The volume that it was a linked clone of.
        #[serde(skip_serializing_if = "is_default")]
        pub linked_clone_source_volume: String,
        /// The snapshot that it was a linked clone of.
        #[serde(skip_serializing_if = "is_default")]
        pub linked_clone_source_snapshot: String,
        /// When it was last compared with its target, in RFC 3339.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(extend("format" = "date-time"))]
        pub last_synced_at: Option<String>,
    }
}
