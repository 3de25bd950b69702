//! How long each call of a service takes, and how it ends.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::{Request, Response};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tonic::Code;
use tower::{Layer, Service};

/// From a question that is answered from memory to a file system that is made.
const BUCKETS_SECONDS: [f64; 12] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0,
];
/// The label of what is no method of ours.
const OTHER: &str = "Other";

type Labels = [(&'static str, String); 2];

/// Clones count into the same place.
#[derive(Clone)]
pub struct CallTimes {
    seconds: Family<Labels, Histogram, fn() -> Histogram>,
}

impl Default for CallTimes {
    fn default() -> Self {
        Self {
            seconds: Family::new_with_constructor(|| Histogram::new(BUCKETS_SECONDS)),
        }
    }
}

impl CallTimes {
    pub fn register(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "lariat_csi_call",
            "How long calls of our CSI services take, by method and gRPC code",
            Unit::Seconds,
            self.seconds.clone(),
        );
    }

    pub(crate) fn layer(&self) -> Timing {
        Timing(self.clone())
    }

    fn observe(&self, path: &str, code: Code, took: Duration) {
        let labels = [
            ("method", method(path, code).to_owned()),
            ("code", format!("{code:?}")),
        ];
        self.seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }
}

/// Anybody may call anything; only what we serve becomes a label.
fn method(path: &str, code: Code) -> &str {
    let ours = path
        .strip_prefix("/csi.v1.")
        .and_then(|rest| rest.split_once('/'));
    match ours {
        Some((_, method)) if code != Code::Unimplemented => method,
        Some(_) | None => OTHER,
    }
}

/// Puts the clock around a service.
#[derive(Clone)]
pub(crate) struct Timing(CallTimes);

impl<S> Layer<S> for Timing {
    type Service = TimedService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        TimedService {
            inner,
            times: self.0.clone(),
        }
    }
}

#[derive(Clone)]
pub(crate) struct TimedService<S> {
    inner: S,
    times: CallTimes,
}

impl<S, A, B> Service<Request<A>> for TimedService<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (began, times) = (Instant::now(), self.times.clone());
        let path = request.uri().path().to_owned();
        let answering = self.inner.call(request);
        Box::pin(async move {
            let answer = answering.await;
            let code = answer.as_ref().map_or(Code::Unknown, code_of);
            times.observe(&path, code, began.elapsed());
            answer
        })
    }
}

/// A call that failed says so in the head of its answer; one that did not, behind its body.
fn code_of<B>(answer: &Response<B>) -> Code {
    let status = answer.headers().get("grpc-status");
    status.map_or(Code::Ok, |status| Code::from_bytes(status.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_methods_that_we_serve_become_labels() {
        let rows = [
            ("/csi.v1.Node/NodeStageVolume", Code::Ok, "NodeStageVolume"),
            (
                "/csi.v1.Node/NodeStageVolume",
                Code::Internal,
                "NodeStageVolume",
            ),
            ("/csi.v1.Node/Invented", Code::Unimplemented, OTHER),
            ("/other.Service/Call", Code::Ok, OTHER),
            ("/", Code::Ok, OTHER),
        ];
        for (path, code, expected) in rows {
            assert_eq!(method(path, code), expected, "{path}");
        }
    }

    #[test]
    fn the_head_of_an_answer_tells_a_failure() {
        let answer = |status: Option<&str>| {
            let mut answer = Response::new(());
            if let Some(status) = status {
                let value = status.parse().expect("a header");
                answer.headers_mut().insert("grpc-status", value);
            }
            answer
        };
        assert_eq!(code_of(&answer(None)), Code::Ok);
        assert_eq!(code_of(&answer(Some("5"))), Code::NotFound);
    }
}
