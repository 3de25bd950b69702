//! On whom an event is shown.

use cluster_core::{Event, EventTarget, PvName};
use k8s_openapi::api::core::v1::ObjectReference;

use super::model::Model;

/// The objects that show an event. What concerns a volume is shown on its claim too: that is where its
/// user looks. Problems are on our own object as well; of all else the volume controller tells there.
pub(super) fn references(event: &Event, model: &Model) -> Vec<ObjectReference> {
    match &event.target {
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
            let own = model.view.volumes.get(volume);
            let own = own.and_then(|known| model.own_volumes.get(&known.unique_name()));
            let mut references = vec![volume_reference(volume, model)];
            references.extend(claim);
            references.extend(own.filter(|_| event.kind.is_warning()).cloned());
            references
        }
    }
}

fn volume_reference(volume: &PvName, model: &Model) -> ObjectReference {
    let known = model.volumes.get(volume);
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolume".to_owned()),
        name: Some(volume.to_string()),
        uid: known.and_then(|known| known.uid.clone()),
        ..ObjectReference::default()
    }
}
