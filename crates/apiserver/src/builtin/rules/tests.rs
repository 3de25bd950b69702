use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::schema::arbitrary::any_value;

fn checked(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// Each expected text is the start of an error.
#[expect(
    clippy::needless_pass_by_value,
    reason = "rows read better without references"
)]
fn check(actual: Vec<FieldError>, expected: &[&str]) {
    let actual = checked(&actual);
    assert_eq!(actual.len(), expected.len(), "{actual:#?}");
    for (actual, expected) in actual.iter().zip(expected) {
        assert!(actual.starts_with(expected), "{actual}\n{expected}");
    }
}

fn attachment() -> Value {
    json!({"metadata": {"name": "csi-1"}, "spec": {"attacher": "driver.longhorn.io", "nodeName": "n1",
        "source": {"persistentVolumeName": "pv1"}}, "status": {"attached": false}})
}

fn with(mut value: Value, pointer: &str, new: Value) -> Value {
    match value.pointer_mut(pointer) {
        Some(place) => *place = new,
        None => {
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            value.pointer_mut(parent).unwrap()[name] = new;
        }
    }
    value
}

#[test]
fn attachments() {
    let create = |value: &Value| validate_create("storage.k8s.io", "VolumeAttachment", value);
    check(create(&attachment()), &[]);
    check(
        create(&json!({"metadata": {"name": "a"}})),
        &[
            "spec.attacher: Required value",
            "spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName",
            r#"spec.nodeName: Invalid value: "": a lowercase RFC 1123 subdomain"#,
        ],
    );
    let both = json!({"persistentVolumeName": "a", "inlineVolumeSpec": {}});
    check(
        create(&with(attachment(), "/spec/source", both)),
        &["spec.source: Forbidden: must specify exactly one of"],
    );
    let update =
        |new: &Value| validate_update("storage.k8s.io", "VolumeAttachment", &attachment(), new);
    check(update(&attachment()), &[]);
    let moved = with(attachment(), "/spec/nodeName", json!("n2"));
    let errors = checked(&update(&moved));
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].starts_with("spec: Invalid value: {"),
        "{errors:?}"
    );
    assert!(errors[0].ends_with(": field is immutable"), "{errors:?}");
    for (bytes, complaints) in [
        (1024, &[][..]),
        (
            1025,
            &["status.attachError.message: Too long: may not be more than 1024 bytes"][..],
        ),
    ] {
        let error = json!({"message": "x".repeat(bytes)});
        check(
            update(&with(attachment(), "/status/attachError", error)),
            complaints,
        );
    }
    let metadata = json!({"k": "x".repeat(256 << 10)});
    check(
        update(&with(attachment(), "/status/attachmentMetadata", metadata)),
        &["status.attachmentMetadata: Too long: may not be more than 262144 bytes"],
    );
}

