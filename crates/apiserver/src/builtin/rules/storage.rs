//! storage.k8s.io: classes, attachments, and what drivers say of themselves and of nodes.

use serde_json::{Value, json};

use super::quantity::Quantity;
use super::{
    KindRules, all_invalid, child_object, default_field, duplicate, immutable, items, names,
    object, one_of, text, too_long,
};
use crate::field_error::FieldError;
use crate::schema::path::Path;

const GROUP: &str = "storage.k8s.io";
const VOLUME_ERROR_BYTES_MAX: usize = 1024;
const ATTACHMENT_METADATA_BYTES_MAX: usize = 256 << 10;
const CLASS_PARAMETERS_MAX: usize = 512;
const CLASS_PARAMETERS_BYTES_MAX: usize = 256 << 10;
const DRIVER_NAME_BYTES_MAX: usize = 63;
const NODE_ID_BYTES_MAX: usize = 256;

pub(super) static RULES: [KindRules; 5] = [
    KindRules {
        default: |class| {
            default_field(class, "reclaimPolicy", "Delete");
            default_field(class, "volumeBindingMode", "Immediate");
        },
        object: class,
        change: |old, new, errors| {
            for field in [
                "parameters",
                "provisioner",
                "reclaimPolicy",
                "volumeBindingMode",
            ] {
                immutable(old, new, &format!("/{field}"), field, errors);
            }
        },
        ..KindRules::cluster_wide(GROUP, "StorageClass")
    },
    KindRules {
        default: |attachment| {
            if let Some(status) = child_object(attachment, "status") {
                default_field(status, "attached", false);
            }
        },
        object: attachment,
        change: |old, new, errors| immutable(old, new, "/spec", "spec", errors),
        ..KindRules::cluster_wide(GROUP, "VolumeAttachment")
    },
    KindRules {
        object: node,
        change: node_change,
        ..KindRules::cluster_wide(GROUP, "CSINode")
    },
    KindRules {
        default: default_driver,
        object: driver,
        change: |old, new, errors| {
            // The first path is spelled as the real server spells it.
            for (field, path) in [
                ("attachRequired", "spec.attachedRequired"),
                ("volumeLifecycleModes", "spec.volumeLifecycleModes"),
            ] {
                immutable(old, new, &format!("/spec/{field}"), path, errors);
            }
        },
        ..KindRules::cluster_wide(GROUP, "CSIDriver")
    },
    KindRules {
        object: capacity,
        change: |old, new, errors| {
            for field in ["nodeTopology", "storageClassName"] {
                immutable(old, new, &format!("/{field}"), field, errors);
            }
        },
        ..KindRules::new(GROUP, "CSIStorageCapacity")
    },
];

/// A CSI driver's name, as volumes and attachments refer to it.
pub(super) fn driver_name(name: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    if name.len() > DRIVER_NAME_BYTES_MAX {
        errors.push(too_long(path, DRIVER_NAME_BYTES_MAX));
    }
    all_invalid(names::subdomain(&name.to_lowercase()), path, name, errors);
}

fn class(class: &Value, errors: &mut Vec<FieldError>) {
    let root = Path::ROOT;
    let provisioner = text(class, "/provisioner");
    if provisioner.is_empty() {
        errors.push(FieldError::required("provisioner", ""));
    } else {
        let problems = names::qualified(&provisioner.to_lowercase());
        all_invalid(problems, &root.field("provisioner"), provisioner, errors);
    }
    if let Some(parameters) = object(class, "/parameters") {
        if parameters.len() > CLASS_PARAMETERS_MAX {
            errors.push(too_long("parameters", CLASS_PARAMETERS_MAX));
        }
        if parameters.contains_key("") {
            let problem = "field can not be empty.";
            errors.push(FieldError::invalid("parameters", "".into(), problem));
        }
        let bytes: usize = parameters
            .iter()
            .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
            .sum();
        if bytes > CLASS_PARAMETERS_BYTES_MAX {
            errors.push(too_long("parameters", CLASS_PARAMETERS_BYTES_MAX));
        }
    }
    let policy = text(class, "/reclaimPolicy");
    if !policy.is_empty() {
        one_of(policy, &["Delete", "Retain"], "reclaimPolicy", errors);
    }
    let mode = text(class, "/volumeBindingMode");
    if mode.is_empty() {
        errors.push(FieldError::required("volumeBindingMode", ""));
    } else {
        let modes = ["Immediate", "WaitForFirstConsumer"];
        one_of(mode, &modes, "volumeBindingMode", errors);
    }
}

fn attachment(attachment: &Value, errors: &mut Vec<FieldError>) {
    let root = Path::ROOT;
    let spec = root.field("spec");
    let attacher = text(attachment, "/spec/attacher");
    driver_name(attacher, &spec.field("attacher"), errors);
    source(attachment, &spec.field("source"), errors);
    let node = text(attachment, "/spec/nodeName");
    all_invalid(
        names::subdomain(node),
        &spec.field("nodeName"),
        node,
        errors,
    );
    status(attachment, errors);
}

