//! Waiting and ending: wait, watch, finalizers, and what a delete takes with it.

use crate::support::eventually;
use crate::{WORKLOAD, cluster_with, config_map, replace_status};

#[test]
fn wait_for_conditions_fields_and_deletion() {
    let (_cluster, kubectl) = cluster_with(&[WORKLOAD]);
    kubectl.refuses(
        &["wait", "--for=condition=Ready", "pod/web", "--timeout=1s"],
        &["timed out waiting for the condition"],
    );
    let wait = kubectl.follow(&[
        "wait",
        "--for=condition=Ready",
        "pod/web",
        "--timeout=60s",
        "-v=6",
    ]);
    wait.read_until("watch=true");
    replace_status(
        &kubectl,
        "/api/v1/namespaces/default/pods/web",
        serde_json::json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}),
    );
    wait.read_until("pod/web condition met");
    wait.succeeds();
    // `--for=jsonpath` came with 1.23; an older one has no such wait to test.
    if kubectl.is_at_least(23) {
        kubectl.shows(
            &[
                "wait",
                "--for=jsonpath={.status.phase}=Running",
                "pod/web",
                "--timeout=60s",
            ],
            &["condition met"],
        );
    } else {
        let phase = kubectl.prints(&["get", "pod", "web", "-o", "jsonpath={.status.phase}"]);
        assert_eq!(phase, "Running");
    }

    kubectl.feeds(
        &["create", "-f", "-"],
        &config_map("held", ", finalizers: [example.com/hold]", ""),
    );
    kubectl.prints(&["delete", "cm", "held", "--wait=false"]);
    let wait = kubectl.follow(&["wait", "--for=delete", "cm/held", "--timeout=60s", "-v=6"]);
    wait.read_until("watch=true");
    kubectl.shows(
        &["get", "cm", "held", "-o", "yaml"],
        &["deletionTimestamp", "example.com/hold"],
    );
    kubectl.prints(&[
        "patch",
        "cm",
        "held",
        "--type=merge",
        "-p",
        r#"{"metadata":{"finalizers":null}}"#,
    ]);
    wait.succeeds();
    kubectl.refuses(&["get", "cm", "held"], &["NotFound"]);
}

#[test]
fn delete_with_each_propagation_policy() {
    let (_cluster, kubectl) = cluster_with(&[]);
    let family = |name: &str, finalizers: &str| {
        kubectl.feeds(&["create", "-f", "-"], &config_map(name, "", ""));
        let uid = kubectl.prints(&["get", "cm", name, "-o", "jsonpath={.metadata.uid}"]);
        let owners = format!(
            ", finalizers: [{finalizers}], ownerReferences: [{{apiVersion: v1, kind: ConfigMap, name: {name}, uid: {uid}, blockOwnerDeletion: true}}]"
        );
        let child = format!("{name}-child");
        kubectl.feeds(&["create", "-f", "-"], &config_map(&child, &owners, ""));
        child
    };
    let is_gone = |name: &str| {
        let found = kubectl.prints(&["get", "cm", name, "--ignore-not-found", "-o", "name"]);
        found.is_empty()
    };

    let child = family("background", "");
    kubectl.prints(&["delete", "cm", "background", "--cascade=background"]);
    eventually("the dependant to be collected", || is_gone(&child));

    let child = family("orphan", "");
    kubectl.prints(&["delete", "cm", "orphan", "--cascade=orphan"]);
    assert!(is_gone("orphan"));
    let owners = kubectl.prints(&[
        "get",
        "cm",
        &child,
        "-o",
        "jsonpath={.metadata.ownerReferences}",
    ]);
    assert_eq!(owners, "");

    let child = family("foreground", "example.com/hold");
    kubectl.prints(&[
        "delete",
        "cm",
        "foreground",
        "--cascade=foreground",
        "--wait=false",
    ]);
    // The owner stays for as long as its dependant does.
    eventually("the dependant to be marked", || {
        let marked = kubectl.prints(&[
            "get",
            "cm",
            &child,
            "-o",
            "jsonpath={.metadata.deletionTimestamp}",
        ]);
        !marked.is_empty()
    });
    kubectl.shows(
        &["get", "cm", "foreground", "-o", "yaml"],
        &["foregroundDeletion"],
    );
    kubectl.prints(&[
        "patch",
        "cm",
        &child,
        "--type=merge",
        "-p",
        r#"{"metadata":{"finalizers":null}}"#,
    ]);
    eventually("both to be gone", || {
        is_gone(&child) && is_gone("foreground")
    });

    // By label, all at once, and with everything in a namespace.
    kubectl.prints(&["delete", "cm", "--all"]);
    let left = kubectl.prints(&["get", "cm", "-o", "name"]);
    assert_eq!(left, "");
    kubectl.prints(&["create", "namespace", "doomed"]);
    kubectl.prints(&[
        "create",
        "configmap",
        "inside",
        "-n",
        "doomed",
        "--from-literal=a=b",
    ]);
    kubectl.prints(&["delete", "namespace", "doomed", "--timeout=60s"]);
    kubectl.refuses(&["get", "cm", "inside", "-n", "doomed"], &["NotFound"]);
}

#[test]
fn watch_follows_changes() {
    let (_cluster, kubectl) = cluster_with(&[]);
    kubectl.feeds(&["create", "-f", "-"], &config_map("first", "", ""));
    let watch = kubectl.follow(&["get", "cm", "-w", "--output-watch-events", "--no-headers"]);
    let next = |expected: [&str; 2]| {
        let line = watch.next_line();
        let words: Vec<&str> = line.split_whitespace().take(2).collect();
        assert_eq!(words, expected);
    };
    next(["ADDED", "first"]);
    kubectl.feeds(&["create", "-f", "-"], &config_map("second", "", ""));
    next(["ADDED", "second"]);
    kubectl.prints(&["label", "cm", "first", "a=b"]);
    next(["MODIFIED", "first"]);
    kubectl.prints(&["delete", "cm", "second"]);
    next(["DELETED", "second"]);

    let only = kubectl.follow(&["get", "cm", "--watch-only", "-o", "name", "-v=6"]);
    only.read_until("watch=true");
    kubectl.feeds(&["create", "-f", "-"], &config_map("third", "", ""));
    only.read_until("configmap/third");
}
