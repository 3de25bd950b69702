//! Finalizers that nobody else will take off: of what is on nodes that are gone, and at last the volume's own.

use std::sync::Arc;

use api_types::names::{FINALIZER, NAMESPACE};
use api_types::{Engine, Node, Replica};
use kube::ResourceExt as _;
use volume_core::{EngineName, NodeHealth, NodeName, VolumeView};

use super::execute::Round;
use crate::runtime::{Context, Stop};

/// After a plan was carried out.
pub(super) async fn release(round: &Round<'_>) -> Result<(), Stop> {
    let (context, view) = (round.context, round.view);
    for engine in round
        .engines
        .iter()
        .filter(|engine| is_ending(&engine.metadata))
    {
        if may_release_engine(engine, view) {
            context
                .writer(&context.objects.engines)
                .remove_finalizer(engine, FINALIZER)
                .await?;
        }
    }
    for replica in round
        .replicas
        .iter()
        .filter(|replica| is_ending(&replica.metadata))
    {
        if may_release_replica(replica, view) {
            context
                .writer(&context.objects.replicas)
                .remove_finalizer(replica, FINALIZER)
                .await?;
        }
    }
    if !view.volume.deleting {
        return Ok(());
    }
    let name = round.volume.name_any();
    let objects = &context.objects;
    if !objects.engines_of(&name).is_empty() || !objects.replicas_of(&name).is_empty() {
        return Ok(());
    }
    match objects
        .volume(&name)
        .filter(|volume| is_ending(&volume.metadata))
    {
        Some(volume) => round.volumes().remove_finalizer(&volume, FINALIZER).await,
        None => Ok(()),
    }
}

/// Objects whose volume does not exist: those on nodes that do not exist either would stay for ever.
pub(super) async fn release_orphans(
    context: &Context,
    engines: &[Arc<Engine>],
    replicas: &[Arc<Replica>],
) -> Result<(), Stop> {
    let node_of = |name: &str| context.objects.nodes.get(NAMESPACE, name);
    for engine in engines.iter().filter(|engine| is_ending(&engine.metadata)) {
        if node_of(&engine.spec.node_id).is_none() {
            context
                .writer(&context.objects.engines)
                .remove_finalizer(engine, FINALIZER)
                .await?;
        }
    }
    for replica in replicas
        .iter()
        .filter(|replica| is_ending(&replica.metadata))
    {
        if node_of(&replica.spec.node_id).is_none_or(|node| !has_disk(&node, &replica.spec.disk_id))
        {
            context
                .writer(&context.objects.replicas)
                .remove_finalizer(replica, FINALIZER)
                .await?;
        }
    }
    Ok(())
}

fn is_ending(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> bool {
    metadata.deletion_timestamp.is_some()
        && metadata
            .finalizers
            .iter()
            .flatten()
            .any(|name| name == FINALIZER)
}

/// The agent of the engine's node takes it off; if that node does not answer, we do once nothing it wrote can count: it
/// is fenced, or the whole volume is being destroyed.
fn may_release_engine(engine: &Engine, view: &VolumeView) -> bool {
    let node = NodeName::from(engine.spec.node_id.as_str());
    match view.nodes.get(&node).map(|node| node.health) {
        None => true,
        Some(NodeHealth::Ready) => false,
        Some(NodeHealth::Lost { .. } | NodeHealth::OutOfService) => {
            let epoch = view
                .engines
                .get(&EngineName::new(engine.name_any()))
                .map(|engine| engine.spec.epoch);
            let is_fenced = view
                .status
                .fence_proof
                .as_ref()
                .is_some_and(|proof| epoch.is_some_and(|epoch| epoch < proof.epoch));
            is_fenced || view.volume.deleting
        }
    }
}

/// The agent takes it off after it has deleted the data. Where there is no node or disk any more, there is no data. A
/// silent node is not waited for when the volume goes: its agent removes whatever has no object when it comes back.
fn may_release_replica(replica: &Replica, view: &VolumeView) -> bool {
    let node = NodeName::from(replica.spec.node_id.as_str());
    let Some(node) = view.nodes.get(&node) else {
        return true;
    };
    let has_disk = node
        .disks
        .contains_key(&replica.spec.disk_id.as_str().into());
    !has_disk || (view.volume.deleting && node.health != NodeHealth::Ready)
}

fn has_disk(node: &Node, disk_id: &str) -> bool {
    let mut disks = node
        .status
        .iter()
        .flat_map(|status| status.disk_status.values());
    disks.any(|disk| disk.disk_uuid == disk_id)
}
