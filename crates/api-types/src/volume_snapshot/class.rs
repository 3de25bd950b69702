//! `volumesnapshotclasses.snapshot.storage.k8s.io`: how a driver takes snapshots.
//!
//! Written by hand: its fields stand beside the metadata and not in a `spec`, which the derive for
//! custom resources cannot express.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::ClusterResourceScope;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::SnapshotDeletionPolicy;
use crate::wire::{is_default, object};

/// How a driver takes snapshots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotClass {
    api_version: String,
    kind: String,
    pub metadata: ObjectMeta,
    #[serde(flatten)]
    pub fields: VolumeSnapshotClassFields,
}

object! {
    /// What a class says.
    pub struct VolumeSnapshotClassFields {
        /// What becomes of the data when the VolumeSnapshot is deleted.
        pub deletion_policy: SnapshotDeletionPolicy,
        /// The CSI driver that takes the snapshots.
        pub driver: String,
        /// What the driver is told with every snapshot.
        #[serde(skip_serializing_if = "is_default")]
        pub parameters: BTreeMap<String, String>,
    }
}

impl VolumeSnapshotClass {
    pub fn new(name: &str, fields: VolumeSnapshotClassFields) -> Self {
        Self {
            api_version: <Self as kube::Resource>::api_version(&()).into_owned(),
            kind: <Self as kube::Resource>::kind(&()).into_owned(),
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            fields,
        }
    }
}

impl kube::Resource for VolumeSnapshotClass {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "VolumeSnapshotClass".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "snapshot.storage.k8s.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "volumesnapshotclasses".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

pub(super) fn crd() -> CustomResourceDefinition {
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "volumesnapshotclasses.snapshot.storage.k8s.io",
            "annotations": {
                "api-approved.kubernetes.io": "https://github.com/kubernetes-csi/external-snapshotter/pull/814",
            },
        },
        "spec": {
            "group": "snapshot.storage.k8s.io",
            "scope": "Cluster",
            "names": {
                "kind": "VolumeSnapshotClass",
                "plural": "volumesnapshotclasses",
                "singular": "volumesnapshotclass",
                "shortNames": ["vsclass", "vsclasses"],
                "categories": [],
            },
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "subresources": {},
                "additionalPrinterColumns": [
                    {"name": "Driver", "type": "string", "jsonPath": ".driver", "description": "The CSI driver that takes the snapshots"},
                    {"name": "DeletionPolicy", "type": "string", "jsonPath": ".deletionPolicy", "description": "What becomes of the data when the VolumeSnapshot is deleted"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
                "schema": {"openAPIV3Schema": schema()},
            }],
        },
    });
    serde_json::from_value(crd).expect("a CRD written here is one")
}

fn schema() -> serde_json::Value {
    json!({
        "type": "object",
        "title": "VolumeSnapshotClass",
        "description": "How a driver takes snapshots.",
        "required": ["deletionPolicy", "driver"],
        "x-kubernetes-preserve-unknown-fields": true,
        "properties": {
            "deletionPolicy": {
                "type": "string",
                "description": "What becomes of the data when the VolumeSnapshot is deleted.",
                "enum": ["Delete", "Retain"],
            },
            "driver": {
                "type": "string",
                "description": "The CSI driver that takes the snapshots.",
            },
            "parameters": {
                "type": "object",
                "description": "What the driver is told with every snapshot.",
                "nullable": true,
                "additionalProperties": {"type": "string"},
            },
        },
    })
}
