//! `lariat up`: the embedded default, from an empty folder to `ready`.

mod bootstrap;
mod children;
mod parts;

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use apiserver::auth::Authenticator;
use apiserver::core::Core;
use apiserver::server::{Authority, CertificateError, Identity, Server, write_private};
use apiserver::service::ApiService;
use kube::Client;
use revision_store::{Options, Store};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::timeout;

use self::parts::Parts;
use crate::cli::UpArguments;
use crate::data_dir::DataDir;
use crate::output::tell;
use crate::{kubeconfig, metrics, privileges, runtime};

/// How long a start that was told to stop waits for its nodes, where there is something to put away.
const LEFTOVERS_TIMEOUT: Duration = Duration::from_secs(15);

pub(crate) fn run(arguments: UpArguments) -> Result<()> {
    runtime::block_on(serve(arguments))
}

async fn serve(arguments: UpArguments) -> Result<()> {
    let started = Instant::now();
    if arguments.nodes > 0 {
        privileges::require_for_nodes(", or start an API alone with --nodes 0")?;
    }
    // First of all: a signal that comes early must not end this process where it is.
    let signalled = until_signalled()?;
    tokio::pin!(signalled);
    let data_dir = DataDir::new(&arguments.data_dir.path);
    data_dir.create()?;
    let _lock = data_dir.lock()?;
    // A file of a predecessor that was killed would say that this one is ready.
    fs::remove_file(data_dir.ready()).ok();
    let mut progress = Progress::new();

    let store = Store::open(data_dir.store(), Options::default()).with_context(|| {
        format!(
            "cannot open the objects of the cluster in {}; repair what follows, or start another cluster with --data-dir",
            data_dir.root().display()
        )
    })?;
    let objects = store.count("");
    progress.done(&format!(
        "store: {objects} objects in {}",
        data_dir.store().display()
    ));

    let (authority, identity) = certificates(&data_dir, arguments.listen)?;
    let token = token(&data_dir)?;
    progress.done("certificates");

    let core = Core::new(store);
    let service = ApiService::new(Arc::clone(&core), Authenticator::new(&token));
    bootstrap::ensure(&service, arguments.nodes > 0).await?;
    // An API alone has no driver, and so no StorageClasses.
    progress.done(match arguments.nodes {
        0 => "namespaces and CRDs",
        _ => "namespaces, CRDs and StorageClasses",
    });

    let server = Server::bind(arguments.listen, &identity, service.clone()).await?;
    let address = server
        .local_address()
        .context("cannot tell the address of the server")?;
    write_kubeconfig(&data_dir, &authority, address)?;
    progress.done(&format!("API on https://{address}"));
    let (stop, stopped) = oneshot::channel::<()>();
    let mut lifecycle = tokio::spawn(apiserver::lifecycle::run(core));
    let mut serving = tokio::spawn(server.serve(async move {
        stopped.await.ok();
    }));
    service.set_ready();
    let client = Client::new(service.clone(), "default");
    let parts = Parts::start(&data_dir, &client, arguments.nodes).await?;
    let became_ready = {
        let ready = parts.until_ready(&data_dir, &client, &mut progress);
        let mut ready = std::pin::pin!(ready);
        tokio::select! {
            ready = &mut ready => ready.map(|()| true),
            () = &mut signalled => {
                if parts::has_leftovers(&data_dir) {
                    // Nodes that have begun put away what a killed predecessor of theirs has mounted.
                    timeout(LEFTOVERS_TIMEOUT, ready).await.ok();
                }
                Ok(false)
            }
        }
    };
    if matches!(became_ready, Ok(true)) {
        if let Some(shown) = parts.metrics(&data_dir) {
            let token = metrics::token_file(data_dir.root());
            progress.done(&format!("metrics: {shown}; token in {}", token.display()));
        }
        announce(&data_dir, started, arguments.nodes)?;
    }

    // Whichever task ends first ends the process: a server without its lifecycle would keep objects
    // for ever, and nobody would see why.
    let outcome = match became_ready {
        Err(error) => Err(error),
        Ok(false) => Ok(()),
        Ok(true) => tokio::select! {
            () = &mut signalled => Ok(()),
            ended = &mut serving => Err(by_itself("the API server", ended.err())),
            ended = &mut lifecycle => Err(by_itself("the lifecycle task", ended.err())),
        },
    };
    fs::remove_file(data_dir.ready()).ok();
    // They need the API to put their things away.
    parts.stop().await;
    stop.send(()).ok();
    if !serving.is_finished() {
        serving
            .await
            .context("the API server failed while stopping")?;
    }
    lifecycle.abort();
    tell!("stopped");
    outcome
}

