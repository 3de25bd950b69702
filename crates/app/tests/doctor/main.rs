//! Troubles made for real, what `lariat why` says of them, and what is left after `lariat doctor --fix`.

#[path = "../support/mod.rs"]
mod support;
#[allow(dead_code, reason = "the cluster's own tests use more of it")]
#[path = "../cluster/world.rs"]
mod world;

mod api_alone;
mod clinic;
mod clock;
mod frozen;
mod logs;
mod rare;
#[allow(dead_code, reason = "the metrics' own tests use more of it")]
#[path = "../metrics/scrape.rs"]
mod scrape;
mod scripted;
mod troubles;
