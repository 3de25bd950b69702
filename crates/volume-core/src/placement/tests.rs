//! Rows of `nodes` and `volume` text, and a slow oracle.
//!
//! A node is `name[:zone][+tag…][!flag…](disk disk…)`; a disk is `name=free/max[-reserved][~scheduled][+tag…][!flag…]`.
//! Flags: `!lost !off !cordon !evict !broken`. Several nodes are separated by `;`.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::identity::Timestamp;
use crate::view::NodeHealth;

fn nodes(text: &str) -> BTreeMap<NodeName, Node> {
    text.split(';')
        .map(str::trim)
        .filter(|text| !text.is_empty())
        .map(node)
        .collect()
}

fn node(text: &str) -> (NodeName, Node) {
    let (head, disks) = text.split_once('(').expect("node(disks)");
    let (name, tags, flags) = marks(head);
    let (name, zone) = name
        .split_once(':')
        .map_or((name, None), |(name, zone)| (name, Some(zone)));
    let health = match () {
        () if flags.contains("lost") => NodeHealth::Lost {
            since: Timestamp(0),
        },
        () if flags.contains("off") => NodeHealth::OutOfService,
        () => NodeHealth::Ready,
    };
    let disks = disks
        .trim_end_matches(')')
        .split_whitespace()
        .map(disk)
        .collect();
    let node = Node {
        health,
        allow_scheduling: !flags.contains("cordon"),
        eviction_requested: flags.contains("evict"),
        zone: zone.map(str::to_owned),
        tags,
        disks,
        rebuilds: 0,
    };
    (name.into(), node)
}

fn disk(text: &str) -> (DiskName, Disk) {
    let (head, tags, flags) = marks(text);
    let (name, space) = head.split_once('=').expect("disk=free/max");
    let (space, scheduled) = space.split_once('~').unwrap_or((space, "0"));
    let (space, reserved) = space.split_once('-').unwrap_or((space, "0"));
    let (free, maximum) = space.split_once('/').expect("free/max");
    let number = |text: &str| text.parse().expect("a number");
    let disk = Disk {
        name: "d".to_owned(),
        listed: true,
        ready: !flags.contains("broken"),
        allow_scheduling: !flags.contains("cordon"),
        eviction_requested: flags.contains("evict"),
        reserved_bytes: number(reserved),
        maximum_bytes: number(maximum),
        available_bytes: number(free),
        scheduled_bytes: number(scheduled),
        tags,
    };
    (name.into(), disk)
}

/// Splits `head+tag!flag`.
fn marks(text: &str) -> (&str, BTreeSet<String>, BTreeSet<&str>) {
    let (text, flags) = text.split_once('!').unwrap_or((text, ""));
    let (head, tags) = text.split_once('+').unwrap_or((text, ""));
    let words = |text: &str| -> BTreeSet<String> {
        text.split('+')
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect()
    };
    (
        head,
        words(tags),
        flags.split('!').filter(|word| !word.is_empty()).collect(),
    )
}

