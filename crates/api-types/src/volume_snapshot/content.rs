//! `volumesnapshotcontents.snapshot.storage.k8s.io`: one snapshot that a driver has, or is to take.

use kube::CustomResource;

use super::{SnapshotDeletionPolicy, VolumeSnapshotError};
use crate::wire::{is_default, object};

object! {
    /// Which snapshot it is, and whose.
    #[derive(CustomResource)]
    #[kube(
        group = "snapshot.storage.k8s.io", version = "v1", kind = "VolumeSnapshotContent",
        shortname = "vsc", shortname = "vscs", status = "VolumeSnapshotContentStatus",
        derive = "PartialEq", derive = "Default",
        annotation("api-approved.kubernetes.io", "https://github.com/kubernetes-csi/external-snapshotter/pull/814"),
        doc = "One snapshot that a driver has, or is to take.",
        printcolumn(name = "ReadyToUse", type_ = "boolean", json_path = ".status.readyToUse", description = "Whether a volume can be restored from it"),
        printcolumn(name = "RestoreSize", type_ = "integer", json_path = ".status.restoreSize", description = "The least size in bytes of a volume restored from it"),
        printcolumn(name = "DeletionPolicy", type_ = "string", json_path = ".spec.deletionPolicy", description = "What becomes of the data when its VolumeSnapshot is deleted"),
        printcolumn(name = "Driver", type_ = "string", json_path = ".spec.driver", description = "The CSI driver that has the data"),
        printcolumn(name = "VolumeSnapshotClass", type_ = "string", json_path = ".spec.volumeSnapshotClassName", description = "The class that says how it was taken"),
        printcolumn(name = "VolumeSnapshot", type_ = "string", json_path = ".spec.volumeSnapshotRef.name", description = "The request that it answers"),
        printcolumn(name = "VolumeSnapshotNamespace", type_ = "string", json_path = ".spec.volumeSnapshotRef.namespace", description = "The namespace of that request"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )]
    #[schemars(extend("required" = ["deletionPolicy", "driver", "source", "volumeSnapshotRef"]))]
    pub struct VolumeSnapshotContentSpec {
        /// What becomes of the data when the VolumeSnapshot is deleted.
        #[schemars(extend("enum" = ["Delete", "Retain"]))]
        pub deletion_policy: SnapshotDeletionPolicy,
        /// The CSI driver that has the data.
        pub driver: String,
        /// Where the data comes from. It cannot be changed.
        pub source: VolumeSnapshotContentSource,
        /// `Filesystem` or `Block`: how the volume of which the snapshot is was used.
        #[serde(skip_serializing_if = "is_default")]
        pub source_volume_mode: String,
        /// The class by which the snapshot was taken.
        #[serde(skip_serializing_if = "is_default")]
        pub volume_snapshot_class_name: String,
        /// The VolumeSnapshot that this one answers.
        pub volume_snapshot_ref: VolumeSnapshotReference,
    }

    /// A volume to take the snapshot of, or a snapshot that the driver has: exactly one of the two.
    #[schemars(extend("x-kubernetes-validations" = [
        {
            "rule": "has(self.volumeHandle) != has(self.snapshotHandle)",
            "message": "exactly one of volumeHandle and snapshotHandle must be set",
        },
        { "rule": "self == oldSelf", "message": "source is immutable" },
    ]))]
    pub struct VolumeSnapshotContentSource {
        /// The driver's own name of the snapshot.
        #[serde(skip_serializing_if = "is_default")]
        pub snapshot_handle: String,
        /// The driver's own name of the volume.
        #[serde(skip_serializing_if = "is_default")]
        pub volume_handle: String,
    }

    /// A VolumeSnapshot by its name, and by its uid once it is known.
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub struct VolumeSnapshotReference {
        /// The API version of the VolumeSnapshot.
        #[serde(skip_serializing_if = "is_default")]
        pub api_version: String,
        /// The part of the object that is meant.
        #[serde(skip_serializing_if = "is_default")]
        pub field_path: String,
        /// `VolumeSnapshot`.
        #[serde(skip_serializing_if = "is_default")]
        pub kind: String,
        /// Its name.
        #[serde(skip_serializing_if = "is_default")]
        pub name: String,
        /// Its namespace.
        #[serde(skip_serializing_if = "is_default")]
        pub namespace: String,
        /// The version of the object that is meant.
        #[serde(skip_serializing_if = "is_default")]
        pub resource_version: String,
        /// Its uid, so that another one of the same name is not taken for it.
        #[serde(skip_serializing_if = "is_default")]
        pub uid: String,
    }

    /// What the driver says of the snapshot.
    pub struct VolumeSnapshotContentStatus {
        /// When the data was as the snapshot has it, in nanoseconds since 1970.
        #[serde(skip_serializing_if = "is_default")]
        pub creation_time: Option<i64>,
        /// What failed last, if it did.
        #[serde(skip_serializing_if = "is_default")]
        pub error: Option<VolumeSnapshotError>,
        /// Whether a volume can be restored from it.
        #[serde(skip_serializing_if = "is_default")]
        pub ready_to_use: Option<bool>,
        /// The least size in bytes of a volume restored from it.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(extend("minimum" = 0))]
        pub restore_size: Option<i64>,
        /// The driver's own name of the snapshot.
        #[serde(skip_serializing_if = "is_default")]
        pub snapshot_handle: Option<String>,
        /// The driver's own name of the group snapshot of which this one is a part.
        #[serde(skip_serializing_if = "is_default")]
        pub volume_group_snapshot_handle: Option<String>,
    }
}
