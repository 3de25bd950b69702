//! Nodes, namespaces and service accounts.

use serde_json::{Value, json};

use super::names::{self, NameRule};
use super::{KindRules, child_object, default_field, immutable, items, one_of, text};
use crate::field_error::FieldError;
use crate::schema::path::Path;

pub(super) static RULES: [KindRules; 3] = [
    KindRules {
        default: default_node,
        object: node,
        change: |old, new, errors| {
            for field in ["podCIDR", "providerID"] {
                // They may be set once, late.
                let pointer = format!("/spec/{field}");
                if !text(old, &pointer).is_empty() {
                    immutable(old, new, &pointer, &format!("spec.{field}"), errors);
                }
            }
        },
        ..KindRules::cluster_wide("", "Node")
    },
    KindRules {
        meta: super::MetaRule {
            namespaced: false,
            name: NameRule::Label,
            finalizers_qualified: true,
        },
        default: default_namespace,
        object: |namespace, errors| {
            for (index, finalizer) in items(namespace, "/spec/finalizers").iter().enumerate() {
                let name = finalizer.as_str().unwrap_or_default();
                for problem in names::qualified(name) {
                    let path = format!("spec.finalizers[{index}]");
                    errors.push(FieldError::invalid(path, name.into(), problem));
                }
            }
        },
        ..KindRules::cluster_wide("", "Namespace")
    },
    KindRules::new("", "ServiceAccount"),
];

fn default_node(node: &mut Value) {
    if let Some(spec) = child_object(node, "spec")
        && let Some(range) = spec.get("podCIDR").cloned()
    {
        default_field(spec, "podCIDRs", json!([range]));
    }
    let Some(status) = child_object(node, "status") else {
        return;
    };
    // A node that does not say otherwise has all of its capacity to give.
    if let Some(capacity) = status.get("capacity").cloned() {
        default_field(status, "allocatable", capacity);
    }
}

fn node(node: &Value, errors: &mut Vec<FieldError>) {
    let root = Path::ROOT;
    let metadata = root.field("metadata");
    // The real server names the field so.
    let path = metadata.field("taints");
    let mut seen = Vec::new();
    for (index, taint) in items(node, "/spec/taints").iter().enumerate() {
        let path = path.index(index);
        let key = text(taint, "/key");
        super::all_invalid(names::qualified(key), &path.field("key"), key, errors);
        let value = text(taint, "/value");
        super::all_invalid(
            names::label_value(value),
            &path.field("value"),
            value,
            errors,
        );
        let effect = text(taint, "/effect");
        if effect.is_empty() {
            errors.push(FieldError::required(path.field("effect"), ""));
        } else {
            let allowed = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
            one_of(effect, &allowed, path.field("effect"), errors);
        }
        if seen.contains(&(key, effect)) {
            errors.push(super::duplicate(path, &format!("{key}:{effect}")));
        }
        seen.push((key, effect));
    }
}

fn default_namespace(namespace: &mut Value) {
    let name = text(namespace, "/metadata/name").to_owned();
    if let Some(metadata) = child_object(namespace, "metadata")
        && !name.is_empty()
        && let Some(labels) = child_object(metadata, "labels")
    {
        // Selectors rely on it, so it is not left to whoever made the namespace.
        labels["kubernetes.io/metadata.name"] = name.into();
    }
    if let Some(spec) = child_object(namespace, "spec") {
        default_field(spec, "finalizers", json!(["kubernetes"]));
    }
    if let Some(status) = child_object(namespace, "status") {
        default_field(status, "phase", "Active");
    }
}