/// Volume words: a size, `node+tag`, `disk+tag`, `at=n/d` (occupied), `failed=n/d`, `promised=n/d` (50 bytes), `only=n`, `hard-zone`,
/// `soft-node`, `hard-disk`; settings: `over=200`, `min=10`, `tags-required`.
fn try_place(volume_text: &str, nodes_text: &str) -> Result<Place, PlacementFailure> {
    let mut volume = Volume::new("v", 0, 3);
    let mut settings = Settings {
        minimal_available_percent: 0,
        ..Settings::default()
    };
    let mut occupied = BTreeSet::new();
    let mut avoided = BTreeSet::new();
    let mut promised = BTreeMap::new();
    for word in volume_text.split_whitespace() {
        match word.split_once(['=', '+']) {
            Some(("node", tag)) => drop(volume.node_selector.insert(tag.to_owned())),
            Some(("disk", tag)) => drop(volume.disk_selector.insert(tag.to_owned())),
            Some(("at", place)) => {
                let (node, disk) = place.split_once('/').expect("node/disk");
                occupied.insert(Place {
                    node: node.into(),
                    disk: disk.into(),
                });
            }
            Some(("failed", place)) => {
                let (node, disk) = place.split_once('/').expect("node/disk");
                avoided.insert(Place {
                    node: node.into(),
                    disk: disk.into(),
                });
            }
            Some(("promised", place)) => {
                let (node, disk) = place.split_once('/').expect("node/disk");
                promised.insert(
                    Place {
                        node: node.into(),
                        disk: disk.into(),
                    },
                    50,
                );
            }
            Some(("only", node)) => {
                volume.node = Some(node.into());
                volume.data_locality = DataLocality::StrictLocal;
            }
            Some(("over", percent)) => {
                settings.over_provisioning_percent = percent.parse().expect("percent");
            }
            Some(("min", percent)) => {
                settings.minimal_available_percent = percent.parse().expect("percent");
            }
            _ => match word {
                "hard-zone" => volume.zone_anti_affinity = AntiAffinity::Hard,
                "soft-node" => volume.node_anti_affinity = AntiAffinity::Soft,
                "hard-disk" => volume.disk_anti_affinity = AntiAffinity::Hard,
                "tags-required" => {
                    settings.allow_empty_node_selector = false;
                    settings.allow_empty_disk_selector = false;
                }
                size => volume.size_bytes = size.parse().expect("a size"),
            },
        }
    }
    let nodes = nodes(nodes_text);
    let request = Request::of(&volume, &occupied, &avoided, &promised, &nodes, &settings);
    let answer = place(&request);
    assert_eq!(
        answer.as_ref().ok(),
        oracle(&request).as_ref(),
        "the oracle disagrees on {volume_text}"
    );
    answer
}

fn check(volume: &str, nodes: &str, expected: &str) {
    let answer = match try_place(volume, nodes) {
        Ok(place) => place.to_string(),
        Err(failure) => failure.to_string(),
    };
    assert_eq!(answer, expected, "{volume} on {nodes}");
}

#[test]
fn the_emptiest_disk_wins_and_names_break_ties() {
    check("10", "n1(a=100/100); n2(a=100/200)", "n2/a");
    check("10", "n1(a=100/100~50); n2(a=100/100)", "n2/a");
    check("10", "n2(a=100/100); n1(b=100/100 a=100/100)", "n1/a");
    check("10", "", "there is no node");
    check("10", "n1()", "n1: node has no disk");
}

#[test]
fn nodes_and_disks_must_be_usable() {
    check("10", "n1!lost(a=100/100)", "n1/a: node is lost");
    check("10", "n1!off(a=100/100)", "n1/a: node is out of service");
    check(
        "10",
        "n1!cordon(a=100/100)",
        "n1/a: node does not allow scheduling",
    );
    check("10", "n1!evict(a=100/100)", "n1/a: node is being evicted");
    check("10", "n1(a=100/100!broken)", "n1/a: disk is not ready");
    check(
        "10",
        "n1(a=100/100!cordon)",
        "n1/a: disk does not allow scheduling",
    );
    check("10", "n1(a=100/100!evict)", "n1/a: disk is being evicted");
    // The disk eviction recipe: both fields at once, and the other disk of the node takes over.
    check("10", "n1(a=100/100!cordon!evict b=50/50)", "n1/b");
    check(
        "10",
        "n1(a=100/100!cordon!evict)",
        "n1/a: disk does not allow scheduling, disk is being evicted",
    );
}

