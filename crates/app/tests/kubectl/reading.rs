//! Looking: get, describe, events, discovery, explain, and the commands that guides tell people to run.

use crate::support::Cluster;
use crate::support::kubectl::Kubectl;
use crate::{ATTACHMENT, LONGHORN, WORKLOAD, cluster_with};

#[test]
fn get_in_every_output_form() {
    let (_cluster, kubectl) = cluster_with(&[WORKLOAD, LONGHORN]);
    let check = |arguments: &[&str], parts: &[&str]| {
        let arguments = [&["get"], arguments].concat();
        kubectl.shows(&arguments, parts);
    };
    check(
        &["pods"],
        &[
            "NAME", "READY", "STATUS", "RESTARTS", "AGE", "web", "0/1", "Pending",
        ],
    );
    check(&["pods", "-o", "wide"], &["NODE", "NOMINATED NODE", "n1"]);
    check(&["pod", "web", "-o", "json"], &["\"claimName\": \"data\""]);
    check(
        &["pod", "web", "-o", "yaml"],
        &["claimName: data", "kind: Pod"],
    );
    check(&["pods", "-o", "name"], &["pod/web"]);
    check(
        &["pod", "web", "-o", "jsonpath={.spec.containers[0].image}"],
        &["registry.example.com/web:1"],
    );
    check(
        &[
            "pods",
            "-o",
            "custom-columns=WHO:.metadata.name,WHERE:.spec.nodeName",
        ],
        &["WHO", "WHERE", "web", "n1"],
    );
    check(&["pods", "-o", "go-template={{len .items}}"], &["1"]);
    check(&["pods", "--show-labels"], &["LABELS", "app=web"]);
    check(&["pods", "-L", "app"], &["APP", "web"]);
    check(&["pods", "-l", "app=web", "-o", "name"], &["pod/web"]);
    check(&["pods", "-A"], &["NAMESPACE", "default"]);
    check(&["pods", "--no-headers"], &["web"]);
    check(&["pvc"], &["STATUS", "STORAGECLASS", "data", "longhorn"]);
    check(&["pv"], &["RECLAIM POLICY", "CLAIM", "pv-1", "Delete"]);
    check(&["sc"], &["PROVISIONER", "driver.longhorn.io"]);
    check(&["nodes"], &["STATUS", "ROLES", "n1"]);
    check(
        &["ns"],
        &["default", "kube-system", "longhorn-system", "Active"],
    );
    check(&["crd"], &["volumes.longhorn.io", "CREATED AT"]);
    check(
        &["lhv", "-n", "longhorn-system"],
        &["DATA ENGINE", "ROBUSTNESS", "vol-1", "1073741824"],
    );
    check(
        &["pods,pvc", "-o", "name"],
        &["pod/web", "persistentvolumeclaim/data"],
    );

    let sorted = kubectl.prints(&["get", "ns", "--sort-by=.metadata.name", "-o", "name"]);
    let names: Vec<&str> = sorted.lines().collect();
    assert!(names.len() >= 3 && names.is_sorted(), "{names:?}");
    let none = kubectl.prints(&["get", "pods", "-l", "app=other", "-o", "name"]);
    assert_eq!(none, "");
    kubectl.refuses(
        &["get", "pod", "nobody"],
        &["NotFound", "pods \"nobody\" not found"],
    );
    kubectl.refuses(
        &["get", "gadgets"],
        &["the server doesn't have a resource type"],
    );
}

