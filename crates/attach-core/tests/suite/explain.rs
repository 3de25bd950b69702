//! `explain` on whole documents: the field's own examples, and input that is not as it should be.

use std::fmt::Write as _;

use attach_core::explain::{Input, Outcome, run};
use expect_test::{Expect, expect};

use crate::scene::noon;

fn explain(name: &str, text: &str) -> Outcome {
    run(&[Input { name, text }], noon())
}

/// The outcome in a few lines.
fn summary(outcome: &Outcome) -> String {
    let mut text = String::new();
    for volume in outcome.report().volumes {
        let to = if volume.migration_node_id.is_empty() {
            ""
        } else {
            " > "
        };
        let codes: Vec<_> = volume.reasons.iter().map(|reason| reason.code).collect();
        let reasons = codes.join(" ");
        writeln!(
            text,
            "{} [{}{to}{}] {reasons}",
            volume.action, volume.node_id, volume.migration_node_id
        )
        .unwrap();
        for (id, ticket) in volume.tickets {
            let id: String = id.chars().take(24).collect();
            let satisfied = if ticket.satisfied {
                "satisfied"
            } else {
                "not satisfied"
            };
            let told = [ticket.reason.as_str(), ticket.message.as_str()].join(" ");
            writeln!(
                text,
                "  {id} {} {satisfied} {}",
                ticket.verdict,
                told.trim()
            )
            .unwrap();
        }
    }
    for problem in &outcome.problems {
        writeln!(text, "! {problem}").unwrap();
    }
    assert_eq!(
        outcome.exit_code(),
        if outcome.problems.is_empty() { 0 } else { 2 }
    );
    text
}

#[track_caller]
fn check(text: &str, expected: Expect) {
    expected.assert_eq(&summary(&explain("dump.yaml", text)));
}