#[test]
fn space_is_promised_once_unless_over_provisioned() {
    check("100", "n1(a=100/100)", "n1/a");
    check(
        "101",
        "n1(a=100/100)",
        "n1/a: 101 bytes wanted, 100 left to promise",
    );
    check(
        "80",
        "n1(a=100/100-30)",
        "n1/a: 80 bytes wanted, 70 left to promise",
    );
    check(
        "80",
        "n1(a=100/100-30~10)",
        "n1/a: 80 bytes wanted, 60 left to promise",
    );
    check("promised=n1/a 50", "n1(a=100/100)", "n1/a");
    check(
        "promised=n1/a 51",
        "n1(a=100/100)",
        "n1/a: 51 bytes wanted, 50 left to promise",
    );
    check("promised=n1/a 10", "n1(a=100/100); n2(a=90/90)", "n2/a");
    check("over=200 130", "n1(a=100/100-30~10)", "n1/a");
    check(
        "over=200 131",
        "n1(a=100/100-30~10)",
        "n1/a: 131 bytes wanted, 130 left to promise",
    );
    check(
        "1",
        "n1(a=100/100-200)",
        "n1/a: 1 bytes wanted, 0 left to promise",
    );
    check("min=25 10", "n1(a=26/100)", "n1/a");
    check(
        "min=25 10",
        "n1(a=25/100)",
        "n1/a: 25 bytes free, more than 25 must stay free",
    );
    // No overflow at the far end.
    check(
        "over=200 18446744073709551615",
        "n1(a=100/18446744073709551615)",
        "n1/a",
    );
}

#[test]
fn tags_select_nodes_and_disks() {
    check(
        "node+fast 10",
        "n1(a=100/100); n2+fast+big(a=100/100)",
        "n2/a",
    );
    check("disk+ssd 10", "n1(a=100/100 b=50/50+ssd)", "n1/b");
    check(
        "node+x node+y 10",
        "n1+x(a=100/100)",
        "n1/a: node lacks tags y",
    );
    check(
        "disk+ssd 10",
        "n1(a=100/100+hdd)",
        "n1/a: disk lacks tags ssd",
    );
    check("10", "n1+x(a=100/100+ssd)", "n1/a");
    check(
        "tags-required 10",
        "n1+x(a=100/100)",
        "n1/a: node is reserved by tags",
    );
    check(
        "tags-required 10",
        "n1(a=100/100+ssd)",
        "n1/a: disk is reserved by tags",
    );
}

#[test]
fn replicas_spread_over_zones_nodes_and_disks() {
    let three = "n1:z1(a=100/100 b=100/100); n2:z1(a=100/100); n3:z2(a=50/50)";
    check("at=n1/a 10", three, "n3/a");
    check("at=n1/a at=n3/a 10", three, "n2/a");
    check(
        "hard-zone at=n1/a at=n3/a 10",
        three,
        "n1/a: zone z1 already has a replica, node already has a replica; n1/b: zone z1 already has a replica, \
         node already has a replica; n2/a: zone z1 already has a replica; n3/a: zone z2 already has a replica, \
         node already has a replica",
    );
    check(
        "at=n1/a 10",
        "n1(a=100/100 b=100/100)",
        "n1/a: node already has a replica; n1/b: node already has a replica",
    );
    check("soft-node at=n1/a 10", "n1(a=100/100 b=50/50)", "n1/b");
    check("soft-node at=n1/a 10", "n1(a=100/100)", "n1/a");
    check(
        "soft-node hard-disk at=n1/a 10",
        "n1(a=100/100)",
        "n1/a: disk already has a replica",
    );
    // Zones are only compared among nodes that have one.
    check(
        "hard-zone at=n1/a 10",
        "n1(a=100/100); n2(a=100/100)",
        "n2/a",
    );
    check("failed=n1/a 10", "n1(a=100/100); n2(a=50/50)", "n2/a");
    check("failed=n1/a 60", "n1(a=100/100); n2(a=50/50)", "n1/a");
    // A replica on a node that is gone occupies nothing.
    check("at=gone/a 10", "n1(a=100/100)", "n1/a");
}

#[test]
fn strict_locality_allows_one_node_only() {
    check("only=n2 10", "n1(a=100/100); n2(a=50/50)", "n2/a");
    check(
        "only=n2 60",
        "n1(a=100/100); n2(a=50/50)",
        "n1/a: only node n2 will do; n2/a: 60 bytes wanted, 50 left to promise",
    );
}

