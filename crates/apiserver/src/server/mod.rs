//! The socket: TLS, connections, time-outs. Knows nothing of Kubernetes.

mod certificates;
mod stall;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub use certificates::{Authority, CertificateError, Identity, Leaf, write_private};

use crate::auth::User;
use crate::service::{ApiService, CertificateUser};
use stall::StallGuard;

/// Connections at the same time. A watcher of everything holds one; beyond this, new ones wait.
const CONNECTIONS_MAX: usize = 8192;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A client that does not finish its request's head is cut off.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// A client that does not take what it asked for is cut off: nothing is kept for it for ever.
const WRITE_STALL_MAX: Duration = Duration::from_secs(60);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const STREAMS_PER_CONNECTION_MAX: u32 = 1000;
/// On shutdown, answers under way get this long; watches are cut.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// A bound, not yet serving, server.
pub struct Server {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    service: ApiService,
}

impl Server {
    pub async fn bind(
        address: SocketAddr,
        identity: &Identity,
        service: ApiService,
    ) -> Result<Self, BindError> {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| BindError::Listen { address, source })?;
        let acceptor = TlsAcceptor::from(identity.server_config().map_err(BindError::Certificate)?);
        Ok(Self {
            listener,
            acceptor,
            service,
        })
    }

    pub fn local_address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` resolves.
    pub async fn serve(self, stop: impl Future<Output = ()>) {
        let Self {
            listener,
            acceptor,
            service,
        } = self;
        let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let graceful = GracefulShutdown::new();
        let mut stop = std::pin::pin!(stop);
        loop {
            let slot = Arc::clone(&connections)
                .acquire_owned()
                .await
                .expect("never closed");
            let stream = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        // Out of descriptors, most likely: give those in use time to close.
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                },
                () = &mut stop => break,
            };
            let acceptor = acceptor.clone();
            let service = service.clone();
            let watcher = graceful.watcher();
            tokio::spawn(async move {
                let _slot = slot;
                if let Some(stream) = handshake(&acceptor, stream).await {
                    serve_connection(stream, service, watcher).await;
                }
            });
        }
        if timeout(DRAIN_TIMEOUT, graceful.shutdown()).await.is_err() {
            tracing::debug!("some connections were cut");
        }
    }
}

async fn handshake(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
) -> Option<TlsStream<StallGuard<TcpStream>>> {
    // Small answers must not wait for more to come.
    stream.set_nodelay(true).ok()?;
    match timeout(
        HANDSHAKE_TIMEOUT,
        acceptor.accept(StallGuard::new(stream, WRITE_STALL_MAX)),
    )
    .await
    {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            None
        }
        Err(_) => None,
    }
}

async fn serve_connection(
    stream: TlsStream<StallGuard<TcpStream>>,
    service: ApiService,
    watcher: hyper_util::server::graceful::Watcher,
) {
    let user = client_user(&stream);
    let answer = service_fn(move |mut request: http::Request<Incoming>| {
        if let Some(user) = &user {
            request
                .extensions_mut()
                .insert(CertificateUser(user.clone()));
        }
        let service = service.clone();
        async move { Ok::<_, std::convert::Infallible>(service.handle(request).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL);
    let connection = builder
        .serve_connection(TokioIo::new(stream), answer)
        .into_owned();
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(error, "a connection ended early");
    }
}

/// The name in the client's certificate. TLS has already checked who signed it.
fn client_user(stream: &TlsStream<StallGuard<TcpStream>>) -> Option<User> {
    let certificates = stream.get_ref().1.peer_certificates()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(certificates.first()?).ok()?;
    let name = certificate
        .subject()
        .iter_common_name()
        .next()?
        .as_str()
        .ok()?;
    Some(User::new(name))
}

/// Why the server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("cannot listen on {address}; choose another with --listen")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot use the server's certificate")]
    Certificate(#[source] CertificateError),
}
