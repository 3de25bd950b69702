//! `disk identify` on real block devices. Needs no cluster.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::lariat;

/// A loop device, detached when the test ends.
struct Loop {
    device: String,
}

impl Loop {
    fn new(file: &Path) -> Self {
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(file)
            .output()
            .expect("losetup");
        let device = String::from_utf8(output.stdout)
            .expect("text")
            .trim()
            .to_owned();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(device.starts_with("/dev/loop"), "{said}");
        Self { device }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        Command::new("losetup")
            .args(["--detach", &self.device])
            .status()
            .ok();
    }
}

fn file(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    let file = std::fs::File::create(&path).expect("a file");
    file.set_len(2 << 30).expect("a sparse file");
    path
}

fn identified(device: &str) -> Value {
    let output = Command::new(lariat())
        .args(["disk", "identify", "-o", "json"])
        .output()
        .expect("lariat");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let rows: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let found = rows
        .as_array()
        .expect("a list")
        .iter()
        .find(|row| row["device"] == device);
    found
        .unwrap_or_else(|| panic!("{device} is not in {rows}"))
        .clone()
}

#[test]
fn devices_are_told_apart_by_their_file_systems_and_copies_are_found() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (empty, original) = (
        file(folder.path(), "empty"),
        file(folder.path(), "original"),
    );
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-F"])
        .arg(&original)
        .status();
    assert!(made.expect("mkfs.ext4").success());
    let empty = Loop::new(&empty);
    let row = identified(&empty.device);
    assert_eq!(
        (&row["usable"], &row["identity"]["by"]),
        (&false.into(), &"none".into()),
        "{row}"
    );
    assert!(
        row["reasons"]
            .to_string()
            .contains("nothing tells it apart"),
        "{row}"
    );

    let first = Loop::new(&original);
    let row = identified(&first.device);
    assert_eq!(
        (&row["usable"], &row["content"]),
        (&true.into(), &"ext4".into()),
        "{row}"
    );
    assert_eq!(row["identity"]["by"], "file-system-uuid", "{row}");

    let copy = folder.path().join("copy");
    let copied = Command::new("cp")
        .arg("--sparse=always")
        .args([&original, &copy])
        .status();
    assert!(copied.expect("cp").success());
    let second = Loop::new(&copy);
    for (device, other) in [(&first, &second), (&second, &first)] {
        let row = identified(&device.device);
        assert_eq!(row["usable"], false, "{row}");
        assert_eq!(row["duplicates"][0], other.device.as_str(), "{row}");
    }
    let rule = Command::new(lariat())
        .args(["disk", "identify", "--udev-rule"])
        .output()
        .expect("lariat");
    let rule = String::from_utf8(rule.stdout).expect("text");
    assert!(
        rule.contains("ENV{ID_WWN}=\"fake.$env{ID_SERIAL}\""),
        "{rule}"
    );
}
