//! Lariat installed on a real control plane, each part with its own account: the tests of `crates/app/tests/kubernetes`.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::Outcome;
use crate::programs::{folder, workspace_root};

/// The sets whose programs the tests start.
const SETS: [&str; 5] = ["kubernetes", "etcd", "provisioner", "attacher", "helm"];

pub(super) async fn run() -> Result<Outcome> {
    let said = test(&[], &[])?;
    let outcome = read(&said);
    if !outcome.failures.is_empty() {
        println!("{said}");
    }
    ensure!(
        outcome.passed + outcome.failures.len() > 0,
        "the tests said nothing:\n{said}"
    );
    Ok(outcome)
}

/// Five hundred attachments through this `lariat` and through the external-attacher, also with its defaults.
pub(super) fn measure_storm(lariat: &Path) -> Result<()> {
    let variables = [
        ("LARIAT_BIN", lariat.as_os_str()),
        ("LARIAT_STORM_WITH_DEFAULTS", OsStr::new("1")),
        ("LARIAT_DURABLE_ETCD", OsStr::new("1")),
    ];
    let said = test(&["storm", "--show-output"], &variables)?;
    let figures = said.lines().filter(|line| line.contains(" attached in "));
    for line in figures {
        println!("{line}");
    }
    ensure!(read(&said).passed == 1, "the storm failed:\n{said}");
    Ok(())
}

/// Runs the tests with these further arguments and variables; what they print.
fn test(arguments: &[&str], variables: &[(&str, &OsStr)]) -> Result<String> {
    let folders = SETS.map(folder).into_iter().collect::<Result<Vec<_>>>()?;
    let programs = std::env::join_paths(folders).context("a folder's name has a colon")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["test", "--locked", "--package", "app", "--test"])
        .args(["kubernetes", "--", "--test-threads=1"])
        .args(arguments)
        .env("LARIAT_KUBERNETES_BIN", programs)
        .envs(variables.iter().copied())
        .current_dir(workspace_root())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The test runner's line for each test: `test NAME ... ok`.
fn read(said: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let lines = said.lines().filter_map(|line| line.strip_prefix("test "));
    for (name, result) in lines.filter_map(|line| line.split_once(" ... ")) {
        if result == "ok" {
            outcome.passed += 1;
        } else {
            outcome.fail(format!("{name}: {result}"));
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn every_test_is_counted() {
        let outcome =
            read("running 2 tests\ntest a::b ... ok\ntest c ... FAILED\n\ntest result: x");
        assert_eq!(outcome.passed, 1);
        assert_eq!(outcome.failures, ["c: FAILED"]);
    }
}
