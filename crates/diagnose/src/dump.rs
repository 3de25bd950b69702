//! All objects of a cluster as they were at one moment.

use std::fmt;

use api_types::names::event_reason;
use api_types::{
    Backup, Engine, Node as LonghornNode, Replica, Setting, Snapshot, Volume,
    VolumeAttachment as LonghornAttachment,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::objects::Objects;

/// Every object that diagnosis looks at, and what could not be read.
#[derive(Clone, Debug, Default)]
pub struct ClusterDump {
    pub pods: Objects<Pod>,
    pub claims: Objects<PersistentVolumeClaim>,
    pub persistent_volumes: Objects<PersistentVolume>,
    pub attachments: Objects<VolumeAttachment>,
    pub csi_nodes: Objects<CSINode>,
    pub csi_drivers: Objects<CSIDriver>,
    pub nodes: Objects<Node>,
    pub leases: Objects<Lease>,
    pub events: Objects<Event>,
    pub volumes: Objects<Volume>,
    pub longhorn_attachments: Objects<LonghornAttachment>,
    pub engines: Objects<Engine>,
    pub replicas: Objects<Replica>,
    pub longhorn_nodes: Objects<LonghornNode>,
    pub settings: Objects<Setting>,
    pub snapshots: Objects<Snapshot>,
    pub backups: Objects<Backup>,
    /// What is missing here although it may exist. Nothing is concluded from the absence of such a kind.
    pub unread: Vec<Unread>,
}

/// Something that should be in the dump and is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unread {
    /// A kind such as `backups.longhorn.io`, or one object of it.
    pub what: String,
    pub why: String,
    /// The whole kind is missing, so that no absence can be concluded from.
    pub whole: bool,
}

