//! Every kind by its name, so that a test can run over all of them.

use api_types::{
    BackingImage, Backup, BackupTarget, BackupVolume, Engine, Node, RecurringJob, Replica, Setting,
    ShareManager, Snapshot, Volume, VolumeAttachment, VolumeSnapshot, VolumeSnapshotClass,
    VolumeSnapshotContent,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Reads an object of this kind as its type and writes it again, or says why it cannot be read.
pub fn read_and_write(kind: &str, object: &Value) -> Result<Value, String> {
    fn through<T: DeserializeOwned + Serialize + PartialEq>(
        object: &Value,
    ) -> Result<Value, String> {
        let typed: T = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
        let written = serde_json::to_value(&typed).map_err(|error| error.to_string())?;
        let typed_again: T =
            serde_json::from_value(written.clone()).map_err(|error| error.to_string())?;
        if typed_again == typed {
            Ok(written)
        } else {
            Err(format!("reads differently once written: {written}"))
        }
    }
    match kind {
        "BackingImage" => through::<BackingImage>(object),
        "Backup" => through::<Backup>(object),
        "BackupTarget" => through::<BackupTarget>(object),
        "BackupVolume" => through::<BackupVolume>(object),
        "Engine" => through::<Engine>(object),
        "Node" => through::<Node>(object),
        "RecurringJob" => through::<RecurringJob>(object),
        "Replica" => through::<Replica>(object),
        "Setting" => through::<Setting>(object),
        "ShareManager" => through::<ShareManager>(object),
        "Snapshot" => through::<Snapshot>(object),
        "Volume" => through::<Volume>(object),
        "VolumeAttachment" => through::<VolumeAttachment>(object),
        "VolumeSnapshot" => through::<VolumeSnapshot>(object),
        "VolumeSnapshotClass" => through::<VolumeSnapshotClass>(object),
        "VolumeSnapshotContent" => through::<VolumeSnapshotContent>(object),
        other => Err(format!("no such kind: {other}")),
    }
}

/// Our own CRDs and those of Kubernetes' snapshots.
pub fn every_crd() -> impl Iterator<Item = CustomResourceDefinition> {
    api_types::all_crds()
        .into_iter()
        .chain(api_types::snapshot_crds())
}

/// The schema that a CRD gives its objects.
pub fn schema_of(crd: &CustomResourceDefinition) -> Value {
    let schema = crd.spec.versions[0]
        .schema
        .as_ref()
        .expect("a CRD has a schema");
    serde_json::to_value(&schema.open_api_v3_schema).expect("a schema is JSON")
}

/// The schema of this kind's objects.
pub fn schema_of_kind(kind: &str) -> Value {
    let crd = every_crd().find(|crd| crd.spec.names.kind == kind);
    schema_of(&crd.expect("every kind has a CRD"))
}
