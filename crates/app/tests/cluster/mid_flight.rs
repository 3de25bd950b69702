//! Parts die while a volume is on its way to a pod, or back.

use std::fs;
use std::time::Duration;

use crate::support::eventually;
use crate::world::World;

/// What is killed, by words of its command line.
const PARTS: [&[&str]; 5] = [
    &["manager", "--embedded"],
    // Where the pod is: it starts the engine, makes the file system and mounts it.
    &["--name node-1"],
    // Has a replica, and nothing else.
    &["--name node-2"],
    &["engine", "managed"],
    // Has the devices of engines that are killed.
    &["engine", "keeper"],
];

/// When, since the pod was created or deleted: before its volume exists, while it is attached, made and mounted, and when
/// it just has been, on machines of all speeds.
const MOMENTS_MS: [u64; 4] = [30, 150, 400, 900];

#[test]
fn every_part_may_die_while_a_volume_is_on_its_way() {
    let mut world = World::new(3);
    for part in PARTS {
        let mut killed = 0;
        for moment_ms in MOMENTS_MS {
            let told = format!("{part:?} after {moment_ms} ms");
            there_and_back(&mut world, &told, |world| {
                std::thread::sleep(Duration::from_millis(moment_ms));
                let processes = world.processes(part);
                killed += processes.len();
                world.kill(&processes);
            });
        }
        assert!(killed > 0, "{part:?} was never there");
    }
}

#[test]
fn everything_but_the_engines_may_die_while_a_volume_is_on_its_way() {
    let mut world = World::new(3);
    for moment_ms in MOMENTS_MS {
        let told = format!("all after {moment_ms} ms");
        there_and_back(&mut world, &told, |world| {
            std::thread::sleep(Duration::from_millis(moment_ms));
            world.cluster.kill();
            world.cluster.start_again();
        });
    }
}

/// A pod with a new volume comes and goes, with a strike at both; in the end there is nothing left of it.
fn there_and_back(world: &mut World, told: &str, mut strike: impl FnMut(&mut World)) {
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-1"));
    strike(world);
    let path = world.path(&running(world));
    fs::write(path.join("file"), told).expect(told);
    let read = fs::read_to_string(path.join("file"));
    assert_eq!(read.expect(told), told);
    world.delete("pod", "app");
    strike(world);
    world.until_gone("pod", "app");
    world.delete("pvc", "data");
    for what in ["pvc", "pv", "volumeattachment", "lhv", "lhva", "lhe", "lhr"] {
        world.until_none(what);
    }
    // A node that was lost meanwhile puts the rest away when it is back.
    eventually(told, || world.leftovers().is_empty());
}

/// The pod once it runs. On a slow machine an agent may be away for so long that its node is lost, and the pod with it.
fn running(world: &World) -> serde_json::Value {
    let mut pod = None;
    eventually("the pod to run", || {
        let found = world.try_get("pod", "app");
        if found.is_none() {
            world.pod("app", "data", Some("node-1"));
        }
        pod = found.filter(|pod| pod["status"]["phase"] == "Running");
        pod.is_some()
    });
    pod.expect("seen just now")
}
