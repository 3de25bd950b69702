//! The view that decisions are made from, kept up to date object by object.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use cluster_core::{
    AttachmentName, AttachmentSource, ClusterView, NewAttachment, NodeName, PvName,
    UniqueVolumeName, wire,
};
use k8s_openapi::api::core::v1::{
    Node, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod,
};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use kube::ResourceExt as _;
use tokio::sync::Notify;
use tokio::time::Instant;

/// What was written should come back with the watch. If it was undone before that could be seen, the
/// decision is made anew after this time.
const ECHO_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct Model {
    pub view: ClusterView,
    /// The identity of each attachment, so that a later one of the same name is not deleted in its stead.
    pub attachment_uids: BTreeMap<AttachmentName, String>,
    /// How to refer to a volume and to its claim.
    pub volumes: BTreeMap<PvName, VolumeReferences>,
    /// How to refer to our own object of a volume of our driver.
    pub own_volumes: BTreeMap<UniqueVolumeName, ObjectReference>,
    /// Written by us and not seen yet.
    expected: BTreeMap<AttachmentName, Expected>,
    fenced_nodes: BTreeMap<UniqueVolumeName, NodeName>,
}

struct Expected {
    /// Until when the echo is waited for; for ever while the write itself is under way.
    until: Option<Instant>,
    /// Only we say that it exists: the view has it on our word.
    is_ours: bool,
}

#[derive(Clone, Default)]
pub(super) struct VolumeReferences {
    pub uid: Option<String>,
    pub claim: Option<ObjectReference>,
}

/// Shared between the watches, which write, and the loop, which decides.
#[derive(Clone, Default)]
pub(super) struct SharedModel {
    model: Arc<Mutex<Model>>,
    changed: Arc<Notify>,
}

impl SharedModel {
    pub fn lock(&self) -> MutexGuard<'_, Model> {
        self.model.lock().expect("no holder panics")
    }

    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Changes the model, and wakes the loop if that made a difference.
    pub fn update(&self, change: impl FnOnce(&mut Model) -> bool) {
        if change(&mut self.lock()) {
            self.changed.notify_one();
        }
    }
}

impl Model {
    /// A deletion is under way.
    pub fn expect_gone(&mut self, name: &AttachmentName) {
        let expected = Expected {
            until: Some(Instant::now() + ECHO_TIMEOUT),
            is_ours: false,
        };
        self.expected.insert(name.clone(), expected);
    }

    /// A creation is under way. It counts from now on as one that may be attached: until the watch shows it, the turn may
    /// come to another node, and a volume for one node must not get a second attachment.
    pub fn expect_new(&mut self, name: &AttachmentName, new: &NewAttachment) {
        let is_ours = !self.view.attachments.contains_key(name);
        if is_ours {
            let attachment = attachment_of(new);
            self.view.attachments.insert(name.clone(), attachment);
        }
        let expected = Expected {
            until: None,
            is_ours,
        };
        self.expected.insert(name.clone(), expected);
    }

    /// The creation has ended, well or without an answer: its echo comes soon, or there is none.
    pub fn await_echo(&mut self, name: &AttachmentName) {
        if let Some(expected) = self.expected.get_mut(name) {
            expected.until = Some(Instant::now() + ECHO_TIMEOUT);
        }
    }

    pub fn expect_no_more(&mut self, name: &AttachmentName) {
        if let Some(expected) = self.expected.remove(name)
            && expected.is_ours
        {
            self.view.attachments.remove(name);
        }
    }

    pub fn is_expected(&self, name: &AttachmentName) -> bool {
        self.expected.contains_key(name)
    }

    /// Gives up on echoes that never came.
    pub fn forget_unseen(&mut self) {
        let now = Instant::now();
        let unseen: Vec<AttachmentName> = self
            .expected
            .iter()
            .filter(|(_, expected)| expected.until.is_some_and(|until| until <= now))
            .map(|(name, _)| name.clone())
            .collect();
        for name in unseen {
            self.expect_no_more(&name);
        }
    }

    /// When an echo that never came should no longer be waited for.
    pub fn next_expiry(&self) -> Option<Instant> {
        let expected = self.expected.values();
        expected.filter_map(|expected| expected.until).min()
    }

    pub fn pod(&mut self, old: Option<&Pod>, new: Option<&Pod>) -> bool {
        let mut changed = false;
        if let Some(old) = old {
            let key = wire::pod_key(old);
            if new.is_none_or(|new| wire::pod_key(new) != key) {
                changed |= self.view.pods.remove(&key).is_some();
            }
        }
        if let Some(new) = new {
            let pod = wire::pod(new);
            // Pods without claims are none of our business, and there are many.
            if !pod.claims.is_empty() {
                let key = wire::pod_key(new);
                changed |= replace(&mut self.view.pods, key, pod);
            }
        }
        changed
    }