fn source(attachment: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    const EXACTLY_ONE: &str =
        "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    let volume = attachment.pointer("/spec/source/persistentVolumeName");
    let inline = attachment.pointer("/spec/source/inlineVolumeSpec");
    match (
        volume.filter(|v| !v.is_null()),
        inline.filter(|v| !v.is_null()),
    ) {
        (None, None) => errors.push(FieldError::required(path, EXACTLY_ONE)),
        (Some(_), Some(_)) => errors.push(FieldError::forbidden(path, EXACTLY_ONE)),
        (Some(volume), None) => {
            let path = path.field("persistentVolumeName");
            match volume.as_str().unwrap_or_default() {
                "" => errors.push(FieldError::required(
                    path,
                    "must specify non empty persistentVolumeName",
                )),
                name => all_invalid(names::subdomain(name), &path, name, errors),
            }
        }
        (None, Some(_)) => {}
    }
}

/// The real server's complaint about a long message names the limit of `attachmentMetadata`; ours
/// names the limit that was exceeded.
fn status(attachment: &Value, errors: &mut Vec<FieldError>) {
    for field in ["attachError", "detachError"] {
        let message = text(attachment, &format!("/status/{field}/message"));
        if message.len() > VOLUME_ERROR_BYTES_MAX {
            let path = format!("status.{field}.message");
            errors.push(too_long(path, VOLUME_ERROR_BYTES_MAX));
        }
    }
    let metadata_bytes: usize = object(attachment, "/status/attachmentMetadata")
        .into_iter()
        .flatten()
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    if metadata_bytes > ATTACHMENT_METADATA_BYTES_MAX {
        let path = "status.attachmentMetadata";
        errors.push(too_long(path, ATTACHMENT_METADATA_BYTES_MAX));
    }
}

fn node(node: &Value, errors: &mut Vec<FieldError>) {
    let root = Path::ROOT;
    let spec = root.field("spec");
    let drivers = spec.field("drivers");
    let mut seen = Vec::new();
    for (index, driver) in items(node, "/spec/drivers").iter().enumerate() {
        let path = drivers.index(index);
        let name = text(driver, "/name");
        driver_name(name, &path.field("name"), errors);
        if seen.contains(&name) {
            errors.push(duplicate(path.field("name"), name));
        }
        seen.push(name);
        let node_id = text(driver, "/nodeID");
        if node_id.is_empty() {
            errors.push(FieldError::required(path.field("nodeID"), ""));
        } else if node_id.len() > NODE_ID_BYTES_MAX {
            let problem = format!("must be {NODE_ID_BYTES_MAX} characters or less");
            errors.push(FieldError::invalid(
                path.field("nodeID"),
                node_id.into(),
                problem,
            ));
        }
        for key in items(driver, "/topologyKeys") {
            let key = key.as_str().unwrap_or_default();
            all_invalid(
                names::qualified(key),
                &path.field("topologyKeys"),
                key,
                errors,
            );
        }
        if let Some(count) = driver.pointer("/allocatable/count").and_then(Value::as_i64)
            && count < 0
        {
            let allocatable = path.field("allocatable");
            errors.push(FieldError::invalid(
                allocatable.field("count"),
                count.into(),
                "must be greater than or equal to 0",
            ));
        }
    }
}

/// A driver may come and go, but not change in place. How many volumes it takes may.
fn node_change(old: &Value, new: &Value, errors: &mut Vec<FieldError>) {
    let fixed = |driver: &Value| {
        let mut driver = driver.clone();
        if let Value::Object(fields) = &mut driver {
            fields.remove("allocatable");
        }
        driver
    };
    for before in items(old, "/spec/drivers") {
        let same_name = |driver: &&Value| driver.get("name") == before.get("name");
        for after in items(new, "/spec/drivers").iter().filter(same_name) {
            if fixed(before) != fixed(after) {
                let problem = "field is immutable";
                errors.push(FieldError::invalid("spec.drivers", fixed(after), problem));
            }
        }
    }
}

fn default_driver(driver: &mut Value) {
    if let Some(spec) = child_object(driver, "spec") {
        default_field(spec, "attachRequired", true);
        default_field(spec, "podInfoOnMount", false);
        default_field(spec, "storageCapacity", false);
        default_field(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
        default_field(spec, "volumeLifecycleModes", json!(["Persistent"]));
        default_field(spec, "requiresRepublish", false);
        default_field(spec, "seLinuxMount", false);
    }
}

fn driver(driver: &Value, errors: &mut Vec<FieldError>) {
    let policy = text(driver, "/spec/fsGroupPolicy");
    if !policy.is_empty() {
        let policies = ["File", "None", "ReadWriteOnceWithFSType"];
        one_of(policy, &policies, "spec.fsGroupPolicy", errors);
    }
    for mode in items(driver, "/spec/volumeLifecycleModes") {
        let mode = mode.as_str().unwrap_or_default();
        let modes = ["Ephemeral", "Persistent"];
        one_of(mode, &modes, "spec.volumeLifecycleModes", errors);
    }
}

fn capacity(capacity: &Value, errors: &mut Vec<FieldError>) {
    let root = Path::ROOT;
    let class = text(capacity, "/storageClassName");
    let path = root.field("storageClassName");
    all_invalid(names::subdomain(class), &path, class, errors);
    for field in ["capacity", "maximumVolumeSize"] {
        let negative = capacity
            .get(field)
            .and_then(|amount| Quantity::from_json(amount).ok())
            .is_some_and(Quantity::is_negative);
        if negative {
            let shown = capacity[field].clone();
            let problem = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(field, shown, problem));
        }
    }
}
