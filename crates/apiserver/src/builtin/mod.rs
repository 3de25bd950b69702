//! What the server knows of Kubernetes' own kinds: their schemas, merge keys, defaults and rules.
//!
//! The schemas come from `k8s-openapi`; what its schemas lack (how lists and maps merge) is in
//! `merge`. What no schema can say (defaults, immutable fields, limits) is in `rules`, one file for
//! each family of kinds.

mod expand;
mod merge;
pub mod rules;

use std::sync::{Arc, OnceLock};

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    Binding, ConfigMap, Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    Secret, ServiceAccount,
};
use k8s_openapi::api::events::v1::Event as EventsEvent;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ListMeta, ObjectMeta, Status};
use schemars::JsonSchema;

use crate::schema::Schema;

/// One built-in kind. Its schema is made when it is first asked for and then kept.
pub struct Builtin {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    definition: fn() -> String,
    expand: fn() -> Schema,
    schema: OnceLock<Arc<Schema>>,
}

static KINDS: [Builtin; 23] = [
    Builtin::of::<Namespace>("", "v1", "Namespace"),
    Builtin::of::<Node>("", "v1", "Node"),
    Builtin::of::<Pod>("", "v1", "Pod"),
    Builtin::of::<PersistentVolume>("", "v1", "PersistentVolume"),
    Builtin::of::<PersistentVolumeClaim>("", "v1", "PersistentVolumeClaim"),
    Builtin::of::<Secret>("", "v1", "Secret"),
    Builtin::of::<ConfigMap>("", "v1", "ConfigMap"),
    Builtin::of::<Event>("", "v1", "Event"),
    Builtin::of::<ServiceAccount>("", "v1", "ServiceAccount"),
    Builtin::of::<StorageClass>("storage.k8s.io", "v1", "StorageClass"),
    Builtin::of::<VolumeAttachment>("storage.k8s.io", "v1", "VolumeAttachment"),
    Builtin::of::<CSINode>("storage.k8s.io", "v1", "CSINode"),
    Builtin::of::<CSIDriver>("storage.k8s.io", "v1", "CSIDriver"),
    Builtin::of::<CSIStorageCapacity>("storage.k8s.io", "v1", "CSIStorageCapacity"),
    Builtin::of::<StatefulSet>("apps", "v1", "StatefulSet"),
    Builtin::of::<Lease>("coordination.k8s.io", "v1", "Lease"),
    Builtin::of::<EventsEvent>("events.k8s.io", "v1", "Event"),
    Builtin::of::<CustomResourceDefinition>(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
    ),
    // Never stored: bodies of requests, subresources and answers.
    Builtin::of::<Binding>("", "v1", "Binding"),
    Builtin::of::<Eviction>("policy", "v1", "Eviction"),
    Builtin::of::<Scale>("autoscaling", "v1", "Scale"),
    Builtin::of::<DeleteOptions>("", "v1", "DeleteOptions"),
    Builtin::of::<Status>("", "v1", "Status"),
];

static OBJECT_META: Builtin = Builtin::of::<ObjectMeta>("", "v1", "ObjectMeta");
static LIST_META: Builtin = Builtin::of::<ListMeta>("", "v1", "ListMeta");

/// Every built-in kind, stored or not.
pub fn kinds() -> &'static [Builtin] {
    &KINDS
}

/// The built-in kind of this name, if there is one.
pub fn kind(group: &str, version: &str, kind: &str) -> Option<&'static Builtin> {
    KINDS
        .iter()
        .find(|known| known.group == group && known.version == version && known.kind == kind)
}

/// The schema of a built-in kind, `None` if it is not one.
pub fn schema(group: &str, version: &str, kind_name: &str) -> Option<Arc<Schema>> {
    kind(group, version, kind_name).map(Builtin::schema)
}

/// The shape of every object's `metadata`.
pub fn object_meta() -> Arc<Schema> {
    OBJECT_META.schema()
}

/// The shape of every list's `metadata`.
pub fn list_meta() -> Arc<Schema> {
    LIST_META.schema()
}

impl Builtin {
    const fn of<T: JsonSchema>(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
    ) -> Self {
        Self {
            group,
            version,
            kind,
            definition: || T::schema_name().into_owned(),
            expand: expand::schema_of::<T>,
            schema: OnceLock::new(),
        }
    }

    pub fn schema(&self) -> Arc<Schema> {
        Arc::clone(self.schema.get_or_init(|| Arc::new((self.expand)())))
    }

