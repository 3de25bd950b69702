//! The rules of the block tower, as values and functions.
//!
//! This crate knows what a frame between an engine and a replica looks like ([`wire`]), which layer
//! of a snapshot chain holds a block ([`layers`]), which in-flight jobs must wait for which
//! ([`active_jobs`]), and what an epoch and an in-sync set forbid ([`epoch`], [`in_sync`],
//! [`salvage`](mod@salvage)), and what digests tell of damage ([`verification`]). It has no sockets, files, clock, randomness or async: everything that
//! comes from the world is an argument.

pub mod active_jobs;
pub mod epoch;
pub mod geometry;
pub mod in_sync;
pub mod layers;
pub mod names;
pub mod salvage;
pub mod verification;
pub mod wire;

pub use epoch::Epoch;
pub use geometry::{BLOCK_BYTES, SECTOR_BYTES};
pub use names::{NameError, ReplicaName, SnapshotName, VolumeName};
