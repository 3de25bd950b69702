//! What the server counts, in the text form that Prometheus reads.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    verb: String,
    resource: String,
    code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VerbLabels {
    verb: String,
    resource: String,
}

/// From a tenth of a millisecond, which is a read from memory, to half a minute.
const DURATION_BUCKETS_SECONDS: [f64; 14] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0,
];

pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    durations: Family<VerbLabels, Histogram, fn() -> Histogram>,
    watches: Gauge,
    revision: Gauge,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let requests = Family::default();
        let durations: Family<VerbLabels, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(DURATION_BUCKETS_SECONDS));
        let watches: Gauge = Gauge::default();
        let revision: Gauge = Gauge::default();
        registry.register(
            "apiserver_request",
            "Requests by verb, resource and code",
            requests.clone(),
        );
        registry.register(
            "apiserver_request_duration_seconds",
            "Time from a request to its answer, watches not counted",
            durations.clone(),
        );
        registry.register("apiserver_watches", "Open watches", watches.clone());
        registry.register(
            "apiserver_store_revision",
            "The store's newest revision",
            revision.clone(),
        );
        Self {
            registry,
            requests,
            durations,
            watches,
            revision,
        }
    }

    pub(crate) fn answered(&self, verb: &str, resource: &str, code: u16, took: Option<Duration>) {
        let (verb, resource) = (verb.to_owned(), resource.to_owned());
        if let Some(took) = took {
            let labels = VerbLabels {
                verb: verb.clone(),
                resource: resource.clone(),
            };
            self.durations
                .get_or_create(&labels)
                .observe(took.as_secs_f64());
        }
        self.requests
            .get_or_create(&RequestLabels {
                verb,
                resource,
                code,
            })
            .inc();
    }

    pub(crate) fn watch_opened(&self) -> OpenWatch {
        self.watches.inc();
        OpenWatch(self.watches.clone())
    }

    /// The text of `/metrics`.
    pub(crate) fn render(&self, revision: u64) -> String {
        self.revision
            .set(i64::try_from(revision).unwrap_or(i64::MAX));
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string cannot fail");
        text
    }
}

/// Counts a watch as open for as long as it lives.
pub(crate) struct OpenWatch(Gauge);

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.dec();
    }
}
