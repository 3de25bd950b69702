//! What the driver has refused as wrong in itself. The same request again is the same answer again, whatever made us look: watches do
//! not keep step, and one may show a volume long after it was read for the call.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cluster_core::attacher::PublishRequest;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt as _;

use super::news;

/// By the attachment's name; an entry lives until it is attached or deleted.
#[derive(Default)]
pub(super) struct Refused(Mutex<BTreeMap<String, Refusal>>);

struct Refusal {
    uid: Option<String>,
    volume: Option<Arc<PersistentVolume>>,
    request: PublishRequest,
    until: Instant,
}

impl Refusal {
    fn is_of(
        &self,
        attachment: &VolumeAttachment,
        volume: Option<&Arc<PersistentVolume>>,
        request: &PublishRequest,
    ) -> bool {
        // Whoever changes the volume wants it to be tried again, also if nothing of that is in the request.
        let is_same_volume = match (&self.volume, volume) {
            (Some(old), Some(new)) => !news::of_volume(Some(old), new),
            (None, None) => true,
            _ => false,
        };
        self.uid == attachment.uid() && self.request == *request && is_same_volume
    }
}

impl Refused {
    pub fn note(
        &self,
        attachment: &VolumeAttachment,
        volume: Option<&Arc<PersistentVolume>>,
        request: PublishRequest,
        retry: Duration,
    ) {
        let refusal = Refusal {
            uid: attachment.uid(),
            volume: volume.cloned(),
            request,
            until: Instant::now() + retry,
        };
        let mut refused = self.0.lock().expect("no holder panics");
        refused.insert(attachment.name_any(), refusal);
    }

    /// How long this need not be asked again, if it was refused.
    pub fn left(
        &self,
        attachment: &VolumeAttachment,
        volume: Option<&Arc<PersistentVolume>>,
        request: &PublishRequest,
    ) -> Option<Duration> {
        let refused = self.0.lock().expect("no holder panics");
        let refusal = refused.get(&attachment.name_any())?;
        let left = refusal.until.checked_duration_since(Instant::now())?;
        (!left.is_zero() && refusal.is_of(attachment, volume, request)).then_some(left)
    }

    pub fn forget(&self, attachment: &str) {
        let mut refused = self.0.lock().expect("no holder panics");
        refused.remove(attachment);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const RETRY: Duration = Duration::from_secs(300);

    fn attachment(uid: &str) -> VolumeAttachment {
        let spec = json!({"attacher": "d", "nodeName": "n", "source": {}});
        let object = json!({"metadata": {"name": "va", "uid": uid}, "spec": spec});
        serde_json::from_value(object).expect("an attachment")
    }

    fn volume(change: &Value) -> Arc<PersistentVolume> {
        let mut object = json!({"metadata": {"name": "v", "uid": "1"}, "spec": {"capacity": {"storage": "1Gi"}}});
        json_patch::merge(&mut object, change);
        Arc::new(serde_json::from_value(object).expect("a volume"))
    }

    fn request(node_id: &str) -> PublishRequest {
        PublishRequest {
            handle: "v".into(),
            node_id: node_id.to_owned(),
            access_mode: cluster_core::access::CsiAccessMode::SingleNodeWriter,
            read_only: false,
            fs_type: None,
            secret: None,
            attributes: BTreeMap::new(),
        }
    }

    #[test]
    fn the_same_is_not_asked_again_and_anything_else_is() {
        let refused = Refused::default();
        let plain = volume(&json!({}));
        let is_asked = |uid: &str, volume: &Arc<PersistentVolume>, node_id: &str| {
            let left = refused.left(&attachment(uid), Some(volume), &request(node_id));
            assert!(left.is_none_or(|left| left <= RETRY));
            left.is_none()
        };
        assert!(is_asked("1", &plain, "n"));
        refused.note(&attachment("1"), Some(&plain), request("n"), RETRY);
        assert!(!is_asked("1", &plain, "n"));
        // A finalizer is not what the volume is.
        let held = volume(&json!({"metadata": {"finalizers": ["x"]}}));
        assert!(!is_asked("1", &held, "n"));
        let changed = volume(&json!({"spec": {"mountOptions": ["noatime"]}}));
        assert!(is_asked("1", &changed, "n"));
        assert!(is_asked("1", &plain, "another"));
        assert!(is_asked("2", &plain, "n"), "it was made anew");
        refused.note(&attachment("1"), Some(&plain), request("n"), Duration::ZERO);
        assert!(is_asked("1", &plain, "n"), "it is time again");
        refused.note(&attachment("1"), Some(&plain), request("n"), RETRY);
        refused.forget("va");
        assert!(is_asked("1", &plain, "n"));
    }
}
