//! Where the programs of other people are, built if need be.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// The folder of this repository.
#[must_use]
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("a crate lives two folders below the workspace root")
        .to_path_buf()
}

/// The folder with the programs of one set, a folder of `conformance/`; they are built if the cache lacks them.
///
/// # Errors
/// If they cannot be built: without Go, or without network and with an empty module cache.
pub fn folder(set: &str) -> Result<PathBuf> {
    let script = workspace_root().join("conformance/build");
    let output = Command::new(&script)
        .arg(set)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {}", script.display()))?;
    ensure!(
        output.status.success(),
        "`conformance/build {set}` ended with {}: what the suites run against is not there",
        output.status
    );
    Ok(PathBuf::from(
        String::from_utf8_lossy(&output.stdout).trim(),
    ))
}

/// The `lariat` under test: `LARIAT_BIN`, or the debug build of this repository, built anew.
///
/// # Errors
/// If it does not build.
pub fn lariat() -> Result<PathBuf> {
    // As the behaviours' test has it built: with other features, half of the workspace would be compiled once more.
    let arguments = ["test", "--test", "api_behaviours", "--no-run"];
    built(&arguments, "debug")
}

/// The `lariat` that is measured: `LARIAT_BIN`, or the release build of this repository, built anew.
///
/// # Errors
/// If it does not build.
pub fn optimised_lariat() -> Result<PathBuf> {
    built(&["build", "--release"], "release")
}

fn built(arguments: &[&str], profile: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("LARIAT_BIN") {
        return Ok(path.into());
    }
    let root = workspace_root();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(arguments)
        .args(["--locked", "--package", "app"])
        .current_dir(&root)
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "lariat does not build ({status})");
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join(profile).join("lariat"))
}
