//! Changing: apply from either side, diff, patches, edit, label, annotate, typed creates.

use crate::support;
use crate::support::kubectl::everything;
use crate::{LONGHORN, WORKLOAD, cluster_with, config_map};

const SNAPSHOT: &str = include_str!("snapshot.yaml");

#[test]
fn client_side_apply_creates_changes_and_removes() {
    let (_cluster, kubectl) = cluster_with(&[]);
    let check = |data: &str, done: &str, expected: &str| {
        let text = config_map("settings", "", data);
        let said = kubectl.feeds(&["apply", "-f", "-"], &text);
        assert_eq!(said.trim(), format!("configmap/settings {done}"));
        let found = kubectl.prints(&["get", "cm", "settings", "-o", "jsonpath={.data}"]);
        assert_eq!(found, expected);
    };
    check("a: '1', b: '2'", "created", r#"{"a":"1","b":"2"}"#);
    check("a: '1', b: '2'", "unchanged", r#"{"a":"1","b":"2"}"#);
    check("a: '1', b: '3'", "configured", r#"{"a":"1","b":"3"}"#);
    // Another's field stays, one of its own that is no longer given goes.
    kubectl.prints(&["patch", "cm", "settings", "-p", r#"{"data":{"other":"x"}}"#]);
    check("a: '1'", "configured", r#"{"a":"1","other":"x"}"#);

    // A list with merge keys, and a kind whose schema is a CRD.
    let said = kubectl.feeds(&["apply", "-f", "-"], WORKLOAD);
    assert!(said.contains("pod/web created"), "{said}");
    let said = kubectl.feeds(&["apply", "-f", "-"], WORKLOAD);
    assert!(said.contains("pod/web unchanged"), "{said}");
    let newer = WORKLOAD.replace("web:1", "web:2");
    let said = kubectl.feeds(&["apply", "-f", "-"], &newer);
    assert!(said.contains("pod/web configured"), "{said}");
    kubectl.feeds(&["apply", "-f", "-"], LONGHORN);
    let fewer = LONGHORN.replace("numberOfReplicas: 2", "numberOfReplicas: 1");
    let said = kubectl.feeds(&["apply", "-f", "-"], &fewer);
    assert!(
        said.contains("volume.longhorn.io/vol-1 configured"),
        "{said}"
    );
}

#[test]
fn wrong_fields_are_refused_before_anything_is_stored() {
    let (_cluster, kubectl) = cluster_with(&[]);
    let wrong = config_map("settings", "", "a: '1'").replace(" data:", " dota:");
    let output = kubectl.run_with_input(&["apply", "-f", "-"], &wrong);
    assert!(!output.status.success());
    // Old clients check for themselves against /openapi/v2, new ones let the server do it.
    assert!(
        everything(&output).contains("dota"),
        "{}",
        everything(&output)
    );
    kubectl.refuses(&["get", "cm", "settings"], &["NotFound"]);

    let wrong = LONGHORN.replace("numberOfReplicas: 2", "numberOfReplicas: two");
    let output = kubectl.run_with_input(&["apply", "-f", "-"], &wrong);
    assert!(!output.status.success());
    let said = everything(&output);
    assert!(said.contains("numberOfReplicas"), "{said}");
}

#[test]
fn server_side_apply_knows_whose_field_it_is() {
    let (_cluster, kubectl) = cluster_with(&[]);
    let apply = |manager: &str, data: &str, more: &[&str]| {
        let manager = format!("--field-manager={manager}");
        let arguments = [&["apply", "--server-side", &manager, "-f", "-"], more].concat();
        kubectl.run_with_input(&arguments, &config_map("shared", "", data))
    };
    let value = || kubectl.prints(&["get", "cm", "shared", "-o", "jsonpath={.data.a}"]);
    let output = apply("alice", "a: '1'", &[]);
    assert!(output.status.success(), "{}", everything(&output));
    assert!(everything(&output).contains("configmap/shared serverside-applied"));

    let output = apply("bob", "a: '2'", &[]);
    let said = everything(&output);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("Apply failed with 1 conflict"), "{said}");
    assert!(said.contains(r#"conflict with "alice": .data.a"#), "{said}");
    assert_eq!(value(), "1");

    let output = apply("bob", "a: '2'", &["--force-conflicts"]);
    assert!(output.status.success(), "{}", everything(&output));
    assert_eq!(value(), "2");
    // The loser may go on with what is left to it, but not with this.
    assert!(!apply("alice", "a: '3'", &[]).status.success());
    assert!(apply("alice", "b: '3'", &[]).status.success());
    let managers = kubectl.prints(&[
        "get",
        "cm",
        "shared",
        "-o",
        "jsonpath={.metadata.managedFields[*].manager}",
    ]);
    assert!(
        managers.contains("alice") && managers.contains("bob"),
        "{managers}"
    );
    // CRDs are too large for the annotation of client-side apply in many clusters.
    let crds = std::process::Command::new(support::lariat())
        .arg("crds")
        .output();
    let crds = String::from_utf8(crds.expect("lariat crds").stdout).expect("text");
    let said = kubectl.feeds(
        &["apply", "--server-side", "--force-conflicts", "-f", "-"],
        &crds,
    );
    assert!(
        said.contains("volumes.longhorn.io serverside-applied"),
        "{said}"
    );
}

#[test]
fn diff_shows_what_apply_would_change() {
    let (_cluster, kubectl) = cluster_with(&[]);
    kubectl.feeds(
        &["apply", "-f", "-"],
        &config_map("settings", "", "a: before"),
    );
    let same = kubectl.run_with_input(
        &["diff", "-f", "-"],
        &config_map("settings", "", "a: before"),
    );
    assert_eq!(same.status.code(), Some(0), "{}", everything(&same));
    for more in [&[][..], &["--server-side", "--force-conflicts"]] {
        let arguments = [&["diff", "-f", "-"], more].concat();
        let output = kubectl.run_with_input(&arguments, &config_map("settings", "", "a: after"));
        let said = everything(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains("-  a: before") && said.contains("+  a: after"),
            "{said}"
        );
    }
    let value = kubectl.prints(&["get", "cm", "settings", "-o", "jsonpath={.data.a}"]);
    assert_eq!(value, "before", "a diff changed something");
}

#[test]
fn patch_label_annotate_edit_and_replace() {
    let (_cluster, kubectl) = cluster_with(&[WORKLOAD, LONGHORN]);
    let check = |arguments: &[&str], target: &[&str], path: &str, expected: &str| {
        kubectl.prints(arguments);
        let path = format!("jsonpath={{{path}}}");
        let arguments = [&["get"], target, &["-o", &path]].concat();
        assert_eq!(kubectl.prints(&arguments), expected, "after {arguments:?}");
    };
    let pod = &["pod", "web"];
    let volume = &["lhv", "vol-1", "-n", "longhorn-system"];
    check(
        &[
            "patch",
            "pod",
            "web",
            "-p",
            r#"{"spec":{"containers":[{"name":"main","image":"i:2"}]}}"#,
        ],
        pod,
        ".spec.containers[*].image",
        "i:2",
    );
    check(
        &[
            "patch",
            "pod",
            "web",
            "--type=merge",
            "-p",
            r#"{"metadata":{"labels":{"app":null,"tier":"db"}}}"#,
        ],
        pod,
        ".metadata.labels",
        r#"{"tier":"db"}"#,
    );
    check(
        &[
            "patch",
            "pod",
            "web",
            "--type=json",
            "-p",
            r#"[{"op":"replace","path":"/spec/containers/0/image","value":"i:3"}]"#,
        ],
        pod,
        ".spec.containers[*].image",
        "i:3",
    );
    check(
        &[
            "patch",
            "lhv",
            "vol-1",
            "-n",
            "longhorn-system",
            "--type=merge",
            "-p",
            r#"{"spec":{"numberOfReplicas":3}}"#,
        ],
        volume,
        ".spec.numberOfReplicas",
        "3",
    );
    check(
        &["label", "pod", "web", "tier=cache", "--overwrite"],
        pod,
        ".metadata.labels.tier",
        "cache",
    );
    check(
        &["label", "pod", "web", "tier-"],
        pod,
        ".metadata.labels.tier",
        "",
    );
    check(
        &["label", "nodes", "--all", "zone=a"],
        &["node", "n1"],
        ".metadata.labels.zone",
        "a",
    );
    check(
        &["annotate", "pod", "web", "note=hello world"],
        pod,
        ".metadata.annotations.note",
        "hello world",
    );
    check(
        &[
            "annotate",
            "lhv",
            "vol-1",
            "-n",
            "longhorn-system",
            "note=x",
        ],
        volume,
        ".metadata.annotations.note",
        "x",
    );

    let edited = kubectl
        .command(&["edit", "lhv", "vol-1", "-n", "longhorn-system"])
        .env(
            "KUBE_EDITOR",
            "sed -i 's/numberOfReplicas: 3/numberOfReplicas: 1/'",
        )
        .output()
        .expect("kubectl can be run");
    assert!(edited.status.success(), "{}", everything(&edited));
    let replicas = kubectl.prints(
        &[
            &["get"],
            &volume[..],
            &["-o", "jsonpath={.spec.numberOfReplicas}"],
        ]
        .concat(),
    );
    assert_eq!(replicas, "1");

    // A replace that is based on an older version is refused, and says what to do.
    let old = kubectl.prints(&["get", "pod", "web", "-o", "yaml"]);
    kubectl.prints(&["label", "pod", "web", "tier=later"]);
    let output = kubectl.run_with_input(&["replace", "-f", "-"], &old);
    let said = everything(&output);
    assert!(
        !output.status.success() && said.contains("the object has been modified"),
        "{said}"
    );
    // What no patch may touch.
    kubectl.refuses(
        &[
            "patch",
            "pod",
            "web",
            "-p",
            r#"{"spec":{"nodeName":"elsewhere"}}"#,
        ],
        &["Forbidden", "pod updates may not change fields"],
    );
}

#[test]
fn typed_creates_send_what_the_server_reads() {
    let (_cluster, kubectl) = cluster_with(&[]);
    kubectl.shows(
        &["create", "namespace", "typed"],
        &["namespace/typed created"],
    );
    kubectl.prints(&[
        "create",
        "configmap",
        "settings",
        "-n",
        "typed",
        "--from-literal=a=1",
    ]);
    kubectl.prints(&[
        "create",
        "secret",
        "generic",
        "keys",
        "-n",
        "typed",
        "--from-literal=k=v",
    ]);
    kubectl.prints(&["create", "serviceaccount", "robot", "-n", "typed"]);
    kubectl.prints(&["run", "web", "-n", "typed", "--image=i:1"]);
    let check = |target: &[&str], path: &str, expected: &str| {
        let arguments = [&["get", "-n", "typed"], target, &["-o", path]].concat();
        assert_eq!(kubectl.prints(&arguments), expected, "{target:?}");
    };
    check(&["cm", "settings"], "jsonpath={.data.a}", "1");
    check(
        &["secret", "keys"],
        "jsonpath={.type} {.data.k}",
        "Opaque dg==",
    );
    check(&["sa", "robot"], "name", "serviceaccount/robot\n");
    check(
        &["pod", "web"],
        "jsonpath={.spec.containers[0].image}",
        "i:1",
    );
    kubectl.refuses(&["create", "namespace", "typed"], &["AlreadyExists"]);
    kubectl.refuses(
        &["create", "namespace", "Not_A_Name"],
        &["Invalid value", "RFC 1123"],
    );
}

#[test]
fn snapshots_of_claims_are_asked_for() {
    let (_cluster, kubectl) = cluster_with(&[WORKLOAD, SNAPSHOT]);
    let check = |arguments: &[&str], parts: &[&str]| kubectl.shows(arguments, parts);
    check(
        &["get", "volumesnapshotclass", "longhorn"],
        &["DRIVER", "DELETIONPOLICY", "driver.longhorn.io", "Delete"],
    );
    check(
        &["get", "vs"],
        &[
            "READYTOUSE",
            "SOURCEPVC",
            "SNAPSHOTCONTENT",
            "data",
            "longhorn",
        ],
    );
    check(
        &["get", "vsc"],
        &[
            "RESTORESIZE",
            "VOLUMESNAPSHOTNAMESPACE",
            "taken-before",
            "default",
        ],
    );
    check(
        &[
            "label",
            "volumesnapshotclass",
            "longhorn",
            "example.com/default=true",
        ],
        &["labeled"],
    );
    let refuse = |wrong: &str, part: &str| {
        let output = kubectl.run_with_input(&["apply", "-f", "-"], wrong);
        let said = everything(&output);
        assert!(!output.status.success() && said.contains(part), "{said}");
    };
    let claim = "persistentVolumeClaimName: data";
    let both = format!("{claim}, volumeSnapshotContentName: taken-before");
    refuse(&SNAPSHOT.replace(claim, &both), "exactly one of");
    let new = SNAPSHOT.replace("before-upgrade", "of-nothing");
    refuse(&new.replace(claim, ""), "exactly one of");
    refuse(
        &SNAPSHOT.replace(claim, "persistentVolumeClaimName: other"),
        "source is immutable",
    );
    refuse(
        &SNAPSHOT.replace("deletionPolicy: Delete", "deletionPolicy: Burn"),
        "deletionPolicy",
    );
}
