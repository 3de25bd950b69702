//! The services on unix sockets.

use std::future::Future;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tower::layer::util::{Identity, Stack};

use crate::calls::{CallTimes, Timing};
use crate::controller::{ControllerOptions, ControllerService};
use crate::csi::v1::{
    controller_server::ControllerServer, identity_server::IdentityServer, node_server::NodeServer,
};
use crate::identity::IdentityService;
use crate::node::{NodeOptions, NodeService, VolumeNotes};

/// How long calls that run may take at shutdown. Most take milliseconds.
const DRAIN: Duration = Duration::from_secs(2);

/// Why a socket is not served, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {}; choose another socket with --csi-socket", path.display())]
    Listen {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is served by another process; stop that one first, or choose another socket with --csi-socket", path.display())]
    InUse { path: PathBuf },
    #[error("serving {} failed", path.display())]
    Serve {
        path: PathBuf,
        #[source]
        source: tonic::transport::Error,
    },
    #[error("a watch of the Controller service ended, which is a defect")]
    WatchEnded,
}

/// Serves Identity and Controller until `shutdown` is cancelled, then lets calls end for a moment and removes the socket.
pub async fn serve_controller(
    client: Client,
    socket: &Path,
    options: ControllerOptions,
    calls: &CallTimes,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let controller = ControllerService::start(client, options);
    let ready = controller.clone();
    let identity =
        IdentityService::for_controller(options.expansion, Arc::new(move || ready.is_ready()));
    let router = builder(calls)
        .add_service(IdentityServer::new(identity))
        .add_service(ControllerServer::new(controller.clone()));
    tokio::select! {
        served = serve(router, socket, shutdown) => served,
        () = controller.ended() => Err(ServeError::WatchEnded),
    }
}

/// Serves Identity and Node until `shutdown` is cancelled, then lets calls end for a moment and removes the socket.
pub async fn serve_node(
    options: NodeOptions,
    notes: Arc<dyn VolumeNotes>,
    socket: &Path,
    calls: &CallTimes,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let router = builder(calls)
        .add_service(IdentityServer::new(IdentityService::for_node()))
        .add_service(NodeServer::new(NodeService::new(options, notes)));
    serve(router, socket, shutdown).await
}

/// Calls are logged by their name alone: requests may hold secrets.
fn builder(calls: &CallTimes) -> Server<Timed> {
    let builder = Server::builder().trace_fn(|request| {
        let method = request.uri().path();
        tracing::debug!(method, "a CSI call");
        tracing::debug_span!("csi", method)
    });
    builder.layer(calls.layer())
}

type Timed = Stack<Timing, Identity>;

async fn serve(
    router: Router<Timed>,
    socket: &Path,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let listener = listen(socket).await?;
    tracing::info!(socket = %socket.display(), "CSI services listen");
    let incoming = UnixListenerStream::new(listener);
    let serving = router.serve_with_incoming_shutdown(incoming, shutdown.clone().cancelled_owned());
    let served = until_drained(serving, shutdown).await;
    // Whoever comes next finds no socket rather than one that nobody serves.
    let _ = std::fs::remove_file(socket);
    served.map_err(|source| ServeError::Serve {
        path: socket.to_owned(),
        source,
    })
}

/// Serves to the end, but calls that run are not waited for longer than [`DRAIN`]: each is idempotent and found again by
/// looking, and some wait for minutes.
async fn until_drained<E>(
    serving: impl Future<Output = Result<(), E>>,
    shutdown: CancellationToken,
) -> Result<(), E> {
    let drained = async {
        shutdown.cancelled().await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        served = serving => served,
        () = drained => Ok(()),
    }
}

/// Listens on a socket that only its owner may use. A socket left by a process that died is replaced; one that answers is not.
async fn listen(path: &Path) -> Result<UnixListener, ServeError> {
    let failed = |source: io::Error| ServeError::Listen {
        path: path.to_owned(),
        source,
    };
    if UnixStream::connect(path).await.is_ok() {
        return Err(ServeError::InUse {
            path: path.to_owned(),
        });
    }
    // Bound under another name, given its mode, then moved into place: nobody ever finds it open to all, and nobody finds
    // it before it can be used.
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    remove_socket(&temporary).map_err(failed)?;
    remove_socket(path).map_err(failed)?;
    let listener = UnixListener::bind(&temporary).map_err(failed)?;
    std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    std::fs::rename(&temporary, path).map_err(failed)?;
    Ok(listener)
}

/// Removes a socket, and nothing that is not one.
fn remove_socket(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt as _;
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "there is something that is not a socket",
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
