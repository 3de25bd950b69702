//! Names that all parts must agree on: Longhorn's, where Longhorn has one.

/// The API group of every resource here.
pub const GROUP: &str = "longhorn.io";
/// The version of every resource here.
pub const VERSION: &str = "v1beta2";
/// `GROUP/VERSION`, as objects carry it.
pub const API_VERSION: &str = "longhorn.io/v1beta2";
/// The namespace of every object here.
pub const NAMESPACE: &str = "longhorn-system";
/// The CSI driver, as StorageClasses, PersistentVolumes and VolumeAttachments name it.
pub const DRIVER: &str = "driver.longhorn.io";

/// The live data among a volume's snapshots.
pub const VOLUME_HEAD: &str = "volume-head";

/// What the names of snapshots begin with that an engine takes for itself, while it rebuilds and compares replicas.
pub const ENGINE_SNAPSHOT_PREFIXES: [&str; 2] = ["reconcile-", "rebuild-"];

/// The longest name of an object, in bytes.
const OBJECT_NAME_BYTES_MAX: usize = 253;

/// Whether Kubernetes takes this as an object's name (a DNS subdomain).
#[must_use]
pub fn is_object_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        matches!((bytes.first(), bytes.last()), (Some(&first), Some(&last)) if is_inner(first) && is_inner(last))
            && bytes.iter().all(|&byte| is_inner(byte) || byte == b'-')
    };
    name.len() <= OBJECT_NAME_BYTES_MAX && name.split('.').all(is_label)
}

/// The finalizer that keeps an object until what it stands for is gone.
pub const FINALIZER: &str = "longhorn.io";

/// Labels.
pub mod label {
    /// The volume that an engine, replica, snapshot, backup or attachment belongs to.
    pub const VOLUME: &str = "longhornvolume";
    /// The node that an engine or replica is on.
    pub const NODE: &str = "longhornnode";
    /// The disk, by UUID, that a replica is on.
    pub const DISK_UUID: &str = "longhorndiskuuid";
    /// The backing image that a volume or replica uses.
    pub const BACKING_IMAGE: &str = "longhorn.io/backing-image";
    /// The volume that a backup is of.
    pub const BACKUP_VOLUME: &str = "backup-volume";
    /// The backup target that a backup is on.
    pub const BACKUP_TARGET: &str = "backup-target";
    /// Marks the CRDs and workloads of this system.
    pub const MANAGER: &str = "longhorn-manager";
    /// What created an object, such as a system component.
    pub const MANAGED_BY: &str = "longhorn.io/managed-by";
    /// Prefix of the label that puts a volume under a recurring job; the job's name follows.
    pub const RECURRING_JOB_PREFIX: &str = "recurring-job.longhorn.io/";
    /// Prefix of the label that puts a volume under a group of recurring jobs; the group's name follows.
    pub const RECURRING_JOB_GROUP_PREFIX: &str = "recurring-job-group.longhorn.io/";
    /// On a Kubernetes node: whether it gets a default disk.
    pub const CREATE_DEFAULT_DISK: &str = "node.longhorn.io/create-default-disk";
    /// The zone of a Kubernetes node.
    pub const TOPOLOGY_ZONE: &str = "topology.kubernetes.io/zone";
    /// The region of a Kubernetes node.
    pub const TOPOLOGY_REGION: &str = "topology.kubernetes.io/region";

    /// What an object that belongs to a volume is labelled with.
    pub fn volume(volume_name: &str) -> (String, String) {
        (VOLUME.to_owned(), volume_name.to_owned())
    }
}

/// Annotations.
pub mod annotation {
    /// On a Kubernetes node: the disks it gets, as JSON.
    pub const DEFAULT_DISKS_CONFIG: &str = "node.longhorn.io/default-disks-config";
    /// On a Kubernetes node: the tags it gets, as JSON.
    pub const DEFAULT_NODE_TAGS: &str = "node.longhorn.io/default-node-tags";
    /// Lariat's, on a Volume: the live migration that is under way, as JSON.
    pub const MIGRATION: &str = "lariat.io/migration";
    /// On a Volume: the replicas that a person chose to salvage from, separated by commas.
    pub const SALVAGE_FROM: &str = "lariat.io/salvage-from";
    /// On a node of Lariat's: its agent takes away what was left over at this time or before, in RFC 3339.
    pub const PUT_AWAY: &str = "lariat.io/put-away";
    /// On a Volume: when each hop of its last attachments and detachments was seen, as JSON.
    pub const TIMELINE: &str = "lariat.io/timeline";
    /// On a Volume: the node that began to make a file system on it and has not said that it is done. It is there before that is
    /// begun, stays if it fails, and is gone before anything is mounted, before a pod gets the raw device, and before anybody else
    /// than a pod gets the volume. Put by the node that has the volume; taken away by that node or by the attachment controller.
    pub const MAKING_FILE_SYSTEM: &str = "lariat.io/making-file-system";
    /// On a pod of the embedded mode: where its volumes are mounted, as a JSON object from volume name to path.
    pub const MOUNTS: &str = "lariat.io/mounts";
}

/// Reasons of events that more than one part writes or reads.
pub mod event_reason {
    /// A node has a volume's device, and does not mount what is on it.
    pub const FAILED_MOUNT: &str = "FailedMount";
    /// A node's agent is not heard of any more.
    pub const LOST: &str = "Lost";
}

#[cfg(test)]
mod tests {
    use super::is_object_name;

    #[test]
    fn object_names_are_dns_subdomains() {
        for good in ["a", "0", "before-upgrade", "a.b-c.d"] {
            assert!(is_object_name(good), "{good}");
        }
        let long = "x".repeat(254);
        for bad in ["", "Monday", "a_b", "a-", ".a", "a..b", "a.-b", &long] {
            assert!(!is_object_name(bad), "{bad:?}");
        }
    }
}
