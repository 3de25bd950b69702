//! Pods, as far as a scheduler and a kubelet need them to be sound.

mod defaults;

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::quantity::Quantity;
use super::{KindRules, all_invalid, duplicate, items, names, not_found, object, one_of, text};
use crate::field_error::FieldError;
use crate::schema::path::Path;

pub(super) static RULES: [KindRules; 1] = [KindRules {
    default: defaults::default_pod,
    object: pod,
    change,
    ..KindRules::new("", "Pod")
}];

/// Fills in a pod template, which is a pod without a status.
pub(super) fn default_template(template: &mut Value) {
    defaults::default_pod(template);
    if let Value::Object(fields) = template {
        fields.remove("status");
    }
}

/// Complaints about a pod template that is at `path`.
pub(super) fn template(template: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let mut found = Vec::new();
    pod(template, &mut found);
    errors.extend(found.into_iter().map(|error| FieldError {
        path: format!("{path}.{}", error.path),
        ..error
    }));
}

const CONTAINER_LISTS: [&str; 2] = ["containers", "initContainers"];

fn pod(pod: &Value, errors: &mut Vec<FieldError>) {
    let root = Path::ROOT;
    let spec = root.field("spec");
    let volumes = volumes(pod, &spec.field("volumes"), errors);
    if items(pod, "/spec/containers").is_empty() {
        errors.push(FieldError::required(spec.field("containers"), ""));
    }
    let mut names_seen = BTreeSet::new();
    for list in CONTAINER_LISTS {
        let path = spec.field(list);
        for (index, container) in items(pod, &format!("/spec/{list}")).iter().enumerate() {
            let path = path.index(index);
            let name = text(container, "/name");
            if !name.is_empty() && !names_seen.insert(name) {
                errors.push(duplicate(path.field("name"), name));
            }
            self::container(container, &volumes, &path, errors);
        }
    }
    for (field, allowed) in [
        ("restartPolicy", &["Always", "OnFailure", "Never"][..]),
        (
            "dnsPolicy",
            &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"][..],
        ),
    ] {
        match text(pod, &format!("/spec/{field}")) {
            "" => errors.push(FieldError::required(spec.field(field), "")),
            value => one_of(value, allowed, spec.field(field), errors),
        }
    }
    let node = text(pod, "/spec/nodeName");
    if !node.is_empty() {
        all_invalid(
            names::subdomain(node),
            &spec.field("nodeName"),
            node,
            errors,
        );
    }
    let account = text(pod, "/spec/serviceAccountName");
    if !account.is_empty() {
        let path = spec.field("serviceAccountName");
        all_invalid(names::subdomain(account), &path, account, errors);
    }
    if let Some(seconds) = pod
        .pointer("/spec/activeDeadlineSeconds")
        .and_then(Value::as_i64)
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        errors.push(FieldError::invalid(
            spec.field("activeDeadlineSeconds"),
            seconds.into(),
            "must be between 1 and 2147483647, inclusive",
        ));
    }
}

/// Checks the volumes and returns their names.
fn volumes<'a>(pod: &'a Value, path: &Path<'_>, errors: &mut Vec<FieldError>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    for (index, volume) in items(pod, "/spec/volumes").iter().enumerate() {
        let path = path.index(index);
        let name = text(volume, "/name");
        if name.is_empty() {
            errors.push(FieldError::required(path.field("name"), ""));
        } else {
            all_invalid(names::label(name), &path.field("name"), name, errors);
            if !seen.insert(name) {
                errors.push(duplicate(path.field("name"), name));
            }
        }
        let mut sources = volume
            .as_object()
            .into_iter()
            .flat_map(Map::keys)
            .filter(|field| *field != "name");
        if sources.next().is_none() {
            errors.push(FieldError::required(path, "must specify a volume type"));
        }
        for source in sources {
            let problem = "may not specify more than 1 volume type";
            errors.push(FieldError::forbidden(path.field(source), problem));
        }
        if let Some(claim) = object(volume, "/persistentVolumeClaim")
            && claim.get("claimName").is_none_or(|name| name == "")
        {
            let claim = path.field("persistentVolumeClaim");
            errors.push(FieldError::required(claim.field("claimName"), ""));
        }
    }
    seen
}

