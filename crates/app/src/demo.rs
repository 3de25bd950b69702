//! `lariat demo`: one claim, one pod, one file; the pod moves to another node and the file is there.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use api_types::names::annotation;
use clap::Args;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::wait::{Condition, await_condition, conditions};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::client::ApiArguments;
use crate::exit::{self, Failure, Outcome};
use crate::inventory::{api_error, list};
use crate::output::tell;
use crate::volume::timeline;
use crate::{runtime, suggest};

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
    let client = arguments.api.open().await?;
    require_class(&client, &arguments.storage_class).await?;
    require_two_nodes(&client).await?;
    let demo = Demo {
        pods: Api::namespaced(client.clone(), NAMESPACE),
        claims: Api::namespaced(client.clone(), NAMESPACE),
        client,
        keep: arguments.keep,
        name: format!("demo-{}", &uuid::Uuid::new_v4().simple().to_string()[..6]),
    };
    let outcome = demo.play(&arguments.storage_class).await;
    if arguments.keep {
        tell!(
            "kept: pod/{0} and pvc/{0} in namespace {NAMESPACE}",
            demo.name
        );
        return outcome;
    }
    let put_away = demo.clean_up().await;
    let put_away = put_away.with_context(|| {
        format!(
            "pod/{0} and pvc/{0} in namespace {NAMESPACE} could not be put away",
            demo.name
        )
    });
    match (outcome, put_away) {
        // Both failed: the first is why, and the second is worth a line.
        (Err(error), Err(also)) => {
            eprintln!("lariat: {}", exit::told(&also));
            Err(error)
        }
        (outcome, put_away) => outcome.and(put_away),
    }
}

/// A claim of a class that is not there would wait for ever.
async fn require_class(client: &Client, name: &str) -> Result<()> {
    let classes: Vec<StorageClass> = list(Api::all(client.clone()), "StorageClasses", None).await?;
    let known: Vec<String> = classes.iter().map(ResourceExt::name_any).collect();
    if known.iter().any(|one| one == name) {
        return Ok(());
    }
    if known.is_empty() {
        let message = format!(
            "there is no StorageClass {name:?}, nor any other: the demo needs nodes that serve volumes; start a cluster with \
             nodes with `lariat up`"
        );
        return Err(Failure::new(Outcome::NotFound, message).into());
    }
    let known = known.iter().map(String::as_str);
    Err(suggest::unknown(
        "StorageClass",
        name,
        known,
        "kubectl get storageclasses",
    ))
}

/// The pod moves: with one node it would stay pending for ever.
async fn require_two_nodes(client: &Client) -> Result<()> {
    let nodes: Vec<Node> = list(Api::all(client.clone()), "nodes", None).await?;
    let open: Vec<String> = nodes
        .iter()
        .filter(|node| takes_pods(node))
        .map(ResourceExt::name_any)
        .collect();
    let there = match open.as_slice() {
        [] => "there is none".to_owned(),
        [only] => format!("there is {only} alone"),
        [_, _, ..] => return Ok(()),
    };
    bail!(
        "the demo moves a pod between two nodes that are ready and not cordoned, and {there}; see them with \
         `lariat node list`, and open one with `lariat node uncordon` or start `lariat up` with more --nodes"
    )
}

fn takes_pods(node: &Node) -> bool {
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable);
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let ready =
        conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
    ready && cordoned != Some(true)
}

struct Demo {
    client: Client,
    pods: Api<Pod>,
    claims: Api<PersistentVolumeClaim>,
    keep: bool,
    name: String,
}

impl Demo {
    async fn play(&self, storage_class: &str) -> Result<()> {
        let name = &self.name;
        self.claims
            .create(&PostParams::default(), &self.claim(storage_class)?)
            .await
            .map_err(|error| api_error(error, "create claim", name))?;
        tell!("a claim of 1 GiB and a pod that uses it: {name}");
        let (first, path, took) = self.start(None).await?;
        let file = path.join("greeting");
        let words = format!("written on {first}\n");
        write_durably(&file, &words).with_context(|| {
            format!(
                "cannot write {}; the demo runs on the machine of its nodes, as root",
                file.display()
            )
        })?;
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
            .map_err(|error| api_error(error, "create pod", name))?;
        let running = conditions::is_pod_running();
        let pod = self.wait(running, "run", self.keep).await?;
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
            .await
            .map_err(|error| api_error(error, "delete pod", &self.name))?;
        self.wait(is_gone, "end", self.keep).await?;
        Ok(())
    }

    /// `stays` if the pod is still there after it was late.
    async fn wait(
        &self,
        condition: impl Condition<Pod>,
        what: &str,
        stays: bool,
    ) -> Result<Option<Pod>> {
        let name = &self.name;
        let reached = await_condition(self.pods.clone(), name, condition);
        let Ok(reached) = timeout(STEP_TIMEOUT, reached).await else {
            bail!(late(name, what, stays));
        };
        reached.with_context(|| {
            format!("cannot watch pod/{name}; see whether the API still answers, and try again")
        })
    }

    async fn show_timeline(&self) -> Result<()> {
        let claim = self.claims.get(&self.name).await;
        let claim = claim.map_err(|error| api_error(error, "read claim", &self.name))?;
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
        let (name, how) = (&self.name, DeleteParams::default());
        match self.pods.delete(name, &how).await {
            Ok(_) => {
                self.wait(is_gone, "end", true).await?;
            }
            Err(error) if gone(&error) => {}
            Err(error) => return Err(api_error(error, "delete pod", name)),
        }
        match self.claims.delete(name, &how).await {
            Ok(_) => Ok(()),
            Err(error) if gone(&error) => Ok(()),
            Err(error) => Err(api_error(error, "delete claim", name)),
        }
    }
}

fn is_gone(pod: Option<&Pod>) -> bool {
    pod.is_none()
}

/// A pod that is put away cannot be asked about.
fn late(name: &str, what: &str, stays: bool) -> String {
    let next = if stays {
        format!("see why with: lariat why pod/{name}")
    } else {
        "run the demo with --keep, which leaves the pod, and see why with: lariat why pod/NAME"
            .to_owned()
    };
    let seconds = STEP_TIMEOUT.as_secs();
    format!("pod/{name} did not {what} within {seconds} s; {next}")
}

fn write_durably(path: &std::path::Path, words: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut file = fs::File::create(path)?;
    file.write_all(words.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::golden;

    #[test]
    fn a_pod_that_is_late_can_be_asked_about() {
        let lines = [(false, "run"), (true, "run"), (true, "end")]
            .map(|(stays, what)| late("demo-58d534", what, stays) + "\n");
        golden::check("demo-late", &lines.concat());
    }
}
