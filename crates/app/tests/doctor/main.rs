//! Troubles made for real, what `lariat why` says of them, and what is left after `lariat doctor --fix`.

#[allow(dead_code, reason = "the other targets use more of it")]
#[path = "../support/mod.rs"]
mod support;
#[allow(dead_code, reason = "the other targets use more of it")]
#[path = "../cluster/world.rs"]
mod world;

mod api_alone;
mod clinic;
mod troubles;
