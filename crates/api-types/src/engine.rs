//! `engines.longhorn.io`: the process that turns replicas into one block device.

use std::collections::BTreeMap;

use kube::CustomResource;

use crate::{
    byte_size::ByteSize,
    condition::Condition,
    volume::{DataEngine, VolumeFrontend},
    wire::{is_default, object, string_enum},
};

string_enum! {
    /// What an engine or replica process does, or should do.
    pub open enum InstanceState {
        /// It serves.
        Running = "running",
        /// It does not exist. An instance that was never started has this state.
        #[default]
        Stopped = "stopped",
        /// It ended by itself.
        Error = "error",
        /// It is being started.
        Starting = "starting",
        /// It is being stopped.
        Stopping = "stopping",
        /// Its node does not answer.
        Unknown = "unknown",
    }

    /// Lariat's: what an engine may do to the data.
    pub open enum EngineRole {
        /// It writes, as long as its epoch is the volume's.
        #[default]
        Writer = "writer",
        /// A migration's target: it serves reads, and its first write asks for the hand-over.
        Standby = "standby",
        /// A migration's source after the hand-over: its device stays open, but nothing can be written through it.
        Former = "former",
    }

    /// Lariat's: what an engine should do with a replica.
    pub open enum ReplicaRole {
        /// It has every acknowledged write.
        #[default]
        InSync = "in-sync",
        /// It lacks some and has to be rebuilt.
        Rebuild = "rebuild",
    }

    /// Lariat's: what an engine should do about a snapshot.
    pub open enum SnapshotRequest {
        /// It should exist.
        #[default]
        Take = "take",
        /// It should not, and what it alone has should be gone.
        Remove = "remove",
    }

    /// How an engine uses a replica. A mode that nobody reported counts as failed.
    pub open enum ReplicaMode {
        /// Reads and writes: it has all the data.
        ReadWrite = "RW",
        /// Writes only: it is being rebuilt.
        WriteOnly = "WO",
        /// Not at all: it failed.
        #[default]
        Error = "ERR",
    }
}

