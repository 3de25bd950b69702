//! A pod that comes too early for its volume, as the API saw it: what each object contained at each hop, from the refusal until it runs.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::watched::{
    ENGINES, KUBERNETES, PODS, Recorder, Seen, TICKETS, VOLUMES, assert_in_order, detached, first,
    is_of, ticket_nodes,
};
use crate::world::World;

const EVENTS: &str = "events";
const NODES: &str = "nodes";
const KINDS: [&str; 7] = [PODS, EVENTS, NODES, KUBERNETES, TICKETS, VOLUMES, ENGINES];

/// A pod that has its volume on node-1, and one that was refused it on node-2. Returns the volume.
fn refused(world: &World, recorder: &Recorder) -> String {
    world.claim("data", "longhorn", "Filesystem");
    world.pod("first", "data", Some("node-1"));
    world.running("first");
    let volume = world.volume_of("data");
    world.pod("second", "data", Some("node-2"));
    recorder.until("something of every kind, and the refusal", |seen| {
        let has = |kind: &&str| seen.iter().any(|one| one.kind == *kind);
        KINDS.iter().all(has) && seen.iter().any(is_refusal)
    });
    volume
}

fn is_refusal(one: &Seen) -> bool {
    let (about, message) = (&one.object["involvedObject"], &one.object["message"]);
    let message = message.as_str().unwrap_or_default();
    one.kind == EVENTS && about["name"] == "second" && message.starts_with("Multi-Attach error")
}

/// All hops until the second pod runs, and those of the first one's node if it is deleted.
fn seen_through(recorder: &Recorder, deleted_node: Option<&str>) -> Vec<Seen> {
    recorder.until("the second pod run", |seen| {
        let has = |is: &dyn Fn(&Seen) -> bool| seen.iter().any(is);
        let is_named = |one: &Seen, name: &str| one.object["metadata"]["name"] == name;
        has(&|one| one.kind == PODS && is_named(one, "second") && is_running(one))
            && has(&|one| is_on(one, "node-2") && is_attached(one))
            && has(&|one| one.kind == VOLUMES && is_attached_to_second(one))
            && has(&|one| one.kind == ENGINES && runs_on_second(one))
            && has(&|one| one.kind == TICKETS && ticket_nodes(one) == ["node-2"])
            && deleted_node
                .is_none_or(|node| has(&|one| one.kind == NODES && one.gone && is_named(one, node)))
    })
}

fn is_running(pod: &Seen) -> bool {
    pod.object["status"]["phase"] == "Running"
}

fn is_attached_to_second(volume: &Seen) -> bool {
    let status = &volume.object["status"];
    status["state"] == "attached" && status["currentNodeID"] == "node-2"
}

fn runs_on_second(engine: &Seen) -> bool {
    let (spec, status) = (&engine.object["spec"], &engine.object["status"]);
    spec["nodeID"] == "node-2"
        && status["currentState"] == "running"
        && status["epoch"] == spec["epoch"]
}

fn is_on(one: &Seen, node: &str) -> bool {
    one.kind == KUBERNETES && one.object["spec"]["nodeName"] == node
}

fn is_attached(one: &Seen) -> bool {
    one.object["status"]["attached"] == true
}

