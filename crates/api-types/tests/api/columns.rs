//! Names and columns of the CRDs, as `kubectl` users of Longhorn know them.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use crate::kinds::every_crd;

fn crd(kind: &str) -> CustomResourceDefinition {
    every_crd().find(|crd| crd.spec.names.kind == kind).unwrap()
}

/// The columns of `kubectl get`, without those that only `-o wide` shows.
#[track_caller]
fn check(kind: &str, plural: &str, short_names: &str, columns: &str) {
    let crd = crd(kind);
    let name = format!("{plural}.{}", crd.spec.group);
    assert_eq!(crd.metadata.name, Some(name));
    assert_eq!(crd.spec.names.plural, plural);
    let shown = crd.spec.names.short_names.unwrap_or_default();
    assert_eq!(shown.join(" "), short_names);
    let shown: Vec<_> = crd.spec.versions[0]
        .additional_printer_columns
        .iter()
        .flatten()
        .filter(|column| column.priority.unwrap_or(0) == 0)
        .map(|column| column.name.as_str())
        .collect();
    assert_eq!(shown.join(" | "), columns, "{kind}");
}

#[test]
fn kubectl_shows_longhorns_names_and_columns() {
    check(
        "Volume",
        "volumes",
        "lhv",
        "Data Engine | State | Robustness | Scheduled | Size | Node | Age",
    );
    check("VolumeAttachment", "volumeattachments", "lhva", "Age");
    check(
        "Engine",
        "engines",
        "lhe",
        "Data Engine | State | Node | InstanceManager | Image | Age",
    );
    check(
        "Replica",
        "replicas",
        "lhr",
        "Data Engine | State | Node | Disk | InstanceManager | Image | Age",
    );
    check(
        "Node",
        "nodes",
        "lhn",
        "Ready | AllowScheduling | Schedulable | Age",
    );
    check("Setting", "settings", "lhs", "Value | Applied | Age");
    check(
        "Snapshot",
        "snapshots",
        "lhsnap",
        "Volume | CreationTime | ReadyToUse | RestoreSize | Size | Age",
    );
    check(
        "Backup",
        "backups",
        "lhb",
        "SnapshotName | SnapshotSize | SnapshotCreatedAt | BackupTarget | State | LastSyncedAt",
    );
    check(
        "BackupVolume",
        "backupvolumes",
        "lhbv",
        "BackupTarget | CreatedAt | LastBackupName | LastBackupAt | LastSyncedAt",
    );
    check(
        "BackupTarget",
        "backuptargets",
        "lhbt",
        "URL | Credential | LastBackupAt | Available | LastSyncedAt",
    );
    check(
        "ShareManager",
        "sharemanagers",
        "lhsm",
        "State | Node | Image | Age",
    );
    check(
        "BackingImage",
        "backingimages",
        "lhbi",
        "UUID | SourceType | Size | VirtualSize | Age",
    );
    check(
        "RecurringJob",
        "recurringjobs",
        "lhrj",
        "Groups | Task | Cron | RetentionPolicy | RetainCount | RetainAge | Concurrency | Age | Labels",
    );
}

#[test]
fn kubectl_shows_the_names_and_columns_of_snapshots() {
    check(
        "VolumeSnapshot",
        "volumesnapshots",
        "vs",
        "ReadyToUse | SourcePVC | SourceSnapshotContent | RestoreSize | SnapshotClass | SnapshotContent | CreationTime | Age",
    );
    check(
        "VolumeSnapshotClass",
        "volumesnapshotclasses",
        "vsclass vsclasses",
        "Driver | DeletionPolicy | Age",
    );
    check(
        "VolumeSnapshotContent",
        "volumesnapshotcontents",
        "vsc vscs",
        "ReadyToUse | RestoreSize | DeletionPolicy | Driver | VolumeSnapshotClass | VolumeSnapshot | VolumeSnapshotNamespace | Age",
    );
}

#[test]
fn every_crd_is_whole() {
    let crds = api_types::all_crds();
    assert_eq!(crds.len(), 13);
    let names: Vec<_> = crds
        .iter()
        .map(|crd| crd.metadata.name.clone().unwrap())
        .collect();
    let short_names: BTreeSet<_> = crds
        .iter()
        .flat_map(|crd| crd.spec.names.short_names.clone().unwrap())
        .collect();
    assert_eq!(short_names.len(), 13, "short names clash");
    assert!(names.is_sorted(), "{names:?}");
    for crd in &crds {
        let kind = &crd.spec.names.kind;
        assert_eq!(crd.spec.group, "longhorn.io", "{kind}");
        assert_eq!(crd.spec.scope, "Namespaced", "{kind}");
        assert_eq!(
            crd.spec.names.singular.as_deref(),
            Some(kind.to_lowercase().as_str()),
            "{kind}"
        );
        let labels = crd.metadata.labels.clone().unwrap_or_default();
        assert_eq!(
            labels.get("longhorn-manager").map(String::as_str),
            Some(""),
            "{kind}"
        );
        let [version] = crd.spec.versions.as_slice() else {
            panic!("{kind} has not one version")
        };
        assert_eq!(version.name, "v1beta2", "{kind}");
        assert!(version.served && version.storage, "{kind}");
        assert!(
            version
                .subresources
                .as_ref()
                .is_some_and(|all| all.status.is_some()),
            "{kind} has no status subresource"
        );
        for column in version.additional_printer_columns.iter().flatten() {
            assert!(column.json_path.starts_with('.'), "{kind}: {}", column.name);
            let types = ["integer", "number", "string", "boolean", "date"];
            assert!(
                types.contains(&column.type_.as_str()),
                "{kind}: {}",
                column.name
            );
        }
    }
}
