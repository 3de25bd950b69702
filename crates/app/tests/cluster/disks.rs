//! Nodes with more than one disk: a real file system on a loop device is added, filled, taken away under its users,
//! brought back and emptied.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{eventually, lariat};
use crate::world::World;

/// A file system of its own, unmounted and removed when the test ends.
struct Extra {
    image: PathBuf,
    mount: PathBuf,
    _folder: tempfile::TempDir,
}

impl Extra {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let image = folder.path().join("image");
        let mount = folder.path().join("disk");
        fs::create_dir(&mount).expect("a mount point");
        let mut extra = Self {
            image,
            mount,
            _folder: folder,
        };
        extra.mount_another("image");
        extra
    }

    /// An empty one in its place.
    fn mount_another(&mut self, name: &str) {
        self.image.set_file_name(name);
        let file = fs::File::create(&self.image).expect("an image");
        file.set_len(4 << 30).expect("a sparse image");
        run("mkfs.ext4", &["-q", &text(&self.image)]);
        self.mount();
    }

    fn mount(&self) {
        run(
            "mount",
            &["-o", "loop", &text(&self.image), &text(&self.mount)],
        );
    }
}

impl Drop for Extra {
    fn drop(&mut self) {
        // Lazily: a test that fails may leave users behind, which must not keep the loop device for ever.
        let path = text(&self.mount);
        let _ = Command::new("umount").args(["--lazy", &path]).output();
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
}

/// What `lariat disk` says, and how it ends.
fn disk(world: &World, arguments: &[&str]) -> (i32, String) {
    let output = Command::new(lariat())
        .arg("disk")
        .args(arguments)
        .env("KUBECONFIG", world.cluster.kubeconfig())
        .output()
        .expect("lariat disk");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output.status.code().unwrap_or(-1), said)
}

#[track_caller]
fn disk_ends_with(world: &World, arguments: &[&str], code: i32, part: &str) {
    let (ended, said) = disk(world, arguments);
    assert_eq!(ended, code, "lariat disk {arguments:?}: {said}");
    assert!(said.contains(part), "lariat disk {arguments:?}: {said}");
}

fn status(world: &World, name: &str) -> Value {
    world.get("lhn", "node-1")["status"]["diskStatus"][name].clone()
}

/// A disk that is not there says nothing about its replicas: their data is not taken for lost.
fn until_its_disk_is_missed(world: &World, replica: &str) {
    eventually("the replica to be served nowhere", || {
        let status = world.get("lhr", replica)["status"].clone();
        assert_ne!(status["currentState"], "error", "{status}");
        status["currentState"] == "unknown"
    });
}

/// The replica of node-1, and whether it is on the disk of that name.
fn replica_on(world: &World, name: &str) -> Option<Value> {
    let uuid = status(world, name)["diskUUID"].clone();
    let mut replicas = world.list("lhr").into_iter();
    replicas.find(|replica| {
        replica["spec"]["diskID"] == uuid && replica["metadata"]["deletionTimestamp"].is_null()
    })
}

