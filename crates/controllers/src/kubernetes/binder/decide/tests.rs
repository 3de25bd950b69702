use serde_json::{Value, json};

use super::*;

fn parse<T: serde::de::DeserializeOwned>(base: Value, more: &Value) -> T {
    let mut object = base;
    json_patch::merge(&mut object, more);
    serde_json::from_value(object).expect("a valid object")
}

fn claim(more: &Value) -> PersistentVolumeClaim {
    let base = json!({
        "metadata": {"namespace": "default", "name": "c", "uid": "u", "finalizers": [CLAIM_PROTECTION]},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": {"requests": {"storage": "1Gi"}}},
    });
    parse(base, more)
}

fn volume(more: &Value) -> PersistentVolume {
    let base = json!({
        "metadata": {"name": "v", "finalizers": [VOLUME_PROTECTION]},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "capacity": {"storage": "1Gi"},
            "csi": {"driver": "d", "volumeHandle": "v"}},
    });
    parse(base, more)
}

fn class(more: &Value) -> StorageClass {
    let base =
        json!({"metadata": {"name": "fast"}, "provisioner": "d", "volumeBindingMode": "Immediate"});
    parse(base, more)
}

fn check(
    claim: &PersistentVolumeClaim,
    volume: Option<&PersistentVolume>,
    class: &StorageClass,
    free: &[&PersistentVolume],
    is_used: bool,
    expected: &str,
) {
    let step = decide_claim(&ClaimView {
        claim,
        volume,
        classes: &[class],
        free,
        is_used,
        driver: "d",
    });
    assert_eq!(format!("{step:?}"), expected);
}

#[test]
fn a_claim_is_served_by_its_class() {
    let (plain, fast) = (claim(&json!({})), class(&json!({})));
    check(
        &plain,
        None,
        &fast,
        &[],
        false,
        "Provision { class: \"fast\" }",
    );
    let foreign = class(&json!({"provisioner": "x"}));
    check(
        &plain,
        None,
        &foreign,
        &[],
        false,
        "Wait(ExternalProvisioner(\"x\"))",
    );
    let lazy = class(&json!({"volumeBindingMode": "WaitForFirstConsumer"}));
    check(&plain, None, &lazy, &[], false, "Wait(FirstConsumer)");
    let selected = claim(&json!({"metadata": {"annotations": {SELECTED_NODE: "n1"}}}));
    check(
        &selected,
        None,
        &lazy,
        &[],
        false,
        "Provision { class: \"fast\" }",
    );
    let unknown = claim(&json!({"spec": {"storageClassName": "slow"}}));
    check(
        &unknown,
        None,
        &fast,
        &[],
        false,
        "Wait(ClassMissing(\"slow\"))",
    );
    let without = claim(&json!({"spec": {"storageClassName": null}}));
    check(&without, None, &fast, &[], false, "Wait(NoClass)");
    let default = class(&json!({"metadata": {"annotations": {DEFAULT_CLASS: "true"}}}));
    check(&without, None, &default, &[], false, "SetClass(\"fast\")");
    let none = claim(&json!({"spec": {"storageClassName": ""}}));
    check(&none, None, &default, &[], false, "Wait(NoClass)");
}

#[test]
fn a_claim_takes_the_smallest_free_volume_that_fits() {
    let (plain, fast) = (claim(&json!({})), class(&json!({})));
    let large =
        volume(&json!({"metadata": {"name": "large"}, "spec": {"capacity": {"storage": "5Gi"}}}));
    let right = volume(&json!({}));
    let small =
        volume(&json!({"metadata": {"name": "small"}, "spec": {"capacity": {"storage": "1Mi"}}}));
    let block = volume(&json!({"metadata": {"name": "a"}, "spec": {"volumeMode": "Block"}}));
    check(
        &plain,
        None,
        &fast,
        &[&large, &right, &small, &block],
        false,
        "TakeVolume(\"v\")",
    );
    check(
        &plain,
        None,
        &fast,
        &[&small, &block],
        false,
        "Provision { class: \"fast\" }",
    );
}