    /// The name of its OpenAPI definition: `io.k8s.api.core.v1.Pod`.
    pub fn definition_name(&self) -> String {
        (self.definition)()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::prune::prune;
    use crate::schema::validate::validate_types;
    use crate::schema::{ListType, MapType};

    fn at(group: &str, kind: &str, path: &str) -> Schema {
        let schema = schema(group, "v1", kind).unwrap();
        let mut node = schema.as_ref();
        for step in path.split('.') {
            node = match step {
                "[]" => node
                    .items
                    .as_deref()
                    .unwrap_or_else(|| panic!("{path}: no items")),
                "*" => node
                    .additional()
                    .unwrap_or_else(|| panic!("{path}: no map")),
                name => node
                    .properties
                    .get(name)
                    .unwrap_or_else(|| panic!("{path}: no {name}")),
            };
        }
        node.clone()
    }

    #[test]
    fn every_kind_has_a_schema_with_metadata_and_descriptions() {
        for builtin in kinds() {
            let schema = builtin.schema();
            assert_eq!(
                schema.type_name.as_deref(),
                Some("object"),
                "{}",
                builtin.kind
            );
            assert!(schema.description.is_some(), "{}", builtin.kind);
            assert!(schema.properties.contains_key("kind"), "{}", builtin.kind);
            assert!(builtin.definition_name().starts_with("io.k8s."));
        }
        assert!(schema("", "v2", "Pod").is_none());
    }

    #[test]
    fn lists_merge_by_their_keys() {
        let rows: [(&str, &str, &str, &[&str]); 14] = [
            ("", "Pod", "spec.containers", &["name"]),
            ("", "Pod", "spec.containers.[].env", &["name"]),
            (
                "",
                "Pod",
                "spec.containers.[].ports",
                &["containerPort", "protocol"],
            ),
            (
                "",
                "Pod",
                "spec.initContainers.[].volumeMounts",
                &["mountPath"],
            ),
            (
                "",
                "Pod",
                "spec.containers.[].volumeDevices",
                &["devicePath"],
            ),
            ("", "Pod", "spec.volumes", &["name"]),
            ("", "Pod", "spec.imagePullSecrets", &["name"]),
            (
                "",
                "Pod",
                "spec.topologySpreadConstraints",
                &["topologyKey", "whenUnsatisfiable"],
            ),
            ("", "Pod", "status.conditions", &["type"]),
            ("", "Pod", "status.podIPs", &["ip"]),
            ("", "Node", "status.addresses", &["type"]),
            ("", "Namespace", "metadata.ownerReferences", &["uid"]),
            ("", "ServiceAccount", "secrets", &["name"]),
            ("storage.k8s.io", "CSINode", "spec.drivers", &["name"]),
        ];
        for (group, kind, path, keys) in rows {
            let node = at(group, kind, path);
            assert_eq!(node.list_type, Some(ListType::Map), "{kind} {path}");
            assert_eq!(node.list_map_keys, keys, "{kind} {path}");
            assert_eq!(
                node.patch_merge_key.as_deref(),
                Some(keys[0]),
                "{kind} {path}"
            );
            assert!(node.patch_strategy.is_some(), "{kind} {path}");
        }
        assert_eq!(
            at("", "Pod", "spec.volumes").patch_strategy.as_deref(),
            Some("merge,retainKeys")
        );
        assert_eq!(
            at("", "Pod", "spec.tolerations").list_type,
            Some(ListType::Atomic)
        );
        assert_eq!(
            at("", "Pod", "metadata.finalizers").list_type,
            Some(ListType::Set)
        );
        assert_eq!(
            at("", "Node", "spec.taints").list_type,
            Some(ListType::Atomic)
        );
        assert_eq!(
            at("", "Pod", "spec.nodeSelector").map_type,
            Some(MapType::Atomic)
        );
        assert_eq!(
            at("", "Event", "involvedObject").map_type,
            Some(MapType::Atomic)
        );
    }

    #[test]
    fn quantities_are_numbers_or_text() {
        let storage = at("", "PersistentVolumeClaim", "spec.resources.requests.*");
        assert!(storage.int_or_string);
        assert_eq!(storage.format.as_deref(), Some("quantity"));
    }

    #[test]
    fn a_real_pod_passes_whole() {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "db", "namespace": "default", "labels": {"app": "db"}, "creationTimestamp": null,
                "managedFields": [{"manager": "kubectl", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}]},
            "spec": {
                "containers": [{"name": "db", "image": "postgres:18", "ports": [{"containerPort": 5432}],
                    "resources": {"limits": {"cpu": 0.5, "memory": "1Gi"}},
                    "livenessProbe": {"httpGet": {"path": "/", "port": "http"}},
                    "volumeMounts": [{"name": "data", "mountPath": "/var/lib"}]}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
                "tolerations": [{"operator": "Exists"}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        });
        let before = pod.clone();
        let schema = schema("", "v1", "Pod").unwrap();
        assert_eq!(validate_types(&schema, &pod), []);
        assert_eq!(prune(&schema, &mut pod), Vec::<String>::new());
        assert_eq!(pod, before);
        pod["spec"]["containers"][0]["imagine"] = json!(1);
        assert_eq!(prune(&schema, &mut pod), ["spec.containers[0].imagine"]);
        pod["spec"]["containers"] = json!("x");
        assert_eq!(validate_types(&schema, &pod).len(), 1);
    }

    #[test]
    fn schemas_inside_crds_are_kept_whole() {
        let schema = schema("apiextensions.k8s.io", "v1", "CustomResourceDefinition").unwrap();
        let mut crd = json!({"metadata": {"name": "a.b"}, "spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": {
            "type": "object", "x-kubernetes-validations": [{"rule": "true"}], "properties": {"spec": {"type": "object",
                "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"default": {"x": [1]}, "items": {"type": "string"},
                "additionalProperties": true, "anyOf": [{"type": "string"}]}}}}}}}]}});
        let before = crd.clone();
        assert_eq!(validate_types(&schema, &crd), []);
        assert_eq!(prune(&schema, &mut crd), Vec::<String>::new());
        assert_eq!(crd, before);
    }
}
