//! The resources that are there without any CRD.

use std::sync::Arc;

use super::{Columns, Origin, Resource, ScalePaths, Subresources, Traits};
use crate::builtin;
use crate::schema::Schema;

/// One row of the table below.
struct Row {
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short_names: &'static [&'static str],
    namespaced: bool,
    /// Field selectors beyond `metadata.name` and, where namespaced, `metadata.namespace`.
    selectable: &'static [&'static str],
    subresources: &'static [&'static str],
    traits: Traits,
}

const PLAIN: Traits = Traits {
    counts_generation: false,
    returns_deleted_object: false,
    keeps_status_on_create: false,
    graceful_deletion: false,
    update_needs_version: false,
    update_may_create: false,
    status_may_change_metadata: false,
};
const ANSWERS_WITH_OBJECT: Traits = Traits {
    returns_deleted_object: true,
    ..PLAIN
};
/// Whoever writes the status may change labels, annotations, finalizers and owners as well.
const STATUS_WITH_METADATA: Traits = Traits {
    status_may_change_metadata: true,
    ..ANSWERS_WITH_OBJECT
};
/// Updates must name the version they were made from.
const CAREFUL: Traits = Traits {
    update_needs_version: true,
    ..ANSWERS_WITH_OBJECT
};

const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

const REGARDING_FIELDS: &[&str] = &[
    "regarding.kind",
    "regarding.namespace",
    "regarding.name",
    "regarding.uid",
    "regarding.apiVersion",
    "regarding.resourceVersion",
    "regarding.fieldPath",
    "reason",
    "reportingController",
    "type",
];

const POD_FIELDS: &[&str] = &[
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
];

const STORAGE: &str = "storage.k8s.io";

#[rustfmt::skip]
const ROWS: &[Row] = &[
    row("", "Namespace", "namespaces", &["ns"], false, &["status.phase"], &["status", "finalize"], PLAIN),
    row("", "Node", "nodes", &["no"], false, &["spec.unschedulable"], &["status"], Traits { keeps_status_on_create: true, status_may_change_metadata: true, ..PLAIN }),
    row("", "Pod", "pods", &["po"], true, POD_FIELDS, &["status", "binding", "eviction"],
        Traits { counts_generation: true, graceful_deletion: true, status_may_change_metadata: true, ..ANSWERS_WITH_OBJECT }),
    row("", "PersistentVolume", "persistentvolumes", &["pv"], false, &[], &["status"], STATUS_WITH_METADATA),
    row("", "PersistentVolumeClaim", "persistentvolumeclaims", &["pvc"], true, &[], &["status"], STATUS_WITH_METADATA),
    row("", "Secret", "secrets", &[], true, &["type"], &[], PLAIN),
    row("", "ConfigMap", "configmaps", &["cm"], true, &[], &[], PLAIN),
    row("", "ServiceAccount", "serviceaccounts", &["sa"], true, &[], &[], ANSWERS_WITH_OBJECT),
    row("", "Event", "events", &["ev"], true, EVENT_FIELDS, &[], Traits { update_may_create: true, ..PLAIN }),
    row("events.k8s.io", "Event", "events", &["ev"], true, REGARDING_FIELDS, &[], Traits { update_may_create: true, ..PLAIN }),
    row(STORAGE, "StorageClass", "storageclasses", &["sc"], false, &[], &[], ANSWERS_WITH_OBJECT),
    row(STORAGE, "VolumeAttachment", "volumeattachments", &[], false, &[], &["status"], CAREFUL),
    row(STORAGE, "CSINode", "csinodes", &[], false, &[], &[], CAREFUL),
    row(STORAGE, "CSIDriver", "csidrivers", &[], false, &[], &[], CAREFUL),
    row(STORAGE, "CSIStorageCapacity", "csistoragecapacities", &[], true, &[], &[], ANSWERS_WITH_OBJECT),
    row("apps", "StatefulSet", "statefulsets", &["sts"], true, &[], &["status", "scale"], Traits { counts_generation: true, ..PLAIN }),
    row("coordination.k8s.io", "Lease", "leases", &[], true, &[], &[], Traits { update_needs_version: true, update_may_create: true, ..PLAIN }),
    row("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions", &["crd", "crds"], false, &[], &["status"],
        Traits { counts_generation: true, update_needs_version: true, ..PLAIN }),
];

#[allow(
    clippy::too_many_arguments,
    reason = "a row of a table, read as columns"
)]
const fn row(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short_names: &'static [&'static str],
    namespaced: bool,
    selectable: &'static [&'static str],
    subresources: &'static [&'static str],
    traits: Traits,
) -> Row {
    Row {
        group,
        kind,
        plural,
        short_names,
        namespaced,
        selectable,
        subresources,
        traits,
    }
}

pub(super) fn resources() -> Vec<Resource> {
    ROWS.iter().map(resource).collect()
}

fn resource(row: &Row) -> Resource {
    let shared_events = row.kind == "Event";
    let schema = builtin::schema(row.group, "v1", row.kind).unwrap_or_else(|| {
        Arc::new(Schema {
            preserve_unknown_fields: true,
            ..Schema::default()
        })
    });
    let mut selectable: Vec<String> = vec!["metadata.name".to_owned()];
    if row.namespaced {
        selectable.push("metadata.namespace".to_owned());
    }
    selectable.extend(row.selectable.iter().map(ToString::to_string));
    let has = |name: &str| row.subresources.contains(&name);
    Resource {
        group: row.group.to_owned(),
        version: "v1".to_owned(),
        kind: row.kind.to_owned(),
        list_kind: format!("{}List", row.kind),
        plural: row.plural.to_owned(),
        singular: row.kind.to_lowercase(),
        short_names: row.short_names.iter().map(ToString::to_string).collect(),
        categories: if matches!(row.kind, "Pod" | "StatefulSet") {
            vec!["all".to_owned()]
        } else {
            vec![]
        },
        namespaced: row.namespaced,
        schema,
        subresources: Subresources {
            status: has("status"),
            scale: has("scale").then(scale_paths),
            binding: has("binding"),
            eviction: has("eviction"),
            finalize: has("finalize"),
        },
        selectable_fields: selectable,
        columns: Columns::BuiltIn,
        traits: row.traits,
        storage_group: if shared_events {
            String::new()
        } else {
            row.group.to_owned()
        },
        storage_version: "v1".to_owned(),
        origin: Origin::BuiltIn,
    }
}

/// Where workloads have their replica counts.
fn scale_paths() -> ScalePaths {
    let path = |fields: [&str; 2]| fields.map(str::to_owned).to_vec();
    ScalePaths {
        spec_replicas: path(["spec", "replicas"]),
        status_replicas: path(["status", "replicas"]),
        label_selector: None,
    }
}
