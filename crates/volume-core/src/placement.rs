//! Where a new replica goes.
//!
//! Every disk of every node is a candidate. Rules exclude candidates; what remains is ranked; the
//! first in rank wins. The same input always gives the same answer, and a failed placement says for
//! each candidate which rules excluded it. A new rule is one function and one line in `RULES`.

mod rules;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub use rules::Exclusion;
use rules::RULES;

use crate::identity::{DiskName, NodeName};
use crate::settings::Settings;
use crate::view::{AntiAffinity, DataLocality, Disk, Node, Volume};

/// What a volume asks of any place for its replicas.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub size_bytes: u64,
    pub node_selector: &'a BTreeSet<String>,
    pub disk_selector: &'a BTreeSet<String>,
    pub node_may_be_shared: bool,
    pub zone_may_be_shared: bool,
    pub disk_may_be_shared: bool,
    /// Places of the volume's other replicas that are there to stay.
    pub occupied: &'a BTreeSet<Place>,
    /// Places where a replica has just failed: allowed, but only when nothing else is.
    pub avoided: &'a BTreeSet<Place>,
    /// Bytes promised by replicas that the disks' figures do not have yet.
    pub promised: &'a BTreeMap<Place, u64>,
    /// Only this node will do (strict locality, or a local copy is what is wanted).
    pub only_node: Option<&'a NodeName>,
    pub nodes: &'a BTreeMap<NodeName, Node>,
    pub settings: &'a Settings,
}

/// A disk of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub node: NodeName,
    pub disk: DiskName,
}

/// No candidate was left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementFailure {
    /// Why each candidate was excluded. Nodes without disks appear with an empty disk name.
    pub excluded: BTreeMap<Place, Vec<Exclusion>>,
}

impl<'a> Request<'a> {
    pub fn of(
        volume: &'a Volume,
        occupied: &'a BTreeSet<Place>,
        avoided: &'a BTreeSet<Place>,
        promised: &'a BTreeMap<Place, u64>,
        nodes: &'a BTreeMap<NodeName, Node>,
        settings: &'a Settings,
    ) -> Self {
        let may_share = |volume: AntiAffinity, setting: bool| volume.may_share(setting);
        let strict = volume.data_locality == DataLocality::StrictLocal;
        Self {
            size_bytes: volume.size_bytes,
            node_selector: &volume.node_selector,
            disk_selector: &volume.disk_selector,
            node_may_be_shared: may_share(
                volume.node_anti_affinity,
                settings.node_soft_anti_affinity,
            ),
            zone_may_be_shared: may_share(
                volume.zone_anti_affinity,
                settings.zone_soft_anti_affinity,
            ),
            disk_may_be_shared: may_share(
                volume.disk_anti_affinity,
                settings.disk_soft_anti_affinity,
            ),
            occupied,
            avoided,
            promised,
            only_node: if strict { volume.node.as_ref() } else { None },
            nodes,
            settings,
        }
    }
}

/// Chooses the best place, or says why there is none.
pub fn place(request: &Request<'_>) -> Result<Place, PlacementFailure> {
    let mut excluded = BTreeMap::new();
    let mut best: Option<(Rank, Place)> = None;
    for (node_name, node) in request.nodes {
        if node.disks.is_empty() {
            let nowhere = Place {
                node: node_name.clone(),
                disk: DiskName::from(""),
            };
            excluded.insert(nowhere, vec![Exclusion::NoDisk]);
        }
        for (disk_name, disk) in &node.disks {
            let place = Place {
                node: node_name.clone(),
                disk: disk_name.clone(),
            };
            let candidate = Candidate {
                request,
                place: &place,
                node,
                disk,
            };
            let objections: Vec<Exclusion> =
                RULES.iter().filter_map(|rule| rule(&candidate)).collect();
            if objections.is_empty() {
                let rank = candidate.rank();
                // Strictly better only: among equals the first name wins.
                if best.as_ref().is_none_or(|(leader, _)| rank < *leader) {
                    best = Some((rank, place));
                }
            } else {
                excluded.insert(place, objections);
            }
        }
    }
    best.map(|(_, place)| place)
        .ok_or(PlacementFailure { excluded })
}

struct Candidate<'a> {
    request: &'a Request<'a>,
    place: &'a Place,
    node: &'a Node,
    disk: &'a Disk,
}

/// Smaller is better: stay away from failures, spread over zones, then nodes, then disks, then use the emptiest disk.
type Rank = (bool, bool, bool, bool, Reverse<u64>);

impl Candidate<'_> {
    fn rank(&self) -> Rank {
        let room = self.left_bytes();
        let avoided = self.request.avoided.contains(self.place);
        (
            avoided,
            self.zone_is_used(),
            self.node_is_used(),
            self.disk_is_used(),
            Reverse(room),
        )
    }

    /// What is already promised of the disk.
    fn scheduled_bytes(&self) -> u64 {
        let promised = self.request.promised.get(self.place).copied().unwrap_or(0);
        self.disk.scheduled_bytes.saturating_add(promised)
    }

    fn left_bytes(&self) -> u64 {
        room_bytes(self.disk, self.request.settings).saturating_sub(self.scheduled_bytes())
    }

    fn zone_is_used(&self) -> bool {
        self.request.occupied.iter().any(|other| {
            self.request
                .nodes
                .get(&other.node)
                .is_some_and(|node| zone(node, &other.node) == self.zone())
        })
    }

    fn node_is_used(&self) -> bool {
        self.request
            .occupied
            .iter()
            .any(|other| other.node == self.place.node)
    }

    fn disk_is_used(&self) -> bool {
        self.request.occupied.contains(self.place)
    }

    fn zone(&self) -> &str {
        zone(self.node, &self.place.node)
    }
}

/// A node without a zone is a zone of its own: losing it loses nothing else.
fn zone<'a>(node: &'a Node, name: &'a NodeName) -> &'a str {
    node.zone.as_deref().unwrap_or(name.as_str())
}

/// How many bytes of replicas a disk may promise.
fn room_bytes(disk: &Disk, settings: &Settings) -> u64 {
    let usable = disk.maximum_bytes.saturating_sub(disk.reserved_bytes);
    percent_of(usable, settings.over_provisioning_percent)
}

/// Exact for any size: `bytes * percent` may not fit in 64 bits.
fn percent_of(bytes: u64, percent: u64) -> u64 {
    let product = u128::from(bytes) * u128::from(percent) / 100;
    u64::try_from(product).unwrap_or(u64::MAX)
}

/// Would the disk still keep its promises if a replica on it grew by `growth_bytes`?
pub(crate) fn has_room_to_grow(disk: &Disk, growth_bytes: u64, settings: &Settings) -> bool {
    disk.scheduled_bytes.saturating_add(growth_bytes) <= room_bytes(disk, settings)
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.disk.as_str().is_empty() {
            write!(f, "{}", self.node)
        } else {
            write!(f, "{}/{}", self.node, self.disk)
        }
    }
}

impl fmt::Display for PlacementFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.excluded.is_empty() {
            return f.write_str("there is no node");
        }
        for (index, (place, objections)) in self.excluded.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            let objections: Vec<String> = objections.iter().map(ToString::to_string).collect();
            write!(f, "{separator}{place}: {}", objections.join(", "))?;
        }
        Ok(())
    }
}
