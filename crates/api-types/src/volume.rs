//! `volumes.longhorn.io`: what a volume should be, and what it is.

use kube::CustomResource;

use crate::{
    backup::BackupCompressionMethod,
    byte_size::ByteSize,
    condition::Condition,
    share_manager::ShareManagerState,
    wire::{is_default, object, string_enum},
};

mod policy;
pub use policy::*;

string_enum! {
    /// Where a volume is in its life. A status without it belongs to a volume that was just created.
    pub open enum VolumeState {
        /// Its engine and replicas are being made.
        #[default]
        Creating = "creating",
        /// Its engine runs on `status.currentNodeID`.
        Attached = "attached",
        /// No engine runs.
        Detached = "detached",
        /// Its engine is being started.
        Attaching = "attaching",
        /// Its engine is being stopped.
        Detaching = "detaching",
        /// It and its data are being removed.
        Deleting = "deleting",
    }

    /// How many of the wanted replicas have all the data.
    pub open enum VolumeRobustness {
        /// All of them.
        Healthy = "healthy",
        /// Some of them.
        Degraded = "degraded",
        /// None that can be used: the volume cannot be attached.
        Faulted = "faulted",
        /// Nobody can tell, as of a detached volume.
        #[default]
        Unknown = "unknown",
    }

    /// How far a clone has come.
    pub open enum VolumeCloneState {
        /// The volume is not a clone.
        #[default]
        None = "",
        /// The copy was asked for.
        Initiated = "initiated",
        /// The data is copied; the volume waits for its other replicas.
        CopyCompletedAwaitingHealthy = "copy-completed-awaiting-healthy",
        /// All is done.
        Completed = "completed",
        /// The copy failed.
        Failed = "failed",
    }
}

/// Condition types of a volume.
pub mod volume_condition {
    /// Every wanted replica has a disk.
    pub const SCHEDULED: &str = "Scheduled";
    /// A restore is running or has failed.
    pub const RESTORE: &str = "Restore";
    /// The snapshot chain nears its limit.
    pub const TOO_MANY_SNAPSHOTS: &str = "TooManySnapshots";
    /// The backing image is not there yet.
    pub const WAIT_FOR_BACKING_IMAGE: &str = "WaitForBackingImage";
    /// The backing image cannot serve this volume.
    pub const BACKING_IMAGE_INCOMPATIBLE: &str = "BackingImageIncompatible";
    /// Replicas are rebuilt while the volume is detached.
    pub const OFFLINE_REBUILDING: &str = "OfflineRebuilding";
}

