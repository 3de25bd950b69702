//! The `longhorn.io/v1beta2` resources as Rust types, and the CRDs generated from them; beside them
//! Kubernetes' own `snapshot.storage.k8s.io/v1`.
//!
//! JSON names, enum values, short names and printer columns are Longhorn's, so that every tool that
//! reads or writes Longhorn objects can read and write ours. What Lariat adds is optional and marked
//! "Lariat's" in its documentation.
//!
//! Three promises hold for every struct here, by construction (see [`wire`]):
//! - a field that is absent or `null` reads as its default, so sparse objects parse;
//! - a field that this version does not know is kept in `unknown` and written back;
//! - an enum value that this version does not know is kept in `Other` and written back.
//!
//! There is no I/O, no clock and no async in this crate: timestamps are RFC 3339 strings, as Longhorn
//! stores them, and whoever writes one passes it in.

mod backing_image;
mod backup;
mod backup_target;
mod backup_volume;
mod byte_size;
pub mod condition;
mod crds;
mod engine;
pub mod names;
mod node;
mod recurring_job;
mod replica;
mod setting;
pub mod settings;
mod share_manager;
mod snapshot;
mod volume;
mod volume_attachment;
mod volume_snapshot;
pub mod wire;

pub use backing_image::*;
pub use backup::*;
pub use backup_target::*;
pub use backup_volume::*;
pub use byte_size::{ByteSize, ParseByteSizeError};
pub use condition::{Condition, ConditionStatus};
pub use crds::{CrdTextError, all_crds, crds_json, crds_yaml};
pub use engine::*;
pub use node::*;
pub use recurring_job::*;
pub use replica::*;
pub use setting::*;
pub use share_manager::*;
pub use snapshot::*;
pub use volume::*;
pub use volume_attachment::*;
pub use volume_snapshot::*;
