//! The reaper: takes out tickets that nobody needs any more, as `attach_core::reaper` says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api_types::names::{DRIVER, NAMESPACE};
use attach_core::reaper::{Cause, Policy, Reaping, Removal, Suspicions, World, reap};
use attach_core::{NodeName, Ticket, TicketId, VolumeName, wire};
use events::EventKind;
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::VolumeAttachment as KubernetesAttachment;
use kube::{Api, Resource, ResourceExt as _};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::history;
use crate::runtime::told::{Notice, Told};
use crate::runtime::{Context, Next, Objects, Queue, Stop, reference};

/// One pass looks at everything, so changes are gathered for a moment. Nobody waits for a reaper.
const GATHER: Duration = Duration::from_secs(1);
/// The one key of the queue.
const PASS: &str = "pass";

#[derive(Default)]
struct Memory {
    suspicions: Mutex<Suspicions>,
    told: Told,
    /// Some ticket waits until its node uses the volume no more. Nodes change all the time; only then does that matter here.
    waits_for_nodes: AtomicBool,
}

/// Runs until cancelled.
pub async fn run(context: Context, policy: Policy, stop: CancellationToken) {
    let queue = Queue::named("reaper", &context.metrics);
    let objects = &context.objects;
    let add = |queue: &Queue| {
        let queue = queue.clone();
        move || queue.add_after(PASS, GATHER)
    };
    let changed = add(&queue);
    let _attachments = objects.attachments.subscribe(move |_| changed());
    let changed = add(&queue);
    let _snapshots = objects.snapshots.subscribe(move |_| changed());
    let changed = add(&queue);
    let _backups = objects.backups.subscribe(move |_| changed());
    let changed = add(&queue);
    let _kubernetes = objects.kubernetes_attachments.subscribe(move |_| changed());
    let memory = Arc::new(Memory::default());
    let node_changed = || {
        let (changed, memory) = (add(&queue), Arc::clone(&memory));
        move || {
            if memory.waits_for_nodes.load(Ordering::Relaxed) {
                changed();
            }
        }
    };
    let changed = node_changed();
    let _nodes = objects.nodes.subscribe(move |_| changed());
    let changed = node_changed();
    let _kubernetes_nodes = objects.kubernetes_nodes.subscribe(move |_| changed());
    queue.add(PASS);
    queue
        .run(1, stop, |_| {
            let (context, memory) = (context.clone(), Arc::clone(&memory));
            let policy = policy.clone();
            async move {
                pass(&context, &memory, &policy)
                    .await
                    .unwrap_or_else(|stop| stop.next())
            }
        })
        .await;
}

#[tracing::instrument(name = "reaper", skip_all)]
async fn pass(context: &Context, memory: &Memory, policy: &Policy) -> Result<Next, Stop> {
    let objects = &context.objects;
    let tickets: BTreeMap<VolumeName, BTreeMap<TicketId, Ticket>> = objects
        .attachments
        .all()
        .iter()
        .map(|object| (object.name_any().as_str().into(), wire::tickets(object)))
        .collect();
    let before = memory
        .suspicions
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let reaping = reap(&tickets, &world(context), &before, policy, Timestamp::now());
    let Reaping {
        removals,
        suspects,
        mut suspicions,
        recheck_after,
    } = reaping;
    let waits_for_nodes = suspects.iter().any(|suspect| suspect.in_use);
    memory
        .waits_for_nodes
        .store(waits_for_nodes, Ordering::Relaxed);
    let now: Vec<Notice<&Removal>> = suspects
        .iter()
        .map(|suspect| notice(objects, suspect))
        .collect();
    for news in memory.told.fresh(PASS, now) {
        let suspect = news.reason;
        let becomes = if suspect.in_use {
            "is removed when its node has the volume in use no more"
        } else {
            "is removed unless that changes"
        };
        let message = format!(
            "ticket {:?} looks abandoned and {becomes}: {}",
            suspect.ticket.as_str(),
            suspect.cause
        );
        for about in news.recipients {
            context.tell(about, EventKind::Normal, "TicketSuspected", &message);
        }
    }
    // One that cannot be removed costs the others nothing, and itself no second grace.
    let mut failed = None;
    for removal in &removals {
        if let Err(stop) = remove(context, removal).await {
            suspicions.keep(removal, &before);
            failed.get_or_insert(stop);
        }
    }
    *memory
        .suspicions
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = suspicions;
    if let Some(stop) = failed {
        return Err(stop);
    }
    let wait = recheck_after.map(jiff::SignedDuration::unsigned_abs);
    Ok(wait.map_or(Next::Wait, Next::After))
}

fn notice<'a>(objects: &Objects, suspect: &'a Removal) -> Notice<&'a Removal> {
    let (volume, ticket) = (&suspect.volume, &suspect.ticket);
    let object = objects.volume(volume.as_str());
    let about = object.map(|object| reference(object.as_ref()));
    Notice {
        fingerprint: format!("{volume} {ticket} {}", suspect.in_use),
        reason: suspect,
        recipients: about.into_iter().collect(),
    }
}

