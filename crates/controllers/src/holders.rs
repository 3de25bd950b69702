//! One controller for all operations that hold tickets: it gathers what they are about and asks `attach_core::holders`.
//!
//! An operation is added there, as a file and a line. Only what it needs to look at is gathered here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api_types::names::{API_VERSION, label};
use api_types::{Volume, VolumeAttachment, VolumeAttachmentSpec};
use attach_core::holders::{CloneRole, Subject, TicketChanges, VolumeFacts, plan};
use attach_core::{AttacherKind, NodeName, Ticket, TicketId, wire};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use volume_core::NodeHealth;

use crate::runtime::{Context, Next, Queue, Stop};
use crate::snapshots;

const WORKERS: usize = 8;
/// The operations whose subjects are gathered here. Tickets of others are left to whoever files them.
const GATHERED: [AttacherKind; 8] = [
    AttacherKind::Snapshot,
    AttacherKind::Backup,
    AttacherKind::Restore,
    AttacherKind::Clone,
    AttacherKind::Expansion,
    AttacherKind::Rebuilding,
    AttacherKind::Salvage,
    AttacherKind::Eviction,
];

/// Runs until cancelled.
pub async fn run(context: Context, stop: CancellationToken) {
    let queue = Queue::named("holders", &context.metrics);
    let objects = &context.objects;
    let add = queue.clone();
    let _volumes = objects.volumes.subscribe(move |object| {
        add.add(object.name_any());
        // A clone is also its source's business.
        if let Some(source) = clone_source(object) {
            add.add(source);
        }
    });
    let add = queue.clone();
    let _attachments = objects
        .attachments
        .subscribe(move |object| add.add(object.name_any()));
    let add = queue.clone();
    let _engines = objects
        .engines
        .subscribe(move |object| add.add(object.spec.volume_name.clone()));
    let add = queue.clone();
    let _replicas = objects
        .replicas
        .subscribe(move |object| add.add(object.spec.volume_name.clone()));
    let add = queue.clone();
    let _snapshots = objects
        .snapshots
        .subscribe(move |object| add.add(object.spec.volume.clone()));
    let add = queue.clone();
    let _backups = objects.backups.subscribe(move |object| {
        if let Some(volume) = backup_volume(object) {
            add.add(volume);
        }
    });
    let (add, volumes) = (queue.clone(), objects.volumes.clone());
    let add_all = Arc::new(move || {
        for volume in volumes.all() {
            add.add(volume.name_any());
        }
    });
    let add = Arc::clone(&add_all);
    let _nodes = objects.nodes.subscribe(move |_| add());
    let add = Arc::clone(&add_all);
    let _settings = objects.settings.subscribe(move |_| add());
    add_all();
    queue
        .run(WORKERS, stop, |name| {
            let context = context.clone();
            let span = tracing::info_span!("holders", volume.name = %name);
            async move {
                reconcile(&context, &name)
                    .await
                    .unwrap_or_else(|stop| stop.next())
            }
            .instrument(span)
        })
        .await;
}

async fn reconcile(context: &Context, name: &str) -> Result<Next, Stop> {
    let objects = &context.objects;
    let Some(volume) = objects.volume(name) else {
        return Ok(Next::Wait);
    };
    let attachment = objects.attachment(name);
    let facts = facts(context, &volume)?;
    let tickets = attachment.as_deref().map(wire::tickets).unwrap_or_default();
    let statuses = attachment
        .as_deref()
        .map(wire::statuses)
        .unwrap_or_default();
    let mut changes = plan(&facts, &tickets, &statuses, &subjects(context, &volume));
    changes.remove.retain(|id| is_gathered(id, &tickets));
    if changes == TicketChanges::default() {
        return Ok(Next::Wait);
    }
    let attachments = context.writer(&objects.attachments);
    let attachment = match attachment {
        Some(attachment) => attachment,
        None => Arc::new(attachments.create(&new_attachment(&volume)).await?),
    };
    let mut patch = serde_json::Map::new();
    for ticket in &changes.file {
        tracing::info!(
            ticket.id = ticket.id.as_str(),
            node.name = ticket.node.as_str(),
            "ticket filed"
        );
        let mut value = serde_json::to_value(wire::ticket_to_wire(ticket)).unwrap_or(Value::Null);
        withdraw_parameters(&mut value, ticket, &attachment);
        patch.insert(ticket.id.as_str().to_owned(), value);
    }
    for id in &changes.remove {
        tracing::info!(ticket.id = id.as_str(), "ticket withdrawn");
        patch.insert(id.as_str().to_owned(), Value::Null);
    }
    // With the version that was decided on: a generation must not be used twice.
    let patch = json!({
        "metadata": {"resourceVersion": attachment.metadata.resource_version},
        "spec": {"attachmentTickets": patch},
    });
    attachments.merge(name, &patch).await?;
    Ok(Next::Wait)
}

