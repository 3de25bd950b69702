//! `backups.longhorn.io`: a snapshot copied to a backup target.

use std::collections::BTreeMap;

use kube::CustomResource;

use crate::{
    byte_size::ByteSize,
    wire::{is_default, object, string_enum},
};

string_enum! {
    /// How far a backup has come. `Completed`, `Error` and `Unknown` are final.
    pub open enum BackupState {
        /// It was just asked for.
        #[default]
        New = "",
        /// It waits for its volume.
        Pending = "Pending",
        /// It is being copied.
        InProgress = "InProgress",
        /// It is whole.
        Completed = "Completed",
        /// It failed.
        Error = "Error",
        /// What became of it cannot be found out.
        Unknown = "Unknown",
    }

    /// How much a backup copies.
    pub checked enum BackupMode {
        /// What has changed since the last backup.
        #[default]
        Incremental = "incremental",
        /// Everything.
        Full = "full",
    }

    /// How backups are compressed.
    pub checked enum BackupCompressionMethod {
        /// Not at all.
        None = "none",
        /// By LZ4.
        #[default]
        Lz4 = "lz4",
        /// By gzip.
        Gzip = "gzip",
    }
}

impl BackupState {
    /// Whether nothing more will happen to the backup.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Completed | Self::Error | Self::Unknown)
    }
}

object! {
    /// What a backup should be.
    #[derive(CustomResource)]
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "Backup", namespaced,
        shortname = "lhb", status = "BackupStatus", derive = "PartialEq", derive = "Default",
        label("longhorn-manager", ""),
        doc = "A snapshot copied to a backup target.",
        printcolumn(name = "SnapshotName", type_ = "string", json_path = ".status.snapshotName", description = "The snapshot name"),
        printcolumn(name = "SnapshotSize", type_ = "string", json_path = ".status.size", description = "The snapshot size"),
        printcolumn(name = "SnapshotCreatedAt", type_ = "string", json_path = ".status.snapshotCreatedAt", description = "When the snapshot was taken"),
        printcolumn(name = "BackupTarget", type_ = "string", json_path = ".status.backupTargetName", description = "The backup target name"),
        printcolumn(name = "State", type_ = "string", json_path = ".status.state", description = "The backup state"),
        printcolumn(name = "LastSyncedAt", type_ = "string", json_path = ".status.lastSyncedAt", description = "When the backup was last compared with its target")
    )]
    pub struct BackupSpec {
        /// When a comparison with the target was last asked for, in RFC 3339.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(extend("format" = "date-time"))]
        pub sync_requested_at: Option<String>,
        /// The snapshot to back up.
        pub snapshot_name: String,
        /// Labels kept with the backup.
        pub labels: BTreeMap<String, String>,
        /// How much to copy.
        pub backup_mode: BackupMode,
        /// The block size in bytes; zero for the default of 2 MiB, and `-1` for one that makes no sense.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(extend("pattern" = "^(-1|[0-9]{0,18})$"))]
        pub backup_block_size: ByteSize,
    }

    /// What a backup is.
    pub struct BackupStatus {
        /// The node whose manager looks after it.
        #[serde(rename = "ownerID")]
        pub owner_id: String,
        /// How far it has come.
        pub state: BackupState,
        /// Percent done.
        pub progress: i64,
        /// The replica that reads the data.
        pub replica_address: String,
        /// Why it failed.
        #[serde(skip_serializing_if = "is_default")]
        pub error: String,
        /// What holds it back, in a sentence, while it is pending.
        #[serde(skip_serializing_if = "is_default")]
        pub message: String,
        /// Where it is.
        pub url: String,
        /// The snapshot.
        pub snapshot_name: String,
        /// When the snapshot was taken.
        pub snapshot_created_at: String,
        /// When the backup was whole.
        pub backup_created_at: String,
        /// The snapshot's bytes, as a decimal string.
        pub size: String,
        /// Labels kept with the backup.
        pub labels: BTreeMap<String, String>,
        /// What went wrong when it was listed or read, by kind.
        pub messages: BTreeMap<String, String>,
        /// The volume.
        pub volume_name: String,
        /// The volume's bytes, as a decimal string.
        pub volume_size: String,
        /// When the volume was created.
        pub volume_created: String,
        /// The volume's backing image.
        pub volume_backing_image_name: String,
        /// When it was last compared with its target, in RFC 3339.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(extend("format" = "date-time"))]
        pub last_synced_at: Option<String>,
        /// How it is compressed.
        pub compression_method: String,
        /// The backup target it is on.
        #[serde(skip_serializing_if = "is_default")]
        pub backup_target_name: String,
        /// Bytes that were new to the target, as a decimal string.
        #[serde(skip_serializing_if = "is_default")]
        pub newly_upload_data_size: String,
        /// Bytes that were copied again, as a decimal string.
        #[serde(skip_serializing_if = "is_default")]
        pub re_uploaded_data_size: String,
    }
}
