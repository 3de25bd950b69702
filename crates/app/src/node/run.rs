//! `lariat node run`: the agent of one node, until it is told to stop.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use apiserver::builtin::rules::names;
use clap::{Args, ValueEnum};
use node_agent::agent::lease::lease_name;
use node_agent::agent::{self, AgentOptions, NodeMetrics, ReplicaTls};
use prometheus_client::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::client::ApiArguments;
use crate::metrics::{MetricsArguments, NODE_PORT, Shown};
use crate::{privileges, runtime};

/// Each volume is a process and a loop device: far more than a node's pods have, and far fewer than would harm it.
const MAX_VOLUMES: u32 = 256;
/// What the API allows for the name of its lease, less what that has more.
const NODE_NAME_BYTES_MAX: usize = 253 - "lariat-node-".len();

#[derive(Args)]
pub(crate) struct RunArguments {
    /// The node's name in the cluster
    #[arg(long, env = "LARIAT_NODE_NAME", value_name = "NAME", value_parser = node_name)]
    name: String,

    /// The node's own folder: its disk, its sockets, its devices
    #[arg(
        long,
        env = "LARIAT_NODE_DIR",
        default_value = "/var/lib/lariat/node",
        value_name = "DIR"
    )]
    data_dir: PathBuf,

    #[command(flatten)]
    api: ApiArguments,

    /// Address to serve replicas on, reachable from the other nodes
    #[arg(
        long,
        env = "LARIAT_NODE_HOST",
        default_value = "127.0.0.1",
        value_name = "ADDR",
        value_parser = address
    )]
    host: IpAddr,

    /// Encrypt the lines between engines and replicas: `used` by this node's engines, and with `required` its replicas
    /// refuse others. Encrypted lines are taken by every node, so that a cluster changes over node by node
    #[arg(
        long,
        env = "LARIAT_REPLICA_TLS",
        value_enum,
        default_value_t = TlsChoice::Off,
        value_name = "WHEN"
    )]
    replica_tls: TlsChoice,

    /// Where the CSI node service listens; by default in the node's folder
    #[arg(long, env = "LARIAT_CSI_SOCKET", value_name = "SOCKET")]
    csi_socket: Option<PathBuf>,

    /// How many volumes may be attached to this node, so that no further pod with volumes is placed there; 0 for no limit
    #[arg(
        long,
        env = "LARIAT_NODE_MAX_VOLUMES",
        default_value_t = MAX_VOLUMES,
        value_name = "N"
    )]
    max_volumes: u32,

    /// Stand in for the kubelet's volume manager: for a cluster that runs no kubelets, and no containers
    #[arg(long)]
    embedded: bool,

    /// Kubeconfig of the kubelet that `--embedded` stands in for, where that has rights of its own
    #[arg(long, hide = true, value_name = "FILE", requires = "embedded")]
    kubelet_kubeconfig: Option<PathBuf>,

    /// Keep devices open while their engines restart
    #[arg(long)]
    keeper: bool,

    #[arg(long, env = "LARIAT_NODE_ZONE")]
    zone: Option<String>,

    #[arg(long, env = "LARIAT_NODE_REGION")]
    region: Option<String>,

    #[command(flatten)]
    metrics: MetricsArguments,

    /// End when standard input closes: whoever started this is gone
    #[arg(long, hide = true)]
    exit_with_parent: bool,

    /// Serve replicas until a second signal: nodes that end together need each other's for their last writes
    #[arg(long, hide = true)]
    serve_until_released: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum TlsChoice {
    Off,
    Used,
    Required,
}

/// A name that the API takes: the node's objects are called so, and its lease has a longer one.
fn node_name(text: &str) -> Result<String, String> {
    let problems = names::subdomain(&lease_name(text));
    if text.is_empty() || !problems.is_empty() || !names::subdomain(text).is_empty() {
        return Err(format!(
            "a node is called by at most {NODE_NAME_BYTES_MAX} small letters, digits, dashes and dots, with a letter or digit at both ends, such \
             as node-1; give the name that `kubectl get nodes` shows"
        ));
    }
    Ok(text.to_owned())
}

fn address(text: &str) -> Result<IpAddr, String> {
    let parsed = text.parse();
    parsed
        .map_err(|_| "an address of this machine is needed, in digits, such as 10.0.0.1".to_owned())
}

pub(crate) fn run(arguments: RunArguments) -> Result<()> {
    if arguments.exit_with_parent {
        runtime::exit_with_parent();
    }
    let api = arguments.api.clone();
    runtime::block_on(api.telling_if_silent(serve(arguments)))
}

async fn serve(arguments: RunArguments) -> Result<()> {
    privileges::require_for_nodes("")?;
    let signals = count_signals()?;
    let client = arguments.api.connect().await?;
    let lease_client = arguments.api.connect_for_leases().await?;
    let kubelet = ApiArguments {
        kubeconfig: arguments.kubelet_kubeconfig.clone(),
    };
    let kubelet_client = match &kubelet.kubeconfig {
        Some(_) => kubelet.connect().await?,
        None => client.clone(),
    };
    let executable = std::env::current_exe().context("cannot tell where this program is")?;
    let data_dir = std::path::absolute(&arguments.data_dir)
        .with_context(|| format!("cannot use {}", arguments.data_dir.display()))?;
    let failed = || format!("the agent of node {} failed", arguments.name);
    // Before anything is written there: it may be another agent's.
    agent::require_free(&data_dir).with_context(failed)?;
    let metrics = NodeMetrics::default();
    let mut registry = Registry::default();
    telemetry::register_build(&mut registry, "node", env!("CARGO_PKG_VERSION"));
    metrics.register(&mut registry);
    let node = metrics.clone();
    let shown = Shown {
        registry,
        ready: Box::new(move || node.ready()),
        folder: &data_dir,
        // Several nodes may run on one machine.
        port: Some(if arguments.embedded { 0 } else { NODE_PORT }),
    };
    let serving = arguments.metrics.listen(shown).await?;
    let options = AgentOptions {
        node: arguments.name.clone(),
        client,
        lease_client,
        kubelet_client,
        data_dir,
        executable,
        listen_host: arguments.host,
        tls: match arguments.replica_tls {
            TlsChoice::Off => ReplicaTls::Off,
            TlsChoice::Used => ReplicaTls::Used,
            TlsChoice::Required => ReplicaTls::Required,
        },
        csi_socket: arguments.csi_socket.clone(),
        max_volumes: arguments.max_volumes,
        embedded: arguments.embedded,
        keeper: arguments.keeper,
        zone: arguments.zone.clone(),
        region: arguments.region.clone(),
        metrics,
    };
    let release = if arguments.serve_until_released { 2 } else { 1 };
    let running = agent::run(options, reached(&signals, 1), reached(&signals, release));
    let ended = tokio::select! {
        ended = running => ended,
        never = serving.serve() => match never {},
    };
    ended.with_context(failed)
}

/// How often this process was asked to stop. Must be called inside a runtime.
fn count_signals() -> Result<watch::Receiver<u32>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let (count, counted) = watch::channel(0);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            count.send_modify(|count| *count += 1);
        }
    });
    Ok(counted)
}

async fn reached(signals: &watch::Receiver<u32>, count: u32) {
    // The sender lives as long as the process.
    let _ = signals.clone().wait_for(|signals| *signals >= count).await;
}
