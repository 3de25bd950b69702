//! `lariat bench attach`: from a pod to its mounted volume and back, on a cluster that runs.
//!
//! How long a publish takes to answer once its ticket is satisfied is what the manager has seen of it: the hops of
//! `lariat volume timeline`, in microseconds of one clock.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use controllers::timeline::{Direction, Hop};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, PostParams};
use kube::runtime::wait::{Condition, await_condition, conditions};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::report::Line;
use crate::client::ApiArguments;
use crate::volume::timeline;

const NAMESPACE: &str = "default";
const STEP_TIMEOUT: Duration = Duration::from_secs(300);
/// A way that is over is kept within moments; one that is not there by now was not seen whole.
const TIMELINE_TIMEOUT: Duration = Duration::from_secs(3);
const TIMELINE_CHECK: Duration = Duration::from_millis(20);

#[derive(Args)]
pub(crate) struct BenchAttachArguments {
    #[command(flatten)]
    pub api: ApiArguments,

    /// How many pods, each with a new volume of 1 GiB
    #[arg(long, default_value_t = 50, value_name = "N")]
    pub pods: usize,

    /// How many of them at once
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub at_once: usize,

    #[arg(long, default_value = "longhorn", value_name = "NAME")]
    pub storage_class: String,
}

pub(super) async fn run(arguments: BenchAttachArguments) -> Result<()> {
    let client = arguments.api.open().await?;
    let run = uuid::Uuid::new_v4().simple().to_string();
    let names = (0..arguments.pods).map(|number| format!("bench-{}-{number}", &run[..6]));
    let started = Instant::now();
    let times: Vec<Times> = stream::iter(names)
        .map(|name| one(client.clone(), name, arguments.storage_class.clone()))
        .buffer_unordered(arguments.at_once.max(1))
        .try_collect()
        .await?;
    let took = started.elapsed();
    let what = format!("{} pods, {} at once", arguments.pods, arguments.at_once);
    let column = |of: fn(&Times) -> Duration| times.iter().map(of).collect::<Vec<_>>();
    Line::rate(
        format!("{what}: there and back"),
        took,
        &mut column(|t| t.there + t.back),
    )
    .print();
    Line::latency(
        "pod and claim created to pod running",
        &mut column(|t| t.there),
    )
    .print();
    Line::latency("pod deleted to pod gone", &mut column(|t| t.back)).print();
    let what = "ticket satisfied to attached for Kubernetes";
    let mut answered: Vec<Duration> = times.iter().filter_map(|t| t.answered).collect();
    let line = match answered.len() {
        0 => Line::value(what, "not seen"),
        all if all == times.len() => Line::latency(what, &mut answered),
        some => Line::latency(
            format!("{what} ({some} of {} seen)", times.len()),
            &mut answered,
        ),
    };
    line.print();
    Ok(())
}

struct Times {
    there: Duration,
    back: Duration,
    /// From the satisfied ticket to `attached: true`: the publish answers, and the attacher writes it down.
    answered: Option<Duration>,
}

async fn one(client: Client, name: String, storage_class: String) -> Result<Times> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), NAMESPACE);
    let (claim, pod) = (claim(&name, &storage_class)?, pod(&name)?);
    let started = Instant::now();
    claims.create(&PostParams::default(), &claim).await?;
    pods.create(&PostParams::default(), &pod).await?;
    wait(&pods, &name, conditions::is_pod_running()).await?;
    let there = started.elapsed();
    let started = Instant::now();
    pods.delete(&name, &DeleteParams::default()).await?;
    wait(&pods, &name, |pod: Option<&Pod>| pod.is_none()).await?;
    let back = started.elapsed();
    // The timeline goes with the volume, and the volume with its claim.
    let volume = claims.get(&name).await?.spec;
    let volume = volume.and_then(|spec| spec.volume_name).unwrap_or_default();
    let answered = answered(&client, &volume).await?;
    claims.delete(&name, &DeleteParams::default()).await?;
    Ok(Times {
        there,
        back,
        answered,
    })
}

/// How soon after the ticket was satisfied Kubernetes was told that the volume is attached; none if nobody saw it.
async fn answered(client: &Client, volume: &str) -> Result<Option<Duration>> {
    let asked = Instant::now();
    loop {
        let passages = timeline::passages(client, volume).await?;
        let attached = passages
            .iter()
            .find(|passage| passage.direction == Direction::Attach);
        if let Some(passage) = attached {
            return Ok(passage.between(Hop::TicketSatisfied, Hop::AttachmentDone));
        }
        if asked.elapsed() > TIMELINE_TIMEOUT {
            return Ok(None);
        }
        sleep(TIMELINE_CHECK).await;
    }
}

pub(super) fn claim(name: &str, storage_class: &str) -> serde_json::Result<PersistentVolumeClaim> {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }))
}

/// A pod with the claim of its own name.
pub(super) fn pod(name: &str) -> serde_json::Result<Pod> {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "containers": [{"name": "app", "image": "none"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}],
        },
    }))
}

pub(super) async fn wait(
    pods: &Api<Pod>,
    name: &str,
    condition: impl Condition<Pod>,
) -> Result<()> {
    let reached = await_condition(pods.clone(), name, condition);
    let Ok(reached) = timeout(STEP_TIMEOUT, reached).await else {
        bail!("pod/{name} did not get there; look at: kubectl describe pod {name}");
    };
    reached.with_context(|| format!("pod/{name} cannot be watched"))?;
    Ok(())
}
