//! Where nobody repairs anything by himself: an API without a manager.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::clinic::{codes, fix, run};
use crate::scripted::{self, Answered};
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
apiVersion: longhorn.io/v1beta2
kind: Volume
metadata: {name: pvc-2, namespace: longhorn-system}
spec: {size: "1073741824", numberOfReplicas: 1, accessMode: rwo}
---
apiVersion: longhorn.io/v1beta2
kind: VolumeAttachment
metadata: {name: pvc-2, namespace: longhorn-system}
spec:
  volume: pvc-2
  attachmentTickets:
    csi-a: {id: csi-a, type: csi-attacher, nodeID: node-1, generation: 0, parameters: {disableFrontend: "false"}}
    csi-b: {id: csi-b, type: csi-attacher, nodeID: node-1, generation: 0, parameters: {disableFrontend: "false"}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: lariat-history-pvc-1, namespace: longhorn-system, labels: {longhornvolume: pvc-1}}
data:
  history: |
    {"at":"2026-01-31T12:00:00Z","who":"alice@desk","changes":[{"what":"moved it by hand"}],"reasons":["token=sesame of the rack"]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: default}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
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

    // As the parts of a cluster and its engines write them.
    for (folder, name) in [("logs", "manager"), ("nodes/node-1/run", "pvc-1")] {
        let folder = cluster.folder().join(folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        let line = format!("INFO {name} looked at its volumes token=sesame s3://id:hunter2@host/x");
        std::fs::write(folder.join(format!("{name}.log")), line).expect("a log");
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
    yaml_says_what_json_says(&nowhere, &["doctor", "--bundle", &bundle]);
    yaml_says_what_json_says(&nowhere, &["why", "pvc-1", "--bundle", &bundle]);
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

    // A claim without a volume is no answer that all is well.
    let answer = run(&kubeconfig, &["doctor", "pvc/data"]);
    assert!(
        answer.text.contains("`lariat why pvc/default/data`"),
        "{}{}",
        answer.text,
        answer.errors
    );
    let answer = run(&kubeconfig, &["doctor", "pvc/data", "-o", "json"]);
    let report: Value = serde_json::from_str(&answer.text).expect("JSON");
    assert_eq!(report["withoutVolume"][0]["name"], "data");

    let names = completed(&kubeconfig, &["why", ""]);
    for name in ["pvc-1", "pvc/default/data", "pod/default/p"] {
        assert!(names.contains(name), "{names}");
    }

    two_tickets_of_one_volume(&kubeconfig, &kubectl);

    // The backup goes, not its ticket: where no manager takes the ticket away, a second repair does.
    fix(&kubeconfig, "", "LAR-108");
    let asked = ["-n", "longhorn-system", "get", "backups.longhorn.io", "b"];
    kubectl.refuses(&asked, &["not found"]);
    fix(&kubeconfig, "pvc-1", "LAR-103");
    assert!(!codes(&kubeconfig).iter().any(|code| code == "LAR-103"));
}

fn yaml_says_what_json_says(kubeconfig: &Path, command: &[&str]) {
    let asked = |format: &str| run(kubeconfig, &[command, &["-o", format]].concat());
    let (json, yaml) = (asked("json"), asked("yaml"));
    assert_eq!(yaml.code, json.code, "{}{}", yaml.text, yaml.errors);
    let as_json: Value = serde_json::from_str(&json.text).expect("JSON");
    let as_yaml: Value = serde_saphyr::from_str(&yaml.text).expect("YAML");
    assert_eq!(as_yaml, as_json, "{}", yaml.text);
    assert_ne!(yaml.text, json.text);
}

/// The second repair meets the version that the first has made. Both stand in the history that the manager will write.
fn two_tickets_of_one_volume(kubeconfig: &Path, kubectl: &Kubectl) {
    let answer = run(kubeconfig, &["doctor", "pvc-2", "--fix"]);
    for word in ["LAR-101: repaired", "LAR-101: gone"] {
        let lines = answer.text.lines().filter(|line| line.starts_with(word));
        assert_eq!(lines.count(), 2, "{}{}", answer.text, answer.errors);
    }
    let asked = [
        "-n",
        "longhorn-system",
        "get",
        "volumeattachments.longhorn.io",
        "pvc-2",
        "-o",
        "json",
    ];
    let object: Value = serde_json::from_str(&kubectl.prints(&asked)).expect("JSON");
    assert_eq!(object["spec"]["attachmentTickets"], json!({}));
    let notes = object["metadata"]["annotations"]["lariat.io/notes"].as_str();
    let notes: Value = serde_json::from_str(notes.expect("notes")).expect("JSON");
    for (place, ticket) in ["csi-a", "csi-b"].iter().enumerate() {
        let did = notes[place]["did"].as_str().expect("what was done");
        assert!(
            did.starts_with("repaired LAR-101: ") && did.contains(ticket),
            "{did}"
        );
        assert!(notes[place]["who"].as_str().expect("who").contains('@'));
    }
}

/// What the shell offers for the last word.
fn completed(kubeconfig: &Path, words: &[&str]) -> String {
    let output = Command::new(lariat())
        .args(["--", "lariat"])
        .args(words)
        .env("KUBECONFIG", kubeconfig)
        .env("COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", words.len().to_string())
        .env("_CLAP_COMPLETE_COMP_TYPE", "9")
        .env("_CLAP_COMPLETE_SPACE", "false")
        .env("_CLAP_IFS", "\n")
        .output()
        .expect("lariat runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
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
    assert!(text.contains("moved it by hand"), "it has the histories");
    for part in ["manager", "pvc-1"] {
        let line = format!("INFO {part} looked at its volumes token=REDACTED s3://REDACTED@host/x");
        assert!(text.contains(&line), "the log of {part} is not in it");
    }
    for secret in [
        "topsecret",
        "swordfish",
        "hunter2",
        "dG9wc2VjcmV0",
        "sesame",
    ] {
        assert!(!text.contains(secret), "{secret} is in the bundle");
    }
}

#[test]
fn an_api_that_does_not_answer_is_named() {
    // It accepts, and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = silent.local_addr().expect("an address");
    for (server, why) in [
        ("https://127.0.0.1:1".to_owned(), "refused"),
        (format!("http://{silent}"), "no answer within 5 s"),
    ] {
        is_named(&server, why);
    }
}

fn is_named(server: &str, why: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = scripted::kubeconfig_of(folder.path(), server);
    for command in [&["doctor"][..], &["why", "v"], &["support-bundle"]] {
        let answer = run(&kubeconfig, command);
        assert_eq!(answer.code, 6, "{}", answer.errors);
        for part in [server, why, &*kubeconfig.to_string_lossy(), "--kubeconfig"] {
            assert!(
                answer.errors.contains(part),
                "{part} is not in {}",
                answer.errors
            );
        }
    }
}

/// An API with a manager and nothing else, that refuses the list of pods.
fn without_pods(request: &str) -> Answered {
    let path = request.split('?').next().unwrap_or_default();
    match path {
        "/api/v1/pods" => scripted::refused(403, "pods is forbidden"),
        _ => scripted::empty_cluster(path),
    }
}

#[test]
fn what_cannot_be_read_is_not_called_well() {
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = scripted::kubeconfig_of(folder.path(), &scripted::serve(without_pods));
    let bundle = folder.path().join("bundle.tar.gz");
    let bundle = bundle.to_string_lossy();
    let data = folder.path().to_string_lossy();
    let made = ["support-bundle", "--data-dir", &data, "--output", &bundle];
    let made = run(&kubeconfig, &made);
    assert_eq!(made.code, 0, "{}", made.errors);
    assert!(made.errors.contains("pods is forbidden"), "{}", made.errors);
    for source in [&[][..], &["--bundle", &bundle]] {
        let said = |command: &[&str]| run(&kubeconfig, &[command, source].concat());
        let answer = said(&["doctor"]);
        assert_eq!(answer.code, 7, "{}{}", answer.text, answer.errors);
        assert!(
            answer.text.contains("pods: pods is forbidden")
                && !answer.text.contains("nothing is wrong"),
            "{}",
            answer.text
        );
        let answer = said(&["doctor", "-o", "json"]);
        assert_eq!(answer.code, 7, "{}", answer.errors);
        let report: Value = serde_json::from_str(&answer.text).expect("JSON");
        assert_eq!(report["unread"][0]["what"], "pods", "{report}");
        // A pod that could not be read is not one that does not exist.
        let answer = said(&["why", "pod/app"]);
        assert_eq!(answer.code, 7, "{}{}", answer.text, answer.errors);
        assert!(
            answer.errors.contains("pods is forbidden"),
            "{}",
            answer.errors
        );
    }
}

#[test]
fn a_name_that_does_not_exist_has_its_own_number() {
    let cluster = Cluster::start();
    for command in [&["why", "nothing"][..], &["doctor", "nothing"]] {
        // The cluster of this machine, by the folder that it lives in.
        let output = Command::new(lariat())
            .args(command)
            .env_remove("KUBECONFIG")
            .env("LARIAT_DATA_DIR", cluster.folder())
            .output()
            .expect("lariat runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{errors}");
        assert!(errors.contains("\"nothing\""), "{errors}");
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
    let offered = completed(Path::new("none"), &["doctor", "explain", "LAR-10"]);
    assert!(
        offered.contains("LAR-104") && !offered.contains("LAR-111"),
        "{offered}"
    );
    let unknown = explain(&["doctor", "explain", "LAR-999"]);
    assert_eq!(unknown.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("lariat doctor explain"));
}
