//! PersistentVolumes and the claims on them.

use serde_json::{Value, json};

use super::quantity::Quantity;
use super::{
    KindRules, child_object, default_field, immutable, items, names, object, one_of, text,
};
use crate::field_error::{FieldError, FieldErrorKind};
use crate::schema::path::Path;

const ACCESS_MODES: [&str; 4] = [
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];
const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];
const RECLAIM_POLICIES: [&str; 3] = ["Delete", "Recycle", "Retain"];

/// The fields of a volume's spec that are not where it is stored.
const NOT_SOURCES: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

pub(super) static RULES: [KindRules; 2] = [
    KindRules {
        default: |volume| {
            if let Some(spec) = child_object(volume, "spec") {
                default_field(spec, "persistentVolumeReclaimPolicy", "Retain");
                default_field(spec, "volumeMode", "Filesystem");
                if let Some(host_path) = spec.get_mut("hostPath") {
                    default_field(host_path, "type", "");
                }
            }
            if let Some(status) = child_object(volume, "status") {
                default_field(status, "phase", "Pending");
            }
        },
        object: volume,
        change: volume_change,
        ..KindRules::cluster_wide("", "PersistentVolume")
    },
    KindRules {
        default: |claim| {
            if let Some(spec) = child_object(claim, "spec") {
                default_field(spec, "volumeMode", "Filesystem");
            }
            if let Some(status) = child_object(claim, "status") {
                default_field(status, "phase", "Pending");
            }
        },
        object: claim,
        change: claim_change,
        ..KindRules::new("", "PersistentVolumeClaim")
    },
];

fn volume(volume: &Value, errors: &mut Vec<FieldError>) {
    access_modes(volume, errors);
    match object(volume, "/spec/capacity") {
        Some(capacity) if !capacity.is_empty() => {
            if capacity.len() > 1 || !capacity.contains_key("storage") {
                errors.push(FieldError {
                    value: Some(Value::Object(capacity.clone())),
                    ..FieldError::new(
                        FieldErrorKind::NotSupported,
                        "spec.capacity",
                        "supported values: \"storage\"",
                    )
                });
            }
            for (name, amount) in capacity {
                positive(amount, &format!("spec.capacity[{name}]"), errors);
            }
        }
        Some(_) | None => errors.push(FieldError::required("spec.capacity", "")),
    }
    sources(volume, errors);
    let policy = text(volume, "/spec/persistentVolumeReclaimPolicy");
    if !policy.is_empty() {
        let path = "spec.persistentVolumeReclaimPolicy";
        one_of(policy, &RECLAIM_POLICIES, path, errors);
    }
    class_and_mode(volume, errors);
}

fn sources(volume: &Value, errors: &mut Vec<FieldError>) {
    let Some(spec) = object(volume, "/spec") else {
        errors.push(FieldError::required("spec", "must specify a volume type"));
        return;
    };
    let mut sources = spec
        .keys()
        .filter(|name| !NOT_SOURCES.contains(&name.as_str()));
    if sources.next().is_none() {
        errors.push(FieldError::required("spec", "must specify a volume type"));
    }
    for source in sources {
        errors.push(FieldError::forbidden(
            format!("spec.{source}"),
            "may not specify more than 1 volume type",
        ));
    }
    if spec.contains_key("csi") {
        csi(volume, errors);
    }
    if spec.contains_key("hostPath") {
        required(volume, "/spec/hostPath/path", "spec.hostPath.path", errors);
    }
    if spec.contains_key("local") {
        required(volume, "/spec/local/path", "spec.local.path", errors);
        if !spec.contains_key("nodeAffinity") {
            let problem = "Local volume requires node affinity";
            errors.push(FieldError::required("spec.nodeAffinity", problem));
        }
    }
    if spec.contains_key("nfs") {
        required(volume, "/spec/nfs/server", "spec.nfs.server", errors);
        required(volume, "/spec/nfs/path", "spec.nfs.path", errors);
    }
}

fn csi(volume: &Value, errors: &mut Vec<FieldError>) {
    let root = Path::ROOT;
    let spec = root.field("spec");
    let csi = spec.field("csi");
    let driver = text(volume, "/spec/csi/driver");
    super::storage::driver_name(driver, &csi.field("driver"), errors);
    required(
        volume,
        "/spec/csi/volumeHandle",
        "spec.csi.volumeHandle",
        errors,
    );
    for name in [
        "controllerExpandSecretRef",
        "controllerPublishSecretRef",
        "nodeExpandSecretRef",
        "nodePublishSecretRef",
        "nodeStageSecretRef",
    ] {
        if object(volume, &format!("/spec/csi/{name}")).is_some() {
            for field in ["name", "namespace"] {
                let pointer = format!("/spec/csi/{name}/{field}");
                required(
                    volume,
                    &pointer,
                    &format!("spec.csi.{name}.{field}"),
                    errors,
                );
            }
        }
    }
}

