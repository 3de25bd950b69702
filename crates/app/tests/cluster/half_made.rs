//! A node dies while it makes a file system: the next one may make it again, because it is written down whose the half is.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::eventually;
use crate::world::{World, condition};

const MARK: &str = "lariat.io/making-file-system";

/// An `mkfs.ext4` before the machine's own in the path. Once it is told to, it writes something and gets no further.
struct HalfMaker {
    folder: tempfile::TempDir,
}

impl HalfMaker {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let place = folder.path().display();
        let path = std::env::var("PATH").expect("a path");
        // It waits for as long as the test lasts: the folder goes with it.
        let script = format!(
            "#!/bin/sh
for device; do :; done
if rm {place}/stop 2>/dev/null; then
    printf 'half of a file system' | dd of=\"$device\" bs=4096 seek=16 conv=notrunc,fsync status=none
    touch {place}/stopped
    while [ -e {place}/stopped ]; do sleep 0.2; done
    exit 1
fi
PATH='{path}' exec mkfs.ext4 \"$@\"
"
        );
        let program = folder.path().join("mkfs.ext4");
        fs::write(&program, script).expect("a script");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a program");
        Self { folder }
    }

    /// What every process of a cluster must have in its environment.
    fn environment(&self) -> &'static [(&'static str, &'static str)] {
        let path = std::env::var("PATH").expect("a path");
        let path = format!("{}:{path}", self.folder.path().display());
        let path: &'static str = Box::leak(path.into_boxed_str());
        Box::leak(Box::new([("PATH", path)]))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn stop_the_next(&self) {
        fs::remove_file(self.file("stopped")).ok();
        File::create(self.file("stop")).expect("a file");
    }

    fn until_stopped(&self) {
        eventually("mkfs to be half-way", || self.file("stopped").exists());
    }
}

fn mark(world: &World, volume: &str) -> Value {
    world.get("lhv", volume)["metadata"]["annotations"][MARK].clone()
}

fn check_usable(path: &Path) {
    fs::write(path.join("file"), "content").expect("a write");
    let read = fs::read_to_string(path.join("file")).expect("a read");
    assert_eq!(read, "content");
}

#[test]
fn what_a_dead_node_left_half_made_is_made_again_elsewhere() {
    let maker = HalfMaker::new();
    let world = World::with_environment(3, maker.environment());
    world.claim("data", "longhorn", "Filesystem");
    maker.stop_the_next();
    world.pod("app", "data", Some("node-1"));
    maker.until_stopped();
    let volume = world.volume_of("data");
    assert_eq!(mark(&world, &volume), "node-1");

    world.power_off("node-1");
    eventually("node-1 to be lost", || {
        condition(&world.get("lhn", "node-1"), "Ready") == "False"
    });
    world.until_gone("pod", "app");
    world.pod("app", "data", Some("node-2"));
    check_usable(&world.path(&world.running("app")));
    assert_eq!(mark(&world, &volume), Value::Null);

    world.power_on("node-1");
    eventually("node-1 to be back", || {
        condition(&world.get("lhn", "node-1"), "Ready") == "True"
    });
    world.until_robust(&volume);
}

/// The same bytes, and nobody who says that they are ours: they are left alone until somebody does.
#[test]
fn what_nobody_began_is_not_formatted() {
    let maker = HalfMaker::new();
    let world = World::with_environment(3, maker.environment());
    world.claim("data", "longhorn", "Filesystem");
    maker.stop_the_next();
    world.pod("app", "data", Some("node-1"));
    maker.until_stopped();
    let volume = world.volume_of("data");
    let annotate = |annotation: &str| {
        let namespace = ["-n", "longhorn-system"];
        let words = ["annotate", "volumes.longhorn.io", &volume, annotation];
        world.kubectl.prints(&[&words[..], &namespace[..]].concat());
    };
    annotate(&format!("{MARK}-"));
    world.kill(&world.processes(&["--name node-1"]));
    for (kind, name) in [
        ("Pod", "app"),
        ("PersistentVolumeClaim", "data"),
        ("Volume", volume.as_str()),
    ] {
        world.until_told(kind, name, "FailedMount", "not formatted");
    }
    // For a moment the agent that was killed is what there is to tell of.
    let cause = "node node-1 has the device and does not mount it: volume ";
    world.until_stuck("app", cause);
    assert_ne!(world.get("pod", "app")["status"]["phase"], "Running");
    assert_eq!(mark(&world, &volume), Value::Null);

    annotate(&format!("{MARK}=node-1"));
    check_usable(&world.path(&world.running("app")));
    assert_eq!(mark(&world, &volume), Value::Null);
}
