//! What should be attached where: the volumes of pods that run, or are about to, on managed nodes.

use std::collections::{BTreeMap, BTreeSet};

use crate::identity::{ClaimKey, NodeName, PodKey, PvName};
use crate::view::{ClusterView, Pod, PodPhase};

/// A volume that some pods want on a node.
pub type Desired = BTreeMap<(PvName, NodeName), BTreeSet<PodKey>>;

/// Why a pod's volume is not attached for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotDesired {
    ClaimMissing(ClaimKey),
    ClaimUnbound(ClaimKey),
    VolumeMissing(PvName),
    /// The volume belongs to another claim, or to one that had the same name.
    ClaimMismatch {
        claim: ClaimKey,
        volume: PvName,
    },
    NodeMissing(NodeName),
    /// The node does not answer and the volume is fenced there: whatever the pod still does, it cannot
    /// write, so it does not keep the volume from anybody.
    Fenced {
        volume: PvName,
        node: NodeName,
    },
}

/// The desired attachments, and what kept a pod's volume out.
pub fn desired_state(view: &ClusterView) -> (Desired, Vec<(PodKey, NotDesired)>) {
    let mut desired = Desired::new();
    let mut left_out = Vec::new();
    for (key, pod) in &view.pods {
        let Some(node_name) = pod.node.as_ref().filter(|_| needs_volumes(pod)) else {
            continue;
        };
        if pod.claims.is_empty() {
            continue;
        }
        let ready = match view.nodes.get(node_name) {
            None => {
                left_out.push((key.clone(), NotDesired::NodeMissing(node_name.clone())));
                continue;
            }
            Some(node) if !node.managed => continue,
            Some(node) => node.ready,
        };
        for claim in &pod.claims {
            match volume_of(view, claim) {
                Ok(volume) if !ready && is_fenced(view, volume, node_name) => {
                    let why = NotDesired::Fenced {
                        volume: volume.clone(),
                        node: node_name.clone(),
                    };
                    left_out.push((key.clone(), why));
                }
                Ok(volume) if needs_attach(view, volume) => {
                    desired
                        .entry((volume.clone(), node_name.clone()))
                        .or_default()
                        .insert(key.clone());
                }
                Ok(_) => {}
                Err(why) => left_out.push((key.clone(), why)),
            }
        }
    }
    (desired, left_out)
}

/// A pod gives its volumes up when it is over, or is being deleted and nothing of it runs any more.
fn needs_volumes(pod: &Pod) -> bool {
    match pod.phase {
        PodPhase::Succeeded | PodPhase::Failed => false,
        PodPhase::Pending | PodPhase::Running | PodPhase::Unknown => {
            !pod.deleting || pod.has_running_container
        }
    }
}

fn volume_of<'a>(view: &'a ClusterView, key: &ClaimKey) -> Result<&'a PvName, NotDesired> {
    let claim = view
        .claims
        .get(key)
        .ok_or_else(|| NotDesired::ClaimMissing(key.clone()))?;
    let name = claim
        .volume
        .as_ref()
        .ok_or_else(|| NotDesired::ClaimUnbound(key.clone()))?;
    let volume = view
        .volumes
        .get(name)
        .ok_or_else(|| NotDesired::VolumeMissing(name.clone()))?;
    if volume.claim_uid.as_ref() != Some(&claim.uid) {
        return Err(NotDesired::ClaimMismatch {
            claim: key.clone(),
            volume: name.clone(),
        });
    }
    Ok(name)
}

fn needs_attach(view: &ClusterView, name: &PvName) -> bool {
    view.volumes
        .get(name)
        .is_some_and(|volume| !view.attachless_drivers.contains(&volume.driver))
}

fn is_fenced(view: &ClusterView, name: &PvName, node: &NodeName) -> bool {
    view.volumes
        .get(name)
        .is_some_and(|volume| view.fences.contains(&(volume.unique_name(), node.clone())))
}
