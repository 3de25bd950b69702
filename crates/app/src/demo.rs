//! `lariat demo`: one claim, one pod, one file; the pod moves to another node and the file is there.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use api_types::names::annotation;
use clap::Args;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, PostParams};
use kube::runtime::wait::{Condition, await_condition, conditions};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::client::ApiArguments;
use crate::output::tell;
use crate::runtime;
use crate::volume::timeline;

/// Far more than any step takes; then something is wrong, and the error says where to look.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "default";
const VOLUME: &str = "data";

#[derive(Args)]
pub(crate) struct DemoArguments {
    #[command(flatten)]
    pub api: ApiArguments,

    /// The StorageClass to use
    #[arg(long, default_value = "longhorn", value_name = "NAME")]
    pub storage_class: String,

    /// Leave the claim and the pod, to look at them
    #[arg(long)]
    pub keep: bool,
}

pub(crate) fn run(arguments: DemoArguments) -> Result<()> {
    runtime::block_on(demo(arguments))
}

async fn demo(arguments: DemoArguments) -> Result<()> {
    let client = arguments.api.connect().await?;
    let demo = Demo {
        pods: Api::namespaced(client.clone(), NAMESPACE),
        claims: Api::namespaced(client.clone(), NAMESPACE),
        client,
        name: format!("demo-{}", &uuid::Uuid::new_v4().simple().to_string()[..6]),
    };
    let outcome = demo.play(&arguments.storage_class).await;
    if arguments.keep {
        tell!(
            "kept: pod/{0} and pvc/{0} in namespace {NAMESPACE}",
            demo.name
        );
    } else {
        demo.clean_up()
            .await
            .context("the demo could not be put away")?;
    }
    outcome
}

struct Demo {
    client: Client,
    pods: Api<Pod>,
    claims: Api<PersistentVolumeClaim>,
    name: String,
}

impl Demo {
    async fn play(&self, storage_class: &str) -> Result<()> {
        let name = &self.name;
        self.claims
            .create(&PostParams::default(), &self.claim(storage_class)?)
            .await
            .with_context(|| format!("cannot create pvc/{name}"))?;
        tell!("a claim of 1 GiB and a pod that uses it: {name}");
        let (first, path, took) = self.start(None).await?;
        let file = path.join("greeting");
        let words = format!("written on {first}\n");
        write_durably(&file, &words).with_context(|| format!("cannot write {}", file.display()))?;
        tell!(
            "  running on {first} after {took} ms; wrote {}",
            file.display()
        );

        self.stop().await?;
        let (second, path, took) = self.start(Some(&first)).await?;
        let file = path.join("greeting");
        let read = fs::read_to_string(&file)
            .with_context(|| format!("the file is not there any more: {}", file.display()))?;
        if read != words {
            bail!(
                "{} holds {read:?}, and {words:?} was written",
                file.display()
            );
        }
        tell!(
            "  moved to {second} after {took} ms; the file says: {}",
            read.trim()
        );
        self.show_timeline().await
    }

    fn claim(&self, storage_class: &str) -> Result<PersistentVolumeClaim> {
        Ok(serde_json::from_value(json!({
            "metadata": {"name": self.name},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": storage_class,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }))?)
    }

    fn pod(&self, not_on: Option<&str>) -> Result<Pod> {
        let elsewhere = not_on.map(|node| {
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [node]}]},
            ]}}})
        });
        Ok(serde_json::from_value(json!({
            "metadata": {"name": self.name},
            "spec": {
                "affinity": elsewhere,
                "containers": [{"name": "app", "image": "none", "volumeMounts": [{"name": VOLUME, "mountPath": "/data"}]}],
                "volumes": [{"name": VOLUME, "persistentVolumeClaim": {"claimName": self.name}}],
            },
        }))?)
    }

    /// Creates the pod and waits until it runs: its node, where its volume is, and the milliseconds that it took.
    async fn start(&self, not_on: Option<&str>) -> Result<(String, PathBuf, u128)> {
        let name = &self.name;
        let started = Instant::now();
        self.pods
            .create(&PostParams::default(), &self.pod(not_on)?)
            .await
            .with_context(|| format!("cannot create pod/{name}"))?;
        let pod = self.wait(conditions::is_pod_running(), "run").await?;
        let took = started.elapsed().as_millis();
        let pod = pod.with_context(|| format!("pod/{name} is gone"))?;
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let mounts = pod.annotations().get(annotation::MOUNTS);
        let mounts = mounts.with_context(|| {
            format!(
                "pod/{name} runs, but does not say where: the demo needs the nodes of `lariat up`"
            )
        })?;
        let mounts: serde_json::Value = serde_json::from_str(mounts)?;
        let path = mounts[VOLUME]
            .as_str()
            .context("the pod's mounts lack its volume")?;
        Ok((node.unwrap_or_default(), path.into(), took))
    }

    async fn stop(&self) -> Result<()> {
        self.pods
            .delete(&self.name, &DeleteParams::default())
            .await?;
        self.wait(|pod: Option<&Pod>| pod.is_none(), "end").await?;
        Ok(())
    }

    async fn wait(&self, condition: impl Condition<Pod>, what: &str) -> Result<Option<Pod>> {
        let name = &self.name;
        let reached = await_condition(self.pods.clone(), name, condition);
        let Ok(reached) = timeout(STEP_TIMEOUT, reached).await else {
            bail!(
                "pod/{name} did not {what} within {} s; look at: kubectl describe pod {name}",
                STEP_TIMEOUT.as_secs()
            );
        };
        Ok(reached?)
    }

    async fn show_timeline(&self) -> Result<()> {
        let claim = self.claims.get(&self.name).await?;
        let volume = claim
            .spec
            .and_then(|spec| spec.volume_name)
            .unwrap_or_default();
        // Two attachments and one detachment; the last is kept a moment after the pod runs.
        let asked = Instant::now();
        let mut passages = timeline::passages(&self.client, &volume).await?;
        while passages.len() < 3 && asked.elapsed() < Duration::from_secs(3) {
            sleep(Duration::from_millis(20)).await;
            passages = timeline::passages(&self.client, &volume).await?;
        }
        tell!("");
        for passage in &passages {
            tell!("{}", timeline::render(&volume, passage));
        }
        Ok(())
    }

    async fn clean_up(&self) -> Result<()> {
        let gone =
            |error: &kube::Error| matches!(error, kube::Error::Api(status) if status.code == 404);
        match self.pods.delete(&self.name, &DeleteParams::default()).await {
            Ok(_) => {
                self.wait(|pod: Option<&Pod>| pod.is_none(), "end").await?;
            }
            Err(error) if gone(&error) => {}
            Err(error) => return Err(error.into()),
        }
        match self
            .claims
            .delete(&self.name, &DeleteParams::default())
            .await
        {
            Ok(_) => Ok(()),
            Err(error) if gone(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn write_durably(path: &std::path::Path, words: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut file = fs::File::create(path)?;
    file.write_all(words.as_bytes())?;
    file.sync_all()
}
