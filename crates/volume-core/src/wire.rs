//! The edge: API objects become a [`VolumeView`](crate::VolumeView), a [`crate::VolumePlan`] becomes API objects. Wire types go no
//! further.
//!
//! Writing changes an object in place: fields that this crate does not decide keep the value that they have, so that
//! comparing the object before and after tells whether there is anything to write.

mod nodes;
mod read;
mod snapshots;
mod write;

use jiff::Timestamp as WireTime;

use crate::identity::Timestamp;
use crate::settings::Settings;

pub use nodes::{Cluster, cluster, disk_path};
pub use read::view;
pub use snapshots::{
    adopt_snapshot, new_snapshot, snapshot_info, snapshots, write_snapshot_requests,
    write_snapshot_status,
};
pub use write::{
    CLONE_CONDITION, new_engine, new_replica, write_engine, write_replica, write_status,
};

/// A field that cannot be read, so that nothing can be decided about its object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// The path of the field in the object.
    pub field: String,
    pub message: String,
}

impl FieldError {
    fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

/// The cluster's settings that volume decisions read.
#[must_use]
pub fn settings(wire: &api_types::settings::Settings) -> Settings {
    use api_types::settings as known;
    use std::time::Duration;
    let number = |definition| count(wire.whole_number(definition));
    Settings {
        over_provisioning_percent: number(&known::STORAGE_OVER_PROVISIONING_PERCENTAGE),
        minimal_available_percent: number(&known::STORAGE_MINIMAL_AVAILABLE_PERCENTAGE),
        node_soft_anti_affinity: wire.is_on(&known::REPLICA_SOFT_ANTI_AFFINITY),
        zone_soft_anti_affinity: wire.is_on(&known::REPLICA_ZONE_SOFT_ANTI_AFFINITY),
        disk_soft_anti_affinity: wire.is_on(&known::REPLICA_DISK_SOFT_ANTI_AFFINITY),
        allow_empty_node_selector: wire.is_on(&known::ALLOW_EMPTY_NODE_SELECTOR_VOLUME),
        allow_empty_disk_selector: wire.is_on(&known::ALLOW_EMPTY_DISK_SELECTOR_VOLUME),
        allow_degraded_creation: wire
            .is_on(&known::ALLOW_VOLUME_CREATION_WITH_DEGRADED_AVAILABILITY),
        auto_salvage: wire.is_on(&known::AUTO_SALVAGE),
        replenishment_wait: Duration::from_secs(number(
            &known::REPLICA_REPLENISHMENT_WAIT_INTERVAL,
        )),
        rebuilds_per_node_max: small(
            wire.whole_number(&known::CONCURRENT_REPLICA_REBUILD_PER_NODE_LIMIT),
        ),
        ..Settings::default()
    }
}

/// A time as the API has it; empty and broken ones are no time.
fn time(text: &str) -> Option<Timestamp> {
    let time: WireTime = text.parse().ok()?;
    Some(Timestamp(u64::try_from(time.as_millisecond()).ok()?))
}

/// The inverse of [`time`]: RFC 3339 with as many digits as it takes.
pub(crate) fn time_to_wire(time: Option<Timestamp>) -> String {
    time.and_then(|time| WireTime::from_millisecond(i64::try_from(time.0).ok()?).ok())
        .map(|time| time.to_string())
        .unwrap_or_default()
}

/// The API's counters are signed; ours cannot be negative.
fn count(wire: i64) -> u64 {
    u64::try_from(wire).unwrap_or(0)
}

fn small(wire: i64) -> u32 {
    u32::try_from(wire.max(0)).unwrap_or(u32::MAX)
}

fn count_to_wire(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
