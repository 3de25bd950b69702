//! `nodes.longhorn.io`: a machine, its disks, and what is on them.

use std::collections::BTreeMap;

use kube::CustomResource;

use crate::{
    condition::Condition,
    wire::{is_default, object, string_enum},
};

string_enum! {
    /// What a disk is.
    pub checked enum DiskType {
        /// A folder on a file system.
        #[default]
        Filesystem = "filesystem",
        /// A raw block device.
        Block = "block",
    }

    /// How a block disk is driven.
    pub checked enum DiskDriver {
        /// It is not a block disk.
        #[default]
        None = "",
        /// By what fits.
        Auto = "auto",
        /// By Linux asynchronous I/O.
        Aio = "aio",
        /// By NVMe.
        Nvme = "nvme",
    }
}

/// Condition types of a node.
pub mod node_condition {
    /// Its agent answers and its Kubernetes node is ready.
    pub const READY: &str = "Ready";
    /// Replicas may be placed on it.
    pub const SCHEDULABLE: &str = "Schedulable";
    /// Mounts made in a container are seen on the host.
    pub const MOUNT_PROPAGATION: &str = "MountPropagation";
    /// multipathd leaves the volumes' devices alone.
    pub const MULTIPATHD: &str = "Multipathd";
    /// The kernel has what volumes need.
    pub const KERNEL_MODULES_LOADED: &str = "KernelModulesLoaded";
    /// The host has the tools that volumes need.
    pub const REQUIRED_PACKAGES: &str = "RequiredPackages";
    /// The host can mount shared volumes.
    pub const NFS_CLIENT_INSTALLED: &str = "NFSClientInstalled";
}

/// Condition types of a disk.
pub mod disk_condition {
    /// It is mounted and is the disk it was.
    pub const READY: &str = "Ready";
    /// Replicas may be placed on it.
    pub const SCHEDULABLE: &str = "Schedulable";
}

object! {
    /// What a node should be.
    #[derive(CustomResource)]
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "Node", namespaced,
        shortname = "lhn", status = "NodeStatus", derive = "PartialEq", derive = "Default",
        label("longhorn-manager", ""),
        doc = "A machine that stores replicas and attaches volumes. It has the Kubernetes node's name.",
        printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status", description = "Whether the node is ready"),
        printcolumn(name = "AllowScheduling", type_ = "boolean", json_path = ".spec.allowScheduling", description = "Whether people let replicas be placed on the node"),
        printcolumn(name = "Schedulable", type_ = "string", json_path = ".status.conditions[?(@.type=='Schedulable')].status", description = "Whether replicas can be placed on the node"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )]
    pub struct NodeSpec {
        /// The Kubernetes node.
        pub name: String,
        /// Its disks, by a name that people choose.
        pub disks: BTreeMap<String, DiskSpec>,
        /// Whether new replicas may be placed on it.
        pub allow_scheduling: bool,
        /// Whether all replicas should leave it.
        pub eviction_requested: bool,
        /// What volumes can ask for in `nodeSelector`.
        pub tags: Vec<String>,
        /// Thousandths of a processor kept for engines and replicas; zero for the setting's value.
        #[serde(rename = "instanceManagerCPURequest")]
        pub instance_manager_cpu_request: i64,
    }

    /// What a disk should be.
    pub struct DiskSpec {
        /// What it is.
        pub disk_type: DiskType,
        /// Where it is: a folder or a device.
        pub path: String,
        /// How a block disk is driven.
        pub disk_driver: DiskDriver,
        /// Whether new replicas may be placed on it.
        pub allow_scheduling: bool,
        /// Whether all replicas should leave it.
        pub eviction_requested: bool,
        /// Bytes that replicas must leave free.
        pub storage_reserved: i64,
        /// What volumes can ask for in `diskSelector`.
        pub tags: Vec<String>,
    }

    /// What a node is. Its disks' part is written only by the node's own agent.
    pub struct NodeStatus {
        /// What was observed of it, such as `Ready`.
        pub conditions: Vec<Condition>,
        /// Its disks, by the name that they have in `spec.disks`.
        pub disk_status: BTreeMap<String, DiskStatus>,
        /// The region it is in.
        pub region: String,
        /// The zone it is in.
        pub zone: String,
        /// When its snapshots were checked.
        pub snapshot_check_status: SnapshotCheckStatus,
        /// Whether replicas leave it because it is being drained.
        pub auto_evicting: bool,
        /// How the kubelet shares out processors.
        #[serde(skip_serializing_if = "is_default")]
        pub cpu_policy: String,
        /// Lariat's: what its agent says of itself.
        #[serde(skip_serializing_if = "is_default")]
        pub agent: Option<AgentStatus>,
    }

    /// Lariat's: what a node's agent says of itself and of what it found.
    pub struct AgentStatus {
        /// The version of the agent.
        #[serde(skip_serializing_if = "is_default")]
        pub version: String,
        /// Devices and mounts of volumes that have no engine on the node.
        #[serde(skip_serializing_if = "is_default")]
        pub leftovers: Vec<Leftover>,
    }

    /// Lariat's: something of a volume that a node has although it should not.
    pub struct Leftover {
        /// `device` or `mount`.
        pub kind: String,
        /// The volume.
        pub volume: String,
        /// Where it is on the node.
        pub path: String,
        /// When it was first seen so, in RFC 3339.
        pub since: String,
        /// Why it could not be put away when that was asked for.
        #[serde(skip_serializing_if = "is_default")]
        pub message: String,
    }

    /// When a node's snapshots were checked.
    pub struct SnapshotCheckStatus {
        /// The last time, in RFC 3339.
        #[serde(skip_serializing_if = "is_default")]
        pub last_periodic_checked_at: Option<String>,
    }

    /// What a disk is.
    pub struct DiskStatus {
        /// What was observed of it, such as `Schedulable`.
        pub conditions: Vec<Condition>,
        /// Free bytes.
        pub storage_available: i64,
        /// Bytes promised to replicas and backing images.
        pub storage_scheduled: i64,
        /// All bytes.
        pub storage_maximum: i64,
        /// The bytes promised to each replica.
        pub scheduled_replica: BTreeMap<String, i64>,
        /// The bytes promised to each backing image.
        pub scheduled_backing_image: BTreeMap<String, i64>,
        /// The identity that is written on the disk.
        #[serde(rename = "diskUUID")]
        pub disk_uuid: String,
        /// Its name in `spec.disks`.
        pub disk_name: String,
        /// Where it was found.
        pub disk_path: String,
        /// What it is.
        pub disk_type: DiskType,
        /// How a block disk is driven.
        pub disk_driver: DiskDriver,
        /// The file system on it.
        pub filesystem_type: String,
        /// What serves its replicas.
        pub instance_manager_name: String,
    }
}
