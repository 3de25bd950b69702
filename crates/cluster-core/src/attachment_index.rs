//! Who has what: rebuilt after a restart, and kept from then on, object by object.
//!
//! VolumeAttachments are the only source: they are what Kubernetes acts on. PersistentVolume
//! annotations are written for people and never read back; one that contradicts is reported, because
//! somebody may believe it.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::access::{AccessMode, allows_many_nodes, allows_migration};
use crate::identity::{AttachmentName, DriverName, NodeName, PvName, Timestamp};
use crate::names::attached_node_annotation;
use crate::view::{PersistentVolume, VolumeAttachment};

/// The nodes that have a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeHolders {
    pub holders: Holders,
    /// From the PersistentVolume; none if that is gone.
    pub access_modes: Option<BTreeSet<AccessMode>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holders {
    One(Holder),
    /// Two attachments are a migration. Its start is not recorded anywhere, so the older attachment's
    /// creation stands for it: a timeout may come early, and is never forgotten.
    Migrating {
        source: Holder,
        target: Holder,
        started_at: Timestamp,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub node: NodeName,
    pub attachment: AttachmentName,
    /// The attachment's creation.
    pub attached_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Names no PersistentVolume.
    NoVolumeName { attachment: AttachmentName },
    /// The PersistentVolume does not exist, so its access mode is not known.
    VolumeMissing {
        volume: PvName,
        attachment: AttachmentName,
    },
    /// The two oldest are kept.
    TooMany {
        volume: PvName,
        nodes: Vec<NodeName>,
        ignored: Vec<NodeName>,
    },
    /// Two nodes have a volume that only one may have.
    Shared {
        volume: PvName,
        nodes: Vec<NodeName>,
    },
    /// An annotation for people says something else.
    AnnotationMismatch {
        volume: PvName,
        annotated: NodeName,
        actual: Vec<NodeName>,
    },
}

/// The volumes of one driver and who has them.
///
/// It is fed with objects as they are listed and watched, in any order; what it says depends on the last of each only.
#[derive(Clone, Debug)]
pub struct AttachmentIndex {
    driver: DriverName,
    annotation: String,
    volumes: BTreeMap<PvName, Known>,
    /// What each attachment that counts is of: it is gone when it is deleted, and then nobody can say.
    volume_of: BTreeMap<AttachmentName, PvName>,
    /// Attachments that count and name no volume.
    nameless: BTreeSet<AttachmentName>,
    held_count: usize,
    migrating: BTreeSet<PvName>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    /// Oldest first; names decide between equals, so that every restart agrees.
    holders: Vec<Holder>,
    volume: Option<VolumeFacts>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct VolumeFacts {
    is_ours: bool,
    access_modes: BTreeSet<AccessMode>,
    annotated: Option<NodeName>,
}

/// Rebuilds the index for `driver` from all that there is.
pub fn rebuild(
    driver: &DriverName,
    attachments: &BTreeMap<AttachmentName, VolumeAttachment>,
    volumes: &BTreeMap<PvName, PersistentVolume>,
) -> AttachmentIndex {
    let mut index = AttachmentIndex::new(driver.clone());
    for (name, volume) in volumes {
        index.volume(name, Some(volume));
    }
    for (name, attachment) in attachments {
        index.attachment(name, Some(attachment));
    }
    index
}

impl AttachmentIndex {
    #[must_use]
    pub fn new(driver: DriverName) -> Self {
        Self {
            annotation: attached_node_annotation(&driver),
            driver,
            volumes: BTreeMap::new(),
            volume_of: BTreeMap::new(),
            nameless: BTreeSet::new(),
            held_count: 0,
            migrating: BTreeSet::new(),
        }
    }

    /// Takes an attachment as it is now, or its going, and says whose holders that changed. Attachments of other drivers
    /// are none of our business, and one whose status is not attached is not an attachment: it may be on its way in or out.
    pub fn attachment(
        &mut self,
        name: &AttachmentName,
        now: Option<&VolumeAttachment>,
    ) -> Vec<PvName> {
        let counts =
            now.filter(|attachment| attachment.driver == self.driver && attachment.attached);
        let is_nameless = counts.is_some_and(|attachment| attachment.source.volume().is_none());
        if is_nameless {
            self.nameless.insert(name.clone());
        } else {
            self.nameless.remove(name);
        }
        let new = counts.and_then(|attachment| {
            let holder = Holder {
                node: attachment.node.clone(),
                attachment: name.clone(),
                attached_at: attachment.created_at,
            };
            Some((attachment.source.volume()?.clone(), holder))
        });
        if let Some(volume) = self.volume_of.get(name)
            && let Some((of, holder)) = &new
            && of == volume
            && self.volumes[volume].holders.contains(holder)
        {
            return Vec::new();
        }
        let mut changed = Vec::new();
        if let Some(volume) = self.volume_of.remove(name) {
            self.change_holders(&volume, |holders| {
                holders.retain(|holder| holder.attachment != *name);
            });
            changed.push(volume);
        }
        if let Some((volume, holder)) = new {
            self.change_holders(&volume, |holders| {
                let at = holders.partition_point(|other| {
                    (other.attached_at, &other.attachment)
                        < (holder.attached_at, &holder.attachment)
                });
                holders.insert(at, holder);
            });
            self.volume_of.insert(name.clone(), volume.clone());
            changed.retain(|old| *old != volume);
            changed.push(volume);
        }
        changed
    }

    /// Takes a volume as it is now, or its going, and says whether anything of interest changed.
    pub fn volume(&mut self, name: &PvName, now: Option<&PersistentVolume>) -> bool {
        let annotated = |volume: &PersistentVolume| {
            let node = volume.annotations.get(&self.annotation)?;
            (!node.is_empty()).then(|| NodeName::from(node.as_str()))
        };
        let facts = now.map(|volume| VolumeFacts {
            is_ours: volume.driver == self.driver,
            access_modes: volume.access_modes.clone(),
            annotated: annotated(volume),
        });
        let before = self
            .volumes
            .get(name)
            .and_then(|known| known.volume.as_ref());
        if before == facts.as_ref() {
            return false;
        }
        self.volumes.entry(name.clone()).or_default().volume = facts;
        self.drop_if_unknown(name);
        true
    }

    fn change_holders(&mut self, volume: &PvName, change: impl FnOnce(&mut Vec<Holder>)) {
        let holders = &mut self.volumes.entry(volume.clone()).or_default().holders;
        let was_held = !holders.is_empty();
        change(holders);
        let count = holders.len();
        self.held_count = self.held_count + usize::from(count > 0) - usize::from(was_held);
        if count > 1 {
            self.migrating.insert(volume.clone());
        } else {
            self.migrating.remove(volume);
        }
        self.drop_if_unknown(volume);
    }

    fn drop_if_unknown(&mut self, volume: &PvName) {
        if let Some(known) = self.volumes.get(volume)
            && known.holders.is_empty()
            && known.volume.is_none()
        {
            self.volumes.remove(volume);
        }
    }

    /// All volumes that somebody has.
    pub fn held(&self) -> impl Iterator<Item = (&PvName, VolumeHolders)> {
        let volumes = self.volumes.iter();
        volumes.filter_map(|(name, known)| Some((name, known.held()?)))
    }

    /// How many volumes somebody has.
    pub fn held_count(&self) -> usize {
        self.held_count
    }

    /// Volumes on two nodes, with the time that stands for the migration's start.
    pub fn migrations(&self) -> impl Iterator<Item = (&PvName, Timestamp)> {
        self.migrating.iter().filter_map(|name| {
            let oldest = self.volumes.get(name)?.holders.first()?;
            Some((name, oldest.attached_at))
        })
    }

    pub fn holders_of(&self, volume: &PvName) -> Option<VolumeHolders> {
        self.volumes.get(volume)?.held()
    }

    /// The node that people are told to look at, with the time since when: while a volume migrates, the one it comes from.
    pub fn node_for_people(&self, volume: &PvName) -> Option<(&NodeName, Timestamp)> {
        let holder = self.volumes.get(volume)?.holders.first()?;
        Some((&holder.node, holder.attached_at))
    }

    /// What the annotation for people says. For writing it and for contradicting it, and for nothing else.
    pub fn annotated(&self, volume: &PvName) -> Option<&NodeName> {
        let facts = self.volumes.get(volume)?.volume.as_ref()?;
        facts.annotated.as_ref()
    }

    /// Whether there is such a PersistentVolume, of this driver.
    pub fn is_ours(&self, volume: &PvName) -> bool {
        let known = self.volumes.get(volume);
        known.is_some_and(|known| known.volume.as_ref().is_some_and(|facts| facts.is_ours))
    }

    /// What a person should know; nothing here stops anything.
    pub fn findings(&self) -> Vec<Finding> {
        let nameless = self
            .nameless
            .iter()
            .map(|attachment| Finding::NoVolumeName {
                attachment: attachment.clone(),
            });
        let of_volumes = self.volumes.keys().flat_map(|name| self.findings_of(name));
        nameless.chain(of_volumes).collect()
    }

    pub fn findings_of(&self, volume: &PvName) -> Vec<Finding> {
        let known = self.volumes.get(volume);
        known.map_or(Vec::new(), |known| known.findings(volume))
    }
}

impl Known {
    fn held(&self) -> Option<VolumeHolders> {
        let access_modes = self.volume.as_ref().map(|facts| facts.access_modes.clone());
        Some(VolumeHolders {
            holders: keep_two_oldest(self.holders.iter().cloned())?,
            access_modes,
        })
    }

    fn findings(&self, name: &PvName) -> Vec<Finding> {
        let volume = || name.clone();
        let Some(facts) = &self.volume else {
            let of_nothing = self.holders.iter().map(|holder| Finding::VolumeMissing {
                volume: volume(),
                attachment: holder.attachment.clone(),
            });
            return of_nothing.chain(self.too_many(name)).collect();
        };
        let mut findings: Vec<Finding> = self.too_many(name).into_iter().collect();
        let nodes: Vec<NodeName> = self
            .holders
            .iter()
            .map(|holder| holder.node.clone())
            .collect();
        let modes = &facts.access_modes;
        if nodes.len() > 1 && !allows_migration(modes) && !allows_many_nodes(modes) {
            findings.push(Finding::Shared {
                volume: volume(),
                nodes: nodes.clone(),
            });
        }
        // The only place where the annotation is looked at, and only to be contradicted.
        if (facts.is_ours || !nodes.is_empty())
            && let Some(annotated) = &facts.annotated
            && !nodes.contains(annotated)
        {
            findings.push(Finding::AnnotationMismatch {
                volume: volume(),
                annotated: annotated.clone(),
                actual: nodes,
            });
        }
        findings
    }

    fn too_many(&self, name: &PvName) -> Option<Finding> {
        let nodes = |holders: &[Holder]| holders.iter().map(|holder| holder.node.clone()).collect();
        let (kept, ignored) = self.holders.split_at_checked(2)?;
        (!ignored.is_empty()).then(|| Finding::TooMany {
            volume: name.clone(),
            nodes: nodes(kept),
            ignored: nodes(ignored),
        })
    }
}

fn keep_two_oldest(mut holders: impl Iterator<Item = Holder>) -> Option<Holders> {
    let source = holders.next()?;
    Some(match holders.next() {
        None => Holders::One(source),
        Some(target) => {
            let started_at = source.attached_at;
            Holders::Migrating {
                source,
                target,
                started_at,
            }
        }
    })
}

impl Holders {
    pub fn nodes(&self) -> Vec<&NodeName> {
        match self {
            Holders::One(holder) => vec![&holder.node],
            Holders::Migrating { source, target, .. } => vec![&source.node, &target.node],
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = |nodes: &[NodeName]| {
            let names: Vec<&str> = nodes.iter().map(NodeName::as_str).collect();
            if names.is_empty() {
                "no node".to_owned()
            } else {
                names.join(", ")
            }
        };
        match self {
            Finding::NoVolumeName { attachment } => {
                write!(
                    f,
                    "attachment {attachment} names no PersistentVolume and is skipped"
                )
            }
            Finding::VolumeMissing { volume, attachment } => write!(
                f,
                "attachment {attachment} is of volume {volume}, which does not exist: its access mode is not known"
            ),
            Finding::TooMany {
                volume,
                nodes,
                ignored,
            } => write!(
                f,
                "volume {volume} is attached to {} nodes, two is the most: {} are kept as the oldest, {} ignored",
                nodes.len() + ignored.len(),
                listed(nodes),
                listed(ignored)
            ),
            Finding::Shared { volume, nodes } => {
                write!(
                    f,
                    "volume {volume} may be on one node only, and is attached to {}",
                    listed(nodes)
                )
            }
            Finding::AnnotationMismatch {
                volume,
                annotated,
                actual,
            } => write!(
                f,
                "volume {volume} is annotated as attached to {annotated}; the truth is {}",
                listed(actual)
            ),
        }
    }
}
