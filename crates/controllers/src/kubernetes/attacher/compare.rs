//! The driver's own list of what is published, beside what the attachments say.

use std::collections::BTreeMap;

use cluster_core::attacher::{PublishedVolumes, out_of_step};
use cluster_core::{PvName, wire};
use kube::ResourceExt as _;

use super::handler::Handler;
use super::{ATTACH, DETACH};
use crate::kubernetes::csi::{CsiController, within};
use crate::kubernetes::queue::Queue;

impl<C: CsiController> Handler<C> {
    /// Compares the driver's list with the attachments, again and again.
    pub(super) async fn compare_for_ever(&self, queue: &Queue<String>) {
        let mut interval = tokio::time::interval(self.options.reconcile_every);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        interval.tick().await;
        loop {
            interval.tick().await;
            let listing = within(self.options.rpc_timeout, "ListVolumes", self.csi.list());
            match listing.await {
                Ok(published) => self.compare(&published, queue),
                Err(error) => {
                    tracing::warn!(error = %error, "the driver's list of volumes could not be compared; trying again at the next turn");
                }
            }
        }
    }

    fn compare(&self, published: &PublishedVolumes, queue: &Queue<String>) {
        let attachments: BTreeMap<_, _> = self
            .attachments
            .all()
            .iter()
            .filter(|attachment| attachment.spec.attacher == self.driver.as_str())
            .map(|attachment| {
                (
                    wire::attachment_key(attachment),
                    wire::attachment(attachment),
                )
            })
            .collect();
        let volumes = self
            .volumes
            .all()
            .iter()
            .filter_map(|volume| {
                let name = PvName::new(volume.name_any());
                Some((name, wire::persistent_volume(volume)?))
            })
            .collect();
        let csi_nodes = self
            .csi_nodes
            .all()
            .iter()
            .map(|node| {
                let name = cluster_core::NodeName::new(node.name_any());
                (name, wire::csi_node(node))
            })
            .collect();
        for name in out_of_step(&self.driver, &attachments, &volumes, &csi_nodes, published) {
            tracing::info!(attachment.name = %name, "the driver's list contradicts the status; handling it once more");
            let lane = if attachments[&name].deleting {
                DETACH
            } else {
                ATTACH
            };
            let name = name.as_str().to_owned();
            self.force
                .lock()
                .expect("no holder panics")
                .insert(name.clone());
            queue.add(name, lane);
        }
    }
}
