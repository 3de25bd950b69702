//! The attach flow as the API saw it: every version of every object, in the order in which they were written.
//!
//! What an object contained at the moment of each hop is seen, not only what is left in the end.

use serde_json::{Value, json};

use crate::watched::{
    ENGINES, KUBERNETES, PODS, Recorder, Seen, TICKETS, VOLUMES, assert_in_order, detached, first,
    is_of, last, statuses, tickets,
};
use crate::world::World;

const KINDS: [&str; 5] = [PODS, KUBERNETES, TICKETS, VOLUMES, ENGINES];

#[test]
fn each_hop_follows_from_the_one_before() {
    let world = World::new(3);
    let recorder = Recorder::start(&world, &KINDS);
    // A watch that has shown something will show everything.
    world.claim("first", "longhorn", "Filesystem");
    world.pod("first", "first", Some("node-2"));
    world.running("first");
    recorder.until("something of every kind", |seen| {
        let has = |kind: &&str| seen.iter().any(|one| one.kind == *kind);
        KINDS.iter().all(has)
    });

    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-1"));
    world.running("app");
    let volume = world.volume_of("data");
    let seen = recorder.until("the pod run", |seen| is_up(seen, &volume));
    attached(&seen, &volume);

    world.delete("pod", "app");
    world.until_gone("pod", "app");
    let seen = recorder.until("the volume come to rest", |seen| is_at_rest(seen, &volume));
    detached(&seen, &volume, "node-1");
}

fn is_app_running(one: &Seen) -> bool {
    one.object["metadata"]["name"] == "app" && one.object["status"]["phase"] == "Running"
}

fn is_up(seen: &[Seen], volume: &str) -> bool {
    let last_of = |kind: &str| last(seen, kind, |one| is_of(one, volume));
    let has = |kind: &str, field: &str, value: Value| {
        last_of(kind).is_some_and(|one| one.object["status"][field] == value)
    };
    let is_satisfied = |one: &Seen| statuses(one).iter().any(|it| it["satisfied"] == true);
    last(seen, PODS, is_app_running).is_some()
        && has(KUBERNETES, "attached", json!(true))
        && last_of(TICKETS).is_some_and(is_satisfied)
        && has(VOLUMES, "state", json!("attached"))
        && has(ENGINES, "currentState", json!("running"))
}

fn is_at_rest(seen: &[Seen], volume: &str) -> bool {
    let last_of = |kind: &str| last(seen, kind, |one| is_of(one, volume));
    let has = |kind: &str, field: &str, value: &str| {
        last_of(kind).is_some_and(|one| one.object["status"][field] == value)
    };
    let is_empty = |one: &Seen| tickets(one).next().is_none() && statuses(one).is_empty();
    last_of(KUBERNETES).is_some_and(|one| one.gone)
        && last_of(TICKETS).is_some_and(is_empty)
        && has(VOLUMES, "state", "detached")
        && has(ENGINES, "currentState", "stopped")
}

