//! Who has what, read back after a restart.
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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    pub volumes: BTreeMap<PvName, VolumeHolders>,
    /// What a person should know; nothing here stops anything.
    pub findings: Vec<Finding>,
}

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

/// Rebuilds the state for `driver`. Attachments of other drivers are none of our business, and one whose
/// status is not attached is not an attachment: it may be on its way in or out.
pub fn rebuild(
    driver: &DriverName,
    attachments: &BTreeMap<AttachmentName, VolumeAttachment>,
    volumes: &BTreeMap<PvName, PersistentVolume>,
) -> Rebuilt {
    let mut rebuilt = Rebuilt::default();
    let annotation = attached_node_annotation(driver);
    let mut by_volume: BTreeMap<&PvName, Vec<Holder>> = BTreeMap::new();
    let ours = attachments
        .iter()
        .filter(|(_, attachment)| attachment.driver == *driver && attachment.attached);
    for (name, attachment) in ours {
        let Some(volume) = attachment.source.volume() else {
            rebuilt.findings.push(Finding::NoVolumeName {
                attachment: name.clone(),
            });
            continue;
        };
        if !volumes.contains_key(volume) {
            let (volume, attachment) = (volume.clone(), name.clone());
            rebuilt
                .findings
                .push(Finding::VolumeMissing { volume, attachment });
        }
        by_volume.entry(volume).or_default().push(Holder {
            node: attachment.node.clone(),
            attachment: name.clone(),
            attached_at: attachment.created_at,
        });
    }
    for (name, mut holders) in by_volume {
        // Oldest first; names decide between equals, so that every restart agrees.
        holders.sort_by(|a, b| (a.attached_at, &a.attachment).cmp(&(b.attached_at, &b.attachment)));
        let volume = volumes.get(name);
        report(&mut rebuilt.findings, &annotation, name, volume, &holders);
        if let Some(holders) = keep_two_oldest(holders) {
            let access_modes = volume.map(|volume| volume.access_modes.clone());
            rebuilt.volumes.insert(
                name.clone(),
                VolumeHolders {
                    holders,
                    access_modes,
                },
            );
        }
    }
    let stale: Vec<Finding> = volumes
        .iter()
        .filter(|(name, volume)| {
            volume.driver == *driver
                && !volume.annotations.is_empty()
                && !rebuilt.volumes.contains_key(*name)
        })
        .filter_map(|(name, volume)| mismatch(&annotation, name, volume, &[]))
        .collect();
    rebuilt.findings.extend(stale);
    rebuilt
}

fn keep_two_oldest(holders: Vec<Holder>) -> Option<Holders> {
    let mut holders = holders.into_iter();
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

fn report(
    findings: &mut Vec<Finding>,
    annotation: &str,
    name: &PvName,
    volume: Option<&PersistentVolume>,
    holders: &[Holder],
) {
    let nodes: Vec<NodeName> = holders.iter().map(|holder| holder.node.clone()).collect();
    if let [first, second, ignored @ ..] = nodes.as_slice()
        && !ignored.is_empty()
    {
        let kept = vec![first.clone(), second.clone()];
        findings.push(Finding::TooMany {
            volume: name.clone(),
            nodes: kept,
            ignored: ignored.to_vec(),
        });
    }
    let Some(volume) = volume else { return };
    let modes = &volume.access_modes;
    if nodes.len() > 1 && !allows_migration(modes) && !allows_many_nodes(modes) {
        findings.push(Finding::Shared {
            volume: name.clone(),
            nodes: nodes.clone(),
        });
    }
    findings.extend(mismatch(annotation, name, volume, &nodes));
}

/// The only place where the annotation is looked at, and only to be contradicted.
fn mismatch(
    annotation: &str,
    name: &PvName,
    volume: &PersistentVolume,
    actual: &[NodeName],
) -> Option<Finding> {
    let annotated = volume
        .annotations
        .get(annotation)
        .filter(|node| !node.is_empty())?;
    let annotated = NodeName::from(annotated.as_str());
    (!actual.contains(&annotated)).then(|| Finding::AnnotationMismatch {
        volume: name.clone(),
        annotated,
        actual: actual.to_vec(),
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
