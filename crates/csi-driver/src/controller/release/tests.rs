#![allow(
    clippy::needless_pass_by_value,
    reason = "rows of JSON read better without references"
)]

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

/// A view from a few words of JSON: the volume's spec and status, tickets, ticket statuses and engines.
fn view(volume: Value, tickets: Value, statuses: Value, engines: &[Value]) -> View {
    let mut volume = volume;
    volume["metadata"] = json!({"name": "v"});
    let attachment = json!({
        "metadata": {"name": "v", "resourceVersion": "10"},
        "spec": {"volume": "v", "attachmentTickets": tickets},
        "status": {"attachmentTicketStatuses": statuses},
    });
    let with_type = |mut object: Value, kind: &str| {
        object["apiVersion"] = json!("longhorn.io/v1beta2");
        object["kind"] = json!(kind);
        object
    };
    let engines = engines.iter().enumerate().map(|(number, engine)| {
        let mut engine = engine.clone();
        engine["metadata"] = json!({"name": format!("v-e-{number}")});
        let engine: Engine =
            serde_json::from_value(with_type(engine, "Engine")).expect("an engine");
        Arc::new(engine)
    });
    View {
        volume: Some(serde_json::from_value(with_type(volume, "Volume")).expect("a volume")),
        attachment: Some(
            serde_json::from_value(with_type(attachment, "VolumeAttachment"))
                .expect("an attachment"),
        ),
        engines: engines.collect(),
    }
}

fn csi(node: &str) -> Value {
    json!({"id": "t", "type": "csi-attacher", "nodeID": node, "generation": 1})
}

fn engine(node: &str, epoch: i64, owner: &str, state: &str, endpoint: &str) -> Value {
    json!({
        "spec": {"volumeName": "v", "nodeID": node, "epoch": epoch},
        "status": {"ownerID": owner, "currentState": state, "endpoint": endpoint},
    })
}

#[track_caller]
fn check_released(view: &View, node: Option<&str>, expected: Result<(), &str>) {
    match (released(view, node, &["t".to_owned()]), expected) {
        (Ok(()), Ok(())) => {}
        (Err(reason), Err(part)) => assert!(reason.contains(part), "{reason}"),
        (found, expected) => panic!("{found:?}, expected {expected:?}"),
    }
}

#[test]
fn a_node_lets_go_when_nothing_of_the_volume_is_left_there() {
    let none = json!({});
    let quiet =
        |volume: Value, engines: &[Value]| view(volume, none.clone(), none.clone(), engines);
    let on_n1 = Some("n1");
    check_released(&View::default(), on_n1, Ok(()));
    check_released(&quiet(json!({"spec": {}}), &[]), on_n1, Ok(()));
    let filed = view(
        json!({"spec": {}}),
        json!({"t": csi("n1")}),
        none.clone(),
        &[],
    );
    check_released(&filed, on_n1, Err("a ticket for node n1 is still there"));
    check_released(&filed, None, Err("a ticket for node n1 is still there"));
    check_released(&filed, Some("n2"), Ok(()));
    let answered = view(
        json!({"spec": {}}),
        none.clone(),
        json!({"t": {"id": "t"}}),
        &[],
    );
    check_released(
        &answered,
        on_n1,
        Err("has not seen yet that ticket t is gone"),
    );
    check_released(
        &quiet(json!({"spec": {"nodeID": "n1"}}), &[]),
        on_n1,
        Err("still meant to be"),
    );
    check_released(
        &quiet(json!({"spec": {"migrationNodeID": "n1"}}), &[]),
        on_n1,
        Err("still meant"),
    );
    check_released(
        &quiet(json!({"spec": {"nodeID": "n2"}}), &[]),
        on_n1,
        Ok(()),
    );
    let reported = json!({"spec": {}, "status": {"currentNodeID": "n1"}});
    check_released(
        &quiet(reported, &[]),
        on_n1,
        Err("still reported on node n1"),
    );
}

