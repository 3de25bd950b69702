//! The rules of the block tower, as values and functions.
//!
//! This crate knows what a frame between an engine and a replica looks like ([`wire`]), which layer
//! of a snapshot chain holds a block ([`layers`]), what an epoch forbids ([`epoch`]), what recorded in-sync sets
//! tell when nothing else is left ([`salvage`](mod@salvage)), and what digests tell of damage ([`verification`]). It has no sockets, files, clock, randomness or async: everything that
//! comes from the world is an argument.

pub mod epoch;
pub mod geometry;
pub mod layers;
pub mod names;
pub mod salvage;
pub mod verification;
pub mod wire;

pub use epoch::Epoch;
pub use geometry::{BLOCK_BYTES, SECTOR_BYTES};
pub use names::{NameError, ReplicaName, SnapshotName, VolumeName};
