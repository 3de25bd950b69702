//! Whether something on a ticket's node still uses the volume. That nobody wants a volume attached any more does not unmount it: a node that
//! Kubernetes gave up may be at work all the same, and whoever takes its ticket stops the engine below its pods.

use std::collections::BTreeSet;

use api_types::names::DRIVER;
use attach_core::Ticket;
use cluster_core::wire;
use cluster_core::{ClaimKey, UniqueVolumeName};
use k8s_openapi::api::core::v1::{Node as KubernetesNode, PersistentVolume, Pod};
use kube::{Api, Client, ResourceExt as _};

use crate::exit;
use crate::inventory::{Inventory, api_error};

/// What the ticket's node says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// No pod is behind a ticket of this type, so its node is not asked.
    Unconcerned,
    /// It names these volumes; a node that Kubernetes does not know names none.
    Uses(BTreeSet<UniqueVolumeName>),
    /// It could not be read, and this is why. That proves nothing.
    Unread(String),
}

/// A node that cannot be read is an answer, not an error: a person may know what it is about, and insist.
pub(crate) async fn ask(client: &Client, ticket: &Ticket) -> Word {
    if !ticket.attacher.is_workload() {
        return Word::Unconcerned;
    }
    let name = ticket.node.as_str();
    let nodes: Api<KubernetesNode> = Api::all(client.clone());
    match nodes.get_opt(name).await {
        Ok(found) => {
            let seen = found.as_ref().map(wire::node);
            Word::Uses(seen.map(|node| node.volumes_in_use).unwrap_or_default())
        }
        Err(error) => {
            let error = api_error(error, "read Kubernetes node", name);
            Word::Unread(exit::told(&error))
        }
    }
}

/// What on the ticket's node uses the volume, with what it would lose.
pub(crate) fn evidence(
    inventory: &Inventory,
    volume: &str,
    ticket: &Ticket,
    word: &Word,
) -> Vec<String> {
    let node = ticket.node.as_str();
    let unique = UniqueVolumeName {
        driver: DRIVER.into(),
        handle: volume.into(),
    };
    let mut evidence = Vec::new();
    match word {
        Word::Unconcerned => return evidence,
        Word::Uses(named) if named.contains(&unique) => evidence.push(format!(
            "node {node} still has the volume in use (status.volumesInUse of the Kubernetes node): what has it mounted there would \
             lose it in the middle of its writes"
        )),
        Word::Uses(_) | Word::Unread(_) => {}
    }
    let pods = pods(inventory, volume, node);
    evidence.extend(
        pods.iter()
            .map(|pod| format!("pod {pod} on node {node} uses the volume: its writes would fail")),
    );
    evidence
}

/// The pods on the node that use the volume, and are not over.
fn pods(inventory: &Inventory, volume: &str, node: &str) -> Vec<String> {
    let persistent = inventory.persistent_volumes.iter();
    let claims: BTreeSet<ClaimKey> = persistent
        .filter(|persistent| is_of(persistent, volume))
        .filter_map(|persistent| {
            let claim = persistent.spec.as_ref()?.claim_ref.as_ref()?;
            Some(ClaimKey {
                namespace: claim.namespace.clone()?,
                name: claim.name.clone()?,
            })
        })
        .collect();
    let uses = |pod: &&Pod| {
        let on = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        on == Some(node)
            && !matches!(phase, Some("Succeeded" | "Failed"))
            && wire::claims_of(pod)
                .iter()
                .any(|claim| claims.contains(claim))
    };
    let pods = inventory.pods.iter().filter(uses);
    pods.map(|pod| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()))
        .collect()
}

/// One that a person made may have another name than its volume.
fn is_of(persistent: &PersistentVolume, volume: &str) -> bool {
    let csi = persistent.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    match csi {
        Some(csi) => csi.driver == DRIVER && csi.volume_handle == volume,
        None => persistent.name_any() == volume,
    }
}