fn attached(seen: &[Seen], volume: &str) {
    let is_attachment = |one: &Seen| is_of(one, volume) && !one.gone;
    let asked = first(seen, "asked for", KUBERNETES, is_attachment);
    let attachment = &seen[asked].object;
    let id = attachment["metadata"]["name"].as_str().expect("a name");
    assert_eq!(attachment["spec"]["attacher"], "driver.longhorn.io");
    assert_eq!(attachment["spec"]["nodeName"], "node-1");
    assert_ne!(
        attachment["status"]["attached"], true,
        "nobody has done anything"
    );
    let finalized = first(seen, "finalizer and node id", KUBERNETES, |one| {
        let metadata = &one.object["metadata"];
        is_attachment(one)
            && metadata["finalizers"]
                .to_string()
                .contains("external-attacher/")
            && metadata["annotations"]["csi.alpha.kubernetes.io/node-id"] == "node-1"
    });
    assert_ne!(seen[finalized].object["status"]["attached"], true);
    let filed = first(seen, "the ticket", TICKETS, |one| {
        is_of(one, volume) && ticket(one, id)["nodeID"] == "node-1"
    });
    let waits = first(seen, "an answer to the ticket", TICKETS, |one| {
        is_of(one, volume) && answer(one, id).is_object()
    });
    let placed = first(seen, "spec.nodeID", VOLUMES, |one| {
        is_of(one, volume) && one.object["spec"]["nodeID"] == "node-1"
    });
    assert_ne!(seen[placed].object["status"]["state"], "attached");
    let of_engine = |one: &Seen| is_of(one, volume) && !one.gone;
    let wanted = first(seen, "an engine", ENGINES, of_engine);
    let engine = &seen[wanted].object;
    assert_eq!(engine["spec"]["nodeID"], "node-1");
    assert_eq!(engine["spec"]["epoch"], 1);
    assert_eq!(
        engine["spec"]["inSyncReplicas"].as_array().map(Vec::len),
        Some(3)
    );
    let opened = first(seen, "a device", ENGINES, |one| {
        of_engine(one)
            && one.object["status"]["currentState"] == "running"
            && one.object["status"]["endpoint"]
                .as_str()
                .is_some_and(|it| !it.is_empty())
    });
    let known = first(seen, "state attached", VOLUMES, |one| {
        is_of(one, volume) && one.object["status"]["state"] == "attached"
    });
    assert_eq!(seen[known].object["status"]["currentNodeID"], "node-1");
    let satisfied = first(seen, "the ticket satisfied", TICKETS, |one| {
        is_of(one, volume) && answer(one, id)["satisfied"] == true
    });
    let answered = first(seen, "attached", KUBERNETES, |one| {
        is_attachment(one) && one.object["status"]["attached"] == true
    });
    let runs = first(seen, "running", PODS, is_app_running);
    assert!(seen[runs].object["metadata"]["annotations"]["lariat.io/mounts"].is_string());
    assert_in_order(&[
        ("the VolumeAttachment", asked),
        ("its finalizer", finalized),
        ("the ticket", filed),
        ("the ticket that waits", waits),
        ("Volume.spec.nodeID", placed),
        ("the engine", wanted),
        ("its device", opened),
        ("the volume's state", known),
        ("the satisfied ticket", satisfied),
        ("status.attached", answered),
        ("the running pod", runs),
    ]);
    check_ticket(&seen[filed], id, &seen[placed].object);
    check_answers(&seen[waits], &seen[satisfied], id);
}

fn ticket<'a>(one: &'a Seen, id: &str) -> &'a Value {
    &one.object["spec"]["attachmentTickets"][id]
}

fn answer<'a>(one: &'a Seen, id: &str) -> &'a Value {
    &one.object["status"]["attachmentTicketStatuses"][id]
}

/// The object that the ticket is filed in is the volume's, and both are as the documents show them.
fn check_ticket(filed: &Seen, id: &str, volume: &Value) {
    let parameters = json!({"disableFrontend": "false", "lastAttachedBy": ""});
    let expected = json!({
        "id": id, "type": "csi-attacher", "nodeID": "node-1", "generation": 0,
        "parameters": parameters,
    });
    assert_eq!(*ticket(filed, id), expected);
    let (name, uid) = (&volume["metadata"]["name"], &volume["metadata"]["uid"]);
    let metadata = &filed.object["metadata"];
    assert_eq!(filed.object["spec"]["volume"], *name);
    assert_eq!(metadata["labels"]["longhornvolume"], *name);
    let owner = &metadata["ownerReferences"][0];
    assert_eq!(owner["apiVersion"], "longhorn.io/v1beta2");
    assert_eq!(owner["kind"], "Volume");
    assert_eq!(owner["name"], *name);
    assert!(uid.is_string(), "{volume}");
    assert_eq!(owner["uid"], *uid);
}

/// First that the ticket waits, and why; then that it is satisfied, with nothing left to say.
fn check_answers(waits: &Seen, satisfied: &Seen, id: &str) {
    let waiting = answer(waits, id);
    assert_eq!(waiting["satisfied"], false);
    assert_eq!(waiting["conditions"][0]["type"], "Satisfied");
    assert_eq!(waiting["conditions"][0]["status"], "False");
    assert_ne!(waiting["conditions"][0]["message"], "");
    let mut content = answer(satisfied, id).clone();
    let since = content["conditions"][0]["lastTransitionTime"].take();
    assert!(since.is_string(), "{since}");
    let condition = json!({
        "type": "Satisfied", "status": "True", "reason": "", "message": "",
        "lastProbeTime": "", "lastTransitionTime": null,
    });
    let expected = json!({"id": id, "generation": 0, "satisfied": true, "conditions": [condition]});
    assert_eq!(content, expected);
}
