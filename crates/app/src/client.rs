//! Which API to speak to: a kubeconfig, the cluster on this machine, or the one that this process runs in.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use kube::Client;
use kube::client::ClientBuilder;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use tower::limit::ConcurrencyLimitLayer;
use tower::timeout::TimeoutLayer;

use crate::cli::data_dir;
use crate::exit::{self, Failure, Outcome};

/// A server that is there answers in milliseconds; a person does not wait longer for one that is not.
const REACH_TIMEOUT: Duration = Duration::from_secs(5);
/// Each request at a time is a connection, with a TLS handshake that costs more than the request and 100 KiB on both ends.
/// More of them would wait in the server. A watch counts until it begins.
const REQUESTS_AT_ONCE: usize = 64;
/// How long a server may take to begin an answer. One that is there does within its own limit of a minute at the latest; a connection
/// to a machine that lost its power says nothing for a quarter of an hour, and whoever waits for it holds up a volume.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const UNUSABLE_CLIENT: &str = "cannot make a client of the API";

/// Where the API is.
#[derive(Args, Clone, Default)]
pub(crate) struct ApiArguments {
    /// Kubeconfig of the cluster [default: the cluster that `lariat up` runs, else the pod's own account, else
    /// ~/.kube/config]
    #[arg(long, env = "KUBECONFIG", value_name = "FILE", global = true)]
    pub kubeconfig: Option<PathBuf>,
}

/// An API that has answered, and words for which one that is.
pub(crate) struct Server {
    pub client: Client,
    pub told: String,
}

impl ApiArguments {
    /// A client for those who try for as long as it takes, and who may want a thousand things at once. Not for leases: a request
    /// that is tried again and again counts until it is answered, and a server that is slow for one is slow for all of them.
    pub(crate) async fn connect(&self) -> Result<Client> {
        let (config, _) = self.config().await?;
        let client = ClientBuilder::try_from(config).context(UNUSABLE_CLIENT)?;
        let limit = ConcurrencyLimitLayer::new(REQUESTS_AT_ONCE);
        // Waiting for its turn is not the server's silence, so the limit is outside.
        let timeout = TimeoutLayer::new(ANSWER_TIMEOUT);
        Ok(client.with_layer(&timeout).with_layer(&limit).build())
    }

    /// Does this work, and says meanwhile, once, which API does not answer: those who try for as long as it takes know only what
    /// they tried it for.
    pub(crate) async fn telling_if_silent<T>(&self, work: impl Future<Output = T>) -> T {
        let telling = async {
            // Without a client there is no work either, which says why.
            if let Ok((client, told)) = self.client().await
                && let Err(error) = answers(&client, &told).await
            {
                tracing::warn!("{}; trying again until it answers", exit::told(&error));
            }
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            done = work => done,
            never = telling => match never {},
        }
    }

    /// A client for leases alone, with connections of its own. Whoever renews one too late is taken for dead, so that nothing else
    /// may stand before it in a queue.
    pub(crate) async fn connect_for_leases(&self) -> Result<Client> {
        let (client, _) = self.client().await?;
        Ok(client)
    }

    /// A client of an API that answers. For people: a server that does not is said at once, and which one it was.
    pub(crate) async fn open(&self) -> Result<Client> {
        let server = self.reach().await?;
        Ok(server.client)
    }

    /// The same, with words for which API that is, should it fall silent later.
    pub(crate) async fn reach(&self) -> Result<Server> {
        let (client, told) = self.client().await?;
        answers(&client, &told).await?;
        Ok(Server { client, told })
    }

    async fn client(&self) -> Result<(Client, String)> {
        let (config, source) = self.config().await?;
        let address = config.cluster_url.to_string();
        let told = format!("the API at {} ({source})", address.trim_end_matches('/'));
        let client = Client::try_from(config).context(UNUSABLE_CLIENT)?;
        Ok((client, told))
    }

