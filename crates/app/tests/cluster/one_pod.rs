//! A volume for one pod: also on the same node a second one gets it only when the first is gone.

use std::fs;

use serde_json::{Value, json};

use crate::world::{World, claim, pod};

/// A pod that is on its node from the start. The scheduler, which would let it wait, never looks at it.
fn past_the_scheduler(name: &str, claim: &str, node: &str) -> Value {
    let mut pod = pod(name, claim, None);
    pod["spec"]["nodeName"] = json!(node);
    pod
}

#[test]
fn a_second_pod_on_the_same_node_gets_the_volume_when_the_first_is_gone() {
    let world = World::new(3);
    let mut claim = claim("data", "longhorn", "Filesystem");
    claim["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    world.create(&claim);
    world.pod("first", "data", Some("node-1"));
    let path = world.path(&world.running("first"));
    fs::write(path.join("greeting"), "hello").expect("a file");
    let volume = world.volume_of("data");
    assert_eq!(world.get("lhv", &volume)["spec"]["accessMode"], "rwop");

    world.create(&past_the_scheduler("second", "data", "node-1"));
    let why = format!("volume {volume} is for one pod only, and is published at ");
    for (kind, name) in [
        ("Pod", "second"),
        ("PersistentVolumeClaim", "data"),
        ("Volume", volume.as_str()),
    ] {
        world.until_told(kind, name, "FailedMount", &why);
    }
    world.until_stuck("second", &why);
    assert_ne!(world.get("pod", "second")["status"]["phase"], "Running");

    world.delete("pod", "first");
    world.until_gone("pod", "first");
    let path = world.path(&world.running("second"));
    let read = fs::read_to_string(path.join("greeting")).expect("the file");
    assert_eq!(read, "hello");
}
