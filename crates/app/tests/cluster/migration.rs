//! A volume moves between two nodes while it is in use: two pods, two tickets, one writer at a time.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use serde_json::{Value, json};

use crate::snapshots;
use crate::support::eventually;
use crate::world::{World, claim};

pub const BLOCK: usize = 4096;

/// A device opened as a hypervisor does it: past the page cache, which another node's writes do not reach.
pub struct Disk(pub File);

/// Direct I/O wants memory that is aligned.
#[repr(align(4096))]
pub struct Aligned(pub [u8; BLOCK]);

impl Disk {
    pub fn open(path: &Path) -> Self {
        let direct = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).expect("a flag");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(direct)
            .open(path);
        Self(file.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    fn write(&self, block: u64, byte: u8) {
        let written = self
            .0
            .write_all_at(&Aligned([byte; BLOCK]).0, block * BLOCK as u64);
        written.unwrap_or_else(|error| panic!("block {block}: {error}"));
    }

    fn read(&self, block: u64) -> u8 {
        let mut data = Aligned([0; BLOCK]);
        let read = self.0.read_exact_at(&mut data.0, block * BLOCK as u64);
        read.unwrap_or_else(|error| panic!("block {block}: {error}"));
        assert!(data.0.iter().all(|byte| *byte == data.0[0]), "one write");
        data.0[0]
    }
}

pub fn migratable(world: &World) {
    let mut claim = claim("disk", "longhorn-migratable", "Block");
    claim["spec"]["accessModes"] = json!(["ReadWriteMany"]);
    world.create(&claim);
}

fn satisfied(world: &World, volume: &str) -> Vec<String> {
    let attachment = world.get("lhva", volume);
    let statuses = attachment["status"]["attachmentTicketStatuses"].as_object();
    let tickets = &attachment["spec"]["attachmentTickets"];
    let mut nodes: Vec<String> = statuses
        .into_iter()
        .flatten()
        .filter(|(_, status)| status["satisfied"] == true)
        .map(|(id, _)| {
            tickets[id]["nodeID"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        })
        .collect();
    nodes.sort_unstable();
    nodes
}

#[test]
fn a_volume_is_handed_over_while_both_nodes_use_it() {
    let world = World::new(3);
    world.apply_example("migratable.yaml");
    let source = Disk::open(&world.path(&world.running("source")));
    let volume = world.volume_of("disk");
    source.write(0, 1);

    world.apply_example("migration-target.yaml");
    let target = Disk::open(&world.path(&world.running("target")));
    eventually("both tickets to be satisfied", || {
        satisfied(&world, &volume) == ["node-1", "node-2"]
    });
    // In Longhorn's words, which people look for.
    let statuses = world.get("lhva", &volume)["status"]["attachmentTicketStatuses"].to_string();
    let told = "The migrating attachment ticket is satisfied";
    assert!(statuses.contains(told), "{statuses}");
    let object = world.get("lhv", &volume);
    assert_eq!(object["status"]["currentNodeID"], "node-1", "{object}");
    assert_eq!(object["status"]["currentMigrationNodeID"], "node-2");
    let epoch = |object: &Value| object["status"]["epoch"].as_u64().expect("an epoch");
    let before = epoch(&object);
    assert_eq!(target.read(0), 1, "the target reads what the source wrote");
    source.write(1, 2);
    assert_eq!(target.read(1), 2);
    snapshots::ask(&world, "of-the-source", &volume);
    snapshots::until_ready(&world, "of-the-source");
    source.write(0, 3);
    assert_eq!(target.read(0), 3, "reading did not move the writer");
    assert_eq!(epoch(&world.get("lhv", &volume)), before);

    // The guest is paused at the source, which keeps its device open, and goes on at the target: its first write hands the
    // volume over, and takes with it what the source wrote last.
    source.write(4, 6);
    target.write(2, 4);
    assert_eq!(target.read(4), 6);
    assert_eq!((target.read(0), target.read(1), target.read(2)), (3, 2, 4));
    let after = epoch(&world.get("lhv", &volume));
    assert!(after > before, "{before} -> {after}");
    // Of which the source's engine will never hear.
    snapshots::ask(&world, "of-the-target", &volume);
    snapshots::until_ready(&world, "of-the-target");

    // The pod at the source goes: the migration is confirmed.
    drop(source);
    world.delete("pod", "source");
    world.until_gone("pod", "source");
    eventually("the volume to be on node-2 alone", || {
        let object = world.get("lhv", &volume);
        object["status"]["currentNodeID"] == "node-2"
            && object["status"]["currentMigrationNodeID"] == ""
            && object["spec"]["nodeID"] == "node-2"
    });
    target.write(3, 5);
    assert_eq!((target.read(0), target.read(3)), (3, 5));
    eventually("the ticket of node-2 alone to be satisfied", || {
        satisfied(&world, &volume) == ["node-2"]
    });
    world.until_robust(&volume);

    drop(target);
    world.delete("pod", "target");
    world.delete("pvc", "disk");
    world.until_none("lhv");
    world.until_none("lhsnap");
    eventually("nothing to be left behind", || world.leftovers().is_empty());
}

#[test]
fn a_migration_whose_target_goes_away_is_rolled_back() {
    let world = World::new(3);
    migratable(&world);
    world.pod("source", "disk", Some("node-1"));
    let source = Disk::open(&world.path(&world.running("source")));
    let volume = world.volume_of("disk");
    source.write(0, 1);
    let only_source = || {
        let object = world.get("lhv", &volume);
        object["status"]["currentNodeID"] == "node-1"
            && object["status"]["currentMigrationNodeID"] == ""
            && object["spec"]["migrationNodeID"] == ""
    };

    // The pod is deleted before it wrote anything.
    world.pod("target", "disk", Some("node-2"));
    world.running("target");
    world.delete("pod", "target");
    world.until_gone("pod", "target");
    eventually("the migration to be rolled back", only_source);
    source.write(1, 2);
    assert_eq!((source.read(0), source.read(1)), (1, 2));

    // Its whole node dies.
    world.pod("target", "disk", Some("node-2"));
    world.running("target");
    world.power_off("node-2");
    source.write(2, 3);
    world.until_gone("pod", "target");
    eventually("the migration to be rolled back again", only_source);
    source.write(3, 4);
    assert_eq!((source.read(2), source.read(3)), (3, 4));
    world.power_on("node-2");
    world.until_robust(&volume);
    source.write(4, 5);
    assert_eq!(source.read(4), 5);
}
