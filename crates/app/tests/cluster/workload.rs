//! Pods that somebody looks after: stable names, claims of their own, and a new place when their node is lost.

use std::fs::File;
use std::io::Write as _;

use serde_json::Value;

use crate::support::eventually;
use crate::world::{World, condition};

const EXAMPLE: &str = include_str!("../../../../examples/statefulset.yaml");

#[test]
fn a_set_grows_rolls_and_shrinks_as_kubectl_says() {
    let world = World::new(3);
    let kubectl = &world.kubectl;
    kubectl.feeds(&["apply", "-f", "-"], EXAMPLE);
    let status = ["rollout", "status", "statefulset/db", "--timeout=120s"];
    kubectl.shows(&status, &["2 new pods have been updated"]);
    kubectl.shows(&["get", "sts"], &["READY", "2/2"]);
    let claims: Vec<String> = world.list("pvc").iter().map(name).collect();
    assert_eq!(claims, ["data-db-0", "data-db-1"]);
    // In order: the second pod was made when the first one ran.
    let ready = |pod: &Value| transition(pod, "Ready");
    let first = world.get("pod", "db-0");
    let second = world.get("pod", "db-1");
    let made = second["metadata"]["creationTimestamp"].as_str();
    assert!(
        ready(&first).as_str() <= made.unwrap_or_default(),
        "{first} {second}"
    );

    kubectl.prints(&["scale", "statefulset/db", "--replicas=3"]);
    eventually("three pods", || {
        world.get("sts", "db")["status"]["readyReplicas"] == 3
    });

    // Another template: every pod is another one, with the claim of before.
    let before: Vec<String> = world.list("pod").iter().map(uid).collect();
    let volumes: Vec<String> = ["data-db-0", "data-db-1", "data-db-2"]
        .map(|claim| world.volume_of(claim))
        .to_vec();
    kubectl.prints(&["rollout", "restart", "statefulset/db"]);
    kubectl.shows(&status, &["3 new pods have been updated"]);
    let after: Vec<String> = world.list("pod").iter().map(uid).collect();
    assert_eq!(after.len(), 3);
    assert!(
        after.iter().all(|pod| !before.contains(pod)),
        "{before:?} {after:?}"
    );

    kubectl.prints(&["scale", "statefulset/db", "--replicas=1"]);
    for pod in ["db-2", "db-1"] {
        world.until_gone("pod", pod);
    }
    assert_eq!(world.list("pvc").len(), 3, "claims stay");
    kubectl.prints(&["scale", "statefulset/db", "--replicas=3"]);
    eventually("three pods again", || {
        world.get("sts", "db")["status"]["readyReplicas"] == 3
    });
    let again: Vec<String> = ["data-db-0", "data-db-1", "data-db-2"]
        .map(|claim| world.volume_of(claim))
        .to_vec();
    assert_eq!(again, volumes);

    kubectl.prints(&["delete", "statefulset", "db"]);
    world.until_none("pod");
    kubectl.prints(&["delete", "pvc", "--all"]);
    for what in ["pvc", "pv", "volumeattachment", "lhv"] {
        world.until_none(what);
    }
    assert_eq!(world.leftovers(), [""; 0]);
}

#[test]
fn a_pod_of_a_lost_node_runs_elsewhere_with_its_data() {
    let world = World::new(3);
    world.kubectl.feeds(&["apply", "-f", "-"], EXAMPLE);
    let pod = world.running("db-1");
    let node = pod["spec"]["nodeName"].as_str().expect("a node").to_owned();
    let mut file = File::create(world.path(&pod).join("file")).expect("a file");
    file.write_all(b"acknowledged").expect("a write");
    file.sync_all().expect("an acknowledged write");
    drop(file);

    world.power_off(&node);
    let mut moved = Value::Null;
    eventually("db-1 to run elsewhere", || {
        let Some(now) = world.try_get("pod", "db-1") else {
            return false;
        };
        let elsewhere = uid(&now) != uid(&pod) && now["spec"]["nodeName"] != node.as_str();
        let runs = now["status"]["phase"] == "Running";
        moved = now;
        elsewhere && runs
    });
    let read = std::fs::read_to_string(world.path(&moved).join("file"));
    assert_eq!(read.expect("the file"), "acknowledged");

    // People who look at the pod are told what became of its volume.
    let told = |event: &Value| {
        event["involvedObject"]["uid"] == moved["metadata"]["uid"] && event["reason"] == "Attached"
    };
    eventually("an event on the pod", || {
        world.list("event").iter().any(told)
    });
    world.power_on(&node);
    eventually("the node to be back", || {
        condition(&world.get("lhn", &node), "Ready") == "True"
    });
}

fn name(object: &Value) -> String {
    object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// When a condition of a pod became what it is.
fn transition(pod: &Value, kind: &str) -> String {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let mut found = conditions.filter(|condition| condition["type"] == kind);
    found
        .next()
        .and_then(|condition| condition["lastTransitionTime"].as_str())
        .unwrap_or_default()
        .to_owned()
}
