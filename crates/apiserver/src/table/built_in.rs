//! Columns of the built-in kinds, as kubectl users know them.

use jiff::Timestamp;
use serde_json::Value;

use super::{Column, age, name_column};
use crate::object;

/// Name, type, priority: 1 is shown with `-o wide` only.
type Row = (&'static str, &'static str, i64);

const AGE: Row = ("Age", "string", 0);

fn rows(kind: &str) -> &'static [Row] {
    const S: &str = "string";
    match kind {
        "Namespace" => &[("Status", S, 0), AGE],
        "Node" => &[
            ("Status", S, 0),
            ("Roles", S, 0),
            AGE,
            ("Version", S, 0),
            ("Internal-IP", S, 1),
            ("External-IP", S, 1),
            ("OS-Image", S, 1),
            ("Kernel-Version", S, 1),
            ("Container-Runtime", S, 1),
        ],
        "Pod" => &[
            ("Ready", S, 0),
            ("Status", S, 0),
            ("Restarts", S, 0),
            AGE,
            ("IP", S, 1),
            ("Node", S, 1),
            ("Nominated Node", S, 1),
            ("Readiness Gates", S, 1),
        ],
        "PersistentVolume" => &[
            ("Capacity", S, 0),
            ("Access Modes", S, 0),
            ("Reclaim Policy", S, 0),
            ("Status", S, 0),
            ("Claim", S, 0),
            ("StorageClass", S, 0),
            ("VolumeAttributesClass", S, 0),
            ("Reason", S, 0),
            AGE,
            ("VolumeMode", S, 1),
        ],
        "PersistentVolumeClaim" => &[
            ("Status", S, 0),
            ("Volume", S, 0),
            ("Capacity", S, 0),
            ("Access Modes", S, 0),
            ("StorageClass", S, 0),
            ("VolumeAttributesClass", S, 0),
            AGE,
            ("VolumeMode", S, 1),
        ],
        "Secret" => &[("Type", S, 0), ("Data", S, 0), AGE],
        "ConfigMap" => &[("Data", S, 0), AGE],
        "Event" => &[
            ("Last Seen", S, 0),
            ("Type", S, 0),
            ("Reason", S, 0),
            ("Object", S, 0),
            ("Subobject", S, 1),
            ("Source", S, 1),
            ("Message", S, 0),
            ("First Seen", S, 1),
            ("Count", S, 1),
        ],
        "StorageClass" => &[
            ("Provisioner", S, 0),
            ("ReclaimPolicy", S, 0),
            ("VolumeBindingMode", S, 0),
            ("AllowVolumeExpansion", S, 0),
            AGE,
        ],
        "VolumeAttachment" => &[
            ("Attacher", S, 0),
            ("PV", S, 0),
            ("Node", S, 0),
            ("Attached", "boolean", 0),
            AGE,
        ],
        "CSINode" => &[("Drivers", "integer", 0), AGE],
        "CSIDriver" => &[
            ("AttachRequired", "boolean", 0),
            ("PodInfoOnMount", "boolean", 0),
            ("StorageCapacity", "boolean", 0),
            ("TokenRequests", S, 0),
            ("RequiresRepublish", "boolean", 0),
            ("Modes", S, 0),
            AGE,
        ],
        "CSIStorageCapacity" => &[("StorageClassName", S, 0), ("Capacity", S, 0), AGE],
        "StatefulSet" => &[("Ready", S, 0), AGE, ("Containers", S, 1), ("Images", S, 1)],
        "Lease" => &[("Holder", S, 0), AGE],
        "CustomResourceDefinition" => &[("Created At", "date", 0)],
        _ => &[AGE],
    }
}

pub(super) fn columns(kind: &str) -> Vec<Column> {
    let declared = rows(kind).iter().map(|(name, type_name, priority)| Column {
        name: (*name).to_owned(),
        type_name: (*type_name).to_owned(),
        format: String::new(),
        description: String::new(),
        priority: *priority,
    });
    if kind == "Event" {
        // Events lead with their time; their generated names matter to nobody.
        return declared
            .chain([Column {
                priority: 1,
                ..name_column()
            }])
            .collect();
    }
    std::iter::once(name_column()).chain(declared).collect()
}

