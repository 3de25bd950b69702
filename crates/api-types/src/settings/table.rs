//! The settings themselves, with Longhorn's names and defaults, in the order of their names.
//!
//! Left out are those about container images, pods of the system, upgrades and usage reports, which this
//! system has no use for. A `Setting` object of such a name is left alone.

use super::{SettingDefinition, SettingKind};

macro_rules! settings {
    ($( $constant:ident = $name:literal: $kind:expr, $default:literal, $description:literal; )+) => {
        $(
            #[doc = $description]
            pub const $constant: SettingDefinition = SettingDefinition {
                name: $name,
                default: $default,
                kind: $kind,
                description: $description,
            };
        )+

        /// All settings, in the order of their names.
        pub const ALL: &[SettingDefinition] = &[$($constant),+];
    };
}

const FLAG: SettingKind = SettingKind::Flag;
const TEXT: SettingKind = SettingKind::Text;

const fn number(min: i64, max: i64) -> SettingKind {
    SettingKind::WholeNumber { min, max }
}

const fn at_least(min: i64) -> SettingKind {
    number(min, i64::MAX)
}

const fn one_of(choices: &'static [&'static str]) -> SettingKind {
    SettingKind::Choice(choices)
}

settings! {
    ALLOW_EMPTY_DISK_SELECTOR_VOLUME = "allow-empty-disk-selector-volume":
        FLAG, "true",
        "Whether volumes without a disk selector may use disks with tags.";
    ALLOW_EMPTY_NODE_SELECTOR_VOLUME = "allow-empty-node-selector-volume":
        FLAG, "true",
        "Whether volumes without a node selector may use nodes with tags.";
    ALLOW_RECURRING_JOB_WHILE_VOLUME_DETACHED = "allow-recurring-job-while-volume-detached":
        FLAG, "false",
        "Whether recurring jobs attach detached volumes.";
    ALLOW_VOLUME_CREATION_WITH_DEGRADED_AVAILABILITY = "allow-volume-creation-with-degraded-availability":
        FLAG, "true",
        "Whether a volume may be used before all its replicas have a disk.";
    AUTO_CLEANUP_RECURRING_JOB_BACKUP_SNAPSHOT = "auto-cleanup-recurring-job-backup-snapshot":
        FLAG, "true",
        "Whether the snapshot that a recurring backup was made from is removed.";
    AUTO_CLEANUP_SNAPSHOT_AFTER_ON_DEMAND_BACKUP_COMPLETED = "auto-cleanup-snapshot-after-on-demand-backup-completed":
        FLAG, "false",
        "Whether the snapshot that a backup on demand was made from is removed.";
    AUTO_CLEANUP_SYSTEM_GENERATED_SNAPSHOT = "auto-cleanup-system-generated-snapshot":
        FLAG, "true",
        "Whether the snapshots that rebuilds take are removed.";
    AUTO_CLEANUP_WHEN_DELETE_BACKUP = "auto-cleanup-when-delete-backup":
        FLAG, "false",
        "Whether removing a backup removes its snapshot.";
    AUTO_DELETE_POD_WHEN_VOLUME_DETACHED_UNEXPECTEDLY = "auto-delete-pod-when-volume-detached-unexpectedly":
        FLAG, "true",
        "Whether a pod whose volume went away is deleted, so that its controller makes it anew.";
    AUTO_SALVAGE = "auto-salvage":
        FLAG, "true",
        "Whether a volume whose replicas have all failed is started from those that are found whole.";
    BACKING_IMAGE_CLEANUP_WAIT_INTERVAL = "backing-image-cleanup-wait-interval":
        at_least(0), "60",
        "Minutes before an unused copy of a backing image is removed.";
    BACKING_IMAGE_RECOVERY_WAIT_INTERVAL = "backing-image-recovery-wait-interval":
        at_least(0), "300",
        "Seconds before a lost backing image is fetched again.";
    BACKUP_COMPRESSION_METHOD = "backup-compression-method":
        one_of(&["none", "lz4", "gzip"]), "lz4",
        "How backups are compressed.";
    BACKUP_CONCURRENT_LIMIT = "backup-concurrent-limit":
        at_least(1), "2",
        "Blocks that one backup copies at once.";
    BACKUP_EXECUTION_TIMEOUT = "backup-execution-timeout":
        at_least(1), "1",
        "Minutes before a backup that makes no progress is given up.";
    CONCURRENT_AUTOMATIC_ENGINE_UPGRADE_PER_NODE_LIMIT = "concurrent-automatic-engine-upgrade-per-node-limit":
        at_least(0), "0",
        "Engines of a node that are upgraded at once; zero for none.";
    CONCURRENT_BACKING_IMAGE_REPLENISH_PER_NODE_LIMIT = "concurrent-backing-image-replenish-per-node-limit":
        at_least(0), "5",
        "Copies of backing images that a node makes at once; zero for none.";
    CONCURRENT_REPLICA_REBUILD_PER_NODE_LIMIT = "concurrent-replica-rebuild-per-node-limit":
        at_least(0), "5",
        "Replicas of a node that are rebuilt at once; zero for none.";
    CONCURRENT_VOLUME_BACKUP_RESTORE_PER_NODE_LIMIT = "concurrent-volume-backup-restore-per-node-limit":
        at_least(0), "5",
        "Volumes of a node that are restored at once; zero for none.";
    CREATE_DEFAULT_DISK_LABELED_NODES = "create-default-disk-labeled-nodes":
        FLAG, "false",
        "Whether only nodes with the label get a default disk.";
    DEFAULT_BACKUP_BLOCK_SIZE = "default-backup-block-size":
        one_of(&["2", "16"]), "2",
        "The block size of new backups in MiB.";
    DEFAULT_DATA_LOCALITY = "default-data-locality":
        one_of(&["disabled", "best-effort", "strict-local"]), "disabled",
        "Whether a replica of a new volume should be on the node that uses it.";
    DEFAULT_DATA_PATH = "default-data-path":
        TEXT, "/var/lib/longhorn/",
        "The folder of a node's default disk.";
    DEFAULT_LONGHORN_STATIC_STORAGE_CLASS = "default-longhorn-static-storage-class":
        TEXT, "longhorn-static",
        "The storage class of claims made for existing volumes.";
    DEFAULT_MIN_NUMBER_OF_BACKING_IMAGE_COPIES = "default-min-number-of-backing-image-copies":
        at_least(1), "3",
        "How many copies a backing image has at least.";
    DEFAULT_REPLICA_COUNT = "default-replica-count":
        number(1, 20), "3",
        "How many replicas a new volume has.";
    DELETING_CONFIRMATION_FLAG = "deleting-confirmation-flag":
        FLAG, "false",
        "Whether the system may be uninstalled.";
    DETACH_MANUALLY_ATTACHED_VOLUMES_WHEN_CORDONED = "detach-manually-attached-volumes-when-cordoned":
        FLAG, "false",
        "Whether cordoning a node detaches what people attached to it.";
    DISABLE_REVISION_COUNTER = "disable-revision-counter":
        FLAG, "true",
        "Whether replicas keep no revision counter.";
    DISABLE_SCHEDULING_ON_CORDONED_NODE = "disable-scheduling-on-cordoned-node":
        FLAG, "true",
        "Whether cordoned nodes get no new replicas.";
    DISABLE_SNAPSHOT_PURGE = "disable-snapshot-purge":
        FLAG, "false",
        "Whether no snapshot data is removed for now.";
    ENGINE_REPLICA_TIMEOUT = "engine-replica-timeout":
        number(8, 30), "8",
        "Seconds that an engine waits for a replica before it counts as failed.";
    FAILED_BACKUP_TTL = "failed-backup-ttl":
        at_least(0), "1440",
        "Minutes before a failed backup is removed; zero for never.";
    FAST_REPLICA_REBUILD_ENABLED = "fast-replica-rebuild-enabled":
        FLAG, "true",
        "Whether a rebuild copies only what differs.";
    FREEZE_FILESYSTEM_FOR_SNAPSHOT = "freeze-filesystem-for-snapshot":
        FLAG, "false",
        "Whether the file system is frozen while a snapshot is taken.";
    KUBERNETES_CLUSTER_AUTOSCALER_ENABLED = "kubernetes-cluster-autoscaler-enabled":
        FLAG, "false",
        "Whether nodes without volumes may be removed by an autoscaler.";
    LOG_LEVEL = "log-level":
        one_of(&["Panic", "Fatal", "Error", "Warn", "Info", "Debug", "Trace"]), "Info",
        "How much is logged.";
    LONG_GRPC_TIMEOUT = "long-grpc-timeout":
        number(1, 604800), "86400",
        "Seconds that a rebuild or clone may take.";
    NODE_DOWN_POD_DELETION_POLICY = "node-down-pod-deletion-policy":
        one_of(&["do-nothing", "delete-statefulset-pod", "delete-deployment-pod", "delete-both-statefulset-and-deployment-pod"]), "do-nothing",
        "Which pods on a node that is down are deleted.";
    NODE_DRAIN_POLICY = "node-drain-policy":
        one_of(&["block-for-eviction", "block-for-eviction-if-contains-last-replica", "block-if-contains-last-replica", "allow-if-replica-is-stopped", "always-allow"]), "block-if-contains-last-replica",
        "When a node may be drained.";
    OFFLINE_REPLICA_REBUILDING = "offline-replica-rebuilding":
        FLAG, "false",
        "Whether degraded volumes are rebuilt while they are detached.";
    ORPHAN_RESOURCE_AUTO_DELETION = "orphan-resource-auto-deletion":
        TEXT, "",
        "The kinds of orphans that are removed, with semicolons between them.";
    ORPHAN_RESOURCE_AUTO_DELETION_GRACE_PERIOD = "orphan-resource-auto-deletion-grace-period":
        at_least(0), "300",
        "Seconds before an orphan is removed.";
    RECURRING_FAILED_JOBS_HISTORY_LIMIT = "recurring-failed-jobs-history-limit":
        at_least(0), "1",
        "Failed runs of a recurring job that are remembered.";
    RECURRING_JOB_MAX_RETENTION = "recurring-job-max-retention":
        number(1, 250), "100",
        "Snapshots or backups that a recurring job may keep.";
    RECURRING_SUCCESSFUL_JOBS_HISTORY_LIMIT = "recurring-successful-jobs-history-limit":
        at_least(0), "1",
        "Successful runs of a recurring job that are remembered.";
    REMOVE_SNAPSHOTS_DURING_FILESYSTEM_TRIM = "remove-snapshots-during-filesystem-trim":
        FLAG, "false",
        "Whether trimming may go through snapshots that nobody needs.";
    REPLICA_AUTO_BALANCE = "replica-auto-balance":
        one_of(&["disabled", "least-effort", "best-effort"]), "disabled",
        "Whether replicas are spread again when nodes join.";
    REPLICA_AUTO_BALANCE_DISK_PRESSURE_PERCENTAGE = "replica-auto-balance-disk-pressure-percentage":
        number(0, 100), "90",
        "Percent of a disk in use above which replicas are moved; zero for never.";
    REPLICA_DISK_SOFT_ANTI_AFFINITY = "replica-disk-soft-anti-affinity":
        FLAG, "true",
        "Whether two replicas of a volume may share a disk.";
    REPLICA_FILE_SYNC_HTTP_CLIENT_TIMEOUT = "replica-file-sync-http-client-timeout":
        number(5, 120), "30",
        "Seconds that a rebuild waits for the replica it copies from.";
    REPLICA_REBUILDING_BANDWIDTH_LIMIT = "replica-rebuilding-bandwidth-limit":
        at_least(0), "0",
        "Megabytes per second that a rebuild may write; zero for no limit.";
    REPLICA_REPLENISHMENT_WAIT_INTERVAL = "replica-replenishment-wait-interval":
        at_least(0), "600",
        "Seconds that a failed replica may take to come back before it is replaced.";
    REPLICA_SOFT_ANTI_AFFINITY = "replica-soft-anti-affinity":
        FLAG, "false",
        "Whether two replicas of a volume may share a node.";
    REPLICA_ZONE_SOFT_ANTI_AFFINITY = "replica-zone-soft-anti-affinity":
        FLAG, "true",
        "Whether two replicas of a volume may share a zone.";
    RESTORE_CONCURRENT_LIMIT = "restore-concurrent-limit":
        at_least(1), "2",
        "Blocks that one restore copies at once.";
    RESTORE_VOLUME_RECURRING_JOBS = "restore-volume-recurring-jobs":
        FLAG, "false",
        "Whether a restore brings the volume's recurring jobs along.";
    RWX_VOLUME_FAST_FAILOVER = "rwx-volume-fast-failover":
        FLAG, "false",
        "Whether shares are moved as soon as their node stops renewing its lease.";
    SNAPSHOT_DATA_INTEGRITY = "snapshot-data-integrity":
        one_of(&["disabled", "enabled", "fast-check"]), "fast-check",
        "Whether snapshots are hashed and checked.";
    SNAPSHOT_DATA_INTEGRITY_CRONJOB = "snapshot-data-integrity-cronjob":
        TEXT, "0 0 */7 * *",
        "When snapshots are checked, in cron's five fields.";
    SNAPSHOT_DATA_INTEGRITY_IMMEDIATE_CHECK_AFTER_SNAPSHOT_CREATION = "snapshot-data-integrity-immediate-check-after-snapshot-creation":
        FLAG, "false",
        "Whether a snapshot is hashed as soon as it is taken.";
    SNAPSHOT_MAX_COUNT = "snapshot-max-count":
        number(2, 250), "250",
        "How many snapshots a volume may have.";
    STORAGE_MINIMAL_AVAILABLE_PERCENTAGE = "storage-minimal-available-percentage":
        number(0, 100), "25",
        "Percent of a disk that must stay free for it to get new replicas.";
    STORAGE_NETWORK = "storage-network":
        TEXT, "",
        "The network for data, as NAMESPACE/NAME; empty for the cluster's own.";
    STORAGE_OVER_PROVISIONING_PERCENTAGE = "storage-over-provisioning-percentage":
        at_least(0), "100",
        "Percent of a disk's capacity that may be promised to replicas.";
    STORAGE_RESERVED_PERCENTAGE_FOR_DEFAULT_DISK = "storage-reserved-percentage-for-default-disk":
        number(0, 100), "30",
        "Percent of a default disk that is kept for others.";
    V1_DATA_ENGINE = "v1-data-engine":
        FLAG, "true",
        "Whether volumes of the v1 data engine may be used.";
    V2_DATA_ENGINE = "v2-data-engine":
        FLAG, "false",
        "Whether volumes of the v2 data engine may be used.";
}
