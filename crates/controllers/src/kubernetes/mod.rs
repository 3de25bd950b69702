//! What Kubernetes' own controllers do around a volume, over `cluster-core`'s decisions: for the embedded
//! mode, where nobody else does it. The attacher serves real clusters too.

pub mod attach_detach;
pub mod attacher;
pub mod binder;
mod cache;
pub mod csi;
pub mod queue;
pub mod scheduler;

use cluster_core::Timestamp;

/// The wall clock, as the decisions want it.
pub(crate) fn now() -> Timestamp {
    Timestamp(u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0))
}
