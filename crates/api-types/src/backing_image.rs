//! `backingimages.longhorn.io`: read-only data that volumes can start from.

use std::collections::BTreeMap;

use kube::CustomResource;

use crate::{
    volume::DataEngine,
    wire::{is_default, object, string_enum},
};

string_enum! {
    /// Where an image's data comes from.
    pub checked enum BackingImageSourceType {
        /// A URL.
        #[default]
        Download = "download",
        /// A person.
        Upload = "upload",
        /// A volume.
        ExportFromVolume = "export-from-volume",
        /// A backup.
        Restore = "restore",
        /// Another image.
        Clone = "clone",
    }

    /// How far a copy of an image has come.
    pub open enum BackingImageState {
        /// It waits.
        #[default]
        Pending = "pending",
        /// It begins.
        Starting = "starting",
        /// It can be fetched by others.
        ReadyForTransfer = "ready-for-transfer",
        /// It is whole.
        Ready = "ready",
        /// It is being copied.
        InProgress = "in-progress",
        /// It failed.
        Failed = "failed",
        /// It failed, and what was there is gone.
        FailedAndCleanUp = "failed-and-cleanup",
        /// Its node does not answer.
        Unknown = "unknown",
    }
}

object! {
    /// What a backing image should be.
    #[derive(CustomResource)]
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "BackingImage", namespaced,
        shortname = "lhbi", status = "BackingImageStatus", derive = "PartialEq", derive = "Default",
        label("longhorn-manager", ""),
        doc = "Read-only data that volumes can start from.",
        printcolumn(name = "UUID", type_ = "string", json_path = ".status.uuid", description = "The identity of the data"),
        printcolumn(name = "SourceType", type_ = "string", json_path = ".spec.sourceType", description = "Where the data comes from"),
        printcolumn(name = "Size", type_ = "string", json_path = ".status.size", description = "The bytes of the file on each disk"),
        printcolumn(name = "VirtualSize", type_ = "string", json_path = ".status.virtualSize", description = "The bytes of the image, which may be more than the file's"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )]
    pub struct BackingImageSpec {
        /// The disks with a copy, in the form that `diskFileSpecMap` replaced.
        #[serde(skip_serializing_if = "is_default")]
        pub disks: BTreeMap<String, String>,
        /// The disks that should have a copy, by the disk's UUID.
        pub disk_file_spec_map: BTreeMap<String, BackingImageDiskFileSpec>,
        /// The SHA-512 that the data must have; empty for any.
        pub checksum: String,
        /// Where the data comes from.
        pub source_type: BackingImageSourceType,
        /// More about that, such as `url`.
        pub source_parameters: BTreeMap<String, String>,
        /// How many copies there should be at least.
        pub min_number_of_copies: i64,
        /// Tags that every disk used must have.
        pub disk_selector: Vec<String>,
        /// Tags that every node used must have.
        pub node_selector: Vec<String>,
        /// The secret that an encrypted image needs.
        pub secret: String,
        /// The namespace of that secret.
        pub secret_namespace: String,
        /// Which implementation reads it.
        pub data_engine: DataEngine,
    }

    /// What a copy should be.
    pub struct BackingImageDiskFileSpec {
        /// Whether it should leave its disk.
        pub eviction_requested: bool,
        /// Which implementation reads it.
        pub data_engine: DataEngine,
    }

    /// What a backing image is.
    pub struct BackingImageStatus {
        /// The node whose manager looks after it.
        #[serde(rename = "ownerID")]
        pub owner_id: String,
        /// The identity of the data.
        pub uuid: String,
        /// The bytes of the file.
        pub size: i64,
        /// The bytes of the image; zero until they are known.
        pub virtual_size: i64,
        /// The bytes that the file takes; zero until they are known.
        pub real_size: i64,
        /// The SHA-512 of the data.
        pub checksum: String,
        /// The copies, by the disk's UUID.
        pub disk_file_status_map: BTreeMap<String, BackingImageDiskFileStatus>,
        /// When a copy was last needed, by the disk's UUID.
        pub disk_last_ref_at_map: BTreeMap<String, String>,
        /// The state of the first copy for the v2 data engine.
        #[serde(skip_serializing_if = "is_default")]
        pub v2_first_copy_status: String,
        /// The disk of that copy.
        #[serde(skip_serializing_if = "is_default")]
        pub v2_first_copy_disk: String,
    }

    /// What a copy is.
    pub struct BackingImageDiskFileStatus {
        /// Which implementation reads it.
        pub data_engine: DataEngine,
        /// How far it has come.
        pub state: BackingImageState,
        /// Percent done.
        pub progress: i64,
        /// Why it failed.
        pub message: String,
        /// When `state` last changed, in RFC 3339.
        pub last_state_transition_time: String,
    }
}
