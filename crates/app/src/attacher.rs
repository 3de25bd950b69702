//! `lariat attacher`: attaches and detaches for any CSI driver, in place of the external-attacher.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use api_types::names::NAMESPACE;
use clap::Args;
use controllers::kubernetes::attacher;
use controllers::metrics::Metrics;
use prometheus_client::registry::Registry;

use crate::client::ApiArguments;
use crate::metrics::{MetricsArguments, Shown};
use crate::runtime;

/// It has no folder of its own: this is for its token and address, where metrics are asked for.
const FOLDER: &str = "/run/lariat/attacher";

#[derive(Args)]
pub(crate) struct AttacherArguments {
    #[command(flatten)]
    pub api: ApiArguments,

    /// The driver's socket
    #[arg(long, value_name = "SOCKET", default_value = "/run/csi/socket", value_parser = socket)]
    pub csi_address: String,

    /// How long a publish or unpublish may take
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,

    /// How often the driver's own list of volumes is compared, if it has one
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub reconcile_sync: u64,

    /// File system of volumes that name none
    #[arg(long, value_name = "TYPE", default_value = "")]
    pub default_fstype: String,

    /// Work only while this process holds the Lease that an external-attacher of the same driver would hold
    #[arg(long)]
    pub leader_election: bool,

    /// Namespace of that Lease
    #[arg(long, env = "LARIAT_NAMESPACE", value_name = "NAMESPACE", default_value = NAMESPACE)]
    pub leader_election_namespace: String,

    #[command(flatten)]
    pub metrics: MetricsArguments,
}

/// The path of a unix socket, which may be written as drivers write it.
fn socket(text: &str) -> Result<String, String> {
    let path = text.strip_prefix("unix:").unwrap_or(text);
    if path.is_empty() || path == "//" || path.contains("://") {
        return Err("the path of a unix socket is needed, such as /run/csi/socket".to_owned());
    }
    Ok(text.to_owned())
}

pub(crate) fn run(arguments: &AttacherArguments) -> Result<()> {
    let attaching = async {
        // First of all: a signal that comes early must not end this process where it is.
        let stop = runtime::until_asked_to_stop()?;
        let client = arguments.api.connect().await?;
        let lease_client = arguments.api.connect_for_leases().await?;
        let options = attacher::AttacherOptions {
            csi_address: arguments.csi_address.clone(),
            rpc_timeout: Duration::from_secs(arguments.timeout),
            reconcile_every: Duration::from_secs(arguments.reconcile_sync),
            default_fs_type: arguments.default_fstype.clone(),
            ..attacher::AttacherOptions::default()
        };
        let metrics = Metrics::default();
        let mut registry = Registry::default();
        telemetry::register_build(&mut registry, "attacher", env!("CARGO_PKG_VERSION"));
        metrics.register_work(&mut registry);
        let shown = Shown {
            registry,
            ready: Box::new(|| Ok(())),
            folder: arguments
                .metrics
                .token_folder()
                .unwrap_or(Path::new(FOLDER)),
            // It runs beside a driver, often several on a node: it listens when it is told where.
            port: None,
        };
        let serving = arguments.metrics.listen(shown).await?;
        let namespace = &arguments.leader_election_namespace;
        let attaching = async {
            if arguments.leader_election {
                let election = attacher::Election {
                    client: lease_client,
                    namespace,
                };
                attacher::run_elected(client, options, election, metrics, stop).await
            } else {
                attacher::run(client, options, metrics, stop).await
            }
        };
        let ended = tokio::select! {
            ended = attaching => ended,
            never = serving.serve() => match never {},
        };
        ended.with_context(|| format!("cannot attach for the driver at {}", arguments.csi_address))
    };
    runtime::block_on(arguments.api.telling_if_silent(attaching))
}
