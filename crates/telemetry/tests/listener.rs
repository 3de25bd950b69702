//! The listener as a reader meets it: over a real connection, byte for byte.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use telemetry::{Listener, Parts, Token, register_build};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

/// More than the listener serves at once.
const CROWD: usize = 40;

struct Reader {
    address: SocketAddr,
    token: String,
    task: AbortHandle,
    _folder: tempfile::TempDir,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(ready: Result<(), &'static str>, limit: Duration) -> Reader {
    let folder = tempfile::tempdir().expect("a folder");
    let path: &Path = &folder.path().join("token");
    let token = Token::read_or_make(path).expect("a token");
    let mut registry = Registry::default();
    register_build(&mut registry, "test", "1.2.3");
    let counter: Counter = Counter::default();
    counter.inc_by(7);
    registry.register("lariat_things", "Things", counter);
    let parts = Parts {
        registry,
        token,
        ready: Box::new(move || ready.map_err(str::to_owned)),
    };
    let any = "127.0.0.1:0".parse().expect("an address");
    let listener = Listener::bind(any, parts).await.expect("bound");
    let listener = listener.with_timeout(limit);
    let address = listener.local_address().expect("an address");
    let task = tokio::spawn(listener.serve()).abort_handle();
    Reader {
        address,
        token: std::fs::read_to_string(path)
            .expect("a token")
            .trim()
            .to_owned(),
        task,
        _folder: folder,
    }
}

impl Reader {
    async fn say(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.expect("connected");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = Vec::new();
        // A listener that cuts off a request that is too large may do so before it has read all of it.
        stream.read_to_end(&mut answer).await.ok();
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn ask(&self, method: &str, path: &str) -> String {
        let token = &self.token;
        self.say(&format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
        ))
        .await
    }
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn metrics_are_shown_to_whoever_has_the_token() {
    let reader = listen(Ok(()), LONG).await;
    let answer = reader.ask("GET", "/metrics").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    for part in [
        "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8",
        "lariat_build_info{part=\"test\",version=\"1.2.3\"} 1\n",
        "lariat_things_total 7\n",
        "# EOF\n",
    ] {
        assert!(answer.contains(part), "no {part:?} in {answer}");
    }
}

#[tokio::test]
async fn nothing_is_shown_without_the_token() {
    let reader = listen(Ok(()), LONG).await;
    for path in ["/metrics", "/healthz", "/readyz", "/other"] {
        for header in ["", "Authorization: Bearer 0123456789abcdef0123\r\n"] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{header}\r\n");
            let answer = reader.say(&request).await;
            assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
            assert!(answer.contains("www-authenticate: Bearer"), "{answer}");
            assert!(!answer.contains("lariat_things"), "{answer}");
        }
    }
}

#[tokio::test]
async fn other_paths_and_methods_are_refused_with_what_there_is() {
    let reader = listen(Ok(()), LONG).await;
    let answer = reader.ask("GET", "/debug").await;
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    assert!(answer.contains("/metrics, /healthz and /readyz"));
    let answer = reader.ask("DELETE", "/metrics").await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    assert!(answer.contains("allow: GET"), "{answer}");
}

#[tokio::test]
async fn readiness_says_why_not() {
    let reader = listen(Err("the API has not answered"), LONG).await;
    let answer = reader.ask("GET", "/readyz").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("not ready: the API has not answered"));
    let answer = reader.ask("GET", "/healthz").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let reader = listen(Ok(()), LONG).await;
    let padding = "x".repeat(20_000);
    let token = &reader.token;
    let request = format!(
        "GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nPadding: {padding}\r\n\r\n"
    );
    let answer = reader.say(&request).await;
    assert!(!answer.contains("lariat_things"), "{answer}");
}

#[tokio::test]
async fn a_crowd_that_says_nothing_is_cut_off_and_readers_are_served() {
    let reader = listen(Ok(()), Duration::from_millis(100)).await;
    let mut crowd = Vec::new();
    for _ in 0..CROWD {
        crowd.push(TcpStream::connect(reader.address).await.expect("connected"));
    }
    let answer = reader.ask("GET", "/metrics").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let mut byte = [0];
    let read = crowd[0].read(&mut byte).await;
    assert!(matches!(read, Ok(0) | Err(_)), "it was cut off: {read:?}");
}
