//! What a volume's Snapshot objects ask of its engine, and what they show.
//!
//! ```text
//! Snapshot objects ──requests──▶ Engine.spec.snapshotRequests ──(agent)──▶ Engine.status.snapshots ──outcome──▶ Snapshot.status
//! ```
//!
//! An object is released only when what it stands for is gone, or when nobody can say any more what that is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use api_types::SNAPSHOTS_MAX;
use api_types::names::{ENGINE_SNAPSHOT_PREFIXES, VOLUME_HEAD, is_object_name};

/// What is known of one volume's snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotsView {
    pub volume: Presence,
    /// How many snapshots the volume may have.
    pub limit: usize,
    /// Nothing may be removed from the chain.
    pub merging_disabled: bool,
    pub objects: BTreeMap<String, Asked>,
    pub engine: EngineView,
}

/// Whether the volume is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    There,
    /// It is being deleted, and its snapshots go with it.
    Leaving,
    Gone,
}

/// One Snapshot object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// It asks for a snapshot to be taken, and does not only show one.
    pub create: bool,
    /// An engine may have been asked for it: whoever deletes it has to find out what became of that.
    pub handed_over: bool,
    /// It was seen in the chain.
    pub taken: bool,
    pub deleting: bool,
    /// The live volume builds upon it, as was seen last.
    pub below_live: bool,
    /// More than one branch of the volume builds upon it, as was seen last.
    pub has_branches: bool,
    /// The volume that it belongs to is gone, and another one has its name.
    pub of_former_volume: bool,
}

impl Asked {
    fn is_another(&self, found: &Listed) -> bool {
        self.create && !self.taken && found.marked
    }
}

/// The engine that may change the chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineView {
    /// There is one, or one is being started: what it has can be found out.
    pub exists: bool,
    /// What it listed last; none if it never did, or does not run.
    pub listed: Option<BTreeMap<String, Listed>>,
    /// What its object asks to be taken now. It may appear in the next list.
    pub taking: BTreeSet<String>,
    /// What it could not do, by the snapshot's name.
    pub errors: BTreeMap<String, String>,
}

/// One snapshot in the chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Asked for by somebody, as against taken by the engine for itself.
    pub user_created: bool,
    /// It goes with the next merge.
    pub marked: bool,
}

/// What the engine should do about a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Take,
    Remove,
}

/// What is to become of a Snapshot object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What it stands for is gone, or was never there.
    Release,
    /// It is in the chain, and shows what the engine says of it.
    Show { trouble: Option<Trouble> },
    /// It is not to be used.
    Absent { trouble: Trouble },
    /// Nothing new is known.
    Wait { trouble: Option<Trouble> },
}

/// Why a snapshot is not what somebody asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    NoVolume,
    Leaving,
    LimitReached {
        limit: usize,
    },
    /// The name means something else in a volume's chain.
    ReservedName,
    /// It was there and is not any more.
    Lost,
    /// It only shows a snapshot, and there is none.
    NothingToShow,
    Refused {
        why: String,
    },
    MergingDisabled,
    /// It goes when only one branch is left.
    HasBranches,
    /// It is removed when the volume is attached for something else: it would be attached for a merge into the live data.
    RemovedWhenAttached,
}

impl SnapshotsView {
    /// What the engine is to do, by the snapshot's name.
    #[must_use]
    pub fn requests(&self) -> BTreeMap<String, Request> {
        if self.volume != Presence::There {
            return BTreeMap::new();
        }
        let request = |(name, asked): (&String, &Asked)| {
            let request = if is_reserved(name) || asked.of_former_volume {
                None
            } else if asked.deleting {
                (!self.merging_disabled).then_some(Request::Remove)
            } else {
                let is_due = asked.handed_over && !asked.taken;
                (is_due && self.objection(name).is_none()).then_some(Request::Take)
            };
            Some((name.clone(), request?))
        };
        self.objects.iter().filter_map(request).collect()
    }

    /// Whether the engine may be asked for it from now on. This is written into the object before anything is: without it, a
    /// snapshot that was taken for an object which is deleted meanwhile would be left behind.
    #[must_use]
    pub fn hands_over(&self, name: &str) -> bool {
        let is_wanted = |asked: &Asked| asked.create && !asked.deleting && !asked.taken;
        self.objects.get(name).is_some_and(is_wanted)
            && self.engine.exists
            && self.objection(name).is_none()
    }

    /// Why a snapshot that does not exist yet cannot be taken now. Asked before a volume is attached for it.
    #[must_use]
    pub fn objection(&self, name: &str) -> Option<Trouble> {
        match self.volume {
            Presence::Gone => return Some(Trouble::NoVolume),
            Presence::Leaving => return Some(Trouble::Leaving),
            Presence::There => {}
        }
        let asked = self.objects.get(name);
        if asked.is_some_and(|asked| asked.of_former_volume) {
            return Some(Trouble::NoVolume);
        }
        if is_reserved(name) {
            return Some(Trouble::ReservedName);
        }
        let limit = self.limit;
        (!self.has_room_for(name)).then_some(Trouble::LimitReached { limit })
    }