/// From the attachment for the second pod's node to the running pod, all of it after `freed`.
fn attached_afterwards(seen: &[Seen], volume: &str, freed: (&'static str, usize)) {
    // Nothing of it was begun before, in whichever version of whichever object.
    let early = seen[..freed.1].iter().find(|one| {
        is_on(one, "node-2")
            || one.kind == TICKETS && is_of(one, volume) && ticket_nodes(one).contains(&"node-2")
            || one.kind == VOLUMES && is_of(one, volume) && one.object["spec"]["nodeID"] == "node-2"
            || one.kind == ENGINES && one.object["spec"]["nodeID"] == "node-2"
    });
    assert!(early.is_none(), "{:?}", early.map(|one| &one.object));

    let asked = first(seen, "asked for node-2", KUBERNETES, |one| {
        is_on(one, "node-2")
    });
    assert!(!is_attached(&seen[asked]), "nobody has done anything");
    let filed = first(seen, "the ticket", TICKETS, |one| {
        is_of(one, volume) && ticket_nodes(one) == ["node-2"]
    });
    let placed = first(seen, "spec.nodeID", VOLUMES, |one| {
        is_of(one, volume) && one.object["spec"]["nodeID"] == "node-2"
    });
    let opened = first(seen, "the engine", ENGINES, |one| {
        is_of(one, volume) && runs_on_second(one)
    });
    let known = first(seen, "state attached", VOLUMES, |one| {
        is_of(one, volume) && is_attached_to_second(one)
    });
    let answered = first(seen, "attached", KUBERNETES, |one| {
        is_on(one, "node-2") && is_attached(one)
    });
    let runs = first(seen, "running", PODS, |one| {
        one.object["metadata"]["name"] == "second" && is_running(one)
    });
    assert_in_order(&[
        freed,
        ("the VolumeAttachment", asked),
        ("the ticket", filed),
        ("Volume.spec.nodeID", placed),
        ("the engine", opened),
        ("the volume's state", known),
        ("status.attached", answered),
        ("the running pod", runs),
    ]);
    check_one_writer(seen, volume);
}

/// Each engine that the volume got had a larger epoch than all before, and none ever got a smaller one.
fn check_one_writer(seen: &[Seen], volume: &str) {
    let mut engines: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
    let of_engines = seen.iter().filter(|one| one.kind == ENGINES);
    for one in of_engines.filter(|one| is_of(one, volume)) {
        let spec = &one.object["spec"];
        let name = one.object["metadata"]["name"].as_str().expect("a name");
        let node = spec["nodeID"].as_str().expect("a node");
        let epoch = spec["epoch"].as_u64().expect("an epoch");
        let is_allowed = match engines.get(name) {
            // Also an object that would move to another node needed a larger one.
            Some(&(before, at)) => epoch > before || epoch == before && node == at,
            None => engines.values().all(|&(other, _)| epoch > other),
        };
        assert!(is_allowed, "{engines:?}, then {}", one.object);
        engines.insert(name, (epoch, node));
    }
    let newest = engines.values().max().expect("an engine");
    assert_eq!(newest.1, "node-2", "the writer of epoch {}", newest.0);
}

#[test]
fn each_hop_of_a_refused_pod_follows_the_end_of_the_one_before() {
    let world = World::new(3);
    let recorder = Recorder::start(&world, &KINDS);
    let volume = refused(&world, &recorder);
    world.delete("pod", "first");
    world.running("second");
    let seen = seen_through(&recorder, None);

    let told = first(&seen, "the refusal", EVENTS, is_refusal);
    let holds = |one: &&Seen| is_on(one, "node-1");
    let held = seen[..told].iter().rfind(holds).expect("the holder");
    assert!(is_attached(held), "by the first pod: {}", held.object);
    let former = detached(&seen, &volume, "node-1");
    assert_in_order(&[("the refusal", told), ("the deletion", former.deleted)]);
    attached_afterwards(&seen, &volume, ("the end of the first", former.gone));
}

/// The case that the documents of Kubernetes give as the common one, with their way out: the node's object is deleted.
#[test]
fn each_hop_after_a_dead_node_is_deleted_follows_from_the_one_before() {
    let world = World::new(3);
    let recorder = Recorder::start(&world, &KINDS);
    let volume = refused(&world, &recorder);
    world.power_off("node-1");
    world.kubectl.prints(&["delete", "node", "node-1"]);
    world.running("second");
    let seen = seen_through(&recorder, Some("node-1"));

    let told = first(&seen, "the refusal", EVENTS, is_refusal);
    let removed = first(&seen, "no node", NODES, |one| {
        one.gone && one.object["metadata"]["name"] == "node-1"
    });
    let proven = first(&seen, "the fence", VOLUMES, |one| {
        one.object["status"]["fenceProof"]["formerNodeID"] == "node-1"
    });
    let proof = &seen[proven].object["status"]["fenceProof"];
    assert_eq!(proof["epoch"], 2, "the dead node's engine had the first");
    let gone = first(&seen, "gone", KUBERNETES, |one| {
        is_on(one, "node-1") && one.gone
    });
    let before_proof = |one: &&Seen| is_on(one, "node-1");
    let held = seen[..proven].iter().rfind(before_proof);
    assert!(
        is_attached(held.expect("the dead node's")),
        "not released unfenced"
    );
    // The fence follows from the agent's silence: the deletion of the node's object comes before it or after.
    assert_in_order(&[("the refusal", told), ("the deleted node", removed)]);
    let end = ("the end of the dead node's VolumeAttachment", gone);
    assert_in_order(&[
        ("the refusal", told),
        ("the proof of the fence", proven),
        end,
    ]);
    attached_afterwards(&seen, &volume, end);
    let left = |object: &Value| object["spec"]["nodeName"] == "node-1";
    assert!(!world.list("volumeattachment").iter().any(left), "released");
}