#[test]
fn describe_tells_all() {
    let (_cluster, kubectl) = cluster_with(&[WORKLOAD, LONGHORN]);
    // Events belong to the object of this uid, not to whatever has its name.
    let uid = kubectl.prints(&["get", "pod", "web", "-o", "jsonpath={.metadata.uid}"]);
    let event = EVENT.replace("kind: Pod,", &format!("kind: Pod, uid: {uid},"));
    kubectl.feeds(&["create", "-f", "-"], &event);
    let check = |arguments: &[&str], parts: &[&str]| {
        let arguments = [&["describe"], arguments].concat();
        kubectl.shows(&arguments, parts);
    };
    check(
        &["pod", "web"],
        &[
            "n1",
            "ClaimName:",
            "data",
            "FailedAttachVolume",
            "volume is elsewhere",
        ],
    );
    check(&["pvc", "data"], &["StorageClass:", "longhorn", "web"]);
    check(
        &["pv", "pv-1"],
        &["driver.longhorn.io", "VolumeHandle:", "vol-1"],
    );
    check(
        &["node", "n1"],
        &["Name:", "n1", "Non-terminated Pods:", "web"],
    );
    check(&["sc", "longhorn"], &["Provisioner:", "driver.longhorn.io"]);
    check(
        &["lhv", "vol-1", "-n", "longhorn-system"],
        &["API Version:", "longhorn.io/v1beta2", "Number Of Replicas:"],
    );
}

const EVENT: &str = "
apiVersion: v1
kind: Event
metadata: {name: web.1, namespace: default}
involvedObject: {apiVersion: v1, kind: Pod, name: web, namespace: default}
type: Warning
reason: FailedAttachVolume
message: volume is elsewhere
count: 3
firstTimestamp: 2026-01-01T00:00:00Z
lastTimestamp: 2026-01-01T00:01:00Z
source: {component: attachdetach-controller}
";

/// The commands with which the operators' guides look at attachments, as they are written there.
#[test]
fn events_are_listed() {
    let (_cluster, kubectl) = cluster_with(&[EVENT]);
    let parts = &[
        "Warning",
        "FailedAttachVolume",
        "pod/web",
        "volume is elsewhere",
    ];
    kubectl.shows(&["get", "events"], parts);
    kubectl.shows(&["get", "events.events.k8s.io"], parts);
    kubectl.shows(
        &["get", "ev", "--field-selector", "involvedObject.name=web"],
        parts,
    );
    let none = kubectl.prints(&[
        "get",
        "ev",
        "--field-selector",
        "reason=Other",
        "-o",
        "name",
    ]);
    assert_eq!(none, "");
    // `kubectl events` came with 1.26; before, `get events` above is all there is.
    if kubectl.is_at_least(26) {
        let parts = &[
            "Warning",
            "FailedAttachVolume",
            "Pod/web",
            "volume is elsewhere",
        ];
        kubectl.shows(&["events"], parts);
        kubectl.shows(&["events", "--for", "pod/web", "--types=Warning"], parts);
    }
}

#[test]
fn discovery_and_documentation() {
    let (_cluster, kubectl) = cluster_with(&[]);
    let check = |arguments: &[&str], parts: &[&str]| kubectl.shows(arguments, parts);
    check(
        &["api-resources"],
        &[
            "configmaps",
            "persistentvolumeclaims",
            "lhv",
            "volumeattachments",
            "csinodes",
            "leases",
            "crd,crds",
            "vsclass",
        ],
    );
    check(
        &["api-resources", "--api-group=longhorn.io", "-o", "name"],
        &["volumes.longhorn.io"],
    );
    check(&["api-resources", "-o", "wide"], &["deletecollection"]);
    check(
        &["api-versions"],
        &[
            "v1\n",
            "storage.k8s.io/v1",
            "coordination.k8s.io/v1",
            "longhorn.io/v1beta2",
            "snapshot.storage.k8s.io/v1",
        ],
    );
    check(
        &["explain", "pod.spec.containers"],
        &["KIND:", "Pod", "image", "<string>"],
    );
    check(
        &["explain", "pvc", "--recursive"],
        &["storageClassName", "resources"],
    );
    let parts = &[
        "KIND:",
        "Volume",
        "longhorn.io",
        "v1beta2",
        "spec",
        "status",
    ];
    check(
        &["explain", "volumes", "--api-version=longhorn.io/v1beta2"],
        parts,
    );
    // Before the client read /openapi/v3, it took what follows the first dot for a field, and had no
    // properties of objects that keep fields which their schema does not list.
    if kubectl.is_at_least(27) {
        check(&["explain", "volumes.longhorn.io"], parts);
        check(
            &["explain", "lhva.spec.attachmentTickets"],
            &["nodeID", "parameters"],
        );
    }
    check(&["get", "--raw", "/readyz"], &["ok"]);
    check(&["get", "--raw", "/version"], &["gitVersion"]);
    check(
        &["get", "--raw", "/api/v1/namespaces/default"],
        &["\"kind\":\"Namespace\""],
    );
    check(&["version"], &["Server Version"]);
}

