//! A volume's life as one pure function: given what is observed, which engines and replicas should
//! exist, with which epoch and in-sync set, on which node and disk, and why.
//!
//! ```text
//! VolumeView ──decide(now)──▶ VolumePlan { status, engines, replicas, reasons, recheck_after }
//! ```
//!
//! The shell gathers a [`VolumeView`], calls [`decide()`], writes what [`VolumePlan::changes`] lists and
//! shows the reasons. It never has to choose anything itself.
//!
//! What is not here: no clock (time is passed in), no randomness (names come from counters recorded
//! on the volume), no I/O, no blocks. API types are read and written in [`wire`] and go no further. Safety does not rest on this crate being right about who is
//! alive: it rests on [`epoch`], a protocol small enough to be model-checked (`tests/epoch_model.rs`).

mod decide;
pub mod epoch;
mod identity;
mod leaving;
pub mod placement;
mod plan;
mod reason;
pub mod salvage;
mod settings;
pub mod snapshots;
mod view;
pub mod wire;

pub use decide::decide;
pub use epoch::{
    CommitInSyncError, FenceProof, InSyncRecord, Proposal, TakeOverError, commit_in_sync, take_over,
};
pub use identity::{
    DiskName, EngineName, Epoch, NodeName, ReplicaName, SnapshotName, Timestamp, Version,
    VolumeName,
};
pub use plan::{
    Change, CloneState, EngineDesired, EngineRole, EngineSpec, Job, ReplicaDesired, ReplicaRole,
    ReplicaSpec, Restarts, RestoreState, Robustness, VolumePlan, VolumeState, VolumeStatus,
};
pub use reason::Reason;
pub use settings::Settings;
pub use view::{
    AntiAffinity, DataLocality, DataSource, Disk, Engine, EngineObserved, EngineRunning,
    JobProgress, Node, NodeHealth, Replica, ReplicaMode, ReplicaObserved, ReplicaVersion, Volume,
    VolumeView,
};