object! {
    /// What an engine should be. Written only by the volume controller.
    #[derive(CustomResource)]
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "Engine", namespaced,
        shortname = "lhe", status = "EngineStatus", derive = "PartialEq", derive = "Default",
        label("longhorn-manager", ""),
        doc = "The process that serves a volume's blocks from its replicas.",
        printcolumn(name = "Data Engine", type_ = "string", json_path = ".spec.dataEngine", description = "The data engine of the engine"),
        printcolumn(name = "State", type_ = "string", json_path = ".status.currentState", description = "The current state of the engine"),
        printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeID", description = "The node that the engine is on"),
        printcolumn(name = "InstanceManager", type_ = "string", json_path = ".status.instanceManagerName", description = "What runs the engine"),
        printcolumn(name = "Image", type_ = "string", json_path = ".status.currentImage", description = "The current image of the engine"),
        printcolumn(name = "Epoch", type_ = "integer", json_path = ".spec.epoch", description = "The epoch that the engine writes in", priority = "1"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )]
    pub struct EngineSpec {
        /// The volume it serves.
        pub volume_name: String,
        /// The volume's size in bytes.
        pub volume_size: ByteSize,
        /// The node it should run on.
        #[serde(rename = "nodeID")]
        pub node_id: String,
        /// The engine image; Lariat's engine comes with the node agent and ignores it.
        pub image: String,
        /// What it should do.
        pub desire_state: InstanceState,
        /// Whether its log should be fetched.
        pub log_requested: bool,
        /// Whether it should start from replicas that failed.
        pub salvage_requested: bool,
        /// Which implementation moves the blocks.
        pub data_engine: DataEngine,
        /// How it offers the volume to its node.
        pub frontend: VolumeFrontend,
        /// The depth of each queue of the `ublk` front end.
        #[serde(skip_serializing_if = "is_default")]
        pub ublk_queue_depth: i64,
        /// The number of queues of the `ublk` front end.
        #[serde(skip_serializing_if = "is_default")]
        pub ublk_number_of_queue: i64,
        /// Where each of its replicas listens, by the replica's name.
        pub replica_address_map: BTreeMap<String, String>,
        /// The same for a live upgrade.
        pub upgraded_replica_address_map: BTreeMap<String, String>,
        /// The backup volume to restore from.
        pub backup_volume: String,
        /// The backup to restore.
        pub requested_backup_restore: String,
        /// What to clone from.
        pub requested_data_source: String,
        /// Serve without a device.
        pub disable_frontend: bool,
        /// Whether replicas keep no revision counter.
        pub revision_counter_disabled: bool,
        /// Whether trimming may go through snapshots that nobody needs.
        pub unmap_mark_snap_chain_removed_enabled: bool,
        /// Whether this is the engine in use, and not the target of a migration.
        pub active: bool,
        /// How many snapshots may exist.
        pub snapshot_max_count: i64,
        /// How many bytes all snapshots may hold together; zero for no limit.
        pub snapshot_max_size: ByteSize,
        /// Files that one rebuild copies at once.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(range(min = 0, max = 5))]
        pub rebuild_concurrent_sync_limit: i64,
        /// Lariat's: the epoch this incarnation writes in, larger than that of every engine of the volume
        /// before it. Replicas refuse smaller ones. Epochs begin at one.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(range(min = 0))]
        pub epoch: i64,
        /// Lariat's: the replicas it starts with: those that have every acknowledged write.
        #[serde(skip_serializing_if = "is_default")]
        pub in_sync_replicas: Vec<String>,
        /// Lariat's: the version of the volume's in-sync set that `inSyncReplicas` is.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(range(min = 0))]
        pub in_sync_version: i64,
        /// Lariat's: what it may do to the data.
        #[serde(skip_serializing_if = "is_default")]
        pub role: EngineRole,
        /// Lariat's: the replicas it should use, by name, and how. Their addresses are in `replicaAddressMap`.
        #[serde(skip_serializing_if = "is_default")]
        pub replica_roles: BTreeMap<String, ReplicaRole>,
        /// Lariat's: the snapshots to take or to remove, by name. Others stay as they are.
        #[serde(skip_serializing_if = "is_default")]
        pub snapshot_requests: BTreeMap<String, SnapshotRequest>,
    }

    /// What an engine is. Written only by the agent of its node.
    pub struct EngineStatus {
        /// The node whose agent looks after it.
        #[serde(rename = "ownerID")]
        pub owner_id: String,
        /// What runs it.
        pub instance_manager_name: String,
        /// What it does.
        pub current_state: InstanceState,
        /// The image in use.
        pub current_image: String,
        /// The address it listens on.
        pub ip: String,
        /// The address that replicas see it from.
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
        /// Whether it started from replicas that had failed.
        pub salvage_executed: bool,
        /// What was observed of it.
        pub conditions: Vec<Condition>,
        /// The number of its ublk device.
        #[serde(rename = "ublkID", skip_serializing_if = "is_default")]
        pub ublk_id: i64,
        /// The identity of the process: another one for each start.
        #[serde(skip_serializing_if = "is_default")]
        pub uuid: String,
        /// The size in bytes that it serves.
        pub current_size: ByteSize,
        /// The replicas it is connected to, and where.
        pub current_replica_address_map: BTreeMap<String, String>,
        /// How it uses each replica.
        pub replica_mode_map: BTreeMap<String, ReplicaMode>,
        /// Since when, in RFC 3339.
        pub replica_transition_time_map: BTreeMap<String, String>,
        /// The device or target that it offers; empty while it has none.
        pub endpoint: String,
        /// The backup that was restored last.
        pub last_restored_backup: String,
        /// Backups that run or ran, by their name.
        pub backup_status: BTreeMap<String, EngineBackupStatus>,
        /// Restores, by the replica's address.
        pub restore_status: BTreeMap<String, RestoreStatus>,
        /// Removals of snapshots, by the replica's address.
        pub purge_status: BTreeMap<String, PurgeStatus>,
        /// Rebuilds, by the replica's address.
        pub rebuild_status: BTreeMap<String, RebuildStatus>,
        /// Clones, by the replica's address.
        pub clone_status: BTreeMap<String, SnapshotCloneStatus>,
        /// The snapshots and the live head, by their name. Without the head, `volume-head`, nobody has listed them yet.
        pub snapshots: BTreeMap<String, SnapshotInfo>,
        /// Lariat's: the generation of this object when `snapshots` was listed last, with nothing that changes them under way.
        #[serde(skip_serializing_if = "is_default")]
        pub snapshots_generation: i64,
        /// Why the snapshots could not be listed.
        pub snapshots_error: String,
        /// Lariat's: why a snapshot could not be taken or removed, by its name.
        #[serde(skip_serializing_if = "is_default")]
        pub snapshot_errors: BTreeMap<String, String>,
        /// Whether it is growing.
        pub is_expanding: bool,
        /// Why it could not grow.
        pub last_expansion_error: String,
        /// When it could not.
        pub last_expansion_failed_at: String,
        /// Whether trimming goes through snapshots that nobody needs.
        pub unmap_mark_snap_chain_removed_enabled: bool,
        /// How many snapshots may exist.
        pub snapshot_max_count: i64,
        /// How many bytes all snapshots may hold together.
        pub snapshot_max_size: ByteSize,
        /// Files that one rebuild copies at once.
        #[serde(skip_serializing_if = "is_default")]
        pub rebuild_concurrent_sync_limit: i64,
        /// Lariat's: the epoch of the process that runs, or ran last.
        #[serde(skip_serializing_if = "is_default")]
        pub epoch: i64,
        /// Lariat's: the replicas without which no write is acknowledged in `epoch`, as the engine knows them. The
        /// engine proposes; the volume controller commits, on the Volume, where epochs are issued too.
        #[serde(skip_serializing_if = "is_default")]
        pub in_sync_replicas: Vec<String>,
        /// Lariat's: the version of the in-sync set that it works with.
        #[serde(skip_serializing_if = "is_default")]
        pub in_sync_version: i64,
        /// Lariat's: the in-sync set that it waits to see committed; empty when it waits for none.
        #[serde(skip_serializing_if = "is_default")]
        pub proposed_in_sync_replicas: Vec<String>,
        /// Lariat's: the version that the proposal was made from.
        #[serde(skip_serializing_if = "is_default")]
        pub proposal_based_on: i64,
        /// Lariat's: as a standby it was written to, and waits to become the writer.
        #[serde(skip_serializing_if = "is_default")]
        pub wants_take_over: bool,
        /// Lariat's: the replicas that have accepted `epoch`, and so refuse every engine before this one.
        #[serde(skip_serializing_if = "is_default")]
        pub fenced_replicas: Vec<String>,
        /// Lariat's: why it is in the state `error`, or why its requests wait.
        #[serde(skip_serializing_if = "is_default")]
        pub message: String,
    }

    /// One backup as its engine sees it.
    pub struct EngineBackupStatus {
        /// Percent done.
        pub progress: i64,
        /// Where it goes.
        #[serde(rename = "backupURL", skip_serializing_if = "is_default")]
        pub backup_url: String,
        /// Why it failed.
        #[serde(skip_serializing_if = "is_default")]
        pub error: String,
        /// The snapshot that is backed up.
        pub snapshot_name: String,
        /// How far it has come.
        pub state: String,
        /// The replica that reads the data.
        pub replica_address: String,
    }

    /// One replica's part of a restore.
    pub struct RestoreStatus {
        /// Whether it runs.
        pub is_restoring: bool,
        /// The backup that was restored last.
        pub last_restored: String,
        /// The backup that is being restored.
        pub current_restoring_backup: String,
        /// Percent done.
        #[serde(skip_serializing_if = "is_default")]
        pub progress: i64,
        /// Why it failed.
        #[serde(skip_serializing_if = "is_default")]
        pub error: String,
        /// The file that is written.
        #[serde(skip_serializing_if = "is_default")]
        pub filename: String,
        /// How far it has come.
        pub state: String,
        /// Where the backup is.
        #[serde(rename = "backupURL")]
        pub backup_url: String,
    }

    /// One replica's removal of snapshots.
    pub struct PurgeStatus {
        /// Why it failed.
        pub error: String,
        /// Whether it runs.
        pub is_purging: bool,
        /// Percent done.
        pub progress: i64,
        /// How far it has come.
        pub state: String,
    }

    /// The rebuild of one replica.
    pub struct RebuildStatus {
        /// Why it failed.
        pub error: String,
        /// Whether it runs.
        pub is_rebuilding: bool,
        /// Percent done.
        pub progress: i64,
        /// How far it has come.
        pub state: String,
        /// The replica that is copied from, when there is one.
        pub from_replica_address: String,
        /// The replicas that are copied from.
        pub from_replica_address_list: Vec<String>,
        /// The limit in force, in megabytes per second.
        #[serde(rename = "appliedRebuildingMBps")]
        pub applied_rebuilding_mbps: i64,
    }

    /// One replica's part of a clone.
    pub struct SnapshotCloneStatus {
        /// Whether it runs.
        pub is_cloning: bool,
        /// Why it failed.
        pub error: String,
        /// Percent done.
        pub progress: i64,
        /// How far it has come.
        pub state: String,
        /// The replica that is copied from.
        pub from_replica_address: String,
        /// The snapshot that is copied.
        pub snapshot_name: String,
    }

    /// One snapshot as its engine sees it.
    pub struct SnapshotInfo {
        /// Its name; `volume-head` for the live data.
        pub name: String,
        /// The snapshot before it.
        pub parent: String,
        /// The snapshots after it.
        pub children: BTreeMap<String, bool>,
        /// Whether it is marked for removal.
        pub removed: bool,
        /// Whether a person or a job asked for it.
        #[serde(rename = "usercreated")]
        pub user_created: bool,
        /// When it was taken.
        pub created: String,
        /// The bytes that it holds itself, as a decimal string; not said of the live data, where it changes all the time.
        pub size: String,
        /// Lariat's: the volume's size when it was taken, as a decimal string.
        #[serde(skip_serializing_if = "is_default")]
        pub restore_size: String,
        /// Its labels.
        pub labels: BTreeMap<String, String>,
    }
}