#[test]
fn a_pod_holds_its_volume() {
    check(
        include_str!("fixtures/pod.yaml"),
        expect![[r#"
        keep [harvester-node-1] HeldBy
          csi-3d3120f43480db87c91a holding satisfied 
    "#]],
    );
}

#[test]
fn a_snapshot_of_a_detached_volume_attaches_it_for_a_while() {
    check(
        include_str!("fixtures/snapshot-requested.yaml"),
        expect![[r#"
            attach [harvester-node-1] Selected
              snapshot-controller-snap selected not satisfied Attaching the volume is being attached to node harvester-node-1
        "#]],
    );
    check(
        include_str!("fixtures/snapshot-attaching.yaml"),
        expect![[r#"
            wait [harvester-node-1] Attaching
              snapshot-controller-snap selected not satisfied Attaching the volume is being attached to node harvester-node-1
        "#]],
    );
    check(
        include_str!("fixtures/snapshot-done.yaml"),
        expect![[r#"
        detach [] NoMatchingTicket
    "#]],
    );
}

#[test]
fn a_virtual_machine_migrates() {
    check(
        include_str!("fixtures/migration-requested.yaml"),
        expect![[r#"
            migrate [harvester-node-2 > harvester-node-0] Migrating
              csi-5852f2d48d96311bb582 holding satisfied 
              csi-f080d69495b619fad936 selected not satisfied MigrationPreparing the engine on migration target harvester-node-0 is not ready yet
        "#]],
    );
    check(
        include_str!("fixtures/migration-ready.yaml"),
        expect![[r#"
        migrate [harvester-node-2 > harvester-node-0] MigrationReady
          csi-5852f2d48d96311bb582 holding satisfied 
          csi-f080d69495b619fad936 coexisting satisfied The migrating attachment ticket is satisfied
    "#]],
    );
    check(
        include_str!("fixtures/migration-source-released.yaml"),
        expect![[r#"
            confirm-migration [harvester-node-0] MigrationConfirmed
              csi-5852f2d48d96311bb582 stale not satisfied StatusWithoutTicket ticket "csi-5852f2d48d96311bb582eeeaad0e38361031d502899416c71cea10795748a84b" is gone, and so goes its status
              csi-f080d69495b619fad936 holding satisfied The migrating attachment ticket is satisfied
        "#]],
    );
    check(
        include_str!("fixtures/migration-done.yaml"),
        expect![[r#"
        keep [harvester-node-0] HeldBy
          csi-f080d69495b619fad936 holding satisfied 
    "#]],
    );
}

#[test]
fn a_list_as_kubectl_prints_it() {
    check(
        include_str!("fixtures/kubectl-list.yaml"),
        expect![[r#"
        keep [rancher60-master] HeldBy
          csi-f0471a334f0b249f964c holding satisfied 
    "#]],
    );
}

#[test]
fn the_case_studies_of_stuck_volumes() {
    check(
        include_str!("fixtures/unexpected-ui-ticket.yaml"),
        expect![[r#"
            keep [worker-1] HeldBy
              csi-pod waiting not satisfied AttachedToOtherNode the volume is attached to node worker-1, held there by longhorn-api ticket "longhorn-ui"
              longhorn-ui holding satisfied 
        "#]],
    );
    check(
        include_str!("fixtures/stuck-backup.yaml"),
        expect![[r#"
        detach [] InterruptedByWorkload
          backup-controller-backup interrupted not satisfied InterruptedByWorkload csi-attacher ticket "csi-pod" wants the volume on node worker-2, and only interruptible tickets hold it on node worker-1
          csi-pod interrupting not satisfied Detaching the volume is being detached from node worker-1
    "#]],
    );
}

#[test]
fn json_has_the_shape_that_scripts_expect() {
    let outcome = explain(
        "dump.yaml",
        include_str!("fixtures/unexpected-ui-ticket.yaml"),
    );
    let json = serde_json::to_string_pretty(&outcome.report()).unwrap();
    expect![[r#"
        {
          "volumes": [
            {
              "name": "data",
              "nodeID": "worker-1",
              "migrationNodeID": "",
              "disableFrontend": false,
              "action": "keep",
              "reasons": [
                {
                  "code": "HeldBy",
                  "message": "longhorn-api ticket \"longhorn-ui\" holds the volume on node worker-1"
                }
              ],
              "tickets": {
                "csi-pod": {
                  "type": "csi-attacher",
                  "nodeID": "worker-2",
                  "priority": 900,
                  "inSpec": true,
                  "satisfied": false,
                  "generation": 0,
                  "reason": "AttachedToOtherNode",
                  "message": "the volume is attached to node worker-1, held there by longhorn-api ticket \"longhorn-ui\"",
                  "verdict": "waiting"
                },
                "longhorn-ui": {
                  "type": "longhorn-api",
                  "nodeID": "worker-1",
                  "priority": 1000,
                  "inSpec": true,
                  "satisfied": true,
                  "generation": 0,
                  "reason": "",
                  "message": "",
                  "verdict": "holding"
                }
              }
            }
          ]
        }
    "#]].assert_eq(&(json + "\n"));
    let yaml = serde_saphyr::to_string(&outcome.report()).unwrap();
    let back: serde_json::Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(back, serde_json::to_value(outcome.report()).unwrap());
}

#[test]
fn text_tells_holder_waiting_next_and_what_to_do() {
    let text = |fixture| explain("dump.yaml", fixture).text();
    expect![[r#"
        Volume data: attached to node worker-1
          Held by     longhorn-api ticket "longhorn-ui" for node worker-1: satisfied
          Waiting     csi-attacher ticket "csi-pod" for node worker-2: the volume is attached to node worker-1, held there by longhorn-api ticket "longhorn-ui"
          Next        nothing changes
          Because     longhorn-api ticket "longhorn-ui" holds the volume on node worker-1
          To do       somebody attached the volume to node worker-1 by hand; when that is done, remove ticket "longhorn-ui"
    "#]].assert_eq(&text(include_str!("fixtures/unexpected-ui-ticket.yaml")));
    expect![[r#"
        Volume pvc-0dc9e1f0-4932-4567-aa1e-e70b570058da: attached to node harvester-node-2, and to node harvester-node-0 by migration
          Held by     csi-attacher ticket "csi-5852f2d48d96311bb582eeeaad0e38361031d502899416c71cea10795748a84b" for node harvester-node-2: satisfied
          Also here   csi-attacher ticket "csi-f080d69495b619fad93621ff3d57201793952e422304cceac8807e975ccf795d" for node harvester-node-0: satisfied
          Next        the volume migrates from node harvester-node-2 to node harvester-node-0
          Because     both engines are ready, and both tickets are there: the workload now removes one of them
    "#]].assert_eq(&text(include_str!("fixtures/migration-ready.yaml")));
    expect![[r#"
        There is no Volume in the input that could be explained.
    "#]]
    .assert_eq(&text(""));
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_is_explained() {
    let good = include_str!("fixtures/pod.yaml");
    for (broken, expected) in [
        (
            "kind: [",
            expect![
                "dump.yaml, document 3: not valid YAML: error: line 2 column 7: unclosed bracket '['"
            ],
        ),
        (
            "just text",
            expect!["dump.yaml, document 3: kind: not a Kubernetes object: it has no kind"],
        ),
        (
            "apiVersion: longhorn.io/v1beta2\nkind: Volume\nmetadata: {name: v}\nspec: {nodeID: 7}",
            expect![
                "dump.yaml, document 3 (Volume v): spec.nodeID: invalid type: integer `7`, expected a string"
            ],
        ),
        (
            "apiVersion: longhorn.io/v1beta2\nkind: Volume\nmetadata: {name: v}\nspec: {}\nstatus: {state: floating}",
            expect![[
                r#"dump.yaml, document 3 (Volume v): status.state: "floating" is not one of creating, attached, detached, attaching, detaching, deleting"#
            ]],
        ),
        (
            "apiVersion: longhorn.io/v1beta2\nkind: Volume\nmetadata: {name: v, annotations: {lariat.io/migration: '{'}}\nspec: {}",
            expect![
                "dump.yaml, document 3 (Volume v): metadata.annotations[lariat.io/migration]: EOF while parsing an object at line 1 column 1"
            ],
        ),
        (
            "apiVersion: longhorn.io/v1beta2\nkind: VolumeAttachment\nmetadata: {name: gone}\nspec: {volume: gone}",
            expect![[
                r#"dump.yaml, document 3 (VolumeAttachment gone): spec.volume: volume "gone" is not in the input, so its tickets cannot be explained; add the output of `kubectl -n longhorn-system get volumes.longhorn.io gone -o yaml`"#
            ]],
        ),
        (
            "apiVersion: longhorn.io/v1beta2\nkind: VolumeAttachment\nmetadata: {name: v}\nspec: {}",
            expect![
                "dump.yaml, document 3 (VolumeAttachment v): spec.volume: the VolumeAttachment does not say which volume it is about"
            ],
        ),
        (
            good,
            expect![[r#"
            dump.yaml, document 3 (VolumeAttachment pvc-0b9c8d59-0ae8-413c-8bc5-af32b932b8ab): metadata.name: the same object was in the input before; the first one is used
            dump.yaml, document 4 (Volume pvc-0b9c8d59-0ae8-413c-8bc5-af32b932b8ab): metadata.name: the same object was in the input before; the first one is used"#]],
        ),
    ] {
        let outcome = explain("dump.yaml", &format!("{good}---\n{broken}\n"));
        let told: Vec<_> = outcome.problems.iter().map(ToString::to_string).collect();
        expected.assert_eq(&told.join("\n"));
        assert_eq!(outcome.exit_code(), 2);
        assert_eq!(
            outcome.volumes[0].view.volume.name.as_str(),
            "pvc-0b9c8d59-0ae8-413c-8bc5-af32b932b8ab"
        );
    }
}

/// A VolumeAttachment with one ticket under the key `a`, and its attached volume.
fn with_ticket(ticket: &str) -> String {
    format!(
        "apiVersion: longhorn.io/v1beta2\nkind: VolumeAttachment\nmetadata: {{name: v}}\nspec: {{volume: v, \
         attachmentTickets: {{a: {ticket}}}}}\n---\napiVersion: longhorn.io/v1beta2\nkind: Volume\nmetadata: {{name: v}}\n\
         spec: {{nodeID: n1}}\nstatus: {{state: attached, currentNodeID: n1}}\n"
    )
}

#[test]
fn a_ticket_that_is_not_as_it_should_be() {
    check(
        &with_ticket("{id: b, type: csi-attacher, nodeID: n1}"),
        expect![[r#"
            keep [n1] HeldBy
              a ignored not satisfied InvalidTicket the ticket cannot be served: its id is "b", but it is filed under another key
            ! dump.yaml, document 1 (VolumeAttachment v): spec.attachmentTickets[a].id: the ticket cannot be served: its id is "b", but it is filed under another key
        "#]],
    );
    check(
        &with_ticket("{id: a, type: csi-attacher}"),
        expect![[r#"
        detach [] NoMatchingTicket
          a ignored not satisfied InvalidTicket the ticket cannot be served: it names no node
        ! dump.yaml, document 1 (VolumeAttachment v): spec.attachmentTickets[a].nodeID: the ticket cannot be served: it names no node
    "#]],
    );
    check(
        &with_ticket(
            "{id: a, type: csi-attacher, nodeID: n1, parameters: {disableFrontend: maybe}}",
        ),
        expect![[r#"
            keep [n1] HeldBy
              a ignored not satisfied InvalidTicket the ticket cannot be served: parameter disableFrontend is "maybe", expected true, false or any
            ! dump.yaml, document 1 (VolumeAttachment v): spec.attachmentTickets[a].parameters.disableFrontend: the ticket cannot be served: parameter disableFrontend is "maybe", expected true, false or any
        "#]],
    );
    check(
        &with_ticket(
            "{id: a, type: csi-attacher, nodeID: n1, parameters: {disableFrontend: false}}",
        ),
        expect![[r#"
            keep [n1] HeldBy
              a ignored not satisfied InvalidTicket the ticket cannot be served: its parameters.disableFrontend cannot be read: invalid type: boolean `false`, expected a string
            ! dump.yaml, document 1 (VolumeAttachment v): spec.attachmentTickets[a].parameters.disableFrontend: the ticket cannot be served: its parameters.disableFrontend cannot be read: invalid type: boolean `false`, expected a string
        "#]],
    );
    check(
        &with_ticket(
            "{id: a, type: csi-attacher, nodeID: n1, parameters: {lariat.io/deadline: tomorrow}}",
        ),
        expect![[r#"
            keep [n1] HeldBy
              a ignored not satisfied InvalidTicket the ticket cannot be served: parameter lariat.io/deadline is "tomorrow", expected an RFC 3339 time such as 2026-01-31T12:00:00Z
            ! dump.yaml, document 1 (VolumeAttachment v): spec.attachmentTickets[a].parameters.lariat.io/deadline: the ticket cannot be served: parameter lariat.io/deadline is "tomorrow", expected an RFC 3339 time such as 2026-01-31T12:00:00Z
        "#]],
    );
    check(
        &with_ticket("{id: a, type: teleporter, nodeID: n1}"),
        expect![[r#"
            keep [n1] HeldBy
              a unknown satisfied 
        "#]],
    );
}

#[test]
fn what_would_have_to_be_guessed_is_not_explained() {
    let attachment = "apiVersion: longhorn.io/v1beta2\nkind: VolumeAttachment\nmetadata: {name: v}\nspec: {volume: v, attachmentTickets: [1]}";
    let volume = "apiVersion: longhorn.io/v1beta2\nkind: Volume\nmetadata: {name: v}\nspec: {nodeID: n1}\nstatus: {state: attached}";
    check(
        &format!("{attachment}\n---\n{volume}"),
        expect![[r#"
        ! dump.yaml, document 1 (VolumeAttachment v): spec.attachmentTickets: invalid type: sequence, expected a map
        ! dump.yaml, document 1 (VolumeAttachment v): without it volume "v" cannot be explained
    "#]],
    );
    let attachment = attachment.replace("[1]", "{}");
    let volume = volume.replace("attached", "[]");
    check(
        &format!("{attachment}\n---\n{volume}"),
        expect![[r#"
        ! dump.yaml, document 2 (Volume v): status.state: invalid type: sequence, expected a string
    "#]],
    );
}

#[test]
fn a_volume_without_attachment_is_decided_as_unwanted_and_says_so() {
    check(
        "apiVersion: longhorn.io/v1beta2\nkind: Volume\nmetadata: {name: v}\nspec: {}\nstatus: {state: detached}",
        expect![[r#"
            keep [] NoTickets NoVolumeAttachment
        "#]],
    );
}

#[test]
fn json_streams_typed_lists_and_several_files() {
    let volume = |name: &str| {
        format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{}},"status":{{"state":"detached"}}}}"#)
    };
    let list = format!(
        r#"{{"apiVersion":"longhorn.io/v1beta2","kind":"VolumeList","items":[{},{}]}}"#,
        volume("v1"),
        volume("v2")
    );
    let attachment = r#"{"apiVersion":"longhorn.io/v1beta2","kind":"VolumeAttachment","metadata":{"name":"v2"},"spec":{"volume":"v2","attachmentTickets":{"t":{"id":"t","type":"csi-attacher","nodeID":"n1"}}}}"#;
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nspec: {unschedulable: true}";
    let setting = "apiVersion: longhorn.io/v1beta2\nkind: Setting\nmetadata: {name: detach-manually-attached-volumes-when-cordoned}\nvalue: 'true'";
    let outcome = run(
        &[
            Input {
                name: "volumes.json",
                text: &list,
            },
            Input {
                name: "rest.json",
                text: &format!("{attachment}\n{attachment} {{"),
            },
            Input {
                name: "nodes.yaml",
                text: node,
            },
            Input {
                name: "settings.yaml",
                text: setting,
            },
        ],
        noon(),
    );
    expect![[r#"
        keep [] NoTickets NoVolumeAttachment
        attach [n1] Selected
          t selected not satisfied Attaching the volume is being attached to node n1
        ! rest.json, document 3: not valid JSON, and nothing after it was read: EOF while parsing an object at line 2 column 185
        ! rest.json, document 2 (VolumeAttachment v2): metadata.name: the same object was in the input before; the first one is used
    "#]].assert_eq(&summary(&outcome));
    assert!(outcome.volumes[1].view.nodes.is_cordoned(&"n1".into()));
    assert!(outcome.volumes[1].view.settings.detach_manual_when_cordoned);
}