fn volume_change(old: &Value, new: &Value, errors: &mut Vec<FieldError>) {
    let source = |volume: &Value| {
        let mut spec = object(volume, "/spec").cloned().unwrap_or_default();
        spec.retain(|name, _| !NOT_SOURCES.contains(&name.as_str()));
        // Expansion secrets may be added to volumes made before there were any.
        if let Some(Value::Object(csi)) = spec.get_mut("csi") {
            csi.remove("controllerExpandSecretRef");
            csi.remove("nodeExpandSecretRef");
        }
        spec
    };
    if source(old) != source(new) {
        errors.push(FieldError::forbidden(
            "spec.persistentvolumesource",
            "spec.persistentvolumesource is immutable after creation",
        ));
    }
    immutable(old, new, "/spec/volumeMode", "spec.volumeMode", errors);
    if old.pointer("/spec/nodeAffinity").is_some() {
        let path = "spec.nodeAffinity";
        immutable(old, new, "/spec/nodeAffinity", path, errors);
    }
}

fn claim(claim: &Value, errors: &mut Vec<FieldError>) {
    access_modes(claim, errors);
    match claim.pointer("/spec/resources/requests/storage") {
        Some(amount) => positive(amount, "spec.resources[storage]", errors),
        None => errors.push(FieldError::required("spec.resources[storage]", "")),
    }
    for source in ["dataSource", "dataSourceRef"] {
        if object(claim, &format!("/spec/{source}")).is_some() {
            for field in ["name", "kind"] {
                let pointer = format!("/spec/{source}/{field}");
                required(claim, &pointer, &format!("spec.{source}.{field}"), errors);
            }
        }
    }
    class_and_mode(claim, errors);
}

fn claim_change(old: &Value, new: &Value, errors: &mut Vec<FieldError>) {
    let bound = text(old, "/status/phase") == "Bound";
    // The parts that may change, each in its own way; the rest may not.
    let fixed = |claim: &Value| {
        let mut spec = object(claim, "/spec").cloned().unwrap_or_default();
        if text(old, "/spec/volumeName").is_empty() {
            spec.remove("volumeName");
        }
        if old.pointer("/spec/storageClassName").is_none() && !bound {
            spec.remove("storageClassName");
        }
        if bound {
            spec.remove("volumeAttributesClassName");
            if let Some(Value::Object(requests)) = spec
                .get_mut("resources")
                .and_then(|resources| resources.get_mut("requests"))
            {
                requests.insert("storage".to_owned(), json!(null));
            }
        }
        spec
    };
    if fixed(old) != fixed(new) {
        errors.push(FieldError::forbidden(
            "spec",
            "spec is immutable after creation except resources.requests and \
             volumeAttributesClassName for bound claims",
        ));
    }
    let amount = |claim: &Value, pointer: &str| {
        claim
            .pointer(pointer)
            .and_then(|amount| Quantity::from_json(amount).ok())
    };
    let before = amount(old, "/spec/resources/requests/storage");
    let after = amount(new, "/spec/resources/requests/storage");
    let capacity = amount(old, "/status/capacity/storage");
    if bound && after < before && after < capacity.or(before) {
        errors.push(FieldError::forbidden(
            "spec.resources.requests.storage",
            "field can not be less than status.capacity",
        ));
    }
}

fn access_modes(value: &Value, errors: &mut Vec<FieldError>) {
    let modes = items(value, "/spec/accessModes");
    if modes.is_empty() {
        let problem = "at least 1 access mode is required";
        errors.push(FieldError::required("spec.accessModes", problem));
    }
    for mode in modes {
        let mode = mode.as_str().unwrap_or_default();
        one_of(mode, &ACCESS_MODES, "spec.accessModes", errors);
    }
    if modes.len() > 1 && modes.iter().any(|mode| mode == "ReadWriteOncePod") {
        errors.push(FieldError::forbidden(
            "spec.accessModes",
            "may not use ReadWriteOncePod with other access modes",
        ));
    }
}

fn class_and_mode(value: &Value, errors: &mut Vec<FieldError>) {
    let root = Path::ROOT;
    let spec = root.field("spec");
    let class = text(value, "/spec/storageClassName");
    if !class.is_empty() {
        let path = spec.field("storageClassName");
        super::all_invalid(names::subdomain(class), &path, class, errors);
    }
    let mode = text(value, "/spec/volumeMode");
    if !mode.is_empty() {
        one_of(mode, &VOLUME_MODES, spec.field("volumeMode"), errors);
    }
}

fn positive(amount: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let valid =
        Quantity::from_json(amount).is_ok_and(|amount| !amount.is_negative() && !amount.is_zero());
    if !valid {
        errors.push(FieldError::invalid(
            path,
            amount.clone(),
            "must be greater than zero",
        ));
    }
}

fn required(value: &Value, pointer: &str, path: &str, errors: &mut Vec<FieldError>) {
    if text(value, pointer).is_empty() {
        errors.push(FieldError::required(path, ""));
    }
}
