//! `--metrics-listen` and `--metrics-token-file`: who may read what a process counts, and where.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, Result};
use clap::Args;
use prometheus_client::registry::Registry;
use telemetry::{Listener, Parts, Token};

use crate::exit;

/// Next to each other, and in nobody's list of well-known ports.
pub(crate) const MANAGER_PORT: u16 = 9810;
pub(crate) const NODE_PORT: u16 = 9811;

const TOKEN_FILE: &str = "metrics-token";
const ADDRESS_FILE: &str = "metrics-address";

#[derive(Args, Clone)]
pub(crate) struct MetricsArguments {
    /// Where to answer readers of metrics, such as 127.0.0.1:9810; `off` for nowhere
    #[arg(long, env = "LARIAT_METRICS_LISTEN", value_name = "ADDR")]
    metrics_listen: Option<Listen>,

    /// File with the token that readers of metrics must show; made, for its owner alone, if it is not there
    #[arg(long, env = "LARIAT_METRICS_TOKEN_FILE", value_name = "FILE")]
    metrics_token_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listen {
    Off,
    At(SocketAddr),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let address = text.parse();
        address
            .map(Self::At)
            .map_err(|_| "an address with a port is needed, such as 127.0.0.1:9810, or off".into())
    }
}

/// What a process has to show.
pub(crate) struct Shown<'a> {
    pub registry: Registry,
    pub ready: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// The process's own folder: its address is written there, and its token, unless that is elsewhere.
    pub folder: &'a Path,
    /// The port unless told otherwise: zero for any that is free, none for not listening.
    pub port: Option<u16>,
}

impl MetricsArguments {
    /// Listens. A place that nobody asked for must not keep a process from its work: it is said, and done without.
    pub(crate) async fn listen(&self, shown: Shown<'_>) -> Result<Serving> {
        let default = shown.port.map(|port| (Ipv4Addr::LOCALHOST, port).into());
        let listen = match (self.metrics_listen, default) {
            (Some(listen), _) => listen,
            (None, Some(address)) => Listen::At(address),
            (None, None) => Listen::Off,
        };
        let Listen::At(address) = listen else {
            return Ok(Serving(None));
        };
        match self.open(address, shown).await {
            Ok(listener) => Ok(Serving(Some(listener))),
            Err(error) if self.metrics_listen.is_none() => {
                tracing::warn!("metrics are not shown: {}", exit::told(&error));
                Ok(Serving(None))
            }
            Err(error) => Err(error),
        }
    }

    /// The folder of the token, if one was named.
    pub(crate) fn token_folder(&self) -> Option<&Path> {
        self.metrics_token_file.as_deref().and_then(Path::parent)
    }

    async fn open(&self, address: SocketAddr, shown: Shown<'_>) -> Result<Listener> {
        let file = self.metrics_token_file.clone();
        let file = file.unwrap_or_else(|| token_file(shown.folder));
        let parts = Parts {
            registry: shown.registry,
            token: Token::read_or_make(&file)?,
            ready: shown.ready,
        };
        let listener = Listener::bind(address, parts).await?;
        let address = listener.local_address()?;
        let path = shown.folder.join(ADDRESS_FILE);
        std::fs::create_dir_all(shown.folder)
            .and_then(|()| std::fs::write(&path, format!("{address}\n")))
            .with_context(|| format!("cannot write {}", path.display()))?;
        tracing::info!(%address, token_file = %file.display(), "metrics are shown");
        Ok(listener)
    }
}

/// Where a process with this folder keeps its token.
pub(crate) fn token_file(folder: &Path) -> PathBuf {
    folder.join(TOKEN_FILE)
}

/// Where a process with this folder answers, if it does.
pub(crate) fn address_of(folder: &Path) -> Option<SocketAddr> {
    let text = std::fs::read_to_string(folder.join(ADDRESS_FILE)).ok()?;
    text.trim().parse().ok()
}

/// A listener, or none.
pub(crate) struct Serving(Option<Listener>);

impl Serving {
    /// Never ends by itself.
    pub(crate) async fn serve(self) -> Infallible {
        match self.0 {
            Some(listener) => listener.serve().await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_or_off() {
        let at = |text: &str| Ok(Listen::At(text.parse().expect("an address")));
        assert_eq!("off".parse(), Ok(Listen::Off));
        assert_eq!("127.0.0.1:0".parse(), at("127.0.0.1:0"));
        assert_eq!("[::1]:9810".parse(), at("[::1]:9810"));
        for text in ["", "9810", "localhost", "127.0.0.1"] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }
}