#[test]
fn a_token_is_believed_and_a_wrong_one_is_not() {
    let cluster = Cluster::start();
    let nothing = cluster.folder().join("no-kubeconfig");
    std::fs::write(&nothing, "").expect("an empty file");
    let kubectl = Kubectl::new(&nothing);
    let server = format!("--server=https://{}", cluster.address());
    let authority = format!(
        "--certificate-authority={}",
        cluster.folder().join("ca.crt").display()
    );
    let token = format!("--token={}", cluster.token());
    kubectl.shows(
        &[&server, &authority, &token, "get", "ns"],
        &["longhorn-system"],
    );
    kubectl.refuses(
        &[&server, &authority, "--token=guessed", "get", "ns"],
        &["nauthorized"],
    );
}

#[test]
fn the_commands_of_operators_guides() {
    let (_cluster, kubectl) = cluster_with(&[WORKLOAD, LONGHORN, ATTACHMENT]);
    let check = |command: &str, parts: &[&str]| {
        let arguments: Vec<&str> = command.split_whitespace().collect();
        kubectl.shows(&arguments, parts);
    };
    check(
        "-n longhorn-system get volumeattachment.longhorn.io vol-1 -o yaml",
        &[
            "attachmentTickets:",
            "csi-1:",
            "nodeID: n1",
            "type: csi-attacher",
            "disableFrontend: \"false\"",
        ],
    );
    check(
        "get -n longhorn-system nodes.longhorn.io",
        &["READY", "ALLOWSCHEDULING", "n1"],
    );
    check(
        "get volumeattachment -o wide",
        &[
            "ATTACHER", "PV", "NODE", "ATTACHED", "csi-1", "pv-1", "false",
        ],
    );
    check("get volumeattachments", &["csi-1", "driver.longhorn.io"]);
    check(
        "describe volumeattachment csi-1",
        &[
            "Attacher:",
            "driver.longhorn.io",
            "Persistent Volume Name:",
            "pv-1",
        ],
    );
    check("get volumeattachment -o json", &["\"nodeName\": \"n1\""]);
    check(
        "get pv pv-1 -o jsonpath={.spec.csi.volumeHandle}",
        &["vol-1"],
    );
    check(
        "get pod -n default -l app=web -o jsonpath={.items[0].metadata.name}",
        &["web"],
    );
    check("describe pod web -n default", &["ClaimName:"]);
    kubectl.refuses(
        &[
            "get",
            "volumeattachment",
            "--field-selector",
            "spec.nodeName=n1",
        ],
        &[r#""spec.nodeName" is not a known field selector"#],
    );
    kubectl.refuses(
        &[
            "patch",
            "volumeattachment",
            "csi-1",
            "--type=merge",
            "-p",
            r#"{"spec":{"nodeName":"n2"}}"#,
        ],
        &["field is immutable"],
    );
    // The last resort for one that hangs: delete, and take its finalizer away.
    check("delete volumeattachment csi-1 --wait=false", &["deleted"]);
    check("get volumeattachment csi-1 -o yaml", &["deletionTimestamp"]);
    kubectl.prints(&[
        "patch",
        "volumeattachment",
        "csi-1",
        "--type=merge",
        "-p",
        r#"{"metadata":{"finalizers":null}}"#,
    ]);
    kubectl.refuses(&["get", "volumeattachment", "csi-1"], &["NotFound"]);
    check("delete node n1", &["node \"n1\" deleted"]);
}