    pub fn claim(
        &mut self,
        old: Option<&PersistentVolumeClaim>,
        new: Option<&PersistentVolumeClaim>,
    ) -> bool {
        match (old, new) {
            (_, Some(new)) => {
                let key = wire::claim_key(new);
                replace(&mut self.view.claims, key, wire::claim(new))
            }
            (Some(old), None) => self.view.claims.remove(&wire::claim_key(old)).is_some(),
            (None, None) => false,
        }
    }

    pub fn volume(
        &mut self,
        old: Option<&PersistentVolume>,
        new: Option<&PersistentVolume>,
    ) -> bool {
        let Some(any) = new.or(old) else { return false };
        let name = PvName::new(any.name_any());
        let Some(volume) = new.and_then(wire::persistent_volume) else {
            self.volumes.remove(&name);
            return self.view.volumes.remove(&name).is_some();
        };
        let references = VolumeReferences {
            uid: any.uid(),
            claim: any.spec.as_ref().and_then(|spec| spec.claim_ref.clone()),
        };
        self.volumes.insert(name.clone(), references);
        replace(&mut self.view.volumes, name, volume)
    }

    pub fn node(&mut self, old: Option<&Node>, new: Option<&Node>) -> bool {
        let Some(any) = new.or(old) else { return false };
        let name = NodeName::new(any.name_any());
        match new {
            Some(new) => replace(&mut self.view.nodes, name, wire::node(new)),
            None => self.view.nodes.remove(&name).is_some(),
        }
    }

    pub fn csi_node(&mut self, old: Option<&CSINode>, new: Option<&CSINode>) -> bool {
        let Some(any) = new.or(old) else { return false };
        let name = NodeName::new(any.name_any());
        match new {
            Some(new) => replace(&mut self.view.csi_nodes, name, wire::csi_node(new)),
            None => self.view.csi_nodes.remove(&name).is_some(),
        }
    }

    pub fn csi_driver(&mut self, old: Option<&CSIDriver>, new: Option<&CSIDriver>) -> bool {
        let drivers = &mut self.view.attachless_drivers;
        let removed = old
            .and_then(wire::attachless_driver)
            .is_some_and(|driver| drivers.remove(&driver));
        let added = new
            .and_then(wire::attachless_driver)
            .is_some_and(|driver| drivers.insert(driver));
        removed || added
    }

    pub fn attachment(
        &mut self,
        old: Option<&VolumeAttachment>,
        new: Option<&VolumeAttachment>,
    ) -> bool {
        let Some(any) = new.or(old) else { return false };
        let name = wire::attachment_key(any);
        self.expected.remove(&name);
        match new {
            Some(new) => {
                self.attachment_uids
                    .insert(name.clone(), new.uid().unwrap_or_default());
                replace(&mut self.view.attachments, name, wire::attachment(new))
            }
            None => {
                self.attachment_uids.remove(&name);
                self.view.attachments.remove(&name).is_some()
            }
        }
    }

    /// The node from which nothing can write a volume any more.
    pub fn fence(&mut self, volume: &UniqueVolumeName, fenced: Option<NodeName>) -> bool {
        let old = set(&mut self.fenced_nodes, volume, fenced.clone());
        if old == fenced {
            return false;
        }
        if let Some(old) = old {
            self.view.fences.remove(&(volume.clone(), old));
        }
        if let Some(node) = fenced {
            self.view.fences.insert((volume.clone(), node));
        }
        true
    }

    /// Our own object of a volume. Nothing is decided by it: it is for people to find events on.
    pub fn own_volume(&mut self, volume: &UniqueVolumeName, object: Option<ObjectReference>) {
        set(&mut self.own_volumes, volume, object);
    }

    /// The only node from which a volume can be written.
    pub fn writer(&mut self, volume: &UniqueVolumeName, node: Option<NodeName>) -> bool {
        let differs = self.view.writers.get(volume) != node.as_ref();
        set(&mut self.view.writers, volume, node);
        differs
    }
}

/// A new attachment as the API will have it, before anybody has handled it.
fn attachment_of(new: &NewAttachment) -> cluster_core::VolumeAttachment {
    cluster_core::VolumeAttachment {
        driver: new.driver.clone(),
        source: AttachmentSource::Volume(new.volume.clone()),
        node: new.node.clone(),
        created_at: crate::kubernetes::now(),
        deleting: false,
        finalizers: Vec::new(),
        annotations: BTreeMap::new(),
        attached: false,
        attach_error: None,
        detach_error: None,
    }
}

