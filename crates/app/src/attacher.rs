//! `lariat attacher`: attaches and detaches for any CSI driver, in place of the external-attacher.

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
}

pub(crate) fn run(arguments: &AttacherArguments) -> Result<()> {
    runtime::block_on(async {
        let client = arguments.api.connect().await?;
        let stop = runtime::until_asked_to_stop()?;
        let options = attacher::AttacherOptions {
            csi_address: arguments.csi_address.clone(),
            ..attacher::AttacherOptions::default()
        };
        attacher::run(client, options, stop)
            .await
            .with_context(|| format!("cannot attach for the driver at {}", arguments.csi_address))
    })
}
