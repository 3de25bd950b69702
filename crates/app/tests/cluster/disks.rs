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
        let file = fs::File::create(&image).expect("an image");
        file.set_len(4 << 30).expect("a sparse image");
        run("mkfs.ext4", &["-q", &text(&image)]);
        let extra = Self {
            image,
            mount,
            _folder: folder,
        };
        extra.mount();
        extra
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
    eventually("the replica to be served nowhere", || {
        world.get("lhr", name)["status"]["address"] == ""
    });
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
