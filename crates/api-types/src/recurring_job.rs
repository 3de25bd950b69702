//! `recurringjobs.longhorn.io`: something to do to volumes again and again.

use std::collections::BTreeMap;

use kube::CustomResource;

use crate::wire::{is_default, object, string_enum};

string_enum! {
    /// What to do.
    pub checked enum RecurringJobTask {
        /// Take a snapshot, once old ones are cleaned up.
        #[default]
        Snapshot = "snapshot",
        /// Take a snapshot, even if old ones could not be cleaned up.
        SnapshotForceCreate = "snapshot-force-create",
        /// Remove snapshots that nobody needs.
        SnapshotCleanup = "snapshot-cleanup",
        /// Remove all snapshots but the newest.
        SnapshotDelete = "snapshot-delete",
        /// Take a snapshot and back it up, once old ones are cleaned up.
        Backup = "backup",
        /// Take a snapshot and back it up, even if old ones could not be cleaned up.
        BackupForceCreate = "backup-force-create",
        /// Give unused blocks back.
        FilesystemTrim = "filesystem-trim",
        /// Back up the system's own objects.
        SystemBackup = "system-backup",
    }

    /// What decides which snapshots and backups are kept.
    pub checked enum RetentionPolicy {
        /// Their number: `retain`.
        #[default]
        CountBased = "count-based",
        /// Their age: `retainAge`.
        AgeBased = "age-based",
    }
}

object! {
    /// What a recurring job should do.
    #[derive(CustomResource)]
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "RecurringJob", namespaced,
        shortname = "lhrj", status = "RecurringJobStatus", derive = "PartialEq", derive = "Default",
        label("longhorn-manager", ""),
        doc = "Something to do to volumes again and again.",
        printcolumn(name = "Groups", type_ = "string", json_path = ".spec.groups", description = "The groups of volumes it is for; \"default\" is for volumes that have no job of their own"),
        printcolumn(name = "Task", type_ = "string", json_path = ".spec.task", description = "What to do"),
        printcolumn(name = "Cron", type_ = "string", json_path = ".spec.cron", description = "When to do it"),
        printcolumn(name = "RetentionPolicy", type_ = "string", json_path = ".spec.retentionPolicy", description = "Whether number or age decides what is kept"),
        printcolumn(name = "RetainCount", type_ = "integer", json_path = ".spec.retain", description = "How many snapshots or backups of a volume are kept"),
        printcolumn(name = "RetainAge", type_ = "string", json_path = ".spec.retainAge", description = "How old snapshots or backups may become"),
        printcolumn(name = "Concurrency", type_ = "integer", json_path = ".spec.concurrency", description = "How many volumes are worked on at once"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
        printcolumn(name = "Labels", type_ = "string", json_path = ".spec.labels", description = "Labels of what it makes")
    )]
    pub struct RecurringJobSpec {
        /// The job's name.
        pub name: String,
        /// The groups of volumes it is for.
        #[serde(skip_serializing_if = "is_default")]
        pub groups: Vec<String>,
        /// What to do.
        pub task: RecurringJobTask,
        /// When to do it, in cron's five fields.
        pub cron: String,
        /// How many snapshots or backups of a volume are kept.
        pub retain: i64,
        /// How old they may become, as a Go duration such as `24h`; only for `age-based`.
        #[serde(skip_serializing_if = "is_default")]
        pub retain_age: String,
        /// What decides which are kept.
        #[serde(skip_serializing_if = "is_default")]
        pub retention_policy: RetentionPolicy,
        /// How many volumes are worked on at once.
        pub concurrency: i64,
        /// Seconds after which a run is ended; zero for never.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(range(min = 0))]
        pub active_deadline_seconds: i64,
        /// Labels of what it makes.
        #[serde(skip_serializing_if = "is_default")]
        pub labels: BTreeMap<String, String>,
        /// More about the task: `full-backup-interval`, `volume-backup-policy`.
        #[serde(skip_serializing_if = "is_default")]
        pub parameters: BTreeMap<String, String>,
    }

    /// What became of a recurring job.
    pub struct RecurringJobStatus {
        /// The node whose manager looks after it.
        #[serde(rename = "ownerID")]
        pub owner_id: String,
        /// How often it has run.
        pub execution_count: i64,
    }
}
