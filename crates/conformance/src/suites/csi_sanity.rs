//! Kubernetes' own suite for CSI drivers, on a whole embedded cluster: the manager's controller service and one node's.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};

use super::Outcome;
use crate::embedded::Embedded;
use crate::programs;

/// Volumes that xfs and ext4 both like, and that grow.
const VOLUME_BYTES: u64 = 512 << 20;
const GROWN_BYTES: u64 = 768 << 20;
/// The fewest specs that may pass: fewer would mean that a capability is no longer advertised, and its specs skipped.
const PASSED_MIN: usize = 54;

pub(super) async fn run() -> Result<Outcome> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "csi-sanity mounts file systems: run it as root"
    );
    let program = programs::folder("csi-sanity")?.join("csi-sanity");
    let cluster = Embedded::start(&programs::lariat()?, 3).await?;
    let data = cluster.data();
    let work = tempfile::Builder::new().prefix("ls").tempdir_in("/tmp")?;
    let output = tokio::process::Command::new(program)
        .arg(format!(
            "--csi.endpoint={}",
            data.join("nodes/node-1/run/csi.sock").display()
        ))
        .arg(format!(
            "--csi.controllerendpoint={}",
            data.join("csi.sock").display()
        ))
        .arg(format!(
            "--csi.mountdir={}",
            work.path().join("mount").display()
        ))
        .arg(format!(
            "--csi.stagingdir={}",
            work.path().join("staging").display()
        ))
        .arg(format!("--csi.testvolumesize={VOLUME_BYTES}"))
        .arg(format!("--csi.testvolumeexpandsize={GROWN_BYTES}"))
        .arg("--ginkgo.no-color")
        .stderr(Stdio::inherit())
        .output()
        .await
        .context("cannot start csi-sanity")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let mut outcome = Outcome::default();
    let (passed, failed) =
        counts(&said).with_context(|| format!("csi-sanity gave no result:\n{said}"))?;
    outcome.passed = passed;
    if failed > 0 || !output.status.success() {
        println!("{said}");
    }
    for line in said
        .lines()
        .filter(|line| line.trim_start().starts_with("[FAIL]"))
    {
        outcome.fail(line.trim().to_owned());
    }
    if outcome.failures.is_empty() && !output.status.success() {
        outcome.fail(format!("csi-sanity ended with {}", output.status));
    }
    if passed < PASSED_MIN {
        outcome.fail(format!(
            "only {passed} specs ran, at least {PASSED_MIN} are expected"
        ));
    }
    Ok(outcome)
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
