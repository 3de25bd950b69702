//! `lariat attacher`: attaches and detaches for any CSI driver, in place of the external-attacher.

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use controllers::kubernetes::attacher;

use crate::client::ApiArguments;
use crate::runtime;

#[derive(Args)]
pub(crate) struct AttacherArguments {
    #[command(flatten)]
    pub api: ApiArguments,

    /// The driver's socket
    #[arg(long, value_name = "SOCKET", default_value = "/run/csi/socket")]
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
}

pub(crate) fn run(arguments: &AttacherArguments) -> Result<()> {
    runtime::block_on(async {
        let client = arguments.api.connect().await?;
        let stop = runtime::until_asked_to_stop()?;
        let options = attacher::AttacherOptions {
            csi_address: arguments.csi_address.clone(),
            rpc_timeout: Duration::from_secs(arguments.timeout),
            reconcile_every: Duration::from_secs(arguments.reconcile_sync),
            default_fs_type: arguments.default_fstype.clone(),
            ..attacher::AttacherOptions::default()
        };
        attacher::run(client, options, stop)
            .await
            .with_context(|| format!("cannot attach for the driver at {}", arguments.csi_address))
    })
}
