//! What a pod is when it does not say.

use serde_json::{Map, Value, json};

use super::super::quantity::Quantity;
use super::super::{child_object, default_field, items, object, text};

pub(super) fn default_pod(pod: &mut Value) {
    let qos_class = {
        let Some(spec) = child_object(pod, "spec") else {
            return;
        };
        default_field(spec, "restartPolicy", "Always");
        default_field(spec, "terminationGracePeriodSeconds", 30);
        default_field(spec, "dnsPolicy", "ClusterFirst");
        default_field(spec, "schedulerName", "default-scheduler");
        default_field(spec, "securityContext", Map::new());
        default_field(spec, "enableServiceLinks", true);
        for list in ["containers", "initContainers"] {
            if let Some(Value::Array(containers)) = spec.get_mut(list) {
                containers.iter_mut().for_each(container);
            }
        }
        if let Some(Value::Array(volumes)) = spec.get_mut("volumes") {
            volumes.iter_mut().for_each(volume);
        }
        qos_class(spec)
    };
    if let Some(status) = child_object(pod, "status") {
        default_field(status, "phase", "Pending");
        default_field(status, "qosClass", qos_class);
    }
}

fn container(container: &mut Value) {
    let policy = pull_policy(text(container, "/image"));
    default_field(container, "imagePullPolicy", policy);
    default_field(container, "terminationMessagePath", "/dev/termination-log");
    default_field(container, "terminationMessagePolicy", "File");
    if let Some(Value::Array(ports)) = container.get_mut("ports") {
        for port in ports {
            default_field(port, "protocol", "TCP");
        }
    }
    if let Some(resources) = child_object(container, "resources")
        && let Some(limits) = object(resources, "/limits").cloned()
        && let Some(requests) = child_object(resources, "requests")
    {
        for (name, limit) in limits {
            default_field(requests, &name, limit);
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(name) {
            default_field(probe, "timeoutSeconds", 1);
            default_field(probe, "periodSeconds", 10);
            default_field(probe, "successThreshold", 1);
            default_field(probe, "failureThreshold", 3);
            if let Some(get) = probe.get_mut("httpGet") {
                default_field(get, "path", "/");
                default_field(get, "scheme", "HTTP");
            }
        }
    }
    if let Some(Value::Array(variables)) = container.get_mut("env") {
        for variable in variables {
            if let Some(field) = variable.pointer_mut("/valueFrom/fieldRef") {
                default_field(field, "apiVersion", "v1");
            }
        }
    }
}

/// An image that may change under its name is asked for every time.
fn pull_policy(image: &str) -> &'static str {
    let name = image.rsplit('/').next().unwrap_or_default();
    let pinned = name.contains('@') || name.split_once(':').is_some_and(|(_, tag)| tag != "latest");
    if pinned { "IfNotPresent" } else { "Always" }
}

fn volume(volume: &mut Value) {
    let has_source = volume
        .as_object()
        .is_some_and(|fields| fields.keys().any(|field| field != "name"));
    if !has_source {
        default_field(volume, "emptyDir", Map::new());
    }
    for name in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = volume.get_mut(name) {
            default_field(source, "defaultMode", 0o644);
        }
    }
    if let Some(host_path) = volume.get_mut("hostPath") {
        default_field(host_path, "type", "");
    }
    let template = "/ephemeral/volumeClaimTemplate/spec";
    if let Some(claim) = volume.pointer_mut(template) {
        default_field(claim, "volumeMode", "Filesystem");
    }
}

/// Guaranteed: every container limits CPU and memory and requests exactly that.
fn qos_class(spec: &Value) -> Value {
    let mut any = false;
    let mut guaranteed = true;
    for list in ["/containers", "/initContainers"] {
        for container in items(spec, list) {
            for name in ["cpu", "memory"] {
                let amount = |kind: &str| {
                    let amount = container.pointer(&format!("/resources/{kind}/{name}"))?;
                    Quantity::from_json(amount)
                        .ok()
                        .filter(|amount| !amount.is_zero())
                };
                let (request, limit) = (amount("requests"), amount("limits"));
                any |= request.is_some() || limit.is_some();
                guaranteed &= limit.is_some() && request == limit;
            }
        }
    }
    json!(match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    })
}