#[test]
fn a_second_disk_is_added_lost_found_and_emptied() {
    let world = World::new(3);
    let extra = Extra::new();
    let path = text(&extra.mount);
    world.claim("data", "longhorn", "Filesystem");

    disk_ends_with(
        &world,
        &["add", "node-1", "fast", &path, "--tags", "ssd"],
        0,
        "ready",
    );
    let capacity = status(&world, "fast")["storageMaximum"].as_i64();
    assert!(
        capacity.is_some_and(|bytes| bytes < 4 << 30),
        "{capacity:?}"
    );
    let twin = world.cluster.folder().join("twin");
    fs::create_dir(&twin).expect("a folder");
    disk_ends_with(
        &world,
        &["add", "node-1", "twin", &text(&twin)],
        4,
        "on the file system of disk default",
    );
    disk_ends_with(&world, &["remove", "node-1", "twin"], 0, "left alone");
    // Two nodes of one machine are told of one disk: the first has it.
    disk_ends_with(
        &world,
        &["add", "node-2", "stolen", &path],
        4,
        "another agent serves this disk",
    );
    disk_ends_with(&world, &["remove", "node-2", "stolen"], 0, "left alone");

    // With the default disk closed to new replicas, node-1's goes to the other one.
    disk_ends_with(
        &world,
        &["evict", "node-1", "default", "--no-wait"],
        0,
        "no new replicas",
    );
    world.pod("app", "data", Some("node-2"));
    let pod = world.running("app");
    let volume = world.volume_of("data");
    world.until_robust(&volume);
    fs::write(world.path(&pod).join("first"), vec![7; 8 << 20]).expect("a file");
    let replica = replica_on(&world, "fast").expect("a replica on the disk that was added");
    assert_eq!(replica["spec"]["nodeID"], "node-1");
    assert!(extra.mount.join("replicas").join(&volume).is_dir());
    disk_ends_with(
        &world,
        &["evict", "node-1", "default", "--cancel"],
        0,
        "gets new ones",
    );
    disk_ends_with(
        &world,
        &["remove", "node-1", "fast"],
        3,
        "lariat disk evict",
    );

    the_disk_goes_and_comes_back(&world, &extra, &volume, &replica);
    fs::write(world.path(&pod).join("second"), vec![9; 8 << 20]).expect("a file");

    disk_ends_with(&world, &["evict", "node-1", "fast"], 0, "is empty");
    world.until_robust(&volume);
    assert!(replica_on(&world, "default").is_some(), "on the other disk");
    disk_ends_with(&world, &["remove", "node-1", "fast"], 0, "left alone");
    eventually("the disk not to be reported any more", || {
        status(&world, "fast").is_null()
    });
    // Nothing of it is open: an unmount that is not lazy says so.
    run("umount", &[&path]);

    let read = |name: &str| fs::read(world.path(&pod).join(name)).expect("a file");
    assert!(read("first") == vec![7; 8 << 20] && read("second") == vec![9; 8 << 20]);
    world.delete("pod", "app");
    world.until_gone("pod", "app");
    world.delete("pvc", "data");
    world.until_none("lhr");
    assert_eq!(world.leftovers(), [""; 0]);
}

/// The disk of one of three replicas goes while the volume is detached: the others have everything, so nobody waits for it.
#[test]
fn a_detached_volume_attaches_without_a_disk_that_is_gone() {
    let world = World::new(3);
    let extra = Extra::new();
    let path = text(&extra.mount);
    disk_ends_with(&world, &["add", "node-1", "fast", &path], 0, "ready");
    let closed = ["evict", "node-1", "default", "--no-wait"];
    disk_ends_with(&world, &closed, 0, "no new replicas");
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-2"));
    let pod = world.running("app");
    let volume = world.volume_of("data");
    world.until_robust(&volume);
    fs::write(world.path(&pod).join("first"), "first").expect("a file");
    let replica = replica_on(&world, "fast").expect("a replica on the disk that was added");
    let name = replica["metadata"]["name"].as_str().expect("a name");
    world.delete("pod", "app");
    world.until_gone("pod", "app");
    eventually("the volume to be detached", || {
        world.volume_state(&volume) == "detached"
    });

    run("umount", &["--lazy", &path]);
    until_its_disk_is_missed(&world, name);
    world.pod("app", "data", Some("node-2"));
    let pod = world.running("app");
    let read = |name: &str| fs::read_to_string(world.path(&pod).join(name)).expect("a file");
    assert_eq!(read("first"), "first");
    fs::write(world.path(&pod).join("second"), "second").expect("a file");
    let file = fs::File::open(world.path(&pod).join("second")).expect("the file");
    file.sync_all().expect("a write that is acknowledged");
    drop(file);
    let recorded = world.get("lhv", &volume)["status"]["inSyncReplicas"].clone();
    let recorded = recorded.as_array().expect("a set");
    assert_eq!(recorded.len(), 2, "{recorded:?}");
    assert!(!recorded.contains(&json!(name)), "{recorded:?}");

    extra.mount();
    world.until_robust(&volume);
    assert_eq!(read("second"), "second");
    world.delete("pod", "app");
    world.until_gone("pod", "app");
    world.delete("pvc", "data");
    world.until_none("lhr");
    assert_eq!(world.leftovers(), [""; 0]);
}