#[test]
fn an_engine_is_gone_when_it_says_so_or_is_fenced() {
    let check = |engine: Value, status: Value, expected: Result<(), &str>| {
        let volume = json!({"spec": {}, "status": status});
        let view = view(volume, json!({}), json!({}), &[engine]);
        check_released(&view, Some("n1"), expected);
        check_released(&view, None, expected);
        check_released(&view, Some("n2"), Ok(()));
    };
    let proof = |epoch: i64| json!({"fenceProof": {"epoch": epoch, "formerNodeID": "n1"}});
    check(
        engine("n1", 3, "n1", "running", "/dev/loop0"),
        json!({}),
        Err("still offers its device"),
    );
    check(
        engine("n1", 3, "n1", "running", ""),
        json!({}),
        Err("still runs"),
    );
    check(
        engine("n1", 3, "n1", "starting", ""),
        json!({}),
        Err("still runs"),
    );
    check(
        engine("n1", 3, "n1", "stopping", ""),
        json!({}),
        Err("is being stopped"),
    );
    check(
        engine("n1", 3, "n1", "stopped", "/dev/loop0"),
        json!({}),
        Err("still offers its device"),
    );
    check(
        engine("n1", 3, "n1", "unknown", ""),
        json!({}),
        Err("does not answer"),
    );
    check(engine("n1", 3, "n1", "stopped", ""), json!({}), Ok(()));
    check(engine("n1", 3, "n1", "error", ""), json!({}), Ok(()));
    // Nothing reported is not the same as nothing there.
    check(
        engine("n1", 3, "", "stopped", ""),
        json!({}),
        Err("has not reported anything"),
    );
    check(
        engine("n1", 3, "n1", "running", "/dev/loop0"),
        proof(3),
        Err("still offers"),
    );
    check(
        engine("n1", 3, "n1", "running", "/dev/loop0"),
        proof(4),
        Ok(()),
    );
    check(engine("n1", 3, "", "stopped", ""), proof(4), Ok(()));
}

#[test]
fn another_kind_of_ticket_holds_a_node_in_its_own_right() {
    let backup = json!({"b": {"id": "b", "type": "backup-controller", "nodeID": "n1"}});
    let volume = json!({"spec": {"nodeID": "n1"}, "status": {"currentNodeID": "n1"}});
    let engines = [engine("n1", 3, "n1", "running", "/dev/loop0")];
    let held = view(volume.clone(), backup.clone(), json!({}), &engines);
    check_released(&held, Some("n1"), Ok(()));
    check_released(&held, None, Ok(()));
    let elsewhere = json!({"b": {"id": "b", "type": "backup-controller", "nodeID": "n2"}});
    check_released(
        &view(volume, elsewhere, json!({}), &engines),
        Some("n1"),
        Err("still offers"),
    );
}

#[test]
fn a_second_node_is_admitted_only_for_a_migration_or_after_a_fence() {
    let check = |volume: Value, tickets: Value, engines: &[Value], expected: Result<(), &str>| {
        let found = admit(&view(volume, tickets, json!({}), engines), "n2");
        match (found, expected) {
            (Ok(()), Ok(())) => {}
            (Err(sentence), Err(part)) => assert!(sentence.contains(part), "{sentence}"),
            (found, expected) => panic!("{found:?}, expected {expected:?}"),
        }
    };
    let rwo = json!({"spec": {"accessMode": "rwo"}});
    let migratable = json!({"spec": {"accessMode": "rwx", "migratable": true}});
    let one = json!({"t": csi("n1")});
    check(rwo.clone(), json!({}), &[], Ok(()));
    check(rwo.clone(), json!({"t": csi("n2")}), &[], Ok(()));
    check(
        rwo.clone(),
        one.clone(),
        &[],
        Err("published to node n1, and it can be on one node only"),
    );
    check(
        json!({"spec": {"accessMode": "rwop"}}),
        one.clone(),
        &[],
        Err("one node only"),
    );
    check(migratable.clone(), one.clone(), &[], Ok(()));
    check(
        migratable,
        json!({"t": csi("n1"), "u": csi("n3")}),
        &[],
        Err("node n1 and node n3"),
    );
    let backup = json!({"b": {"id": "b", "type": "backup-controller", "nodeID": "n1"}});
    check(rwo.clone(), backup, &[], Ok(()));
    let fenced = json!({"spec": {"accessMode": "rwo"}, "status": {"fenceProof": {"epoch": 4, "formerNodeID": "n1"}}});
    let old = engine("n1", 3, "n1", "running", "/dev/loop0");
    let new = engine("n1", 4, "n1", "running", "/dev/loop0");
    check(
        fenced.clone(),
        one.clone(),
        std::slice::from_ref(&old),
        Ok(()),
    );
    check(
        fenced,
        one.clone(),
        &[old, new],
        Err("published to node n1"),
    );
    let another = json!({"spec": {"accessMode": "rwo"}, "status": {"fenceProof": {"epoch": 4, "formerNodeID": "n3"}}});
    check(another, one, &[], Err("published to node n1"));
}

