//! The view that decisions are made from, kept up to date object by object.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use cluster_core::{AttachmentName, ClusterView, NodeName, PvName, UniqueVolumeName, wire};
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
    /// Written by us and not seen yet.
    expected: BTreeMap<AttachmentName, Instant>,
    fenced_nodes: BTreeMap<UniqueVolumeName, NodeName>,
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
    pub fn expect(&mut self, name: &AttachmentName) {
        self.expected.insert(name.clone(), Instant::now());
    }

    pub fn expect_no_more(&mut self, name: &AttachmentName) {
        self.expected.remove(name);
    }

    pub fn is_expected(&self, name: &AttachmentName) -> bool {
        self.expected
            .get(name)
            .is_some_and(|since| since.elapsed() < ECHO_TIMEOUT)
    }

    /// When an echo that never came should no longer be waited for.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.expected
            .values()
            .map(|since| *since + ECHO_TIMEOUT)
            .filter(|at| *at > Instant::now())
            .min()
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

    /// The only node from which a volume can be written.
    pub fn writer(&mut self, volume: &UniqueVolumeName, node: Option<NodeName>) -> bool {
        let differs = self.view.writers.get(volume) != node.as_ref();
        set(&mut self.view.writers, volume, node);
        differs
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
