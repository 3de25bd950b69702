//! What one version of one object says about hops.

use std::collections::{BTreeMap, HashMap};

use api_types::{Engine, InstanceState, Volume, VolumeState};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt as _;

use super::Hop;

/// A hop, and the node that it is about; none stands for every node that the volume is leaving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub hop: Hop,
    pub node: Option<String>,
}

fn on(hop: Hop, node: &str) -> Seen {
    Seen {
        hop,
        node: Some(node.to_owned()),
    }
}

/// Which PersistentVolume each claim has.
#[derive(Debug, Default)]
pub struct Claims(HashMap<(String, String), String>);

impl Claims {
    pub fn note(&mut self, claim: &PersistentVolumeClaim) {
        let volume = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.volume_name.clone());
        let key = (claim.namespace().unwrap_or_default(), claim.name_any());
        match volume.filter(|name| !name.is_empty()) {
            Some(volume) => self.0.insert(key, volume),
            None => self.0.remove(&key),
        };
    }

    pub fn forget(&mut self, claim: &PersistentVolumeClaim) {
        let key = (claim.namespace().unwrap_or_default(), claim.name_any());
        self.0.remove(&key);
    }

    fn volume(&self, namespace: &str, claim: &str) -> Option<&str> {
        let key = (namespace.to_owned(), claim.to_owned());
        self.0.get(&key).map(String::as_str)
    }
}

/// The volumes that a pod uses, each with what the pod says.
#[must_use]
pub fn pod(pod: &Pod, claims: &Claims, deleted: bool) -> Vec<(String, Seen)> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let Some(node) = spec.node_name.as_deref().filter(|node| !node.is_empty()) else {
        return Vec::new();
    };
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let mut hops = vec![Hop::PodScheduled];
    if phase == Some("Running") {
        hops.push(Hop::PodRunning);
    }
    if deleted || pod.metadata.deletion_timestamp.is_some() {
        hops = vec![Hop::PodLeaving];
    }
    let namespace = pod.namespace().unwrap_or_default();
    let volumes = spec.volumes.iter().flatten();
    let claimed = volumes.filter_map(|volume| {
        let claim = volume.persistent_volume_claim.as_ref()?;
        claims.volume(&namespace, &claim.claim_name)
    });
    claimed
        .flat_map(|volume| {
            hops.iter()
                .map(move |&hop| (volume.to_owned(), on(hop, node)))
        })
        .collect()
}

/// The volume of a Kubernetes VolumeAttachment, and what it says. The PersistentVolume's name is the Volume's.
#[must_use]
pub fn attachment(attachment: &VolumeAttachment, deleted: bool) -> Option<(String, Vec<Seen>)> {
    let volume = attachment.spec.source.persistent_volume_name.clone()?;
    let node = &attachment.spec.node_name;
    let attached = attachment
        .status
        .as_ref()
        .is_some_and(|status| status.attached);
    let hops = match (deleted, attachment.metadata.deletion_timestamp.is_some()) {
        (true, _) => vec![Hop::AttachmentDeleted, Hop::AttachmentGone],
        (false, true) => vec![Hop::AttachmentDeleted],
        (false, false) if attached => vec![Hop::AttachmentCreated, Hop::AttachmentDone],
        (false, false) => vec![Hop::AttachmentCreated],
    };
    Some((volume, hops.into_iter().map(|hop| on(hop, node)).collect()))
}

/// What a volume's tickets say, against those that were there before.
#[must_use]
pub fn tickets(
    attachment: &api_types::VolumeAttachment,
    before: &BTreeMap<String, String>,
) -> (Vec<Seen>, BTreeMap<String, String>) {
    let tickets = &attachment.spec.attachment_tickets;
    let statuses = attachment.status.as_ref();
    let mut seen = Vec::new();
    for ticket in tickets.values() {
        seen.push(on(Hop::TicketFiled, &ticket.node_id));
        if statuses.is_some_and(|statuses| statuses.satisfies(ticket)) {
            seen.push(on(Hop::TicketSatisfied, &ticket.node_id));
        }
    }
    let now: BTreeMap<String, String> = tickets
        .iter()
        .map(|(id, ticket)| (id.clone(), ticket.node_id.clone()))
        .collect();
    // A node is left when its last ticket goes.
    for node in before.values() {
        if !now.values().any(|other| other == node) {
            seen.push(on(Hop::TicketWithdrawn, node));
        }
    }
    (seen, now)
}

/// What a Volume says of where it should be and where it is.
#[must_use]
pub fn volume(volume: &Volume) -> Vec<Seen> {
    let mut seen = Vec::new();
    let wanted = [&volume.spec.node_id, &volume.spec.migration_node_id];
    let wanted = wanted.into_iter().filter(|node| !node.is_empty());
    seen.extend(wanted.map(|node| on(Hop::NodeChosen, node)));
    if seen.is_empty() {
        seen.push(Seen {
            hop: Hop::NodeReleased,
            node: None,
        });
    }
    let Some(status) = &volume.status else {
        return seen;
    };
    match status.state {
        VolumeState::Attached if !status.current_node_id.is_empty() => {
            seen.push(on(Hop::VolumeAttached, &status.current_node_id));
        }
        VolumeState::Detached => seen.push(Seen {
            hop: Hop::VolumeDetached,
            node: None,
        }),
        _ => {}
    }
    seen
}

/// The volume of an Engine, and what it says.
#[must_use]
pub fn engine(engine: &Engine, deleted: bool) -> (String, Vec<Seen>) {
    let node = &engine.spec.node_id;
    let status = engine.status.clone().unwrap_or_default();
    let mut hops = Vec::new();
    let stopped = status.current_state == InstanceState::Stopped && !status.owner_id.is_empty();
    if deleted || stopped {
        hops.push(Hop::DeviceGone);
    } else {
        hops.push(Hop::EngineCreated);
        if status.current_state == InstanceState::Running && !status.endpoint.is_empty() {
            hops.push(Hop::DeviceReady);
        }
    }
    let seen = hops.into_iter().map(|hop| on(hop, node)).collect();
    (engine.spec.volume_name.clone(), seen)
}