/// A disk dies and does not come back. A volume with a replica on it can be deleted all the same, once a person has said that it is
/// dead; until then everybody says what to do.
#[test]
fn a_dead_disk_keeps_no_deleted_volume() {
    let world = World::new(3);
    let extra = Extra::new();
    let path = text(&extra.mount);
    disk_ends_with(&world, &["add", "node-1", "fast", &path], 0, "ready");
    let closed = ["evict", "node-1", "default", "--no-wait"];
    disk_ends_with(&world, &closed, 0, "no new replicas");
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-2"));
    world.running("app");
    let volume = world.volume_of("data");
    world.until_robust(&volume);
    let replica = replica_on(&world, "fast").expect("a replica on the disk that was added");
    let name = replica["metadata"]["name"].as_str().expect("a name");
    world.delete("pod", "app");
    world.until_gone("pod", "app");

    run("umount", &["--lazy", &path]);
    until_its_disk_is_missed(&world, name);
    world.delete("pvc", "data");
    let way_out = "lariat disk remove node-1 fast --dead";
    eventually("the replica to say what to do", || {
        let message = world.get("lhr", name)["status"]["message"].clone();
        message.as_str().is_some_and(|said| said.contains(way_out))
    });
    world.until_told("Volume", &volume, "DiskKeepsReplica", way_out);
    let remove = ["remove", "node-1", "fast"];
    disk_ends_with(&world, &remove, 3, "give them up with --dead");
    disk_ends_with(&world, &[&remove[..], &["--dead"]].concat(), 0, name);
    world.until_none("lhr");
    world.until_none("lhv");
    eventually("the disk not to be reported any more", || {
        status(&world, "fast").is_null()
    });
    assert_eq!(world.leftovers(), [""; 0]);
}

/// A detached volume, and the name of its replica on the disk `fast` of node-1; the other disk there takes none.
fn volume_on_fast(world: &World, path: &str) -> (String, String) {
    disk_ends_with(world, &["add", "node-1", "fast", path], 0, "ready");
    let closed = ["evict", "node-1", "default", "--no-wait"];
    disk_ends_with(world, &closed, 0, "no new replicas");
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-2"));
    let pod = world.running("app");
    let volume = world.volume_of("data");
    world.until_robust(&volume);
    fs::write(world.path(&pod).join("first"), "first").expect("a file");
    let replica = replica_on(world, "fast").expect("a replica on the disk that was added");
    let name = replica["metadata"]["name"].as_str().expect("a name");
    world.delete("pod", "app");
    world.until_gone("pod", "app");
    eventually("the volume to be detached", || {
        world.volume_state(&volume) == "detached"
    });
    (volume, name.to_owned())
}

/// The disk is taken away, and then given up with the replica that is on it.
fn the_disk_is_given_up(world: &World, path: &str, replica: &str) {
    run("umount", &["--lazy", path]);
    until_its_disk_is_missed(world, replica);
    let remove = ["remove", "node-1", "fast"];
    let way_out = "lariat disk evict node-1 fast";
    disk_ends_with(world, &remove, 3, way_out);
    let dead = [&remove[..], &["--dead"]].concat();
    disk_ends_with(world, &dead, 0, "wants another name");
}

fn until_fast_is_forgotten(world: &World) {
    eventually("the old name not to be reported any more", || {
        status(world, "fast").is_null()
    });
}