fn announce(data_dir: &DataDir, started: Instant, nodes: u16) -> Result<()> {
    let kubeconfig = data_dir.kubeconfig();
    fs::write(data_dir.ready(), format!("{}\n", std::process::id()))
        .with_context(|| format!("cannot write {}", data_dir.ready().display()))?;
    let took = started.elapsed().as_millis();
    let kubeconfig = kubeconfig.display();
    if nodes == 0 {
        tell!("ready in {took} ms; try: kubectl --kubeconfig {kubeconfig} get crds");
    } else {
        tell!("ready in {took} ms; try: lariat demo --kubeconfig {kubeconfig}");
    }
    Ok(())
}

/// One line a part, with how long it took.
struct Progress {
    last: Instant,
}

impl Progress {
    fn new() -> Self {
        Self {
            last: Instant::now(),
        }
    }

    fn done(&mut self, what: &str) {
        tell!("{:>5} ms  {what}", self.last.elapsed().as_millis());
        self.last = Instant::now();
    }
}

/// The authority of the cluster, and what its API shows of itself to clients.
fn certificates(data_dir: &DataDir, listen: SocketAddr) -> Result<(Authority, Identity)> {
    let open = || {
        let authority = Authority::open(data_dir.root())?;
        let identity = authority.server_identity(&server_names(listen))?;
        Ok::<_, CertificateError>((authority, identity))
    };
    open().with_context(|| {
        format!(
            "cannot use the certificates in {folder}; move {folder}/ca.crt and {folder}/ca.key away to have others made, and \
             give clients the new kubeconfig",
            folder = data_dir.root().display()
        )
    })
}

/// The bearer token, made once and kept.
fn token(data_dir: &DataDir) -> Result<String> {
    let path = data_dir.token();
    if let Ok(token) = fs::read_to_string(&path) {
        let token = token.trim().to_owned();
        if !token.is_empty() {
            return Ok(token);
        }
    }
    // Two random UUIDs: 244 bits from the system's generator.
    let token = format!(
        "{}{}",
        uuid::Uuid::new_v4().simple(),
        uuid::Uuid::new_v4().simple()
    );
    write_private(&path, token.as_bytes())?;
    Ok(token)
}

fn write_kubeconfig(data_dir: &DataDir, authority: &Authority, address: SocketAddr) -> Result<()> {
    let client = authority.client("lariat:admin", "system:masters")?;
    let text = kubeconfig::render(&kubeconfig::Access {
        address,
        authority_pem: authority.certificate_pem(),
        client_certificate_pem: &client.certificate_pem,
        client_key_pem: &client.key_pem,
    });
    write_private(&data_dir.kubeconfig(), text.as_bytes())?;
    Ok(())
}

/// Every name under which a client on this machine may call the server.
fn server_names(listen: SocketAddr) -> Vec<String> {
    let mut names: Vec<String> = [
        "localhost",
        "127.0.0.1",
        "::1",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ]
    .map(str::to_owned)
    .to_vec();
    let own = listen.ip().to_string();
    if !listen.ip().is_unspecified() && !names.contains(&own) {
        names.push(own);
    }
    names
}

/// Resolves at the first SIGINT or SIGTERM. Must be called inside a runtime.
pub(crate) fn until_signalled() -> Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// What to say of a task that should not end. Why a server ends in order it has logged itself.
fn by_itself(what: &str, panicked: Option<tokio::task::JoinError>) -> anyhow::Error {
    let told = format!("{what} ended by itself");
    match panicked {
        Some(error) => anyhow::Error::new(error).context(told),
        None => anyhow::anyhow!("{told}; its log says why"),
    }
}
