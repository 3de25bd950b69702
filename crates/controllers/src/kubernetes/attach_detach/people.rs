//! What is written for people: on whom an event is shown, and annotations that nothing reads back.

use cluster_core::names::{attached_at_annotation, attached_node_annotation};
use cluster_core::{DriverName, EventTarget, NodeName, PvName};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::model::Model;

/// The objects that show an event. What concerns a volume is shown on its claim too: that is where its
/// user looks.
pub(super) fn references(target: &EventTarget, model: &Model) -> Vec<ObjectReference> {
    match target {
        EventTarget::Pod(pod) => vec![ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        }],
        EventTarget::Claim(claim) => vec![ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("PersistentVolumeClaim".to_owned()),
            namespace: Some(claim.namespace.clone()),
            name: Some(claim.name.clone()),
            ..ObjectReference::default()
        }],
        EventTarget::Volume(volume) => {
            let claim = model
                .volumes
                .get(volume)
                .and_then(|known| known.claim.as_ref())
                .map(|claim| ObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("PersistentVolumeClaim".to_owned()),
                    namespace: claim.namespace.clone(),
                    name: claim.name.clone(),
                    uid: claim.uid.clone(),
                    ..ObjectReference::default()
                });
            let mut references = vec![volume_reference(volume, model)];
            references.extend(claim);
            references
        }
    }
}

pub(super) fn volume_reference(volume: &PvName, model: &Model) -> ObjectReference {
    let known = model.volumes.get(volume);
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolume".to_owned()),
        name: Some(volume.to_string()),
        uid: known.and_then(|known| known.uid.clone()),
        ..ObjectReference::default()
    }
}

/// The merge patch that says who has the volume, or that nobody has.
pub(super) fn annotations(driver: &DriverName, node: Option<&NodeName>) -> Value {
    let since = node.map(|_| {
        jiff::Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%SZ")
            .to_string()
    });
    json!({"metadata": {"annotations": {
        attached_node_annotation(driver): node.map(NodeName::as_str),
        attached_at_annotation(driver): since,
    }}})
}

pub(super) async fn annotate(client: &Client, volume: &PvName, patch: Value) {
    let api: Api<PersistentVolume> = Api::all(client.clone());
    let parameters = PatchParams::default();
    match api
        .patch(volume.as_str(), &parameters, &Patch::Merge(patch))
        .await
    {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        Err(error) => {
            tracing::debug!(volume.name = %volume, error = %error, "the annotations for people could not be written");
        }
    }
}
