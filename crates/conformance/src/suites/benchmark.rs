//! `lariat bench api` against the real kube-apiserver on etcd and against ours, and a storm of attachments through the
//! external-attacher and through ours, one after the other in one run.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::{Outcome, kubernetes};
use crate::control_plane::{ControlPlane, Options};
use crate::embedded::Embedded;
use crate::programs;

pub(super) async fn run() -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let lariat = programs::optimised_lariat()?;
    let options = Options {
        durable: true,
        ..Options::default()
    };
    let real = ControlPlane::start(&options).await?;
    measure("kube-apiserver and etcd", &lariat, &real.kubeconfig())?;
    drop(real);
    outcome.passed += 1;
    let ours = Embedded::start(&lariat, 0).await?;
    measure("lariat up --nodes 0", &lariat, &ours.kubeconfig())?;
    drop(ours);
    outcome.passed += 1;
    kubernetes::measure_storm(&lariat)?;
    outcome.passed += 1;
    Ok(outcome)
}

fn measure(server: &str, lariat: &Path, kubeconfig: &Path) -> Result<()> {
    println!("{server}:");
    let measured = Command::new(lariat)
        .args(["bench", "api", "--kubeconfig"])
        .arg(kubeconfig)
        .status()
        .context("cannot start lariat")?;
    ensure!(measured.success(), "{server} could not be measured");
    Ok(())
}
