use super::*;

fn parse<T: serde::de::DeserializeOwned>(json: serde_json::Value) -> T {
    serde_json::from_value(json).expect("a valid object")
}

#[test]
fn a_pod_has_its_claims_and_ephemeral_ones() {
    let object: core::Pod = parse(serde_json::json!({
        "metadata": {"namespace": "a", "name": "p", "uid": "1", "creationTimestamp": "1970-01-01T00:00:02Z"},
        "spec": {"nodeName": "n1", "containers": [], "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
            {"name": "other", "emptyDir": {}}]},
        "status": {"phase": "Running", "containerStatuses": [
            {"name": "x", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}}]},
    }));
    let pod = pod(&object);
    let names: Vec<&str> = pod.claims.iter().map(|claim| claim.name.as_str()).collect();
    assert_eq!(names, ["c", "p-scratch"]);
    assert_eq!(pod.node, Some("n1".into()));
    assert_eq!(pod.created_at, Timestamp(2_000));
    assert_eq!(
        (pod.phase, pod.deleting, pod.has_running_container),
        (PodPhase::Running, false, true)
    );
}

#[test]
fn a_claim_has_its_volume_when_it_is_bound() {
    let check = |phase: &str, expected: Option<&str>| {
        let object = parse(serde_json::json!({
            "metadata": {"namespace": "a", "name": "c", "uid": "u"},
            "spec": {"volumeName": "pv"}, "status": {"phase": phase},
        }));
        assert_eq!(claim(&object).volume, expected.map(PvName::from), "{phase}");
    };
    check("Bound", Some("pv"));
    check("Pending", None);
    check("Lost", None);
}

#[test]
fn only_csi_volumes_are_seen() {
    let object = parse(serde_json::json!({"spec": {"nfs": {"server": "s", "path": "/"}}}));
    assert_eq!(persistent_volume(&object), None);
    let object = parse(serde_json::json!({
        "metadata": {"finalizers": ["f"], "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "claimRef": {"uid": "u"},
            "csi": {"driver": "d", "volumeHandle": "h", "controllerPublishSecretRef": {"namespace": "n", "name": "s"}}},
    }));
    let volume = persistent_volume(&object).expect("a CSI volume");
    assert_eq!((volume.is_block, volume.deleting), (true, true));
    assert_eq!(volume.publish_secret, Some(("n".into(), "s".into())));
    assert_eq!(volume.unique_name().to_string(), "kubernetes.io/csi/d^h");
}

#[test]
fn a_node_is_read_from_conditions_taints_and_lists() {
    let object = parse(serde_json::json!({
        "metadata": {"annotations": {MANAGED_ANNOTATION: "true"}},
        "spec": {"taints": [{"key": OUT_OF_SERVICE_TAINT, "effect": "NoExecute"}]},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown"}],
            "volumesInUse": ["kubernetes.io/csi/d^h", "kubernetes.io/nfs/x"],
            "volumesAttached": [{"name": "kubernetes.io/csi/d^h", "devicePath": ""}]},
    }));
    let node = node(&object);
    assert_eq!(
        (node.ready, node.out_of_service, node.managed),
        (false, true, true)
    );
    assert_eq!(node.volumes_in_use.len(), 1);
    assert_eq!(node.volumes_in_use, node.volumes_attached);
}

#[test]
fn an_attachment_names_one_source() {
    let check = |source: serde_json::Value, expected: AttachmentSource| {
        let object = parse(serde_json::json!({
            "metadata": {"name": "csi-1"},
            "spec": {"attacher": "d", "nodeName": "n", "source": source},
            "status": {"attached": false, "attachError": {"message": "no", "errorCode": 8}},
        }));
        let attachment = attachment(&object);
        assert_eq!(attachment.source, expected);
        let error = attachment.attach_error.expect("an error");
        assert_eq!((error.message.as_str(), error.code), ("no", Some(8)));
    };
    check(
        serde_json::json!({"persistentVolumeName": "pv"}),
        AttachmentSource::Volume("pv".into()),
    );
    check(
        serde_json::json!({"inlineVolumeSpec": {}}),
        AttachmentSource::Inline,
    );
    check(serde_json::json!({}), AttachmentSource::Malformed);
}
