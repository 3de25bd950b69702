//! A live migration as the API saw it: what each object contained at each hop, from the second ticket until one is left.

use serde_json::Value;

use crate::migration::migratable;
use crate::support::eventually;
use crate::watched::{
    ENGINES, KUBERNETES, Recorder, Seen, TICKETS, VOLUMES, assert_in_order, first, statuses,
    ticket_nodes, tickets,
};
use crate::world::World;

#[test]
fn each_hop_of_a_migration_follows_from_the_one_before() {
    let world = World::new(3);
    let recorder = Recorder::start(&world, &[KUBERNETES, TICKETS, VOLUMES, ENGINES]);
    migratable(&world);
    world.pod("source", "disk", Some("node-1"));
    world.running("source");
    let volume = world.volume_of("disk");
    let is_attached_on = |one: &Seen, node: &str| {
        one.kind == KUBERNETES
            && one.object["spec"]["nodeName"] == node
            && one.object["status"]["attached"] == true
    };
    let until_attached_on = |node: &str| {
        eventually(&format!("the watches to see it on {node}"), || {
            let seen = recorder.seen();
            seen.iter().any(|one| is_attached_on(one, node))
        });
    };
    until_attached_on("node-1");
    world.pod("target", "disk", Some("node-2"));
    world.running("target");
    until_attached_on("node-2");
    world.delete("pod", "source");
    world.until_gone("pod", "source");
    eventually("the watches to see the last hop", || {
        let seen = recorder.seen();
        let last = |kind: &str| seen.iter().rev().find(|one| one.kind == kind);
        let is_settled = |one: &Seen| {
            let status = &one.object["status"];
            status["currentNodeID"] == "node-2" && status["state"] == "attached"
        };
        let is_alone = |one: &Seen| {
            let left = statuses(one);
            let is_plain = |status: &Value| status["conditions"][0]["message"] == "";
            left.len() == 1 && left[0]["satisfied"] == true && is_plain(left[0])
        };
        last(VOLUMES).is_some_and(is_settled)
            && last(TICKETS).is_some_and(is_alone)
            && seen.iter().any(|one| one.kind == KUBERNETES && one.gone)
    });
    let seen = recorder.seen();
    let filed = seen.iter().filter(|one| one.kind == TICKETS);
    for ticket in filed.flat_map(tickets) {
        assert_eq!(ticket["type"], "csi-attacher");
    }
    let prepared = both_tickets(&seen, &volume);
    one_ticket_left(&seen, &volume, prepared);
}

/// Up to two satisfied tickets. Returns where they are.
fn both_tickets(seen: &[Seen], volume: &str) -> usize {
    let of_volume = |one: &Seen| one.object["metadata"]["name"] == volume;
    let asked = first(seen, "a second attachment", KUBERNETES, |one| {
        one.object["spec"]["nodeName"] == "node-2"
    });
    let before = seen[..asked].iter().rfind(|one| one.kind == KUBERNETES);
    let before = before.expect("the source's attachment");
    assert_eq!(before.object["spec"]["nodeName"], "node-1");
    assert_eq!(before.object["status"]["attached"], true);
    let filed = first(seen, "both tickets", TICKETS, |one| {
        of_volume(one) && ticket_nodes(one) == ["node-1", "node-2"]
    });
    let planned = first(seen, "spec.migrationNodeID", VOLUMES, |one| {
        of_volume(one) && one.object["spec"]["migrationNodeID"] == "node-2"
    });
    assert_eq!(seen[planned].object["spec"]["nodeID"], "node-1");
    let standby = first(seen, "a standby", ENGINES, |one| {
        one.object["spec"]["nodeID"] == "node-2"
    });
    assert_eq!(seen[standby].object["spec"]["role"], "standby");
    assert_eq!(seen[standby].object["spec"]["epoch"], 2);
    let up = first(seen, "currentMigrationNodeID", VOLUMES, |one| {
        of_volume(one) && one.object["status"]["currentMigrationNodeID"] == "node-2"
    });
    let status = &seen[up].object["status"];
    assert_eq!(status["currentNodeID"], "node-1");
    assert_eq!(status["epoch"], 1, "it has not written");
    let satisfied = first(seen, "both tickets satisfied", TICKETS, |one| {
        let statuses = statuses(one);
        let all = statuses.iter().all(|status| status["satisfied"] == true);
        of_volume(one) && statuses.len() == 2 && all
    });
    let told = "The migrating attachment ticket is satisfied";
    let messages = statuses(&seen[satisfied]);
    let messages = messages
        .iter()
        .filter(|status| status["conditions"][0]["message"] == told);
    assert_eq!(messages.count(), 1, "of the target's ticket alone");
    assert_in_order(&[
        ("the second VolumeAttachment", asked),
        ("both tickets", filed),
        ("Volume.spec.migrationNodeID", planned),
        ("the standby", standby),
        ("Volume.status.currentMigrationNodeID", up),
        ("both tickets satisfied", satisfied),
    ]);
    satisfied
}

fn one_ticket_left(seen: &[Seen], volume: &str, prepared: usize) {
    let of_volume = |one: &Seen| one.object["metadata"]["name"] == volume;
    let is_later = |one: &Seen| one.revision > seen[prepared].revision;
    let withdrawn = first(seen, "one ticket", TICKETS, |one| {
        is_later(one) && of_volume(one) && ticket_nodes(one) == ["node-2"]
    });
    let confirmed = first(seen, "spec.nodeID", VOLUMES, |one| {
        is_later(one) && of_volume(one) && one.object["spec"]["nodeID"] == "node-2"
    });
    assert_eq!(seen[confirmed].object["spec"]["migrationNodeID"], "");
    let writes = first(seen, "the writer", ENGINES, |one| {
        let spec = &one.object["spec"];
        is_later(one) && spec["nodeID"] == "node-2" && spec["role"] != "standby"
    });
    assert_eq!(seen[writes].object["spec"]["epoch"], 2);
    let moved = first(seen, "currentNodeID", VOLUMES, |one| {
        is_later(one) && of_volume(one) && one.object["status"]["currentNodeID"] == "node-2"
    });
    assert_eq!(seen[moved].object["status"]["epoch"], 2);
    // The volume is "detaching" while the source's engine ends and "attaching" while the replicas take the new writer; the engine that
    // the target's users have runs through all of it.
    let ended = seen[prepared..].iter().find(|one| {
        let (spec, status) = (&one.object["spec"], &one.object["status"]);
        let runs = spec["desireState"] == "running" && status["currentState"] == "running";
        one.kind == ENGINES && spec["nodeID"] == "node-2" && !runs
    });
    assert!(ended.is_none(), "{:?}", ended.map(|one| &one.object));
    let alone = first(seen, "one status", TICKETS, |one| {
        is_later(one) && of_volume(one) && statuses(one).len() == 1
    });
    let last = seen.iter().rfind(|one| one.kind == TICKETS);
    let last = statuses(last.expect("the tickets"));
    assert_eq!(last[0]["satisfied"], true);
    assert_eq!(last[0]["conditions"][0]["message"], "");
    let gone = first(seen, "the end", KUBERNETES, |one| {
        one.gone && one.object["spec"]["nodeName"] == "node-1"
    });
    assert_in_order(&[
        ("the withdrawn ticket", withdrawn),
        ("Volume.spec.nodeID", confirmed),
        ("the writer", writes),
        ("the end of the source's VolumeAttachment", gone),
    ]);
    assert_in_order(&[("the withdrawn ticket", withdrawn), ("its status", alone)]);
    assert_in_order(&[("the confirmation", confirmed), ("its node", moved)]);
}
