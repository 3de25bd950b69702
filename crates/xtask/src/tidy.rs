//! Taste as a test: which crate may know which, and how long a file may grow.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// What must *not* be reachable from a crate. The architecture lives in these absences: a pure core
/// that pulls in a runtime is no longer pure, whatever its documentation says.
const ABSENCES: &[(&str, &[&str])] = &[
    ("api-types", &["tokio", "hyper", "redb", "rustix"]),
    ("attach-core", &["tokio", "hyper", "redb", "block-core"]),
    ("volume-core", &["tokio", "hyper", "redb", "block-core"]),
    ("cluster-core", &["tokio", "hyper", "redb", "block-core"]),
    ("diagnose", &["tokio", "hyper", "redb", "block-core"]),
    ("revision-store", &["kube", "k8s-openapi", "axum"]),
    (
        "apiserver",
        &["attach-core", "volume-core", "cluster-core", "block-core"],
    ),
    ("block-core", &["tokio", "kube", "k8s-openapi", "rustix"]),
    ("replica", &["kube", "k8s-openapi"]),
    ("engine", &["kube", "k8s-openapi", "replica"]),
    ("events", &["block-core", "apiserver", "api-types", "redb"]),
    ("controllers", &["block-core", "apiserver", "redb"]),
    ("csi-driver", &["block-core", "apiserver", "redb"]),
    ("node-agent", &["apiserver", "controllers", "redb"]),
];

/// Past this many lines a file probably has a second subject.
const LINES_MAX: usize = 600;

/// Files that were longer when the rule came, or have a reason to be: path, lines allowed. Numbers
/// here only ever go down.
const LONGER: &[(&str, usize)] = &[];

pub fn check(root: &Path) -> Result<()> {
    let mut complaints = Vec::new();
    for (package, forbidden) in ABSENCES {
        if root.join("crates").join(package).exists() {
            let reachable = dependencies_of(root, package)?;
            for name in *forbidden {
                if reachable.iter().any(|dependency| dependency == name) {
                    complaints.push(format!(
                        "{package} must not depend on {name}: see `cargo tree -p {package} -e normal -i {name}`"
                    ));
                }
            }
        }
    }
    for file in rust_files(&root.join("crates"))? {
        let lines = fs::read_to_string(&file)?.lines().count();
        let name = file.strip_prefix(root)?.display().to_string();
        let allowed = LONGER
            .iter()
            .find(|(path, _)| *path == name)
            .map_or(LINES_MAX, |(_, lines)| *lines);
        if lines > allowed {
            complaints.push(format!(
                "{name} has {lines} lines, {allowed} are allowed: split it"
            ));
        }
    }
    if complaints.is_empty() {
        return Ok(());
    }
    bail!(
        "{} untidy:\n  {}",
        complaints.len(),
        complaints.join("\n  ")
    )
}

fn dependencies_of(root: &Path, package: &str) -> Result<Vec<String>> {
    let output = Command::new("cargo")
        .args([
            "tree", "-p", package, "-e", "normal", "--prefix", "none", "-f", "{p}",
        ])
        .current_dir(root)
        .output()
        .context("cannot run cargo tree")?;
    if !output.status.success() {
        bail!(
            "cargo tree -p {package}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect())
}

fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