/// The rules again, written as one naive sentence each and without sharing code; the winner is the
/// candidate that no other one beats.
fn oracle(request: &Request<'_>) -> Option<Place> {
    let mut fits = Vec::new();
    for (node_name, node) in request.nodes {
        for (disk_name, disk) in &node.disks {
            let settings = request.settings;
            let zone_of = |name: &NodeName| {
                request
                    .nodes
                    .get(name)
                    .map(|n| n.zone.clone().unwrap_or(name.to_string()))
            };
            let same_zone = request
                .occupied
                .iter()
                .filter(|o| zone_of(&o.node) == zone_of(node_name))
                .count();
            let same_node = request
                .occupied
                .iter()
                .filter(|o| o.node == *node_name)
                .count();
            let same_disk = request
                .occupied
                .iter()
                .filter(|o| o.node == *node_name && o.disk == *disk_name)
                .count();
            let place = Place {
                node: node_name.clone(),
                disk: disk_name.clone(),
            };
            let scheduled = u128::from(disk.scheduled_bytes)
                + u128::from(*request.promised.get(&place).unwrap_or(&0));
            let promised = scheduled + u128::from(request.size_bytes);
            let usable = u128::from(disk.maximum_bytes.saturating_sub(disk.reserved_bytes));
            let fit = matches!(node.health, NodeHealth::Ready)
                && node.allow_scheduling
                && disk.allow_scheduling
                && disk.ready
                && !(node.eviction_requested || disk.eviction_requested)
                && request.only_node.is_none_or(|only| only == node_name)
                && request
                    .node_selector
                    .iter()
                    .all(|tag| node.tags.contains(tag))
                && request
                    .disk_selector
                    .iter()
                    .all(|tag| disk.tags.contains(tag))
                && (settings.allow_empty_node_selector
                    || !request.node_selector.is_empty()
                    || node.tags.is_empty())
                && (settings.allow_empty_disk_selector
                    || !request.disk_selector.is_empty()
                    || disk.tags.is_empty())
                && (request.zone_may_be_shared || node.zone.is_none() || same_zone == 0)
                && (request.node_may_be_shared || same_node == 0)
                && (request.disk_may_be_shared || same_disk == 0)
                && promised <= usable * u128::from(settings.over_provisioning_percent) / 100
                && u128::from(disk.available_bytes)
                    > u128::from(disk.maximum_bytes)
                        * u128::from(settings.minimal_available_percent)
                        / 100;
            if fit {
                let left =
                    usable * u128::from(settings.over_provisioning_percent) / 100 - scheduled;
                let crowding = (
                    request.avoided.contains(&place),
                    same_zone > 0,
                    same_node > 0,
                    same_disk > 0,
                );
                fits.push((crowding, left, place));
            }
        }
    }
    type Fit = ((bool, bool, bool, bool), u128, Place);
    let beats = |a: &Fit, b: &Fit| {
        (a.0 < b.0) || (a.0 == b.0 && a.1 > b.1) || (a.0 == b.0 && a.1 == b.1 && a.2 < b.2)
    };
    fits.iter()
        .find(|one| !fits.iter().any(|other| beats(other, one)))
        .map(|(_, _, place)| place.clone())
}

prop_compose! {
    fn any_disk()(
        maximum in 0u64..200, available in 0u64..200, reserved in 0u64..60, scheduled in 0u64..200,
        ready in prop::bool::weighted(0.9), allow in prop::bool::weighted(0.9),
        evict in prop::bool::weighted(0.1), tagged in any::<bool>(),
    ) -> Disk {
        Disk {
            name: "d".to_owned(), listed: true,
            ready, allow_scheduling: allow, eviction_requested: evict, reserved_bytes: reserved,
            maximum_bytes: maximum, available_bytes: available, scheduled_bytes: scheduled,
            tags: tagged.then(|| "ssd".to_owned()).into_iter().collect(),
        }
    }
}

