//! One replica's files, and serving them over TCP.
//!
//! A replica is a folder: a live head and immutable snapshot layers as sparse files, and one small metadata file that
//! is only ever replaced as a whole (`docs/replica-format.md`). [`Replica`] is one such folder, safe to use from many
//! threads; [`ReplicaServer`] serves many of them to engines (`docs/replica-protocol.md`); [`client`] is a blocking
//! client for tools and tests.
//!
//! Two promises shape the code. What was flushed is there after a crash at any point. And an engine of an older epoch
//! than the newest that was ever accepted changes nothing any more, not even with requests that are already under way.

pub mod client;
pub mod disk;
mod host;
mod layer_files;
mod metadata;
pub mod server;
pub mod store;

pub use server::{KeyPolicy, ReplicaServer, ServerConfig, ServerError, ServerStats};
pub use store::{
    CreateReplicaError, OpenReplicaError, Replica, ReplicaSpec, StoreError, WriteOptions,
};
