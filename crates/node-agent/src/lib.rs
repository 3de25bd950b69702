//! What runs on each node: replicas, engines, their devices, and the node's own objects.
//!
//! ```text
//!   API  ──watch──>  agent: decides (pure), then acts  ──status──>  API
//!                      │                 │
//!           replica server in-process    engine processes, one a volume, by control socket
//! ```
//!
//! [`agent`] makes this host match the Replica and Engine objects that name it, and serves the CSI node service.
//! [`kubelet`] mounts pods' volumes through that service where no kubelet does. [`launch`] is what an engine
//! process is told when it is started; [`mount_table`] reads what the kernel has mounted. Decisions are pure functions
//! ([`agent::engine_plan`], [`agent::relay`], [`agent::replica_plan`]); everything that waits is around them.

pub mod agent;
pub mod kubelet;
pub mod launch;
pub mod merge;
pub mod mount_table;
