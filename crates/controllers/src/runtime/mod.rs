//! What all controllers stand on: who leads, what is known, what is due, and how it is written.

pub mod cache;
mod context;
pub mod leader;
mod manager;
pub mod queue;
mod settled;
pub mod told;
mod write;

pub use cache::Cache;
pub(crate) use cache::in_large_pages;
pub(crate) use context::reference;
pub use context::{Context, Objects};
pub use leader::{LeaderOptions, lead};
pub use manager::{Manager, Options, RunError};
pub use queue::{Next, Queue};
pub(crate) use settled::{Settled, settled};
pub use write::{Stop, Writer};
