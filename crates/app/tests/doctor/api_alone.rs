//! Where nobody repairs anything by himself: an API without a manager.

use std::process::Command;

use crate::clinic::{codes, fix, run};
use crate::support::kubectl::Kubectl;
use crate::support::{Cluster, lariat};

/// A backup that waits for a snapshot that is gone holds a ticket (longhorn #10090); a ticket that is filed under another
/// name than its own; a secret that must not leave the cluster.
const OBJECTS: &str = r#"
apiVersion: longhorn.io/v1beta2
kind: Node
metadata: {name: node-1, namespace: longhorn-system}
spec: {name: node-1}
---
apiVersion: longhorn.io/v1beta2
kind: Volume
metadata:
  name: pvc-1
  namespace: longhorn-system
  annotations: {example.com/db-password: hunter2}
spec: {size: "1073741824", numberOfReplicas: 1, accessMode: rwo}
---
apiVersion: longhorn.io/v1beta2
kind: VolumeAttachment
metadata: {name: pvc-1, namespace: longhorn-system}
spec:
  volume: pvc-1
  attachmentTickets:
    backup-controller-b:
      {id: backup-controller-b, type: backup-controller, nodeID: node-1, generation: 0, parameters: {disableFrontend: any}}
    mine:
      {id: other, type: longhorn-api, nodeID: node-1, generation: 0, parameters: {disableFrontend: any, lariat.io/deadline: "2099-01-01T00:00:00Z"}}
---
apiVersion: longhorn.io/v1beta2
kind: Backup
metadata: {name: b, namespace: longhorn-system}
spec: {snapshotName: gone}
---
apiVersion: v1
kind: Secret
metadata: {name: s, namespace: longhorn-system}
stringData: {key: topsecret}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: c, image: none, env: [{name: DB, value: swordfish}]}]
"#;

#[test]
fn repairs_are_written_and_bundles_are_read_without_a_cluster() {
    let cluster = Cluster::start();
    let kubeconfig = cluster.kubeconfig();
    let kubectl = Kubectl::new(&kubeconfig);
    let file = cluster.folder().join("objects.yaml");
    std::fs::write(&file, OBJECTS).expect("a file");
    kubectl.prints(&["apply", "-f", &file.to_string_lossy()]);
    let found = codes(&kubeconfig);
    for code in ["LAR-103", "LAR-108", "LAR-132", "LAR-133"] {
        assert!(
            found.iter().any(|one| one == code),
            "{code} is not in {found:?}"
        );
    }

    let bundle = cluster.folder().join("bundle.tar.gz");
    let bundle = bundle.to_string_lossy();
    let folder = cluster.folder().to_string_lossy().into_owned();
    let made = run(
        &kubeconfig,
        &["support-bundle", "--data-dir", &folder, "--output", &bundle],
    );
    assert_eq!(made.code, 0, "{}", made.errors);
    no_secrets_in(&bundle);
    // Offline: no API is asked.
    let nowhere = cluster.folder().join("no-kubeconfig");
    let answer = run(&nowhere, &["doctor", "--bundle", &bundle, "-o", "json"]);
    assert!(
        answer.text.contains("LAR-103"),
        "{}{}",
        answer.text,
        answer.errors
    );
    let answer = run(&nowhere, &["why", "pvc-1", "--bundle", &bundle]);
    assert_eq!(answer.code, 4, "{}{}", answer.text, answer.errors);
    assert!(
        answer.text.contains("no manager is at work"),
        "{}",
        answer.text
    );
    let answer = run(&nowhere, &["explain", "--bundle", &bundle]);
    assert!(
        answer.text.contains("Volume pvc-1"),
        "{}{}",
        answer.text,
        answer.errors
    );

    let answer = run(&kubeconfig, &["why", "pvc-1"]);
    for code in ["LAR-103", "LAR-108", "LAR-133"] {
        assert!(answer.text.contains(code), "{}", answer.text);
    }

    // The backup goes, not its ticket: where no manager takes the ticket away, a second repair does.
    fix(&kubeconfig, "", "LAR-108");
    let asked = ["-n", "longhorn-system", "get", "backups.longhorn.io", "b"];
    kubectl.refuses(&asked, &["not found"]);
    fix(&kubeconfig, "pvc-1", "LAR-103");
    assert!(!codes(&kubeconfig).iter().any(|code| code == "LAR-103"));
}

fn no_secrets_in(bundle: &str) {
    let unpacked = Command::new("tar")
        .args(["-xzOf", bundle])
        .output()
        .expect("tar runs");
    let text = String::from_utf8_lossy(&unpacked.stdout);
    assert!(
        text.contains("pvc-1") && text.contains("takenAt"),
        "it has the objects"
    );
    for secret in ["topsecret", "swordfish", "hunter2", "dG9wc2VjcmV0"] {
        assert!(!text.contains(secret), "{secret} is in the bundle");
    }
}

#[test]
fn an_api_that_does_not_answer_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = folder.path().join("config");
    let text = r#"{"apiVersion":"v1","kind":"Config","current-context":"x","contexts":[{"name":"x","context":{"cluster":"x","user":"x"}}],
        "clusters":[{"name":"x","cluster":{"server":"https://127.0.0.1:1"}}],"users":[{"name":"x","user":{"token":"t"}}]}"#;
    std::fs::write(&kubeconfig, text).expect("a kubeconfig");
    for command in [&["doctor"][..], &["why", "v"], &["support-bundle"]] {
        let answer = run(&kubeconfig, command);
        assert_eq!(answer.code, 1, "{}", answer.errors);
        for part in [
            "https://127.0.0.1:1",
            &*kubeconfig.to_string_lossy(),
            "--kubeconfig",
        ] {
            assert!(
                answer.errors.contains(part),
                "{part} is not in {}",
                answer.errors
            );
        }
    }
}

#[test]
fn every_code_can_be_explained() {
    let explain = |arguments: &[&str]| {
        Command::new(lariat())
            .args(arguments)
            .output()
            .expect("lariat runs")
    };
    let all = explain(&["doctor", "explain"]);
    let all = String::from_utf8_lossy(&all.stdout);
    for line in all.lines() {
        let code = line.split_whitespace().next().expect("a code");
        let page = explain(&["doctor", "explain", code]);
        let page = String::from_utf8_lossy(&page.stdout);
        assert!(page.starts_with(&format!("# {code}: ")), "{page}");
    }
    assert!(all.lines().count() >= 20, "{all}");
    let unknown = explain(&["doctor", "explain", "LAR-999"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("lariat doctor explain"));
}