#[test]
fn binding_goes_from_the_volume_to_the_claim() {
    let fast = class(&json!({}));
    let named = claim(&json!({"spec": {"volumeName": "v"}}));
    let free = volume(&json!({}));
    let own =
        volume(&json!({"spec": {"claimRef": {"namespace": "default", "name": "c", "uid": "u"}}}));
    let earlier =
        volume(&json!({"spec": {"claimRef": {"namespace": "default", "name": "c", "uid": "old"}}}));
    check(
        &named,
        None,
        &fast,
        &[],
        false,
        "Wait(VolumeMissing(\"v\"))",
    );
    check(&named, Some(&free), &fast, &[], false, "TakeVolume(\"v\")");
    check(&named, Some(&own), &fast, &[], false, "NameVolume(\"v\")");
    check(
        &named,
        Some(&earlier),
        &fast,
        &[],
        false,
        "Wait(VolumeTaken(\"v\"))",
    );
    check(
        &claim(&json!({})),
        Some(&own),
        &fast,
        &[],
        false,
        "NameVolume(\"v\")",
    );
    let completed =
        json!({"metadata": {"annotations": {BIND_COMPLETED: "yes"}}, "spec": {"volumeName": "v"}});
    let completed = claim(&completed);
    check(
        &completed,
        Some(&own),
        &fast,
        &[],
        false,
        "MarkBound(\"v\")",
    );
    check(&completed, None, &fast, &[], false, "MarkLost");
    let small = volume(&json!({"spec": {"capacity": {"storage": "1Mi"}}}));
    check(
        &named,
        Some(&small),
        &fast,
        &[],
        false,
        "Wait(Mismatch { volume: \"v\", problem: \"requested PV is too small\" })",
    );
}

#[test]
fn a_claim_in_use_is_kept() {
    let fast = class(&json!({}));
    let deleting = claim(&json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    check(&deleting, None, &fast, &[], true, "Nothing");
    check(&deleting, None, &fast, &[], false, "RemoveProtection");
    let bare = claim(&json!({"metadata": {"finalizers": null}}));
    check(&bare, None, &fast, &[], false, "AddProtection");
}

#[test]
fn a_released_volume_is_destroyed_only_if_we_made_it_and_may() {
    let check = |more: Value, has_claim: bool, is_attached: bool, expected: VolumeStep| {
        let volume = volume(&more);
        let claim = claim(&json!({}));
        let step = decide_volume(&volume, has_claim.then_some(&claim), is_attached, "d");
        assert_eq!(step, expected, "{more}");
    };
    let made = |more: Value| {
        let mut base = json!({
            "metadata": {"annotations": {PROVISIONED_BY: "d"}},
            "spec": {"persistentVolumeReclaimPolicy": "Delete", "claimRef": {"namespace": "default", "name": "c", "uid": "u"}},
            "status": {"phase": "Released"},
        });
        json_patch::merge(&mut base, &more);
        base
    };
    check(json!({}), false, false, VolumeStep::SetPhase("Available"));
    check(made(json!({})), true, false, VolumeStep::SetPhase("Bound"));
    check(
        made(json!({"status": {"phase": "Bound"}})),
        false,
        false,
        VolumeStep::SetPhase("Released"),
    );
    check(made(json!({})), false, true, VolumeStep::WaitForDetach);
    check(made(json!({})), false, false, VolumeStep::Destroy);
    let keep = json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
    check(made(keep), false, false, VolumeStep::Nothing);
    let foreign = json!({"metadata": {"annotations": {PROVISIONED_BY: "x"}}});
    check(made(foreign), false, false, VolumeStep::Nothing);
    let deleting = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    check(
        made(deleting.clone()),
        true,
        false,
        VolumeStep::SetPhase("Bound"),
    );
    check(made(deleting.clone()), false, false, VolumeStep::Destroy);
    check(deleting, false, false, VolumeStep::RemoveProtection);
}