fn container(
    container: &Value,
    volumes: &BTreeSet<&str>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    match text(container, "/name") {
        "" => errors.push(FieldError::required(path.field("name"), "")),
        name => all_invalid(names::label(name), &path.field("name"), name, errors),
    }
    let image = text(container, "/image");
    if image.is_empty() {
        errors.push(FieldError::required(path.field("image"), ""));
    } else if image.trim() != image {
        let problem = "must not have leading or trailing whitespace";
        errors.push(FieldError::invalid(
            path.field("image"),
            image.into(),
            problem,
        ));
    }
    for (field, allowed) in [
        ("imagePullPolicy", &["Always", "IfNotPresent", "Never"][..]),
        (
            "terminationMessagePolicy",
            &["File", "FallbackToLogsOnError"][..],
        ),
    ] {
        match text(container, &format!("/{field}")) {
            "" => errors.push(FieldError::required(path.field(field), "")),
            value => one_of(value, allowed, path.field(field), errors),
        }
    }
    mounts(container, volumes, path, errors);
    ports(container, &path.field("ports"), errors);
    environment(container, &path.field("env"), errors);
    resources(container, &path.field("resources"), errors);
}

fn mounts(
    container: &Value,
    volumes: &BTreeSet<&str>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    for (list, place) in [
        ("volumeMounts", "mountPath"),
        ("volumeDevices", "devicePath"),
    ] {
        let mut seen = BTreeSet::new();
        let list_path = path.field(list);
        for (index, mount) in items(container, &format!("/{list}")).iter().enumerate() {
            let path = list_path.index(index);
            match text(mount, "/name") {
                "" => errors.push(FieldError::required(path.field("name"), "")),
                name if !volumes.contains(name) => {
                    errors.push(not_found(path.field("name"), name));
                }
                _ => {}
            }
            match text(mount, &format!("/{place}")) {
                "" => errors.push(FieldError::required(path.field(place), "")),
                value if !seen.insert(value) => {
                    let problem = "must be unique";
                    errors.push(FieldError::invalid(
                        path.field(place),
                        value.into(),
                        problem,
                    ));
                }
                _ => {}
            }
        }
    }
}

fn ports(container: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (index, port) in items(container, "/ports").iter().enumerate() {
        let path = path.index(index);
        let number = port
            .get("containerPort")
            .and_then(Value::as_i64)
            .unwrap_or(0);
        if number == 0 {
            errors.push(FieldError::required(path.field("containerPort"), ""));
        } else if !(1..=65535).contains(&number) {
            errors.push(FieldError::invalid(
                path.field("containerPort"),
                number.into(),
                "must be between 1 and 65535, inclusive",
            ));
        }
        let protocol = text(port, "/protocol");
        if !protocol.is_empty() {
            one_of(
                protocol,
                &["SCTP", "TCP", "UDP"],
                path.field("protocol"),
                errors,
            );
        }
    }
}

fn environment(container: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (index, variable) in items(container, "/env").iter().enumerate() {
        let name = text(variable, "/name");
        let path = path.index(index);
        if name.is_empty() {
            errors.push(FieldError::required(path.field("name"), ""));
        } else if name.contains('=') {
            let problem = "a valid environment variable name must consist only of printable ASCII \
                           characters other than '='";
            errors.push(FieldError::invalid(
                path.field("name"),
                name.into(),
                problem,
            ));
        }
        if !text(variable, "/value").is_empty() && variable.get("valueFrom").is_some() {
            errors.push(FieldError::invalid(
                path.field("valueFrom"),
                "".into(),
                "may not be specified when `value` is not empty",
            ));
        }
    }
}