    /// Whether this one is among those that fit. Of several that are asked for at once, the first by name are taken.
    fn has_room_for(&self, name: &str) -> bool {
        let there: BTreeSet<&String> = match &self.engine.listed {
            Some(listed) => listed.keys().collect(),
            None => {
                let taken = |(_, asked): &(_, &Asked)| asked.taken && !asked.of_former_volume;
                let taken = self.objects.iter().filter(taken);
                taken.map(|(name, _)| name).collect()
            }
        };
        let before = self.objects.iter().filter(|(other, asked)| {
            let is_asked_for = asked.create && !asked.deleting && !asked.of_former_volume;
            other.as_str() < name && is_asked_for && !is_reserved(other) && !there.contains(other)
        });
        self.has(name) || there.len() + before.count() < self.limit
    }

    fn has(&self, name: &str) -> bool {
        let listed = self.engine.listed.as_ref();
        listed.is_some_and(|listed| listed.contains_key(name))
    }

    /// What is to become of the object with this name.
    #[must_use]
    pub fn outcome(&self, name: &str) -> Outcome {
        let Some(asked) = self.objects.get(name) else {
            return Outcome::Wait { trouble: None };
        };
        if is_reserved(name) || asked.of_former_volume {
            let trouble = if asked.of_former_volume {
                Trouble::NoVolume
            } else {
                Trouble::ReservedName
            };
            return if asked.deleting {
                Outcome::Release
            } else {
                Outcome::Absent { trouble }
            };
        }
        if asked.deleting {
            self.outcome_of_removal(name, asked)
        } else {
            self.outcome_of_request(name, asked)
        }
    }

    fn outcome_of_removal(&self, name: &str, asked: &Asked) -> Outcome {
        if self.volume != Presence::There {
            return Outcome::Release;
        }
        // What is being taken may be in the next list.
        let may_come = self.engine.taking.contains(name);
        match &self.engine.listed {
            Some(listed) if !listed.contains_key(name) && !may_come => return Outcome::Release,
            None if !asked.taken && !asked.handed_over => return Outcome::Release,
            Some(_) | None => {}
        }
        let trouble = if self.merging_disabled {
            Some(Trouble::MergingDisabled)
        } else if let Some(why) = self.engine.errors.get(name) {
            Some(Trouble::Refused { why: why.clone() })
        } else if asked.has_branches {
            Some(Trouble::HasBranches)
        } else if !self.engine.exists && asked.below_live {
            Some(Trouble::RemovedWhenAttached)
        } else {
            None
        };
        if self.has(name) {
            Outcome::Show { trouble }
        } else {
            Outcome::Wait { trouble }
        }
    }

    fn outcome_of_request(&self, name: &str, asked: &Asked) -> Outcome {
        if self.volume == Presence::Gone {
            return Outcome::Absent {
                trouble: Trouble::NoVolume,
            };
        }
        match &self.engine.listed {
            // One that goes is not the one that is asked for: that is taken when the name is free.
            Some(listed)
                if listed
                    .get(name)
                    .is_some_and(|found| asked.is_another(found)) =>
            {
                Outcome::Wait { trouble: None }
            }
            Some(listed) if listed.contains_key(name) => Outcome::Show { trouble: None },
            Some(_) if asked.taken => Outcome::Absent {
                trouble: Trouble::Lost,
            },
            Some(_) if !asked.create => Outcome::Absent {
                trouble: Trouble::NothingToShow,
            },
            None if asked.taken || !asked.create => Outcome::Wait { trouble: None },
            Some(_) | None => {
                let refused = self.engine.errors.get(name);
                let refused = refused.map(|why| Trouble::Refused { why: why.clone() });
                Outcome::Wait {
                    trouble: self.objection(name).or(refused),
                }
            }
        }
    }

    /// Snapshots that somebody took in another way, and that have no object yet.
    pub fn without_object(&self) -> impl Iterator<Item = &str> {
        let listed = self.engine.listed.iter().flatten();
        let is_there = self.volume == Presence::There;
        listed
            .filter(move |(name, found)| {
                is_there
                    && found.user_created
                    && !found.marked
                    && is_object_name(name)
                    && !self.objects.contains_key(*name)
            })
            .map(|(name, _)| name.as_str())
    }
}

/// Names that a chain has for the live data, and for what an engine takes for itself.
fn is_reserved(name: &str) -> bool {
    let of_engine = |prefix: &&str| name.starts_with(prefix);
    name == VOLUME_HEAD || ENGINE_SNAPSHOT_PREFIXES.iter().any(of_engine)
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVolume => write!(f, "its volume does not exist"),
            Self::Leaving => write!(f, "its volume is being deleted"),
            Self::LimitReached { limit } => write!(
                f,
                "the volume has as many snapshots as it may have, {limit}: remove one, or raise the volume's snapshotMaxCount, of which up \
                 to {SNAPSHOTS_MAX} count"
            ),
            Self::ReservedName => write!(
                f,
                "snapshots of the engine's own have such names: delete this object, and choose another name"
            ),
            Self::Lost => write!(f, "the volume does not have this snapshot any more"),
            Self::NothingToShow => write!(
                f,
                "the volume has no snapshot of this name; with createSnapshot one would be taken"
            ),
            Self::Refused { why } => write!(f, "{why}"),
            Self::MergingDisabled => write!(
                f,
                "the setting disable-snapshot-purge keeps the data of removed snapshots: it goes when that is off"
            ),
            Self::HasBranches => write!(
                f,
                "several branches of the volume build on it, which reverts have made: it goes when one is left"
            ),
            Self::RemovedWhenAttached => write!(
                f,
                "the live data builds upon it: it goes when the volume is attached next"
            ),
        }
    }
}

#[cfg(test)]
mod tests;
