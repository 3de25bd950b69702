//! `snapshot.storage.k8s.io/v1`: how Kubernetes users ask for snapshots of their claims.
//!
//! A real cluster gets these CRDs from its snapshot controller, so `lariat crds` does not print them;
//! `lariat up` has no such controller to bring them, and applies them itself. Field names, columns and
//! short names are those of the upstream API.

mod class;
mod content;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, CustomResourceExt as _};
use schemars::{Schema, SchemaGenerator};

pub use class::{VolumeSnapshotClass, VolumeSnapshotClassFields};
pub use content::*;

use crate::wire::{is_default, object, string_enum};

/// The CRDs in the order of their names.
pub fn snapshot_crds() -> Vec<CustomResourceDefinition> {
    vec![
        class::crd(),
        VolumeSnapshotContent::crd(),
        VolumeSnapshot::crd(),
    ]
}

object! {
    /// What a snapshot is taken of, and how.
    #[derive(CustomResource)]
    #[kube(
        group = "snapshot.storage.k8s.io", version = "v1", kind = "VolumeSnapshot", namespaced,
        shortname = "vs", status = "VolumeSnapshotStatus", derive = "PartialEq", derive = "Default",
        // A group below k8s.io is protected: a server refuses its CRDs without a sign of approval.
        annotation("api-approved.kubernetes.io", "https://github.com/kubernetes-csi/external-snapshotter/pull/814"),
        doc = "A person's request for a snapshot of a claim, or for the use of one that exists.",
        printcolumn(name = "ReadyToUse", type_ = "boolean", json_path = ".status.readyToUse", description = "Whether a volume can be restored from it"),
        printcolumn(name = "SourcePVC", type_ = "string", json_path = ".spec.source.persistentVolumeClaimName", description = "The claim that the snapshot is taken of"),
        printcolumn(name = "SourceSnapshotContent", type_ = "string", json_path = ".spec.source.volumeSnapshotContentName", description = "The existing snapshot that is to be used"),
        printcolumn(name = "RestoreSize", type_ = "string", json_path = ".status.restoreSize", description = "The least size of a volume restored from it"),
        printcolumn(name = "SnapshotClass", type_ = "string", json_path = ".spec.volumeSnapshotClassName", description = "The class that says how it is taken"),
        printcolumn(name = "SnapshotContent", type_ = "string", json_path = ".status.boundVolumeSnapshotContentName", description = "The snapshot itself"),
        printcolumn(name = "CreationTime", type_ = "date", json_path = ".status.creationTime", description = "When the data was as the snapshot has it"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )]
    #[schemars(extend("required" = ["source"]))]
    pub struct VolumeSnapshotSpec {
        /// Where the data comes from. It cannot be changed.
        pub source: VolumeSnapshotSource,
        /// The class; without one, the default class of the volume's driver.
        #[serde(skip_serializing_if = "is_default")]
        pub volume_snapshot_class_name: String,
    }

    /// A claim to take the snapshot of, or a snapshot that exists: exactly one of the two.
    #[schemars(extend("x-kubernetes-validations" = [
        {
            "rule": "has(self.persistentVolumeClaimName) != has(self.volumeSnapshotContentName)",
            "message": "exactly one of persistentVolumeClaimName and volumeSnapshotContentName must be set",
        },
        { "rule": "self == oldSelf", "message": "source is immutable" },
    ]))]
    pub struct VolumeSnapshotSource {
        /// The claim, in the same namespace.
        #[serde(skip_serializing_if = "is_default")]
        pub persistent_volume_claim_name: String,
        /// The VolumeSnapshotContent of a snapshot that exists.
        #[serde(skip_serializing_if = "is_default")]
        pub volume_snapshot_content_name: String,
    }

    /// What became of the request.
    pub struct VolumeSnapshotStatus {
        /// The VolumeSnapshotContent that holds the snapshot. Believe it only if that one refers back.
        #[serde(skip_serializing_if = "is_default")]
        pub bound_volume_snapshot_content_name: String,
        /// When the data was as the snapshot has it.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(extend("format" = "date-time"))]
        pub creation_time: Option<String>,
        /// Whether a volume can be restored from it.
        #[serde(skip_serializing_if = "is_default")]
        pub ready_to_use: Option<bool>,
        /// The least size of a volume restored from it.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(schema_with = "quantity")]
        pub restore_size: Option<IntOrString>,
        /// What failed last, if it did.
        #[serde(skip_serializing_if = "is_default")]
        pub error: Option<VolumeSnapshotError>,
        /// The group snapshot of which this one is a part.
        #[serde(skip_serializing_if = "is_default")]
        pub volume_group_snapshot_name: String,
    }

    /// Why a snapshot could not be taken.
    pub struct VolumeSnapshotError {
        /// When it happened.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(extend("format" = "date-time"))]
        pub time: Option<String>,
        /// What happened. It may be logged and holds no secrets.
        #[serde(skip_serializing_if = "is_default")]
        pub message: String,
    }
}

string_enum! {
    /// What becomes of the data when the object that stands for it is deleted.
    pub checked enum SnapshotDeletionPolicy {
        /// The data is deleted too.
        #[default]
        Delete = "Delete",
        /// The data is kept.
        Retain = "Retain",
    }
}

/// A quantity such as `10Gi`, or its bytes as a number.
fn quantity(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({ "x-kubernetes-int-or-string": true })
}