    /// The configuration, and where it comes from.
    async fn config(&self) -> Result<(Config, String)> {
        // An empty variable is as good as none, to kubectl as well.
        let named = self.kubeconfig.as_deref();
        if let Some(path) = named.filter(|path| !path.as_os_str().is_empty()) {
            return from_file(path).await;
        }
        let embedded = data_dir().join("kubeconfig");
        if embedded.exists() {
            return from_file(&embedded).await;
        }
        if let Ok(mut config) = Config::incluster() {
            // As below: a silent watch is no reason to begin it anew.
            config.read_timeout = None;
            return Ok((config, "the pod's own account".to_owned()));
        }
        let usual = std::env::home_dir().map(|home| home.join(".kube/config"));
        if let Some(usual) = usual.as_deref().filter(|path| path.exists()) {
            return from_file(usual).await;
        }
        Err(no_cluster(&embedded))
    }
}

/// Fails, with words for which API it is, if that does not answer.
async fn answers(client: &Client, told: &str) -> Result<()> {
    let why = match tokio::time::timeout(REACH_TIMEOUT, client.apiserver_version()).await {
        Ok(Ok(_)) => return Ok(()),
        // It answers; what it refuses is told by the command itself.
        Ok(Err(kube::Error::Api(status))) if status.code != 503 => return Ok(()),
        Ok(Err(error)) => root_cause(&error),
        Err(_) => format!("no answer within {} s", REACH_TIMEOUT.as_secs()),
    };
    Err(unreachable(told, &why))
}

fn no_cluster(embedded: &Path) -> anyhow::Error {
    let message = format!(
        "no cluster to speak to: there is neither {} nor ~/.kube/config, and this is no pod; start one with \
         `lariat up`, or name one with --kubeconfig FILE",
        embedded.display()
    );
    Failure::new(Outcome::Unreachable, message).into()
}

async fn from_file(path: &Path) -> Result<(Config, String)> {
    let kubeconfig = read(path)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|error| unusable(path, &error))?;
    // Watches are long and silent: what is bounded is how long an answer takes to begin, see `connect`.
    config.read_timeout = None;
    Ok((config, format!("kubeconfig {}", path.display())))
}

/// One file, or several with colons between them, as kubectl merges them.
fn read(path: &Path) -> Result<Kubeconfig> {
    let mut merged: Option<Kubeconfig> = None;
    for path in std::env::split_paths(path.as_os_str()) {
        let read = Kubeconfig::read_from(&path).map_err(|error| unusable(&path, &error))?;
        merged = Some(match merged {
            None => read,
            Some(merged) => merged.merge(read).with_context(|| {
                format!("the kubeconfig {} does not fit the others", path.display())
            })?,
        });
    }
    merged.context("the name of the kubeconfig is empty; name one with --kubeconfig FILE")
}

/// The error for a kubeconfig that does not lead to any API.
fn unusable(path: &Path, error: &dyn std::error::Error) -> anyhow::Error {
    // Below the first line a parser draws the place that it means.
    let why = root_cause(error);
    let why = why.lines().next().unwrap_or_default();
    let message = format!(
        "the kubeconfig {} cannot be used: {}; name another one with --kubeconfig FILE, or start a cluster with \
         `lariat up`",
        path.display(),
        why.replace("error: ", "")
    );
    Failure::new(Outcome::Unreachable, message).into()
}

/// The error for an API that does not answer.
pub(crate) fn unreachable(told: &str, why: &str) -> anyhow::Error {
    let message = format!(
        "cannot reach {told}: {why}; start a cluster with `lariat up`, or name another one with --kubeconfig FILE"
    );
    Failure::new(Outcome::Unreachable, message).into()
}

/// The innermost reason: that a connection was refused, and not five layers of what that prevented.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

#[cfg(test)]
mod tests {
    use controllers::runtime::{Manager, Options};
    use node_agent::agent::{self, AgentOptions, NodeMetrics, ReplicaTls};
    use tokio::io::{AsyncBufReadExt as _, BufReader};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tokio::task::JoinSet;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::output::golden;