/// A merge keeps keys that are not mentioned: parameters that the ticket no longer has must be.
fn withdraw_parameters(value: &mut Value, ticket: &Ticket, attachment: &VolumeAttachment) {
    let filed = attachment.spec.attachment_tickets.get(ticket.id.as_str());
    let (Some(filed), Some(parameters)) = (filed, value["parameters"].as_object_mut()) else {
        return;
    };
    for key in filed.parameters.keys() {
        parameters.entry(key.clone()).or_insert(Value::Null);
    }
}

fn is_gathered(id: &TicketId, tickets: &BTreeMap<TicketId, Ticket>) -> bool {
    tickets
        .get(id)
        .is_some_and(|ticket| GATHERED.iter().any(|kind| ticket.is(*kind)))
}

/// The attachment object of a volume that has none.
fn new_attachment(volume: &Volume) -> VolumeAttachment {
    let name = volume.name_any();
    let spec = VolumeAttachmentSpec {
        volume: name.clone(),
        ..VolumeAttachmentSpec::default()
    };
    let mut object = VolumeAttachment::new(&name, spec);
    object
        .metadata
        .namespace
        .clone_from(&volume.metadata.namespace);
    object.labels_mut().extend([label::volume(&name)]);
    object.metadata.owner_references = Some(vec![OwnerReference {
        api_version: API_VERSION.to_owned(),
        kind: "Volume".to_owned(),
        name,
        uid: volume.uid().unwrap_or_default(),
        ..OwnerReference::default()
    }]);
    object
}

fn facts(context: &Context, volume: &Volume) -> Result<VolumeFacts, Stop> {
    let name = volume.name_any();
    let unreadable = |message: String| Stop::Unreadable {
        object: format!("Volume {name}"),
        message,
    };
    let facts = wire::volume_facts(volume).map_err(|error| unreadable(error.to_string()))?;
    let objects = &context.objects;
    let cluster = objects.cluster(Timestamp::now());
    let (engines, replicas) = (objects.engines_of(&name), objects.replicas_of(&name));
    // One that was deleted goes by itself, or is kept by a dead disk; attaching the volume would not help it.
    let staying = replicas.iter().map(AsRef::as_ref);
    let staying = staying.filter(|replica| replica.metadata.deletion_timestamp.is_none());
    let engines = engines.iter().map(AsRef::as_ref);
    let view = volume_core::wire::view(volume, engines, staying, &cluster);
    let view = view.map_err(|error| unreadable(error.to_string()))?;
    let setting = objects
        .settings()
        .is_on(&api_types::settings::OFFLINE_REPLICA_REBUILDING);
    let ready = cluster
        .nodes
        .iter()
        .find(|(_, node)| node.health == NodeHealth::Ready);
    Ok(VolumeFacts {
        first_ready_node: ready.map(|(name, _)| NodeName::from(name.as_str())),
        lacks_replicas: view.lacks_replicas(),
        offline_rebuilding: volume.spec.offline_rebuilding.or(setting),
        eviction_possible: view.eviction_possible(),
        replacement_possible: view.replacement_possible(),
        ..facts
    })
}

/// Everything that may need the volume, except what its own tickets' authors look after.
fn subjects(context: &Context, volume: &Volume) -> Vec<Subject> {
    let (objects, name) = (&context.objects, volume.name_any());
    let mut subjects = vec![Subject::Volume];
    let snapshots = objects.snapshots_of(&name);
    let known = snapshots::view(objects, &name);
    subjects.extend(snapshots.iter().map(|object| {
        let listed = known.engine.listed.as_ref();
        let around = wire::SnapshotSurroundings {
            in_engine: listed.map(|listed| listed.contains_key(&object.name_any())),
            refused: known.objection(&object.name_any()).is_some(),
            purge_disabled: known.merging_disabled,
        };
        Subject::Snapshot(wire::snapshot(object, around))
    }));
    let known: BTreeSet<String> = snapshots.iter().map(|object| object.name_any()).collect();
    let backups = objects
        .backups
        .select(|object| backup_volume(object).as_deref() == Some(name.as_str()));
    subjects.extend(backups.iter().map(|object| {
        let exists = known.contains(&object.spec.snapshot_name);
        Subject::Backup(wire::backup(object, exists))
    }));
    let clones = objects.volumes.select(|object| {
        clone_source(object).as_deref() == Some(name.as_str()) && is_copying(object)
    });
    subjects.extend(clones.iter().map(|object| {
        Subject::Clone(CloneRole::Source {
            target: object.name_any().as_str().into(),
        })
    }));
    subjects
}

fn backup_volume(backup: &api_types::Backup) -> Option<String> {
    backup.labels().get(label::BACKUP_VOLUME).cloned()
}

fn clone_source(volume: &Volume) -> Option<String> {
    let source = &volume.spec.data_source;
    let rest = source
        .strip_prefix("vol://")
        .or_else(|| source.strip_prefix("snap://"))?;
    let name = rest.split('/').next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

fn is_copying(volume: &Volume) -> bool {
    volume.metadata.deletion_timestamp.is_none()
        && volume.status.as_ref().is_none_or(|status| {
            matches!(
                status.clone_status.state,
                api_types::VolumeCloneState::None | api_types::VolumeCloneState::Initiated
            )
        })
}
