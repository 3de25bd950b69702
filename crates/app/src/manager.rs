//! `lariat manager`: all controllers of a cluster, one leader at a time, and the CSI controller service.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use api_types::names;
use clap::Args;
use cluster_core::DriverName;
use controllers::kubernetes::{self, cache::Feeds};
use controllers::runtime::{Context, LeaderOptions, Manager, Objects, Options};
use controllers::timeline;
use csi_driver::{CallTimes, ControllerOptions};
use prometheus_client::registry::Registry;
use rustix::fs::{FlockOperation, flock};
use tokio_util::sync::CancellationToken;

use crate::client::ApiArguments;
use crate::findings::{self, Findings};
use crate::metrics::{MANAGER_PORT, MetricsArguments, Serving, Shown};
use crate::{exit, replica_key, runtime};

/// How often a lock that a predecessor has is tried again.
const LOCK_CHECK: Duration = Duration::from_millis(20);
/// How long controllers may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// How soon the nodes' secret is tried again.
const KEY_RETRY: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(crate) struct ManagerArguments {
    #[command(flatten)]
    pub api: ApiArguments,

    /// Where the CSI controller service listens, for attacher and provisioner
    #[arg(
        long,
        value_name = "SOCKET",
        default_value = "/run/lariat/csi-controller.sock"
    )]
    pub csi_socket: PathBuf,

    /// Also do what a real cluster's own controllers do: bind claims, schedule pods, attach and detach
    #[arg(long)]
    pub embedded: bool,

    /// Call a node lost when its lease has not been renewed for this long
    #[arg(long, value_name = "SECONDS", default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..=3600))]
    pub node_lost_after: u64,

    #[command(flatten)]
    pub metrics: MetricsArguments,

    /// How often to count what `lariat doctor` would find
    #[arg(long, hide = true, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub findings_every: u64,

    /// End when standard input closes: whoever started this is gone
    #[arg(long, hide = true)]
    pub exit_with_parent: bool,

    /// A file that every manager of this cluster locks: whoever has it is the only one, and takes the lease of a dead one at once
    #[arg(long, hide = true, value_name = "FILE")]
    pub sole_lock: Option<PathBuf>,
}

pub(crate) fn run(arguments: ManagerArguments) -> Result<()> {
    if arguments.exit_with_parent {
        runtime::exit_with_parent();
    }
    let api = arguments.api.clone();
    runtime::block_on(api.telling_if_silent(manage(arguments)))
}

async fn manage(arguments: ManagerArguments) -> Result<()> {
    // First of all: a signal that comes early must not end this process where it is.
    let stop = runtime::until_asked_to_stop()?;
    let client = arguments.api.connect().await?;
    let lease_client = arguments.api.connect_for_leases().await?;
    let lock = match &arguments.sole_lock {
        Some(path) => tokio::select! {
            locked = lock(path) => Some(locked?),
            () = stop.cancelled() => return Ok(()),
        },
        None => None,
    };
    tokio::select! {
        () = make_replica_key(&client) => {}
        () = stop.cancelled() => return Ok(()),
    }
    let leader = match &lock {
        Some(_) => LeaderOptions::alone(),
        None => LeaderOptions::default(),
    };
    let options = Options {
        leader,
        node_lost_after: Duration::from_secs(arguments.node_lost_after),
        ..Options::default()
    };
    let mut manager = Manager::new(options).with("timeline", |context, stop| async move {
        let watching = timeline::run(context.client.clone(), context.metrics.clone());
        stop.run_until_cancelled(watching).await;
    });
    let (findings, every) = (
        Findings::default(),
        Duration::from_secs(arguments.findings_every),
    );
    let (found, calls) = (findings.clone(), CallTimes::default());
    manager = manager.with("findings", move |context, stop| {
        findings::run(context, found.clone(), every, stop)
    });
    if arguments.embedded {
        let csi_address = arguments.csi_socket.to_string_lossy().into_owned();
        manager = manager.with("kubernetes", move |context, stop| {
            run_kubernetes(context, csi_address.clone(), stop)
        });
    } else {
        manager = manager.with("attachment-state", |context, stop| async move {
            let feeds = Feeds::beside(context.objects.clone(), context.client.clone());
            let driver = DriverName::from(names::DRIVER);
            kubernetes::attachment_state::run(&feeds, driver, &context.metrics, stop).await;
        });
    }
    let mut registry = Registry::default();
    telemetry::register_build(&mut registry, "manager", env!("CARGO_PKG_VERSION"));
    manager.register(&mut registry);
    calls.register(&mut registry);
    registry.register_collector(Box::new(findings));
    let metrics = listen(&arguments, registry, manager.objects().clone()).await?;
    let csi = csi_driver::serve_controller(
        client.clone(),
        &arguments.csi_socket,
        ControllerOptions::default(),
        &calls,
        stop.clone(),
    );
    let mut managing = std::pin::pin!(manager.run(client, lease_client, stop.clone()));
    let ended = tokio::select! {
        ended = &mut managing => ended.context("the manager ended"),
        ended = csi => {
            stop.cancel();
            // In order, so that the last words are about what went wrong.
            tokio::time::timeout(STOP_TIMEOUT, managing).await.ok();
            ended.context("the CSI controller service ended")
        }
        never = metrics.serve() => match never {},
    };
    stop.cancel();
    drop(lock);
    ended
}

async fn listen(
    arguments: &ManagerArguments,
    registry: Registry,
    objects: Objects,
) -> Result<Serving> {
    let ready = move || {
        let told = "not all objects have been listed yet: see whether the API answers";
        objects.is_ready().then_some(()).ok_or(told.to_owned())
    };
    let shown = Shown {
        registry,
        ready: Box::new(ready),
        folder: arguments.csi_socket.parent().unwrap_or(Path::new(".")),
        // Several clusters may run on one machine.
        port: Some(if arguments.embedded { 0 } else { MANAGER_PORT }),
    };
    arguments.metrics.listen(shown).await
}

/// Tries until the nodes' secret is there: an API that is not up yet, or rights that are applied after us, are waited for.
async fn make_replica_key(client: &kube::Client) {
    let mut told = String::new();
    while let Err(error) = replica_key::ensure(client).await {
        let why = exit::told(&error);
        if why != told {
            tracing::warn!("{why}; trying again");
            told = why;
        }
        tokio::time::sleep(KEY_RETRY).await;
    }
}

/// Waits for a predecessor that is about to end. The kernel lets go of the lock with the process, however it ends.
async fn lock(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        tokio::time::sleep(LOCK_CHECK).await;
    }
    Ok(file)
}

/// What Kubernetes does by itself elsewhere. Ends only when it is told to, or when a part of it fails.
async fn run_kubernetes(context: Context, csi_address: String, stop: CancellationToken) {
    let mut options = kubernetes::Options {
        metrics: context.metrics.clone(),
        ..kubernetes::Options::default()
    };
    options.attacher.csi_address = csi_address;
    let feeds = Feeds::beside(context.objects.clone(), context.client.clone());
    match kubernetes::spawn(&feeds, options, &stop) {
        Ok(mut parts) => {
            if parts.join_next().await.is_some() && !stop.is_cancelled() {
                tracing::error!("a controller of the embedded mode ended by itself");
            }
            // Those that are left end with the token, or with the process.
            while stop.is_cancelled() && parts.join_next().await.is_some() {}
        }
        Err(error) => {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the embedded mode cannot start"
            );
        }
    }
}