#[test]
fn classes_drivers_nodes_and_capacities() {
    let class = json!({"metadata": {"name": "c"}, "provisioner": "p.io", "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"});
    check(
        validate_create("storage.k8s.io", "StorageClass", &class),
        &[],
    );
    check(
        validate_create(
            "storage.k8s.io",
            "StorageClass",
            &with(class.clone(), "/reclaimPolicy", json!("Recycle")),
        ),
        &[r#"reclaimPolicy: Unsupported value: "Recycle": supported values: "Delete", "Retain""#],
    );
    let mut changed = with(class.clone(), "/parameters", json!({"a": "b"}));
    changed["provisioner"] = json!("q.io");
    changed["volumeBindingMode"] = json!("WaitForFirstConsumer");
    check(
        validate_update("storage.k8s.io", "StorageClass", &class, &changed),
        &[
            r#"parameters: Invalid value: {"a":"b"}: field is immutable"#,
            r#"provisioner: Invalid value: "q.io": field is immutable"#,
            r#"volumeBindingMode: Invalid value: "WaitForFirstConsumer": field is immutable"#,
        ],
    );
    let driver = json!({"metadata": {"name": "d.io"}, "spec": {"attachRequired": true}});
    check(
        validate_update(
            "storage.k8s.io",
            "CSIDriver",
            &driver,
            &with(driver.clone(), "/spec/attachRequired", json!(false)),
        ),
        &["spec.attachedRequired: Invalid value: false: field is immutable"],
    );
    let node = |id: &str| json!({"metadata": {"name": "n"}, "spec": {"drivers": [{"name": "d.io", "nodeID": id}]}});
    check(
        validate_create("storage.k8s.io", "CSINode", &node("n")),
        &[],
    );
    check(
        validate_create("storage.k8s.io", "CSINode", &node("")),
        &["spec.drivers[0].nodeID: Required value"],
    );
    check(
        validate_update("storage.k8s.io", "CSINode", &node("a"), &node("b")),
        &[r#"spec.drivers: Invalid value: {"name":"d.io","nodeID":"b"}: field is immutable"#],
    );
    let capacity = json!({"metadata": {"name": "c", "namespace": "n"}, "storageClassName": "a", "capacity": "-1Gi"});
    check(
        validate_create("storage.k8s.io", "CSIStorageCapacity", &capacity),
        &[r#"capacity: Invalid value: "-1Gi": must be greater than or equal to 0"#],
    );
}

#[test]
fn volumes_and_claims() {
    let volume = json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "d.io", "volumeHandle": "h"}, "volumeMode": "Filesystem"}});
    let create = |value: &Value| validate_create("", "PersistentVolume", value);
    check(create(&volume), &[]);
    check(
        create(&json!({"metadata": {"name": "v"}, "spec": {}})),
        &[
            "spec.accessModes: Required value: at least 1 access mode is required",
            "spec.capacity: Required value",
            "spec: Required value: must specify a volume type",
        ],
    );
    check(
        validate_update(
            "",
            "PersistentVolume",
            &volume,
            &with(volume.clone(), "/spec/csi/volumeHandle", json!("x")),
        ),
        &[
            "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation",
        ],
    );
    let claim = json!({"metadata": {"name": "c", "namespace": "n"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}, "volumeName": "v"}, "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
    let update = |new: &Value| validate_update("", "PersistentVolumeClaim", &claim, new);
    check(validate_create("", "PersistentVolumeClaim", &claim), &[]);
    check(
        validate_create(
            "",
            "PersistentVolumeClaim",
            &json!({"metadata": {"name": "c", "namespace": "n"}}),
        ),
        &[
            "spec.accessModes: Required value",
            "spec.resources[storage]: Required value",
        ],
    );
    check(
        update(&with(
            claim.clone(),
            "/spec/resources/requests/storage",
            json!("2Gi"),
        )),
        &[],
    );
    check(
        update(&with(
            claim.clone(),
            "/spec/resources/requests/storage",
            json!("1Mi"),
        )),
        &["spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"],
    );
    check(
        update(&with(
            claim.clone(),
            "/spec/accessModes",
            json!(["ReadWriteMany"]),
        )),
        &["spec: Forbidden: spec is immutable after creation except resources.requests"],
    );
    let mut unbound = claim.clone();
    unbound["status"] = json!({"phase": "Pending"});
    unbound["spec"]
        .as_object_mut()
        .unwrap()
        .remove("volumeName");
    let bind = with(unbound.clone(), "/spec/volumeName", json!("v"));
    check(
        validate_update("", "PersistentVolumeClaim", &unbound, &bind),
        &[],
    );
    let grow = with(
        unbound.clone(),
        "/spec/resources/requests/storage",
        json!("2Gi"),
    );
    check(
        validate_update("", "PersistentVolumeClaim", &unbound, &grow),
        &["spec: Forbidden"],
    );
}

#[test]
fn secrets_and_config_maps() {
    let secret = json!({"metadata": {"name": "s", "namespace": "n"}, "type": "Opaque", "immutable": true, "data": {"a": "YQ=="}});
    check(validate_create("", "Secret", &secret), &[]);
    check(
        validate_create(
            "",
            "Secret",
            &with(secret.clone(), "/data", json!({"bad key": ""})),
        ),
        &[r#"data[bad key]: Invalid value: "bad key": a valid config key must consist of"#],
    );
    check(
        validate_create(
            "",
            "Secret",
            &with(secret.clone(), "/type", json!("kubernetes.io/tls")),
        ),
        &[
            "data[tls.crt]: Required value",
            "data[tls.key]: Required value",
        ],
    );
    check(
        validate_update(
            "",
            "Secret",
            &secret,
            &with(secret.clone(), "/data", json!({"b": ""})),
        ),
        &["data: Forbidden: field is immutable when `immutable` is set"],
    );
    let map = json!({"metadata": {"name": "s", "namespace": "n"}, "data": {"a": "x"}, "binaryData": {"a": "YQ=="}});
    check(
        validate_create("", "ConfigMap", &map),
        &[r#"data[a]: Invalid value: "a": duplicate of key present in binaryData"#],
    );
}

fn pod() -> Value {
    let mut pod = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {
        "containers": [{"name": "c", "image": "i:1", "resources": {"limits": {"cpu": "1000m"}}, "ports": [{"containerPort": 80}],
            "volumeMounts": [{"name": "v", "mountPath": "/d"}]}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}, {"name": "e"}]}});
    default_object("", "Pod", &mut pod);
    pod
}