fn resources(container: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let amount = |pointer: &str, name: &str| {
        let amounts = object(container, pointer)?;
        Quantity::from_json(amounts.get(name)?).ok()
    };
    for (list, pointer) in [
        ("limits", "/resources/limits"),
        ("requests", "/resources/requests"),
    ] {
        for (name, shown) in object(container, pointer).into_iter().flatten() {
            if amount(pointer, name).is_some_and(Quantity::is_negative) {
                let list = path.field(list);
                let problem = "must be greater than or equal to 0";
                errors.push(FieldError::invalid(list.key(name), shown.clone(), problem));
            }
        }
    }
    for (name, shown) in object(container, "/resources/requests")
        .into_iter()
        .flatten()
    {
        let request = amount("/resources/requests", name);
        let limit = amount("/resources/limits", name);
        if let (Some(request), Some(limit)) = (request, limit)
            && request > limit
        {
            errors.push(FieldError::invalid(
                path.field("requests"),
                shown.clone(),
                format!("must be less than or equal to {name} limit of {limit}"),
            ));
        }
    }
}

fn change(old: &Value, new: &Value, errors: &mut Vec<FieldError>) {
    let root = Path::ROOT;
    let spec = root.field("spec");
    for list in CONTAINER_LISTS {
        let pointer = format!("/spec/{list}");
        if items(old, &pointer).len() != items(new, &pointer).len() {
            let problem = "pod updates may not add or remove containers";
            errors.push(FieldError::forbidden(spec.field(list), problem));
            return;
        }
    }
    tolerations(old, new, &spec.field("tolerations"), errors);
    let old_spec = old.get("spec").cloned().unwrap_or_default();
    let new_spec = new.get("spec").cloned().unwrap_or_default();
    if with_allowed_changes_undone(&old_spec, new_spec) != old_spec {
        errors.push(FieldError::forbidden(
            spec,
            "pod updates may not change fields other than \
             `spec.containers[*].image`,`spec.initContainers[*].image`,\
             `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
             tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
             previously negative)",
        ));
    }
}

/// What `spec` would be had the update kept its hands off the fields it may change.
fn with_allowed_changes_undone(old: &Value, mut spec: Value) -> Value {
    let restore = |parent: &mut Value, old_parent: &Value, name: &str| {
        if let Value::Object(fields) = parent {
            match old_parent.get(name) {
                Some(before) => fields.insert(name.to_owned(), before.clone()),
                None => fields.remove(name),
            };
        }
    };
    for list in CONTAINER_LISTS {
        let before = items(old, &format!("/{list}"));
        if let Some(Value::Array(containers)) = spec.get_mut(list) {
            for (container, before) in containers.iter_mut().zip(before) {
                restore(container, before, "image");
            }
        }
    }
    restore(&mut spec, old, "tolerations");
    let number = |spec: &Value, name: &str| spec.get(name).and_then(Value::as_i64);
    // A deadline may be set, and then only be brought forward.
    let deadline = |spec: &Value| number(spec, "activeDeadlineSeconds");
    if deadline(&spec).is_some_and(|after| deadline(old).is_none_or(|before| after <= before)) {
        restore(&mut spec, old, "activeDeadlineSeconds");
    }
    let grace = "terminationGracePeriodSeconds";
    if number(&spec, grace) == Some(1) && number(old, grace).is_some_and(|before| before < 0) {
        restore(&mut spec, old, grace);
    }
    // Gates may only be lifted.
    let gates = items(&spec, "/schedulingGates");
    let before = items(old, "/schedulingGates");
    if gates.iter().all(|gate| before.contains(gate)) {
        restore(&mut spec, old, "schedulingGates");
    }
    spec
}

fn tolerations(old: &Value, new: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let without_seconds = |toleration: &Value| {
        let mut toleration = toleration.clone();
        if let Value::Object(fields) = &mut toleration {
            fields.remove("tolerationSeconds");
        }
        toleration
    };
    let after: Vec<Value> = items(new, "/spec/tolerations")
        .iter()
        .map(without_seconds)
        .collect();
    let kept = |toleration: &Value| after.contains(&without_seconds(toleration));
    if !items(old, "/spec/tolerations").iter().all(kept) {
        errors.push(FieldError::forbidden(
            path,
            "existing toleration can not be modified except its tolerationSeconds",
        ));
    }
}
