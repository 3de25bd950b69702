//! Servers that belong to a benchmark, and how they are spoken to.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use http::Request;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;

const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs a benchmark with a folder of its own, which is gone afterwards.
pub(super) async fn with_folder<F: Future<Output = Result<()>>>(
    run: impl FnOnce(PathBuf) -> F,
) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("lariat-bench-{}", std::process::id()));
    let outcome = run(folder.clone()).await;
    std::fs::remove_dir_all(&folder).ok();
    outcome
}

pub(super) async fn send(
    client: &Client,
    method: &str,
    uri: &str,
    body: Option<&Value>,
) -> Result<Value> {
    let bytes = body
        .map(|body| body.to_string().into_bytes())
        .unwrap_or_default();
    let kind = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = Request::builder()
        .method(method)
        .uri(uri)
        .header("Content-Type", kind)
        .body(bytes)?;
    client
        .request::<Value>(request)
        .await
        .map_err(|error| match error {
            kube::Error::Api(status) => anyhow::anyhow!("{method} {uri}: {}", status.message),
            other => other.into(),
        })
}

pub(super) async fn client(kubeconfig: &Path) -> Result<Client> {
    let read = Kubeconfig::read_from(kubeconfig)
        .with_context(|| format!("cannot read {}", kubeconfig.display()))?;
    let config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// An API server of its own, ended with the benchmark.
pub(super) struct Server {
    child: Child,
}

impl Server {
    /// Starts it, and tells how long it took to be ready.
    pub(super) fn start(folder: &Path) -> Result<(Self, Duration)> {
        let ready: PathBuf = folder.join("ready");
        let started = Instant::now();
        let child = Command::new(std::env::current_exe()?)
            .args([
                "up",
                "--nodes",
                "0",
                "--listen",
                "127.0.0.1:0",
                "--data-dir",
            ])
            .arg(folder)
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start lariat up")?;
        let mut server = Self { child };
        let own = server.child.id().to_string();
        while std::fs::read_to_string(&ready).map_or(true, |pid| pid.trim() != own) {
            if let Some(status) = server.child.try_wait()? {
                bail!("lariat up ended with {status}");
            }
            ensure!(
                started.elapsed() < START_TIMEOUT,
                "lariat up is not ready after {START_TIMEOUT:?}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok((server, started.elapsed()))
    }

    pub(super) fn stop(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    pub(super) fn resident_mebibytes(&self) -> Result<u64> {
        resident_mebibytes(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop().ok();
    }
}

pub(super) fn resident_mebibytes(process_id: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process_id}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("no VmRSS")?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kibibytes / 1024)
}