#[test]
fn pods() {
    check(validate_create("", "Pod", &pod()), &[]);
    check(
        validate_create("", "Pod", &with(pod(), "/spec/containers", json!([]))),
        &["spec.containers: Required value"],
    );
    check(
        validate_create("", "Pod", &with(pod(), "/spec/volumes", json!([]))),
        &[r#"spec.containers[0].volumeMounts[0].name: Not found: "v""#],
    );
    check(
        validate_create(
            "",
            "Pod",
            &with(
                pod(),
                "/spec/containers/0/ports/0/containerPort",
                json!(70000),
            ),
        ),
        &[
            "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
        ],
    );
    let update = |new: &Value| validate_update("", "Pod", &pod(), new);
    check(update(&pod()), &[]);
    check(
        update(&with(pod(), "/spec/containers/0/image", json!("i:2"))),
        &[],
    );
    check(
        update(&with(
            pod(),
            "/spec/tolerations",
            json!([{"operator": "Exists"}]),
        )),
        &[],
    );
    check(
        update(&with(pod(), "/spec/activeDeadlineSeconds", json!(5))),
        &[],
    );
    check(
        update(&with(pod(), "/spec/nodeName", json!("n1"))),
        &[
            "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,",
        ],
    );
    let tolerant = with(
        pod(),
        "/spec/tolerations",
        json!([{"key": "a", "operator": "Exists"}]),
    );
    check(
        validate_update("", "Pod", &tolerant, &pod()),
        &["spec.tolerations: Forbidden: existing toleration can not be modified"],
    );
    check(
        update(&with(pod(), "/spec/containers", json!([]))),
        &[
            "spec.containers: Forbidden: pod updates may not add or remove containers",
            "spec.containers: Required value",
        ],
    );
}

#[test]
fn leases_events_nodes_and_namespaces() {
    check(
        validate_create(
            "coordination.k8s.io",
            "Lease",
            &json!({"metadata": {"name": "l", "namespace": "n"},
            "spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1}}),
        ),
        &[
            "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
            "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
        ],
    );
    check(
        validate_create(
            "",
            "Event",
            &json!({"metadata": {"name": "e", "namespace": "a"}, "involvedObject": {"namespace": "b"}}),
        ),
        &[r#"involvedObject.namespace: Invalid value: "b": does not match event.namespace"#],
    );
    check(
        validate_create(
            "events.k8s.io",
            "Event",
            &json!({"metadata": {"name": "e", "namespace": "default"}, "reason": "R",
            "action": "A", "reportingController": "c", "reportingInstance": "i", "type": "Odd", "eventTime": "2026-01-01T00:00:00.000000Z"}),
        ),
        &[r#"type: Unsupported value: "Odd": supported values: "Normal", "Warning""#],
    );
    check(
        validate_create("", "Namespace", &json!({"metadata": {"name": "a.b"}})),
        &[r#"metadata.name: Invalid value: "a.b": a lowercase RFC 1123 label"#],
    );
    check(
        validate_create(
            "",
            "Node",
            &json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": "a"}]}}),
        ),
        &["metadata.taints[0].effect: Required value"],
    );
}

#[test]
fn defaults() {
    let rows = [
        (
            "",
            "Namespace",
            json!({"metadata": {"name": "a"}}),
            json!({"metadata": {"name": "a", "labels": {"kubernetes.io/metadata.name": "a"}},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}),
        ),
        (
            "",
            "Secret",
            json!({"stringData": {"a": "b"}, "data": {"c": "ZA=="}}),
            json!({"type": "Opaque", "data": {"a": "Yg==", "c": "ZA=="}}),
        ),
        (
            "storage.k8s.io",
            "StorageClass",
            json!({"provisioner": "p"}),
            json!({"provisioner": "p", "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"}),
        ),
        (
            "",
            "PersistentVolumeClaim",
            json!({"spec": {"resources": {"requests": {"storage": "1024Mi"}}, "storageClassName": null}}),
            json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}, "volumeMode": "Filesystem"}, "status": {"phase": "Pending"}}),
        ),
        (
            "",
            "PersistentVolume",
            json!({"spec": {"capacity": {"storage": 1000}}}),
            json!({"spec": {"capacity": {"storage": "1k"}, "persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem"}, "status": {"phase": "Pending"}}),
        ),
        (
            "coordination.k8s.io",
            "Lease",
            json!({"metadata": {"creationTimestamp": "2026-01-02T03:04:05.6+01:00"}, "spec": {"renewTime": "2026-01-02T03:04:05Z"}}),
            json!({"metadata": {"creationTimestamp": "2026-01-02T02:04:05Z"}, "spec": {"renewTime": "2026-01-02T03:04:05.000000Z"}}),
        ),
        (
            "storage.k8s.io",
            "VolumeAttachment",
            json!({}),
            json!({"status": {"attached": false}}),
        ),
        (
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            json!({"spec": {"names": {"kind": "Volume"}}}),
            json!({"spec": {"names": {"kind": "Volume", "singular": "volume", "listKind": "VolumeList"}, "conversion": {"strategy": "None"}}}),
        ),
    ];
    for (group, kind, before, after) in rows {
        let mut value = before;
        default_object(group, kind, &mut value);
        assert_eq!(value, after, "{kind}");
    }
    let pod = pod();
    for (pointer, expected) in [
        ("/spec/restartPolicy", json!("Always")),
        ("/spec/terminationGracePeriodSeconds", json!(30)),
        ("/spec/containers/0/imagePullPolicy", json!("IfNotPresent")),
        ("/spec/containers/0/ports/0/protocol", json!("TCP")),
        ("/spec/containers/0/resources/limits/cpu", json!("1")),
        ("/spec/containers/0/resources/requests/cpu", json!("1")),
        ("/spec/volumes/1/emptyDir", json!({})),
        ("/status/qosClass", json!("Burstable")),
    ] {
        assert_eq!(pod.pointer(pointer), Some(&expected), "{pointer}");
    }
}

#[test]
fn nulls_in_metadata_are_absent() {
    let mut object =
        json!({"metadata": {"name": "a", "creationTimestamp": null}, "spec": {"keep": null}});
    drop_metadata_nulls(&mut object);
    assert_eq!(
        object,
        json!({"metadata": {"name": "a"}, "spec": {"keep": null}})
    );
}

#[test]
fn stateful_sets() {
    let mut set = json!({"metadata": {"name": "db", "namespace": "default"}, "spec": {
        "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
        "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c", "image": "i",
            "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}}]}});
    default_object("apps", "StatefulSet", &mut set);
    assert_eq!(set["spec"]["replicas"], 1);
    assert_eq!(set["spec"]["podManagementPolicy"], "OrderedReady");
    assert_eq!(
        set["spec"]["updateStrategy"]["rollingUpdate"]["partition"],
        0
    );
    assert_eq!(set["spec"]["template"]["spec"]["restartPolicy"], "Always");
    assert_eq!(set["spec"]["template"].get("status"), None);
    let create = |value: &Value| validate_create("apps", "StatefulSet", value);
    check(create(&set), &[]);
    check(
        create(&with(
            set.clone(),
            "/spec/template/metadata/labels",
            json!({"app": "web"}),
        )),
        &["spec.template.metadata.labels: Invalid value"],
    );
    check(
        create(&with(set.clone(), "/spec/selector", json!({}))),
        &["spec.selector: Required value"],
    );
    check(
        create(&with(set.clone(), "/spec/volumeClaimTemplates", json!([]))),
        &["spec.template.spec.containers[0].volumeMounts[0].name: Not found"],
    );
    let update = |new: &Value| validate_update("apps", "StatefulSet", &set, new);
    check(update(&with(set.clone(), "/spec/replicas", json!(3))), &[]);
    check(
        update(&with(set.clone(), "/spec/serviceName", json!("other"))),
        &["spec: Forbidden: updates to statefulset spec for fields other than"],
    );
}

#[test]
fn every_stored_kind_has_rules() {
    for builtin in super::super::kinds() {
        let stored = !matches!(
            builtin.kind,
            "Binding" | "Eviction" | "Scale" | "DeleteOptions" | "Status"
        );
        assert_eq!(
            rules(builtin.group, builtin.kind).is_some(),
            stored,
            "{}",
            builtin.kind
        );
    }
}

proptest! {
    #[test]
    fn nothing_panics_and_defaults_are_stable(metadata in any_value(), spec in any_value(), status in any_value(), rest in any_value()) {
        let value = json!({"metadata": metadata, "spec": spec, "status": status, "data": rest});
        for rules in FAMILIES.iter().flat_map(|family| family.iter()) {
            for value in [&value, &spec] {
                let mut once = value.clone();
                default_object(rules.group, rules.kind, &mut once);
                let mut twice = once.clone();
                default_object(rules.group, rules.kind, &mut twice);
                prop_assert_eq!(&once, &twice);
                validate_create(rules.group, rules.kind, &once);
                validate_update(rules.group, rules.kind, value, &once);
            }
        }
    }
}