/// Everything is watched and was listed before any controller began, so nothing here is unknown.
fn world(context: &Context) -> World {
    let objects = &context.objects;
    let (snapshots, backups) = (objects.snapshots.all(), objects.backups.all());
    let names: BTreeSet<String> = snapshots.iter().map(|object| object.name_any()).collect();
    let nodes = objects.nodes.all();
    World {
        kubernetes_attachments: Some(
            objects
                .kubernetes_attachments
                .all()
                .iter()
                .map(|object| object.name_any().into())
                .collect(),
        ),
        snapshots: Some(
            snapshots
                .iter()
                .map(|object| (object.name_any().into(), wire::snapshot_fate(object)))
                .collect(),
        ),
        backups: Some(
            backups
                .iter()
                .map(|object| {
                    let exists = names.contains(&object.spec.snapshot_name);
                    (object.name_any().into(), wire::backup_fate(object, exists))
                })
                .collect(),
        ),
        nodes: Some(
            nodes
                .iter()
                .map(|object| NodeName::from(object.name_any().as_str()))
                .collect(),
        ),
        owners: BTreeMap::from([
            ("Snapshot.longhorn.io".into(), uids(&snapshots)),
            ("Backup.longhorn.io".into(), uids(&backups)),
        ]),
        in_use: in_use(objects),
    }
}

fn in_use(objects: &Objects) -> BTreeSet<(NodeName, VolumeName)> {
    let answers = |name: &str| {
        let node = objects.nodes.get(NAMESPACE, name);
        node.is_some_and(|node| wire::node(&node).ready)
    };
    let mut used = BTreeSet::new();
    for node in objects.kubernetes_nodes.all() {
        let name = node.name_any();
        if answers(&name) {
            let handles = cluster_core::wire::handles_in_use(&node, DRIVER);
            let place = |handle: String| (name.as_str().into(), handle.as_str().into());
            used.extend(handles.into_iter().map(place));
        }
    }
    used
}

fn uids<K: Resource<DynamicType = ()>>(objects: &[Arc<K>]) -> BTreeMap<Arc<str>, Arc<str>> {
    let entry = |object: &Arc<K>| {
        let name: Arc<str> = object.name_any().into();
        (name, object.uid().unwrap_or_default().into())
    };
    objects.iter().map(entry).collect()
}

/// Asks the server for what a watch says is gone. A ticket that is removed takes the volume from whoever uses it, and a watch
/// may be behind for longer than any grace.
async fn is_there_after_all(context: &Context, cause: &Cause) -> Result<bool, Stop> {
    match cause {
        Cause::AttachmentGone { name } => {
            let api: Api<KubernetesAttachment> = Api::all(context.client.clone());
            let found = api.get_metadata_opt(name.as_str()).await;
            let found = found.map_err(|source| Stop::Refused {
                verb: "get",
                object: format!("VolumeAttachment {}", name.as_str()),
                source,
            })?;
            Ok(found.is_some())
        }
        Cause::NodeGone { node } => {
            let nodes = context.writer(&context.objects.nodes);
            Ok(nodes.read(node.as_str()).await?.is_some())
        }
        Cause::ObjectGone { .. }
        | Cause::ObjectFinal { .. }
        | Cause::ObjectHopeless { .. }
        | Cause::DeadlinePassed { .. }
        | Cause::OwnerGone { .. }
        | Cause::HeartbeatMissed { .. }
        | Cause::Unclaimed { .. } => Ok(false),
    }
}

/// Takes the ticket out, unless it was changed meanwhile: the version of the object says so.
async fn remove(context: &Context, removal: &Removal) -> Result<(), Stop> {
    let name = removal.volume.as_str();
    let Some(attachment) = context.objects.attachment(name) else {
        return Ok(());
    };
    let is_same = wire::tickets(&attachment)
        .get(&removal.ticket)
        .is_some_and(|ticket| ticket.generation == removal.generation);
    if !is_same || is_there_after_all(context, &removal.cause).await? {
        return Ok(());
    }
    let patch = json!({
        "metadata": {"resourceVersion": attachment.metadata.resource_version},
        "spec": {"attachmentTickets": {(removal.ticket.as_str()): null}},
    });
    context
        .writer(&context.objects.attachments)
        .merge(name, &patch)
        .await?;
    if let Some(volume) = context.objects.volume(name)
        && let Some(entry) = history::of_removal(removal, Timestamp::now())
    {
        context.history().record(&volume, entry);
    }
    tracing::info!(volume.name = name, ticket.id = removal.ticket.as_str(), cause = %removal.cause, "ticket removed");
    let message = format!(
        "ticket {:?} was removed: {}",
        removal.ticket.as_str(),
        removal.cause
    );
    tell(
        context,
        removal,
        EventKind::Warning,
        "TicketRemoved",
        &message,
    );
    Ok(())
}

fn tell(context: &Context, removal: &Removal, kind: EventKind, reason: &str, message: &str) {
    if let Some(volume) = context.objects.volume(removal.volume.as_str()) {
        context.tell(reference(volume.as_ref()), kind, reason, message);
    }
}
