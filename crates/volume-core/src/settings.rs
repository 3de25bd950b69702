//! The cluster-wide settings that volume decisions read, with Longhorn's defaults where it has them.

use std::time::Duration;

/// Parsed from `settings.longhorn.io` at the edge; the setting's name is given at each field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `storage-over-provisioning-percentage`.
    pub over_provisioning_percent: u64,
    /// `storage-minimal-available-percentage`.
    pub minimal_available_percent: u64,
    /// `replica-soft-anti-affinity`: may two replicas share a node?
    pub node_soft_anti_affinity: bool,
    /// `replica-zone-soft-anti-affinity`.
    pub zone_soft_anti_affinity: bool,
    /// `replica-disk-level-soft-anti-affinity`.
    pub disk_soft_anti_affinity: bool,
    /// `allow-empty-node-selector-volume`: may a volume without node tags use a tagged node?
    pub allow_empty_node_selector: bool,
    /// `allow-empty-disk-selector-volume`.
    pub allow_empty_disk_selector: bool,
    /// `allow-volume-creation-with-degraded-availability`.
    pub allow_degraded_creation: bool,
    /// `auto-salvage`.
    pub auto_salvage: bool,
    /// Beyond Longhorn: automatic salvages before a person has to look.
    pub salvage_attempts_max: u32,
    /// `replica-replenishment-wait-interval`: how long a failed replica may take to come back before
    /// another is built in its place.
    pub replenishment_wait: Duration,
    /// `concurrent-replica-rebuild-per-node-limit`.
    pub rebuilds_per_node_max: u32,
    /// Rebuilds of one volume at a time: each reads from the same members.
    pub rebuilds_per_volume_max: usize,
    /// How long a node must be lost before its engine is superseded. The node's lease has already
    /// run out by then, so the default adds nothing.
    pub fence_after: Duration,
    /// Failed engine starts and salvages are forgotten after running this long.
    pub stable_after: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            over_provisioning_percent: 100,
            minimal_available_percent: 25,
            node_soft_anti_affinity: false,
            zone_soft_anti_affinity: true,
            disk_soft_anti_affinity: true,
            allow_empty_node_selector: true,
            allow_empty_disk_selector: true,
            allow_degraded_creation: true,
            auto_salvage: true,
            salvage_attempts_max: 3,
            replenishment_wait: Duration::from_secs(600),
            rebuilds_per_node_max: 5,
            rebuilds_per_volume_max: 1,
            fence_after: Duration::ZERO,
            stable_after: Duration::from_secs(300),
        }
    }
}