    /// A kubeconfig without secrets, for one server.
    fn kubeconfig(folder: &Path, server: &str) -> PathBuf {
        let path = folder.join("config");
        let text = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": {"server": server}}],
            "users": [{"name": "x", "user": {}}],
        });
        std::fs::write(&path, text.to_string()).expect("a kubeconfig");
        path
    }

    #[test]
    fn an_api_that_cannot_be_had_is_named_with_the_kubeconfig_that_was_tried() {
        let folder = tempfile::tempdir().expect("a folder");
        let broken = folder.path().join("broken");
        std::fs::write(&broken, "clusters: 7").expect("a file");
        let contextless = folder.path().join("contextless");
        std::fs::write(&contextless, "current-context: moon").expect("a file");
        let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = closed.local_addr().expect("an address").to_string();
        drop(closed);
        let refusing = kubeconfig(folder.path(), &format!("https://{address}"));
        let tried = |path: &Path| {
            let api = ApiArguments {
                kubeconfig: Some(path.to_owned()),
            };
            let error = crate::runtime::block_on(api.open()).err();
            exit::told(&error.expect("no API is there"))
        };
        let lines = [
            exit::told(&no_cluster(Path::new("FOLDER/kubeconfig"))),
            tried(&folder.path().join("missing")),
            tried(&broken),
            tried(&contextless),
            tried(&refusing),
            exit::told(&unreachable(
                "the API at https://10.0.0.1:6443 (the pod's own account)",
                "no answer within 5 s",
            )),
        ];
        let page = lines.join("\n") + "\n";
        let page = page.replace(&address, "127.0.0.1:PORT");
        golden::check(
            "errors-api",
            &page.replace(&folder.path().display().to_string(), "FOLDER"),
        );
    }

    /// An API that takes every request and answers none. Tells what it is asked for, by the first line of each.
    async fn fall_silent(listener: TcpListener, asked: mpsc::UnboundedSender<String>) {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut line = String::new();
            let mut reader = BufReader::new(&mut stream);
            reader.read_line(&mut line).await.expect("a request");
            asked.send(line).ok();
            held.push(stream);
        }
    }

    #[tokio::test]
    async fn leases_do_not_wait_behind_what_a_busy_api_leaves_unanswered() {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let api = ApiArguments {
            kubeconfig: Some(kubeconfig(folder.path(), &format!("http://{address}"))),
        };
        let (asking, mut asked) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(fall_silent(listener, asking));
        let client = api.connect().await.expect("a client");
        for _ in 0..2 * REQUESTS_AT_ONCE {
            let client = client.clone();
            tasks.spawn(async move { drop(client.apiserver_version().await) });
        }
        for _ in 0..REQUESTS_AT_ONCE {
            let line = asked.recv().await.expect("a request");
            assert!(line.contains("/version"), "{line}");
        }

        let leases = || async { api.connect_for_leases().await.expect("a client") };
        let options = AgentOptions {
            node: "n1".to_owned(),
            client: client.clone(),
            lease_client: leases().await,
            kubelet_client: client.clone(),
            data_dir: folder.path().join("node"),
            executable: "lariat".into(),
            listen_host: [127, 0, 0, 1].into(),
            tls: ReplicaTls::Off,
            csi_socket: None,
            max_volumes: 0,
            embedded: false,
            keeper: false,
            zone: None,
            region: None,
            metrics: NodeMetrics::default(),
        };
        tasks.spawn(async move {
            let never = std::future::pending;
            drop(agent::run(options, never(), never()).await);
        });
        let manager = Manager::new(Options::default());
        let leading = manager.run(client, leases().await, CancellationToken::new());
        tasks.spawn(async move { drop(leading.await) });
        let mut missing = vec!["/leases/lariat-node-n1", "lariat-manager"];
        let seen = async {
            while !missing.is_empty() {
                let line = asked.recv().await.expect("a request");
                assert!(line.contains("/leases"), "{line}");
                missing.retain(|name| !line.contains(name));
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(30), seen).await;
        assert!(ended.is_ok(), "nobody asked for {missing:?}");
    }
}
