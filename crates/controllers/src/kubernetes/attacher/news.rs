//! Which changes are worth a look. What we wrote ourselves is not: an error that woke us up again would
//! undo the delay that it asked for.

use cluster_core::DriverName;
use cluster_core::names::finalizer_name;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;

/// Created, about to be deleted, no longer attached, or robbed of our finalizer.
pub(super) fn of_attachment(
    driver: &DriverName,
    old: Option<&VolumeAttachment>,
    new: &VolumeAttachment,
) -> bool {
    let Some(old) = old else { return true };
    let deleting = |attachment: &VolumeAttachment| attachment.metadata.deletion_timestamp.is_some();
    let attached = |attachment: &VolumeAttachment| {
        let status = attachment.status.as_ref();
        status.is_some_and(|status| status.attached)
    };
    let finalizer = finalizer_name(driver);
    let held = |attachment: &VolumeAttachment| {
        let finalizers = attachment.metadata.finalizers.as_ref();
        finalizers.is_some_and(|finalizers| finalizers.contains(&finalizer))
    };
    old.metadata.uid != new.metadata.uid
        || deleting(old) != deleting(new)
        || (!deleting(new) && ((attached(old) && !attached(new)) || (held(old) && !held(new))))
}

/// Created, changed in what it is, or about to be deleted. Finalizers, annotations and phases are not news.
pub(super) fn of_volume(old: Option<&PersistentVolume>, new: &PersistentVolume) -> bool {
    let Some(old) = old else { return true };
    old.metadata.uid != new.metadata.uid
        || old.metadata.deletion_timestamp.is_some() != new.metadata.deletion_timestamp.is_some()
        || old.spec != new.spec
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(old: Value, new: Value, expected: bool) {
        let parse = |value: Value| -> VolumeAttachment {
            let mut object = json!({"metadata": {"uid": "1"}, "spec": {"attacher": "d", "nodeName": "n", "source": {}}});
            json_patch::merge(&mut object, &value);
            serde_json::from_value(object).expect("an attachment")
        };
        let (old, new) = (parse(old), parse(new));
        assert_eq!(
            of_attachment(&"d".into(), Some(&old), &new),
            expected,
            "{new:?}"
        );
    }

    #[test]
    fn our_own_writes_are_no_news() {
        let held = json!({"metadata": {"finalizers": ["external-attacher/d"]}});
        let failed = json!({"status": {"attached": false, "attachError": {"message": "no"}}});
        let attached = json!({"status": {"attached": true}});
        let deleting = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        check(json!({}), held.clone(), false);
        check(json!({}), failed, false);
        check(json!({}), attached.clone(), false);
        check(
            deleting.clone(),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
                "status": {"attached": false, "detachError": {"message": "no"}}}),
            false,
        );
        check(attached, json!({}), true);
        check(held, json!({}), true);
        check(json!({}), deleting, true);
        check(json!({}), json!({"metadata": {"uid": "2"}}), true);
    }

    #[test]
    fn a_volumes_finalizer_is_no_news() {
        let parse =
            |value: Value| -> PersistentVolume { serde_json::from_value(value).expect("a volume") };
        let old = parse(json!({"spec": {"capacity": {"storage": "1Gi"}}}));
        let held = parse(
            json!({"metadata": {"finalizers": ["x"]}, "spec": {"capacity": {"storage": "1Gi"}}}),
        );
        let grown = parse(json!({"spec": {"capacity": {"storage": "2Gi"}}}));
        assert!(of_volume(None, &old));
        assert!(!of_volume(Some(&old), &held));
        assert!(of_volume(Some(&old), &grown));
    }
}
