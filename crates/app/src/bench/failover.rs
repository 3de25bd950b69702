//! `lariat bench failover`: how long a volume is away when its node dies, on a cluster that `lariat up` runs here.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use api_types::{Volume, names};
use clap::Args;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, PostParams};
use kube::runtime::wait::conditions;
use kube::{Api, Client};
use rustix::process::{Pid, Signal, kill_process};

use super::attach::{claim, pod, wait};
use super::report::Line;
use crate::client::ApiArguments;
use crate::data_dir::DataDir;

const NAME: &str = "bench-failover";
const HEALTH_TIMEOUT: Duration = Duration::from_secs(300);
/// Between two looks at what is only waited for, and not measured.
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(Args)]
pub(crate) struct BenchFailoverArguments {
    #[command(flatten)]
    pub api: ApiArguments,

    /// The folder of the cluster; its nodes will be killed
    #[arg(long, env = "LARIAT_DATA_DIR", value_name = "DIR")]
    pub data_dir: PathBuf,

    /// How often a node is killed
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub kills: usize,

    #[arg(long, default_value = "longhorn", value_name = "NAME")]
    pub storage_class: String,
}

pub(super) async fn run(arguments: BenchFailoverArguments) -> Result<()> {
    let client = arguments.api.open().await?;
    let data_dir = DataDir::new(&arguments.data_dir);
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
    let create = PostParams::default();
    claims
        .create(&create, &claim(NAME, &arguments.storage_class)?)
        .await?;
    pods.create(&create, &pod(NAME)?).await?;
    wait(&pods, NAME, conditions::is_pod_running()).await?;
    let mut away = Vec::new();
    for round in 1..=arguments.kills {
        let lost = until_healthy(&client, &pods, &claims).await?;
        let hold = data_dir.node(&lost).join("hold");
        fs::write(&hold, "").with_context(|| {
            format!(
                "{} is not the folder of this cluster: it has no node {lost}",
                arguments.data_dir.display()
            )
        })?;
        let started = Instant::now();
        kill_all(&data_dir.node(&lost));
        wait(&pods, NAME, |pod: Option<&Pod>| pod.is_none()).await?;
        pods.create(&create, &pod(NAME)?).await?;
        wait(&pods, NAME, conditions::is_pod_running()).await?;
        away.push(started.elapsed());
        eprintln!("kill {round}: {:.2} s", started.elapsed().as_secs_f64());
        fs::remove_file(&hold)?;
    }
    Line::latency(
        format!("{} kills: node dead to mounted elsewhere", arguments.kills),
        &mut away,
    )
    .print();
    pods.delete(NAME, &DeleteParams::default()).await?;
    wait(&pods, NAME, |pod: Option<&Pod>| pod.is_none()).await?;
    claims.delete(NAME, &DeleteParams::default()).await?;
    Ok(())
}

/// Waits until the volume has all its replicas again; answers where its pod is.
async fn until_healthy(
    client: &Client,
    pods: &Api<Pod>,
    claims: &Api<PersistentVolumeClaim>,
) -> Result<String> {
    let volumes: Api<Volume> = Api::namespaced(client.clone(), names::NAMESPACE);
    let started = Instant::now();
    loop {
        let claim = claims.get(NAME).await?;
        let volume = claim.spec.and_then(|spec| spec.volume_name);
        let volume = volumes.get(&volume.context("the claim is bound")?).await?;
        let healthy = volume
            .status
            .is_some_and(|status| status.robustness == api_types::VolumeRobustness::Healthy);
        if healthy {
            let spec = pods.get(NAME).await?.spec;
            return spec
                .and_then(|spec| spec.node_name)
                .context("the pod has a node");
        }
        if started.elapsed() > HEALTH_TIMEOUT {
            bail!(
                "volume {} did not become healthy again",
                volume.metadata.name.unwrap_or_default()
            );
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Ends every process of the node's folder, as a loss of power would.
fn kill_all(folder: &Path) {
    let folder = folder.to_string_lossy();
    let own = std::process::id().to_string();
    // A part may start another one while it is being killed.
    for _ in 0..3 {
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = entry.file_name();
            let (name, line) = (
                name.to_string_lossy(),
                fs::read(entry.path().join("cmdline")),
            );
            let of_node = line.is_ok_and(|line| {
                let mut words = line.split(|byte| *byte == 0);
                words.any(|word| String::from_utf8_lossy(word).starts_with(folder.as_ref()))
            });
            if of_node
                && name != own
                && let Some(pid) = name.parse().ok().and_then(Pid::from_raw)
            {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}
