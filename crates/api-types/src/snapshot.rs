//! `snapshots.longhorn.io`: a volume's data at one moment.

use std::collections::BTreeMap;

use kube::CustomResource;

use crate::wire::{is_default, object};

/// The most snapshots that a volume may have. Engines need some of what a chain can hold for themselves: without room for one of
/// their own no replica can be rebuilt.
pub const SNAPSHOTS_MAX: usize = 245;

object! {
    /// What a snapshot should be.
    #[derive(CustomResource)]
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "Snapshot", namespaced,
        shortname = "lhsnap", status = "SnapshotStatus", derive = "PartialEq", derive = "Default",
        label("longhorn-manager", ""),
        doc = "A volume's data at one moment.",
        printcolumn(name = "Volume", type_ = "string", json_path = ".spec.volume", description = "The volume that this snapshot belongs to"),
        printcolumn(name = "CreationTime", type_ = "string", json_path = ".status.creationTime", description = "When the snapshot was taken"),
        printcolumn(name = "ReadyToUse", type_ = "boolean", json_path = ".status.readyToUse", description = "Whether a volume can be restored or backed up from it"),
        printcolumn(name = "RestoreSize", type_ = "string", json_path = ".status.restoreSize", description = "The least size in bytes of a volume restored from it"),
        printcolumn(name = "Size", type_ = "string", json_path = ".status.size", description = "The bytes that the snapshot holds itself"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )]
    #[schemars(extend("required" = ["volume"]))]
    pub struct SnapshotSpec {
        /// The volume. It cannot be changed.
        pub volume: String,
        /// Whether to take a new snapshot, and not only to show one that the engine has.
        pub create_snapshot: bool,
        /// Labels kept with the data.
        pub labels: BTreeMap<String, String>,
    }

    /// What a snapshot is.
    pub struct SnapshotStatus {
        /// The snapshot before it.
        pub parent: String,
        /// The snapshots after it; `volume-head` is the live data.
        pub children: BTreeMap<String, bool>,
        /// Whether it is marked for removal.
        pub mark_removed: bool,
        /// Whether a person or a job asked for it.
        pub user_created: bool,
        /// When it was taken, in RFC 3339.
        pub creation_time: String,
        /// When it was asked for, in RFC 3339. Lariat sets it when an engine may have been told.
        #[serde(skip_serializing_if = "is_default")]
        pub requested_time: String,
        /// The bytes that it holds itself.
        pub size: i64,
        /// Labels kept with the data.
        pub labels: BTreeMap<String, String>,
        /// The node whose manager looks after it.
        #[serde(rename = "ownerID")]
        pub owner_id: String,
        /// Why it could not be taken or removed.
        #[serde(skip_serializing_if = "is_default")]
        pub error: String,
        /// The least size in bytes of a volume restored from it.
        pub restore_size: i64,
        /// Whether it can be used.
        pub ready_to_use: bool,
        /// The hash of its data.
        #[serde(skip_serializing_if = "is_default")]
        pub checksum: String,
        /// When that hash was computed, in RFC 3339.
        #[serde(skip_serializing_if = "is_default")]
        pub checksum_calculated_at: String,
    }
}
