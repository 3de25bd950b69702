//! Kubernetes' own suite for CSI drivers, on a whole embedded cluster: the manager's controller service and one node's.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};

use super::Outcome;
use crate::embedded::Embedded;
use crate::programs;

/// Volumes that xfs and ext4 both like, and that grow.
const VOLUME_BYTES: u64 = 512 << 20;
const GROWN_BYTES: u64 = 768 << 20;
/// The fewest specs that may pass for each access type: fewer would mean that a capability is no longer advertised, and its specs
/// skipped.
const PASSED_MIN: usize = 54;
const ACCESS_TYPES: [&str; 2] = ["mount", "block"];

pub(super) async fn run() -> Result<Outcome> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "csi-sanity mounts file systems: run it as root"
    );
    let program = programs::folder("csi-sanity")?.join("csi-sanity");
    let cluster = Embedded::start(&programs::lariat()?, 3).await?;
    let mut outcome = Outcome::default();
    for access in ACCESS_TYPES {
        run_for(access, &program, &cluster.data(), &mut outcome).await?;
    }
    Ok(outcome)
}

async fn run_for(access: &str, program: &Path, data: &Path, outcome: &mut Outcome) -> Result<()> {
    let work = tempfile::Builder::new().prefix("ls").tempdir_in("/tmp")?;
    let path = |name: &str, path: PathBuf| format!("--csi.{name}={}", path.display());
    let output = tokio::process::Command::new(program)
        .arg(path("endpoint", data.join("nodes/node-1/run/csi.sock")))
        .arg(path("controllerendpoint", data.join("csi.sock")))
        .arg(path("mountdir", work.path().join("mount")))
        .arg(path("stagingdir", work.path().join("staging")))
        .arg(format!("--csi.testvolumesize={VOLUME_BYTES}"))
        .arg(format!("--csi.testvolumeexpandsize={GROWN_BYTES}"))
        .arg(format!("--csi.testvolumeaccesstype={access}"))
        .arg("--ginkgo.no-color")
        .stderr(Stdio::inherit())
        .output()
        .await
        .context("cannot start csi-sanity")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let (passed, failed) = counts(&said)
        .with_context(|| format!("csi-sanity gave no result for {access}:\n{said}"))?;
    outcome.passed += passed;
    if failed > 0 || !output.status.success() {
        println!("{said}");
    }
    let failures = said.lines().map(str::trim);
    let failures: Vec<&str> = failures.filter(|line| line.starts_with("[FAIL]")).collect();
    for line in &failures {
        outcome.fail(format!("{access}: {line}"));
    }
    if failures.is_empty() && !output.status.success() {
        outcome.fail(format!("{access}: csi-sanity ended with {}", output.status));
    }
    if passed < PASSED_MIN {
        outcome.fail(format!(
            "{access}: only {passed} specs ran, at least {PASSED_MIN} are expected"
        ));
    }
    Ok(())
}

/// From ginkgo's last line: `SUCCESS! -- 62 Passed | 0 Failed | 1 Pending | 29 Skipped`.
fn counts(said: &str) -> Option<(usize, usize)> {
    let (_, line) = said.lines().find_map(|line| line.split_once("! -- "))?;
    let number = |word: &str| {
        let part = line.split('|').find(|part| part.contains(word))?;
        part.split_whitespace().next()?.parse().ok()
    };
    Some((number("Passed")?, number("Failed")?))
}

#[cfg(test)]
mod tests {
    use super::counts;

    #[test]
    fn the_last_line_of_ginkgo_is_understood() {
        let line = "FAIL! -- 61 Passed | 1 Failed | 1 Pending | 29 Skipped";
        assert_eq!(counts(line), Some((61, 1)));
        assert_eq!(counts("Ran 62 of 92 Specs"), None);
    }
}
