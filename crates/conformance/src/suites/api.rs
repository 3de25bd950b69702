//! The behaviours of `crates/app/tests/behaviours`, against the real kube-apiserver and against ours: the rows are true, and
//! we keep them.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use super::Outcome;
use crate::control_plane::{ControlPlane, Options};
use crate::programs::workspace_root;

const CONTROLLERS: [&str; 2] = ["garbage-collector-controller", "namespace-controller"];

pub(super) async fn run() -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let options = Options {
        // They collect garbage and empty namespaces, as our API does by itself.
        controllers: CONTROLLERS.map(str::to_owned).to_vec(),
        ..Options::default()
    };
    let real = ControlPlane::start(&options).await?;
    behaviours(
        "kube-apiserver",
        Some(real.kubeconfig().into()),
        &mut outcome,
    )?;
    drop(real);
    behaviours("lariat up", None, &mut outcome)?;
    Ok(outcome)
}

/// Runs the test that knows the behaviours; its last words say how many passed and what differs.
fn behaviours(server: &str, kubeconfig: Option<OsString>, outcome: &mut Outcome) -> Result<()> {
    println!("behaviours against {server}");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args([
            "test",
            "--locked",
            "--package",
            "app",
            "--test",
            "api_behaviours",
            "--",
            "--nocapture",
        ])
        .current_dir(workspace_root())
        .stderr(Stdio::inherit());
    if let Some(path) = kubeconfig {
        command.env("LARIAT_SUITE_KUBECONFIG", path);
    }
    let output = command.output().context("cannot start cargo")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let count = said
        .lines()
        .find_map(|line| line.split_once(" behaviours passed, "));
    let (passed, failed) =
        count.with_context(|| format!("{server}: the test said nothing of behaviours:\n{said}"))?;
    outcome.passed += passed.trim().parse::<usize>()?;
    let failed = failed
        .split(' ')
        .next()
        .unwrap_or_default()
        .parse::<usize>()?;
    if failed > 0 || !output.status.success() {
        println!("{said}");
    }
    for _ in 0..failed {
        outcome.fail(format!("a behaviour on {server}, shown above"));
    }
    if failed == 0 && !output.status.success() {
        outcome.fail(format!(
            "{server}: the behaviours' test ended with {}",
            output.status
        ));
    }
    Ok(())
}
