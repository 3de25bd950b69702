//! The listener: three paths, one method, a token, and bounds for everything.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

use crate::token::Token;

/// One for Prometheus, one for its twin, the rest for people. More wait until one of these is done.
const CONNECTIONS_MAX: usize = 16;
/// What a client may send before it has asked: hyper's smallest.
const HEAD_BYTES_MAX: usize = 8192;
/// From the first byte to the last. A scrape takes milliseconds.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// After an accept that failed: out of descriptors, most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// What is shown, and to whom.
pub struct Parts {
    pub registry: Registry,
    pub token: Token,
    /// Whether the process can do its work; else why not, in a sentence.
    pub ready: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
}

/// Bound, not yet serving.
pub struct Listener {
    listener: TcpListener,
    parts: Arc<Parts>,
    connection_timeout: Duration,
}

#[derive(Debug, Error)]
#[error("cannot listen for readers of metrics on {address}; choose another with --metrics-listen")]
pub struct BindError {
    address: SocketAddr,
    #[source]
    source: std::io::Error,
}

impl Listener {
    pub async fn bind(address: SocketAddr, parts: Parts) -> Result<Self, BindError> {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| BindError { address, source })?;
        Ok(Self {
            listener,
            parts: Arc::new(parts),
            connection_timeout: CONNECTION_TIMEOUT,
        })
    }

    /// Cuts connections off after this long.
    #[must_use]
    pub fn with_timeout(mut self, connection_timeout: Duration) -> Self {
        self.connection_timeout = connection_timeout;
        self
    }

    pub fn local_address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until it is dropped; connections that are open then are cut.
    pub async fn serve(self) -> Infallible {
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut connections = JoinSet::new();
        loop {
            let slot = Arc::clone(&slots)
                .acquire_owned()
                .await
                .expect("never closed");
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a reader of metrics");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (parts, limit) = (Arc::clone(&self.parts), self.connection_timeout);
            connections.spawn(async move {
                let _slot = slot;
                if timeout(limit, serve_one(stream, parts)).await.is_err() {
                    tracing::debug!("a reader of metrics took too long and was cut off");
                }
            });
            while connections.try_join_next().is_some() {}
        }
    }
}

/// One request, one answer: readers come every few seconds, so that a connection that is kept would only take a slot.
async fn serve_one(stream: TcpStream, parts: Arc<Parts>) {
    let service = service_fn(move |request: http::Request<Incoming>| {
        let parts = Arc::clone(&parts);
        async move {
            let (head, _) = request.into_parts();
            Ok::<_, Infallible>(answer(&parts, &head.method, head.uri.path(), &head.headers).await)
        }
    });
    let served = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES_MAX)
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a reader of metrics went away");
    }
}

async fn answer(
    parts: &Arc<Parts>,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> Response<Full<Bytes>> {
    let shown = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
    if !shown.is_some_and(|shown| parts.token.is_shown_by(shown)) {
        let text = "a bearer token is needed: it is in the file that --metrics-token-file names\n";
        let mut refused = plain(StatusCode::UNAUTHORIZED, text);
        let scheme = HeaderValue::from_static("Bearer");
        refused.headers_mut().insert(WWW_AUTHENTICATE, scheme);
        return refused;
    }
    if !matches!(path, "/metrics" | "/healthz" | "/readyz") {
        let text = "there is /metrics, /healthz and /readyz\n";
        return plain(StatusCode::NOT_FOUND, text);
    }
    if method != Method::GET {
        let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
        refused
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET"));
        return refused;
    }
    match path {
        "/metrics" => metrics(parts).await,
        "/readyz" => match (parts.ready)() {
            Ok(()) => plain(StatusCode::OK, "ready\n"),
            Err(why) => plain(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("not ready: {why}\n"),
            ),
        },
        _ => plain(StatusCode::OK, "ok\n"),
    }
}

/// On a thread that may block: some figures are asked of the kernel.
async fn metrics(parts: &Arc<Parts>) -> Response<Full<Bytes>> {
    let parts = Arc::clone(parts);
    let encoded = spawn_blocking(move || {
        let mut text = String::new();
        encode(&mut text, &parts.registry).map(|()| text)
    });
    match encoded.await {
        Ok(Ok(text)) => {
            let mut response = plain(StatusCode::OK, text);
            response.headers_mut().insert(CONTENT_TYPE, OPEN_METRICS);
            response
        }
        Ok(Err(_)) | Err(_) => {
            tracing::error!("the metrics cannot be written, which is a defect");
            let text = "the metrics cannot be written, which is a defect; see the log\n";
            plain(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
    }
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, PLAIN);
    response
}