#[test]
fn a_ticket_is_answered_for_its_generation_and_not_before_it_is_seen() {
    let ticket: AttachmentTicket = serde_json::from_value(csi("n1")).expect("a ticket");
    let check = |tickets: Value, statuses: Value, written: u64, expected: TicketState| {
        let view = view(json!({"spec": {}}), tickets, statuses, &[]);
        assert_eq!(ticket_state(&view, &ticket, written), expected);
    };
    let answer = |generation: i64, satisfied: bool| {
        json!({"t": {"id": "t", "generation": generation, "satisfied": satisfied, "conditions": [
            {"type": "Satisfied", "status": if satisfied { "True" } else { "False" }, "message": "why"},
        ]}})
    };
    let filed = json!({"t": csi("n1")});
    let waiting = |reason: &str| TicketState::Waiting(reason.to_owned());
    check(filed.clone(), answer(1, true), 10, TicketState::Satisfied);
    check(
        filed.clone(),
        answer(1, true),
        11,
        waiting("the ticket is not visible yet"),
    );
    check(filed.clone(), answer(1, false), 10, waiting("why"));
    check(
        filed.clone(),
        answer(0, true),
        10,
        waiting("no controller has looked at the ticket yet"),
    );
    check(
        filed,
        json!({}),
        10,
        waiting("no controller has looked at the ticket yet"),
    );
    check(json!({}), answer(1, true), 10, TicketState::Withdrawn);
    check(
        json!({"t": csi("n2")}),
        answer(1, true),
        10,
        TicketState::Withdrawn,
    );
    assert_eq!(
        ticket_state(&View::default(), &ticket, 1),
        TicketState::VolumeGone
    );
}

#[test]
fn a_volume_that_a_person_holds_elsewhere_is_not_waited_for() {
    let ticket: AttachmentTicket = serde_json::from_value(csi("n2")).expect("a ticket");
    let check = |volume: Value, other: Value, expected: Option<&str>| {
        let tickets = json!({"t": csi("n2"), "other": other});
        let answer = json!({"t": {"id": "t", "generation": 1, "satisfied": false}});
        let found = ticket_state(&view(volume, tickets, answer, &[]), &ticket, 10);
        match (&found, expected) {
            (TicketState::Held(sentence), Some(part)) => {
                assert!(sentence.contains(part), "{sentence}");
            }
            (TicketState::Waiting(_), None) => {}
            (found, expected) => panic!("{found:?}, expected {expected:?}"),
        }
    };
    let by = |kind: &str, node: &str, parameters: Value| json!({"id": "other", "type": kind, "nodeID": node, "parameters": parameters});
    let rwo = json!({"spec": {"accessMode": "rwo"}});
    let held = "by hand to node n1 by ticket other";
    check(rwo.clone(), by("longhorn-api", "n1", json!({})), Some(held));
    check(rwo.clone(), by("longhorn-api", "n2", json!({})), None);
    check(
        rwo.clone(),
        by("snapshot-controller", "n1", json!({})),
        None,
    );
    let until = json!({"lariat.io/deadline": "2099-01-01T00:00:00Z"});
    check(rwo.clone(), by("longhorn-api", "n1", until), None);
    // Never selected, so that it holds nothing.
    let odd = json!({"disableFrontend": "perhaps"});
    check(rwo, by("longhorn-api", "n1", odd), None);
    let fenced = json!({"spec": {"accessMode": "rwo"}, "status": {"fenceProof": {"epoch": 4, "formerNodeID": "n1"}}});
    check(fenced, by("longhorn-api", "n1", json!({})), None);
    let migratable = json!({"spec": {"accessMode": "rwx", "migratable": true}});
    check(migratable, by("longhorn-api", "n1", json!({})), None);
}

#[test]
fn an_engine_on_another_node_is_in_the_way_until_it_is_gone_or_fenced() {
    let check = |volume: Value, engines: &[Value], expected: Option<&str>| {
        let found = elsewhere(&view(volume, json!({}), json!({}), engines), "n2");
        match (&found, expected) {
            (Some(sentence), Some(part)) => assert!(sentence.contains(part), "{sentence}"),
            (None, None) => {}
            (found, expected) => panic!("{found:?}, expected {expected:?}"),
        }
    };
    let rwo = json!({"spec": {"accessMode": "rwo"}});
    let running = |node: &str, epoch: i64| engine(node, epoch, node, "running", "/dev/loop0");
    check(rwo.clone(), &[], None);
    check(rwo.clone(), &[running("n2", 3)], None);
    check(
        rwo.clone(),
        &[running("n1", 3)],
        Some("on node n1, where its engine still offers its device and is not fenced"),
    );
    check(
        rwo.clone(),
        &[engine("n1", 3, "n1", "stopping", "")],
        Some("on node n1, where its engine is being stopped"),
    );
    check(rwo, &[engine("n1", 3, "n1", "stopped", "")], None);
    let fenced = json!({"spec": {"accessMode": "rwo"}, "status": {"fenceProof": {"epoch": 4, "formerNodeID": "n1"}}});
    check(fenced, &[running("n1", 3)], None);
    let migratable = json!({"spec": {"accessMode": "rwx", "migratable": true}});
    check(
        migratable.clone(),
        &[running("n1", 3), running("n2", 4)],
        None,
    );
    check(
        migratable,
        &[running("n1", 3), running("n3", 4)],
        Some("node n3"),
    );
}
