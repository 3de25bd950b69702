//! An engine's process is killed under a pod that writes: a pause, and nothing else.

use std::fs::{self, OpenOptions};
use std::io::Write as _;

use crate::support::eventually;
use crate::world::World;

#[test]
fn an_engine_that_is_killed_is_a_pause_to_its_pod() {
    let world = World::new(3);
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-1"));
    let path = world.path(&world.running("app")).join("log");
    let mut log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .expect("a file");
    let mut expected = String::new();
    // More often than the first restart, which is free: the device is kept through the pause before the next ones.
    for number in 0..90 {
        if number % 30 == 10 {
            let engines = world.processes(&["engine", "managed", "node-1"]);
            assert_eq!(engines.len(), 1, "before write {number}");
            world.kill(&engines);
        }
        let line = format!("{number}\n");
        log.write_all(line.as_bytes()).expect("a write");
        log.sync_data().expect("acknowledged");
        expected.push_str(&line);
    }
    assert_eq!(fs::read_to_string(&path).expect("the file"), expected);
    let volume = world.volume_of("data");
    world.until_robust(&volume);
    drop(log);

    world.delete("pod", "app");
    world.delete("pvc", "data");
    world.until_none("lhv");
    eventually("nothing to be left behind", || world.leftovers().is_empty());
}
