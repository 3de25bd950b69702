//! A node dies; its volume is elsewhere in seconds, with everything that was acknowledged, and never in two places.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;

use serde_json::Value;

use crate::support::eventually;
use crate::world::{World, condition};

#[test]
fn a_dead_node_is_fenced_and_its_volume_is_mounted_elsewhere() {
    check_failover(&World::new(3));
}

/// No replica takes a plain line: engines, rebuilds and fences all go through TLS.
#[test]
fn a_dead_node_is_fenced_where_lines_must_be_encrypted() {
    check_failover(&World::with_environment(
        3,
        &[("LARIAT_REPLICA_TLS", "required")],
    ));
}

fn check_failover(world: &World) {
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-1"));
    let pod = world.running("app");
    let volume = world.volume_of("data");
    let path = world.path(&pod);
    let mut file = File::create(path.join("acknowledged")).expect("a file");
    file.write_all(b"before the power went").expect("a write");
    file.sync_all().expect("an acknowledged write");
    drop(file);

    world.power_off("node-1");
    eventually("node-1 to be lost", || {
        condition(&world.get("lhn", "node-1"), "Ready") == "False"
    });
    world.until_gone("pod", "app");
    world.pod("app", "data", Some("node-2"));
    let pod = world.running("app");
    let read = fs::read_to_string(world.path(&pod).join("acknowledged")).expect("the file");
    assert_eq!(read, "before the power went");

    let object = world.get("lhv", &volume);
    let proof = &object["status"]["fenceProof"];
    assert_eq!(proof["formerNodeID"], "node-1", "{object}");
    // The fence is an epoch of its own; the engine elsewhere has a later one.
    let epoch = |value: &Value| value.as_u64().expect("an epoch");
    assert!(
        (2..=epoch(&object["status"]["epoch"])).contains(&epoch(&proof["epoch"])),
        "{object}"
    );
    assert_eq!(object["status"]["currentNodeID"], "node-2");
    let on_dead_node = |object: &Value| object["spec"]["nodeName"] == "node-1";
    assert!(
        !world.list("volumeattachment").iter().any(on_dead_node),
        "released"
    );

    // The node comes back, finds itself fenced, and puts away what it had; its replica is brought up to date.
    world.power_on("node-1");
    eventually("node-1 to be back", || {
        condition(&world.get("lhn", "node-1"), "Ready") == "True"
    });
    world.until_robust(&volume);
    let former = world.node_folder("node-1").to_string_lossy().into_owned();
    eventually("node-1 to drop its mounts and devices", || {
        crate::world::leftovers(&former).is_empty()
    });
}

/// What Kubernetes' documents advise for a node that does not come back. This one does, later.
#[test]
fn a_dead_node_that_is_deleted_gives_its_volume_up() {
    let world = World::new(3);
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-1"));
    let path = world.path(&world.running("app"));
    let volume = world.volume_of("data");
    let mut file = File::create(path.join("acknowledged")).expect("a file");
    file.write_all(b"before the power went").expect("a write");
    file.sync_all().expect("an acknowledged write");
    drop(file);

    world.power_off("node-1");
    world.kubectl.prints(&["delete", "node", "node-1"]);
    world.until_gone("pod", "app");
    world.pod("app", "data", Some("node-2"));
    let path = world.path(&world.running("app"));
    let read = fs::read_to_string(path.join("acknowledged")).expect("the file");
    assert_eq!(read, "before the power went");
    let on_dead_node = |object: &Value| object["spec"]["nodeName"] == "node-1";
    assert!(
        !world.list("volumeattachment").iter().any(on_dead_node),
        "released"
    );

    world.power_on("node-1");
    eventually("node-1 to be registered again", || {
        world.try_get("node", "node-1").is_some()
    });
    world.until_robust(&volume);
    let former = world.node_folder("node-1").to_string_lossy().into_owned();
    eventually("node-1 to drop its mounts and devices", || {
        crate::world::leftovers(&former).is_empty()
    });
}

/// Nobody tells it of that volume any more: what its engine left is all that there is.
#[test]
fn a_node_that_returns_when_its_volume_is_deleted_keeps_nothing_of_it() {
    let world = World::new(3);
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-1"));
    world.running("app");
    world.power_off("node-1");
    world.until_gone("pod", "app");
    world.delete("pvc", "data");
    world.until_none("lhv");
    world.until_none("lhe");
    assert_ne!(world.leftovers(), [""; 0], "a dead node puts nothing away");
    world.power_on("node-1");
    eventually("the node to put away what it has left", || {
        world.leftovers().is_empty()
    });
}

#[test]
fn a_replica_that_is_cut_off_does_not_stop_the_writer() {
    let world = World::new(3);
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-1"));
    let pod = world.running("app");
    let volume = world.volume_of("data");
    let file = world.path(&pod).join("log");
    let mut log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)
        .expect("a file");
    world.until_robust(&volume);

    world.power_off("node-3");
    for number in 0..50 {
        writeln!(log, "{number}").expect("a write");
        log.sync_data()
            .expect("acknowledged although a replica is gone");
    }
    let object = world.get("lhv", &volume);
    assert_eq!(
        object["status"]["inSyncReplicas"].as_array().map(Vec::len),
        Some(2),
        "{object}"
    );
    assert_eq!(object["status"]["robustness"], "degraded");
    world.power_on("node-3");
    world.until_robust(&volume);
}