prop_compose! {
    fn any_node()(
        health in prop_oneof![
            8 => Just(NodeHealth::Ready),
            1 => Just(NodeHealth::Lost { since: Timestamp(0) }),
            1 => Just(NodeHealth::OutOfService),
        ],
        zone in prop::option::of(prop::sample::select(vec!["z1".to_owned(), "z2".to_owned()])),
        allow in prop::bool::weighted(0.9), evict in prop::bool::weighted(0.1), tagged in any::<bool>(),
        disks in prop::collection::btree_map(prop::sample::select(vec!["a", "b", "c"]), any_disk(), 0..3),
    ) -> Node {
        Node {
            health, allow_scheduling: allow, eviction_requested: evict, zone,
            tags: tagged.then(|| "fast".to_owned()).into_iter().collect(),
            disks: disks.into_iter().map(|(name, disk)| (DiskName::from(name), disk)).collect(),
            rebuilds: 0,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn placement_agrees_with_the_oracle(
        nodes in prop::collection::btree_map(prop::sample::select(vec!["n1", "n2", "n3", "n4"]), any_node(), 0..5),
        occupied in prop::collection::btree_set((prop::sample::select(vec!["n1", "n2", "n9"]), prop::sample::select(vec!["a", "b"])), 0..3),
        avoided in prop::collection::btree_set((prop::sample::select(vec!["n1", "n3"]), prop::sample::select(vec!["a", "b"])), 0..2),
        promised in prop::collection::btree_map((prop::sample::select(vec!["n1", "n2"]), prop::sample::select(vec!["a", "b"])), 0u64..80, 0..3),
        size_bytes in 0u64..120, sharing in any::<(bool, bool, bool)>(), selectors in any::<(bool, bool)>(),
        only in prop::option::weighted(0.2, Just(NodeName::from("n2"))),
        over in prop::sample::select(vec![50u64, 100, 200]), minimal in prop::sample::select(vec![0u64, 10, 25]),
        empty_selectors in any::<(bool, bool)>(),
    ) {
        let nodes: BTreeMap<NodeName, Node> = nodes.into_iter().map(|(name, node)| (name.into(), node)).collect();
        let places = |places: BTreeSet<(&str, &str)>| -> BTreeSet<Place> {
            places.into_iter().map(|(node, disk)| Place { node: node.into(), disk: disk.into() }).collect()
        };
        let (occupied, avoided) = (places(occupied), places(avoided));
        let promised: BTreeMap<Place, u64> = promised
            .into_iter()
            .map(|((node, disk), bytes)| (Place { node: node.into(), disk: disk.into() }, bytes))
            .collect();
        let tag = |wanted: bool, tag: &str| -> BTreeSet<String> { wanted.then(|| tag.to_owned()).into_iter().collect() };
        let (node_selector, disk_selector) = (tag(selectors.0, "fast"), tag(selectors.1, "ssd"));
        let settings = Settings {
            over_provisioning_percent: over, minimal_available_percent: minimal,
            allow_empty_node_selector: empty_selectors.0, allow_empty_disk_selector: empty_selectors.1,
            ..Settings::default()
        };
        let request = Request {
            size_bytes, node_selector: &node_selector, disk_selector: &disk_selector,
            node_may_be_shared: sharing.0, zone_may_be_shared: sharing.1, disk_may_be_shared: sharing.2,
            occupied: &occupied, avoided: &avoided, promised: &promised, only_node: only.as_ref(), nodes: &nodes, settings: &settings,
        };
        let answer = place(&request);
        prop_assert_eq!(answer.as_ref().ok().cloned(), oracle(&request));
        if let Err(failure) = answer {
            let candidates: usize = nodes.values().map(|node| node.disks.len().max(1)).sum();
            prop_assert_eq!(failure.excluded.len(), candidates, "every candidate is accounted for");
            prop_assert!(failure.excluded.values().all(|objections| !objections.is_empty()));
        }
    }
}
