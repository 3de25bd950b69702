//! What a process counts, and how others may read it: `/metrics` in OpenMetrics text, `/healthz` and `/readyz`.
//!
//! Nothing here knows what is counted. Manager, node and attacher register their own families; [`Rows`] is for values
//! that are computed when they are asked for, so that something stuck grows older without anybody counting.
//! There is no way to listen without a token.

mod listener;
mod rows;
mod token;

pub use listener::{BindError, Listener, Parts};
pub use rows::Rows;
pub use token::{Token, TokenError};

use prometheus_client::registry::Registry;

/// `lariat_build_info{part,version} 1`: which part of which version answers.
pub fn register_build(registry: &mut Registry, part: &'static str, version: &'static str) {
    let labels = [("part", part), ("version", version)];
    let info = prometheus_client::metrics::family::Family::<
        [(&'static str, &'static str); 2],
        prometheus_client::metrics::gauge::Gauge,
    >::default();
    info.get_or_create(&labels).set(1);
    registry.register(
        "lariat_build_info",
        "Always 1: which part, and of which version, this process is",
        info,
    );
}
