//! Whether attaching a volume that nobody else wants would do something for its replicas: for one that should leave its place, or
//! for one that is missing. Asked for the tickets of background work; [`crate::decide()`] then does it.

use std::collections::{BTreeMap, BTreeSet};

use crate::placement::{Place, Request, place};
use crate::plan::ReplicaSpec;
use crate::view::{Replica, ReplicaObserved, VolumeView};

impl VolumeView {
    /// Fewer replicas than wanted have all the data.
    #[must_use]
    pub fn lacks_replicas(&self) -> bool {
        let members = &self.status.record.members;
        let intact = members.iter().filter(|name| {
            self.replicas
                .get(*name)
                .is_some_and(|replica| replica.spec.failed_at.is_none())
        });
        !members.is_empty() && intact.count() < self.volume.replicas_wanted
    }

    /// A replica should leave, another one was, is or can be made, and there is one to copy from: with the only one on a disk that
    /// cannot be read, the volume would be attached for nothing. Also one that has failed, or was left already, goes only while the
    /// volume is attached; one whose object was deleted is no business of the volume's any more and is not to be in the view.
    #[must_use]
    pub fn eviction_possible(&self) -> bool {
        let mut replicas = self.replicas.values();
        replicas.any(|replica| self.is_evicting(&replica.spec))
            && (self.is_complete_without_it() || self.another_is_possible())
    }

    /// A replica is missing, and another one is or can be made.
    #[must_use]
    pub fn replacement_possible(&self) -> bool {
        self.lacks_replicas() && self.another_is_possible()
    }

    /// Enough others have all the data: the engine only has to leave it.
    fn is_complete_without_it(&self) -> bool {
        let others = self.status.record.members.iter().filter(|name| {
            self.replicas
                .get(*name)
                .is_some_and(|replica| self.is_usable(replica) && !self.is_evicting(&replica.spec))
        });
        others.count() >= self.volume.replicas_wanted.max(1)
    }

    fn another_is_possible(&self) -> bool {
        self.has_source() && (self.has_incoming() || self.has_place())
    }

    /// Some replica is on its way into the set.
    fn has_incoming(&self) -> bool {
        self.replicas.iter().any(|(name, replica)| {
            let is_member = self.status.record.members.contains(name);
            !is_member && !self.is_evicting(&replica.spec) && self.is_usable(replica)
        })
    }

    /// Some replica with all the data can be used now.
    fn has_source(&self) -> bool {
        let mut members = self.status.record.members.iter();
        members.any(|name| {
            self.replicas
                .get(name)
                .is_some_and(|replica| self.is_usable(replica))
        })
    }

    fn is_usable(&self, replica: &Replica) -> bool {
        let is_broken = matches!(replica.observed, ReplicaObserved::Failed { .. });
        replica.spec.failed_at.is_none() && !is_broken && self.is_place_ready(&replica.spec)
    }

    fn intact(&self) -> impl Iterator<Item = &ReplicaSpec> {
        let specs = self.replicas.values().map(|replica| &replica.spec);
        specs.filter(|spec| spec.failed_at.is_none())
    }

    /// Some disk would take another replica, beside those that stay.
    fn has_place(&self) -> bool {
        let staying: BTreeSet<Place> = self
            .intact()
            .filter(|spec| !self.is_evicting(spec))
            .map(|spec| Place {
                node: spec.node.clone(),
                disk: spec.disk.clone(),
            })
            .collect();
        let (avoided, promised) = (BTreeSet::new(), BTreeMap::new());
        let request = Request::of(
            &self.volume,
            &staying,
            &avoided,
            &promised,
            &self.nodes,
            &self.settings,
        );
        place(&request).is_ok()
    }
}
