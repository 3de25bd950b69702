//! Data that would be out of reach without a node, the most precious first.

use std::collections::{BTreeMap, BTreeSet};

use api_types::settings::NODE_DRAIN_POLICY;
use api_types::{Replica, Volume};
use attach_core::wire;
use kube::ResourceExt as _;

use super::{Step, Weight, step};
use crate::disk::list::{DiskRow, disks_of};
use crate::inventory::Inventory;

pub(super) fn steps(inventory: &Inventory, node: &str, steps: &mut Vec<Step>) {
    let mut found = Vec::new();
    let policy = inventory.settings().text(&NODE_DRAIN_POLICY).to_owned();
    let places = Places::new(inventory);
    for volume in &inventory.volumes {
        found.extend(obstacle(inventory, &places, volume, node, &policy));
    }
    found.sort_by(|a, b| (a.weight, &a.about).cmp(&(b.weight, &b.about)));
    steps.extend(found);
}

/// Which nodes and disks can be used now. Made once: there may be ten thousand replicas.
struct Places(BTreeMap<String, Place>);

struct Place {
    ready: bool,
    disks: Vec<DiskRow>,
}

impl Places {
    fn new(inventory: &Inventory) -> Self {
        let nodes = inventory.nodes.iter().map(|node| {
            let place = Place {
                ready: wire::node(node).ready,
                disks: disks_of(node),
            };
            (node.name_any(), place)
        });
        Self(nodes.collect())
    }

    /// Why the replica cannot be used where it is, if it cannot.
    fn out_of_reach(&self, replica: &Replica) -> Option<String> {
        let (node, disk) = (&replica.spec.node_id, &replica.spec.disk_id);
        let Some(place) = self.0.get(node) else {
            return Some(format!("node {node} does not exist"));
        };
        if !place.ready {
            return Some(format!("node {node} is not ready"));
        }
        // Disks that the node should have come first: what is reported of one under an old name is over.
        let mut disks = place.disks.iter();
        match disks.find(|known| !known.unseen && known.uuid == *disk) {
            None => Some(format!("node {node} does not report its disk {disk}")),
            Some(known) if !known.ready => {
                Some(format!("disk {} of node {node} is not ready", known.name))
            }
            Some(_) => None,
        }
    }
}