object! {
    /// What a volume should be.
    #[derive(CustomResource)]
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "Volume", namespaced,
        shortname = "lhv", status = "VolumeStatus", derive = "PartialEq", derive = "Default",
        label("longhorn-manager", ""),
        doc = "A replicated block volume.",
        printcolumn(name = "Data Engine", type_ = "string", json_path = ".spec.dataEngine", description = "The data engine of the volume"),
        printcolumn(name = "State", type_ = "string", json_path = ".status.state", description = "The state of the volume"),
        printcolumn(name = "Robustness", type_ = "string", json_path = ".status.robustness", description = "The robustness of the volume"),
        // Longhorn's own column asks for a condition named Schedulable, which no volume has.
        printcolumn(name = "Scheduled", type_ = "string", json_path = ".status.conditions[?(@.type=='Scheduled')].status", description = "Whether every wanted replica has a disk"),
        printcolumn(name = "Size", type_ = "string", json_path = ".spec.size", description = "The size of the volume in bytes"),
        printcolumn(name = "Node", type_ = "string", json_path = ".status.currentNodeID", description = "The node that the volume is attached to"),
        printcolumn(name = "Epoch", type_ = "integer", json_path = ".status.epoch", description = "The epoch of the newest engine", priority = "1"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )]
    pub struct VolumeSpec {
        /// The size in bytes, a multiple of 4096. It may grow.
        pub size: ByteSize,
        /// How the volume is offered to its node.
        pub frontend: VolumeFrontend,
        /// The URL of the backup to fill the volume from.
        pub from_backup: String,
        /// Whether the recurring jobs recorded in that backup come along.
        pub restore_volume_recurring_job: Toggle,
        /// What to fill the volume from, as `vol://VOLUME` or `snap://VOLUME/SNAPSHOT`.
        pub data_source: String,
        /// How a clone gets its data.
        #[serde(skip_serializing_if = "is_default")]
        pub clone_mode: CloneMode,
        /// Whether a replica should be on the node that uses the volume.
        pub data_locality: DataLocality,
        /// Minutes after which a failed replica is given up.
        pub stale_replica_timeout: i64,
        /// The node to attach to; empty to detach. Written only by the attachment controller.
        #[serde(rename = "nodeID")]
        pub node_id: String,
        /// The node to migrate to. Written only by the attachment controller.
        #[serde(rename = "migrationNodeID")]
        pub migration_node_id: String,
        /// The node that the engine runs on, if it is not `nodeID`.
        #[serde(rename = "engineNodeID", skip_serializing_if = "is_default")]
        pub engine_node_id: String,
        /// The engine image; Lariat's engine comes with the node agent and ignores it.
        pub image: String,
        /// The backing image below the volume's own data. It cannot be changed.
        #[schemars(extend("x-kubernetes-validations" = [{ "rule": "self == oldSelf", "message": "backingImage cannot be changed after creation" }]))]
        pub backing_image: String,
        /// Whether the volume follows the backups of another cluster.
        #[serde(rename = "Standby")]
        pub standby: bool,
        /// Tags that every disk used must have.
        pub disk_selector: Vec<String>,
        /// Tags that every node used must have.
        pub node_selector: Vec<String>,
        /// Attach without offering a device. Written only by the attachment controller.
        pub disable_frontend: bool,
        /// Whether replicas keep no revision counter.
        pub revision_counter_disabled: bool,
        /// Whether trimming may go through snapshots that nobody needs.
        pub unmap_mark_snap_chain_removed: Toggle,
        /// Whether two replicas may share a node.
        pub replica_soft_anti_affinity: Toggle,
        /// Whether two replicas may share a zone.
        pub replica_zone_soft_anti_affinity: Toggle,
        /// Whether two replicas may share a disk.
        pub replica_disk_soft_anti_affinity: Toggle,
        /// Who attached the volume by hand.
        pub last_attached_by: String,
        /// How many nodes and pods may use the volume at once.
        pub access_mode: AccessMode,
        /// Whether an `rwx` block volume may be attached to two nodes for a live migration.
        pub migratable: bool,
        /// Whether the data is encrypted. It cannot be changed.
        #[schemars(extend("x-kubernetes-validations" = [{ "rule": "self == oldSelf", "message": "encrypted cannot be changed after creation" }]))]
        pub encrypted: bool,
        /// How many replicas the data has; zero stands for the setting `default-replica-count`.
        #[schemars(range(min = 0, max = 20))]
        pub number_of_replicas: i64,
        /// Whether replicas are spread again when nodes join.
        pub replica_auto_balance: ReplicaAutoBalance,
        /// Whether snapshots are hashed and checked.
        pub snapshot_data_integrity: SnapshotDataIntegrity,
        /// How backups are compressed.
        pub backup_compression_method: BackupCompressionMethod,
        /// The block size of backups in bytes. It cannot be changed.
        #[serde(skip_serializing_if = "is_default")]
        pub backup_block_size: ByteSize,
        /// The backup target that backups go to.
        #[serde(skip_serializing_if = "is_default")]
        pub backup_target_name: String,
        /// Which implementation moves the blocks.
        pub data_engine: DataEngine,
        /// How many snapshots may exist; zero stands for the setting `snapshot-max-count`.
        pub snapshot_max_count: i64,
        /// How many bytes all snapshots may hold together; zero for no limit.
        pub snapshot_max_size: ByteSize,
        /// Whether the file system is frozen while a snapshot is taken.
        pub freeze_filesystem_for_snapshot: Toggle,
        /// Whether a degraded volume is rebuilt while it is detached.
        #[serde(skip_serializing_if = "is_default")]
        pub offline_rebuilding: Toggle,
        /// Megabytes per second that a rebuild may write; zero for no limit.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(range(min = 0))]
        pub replica_rebuilding_bandwidth_limit: i64,
        /// Files that one rebuild copies at once; zero stands for the setting of the same name.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(range(min = 0, max = 5))]
        pub rebuild_concurrent_sync_limit: i64,
        /// When hashing of all snapshots was last asked for, in RFC 3339.
        #[serde(skip_serializing_if = "is_default")]
        pub snapshot_hashing_requested_at: String,
        /// The zones and regions that replicas must be in; any one of them will do. Empty for no limit.
        #[serde(skip_serializing_if = "is_default")]
        pub topology_requirement: Vec<VolumeTopologyTerm>,
        /// The depth of each queue of the `ublk` front end.
        #[serde(skip_serializing_if = "is_default")]
        pub ublk_queue_depth: i64,
        /// The number of queues of the `ublk` front end.
        #[serde(skip_serializing_if = "is_default")]
        pub ublk_number_of_queue: i64,
    }

    /// A failure domain. A node is in it when the fields that are not empty match.
    pub struct VolumeTopologyTerm {
        /// The zone.
        #[serde(skip_serializing_if = "is_default")]
        pub zone: String,
        /// The region.
        #[serde(skip_serializing_if = "is_default")]
        pub region: String,
    }

    /// What a volume is. Written only by the volume controller.
    pub struct VolumeStatus {
        /// The node whose manager looks after this volume.
        #[serde(rename = "ownerID")]
        pub owner_id: String,
        /// Where the volume is in its life.
        pub state: VolumeState,
        /// How many of its replicas have all the data.
        pub robustness: VolumeRobustness,
        /// The node it is attached to.
        #[serde(rename = "currentNodeID")]
        pub current_node_id: String,
        /// The node its engine runs on, if that is not `currentNodeID`.
        #[serde(rename = "currentEngineNodeID", skip_serializing_if = "is_default")]
        pub current_engine_node_id: String,
        /// The engine image in use.
        pub current_image: String,
        /// Who uses the volume in Kubernetes.
        pub kubernetes_status: KubernetesStatus,
        /// What was observed of it, such as `Scheduled`.
        pub conditions: Vec<Condition>,
        /// The newest backup.
        pub last_backup: String,
        /// When the newest backup was made.
        pub last_backup_at: String,
        /// The node it is being migrated to.
        #[serde(rename = "currentMigrationNodeID")]
        pub current_migration_node_id: String,
        /// Whether it is attached without a device.
        pub frontend_disabled: bool,
        /// Whether it still has to be filled from a backup.
        pub restore_required: bool,
        /// Whether that has begun.
        pub restore_initiated: bool,
        /// How far it has come as a clone.
        pub clone_status: VolumeCloneStatus,
        /// When its users were last asked to mount it again.
        pub remount_requested_at: String,
        /// Whether its engine still has to grow to `spec.size`.
        pub expansion_required: bool,
        /// Whether it follows the backups of another cluster.
        pub is_standby: bool,
        /// The bytes that its data takes on one replica.
        pub actual_size: i64,
        /// When it last became degraded.
        pub last_degraded_at: String,
        /// When it was last salvaged without being asked to.
        #[serde(skip_serializing_if = "is_default")]
        pub last_auto_salvaged_at: String,
        /// When the last hashing that was asked for was done.
        #[serde(skip_serializing_if = "is_default")]
        pub last_on_demand_snapshot_hashing_complete_at: String,
        /// Where an `rwx` volume is shared.
        pub share_endpoint: String,
        /// The state of that share.
        pub share_state: ShareManagerState,
        /// Lariat's: the epoch of the newest engine. It only grows; zero before the first engine.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(range(min = 0))]
        pub epoch: i64,
        /// Lariat's: the replicas that have every acknowledged write. Only these may start an engine
        /// without a rebuild.
        #[serde(skip_serializing_if = "is_default")]
        pub in_sync_replicas: Vec<String>,
        /// Lariat's: the largest epoch ever given out; larger than `epoch` while a standby engine waits.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(range(min = 0))]
        pub issued_epoch: i64,
        /// Lariat's: grows with every change of `epoch`, `issuedEpoch` and `inSyncReplicas`.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(range(min = 0))]
        pub in_sync_version: i64,
        /// Lariat's: replicas ever made; their names are counted with it.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(range(min = 0))]
        pub replicas_created: i64,
        /// Lariat's: the size in bytes that the replicas really have.
        #[serde(skip_serializing_if = "is_default")]
        pub current_size: ByteSize,
        /// Lariat's: automatic salvages in a row.
        #[serde(skip_serializing_if = "is_default")]
        pub salvage_attempts: i64,
        /// Lariat's: engine starts that failed in a row.
        #[serde(skip_serializing_if = "is_default")]
        pub engine_restarts: i64,
        /// Lariat's: when the last of them failed, in RFC 3339.
        #[serde(skip_serializing_if = "is_default")]
        pub engine_restarted_at: String,
        /// Lariat's: since when its engine runs without a break, in RFC 3339.
        #[serde(skip_serializing_if = "is_default")]
        pub running_since: String,
        /// Lariat's: why no engine before `epoch` can still have a write acknowledged.
        #[serde(skip_serializing_if = "is_default")]
        pub fence_proof: Option<FenceProof>,
    }

    /// Lariat's: the evidence that an engine was shut out. Its replicas promised, durably, to refuse
    /// everything from an epoch smaller than this one.
    pub struct FenceProof {
        /// The epoch that was accepted.
        pub epoch: i64,
        /// The replicas that accepted it.
        pub replicas: Vec<String>,
        /// When the last of them did, in RFC 3339.
        pub time: String,
        /// The node whose engine was shut out; empty if none was left running.
        #[serde(rename = "formerNodeID")]
        pub former_node_id: String,
    }

    /// How far a clone has come.
    pub struct VolumeCloneStatus {
        /// The volume that is copied.
        pub source_volume: String,
        /// The snapshot of it that is copied.
        pub snapshot: String,
        /// How far the copy has come.
        pub state: VolumeCloneState,
        /// How often it was tried.
        pub attempt_count: i64,
        /// When it may be tried again, in RFC 3339.
        pub next_allowed_attempt_at: String,
    }

    /// Who uses a volume in Kubernetes, now or, when a `last…RefAt` is set, at that time.
    pub struct KubernetesStatus {
        /// The persistent volume.
        pub pv_name: String,
        /// Its phase.
        pub pv_status: String,
        /// The namespace of the claim.
        pub namespace: String,
        /// The claim.
        pub pvc_name: String,
        /// When the claim was last seen.
        #[serde(rename = "lastPVCRefAt")]
        pub last_pvc_ref_at: String,
        /// The pods and what runs them.
        pub workloads_status: Vec<WorkloadStatus>,
        /// When a pod was last seen.
        pub last_pod_ref_at: String,
    }

    /// One pod that uses a volume.
    pub struct WorkloadStatus {
        /// The pod.
        pub pod_name: String,
        /// Its phase.
        pub pod_status: String,
        /// What runs the pod.
        pub workload_name: String,
        /// The kind of that.
        pub workload_type: String,
    }
}

impl Volume {
    /// The node whose engine of this volume is shut out, unless the volume has been brought up there again.
    #[must_use]
    pub fn fenced_node(&self) -> Option<&str> {
        let status = self.status.as_ref()?;
        let node = status.fence_proof.as_ref()?.former_node_id.as_str();
        (!node.is_empty() && status.current_node_id != node).then_some(node)
    }

    /// The only node from which it can be written, while it is attached and no migration is under way.
    #[must_use]
    pub fn writer_node(&self) -> Option<&str> {
        let status = self.status.as_ref()?;
        let is_settled = status.state == VolumeState::Attached
            && !status.current_node_id.is_empty()
            && status.current_migration_node_id.is_empty();
        is_settled.then_some(status.current_node_id.as_str())
    }
}