/// A dead disk is alive after all, and is called something else now: what is on it is used again.
#[test]
fn a_disk_that_was_given_up_comes_back_under_another_name() {
    let world = World::new(3);
    let extra = Extra::new();
    let path = text(&extra.mount);
    let (volume, name) = volume_on_fast(&world, &path);
    the_disk_is_given_up(&world, &path, &name);

    // Its node serves it under its old name until it has a new one.
    extra.mount();
    eventually("the disk to be served", || {
        let conditions = status(&world, "fast")["conditions"].clone();
        let mut conditions = conditions.as_array().into_iter().flatten();
        conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
    });
    disk_ends_with(&world, &["add", "node-1", "again", &path], 0, "ready");
    until_fast_is_forgotten(&world);
    world.pod("app", "data", Some("node-2"));
    let pod = world.running("app");
    world.until_robust(&volume);
    let replica = replica_on(&world, "again").expect("the replica");
    assert_eq!(replica["metadata"]["name"], json!(name));
    let read = fs::read_to_string(world.path(&pod).join("first"));
    assert_eq!(read.expect("a file"), "first");
    world.delete("pod", "app");
    world.until_gone("pod", "app");
    world.delete("pvc", "data");
    world.until_none("lhr");
    assert_eq!(world.leftovers(), [""; 0]);
}

/// An empty disk is put in the place of a dead one. A detached volume that had a replica there gets one on it without anybody's help.
#[test]
fn a_new_disk_takes_the_place_of_a_dead_one() {
    let world = World::new(3);
    let mut extra = Extra::new();
    let path = text(&extra.mount);
    let (volume, name) = volume_on_fast(&world, &path);
    the_disk_is_given_up(&world, &path, &name);

    extra.mount_another("new");
    // By its name it would be the old one.
    let same_name = ["add", "node-1", "fast", &path];
    disk_ends_with(&world, &same_name, 4, "under another name");
    let remove = ["remove", "node-1", "fast", "--dead"];
    disk_ends_with(&world, &remove, 0, &name);
    disk_ends_with(&world, &["add", "node-1", "new", &path], 0, "ready");
    let is_complete = |volume: &str| {
        let status = world.get("lhv", volume)["status"].clone();
        let members = status["inSyncReplicas"].as_array().map_or(0, Vec::len);
        members == 3 && status["state"] == "detached"
    };
    eventually("the volume to have its replicas and be left alone", || {
        is_complete(&volume) && replica_on(&world, "new").is_some()
    });
    until_fast_is_forgotten(&world);
    assert_ne!(
        replica_on(&world, "new").expect("a replica")["metadata"]["name"],
        json!(name)
    );
    world.pod("app", "data", Some("node-2"));
    let pod = world.running("app");
    let read = fs::read_to_string(world.path(&pod).join("first"));
    assert_eq!(read.expect("a file"), "first");
    world.delete("pod", "app");
    world.until_gone("pod", "app");
    world.delete("pvc", "data");
    world.until_none("lhr");
    assert_eq!(world.leftovers(), [""; 0]);
}

/// Somebody unmounts a disk that is in use. What is at its path then is not taken for an empty disk.
fn the_disk_goes_and_comes_back(world: &World, extra: &Extra, volume: &str, replica: &Value) {
    let path = text(&extra.mount);
    let uuid = status(world, "fast")["diskUUID"].clone();
    run("umount", &["--lazy", &path]);
    eventually("the disk to be refused", || {
        status(world, "fast")["conditions"]
            .as_array()
            .is_some_and(|conditions| {
                conditions
                    .iter()
                    .any(|condition| condition["reason"] == json!("DiskFilesystemChanged"))
            })
    });
    assert_eq!(
        status(world, "fast")["diskUUID"],
        uuid,
        "it is still that disk"
    );
    let left: Vec<_> = fs::read_dir(&extra.mount).expect("a folder").collect();
    assert!(left.is_empty(), "the mount point was written to: {left:?}");
    eventually("the volume to go on without that replica", || {
        world.get("lhv", volume)["status"]["robustness"] == "degraded"
    });

    extra.mount();
    world.until_robust(volume);
    let again = replica_on(world, "fast").expect("a replica on the disk that came back");
    assert_eq!(
        again["metadata"]["name"], replica["metadata"]["name"],
        "what it had was built on"
    );
}