fn obstacle(
    inventory: &Inventory,
    places: &Places,
    volume: &Volume,
    node: &str,
    policy: &str,
) -> Option<Step> {
    let name = volume.name_any();
    let status = volume.status.clone().unwrap_or_default();
    let in_sync: BTreeSet<&str> = status.in_sync_replicas.iter().map(String::as_str).collect();
    let has_all_data = |replica: &&Replica| {
        in_sync.contains(replica.name_any().as_str()) && replica.spec.failed_at.is_empty()
    };
    // On the node itself data counts even if it cannot be used now: with the node it goes for good.
    let (here, others): (Vec<&Replica>, Vec<&Replica>) = inventory
        .replicas_of(&name)
        .filter(has_all_data)
        .partition(|replica| replica.spec.node_id == node);
    if here.is_empty() {
        return None;
    }
    let unusable: BTreeSet<String> = others
        .iter()
        .filter_map(|replica| places.out_of_reach(replica))
        .collect();
    let unusable: Vec<String> = unusable.into_iter().collect();
    let is_usable = |replica: &&&Replica| places.out_of_reach(replica).is_none();
    let elsewhere = others.iter().filter(is_usable).count();
    let wanted = crate::volume::list::row(inventory, volume).wanted;
    if others.is_empty() && wanted == 1 {
        return Some(step(
            Weight::Blocks,
            "single-replica",
            &name,
            "its only replica is on this node".to_owned(),
            format!(
                "give it a second one (kubectl -n longhorn-system patch lhv {name} --type merge -p \
                 '{{\"spec\":{{\"numberOfReplicas\":2}}}}'), attach it and wait until it is healthy"
            ),
        ));
    }
    if others.is_empty() {
        return Some(step(
            Weight::Blocks,
            "last-replica",
            &name,
            format!("the last replica with all its data is on this node; {wanted} are wanted"),
            format!("let the others be rebuilt first: lariat volume show {name}"),
        ));
    }
    if elsewhere == 0 {
        return Some(step(
            Weight::Blocks,
            "last-replica",
            &name,
            format!(
                "no replica elsewhere can be used now ({}); {wanted} are wanted",
                unusable.join(", ")
            ),
            format!("bring those back, or let others be rebuilt first: lariat volume show {name}"),
        ));
    }
    if policy == "block-for-eviction" {
        return Some(step(
            Weight::Blocks,
            "eviction-first",
            &name,
            "the setting node-drain-policy wants every replica moved away first".to_owned(),
            format!("for each disk of the node: lariat disk evict {node} DISK"),
        ));
    }
    let left = i64::try_from(elsewhere).unwrap_or(i64::MAX);
    let away = if unusable.is_empty() {
        String::new()
    } else {
        format!(" ({})", unusable.join(", "))
    };
    (left < wanted).then(|| {
        step(
            Weight::Warns,
            "degraded",
            &name,
            format!("is left with {elsewhere} of {wanted} replicas while the node is away{away}"),
            "nothing, if the node comes back soon: its replica is rebuilt".to_owned(),
        )
    })
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;
    use crate::inventory::sample;
    use crate::node::drain::plan;

    fn read<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
        serde_json::from_value(value).expect("a sound object")
    }

    pub(in crate::node::drain) fn codes(inventory: &Inventory, node: &str) -> String {
        let steps = plan(inventory, node, sample::now());
        let word =
            |step: &Step| format!("{:?}:{}:{}", step.weight, step.code, step.about).to_lowercase();
        steps.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    /// A volume with replicas on the cordoned node-1 and on a node each elsewhere, all of them in sync.
    pub(in crate::node::drain) fn volume(wanted: i64, here: bool, elsewhere: usize) -> Inventory {
        let mut nodes = vec![read(sample::node("node-1", true, true))];
        let mut in_sync = Vec::new();
        let mut replicas = Vec::new();
        if here {
            in_sync.push("v-r-1".to_owned());
            replicas.push(read(sample::replica("v-r-1", "v", "node-1", "running")));
        }
        for number in 2..elsewhere + 2 {
            let (name, node) = (format!("v-r-{number}"), format!("node-{number}"));
            replicas.push(read(sample::replica(&name, "v", &node, "running")));
            nodes.push(read(sample::node(&node, true, false)));
            in_sync.push(name);
        }
        let status = json!({"state": "detached", "inSyncReplicas": in_sync});
        let volume = read(sample::volume("v", 1 << 30, wanted, &status));
        sample::small(vec![volume], replicas, nodes)
    }

    pub(in crate::node::drain) fn eviction_first() -> Inventory {
        let mut inventory = volume(3, true, 2);
        inventory.settings = vec![read(
            json!({"metadata": {"name": "node-drain-policy"}, "value": "block-for-eviction"}),
        )];
        inventory
    }

    type Change = fn(&mut Inventory);

    /// What is to be done before a drain of node-1.
    fn check(inventory: &Inventory, expected: &str) {
        let all = codes(inventory, "node-1");
        let before = all
            .strip_suffix("do:drain:node-1")
            .expect("it ends with the drain");
        assert_eq!(before.trim(), expected);
    }

    #[test]
    fn replicas_block_when_nothing_else_has_their_data() {
        check(&volume(3, true, 2), "warns:degraded:v");
        check(&volume(2, true, 2), "");
        check(&volume(3, true, 0), "blocks:last-replica:v");
        check(&volume(1, true, 0), "blocks:single-replica:v");
        check(&volume(3, false, 2), "");
        let mut failed = volume(3, true, 1);
        failed.replicas[1].spec.failed_at = "2026-03-01T00:00:00Z".to_owned();
        check(&failed, "blocks:last-replica:v");
        check(&eviction_first(), "blocks:eviction-first:v");
    }

    #[test]
    fn a_replica_elsewhere_counts_only_while_it_can_be_used() {
        // Of node-2, which has the only other replica, or one of two.
        let with = |wanted: i64, elsewhere: usize, change: Change| {
            let mut inventory = volume(wanted, true, elsewhere);
            change(&mut inventory);
            inventory
        };
        let changes: [(Change, &str); 6] = [
            (
                |it| it.nodes[1] = read(sample::node("node-2", false, false)),
                "node node-2 is not ready",
            ),
            (|it| drop(it.nodes.remove(1)), "node node-2 does not exist"),
            (
                |it| disk(it).conditions.clear(),
                "disk default of node node-2 is not ready",
            ),
            (
                |it| disk(it).disk_uuid = "another".to_owned(),
                "node node-2 does not report its disk uuid-node-2",
            ),
            (|it| it.nodes[1].status = None, "node node-2 is not ready"),
            (
                // What an old name of the disk says of it is over.
                |it| {
                    let before = disk(it).clone();
                    disk(it).conditions.clear();
                    let status = it.nodes[1].status.as_mut().expect("a status");
                    status.disk_status.insert("before".to_owned(), before);
                },
                "disk default of node node-2 is not ready",
            ),
        ];
        for (change, why) in changes {
            check(&with(2, 1, change), "blocks:last-replica:v");
            check(&with(1, 1, change), "blocks:last-replica:v");
            check(&with(2, 2, change), "warns:degraded:v");
            check(&with(1, 2, change), "");
            let steps = plan(&with(2, 1, change), "node-1", sample::now());
            assert!(steps[0].what.contains(why), "{why}: {}", steps[0].what);
        }
        // The last data blocks although it is out of reach already: the node must not be given up.
        let mut lost = volume(3, true, 0);
        lost.nodes = vec![read(sample::node("node-1", false, true))];
        check(&lost, "blocks:node-lost:node-1 blocks:last-replica:v");
    }

    /// The disk of node-2.
    fn disk(inventory: &mut Inventory) -> &mut api_types::DiskStatus {
        let status = inventory.nodes[1].status.as_mut().expect("a status");
        status.disk_status.get_mut("default").expect("a disk")
    }
}
