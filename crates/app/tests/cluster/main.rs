//! Whole clusters on this machine: from `kubectl apply` to a mounted file system and back, with real mounts, real
//! processes and `kill -9`.

#[path = "../support/mod.rs"]
mod support;

mod crowd;
mod disks;
mod documents;
mod engine_kill;
mod failover;
mod flow;
mod half_made;
mod hand_over;
mod hops;
mod mid_flight;
mod migration;
mod migration_hops;
mod one_pod;
mod partition;
mod refusal_hops;
mod refusals;
mod restarts;
mod snapshots;
mod torture;
mod watched;
mod workload;
mod world;
