//! `backuptargets.longhorn.io`: a place where backups are kept.

use kube::CustomResource;

use crate::{
    condition::Condition,
    wire::{is_default, object},
};

/// The condition type that says why a backup target cannot be used.
pub const BACKUP_TARGET_UNAVAILABLE_CONDITION: &str = "Unavailable";

object! {
    /// What a backup target should be.
    #[derive(CustomResource)]
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "BackupTarget", namespaced,
        shortname = "lhbt", status = "BackupTargetStatus", derive = "PartialEq", derive = "Default",
        label("longhorn-manager", ""),
        doc = "A place where backups are kept.",
        printcolumn(name = "URL", type_ = "string", json_path = ".spec.backupTargetURL", description = "Where the backups are"),
        printcolumn(name = "Credential", type_ = "string", json_path = ".spec.credentialSecret", description = "The secret that opens it"),
        printcolumn(name = "LastBackupAt", type_ = "string", json_path = ".spec.pollInterval", description = "How often it is looked at"),
        printcolumn(name = "Available", type_ = "boolean", json_path = ".status.available", description = "Whether it can be used"),
        printcolumn(name = "LastSyncedAt", type_ = "string", json_path = ".status.lastSyncedAt", description = "When it was last looked at")
    )]
    pub struct BackupTargetSpec {
        /// Where the backups are, such as `s3://BUCKET@REGION/PATH`; empty for nowhere.
        #[serde(rename = "backupTargetURL")]
        pub backup_target_url: String,
        /// The secret that opens it.
        pub credential_secret: String,
        /// How often it is looked at, as a Go duration such as `5m0s`.
        pub poll_interval: String,
        /// When a look was last asked for, in RFC 3339.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(extend("format" = "date-time"))]
        pub sync_requested_at: Option<String>,
    }

    /// What a backup target is.
    pub struct BackupTargetStatus {
        /// The node whose manager looks after it.
        #[serde(rename = "ownerID")]
        pub owner_id: String,
        /// Whether it can be used.
        pub available: bool,
        /// Why it cannot: one condition of the type `Unavailable`.
        pub conditions: Vec<Condition>,
        /// When it was last looked at, in RFC 3339.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(extend("format" = "date-time"))]
        pub last_synced_at: Option<String>,
        /// How many volumes have backups on it.
        #[serde(skip_serializing_if = "is_default")]
        pub backup_volume_count: i64,
    }
}
