//! `replicas.longhorn.io`: one copy of a volume's data, on one disk.

use kube::CustomResource;

use crate::{
    byte_size::ByteSize,
    condition::Condition,
    engine::InstanceState,
    volume::DataEngine,
    wire::{is_default, object},
};

/// Condition types of a replica.
pub mod replica_condition {
    /// Its last rebuild failed.
    pub const REBUILD_FAILED: &str = "RebuildFailed";
    /// The backing image is not there yet.
    pub const WAIT_FOR_BACKING_IMAGE: &str = "WaitForBackingImage";
}

object! {
    /// What a replica should be. Written only by the volume controller.
    #[derive(CustomResource)]
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "Replica", namespaced,
        shortname = "lhr", status = "ReplicaStatus", derive = "PartialEq", derive = "Default",
        label("longhorn-manager", ""),
        doc = "One copy of a volume's data.",
        printcolumn(name = "Data Engine", type_ = "string", json_path = ".spec.dataEngine", description = "The data engine of the replica"),
        printcolumn(name = "State", type_ = "string", json_path = ".status.currentState", description = "The current state of the replica"),
        printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeID", description = "The node that the replica is on"),
        printcolumn(name = "Disk", type_ = "string", json_path = ".spec.diskID", description = "The disk that the replica is on"),
        printcolumn(name = "InstanceManager", type_ = "string", json_path = ".status.instanceManagerName", description = "What serves the replica"),
        printcolumn(name = "Image", type_ = "string", json_path = ".status.currentImage", description = "The current image of the replica"),
        printcolumn(name = "Epoch", type_ = "integer", json_path = ".status.acceptedEpoch", description = "The largest epoch that the replica has accepted", priority = "1"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )]
    pub struct ReplicaSpec {
        /// The volume it belongs to.
        pub volume_name: String,
        /// The volume's size in bytes.
        pub volume_size: ByteSize,
        /// The node it is on.
        #[serde(rename = "nodeID")]
        pub node_id: String,
        /// The engine image; Lariat's replicas come with the node agent and ignore it.
        pub image: String,
        /// What it should do.
        pub desire_state: InstanceState,
        /// Whether its log should be fetched.
        pub log_requested: bool,
        /// Whether it should be used although it failed.
        pub salvage_requested: bool,
        /// Which implementation moves the blocks.
        pub data_engine: DataEngine,
        /// The engine that uses it.
        pub engine_name: String,
        /// The engine of a migration that uses it too.
        #[serde(skip_serializing_if = "is_default")]
        pub migration_engine_name: String,
        /// When it last became whole by creation or rebuild, in RFC 3339; empty while it is not.
        pub healthy_at: String,
        /// When it last became whole; never cleared.
        pub last_healthy_at: String,
        /// When it failed; cleared before a rebuild or salvage.
        pub failed_at: String,
        /// When it last failed; never cleared.
        pub last_failed_at: String,
        /// The disk it is on, by the disk's UUID.
        #[serde(rename = "diskID")]
        pub disk_id: String,
        /// Where that disk is mounted.
        pub disk_path: String,
        /// Its folder on the disk.
        pub data_directory_name: String,
        /// The backing image below its own data.
        pub backing_image: String,
        /// Whether it belongs to the volume in use, and not to the target of a migration.
        pub active: bool,
        /// The only node it may be on.
        pub hard_node_affinity: String,
        /// Whether it keeps no revision counter.
        pub revision_counter_disabled: bool,
        /// Whether trimming may go through snapshots that nobody needs.
        pub unmap_mark_disk_chain_removed_enabled: bool,
        /// How often its rebuild was tried.
        pub rebuild_retry_count: i64,
        /// Whether it should leave its disk.
        pub eviction_requested: bool,
        /// How many snapshots may exist.
        pub snapshot_max_count: i64,
        /// How many bytes all snapshots may hold together.
        pub snapshot_max_size: ByteSize,
        /// The replica whose blocks a linked clone shares.
        #[serde(skip_serializing_if = "is_default")]
        pub linked_clone_src_replica_name: String,
        /// Lariat's: its agent makes it accept at least this epoch, durably: this shuts out every engine before it.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(range(min = 0))]
        pub epoch: i64,
    }

    /// What a replica is. Written only by the agent of its node.
    pub struct ReplicaStatus {
        /// The node whose agent looks after it.
        #[serde(rename = "ownerID")]
        pub owner_id: String,
        /// What serves it.
        pub instance_manager_name: String,
        /// What it does.
        pub current_state: InstanceState,
        /// The image in use.
        pub current_image: String,
        /// The address it listens on.
        pub ip: String,
        /// The address that engines see it at.
        #[serde(rename = "storageIP")]
        pub storage_ip: String,
        /// The port it listens on.
        pub port: i64,
        /// Whether it has been started at least once.
        pub started: bool,
        /// Whether it is being started.
        #[serde(skip_serializing_if = "is_default")]
        pub starting: bool,
        /// Whether its log was fetched.
        pub log_fetched: bool,
        /// Whether it was used although it had failed.
        pub salvage_executed: bool,
        /// What was observed of it, such as `RebuildFailed`.
        pub conditions: Vec<Condition>,
        /// The number of its ublk device.
        #[serde(rename = "ublkID", skip_serializing_if = "is_default")]
        pub ublk_id: i64,
        /// The identity of its data.
        #[serde(skip_serializing_if = "is_default")]
        pub uuid: String,
        /// Lariat's: where engines connect to it, as `HOST:PORT`; empty while it does not serve.
        #[serde(skip_serializing_if = "is_default")]
        pub address: String,
        /// Lariat's: the largest epoch that it has accepted, durably. It refuses smaller ones for ever.
        #[serde(skip_serializing_if = "is_default")]
        pub accepted_epoch: i64,
        /// Lariat's: the bytes that its files take on the disk.
        #[serde(skip_serializing_if = "is_default")]
        pub allocated_bytes: i64,
        /// Lariat's: its snapshot layers, oldest first, as its own index has them. Replicas with the same
        /// data have the same list, which a salvage checks before it trusts one.
        #[serde(skip_serializing_if = "is_default")]
        pub layers: Vec<String>,
        /// Lariat's: the size in bytes that it has.
        #[serde(skip_serializing_if = "is_default")]
        pub current_size: ByteSize,
        /// Lariat's: the epoch of its last write.
        #[serde(skip_serializing_if = "is_default")]
        pub last_write_epoch: i64,
        /// Lariat's: the version of the in-sync set that its last writer told it of.
        #[serde(skip_serializing_if = "is_default")]
        pub revision: i64,
        /// Lariat's: a digest of its size, in-sync set and snapshots, in hexadecimal: replicas that may be used together have the same.
        #[serde(skip_serializing_if = "is_default")]
        pub digest: String,
        /// Lariat's: why it is in the state `error`.
        #[serde(skip_serializing_if = "is_default")]
        pub message: String,
        /// Lariat's: whether its files were last found whole when opened. Absent before the first opening.
        #[serde(skip_serializing_if = "is_default")]
        pub verified: Option<bool>,
    }
}
