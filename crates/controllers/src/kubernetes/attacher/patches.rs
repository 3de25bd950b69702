//! The patches of the external-attacher, as JSON.

use std::collections::BTreeMap;

use cluster_core::attacher::{AttachmentPatch, VolumePatch};
use cluster_core::{ErrorReport, Timestamp};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::{Value, json};

pub(super) enum Target {
    Object,
    Status,
}

/// The merge patch of an attachment. `live` is what it is laid over. Its uid makes sure that the result of a call is not
/// written on a later attachment, which has the same name if it is of the same volume and node.
pub(super) fn of_attachment(patch: &AttachmentPatch, live: &VolumeAttachment) -> (Target, Value) {
    let (target, mut body) = without_uid(patch, live);
    if let Some(uid) = &live.metadata.uid {
        body["metadata"]["uid"] = json!(uid);
    }
    (target, body)
}

fn without_uid(patch: &AttachmentPatch, live: &VolumeAttachment) -> (Target, Value) {
    match patch {
        AttachmentPatch::Attached { metadata } => {
            let status = json!({
                "attached": true,
                "attachmentMetadata": replaced_metadata(metadata, live),
                "attachError": null,
            });
            (Target::Status, json!({"status": status}))
        }
        AttachmentPatch::AttachFailed { error } => (
            Target::Status,
            json!({"status": {"attachError": error_json(error)}}),
        ),
        AttachmentPatch::Detached => {
            let status =
                json!({"attached": false, "attachmentMetadata": null, "detachError": null});
            (Target::Status, json!({"status": status}))
        }
        AttachmentPatch::DetachFailed { error } => (
            Target::Status,
            json!({"status": {"detachError": error_json(error)}}),
        ),
        AttachmentPatch::Finalizers { finalizers } => (
            Target::Object,
            of_metadata(live, finalizers, &BTreeMap::new()),
        ),
    }
}

/// Finalizers are a list, which a merge patch replaces as a whole: the version makes sure that nobody
/// else's is lost.
pub(super) fn of_metadata(
    live: &VolumeAttachment,
    finalizers: &[String],
    annotations: &BTreeMap<String, String>,
) -> Value {
    let mut metadata = json!({"finalizers": finalizers});
    if !annotations.is_empty() {
        metadata["annotations"] = json!(annotations);
    }
    if let Some(version) = &live.metadata.resource_version {
        metadata["resourceVersion"] = json!(version);
    }
    json!({"metadata": metadata})
}

pub(super) fn of_volume(patch: &VolumePatch) -> json_patch::Patch {
    let operations = match patch {
        VolumePatch::Append { finalizer } => json!([
            {"op": "add", "path": "/metadata/finalizers/-", "value": finalizer},
        ]),
        VolumePatch::CreateList { finalizer } => json!([
            {"op": "test", "path": "/metadata/finalizers", "value": null},
            {"op": "add", "path": "/metadata/finalizers", "value": [finalizer]},
        ]),
        VolumePatch::Remove { index, finalizer } => json!([
            {"op": "test", "path": format!("/metadata/finalizers/{index}"), "value": finalizer},
            {"op": "remove", "path": format!("/metadata/finalizers/{index}")},
        ]),
    };
    serde_json::from_value(operations).expect("operations are written above")
}

/// A merge patch keeps what it does not name; keys of an earlier publish must go.
fn replaced_metadata(metadata: &BTreeMap<String, String>, live: &VolumeAttachment) -> Value {
    let mut patch = json!(metadata);
    let status = live.status.as_ref();
    let old = status.and_then(|status| status.attachment_metadata.as_ref());
    for key in old.into_iter().flat_map(BTreeMap::keys) {
        if !metadata.contains_key(key) {
            patch[key] = Value::Null;
        }
    }
    patch
}

fn error_json(error: &ErrorReport) -> Value {
    let mut json = json!({"message": error.message, "time": time(error.at)});
    // A code of an earlier error must not stay beside another message.
    json["errorCode"] = error.code.map_or(Value::Null, Value::from);
    json
}

fn time(at: Timestamp) -> String {
    let milliseconds = i64::try_from(at.0).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_millisecond(milliseconds).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
