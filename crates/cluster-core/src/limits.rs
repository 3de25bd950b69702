//! How many volumes of a driver a node can take.

use std::collections::BTreeMap;

use crate::identity::{DriverName, NodeName};
use crate::view::ClusterView;

/// The node has as many volumes as its driver allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeFull {
    pub volumes: u32,
    pub volumes_max: u32,
}

/// Attachments by node and driver, counted once for many questions.
///
/// Every existing VolumeAttachment counts, also one that is being deleted: until it is gone it may
/// occupy a slot.
pub struct Occupancy<'a> {
    view: &'a ClusterView,
    counts: BTreeMap<(&'a NodeName, &'a DriverName), u32>,
}

impl<'a> Occupancy<'a> {
    pub fn of(view: &'a ClusterView) -> Self {
        let mut counts = BTreeMap::new();
        for attachment in view.attachments.values() {
            *counts
                .entry((&attachment.node, &attachment.driver))
                .or_insert(0) += 1;
        }
        Self { view, counts }
    }

    /// Takes a slot for one more attachment, if there is one. A limit of 0 means none.
    pub fn take(&mut self, driver: &'a DriverName, node: &'a NodeName) -> Result<(), NodeFull> {
        let entry = self
            .view
            .csi_nodes
            .get(node)
            .and_then(|drivers| drivers.get(driver));
        let limit = entry
            .and_then(|entry| entry.volumes_max)
            .filter(|limit| *limit > 0);
        let volumes = self.counts.entry((node, driver)).or_insert(0);
        if let Some(volumes_max) = limit
            && *volumes >= volumes_max
        {
            return Err(NodeFull {
                volumes: *volumes,
                volumes_max,
            });
        }
        *volumes += 1;
        Ok(())
    }
}