impl Unread {
    /// The kind that it is of, as kubectl names it.
    pub(crate) fn resource(&self) -> &str {
        self.what.split(' ').next().unwrap_or_default()
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

/// Where one kind is in the API, and where it goes in the dump.
#[derive(Clone, Copy)]
pub struct Kind {
    /// As kubectl names it, such as `volumes.longhorn.io`.
    pub resource: &'static str,
    /// The path of its list, for the whole cluster or for our namespace.
    pub path: &'static str,
    /// Added to the list's query.
    pub query: &'static str,
    pub api_version: &'static str,
    pub kind: &'static str,
    /// A cluster without it can still be diagnosed.
    pub optional: bool,
    /// Reads a whole list; an object that cannot be read is left out and noted.
    pub read: fn(&mut ClusterDump, &[u8]) -> Result<Option<String>, serde_json::Error>,
    /// The kind's objects as JSON.
    pub write: fn(&ClusterDump) -> Vec<Value>,
}

/// A list as the API answers it.
#[derive(serde::Deserialize)]
struct List<K> {
    #[serde(default)]
    metadata: ListMetadata,
    #[serde(default = "Vec::new")]
    items: Vec<K>,
}

#[derive(Default, serde::Deserialize)]
struct ListMetadata {
    #[serde(rename = "continue", default)]
    more: Option<String>,
}

macro_rules! kind {
    ($field:ident, $resource:literal, $path:literal, $query:literal, $api:literal, $kind:literal, $optional:literal) => {
        kind!(
            $field,
            $resource,
            $path,
            $query,
            $api,
            $kind,
            $optional,
            |_| true
        )
    };
    ($field:ident, $resource:literal, $path:literal, $query:literal, $api:literal, $kind:literal, $optional:literal, $is_needed:expr) => {
        Kind {
            resource: $resource,
            path: $path,
            query: $query,
            api_version: $api,
            kind: $kind,
            optional: $optional,
            read: |dump, bytes| {
                let (items, more, complaints) = read_list($resource, bytes)?;
                dump.$field.extend(items.into_iter().filter($is_needed));
                dump.unread.extend(complaints);
                Ok(more)
            },
            write: |dump| {
                let values = dump.$field.iter();
                values.map(|object| typed(object, $api, $kind)).collect()
            },
        }
    };
}

/// Every kind of the dump.
#[rustfmt::skip]
pub const KINDS: &[Kind] = &[
    kind!(pods, "pods", "/api/v1/pods", "", "v1", "Pod", false),
    kind!(claims, "persistentvolumeclaims", "/api/v1/persistentvolumeclaims", "", "v1", "PersistentVolumeClaim", false),
    kind!(persistent_volumes, "persistentvolumes", "/api/v1/persistentvolumes", "", "v1", "PersistentVolume", false),
    kind!(nodes, "nodes", "/api/v1/nodes", "", "v1", "Node", false),
    kind!(events, "events", "/api/v1/namespaces/longhorn-system/events", "fieldSelector=type%3DWarning", "v1", "Event", true, is_needed),
    kind!(attachments, "volumeattachments.storage.k8s.io", "/apis/storage.k8s.io/v1/volumeattachments", "", "storage.k8s.io/v1", "VolumeAttachment", false),
    kind!(csi_nodes, "csinodes.storage.k8s.io", "/apis/storage.k8s.io/v1/csinodes", "", "storage.k8s.io/v1", "CSINode", false),
    kind!(csi_drivers, "csidrivers.storage.k8s.io", "/apis/storage.k8s.io/v1/csidrivers", "", "storage.k8s.io/v1", "CSIDriver", false),
    kind!(leases, "leases.coordination.k8s.io", "/apis/coordination.k8s.io/v1/namespaces/longhorn-system/leases", "", "coordination.k8s.io/v1", "Lease", false),
    kind!(volumes, "volumes.longhorn.io", "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/volumes", "", "longhorn.io/v1beta2", "Volume", false),
    kind!(longhorn_attachments, "volumeattachments.longhorn.io", "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/volumeattachments", "", "longhorn.io/v1beta2", "VolumeAttachment", false),
    kind!(engines, "engines.longhorn.io", "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/engines", "", "longhorn.io/v1beta2", "Engine", false),
    kind!(replicas, "replicas.longhorn.io", "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/replicas", "", "longhorn.io/v1beta2", "Replica", false),
    kind!(longhorn_nodes, "nodes.longhorn.io", "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/nodes", "", "longhorn.io/v1beta2", "Node", false),
    kind!(settings, "settings.longhorn.io", "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/settings", "", "longhorn.io/v1beta2", "Setting", true),
    kind!(snapshots, "snapshots.longhorn.io", "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/snapshots", "", "longhorn.io/v1beta2", "Snapshot", true),
    kind!(backups, "backups.longhorn.io", "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/backups", "", "longhorn.io/v1beta2", "Backup", true),
];

/// Of all events only these: how often a node was lost, and why one does not mount a volume.
fn is_needed(event: &Event) -> bool {
    let reason = event.reason.as_deref();
    reason.is_some_and(|reason| [event_reason::LOST, event_reason::FAILED_MOUNT].contains(&reason))
}

impl ClusterDump {
    /// Takes in one object, of whatever kind it says that it is. False for kinds that diagnosis has no use for.
    pub fn add(&mut self, object: &Value) -> bool {
        let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        let Some(kind) = KINDS
            .iter()
            .find(|known| known.kind == kind && known.api_version == api_version)
        else {
            return false;
        };
        let list = serde_json::json!({ "items": [object] }).to_string();
        (kind.read)(self, list.as_bytes()).expect("text that was just made of JSON is JSON");
        true
    }

    /// Whether the absence of an object of this kind means that there is none. One object that cannot be read is
    /// enough to say no: it may be the one that is looked for.
    #[must_use]
    pub fn is_complete(&self, resource: &str) -> bool {
        let mut unread = self.unread.iter();
        !unread.any(|unread| unread.resource() == resource)
    }

    /// Whether the kind's list was read, spoilt objects aside.
    #[must_use]
    pub fn is_listed(&self, resource: &str) -> bool {
        let mut unread = self.unread.iter();
        !unread.any(|unread| unread.whole && unread.what == resource)
    }

    /// What diagnosis would have needed and could not read.
    pub fn missed(&self) -> impl Iterator<Item = &Unread> {
        let is_optional = |unread: &Unread| {
            let mut kinds = KINDS.iter();
            kinds.any(|kind| kind.resource == unread.resource() && kind.optional)
        };
        self.unread
            .iter()
            .filter(move |unread| !is_optional(unread))
    }
}

type Read<K> = (Vec<K>, Option<String>, Vec<Unread>);

/// The fast way for lists in which everything is well, and the patient one for the others: one object that somebody
/// spoilt must not hide all its neighbours.
fn read_list<K: DeserializeOwned>(
    resource: &str,
    bytes: &[u8],
) -> Result<Read<K>, serde_json::Error> {
    if let Ok(list) = serde_json::from_slice::<List<K>>(bytes) {
        return Ok((list.items, more(list.metadata), Vec::new()));
    }
    let list: List<Value> = serde_json::from_slice(bytes)?;
    let (mut items, mut complaints) = (Vec::new(), Vec::new());
    for value in list.items {
        let name = value.pointer("/metadata/name").and_then(Value::as_str);
        let what = format!("{resource} {}", name.unwrap_or("without a name"));
        match serde_path_to_error::deserialize(value) {
            Ok(object) => items.push(object),
            Err(error) => complaints.push(Unread {
                what,
                why: error.to_string(),
                whole: false,
            }),
        }
    }
    Ok((items, more(list.metadata), complaints))
}

fn more(metadata: ListMetadata) -> Option<String> {
    metadata.more.filter(|more| !more.is_empty())
}

/// An object of a list does not say what it is; on its own it has to.
fn typed(object: &impl Serialize, api_version: &str, kind: &str) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        fields.insert("apiVersion".to_owned(), api_version.into());
        fields.insert("kind".to_owned(), kind.into());
    }
    value
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_spoilt_object_does_not_hide_its_neighbours() {
        let mut dump = ClusterDump::default();
        let list = json!({"metadata": {"continue": "next"}, "items": [
            {"metadata": {"name": "a"}, "spec": {"size": "4096"}},
            {"metadata": {"name": "b"}, "spec": {"numberOfReplicas": "three"}},
        ]});
        let volumes = KINDS
            .iter()
            .find(|kind| kind.resource == "volumes.longhorn.io");
        let more = (volumes.expect("volumes").read)(&mut dump, list.to_string().as_bytes());
        assert_eq!(more.expect("JSON").as_deref(), Some("next"));
        assert_eq!(dump.volumes.len(), 1);
        assert_eq!(dump.unread[0].what, "volumes.longhorn.io b");
        assert!(
            dump.unread[0].why.contains("spec.numberOfReplicas"),
            "{:?}",
            dump.unread
        );
        assert!(dump.is_listed("volumes.longhorn.io"));
        assert!(!dump.is_complete("volumes.longhorn.io"), "b may be needed");
        assert!(dump.is_complete("engines.longhorn.io"));
        assert_eq!(dump.missed().count(), 1);
    }

    #[test]
    fn an_object_goes_where_its_group_says() {
        let mut dump = ClusterDump::default();
        let node = |version: &str| json!({"apiVersion": version, "kind": "Node", "metadata": {"name": "n"}, "spec": {}});
        assert!(dump.add(&node("v1")));
        assert!(dump.add(&node("longhorn.io/v1beta2")));
        assert!(!dump.add(&node("example.com/v1")));
        assert_eq!((dump.nodes.len(), dump.longhorn_nodes.len()), (1, 1));
    }
}
