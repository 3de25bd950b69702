//! Every part is killed in mid-flight, and the flow goes on where it was.

use std::fs;

use crate::support::eventually;
use crate::world::World;

#[test]
fn killed_agents_and_managers_are_missed_by_nobody() {
    let world = World::new(3);
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-1"));
    let pod = world.running("app");
    let path = world.path(&pod);
    fs::write(path.join("file"), "kept").expect("a file");
    let engines = world.processes(&["engine", "managed"]);
    assert_eq!(engines.len(), 1, "one engine");

    let agent = world.processes(&["--name node-1"]);
    assert_eq!(agent.len(), 1, "one agent");
    world.kill(&agent);
    eventually("another agent", || {
        let now = world.processes(&["--name node-1"]);
        now.len() == 1 && now != agent
    });
    world.kill(&world.processes(&["manager", "--embedded"]));

    // A second volume goes all the way while the first one is not touched.
    world.claim("other", "longhorn", "Filesystem");
    world.pod("other", "other", Some("node-1"));
    world.running("other");
    assert_eq!(
        fs::read_to_string(path.join("file")).expect("the file"),
        "kept"
    );
    let now = world.processes(&["engine", "managed"]);
    assert!(
        now.contains(&engines[0]),
        "the engine {engines:?} was adopted, not replaced: {now:?}"
    );

    for name in ["app", "other"] {
        world.delete("pod", name);
    }
    world.kill(&world.processes(&["manager", "--embedded"]));
    for name in ["app", "other"] {
        world.until_gone("pod", name);
        world.delete("pvc", name_of_claim(name));
    }
    for what in ["pvc", "pv", "volumeattachment", "lhv", "lhva", "lhe", "lhr"] {
        world.until_none(what);
    }
    assert_eq!(world.leftovers(), [""; 0]);
}

fn name_of_claim(pod: &str) -> &str {
    if pod == "app" { "data" } else { pod }
}

#[test]
fn a_killed_cluster_finds_everything_again() {
    let mut world = World::new(3);
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", None);
    let path = world.path(&world.running("app"));
    fs::write(path.join("file"), "kept").expect("a file");
    world.cluster.kill();
    world.cluster.start_again();
    let pod = world.running("app");
    assert_eq!(
        fs::read_to_string(world.path(&pod).join("file")).expect("the file"),
        "kept"
    );
}

#[test]
fn an_orderly_end_leaves_nothing_and_the_next_start_mounts_again() {
    let mut world = World::new(3);
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", None);
    let path = world.path(&world.running("app"));
    fs::write(path.join("file"), "kept").expect("a file");
    world.cluster.stop(rustix::process::Signal::TERM);
    assert_eq!(world.leftovers(), [""; 0], "after an orderly end");
    assert_eq!(world.processes(&[]), [0; 0], "after an orderly end");
    world.cluster.start_again();
    let back = || {
        let pod = world.running("app");
        fs::read_to_string(world.path(&pod).join("file")).is_ok_and(|text| text == "kept")
    };
    eventually("the pod's file system to be mounted again", back);
}
