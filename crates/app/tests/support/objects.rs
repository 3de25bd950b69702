//! Claims and pods as tests make them, on whichever cluster.

use std::path::PathBuf;

use serde_json::{Value, json};

pub fn claim(name: &str, class: &str, mode: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": class, "volumeMode": mode,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

pub fn pod(name: &str, claim: &str, node: Option<&str>) -> Value {
    let selector = node.map(|node| json!({"kubernetes.io/hostname": node}));
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "nodeSelector": selector,
            "containers": [{"name": "app", "image": "none"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}

/// Where a running pod's only volume is.
pub fn mount_of(pod: &Value) -> PathBuf {
    let text = pod["metadata"]["annotations"]["lariat.io/mounts"].as_str();
    let mounts: Value = serde_json::from_str(text.expect("the pod's mounts")).expect("JSON");
    let mounts = mounts.as_object().expect("paths by name");
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    let path = mounts.values().next().and_then(Value::as_str);
    path.expect("a path").into()
}