pub(super) fn cells(kind: &str, object: &Value, now: Timestamp) -> Vec<Value> {
    let name: Value = object::name(object).into();
    let age: Value = age::age(text(&object["metadata"]["creationTimestamp"]), now).into();
    let spec = &object["spec"];
    let status = &object["status"];
    let rest = match kind {
        "Namespace" => vec![shown(&status["phase"]), age],
        "Node" => node(object, age),
        "Pod" => pod(object, age, now),
        "PersistentVolume" => vec![
            shown(&spec["capacity"]["storage"]),
            access_modes(&spec["accessModes"]),
            shown(&spec["persistentVolumeReclaimPolicy"]),
            phase(object),
            claim(&spec["claimRef"]),
            shown(&spec["storageClassName"]),
            or_unset(&spec["volumeAttributesClassName"]),
            shown(&status["reason"]),
            age,
            or_unset(&spec["volumeMode"]),
        ],
        "PersistentVolumeClaim" => {
            let bound = !text(&spec["volumeName"]).is_empty();
            let only_bound = |value: Value| if bound { value } else { "".into() };
            vec![
                phase(object),
                shown(&spec["volumeName"]),
                only_bound(shown(&status["capacity"]["storage"])),
                only_bound(access_modes(&status["accessModes"])),
                shown(&spec["storageClassName"]),
                or_unset(&spec["volumeAttributesClassName"]),
                age,
                or_unset(&spec["volumeMode"]),
            ]
        }
        "Secret" => vec![shown(&object["type"]), count(&object["data"]), age],
        "ConfigMap" => {
            let entries = size(&object["data"]) + size(&object["binaryData"]);
            vec![entries.into(), age]
        }
        "Event" => return event(object, name, now),
        "StorageClass" => vec![
            shown(&object["provisioner"]),
            shown(&object["reclaimPolicy"]),
            shown(&object["volumeBindingMode"]),
            object["allowVolumeExpansion"]
                .as_bool()
                .unwrap_or(false)
                .into(),
            age,
        ],
        "VolumeAttachment" => vec![
            shown(&spec["attacher"]),
            shown(&spec["source"]["persistentVolumeName"]),
            shown(&spec["nodeName"]),
            status["attached"].as_bool().unwrap_or(false).into(),
            age,
        ],
        "CSINode" => vec![count(&spec["drivers"]), age],
        "CSIDriver" => csi_driver(spec, age),
        "CSIStorageCapacity" => vec![
            shown(&object["storageClassName"]),
            shown(&object["capacity"]),
            age,
        ],
        "StatefulSet" => {
            let number = |value: &Value| value.as_i64().unwrap_or(0);
            let ready = format!(
                "{}/{}",
                number(&status["readyReplicas"]),
                number(&spec["replicas"])
            );
            let containers = &spec["template"]["spec"]["containers"];
            vec![
                ready.into(),
                age,
                joined(containers, "name"),
                joined(containers, "image"),
            ]
        }
        "Lease" => vec![shown(&spec["holderIdentity"]), age],
        "CustomResourceDefinition" => vec![object["metadata"]["creationTimestamp"].clone()],
        _ => vec![age],
    };
    let name = match (
        kind,
        object["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"].as_str(),
    ) {
        ("StorageClass", Some("true")) => format!("{} (default)", object::name(object)).into(),
        _ => name,
    };
    std::iter::once(name).chain(rest).collect()
}

/// One field of every item, with commas.
fn joined(items: &Value, field: &str) -> Value {
    let items = items.as_array().into_iter().flatten();
    let fields: Vec<&str> = items.map(|item| text(&item[field])).collect();
    fields.join(",").into()
}

fn node(node: &Value, age: Value) -> Vec<Value> {
    let conditions = node["status"]["conditions"].as_array();
    let ready = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == "Ready");
    let mut state = match ready.map(|condition| text(&condition["status"])) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if node["spec"]["unschedulable"] == true {
        state.push_str(",SchedulingDisabled");
    }
    let roles: Vec<&str> = node["metadata"]["labels"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(label, _)| label.strip_prefix("node-role.kubernetes.io/"))
        .collect();
    let roles = if roles.is_empty() {
        "<none>".to_owned()
    } else {
        roles.join(",")
    };
    let address = |kind: &str| -> Value {
        let addresses = node["status"]["addresses"].as_array();
        let found = addresses
            .into_iter()
            .flatten()
            .find(|address| address["type"] == kind);
        found.map_or("<none>".into(), |address| shown(&address["address"]))
    };
    let info = &node["status"]["nodeInfo"];
    let or_unknown = |value: &Value| -> Value {
        if text(value).is_empty() {
            "<unknown>".into()
        } else {
            value.clone()
        }
    };
    vec![
        state.into(),
        roles.into(),
        age,
        shown(&info["kubeletVersion"]),
        address("InternalIP"),
        address("ExternalIP"),
        or_unknown(&info["osImage"]),
        or_unknown(&info["kernelVersion"]),
        or_unknown(&info["containerRuntimeVersion"]),
    ]
}

