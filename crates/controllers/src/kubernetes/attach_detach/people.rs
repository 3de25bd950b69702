//! What is written for people: on whom an event is shown, and annotations that nothing reads back.

use std::collections::BTreeMap;

use cluster_core::names::{attached_at_annotation, attached_node_annotation};
use cluster_core::{DriverName, EventTarget, NodeName, PvName};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::model::Model;

/// One write at a time for each volume; of the wishes that come meanwhile, the newest.
#[derive(Default)]
pub(super) struct Wishes {
    /// With the holder that is to be written next, which may be nobody.
    under_way: BTreeMap<PvName, Option<Option<NodeName>>>,
}

impl Wishes {
    /// True if it is to be written now; otherwise it is kept for later.
    pub fn ask(&mut self, volume: &PvName, holder: Option<&NodeName>) -> bool {
        match self.under_way.get_mut(volume) {
            Some(next) => {
                *next = Some(holder.cloned());
                false
            }
            None => {
                self.under_way.insert(volume.clone(), None);
                true
            }
        }
    }

    /// What was wished for while the write that has ended was under way.
    pub fn ended(&mut self, volume: &PvName) -> Option<Option<NodeName>> {
        self.under_way.remove(volume).flatten()
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_wish_is_written_last() {
        let mut wishes = Wishes::default();
        let (volume, n1, n2) = (
            PvName::from("v"),
            NodeName::from("n1"),
            NodeName::from("n2"),
        );
        assert!(wishes.ask(&volume, Some(&n1)));
        assert!(!wishes.ask(&volume, Some(&n2)), "a write is under way");
        assert!(!wishes.ask(&volume, None), "nobody is a wish too");
        assert!(
            wishes.ask(&"w".into(), Some(&n1)),
            "volumes do not wait for each other"
        );
        assert_eq!(wishes.ended(&volume), Some(None));
        assert!(wishes.ask(&volume, None));
        assert_eq!(wishes.ended(&volume), None);
        assert!(wishes.ask(&volume, Some(&n2)));
    }
}
