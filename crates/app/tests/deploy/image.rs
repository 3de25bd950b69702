//! The Dockerfile, where there is no docker: its packages exist and have the tools that the binary calls.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::root;

/// What is called on a node; see `csi_driver::node`.
const TOOLS: [&str; 9] = [
    "blkid",
    "dumpe2fs",
    "e2fsck",
    "mkfs.ext4",
    "mkfs.xfs",
    "mount",
    "resize2fs",
    "umount",
    "xfs_growfs",
];

fn dockerfile() -> String {
    fs::read_to_string(root().join("Dockerfile")).expect("a Dockerfile")
}

/// The packages between `apt-get install` and the next command.
fn packages(dockerfile: &str) -> BTreeSet<String> {
    let (_, after) = dockerfile.split_once("apt-get install").expect("packages");
    let (listed, _) = after.split_once("&&").expect("an end of the packages");
    let words = listed.split_whitespace().filter(|word| *word != "\\");
    let names = words.filter(|word| !word.starts_with('-'));
    names.map(str::to_owned).collect()
}

fn ask(program: &str, arguments: &[&str]) -> Option<Output> {
    Command::new(program).args(arguments).output().ok()
}

#[test]
fn the_compiler_is_the_one_of_the_workspace() {
    let toolchain = fs::read_to_string(root().join("rust-toolchain.toml")).expect("a toolchain");
    let channel = toolchain.split("channel = \"").nth(1).expect("a channel");
    let channel = channel.split('"').next().expect("a version");
    let wanted = format!("FROM rust:{channel}-bookworm");
    assert!(
        dockerfile().contains(&wanted),
        "the Dockerfile should say {wanted}"
    );
}

#[test]
fn what_is_copied_is_there() {
    for line in dockerfile()
        .lines()
        .filter(|line| line.starts_with("COPY "))
    {
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        if words[0].starts_with("--from") {
            continue;
        }
        for source in &words[..words.len() - 1] {
            assert!(root().join(source).exists(), "{line}: there is no {source}");
        }
    }
}

/// On a Debian whose package lists are there. Elsewhere only what is installed can be told.
#[test]
fn the_packages_are_debians() {
    let lists = fs::read_dir("/var/lib/apt/lists")
        .into_iter()
        .flatten()
        .flatten();
    let has_lists = lists
        .into_iter()
        .any(|entry| entry.file_name().to_string_lossy().contains("_Packages"));
    let packages = packages(&dockerfile());
    assert!(packages.contains("e2fsprogs"), "{packages:?}");
    for package in &packages {
        let Some(answer) = ask("apt-cache", &["show", package]) else {
            eprintln!("skipped: this machine has no apt-cache");
            return;
        };
        assert!(
            answer.status.success() || !has_lists,
            "Debian has no package {package}"
        );
    }
}

/// Each tool is in one of the packages, or in one that every Debian has.
#[test]
fn the_packages_have_the_tools() {
    let packages = packages(&dockerfile());
    for tool in TOOLS {
        let places = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
        let paths = places.map(|place| format!("{place}/{tool}"));
        let there: Vec<&str> = paths
            .iter()
            .map(String::as_str)
            .filter(|path| Path::new(path).exists())
            .collect();
        let Some(answer) = ask("dpkg-query", &[&["-S"], &there[..]].concat()) else {
            eprintln!("skipped: this machine has no dpkg");
            return;
        };
        let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
        let owners = answer.lines().filter_map(|line| line.split(':').next());
        let owners: Vec<&str> = owners.collect();
        assert!(
            owners.iter().any(|owner| packages.contains(*owner)),
            "{tool} is in {owners:?}, none of which the image has"
        );
    }
}