fn pod(pod: &Value, age: Value, now: Timestamp) -> Vec<Value> {
    let statuses = pod["status"]["containerStatuses"].as_array();
    let statuses = statuses.map_or(&[][..], Vec::as_slice);
    let ready = statuses
        .iter()
        .filter(|container| container["ready"] == true)
        .count();
    let total = size(&pod["spec"]["containers"]);
    let restarts: i64 = statuses
        .iter()
        .filter_map(|container| container["restartCount"].as_i64())
        .sum();
    let waiting = statuses.iter().find_map(|container| {
        container["state"]["waiting"]["reason"]
            .as_str()
            .or_else(|| container["state"]["terminated"]["reason"].as_str())
    });
    let reason = pod["status"]["reason"]
        .as_str()
        .filter(|reason| !reason.is_empty());
    let mut state = reason
        .or(waiting)
        .unwrap_or_else(|| text(&pod["status"]["phase"]));
    if object::is_deleting(pod) {
        state = "Terminating";
    }
    let last_restart = statuses
        .iter()
        .filter_map(|container| container["lastState"]["terminated"]["finishedAt"].as_str())
        .max()
        .map(|finished| format!(" ({} ago)", age::age(finished, now)));
    let or_none = |value: &Value| -> Value {
        if text(value).is_empty() {
            "<none>".into()
        } else {
            value.clone()
        }
    };
    vec![
        format!("{ready}/{total}").into(),
        state.into(),
        format!(
            "{restarts}{}",
            last_restart.filter(|_| restarts > 0).unwrap_or_default()
        )
        .into(),
        age,
        or_none(&pod["status"]["podIP"]),
        or_none(&pod["spec"]["nodeName"]),
        or_none(&pod["status"]["nominatedNodeName"]),
        "<none>".into(),
    ]
}

fn event(event: &Value, name: Value, now: Timestamp) -> Vec<Value> {
    let or = |first: &str, second: &str| -> Value {
        if event[first].is_null() {
            event[second].clone()
        } else {
            event[first].clone()
        }
    };
    let involved = or("involvedObject", "regarding");
    let source = or("source", "deprecatedSource");
    let seen = |value: Value| -> String {
        let fallback = text(&event["eventTime"]).to_owned();
        let since = value.as_str().map_or(fallback, str::to_owned);
        age::age(&since, now)
    };
    let last = match event["series"]["lastObservedTime"].clone() {
        Value::Null => or("lastTimestamp", "deprecatedLastTimestamp"),
        series => series,
    };
    let reporter = match text(&source["component"]) {
        "" => text(&or("reportingComponent", "reportingController")).to_owned(),
        component => component.to_owned(),
    };
    let count = or("count", "deprecatedCount")
        .as_i64()
        .filter(|count| *count > 0)
        .unwrap_or(1);
    vec![
        seen(last).into(),
        shown(&event["type"]),
        shown(&event["reason"]),
        format!(
            "{}/{}",
            text(&involved["kind"]).to_lowercase(),
            text(&involved["name"])
        )
        .into(),
        shown(&involved["fieldPath"]),
        [reporter.as_str(), text(&source["host"])]
            .join(", ")
            .trim_end_matches(", ")
            .into(),
        text(&or("message", "note")).trim().into(),
        seen(or("firstTimestamp", "deprecatedFirstTimestamp")).into(),
        count.into(),
        name,
    ]
}

fn csi_driver(spec: &Value, age: Value) -> Vec<Value> {
    let flag =
        |field: &str, default: bool| -> Value { spec[field].as_bool().unwrap_or(default).into() };
    let joined = |list: &Value, unset: &str| -> Value {
        let texts: Vec<&str> = list.as_array().into_iter().flatten().map(text).collect();
        if texts.is_empty() {
            unset.into()
        } else {
            texts.join(",").into()
        }
    };
    let audiences: Vec<Value> = spec["tokenRequests"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|request| request["audience"].clone())
        .collect();
    vec![
        flag("attachRequired", true),
        flag("podInfoOnMount", false),
        flag("storageCapacity", false),
        joined(&Value::Array(audiences), "<unset>"),
        flag("requiresRepublish", false),
        joined(&spec["volumeLifecycleModes"], "<none>"),
        age,
    ]
}

fn phase(object: &Value) -> Value {
    if object::is_deleting(object) {
        "Terminating".into()
    } else {
        shown(&object["status"]["phase"])
    }
}

fn claim(reference: &Value) -> Value {
    if reference.is_null() {
        return "".into();
    }
    format!(
        "{}/{}",
        text(&reference["namespace"]),
        text(&reference["name"])
    )
    .into()
}

fn access_modes(modes: &Value) -> Value {
    let short = |mode: &Value| match text(mode) {
        "ReadWriteOnce" => "RWO",
        "ReadOnlyMany" => "ROX",
        "ReadWriteMany" => "RWX",
        "ReadWriteOncePod" => "RWOP",
        _ => "?",
    };
    let modes: Vec<&str> = modes.as_array().into_iter().flatten().map(short).collect();
    modes.join(",").into()
}

fn or_unset(value: &Value) -> Value {
    if text(value).is_empty() {
        "<unset>".into()
    } else {
        value.clone()
    }
}

fn shown(value: &Value) -> Value {
    if value.is_null() {
        "".into()
    } else {
        value.clone()
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn size(value: &Value) -> usize {
    value.as_array().map_or_else(
        || value.as_object().map_or(0, serde_json::Map::len),
        Vec::len,
    )
}

fn count(value: &Value) -> Value {
    size(value).into()
}
