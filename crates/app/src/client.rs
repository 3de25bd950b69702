//! Which API to speak to: a kubeconfig, the cluster on this machine, or the one that this process runs in.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};

use crate::cli::default_data_dir;

/// Where the API is.
#[derive(Args, Clone)]
pub(crate) struct ApiArguments {
    /// Kubeconfig of the cluster [default: the cluster that `lariat up` runs, else the pod's own account]
    #[arg(long, env = "KUBECONFIG", value_name = "FILE", global = true)]
    pub kubeconfig: Option<PathBuf>,
}

impl ApiArguments {
    pub(crate) async fn connect(&self) -> Result<Client> {
        let (client, _) = self.connect_told().await?;
        Ok(client)
    }

    /// The same, with words for which API that is, should it not answer.
    pub(crate) async fn connect_told(&self) -> Result<(Client, String)> {
        let embedded = default_data_dir().join("kubeconfig");
        let path = self.kubeconfig.clone();
        let path = path.or_else(|| embedded.exists().then_some(embedded));
        let (config, from) = match path {
            Some(path) => (
                from_file(&path).await?,
                format!("of the kubeconfig {}", path.display()),
            ),
            None => {
                let config = Config::incluster().context(
                    "no cluster to speak to: start one with `lariat up`, or name one with --kubeconfig",
                )?;
                (config, "of the pod's own account".to_owned())
            }
        };
        let told = format!("the API {} {from}", config.cluster_url);
        let client = Client::try_from(config).context("cannot make a client of the API")?;
        Ok((client, told))
    }
}

async fn from_file(path: &Path) -> Result<Config> {
    let kubeconfig = Kubeconfig::read_from(path)
        .with_context(|| format!("cannot read the kubeconfig {}", path.display()))?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .with_context(|| format!("the kubeconfig {} cannot be used", path.display()))?;
    // Watches are long and silent; each request has its own bounds where it needs some.
    config.read_timeout = None;
    Ok(config)
}
