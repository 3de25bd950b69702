//! How much can still be provisioned.

use api_types::settings::{self, Settings};
use api_types::{Node, Setting, condition, disk_condition, names, node_condition};
use kube::Api;
use kube::api::ListParams;
use tonic::{Request, Status};

use super::ControllerService;
use super::api::call;
use super::parameters::{GRANULE_BYTES, LARGEST_BYTES, Parameters, SMALLEST_BYTES};
use crate::capability::Capability;
use crate::csi::v1::{GetCapacityRequest, GetCapacityResponse};
use crate::{deadline, limits};

impl ControllerService {
    pub(super) async fn capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<GetCapacityResponse, Status> {
        let deadline = deadline::of(request.metadata());
        let request = request.into_inner();
        limits::map("parameters", &request.parameters)?;
        let parameters = Parameters::parse(&request.parameters)?;
        // A volume that cannot be made has no room, as the specification says.
        if Capability::parse_all(&request.volume_capabilities).is_err() {
            return Ok(GetCapacityResponse::default());
        }
        let all = ListParams::default();
        let setting_api: Api<Setting> = Api::namespaced(self.client.clone(), names::NAMESPACE);
        let node_api = self.nodes();
        let (nodes, stored) = futures::try_join!(
            call("list", "nodes", deadline, node_api.list(&all)),
            call("list", "settings", deadline, setting_api.list(&all)),
        )?;
        let (settings, _) = Settings::read(&stored.items);
        let room = room(&nodes.items, &parameters, &settings);
        Ok(GetCapacityResponse {
            available_capacity: room.available_bytes,
            maximum_volume_size: Some(room.largest_bytes),
            minimum_volume_size: Some(SMALLEST_BYTES),
        })
    }
}

/// The room for volumes of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    available_bytes: i64,
    largest_bytes: i64,
}

/// Every replica takes a volume's whole size on a disk of its own node. So the largest volume is as large as the
/// last node that it needs has room, and all volumes together get the sum, divided by the number of replicas.
fn room(nodes: &[Node], parameters: &Parameters, settings: &Settings) -> Room {
    let percent = settings.whole_number(&settings::STORAGE_OVER_PROVISIONING_PERCENTAGE);
    let replicas = match parameters.spec.number_of_replicas {
        0 => settings.whole_number(&settings::DEFAULT_REPLICA_COUNT),
        count => count,
    };
    let replicas = usize::try_from(replicas.max(1)).unwrap_or(1);
    let mut sum = 0_i64;
    let mut best_of_each_node = Vec::new();
    for node in nodes {
        let free = disks_free(node, parameters, percent);
        sum = free
            .iter()
            .fold(sum, |sum, bytes| sum.saturating_add(*bytes));
        best_of_each_node.extend(free.into_iter().max());
    }
    best_of_each_node.sort_unstable_by(|a, b| b.cmp(a));
    let largest = best_of_each_node.get(replicas - 1).copied().unwrap_or(0);
    let largest = largest.min(LARGEST_BYTES) / GRANULE_BYTES * GRANULE_BYTES;
    // With too few nodes no volume gets all its replicas, however much room each has.
    let available = if largest == 0 {
        0
    } else {
        sum / i64::try_from(replicas).unwrap_or(1)
    };
    Room {
        available_bytes: available,
        largest_bytes: largest,
    }
}

/// The free bytes of each disk of a node on which a replica may be placed.
fn disks_free(node: &Node, parameters: &Parameters, percent: i64) -> Vec<i64> {
    let Some(status) = &node.status else {
        return Vec::new();
    };
    let has = |tags: &[String], wanted: &[String]| wanted.iter().all(|tag| tags.contains(tag));
    let is_usable = node.spec.allow_scheduling
        && !node.spec.eviction_requested
        && condition::is_true(&status.conditions, node_condition::READY)
        && has(&node.spec.tags, &parameters.spec.node_selector);
    if !is_usable {
        return Vec::new();
    }
    let disks = node.spec.disks.iter().filter_map(|(name, spec)| {
        let disk = status.disk_status.get(name)?;
        let is_usable = spec.allow_scheduling
            && !spec.eviction_requested
            && condition::is_true(&disk.conditions, disk_condition::READY)
            && has(&spec.tags, &parameters.spec.disk_selector);
        let usable =
            i128::from(disk.storage_maximum - spec.storage_reserved) * i128::from(percent) / 100;
        let free = i64::try_from(usable).unwrap_or(i64::MAX) - disk.storage_scheduled;
        is_usable.then_some(free.max(0))
    });
    disks.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde_json::json;

    use super::*;

    fn node(name: &str, ready: &str, free: i64, tags: &[&str]) -> Node {
        let disk = json!({
            "conditions": [{"type": "Ready", "status": "True"}],
            "storageMaximum": free + 30, "storageScheduled": 20,
        });
        serde_json::from_value(json!({
            "apiVersion": "longhorn.io/v1beta2", "kind": "Node", "metadata": {"name": name},
            "spec": {
                "allowScheduling": true, "tags": tags,
                "disks": {"default": {"allowScheduling": true, "storageReserved": 10}},
            },
            "status": {
                "conditions": [{"type": "Ready", "status": ready}], "diskStatus": {"default": disk},
            },
        }))
        .expect("a node")
    }

    #[test]
    fn the_last_node_needed_bounds_a_volume() {
        const MIB: i64 = 1 << 20;
        let nodes = [
            node("a", "True", 10 * MIB, &["fast"]),
            node("b", "True", 8 * MIB, &[]),
            node("c", "True", 3 * MIB, &["fast"]),
            node("d", "Unknown", 90 * MIB, &["fast"]),
        ];
        let (settings, _) = Settings::read(&[]);
        let check = |pairs: &[(&str, &str)], available: i64, largest: i64| {
            let pairs = pairs
                .iter()
                .map(|&(key, value)| (key.to_owned(), value.to_owned()));
            let parameters = Parameters::parse(&pairs.collect::<HashMap<_, _>>()).expect("known");
            let expected = Room {
                available_bytes: available * MIB,
                largest_bytes: largest * MIB,
            };
            assert_eq!(room(&nodes, &parameters, &settings), expected);
        };
        check(&[("numberOfReplicas", "1")], 21, 10);
        check(&[("numberOfReplicas", "3")], 7, 3);
        check(&[("numberOfReplicas", "4")], 0, 0);
        check(
            &[("numberOfReplicas", "1"), ("nodeSelector", "fast")],
            13,
            10,
        );
        check(&[("numberOfReplicas", "1"), ("nodeSelector", "slow")], 0, 0);
        check(&[("numberOfReplicas", "1"), ("diskSelector", "ssd")], 0, 0);
        // The default is three.
        check(&[], 7, 3);
    }
}
