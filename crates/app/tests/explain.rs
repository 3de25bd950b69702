//! `lariat explain` as a person runs it: a file in, an answer out, and an exit code to trust.

mod support;

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A manual ticket nobody remembers holds the volume that a pod waits for (longhorn #8339).
const DUMP: &str = r#"
apiVersion: v1
kind: List
items:
- apiVersion: longhorn.io/v1beta2
  kind: Volume
  metadata: {name: pvc-1, namespace: longhorn-system}
  spec: {nodeID: node-1, size: "1073741824", accessMode: rwo, disableFrontend: false}
  status: {state: attached, currentNodeID: node-1, robustness: healthy}
- apiVersion: longhorn.io/v1beta2
  kind: VolumeAttachment
  metadata: {name: pvc-1, namespace: longhorn-system}
  spec:
    volume: pvc-1
    attachmentTickets:
      longhorn-ui: {id: longhorn-ui, type: longhorn-api, nodeID: node-1, generation: 0, parameters: {disableFrontend: "false"}}
      csi-1: {id: csi-1, type: csi-attacher, nodeID: node-2, generation: 0, parameters: {disableFrontend: "false"}}
"#;

fn explain(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(support::lariat())
        .arg("explain")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("lariat starts");
    child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(input.as_bytes())
        .expect("lariat reads");
    child.wait_with_output().expect("lariat ends")
}

#[test]
fn a_dump_is_explained_as_json_and_as_yaml() {
    let output = explain(&["-f", "-", "-o", "json"], DUMP);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let volume = &report["volumes"][0];
    assert_eq!(volume["name"], "pvc-1");
    assert_eq!(volume["nodeID"], "node-1");
    assert_eq!(volume["tickets"]["longhorn-ui"]["verdict"], "holding");
    assert_eq!(volume["tickets"]["longhorn-ui"]["priority"], 1000);
    assert_eq!(volume["tickets"]["csi-1"]["verdict"], "waiting");
    assert_eq!(volume["tickets"]["csi-1"]["satisfied"], false);

    let output = explain(&["-f", "-", "-o", "yaml"], DUMP);
    let text = String::from_utf8(output.stdout).expect("text");
    let as_yaml: Value = serde_saphyr::from_str(&text).expect("YAML");
    assert_eq!(as_yaml, report, "{text}");
}

#[test]
fn a_dump_is_explained_to_a_person() {
    let output = explain(&["-f", "-"], DUMP);
    let text = String::from_utf8_lossy(&output.stdout);
    for word in ["pvc-1", "node-1", "longhorn-ui", "csi-1"] {
        assert!(text.contains(word), "{word} is not in:\n{text}");
    }
}

#[test]
fn what_cannot_be_used_is_named_and_the_rest_explained() {
    let broken = DUMP.replace("id: csi-1,", "id: csi-9,");
    let output = explain(&["-f", "-", "-o", "json"], &broken);
    assert_eq!(output.status.code(), Some(2));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        complaint.contains("csi-1") && complaint.contains("csi-9"),
        "{complaint}"
    );
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["volumes"][0]["name"], "pvc-1");
}

#[test]
fn a_missing_file_is_named() {
    let output = explain(&["-f", "no-such-file.yaml"], "");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no-such-file.yaml"));
}