/// What was there before.
fn set<V>(
    map: &mut BTreeMap<UniqueVolumeName, V>,
    key: &UniqueVolumeName,
    value: Option<V>,
) -> Option<V> {
    match value {
        Some(value) => map.insert(key.clone(), value),
        None => map.remove(key),
    }
}

fn replace<K: Ord, V: PartialEq>(map: &mut BTreeMap<K, V>, key: K, value: V) -> bool {
    if map.get(&key) == Some(&value) {
        return false;
    }
    map.insert(key, value);
    true
}

#[cfg(test)]
mod tests {
    use cluster_core::{Memory, Timestamp, decide};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::{Value, json};

    use super::*;

    fn object<K: serde::de::DeserializeOwned>(object: Value) -> K {
        serde_json::from_value(object).expect("a valid object")
    }

    /// A volume for one node, and nodes n1 and n2.
    fn model() -> Model {
        let mut model = Model::default();
        for node in ["n1", "n2"] {
            let annotations =
                json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
            model.node(
                None,
                Some(&object(json!({
                    "metadata": {"name": node, "annotations": annotations},
                    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
                }))),
            );
        }
        let claim = json!({"metadata": {"name": "c", "namespace": "default", "uid": "u"},
            "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}});
        model.claim(None, Some(&object(claim)));
        let volume = json!({"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "driver.longhorn.io", "volumeHandle": "v"},
            "claimRef": {"namespace": "default", "name": "c", "uid": "u"}}});
        model.volume(None, Some(&object(volume)));
        model
    }

    /// A pod that wants the volume on a node.
    fn pod(model: &mut Model, name: &str, node: &str, age_seconds: i64) {
        let mut pod: Pod = object(json!({
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"nodeName": node, "containers": [],
                "volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "c"}}]},
        }));
        let created = jiff::Timestamp::from_second(1_000_000 - age_seconds).expect("a time");
        pod.metadata.creation_timestamp = Some(Time(created));
        model.pod(None, Some(&pod));
    }

    fn planned(model: &Model) -> Vec<(AttachmentName, NewAttachment)> {
        let plan = decide(&model.view, &Memory::default(), Timestamp(1_000_000_000));
        plan.create.into_iter().collect()
    }

    #[test]
    fn a_volume_whose_attachment_is_being_created_is_not_promised_again() {
        let mut model = model();
        pod(&mut model, "young", "n2", 1);
        let (name, new) = planned(&model).remove(0);
        assert_eq!(new.node.as_str(), "n2");
        model.expect_new(&name, &new);
        // An older pod shows up elsewhere: it is first in line, and the volume is spoken for.
        pod(&mut model, "old", "n1", 60);
        assert_eq!(planned(&model), []);
        // Refused: the next decision is free.
        model.expect_no_more(&name);
        let (_, new) = planned(&model).remove(0);
        assert_eq!(new.node.as_str(), "n1");
    }

    #[test]
    fn what_the_watch_shows_replaces_what_was_expected() {
        let mut model = model();
        pod(&mut model, "p", "n1", 1);
        let (name, new) = planned(&model).remove(0);
        model.expect_new(&name, &new);
        let seen: VolumeAttachment =
            object(json!({"metadata": {"name": name.as_str(), "uid": "a"},
            "spec": {"attacher": "driver.longhorn.io", "nodeName": "n1",
                "source": {"persistentVolumeName": "v"}}}));
        model.attachment(None, Some(&seen));
        assert!(!model.is_expected(&name));
        model.expect_no_more(&name);
        assert!(model.view.attachments.contains_key(&name), "the API has it");
        model.attachment(Some(&seen), None);
        assert!(model.view.attachments.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_echo_that_never_comes_is_not_waited_for_for_ever() {
        let mut model = model();
        pod(&mut model, "p", "n1", 1);
        let (name, new) = planned(&model).remove(0);
        model.expect_new(&name, &new);
        tokio::time::advance(2 * ECHO_TIMEOUT).await;
        model.forget_unseen();
        assert_eq!(planned(&model), [], "the API has not even answered");
        model.await_echo(&name);
        tokio::time::advance(ECHO_TIMEOUT / 2).await;
        model.forget_unseen();
        assert_eq!(planned(&model), []);
        tokio::time::advance(ECHO_TIMEOUT / 2).await;
        model.forget_unseen();
        assert_eq!(planned(&model), [(name, new)]);
    }
}
