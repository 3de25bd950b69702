//! The attachment controller: `attach_core::decide` over tickets, volumes, engines and nodes.
//!
//! It is the only author of the tickets' statuses and of `Volume.spec.nodeID`, `.migrationNodeID` and
//! `.disableFrontend`. Statuses are written first: a ticket must not look satisfied while its volume is taken away. What says that
//! a file system is being made on the volume goes even before: it must be gone when somebody else than a pod gets the volume.

use std::sync::Arc;

use api_types::names::{NAMESPACE, annotation::MAKING_FILE_SYSTEM, label};
use api_types::{Engine, Volume, VolumeAttachment};
use attach_core::view::{Engines, Nodes, Settings};
use attach_core::{AttacherKind, NodeName, Plan, Reason, TicketId, View, wire};
use cluster_core::without_figures;
use events::EventKind;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::history;
use crate::runtime::told::{Notice, Told};
use crate::runtime::{Context, Next, Objects, Queue, Stop, reference};
use crate::volume::users;

/// Volumes that are worked on at once.
const WORKERS: usize = 32;

/// Runs until cancelled.
pub async fn run(context: Context, stop: CancellationToken) {
    let queue = Queue::named("attachment", &context.metrics);
    let objects = &context.objects;
    let add = queue.clone();
    let _attachments = objects
        .attachments
        .subscribe(move |object| add.add(object.name_any()));
    let add = queue.clone();
    let _volumes = objects
        .volumes
        .subscribe(move |object| add.add(object.name_any()));
    let add = queue.clone();
    let _engines = objects
        .engines
        .subscribe(move |object| add.add(object.spec.volume_name.clone()));
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
    let told = Arc::new(Told::default());
    queue
        .run(WORKERS, stop, |name| {
            let (context, told) = (context.clone(), Arc::clone(&told));
            let span = tracing::info_span!("attachment", volume.name = %name);
            async move {
                let result = reconcile(&context, &told, &name).await;
                result.unwrap_or_else(|stop| stop.next())
            }
            .instrument(span)
        })
        .await;
}

async fn reconcile(context: &Context, told: &Told, name: &str) -> Result<Next, Stop> {
    let objects = &context.objects;
    let Some(volume) = objects.volume(name) else {
        told.forget(name);
        return Ok(Next::Wait);
    };
    let attachment = objects.attachment(name);
    let view = view(
        context,
        &volume,
        attachment.as_deref(),
        &objects.engines_of(name),
    )?;
    let plan = attach_core::decide(&view);
    if !satisfies_more(&view, &plan) && !lets_go(&view, &plan) {
        return carry_out(context, told, &volume, attachment.as_deref(), &view, &plan).await;
    }
    // Whoever is told that the volume is there will use it, and whoever has it may be using it: either is decided only
    // from what the server has now.
    let (volume, attachment, engines) = read_live(context, name).await?;
    let view = self::view(context, &volume, attachment.as_ref(), &engines)?;
    let plan = attach_core::decide(&view);
    carry_out(context, told, &volume, attachment.as_ref(), &view, &plan).await
}

fn view(
    context: &Context,
    volume: &Volume,
    attachment: Option<&VolumeAttachment>,
    engines: &[Arc<Engine>],
) -> Result<View, Stop> {
    let (read, complaints) = wire::volume(volume).map_err(|error| Stop::Unreadable {
        object: format!("Volume {}", volume.name_any()),
        message: error.to_string(),
    })?;
    for complaint in complaints {
        tracing::warn!(error = &complaint as &dyn std::error::Error, "left out");
    }
    let objects = &context.objects;
    let settings = objects.settings();
    let nodes = objects.nodes.all();
    let listed = nodes
        .iter()
        .map(|node| (node.name_any().as_str().into(), wire::node(node)));
    Ok(View {
        now: Timestamp::now(),
        volume: read,
        tickets: attachment.map(wire::tickets).unwrap_or_default(),
        statuses: attachment.map(wire::statuses).unwrap_or_default(),
        nodes: Nodes {
            complete: true,
            listed: listed.collect(),
        },
        engines: Engines {
            complete: true,
            listed: engines
                .iter()
                .filter_map(|engine| wire::engine(engine))
                .collect(),
        },
        settings: Settings {
            detach_manual_when_cordoned: settings
                .is_on(&api_types::settings::DETACH_MANUALLY_ATTACHED_VOLUMES_WHEN_CORDONED),
            ..Settings::default()
        },
    })
}

/// Would this plan call a ticket satisfied that is not yet, in its present generation?
fn satisfies_more(view: &View, plan: &Plan) -> bool {
    plan.ticket_statuses.iter().any(|(id, status)| {
        let before = view.statuses.get(id);
        status.satisfied
            && before
                .is_none_or(|before| !before.satisfied || before.generation != status.generation)
    })
}

/// Would this plan take the volume from the node that it is meant for? A watch that lags may lack the ticket that put
/// it there.
fn lets_go(view: &View, plan: &Plan) -> bool {
    let node = &view.volume.spec.node;
    node.is_some() && plan.volume_spec.node != *node
}

type Live = (Volume, Option<VolumeAttachment>, Vec<Arc<Engine>>);

async fn read_live(context: &Context, name: &str) -> Result<Live, Stop> {
    let objects = &context.objects;
    let volume = context.writer(&objects.volumes).read(name).await?;
    let volume = volume.ok_or_else(|| Stop::Outdated(format!("Volume {name}")))?;
    let attachment = context.writer(&objects.attachments).read(name).await?;
    let engines: Api<Engine> = Api::namespaced(context.client.clone(), NAMESPACE);
    let of_volume = ListParams::default().labels(&format!("{}={name}", label::VOLUME));
    let engines = engines
        .list(&of_volume)
        .await
        .map_err(|source| Stop::Refused {
            verb: "list",
            object: format!("the Engines of Volume {name}"),
            source,
        })?;
    for engine in &engines.items {
        objects.engines.store(engine.clone());
    }
    Ok((
        volume,
        attachment,
        engines.items.into_iter().map(Arc::new).collect(),
    ))
}

/// Writes the plan, and keeps for people what it changed.
async fn carry_out(
    context: &Context,
    told: &Told,
    volume: &Volume,
    attachment: Option<&VolumeAttachment>,
    view: &View,
    plan: &Plan,
) -> Result<Next, Stop> {
    let result = write(context, told, volume, attachment, view, plan).await;
    let decision = history::of_attachment(view, plan);
    match &result {
        Ok(_) => context.history().decided(volume, decision, view.now),
        Err(_) => context.history().attempted(volume, decision),
    }
    for note in attachment.map(history::notes).unwrap_or_default() {
        context.history().record(volume, note);
    }
    result
}

/// Statuses, then tickets, then the volume, each only if it changes and only if nobody has changed it meanwhile.
async fn write(
    context: &Context,
    told: &Told,
    volume: &Volume,
    attachment: Option<&VolumeAttachment>,
    view: &View,
    plan: &Plan,
) -> Result<Next, Stop> {
    tracing::debug!(action = %plan.action, reasons = ?plan.reasons, "decided");
    let objects = &context.objects;
    if plan.gives_to_others(view) && volume.annotations().contains_key(MAKING_FILE_SYSTEM) {
        // What he writes would pass for the half-made file system, and be formatted. The volume that this was decided on is another
        // one now; a mark that the node puts later is seen as a change of it.
        let name = volume.name_any();
        let unmarked = json!({"metadata": {"annotations": {MAKING_FILE_SYSTEM: null}}});
        let writer = context.writer(&objects.volumes);
        writer.merge(&name, &unmarked).await?;
        tracing::info!(
            "whatever is on the volume is not formatted any more: it goes to somebody else than a pod"
        );
        return Err(Stop::Outdated(format!("Volume {name}")));
    }
    if let Some(before) = attachment {
        let mut after = before.clone();
        wire::write_statuses(plan, &mut after);
        let writer = context.writer(&objects.attachments);
        if after.status != before.status && !(before.status.is_none() && is_empty(&after)) {
            writer.replace_status(&after).await?;
        }
        if !plan.tickets_to_remove.is_empty() {
            let gone = plan.tickets_to_remove.iter();
            let tickets: serde_json::Map<_, _> = gone
                .map(|id| (id.as_str().to_owned(), serde_json::Value::Null))
                .collect();
            let patch = json!({"spec": {"attachmentTickets": tickets}});
            writer.merge(&before.name_any(), &patch).await?;
        }
    }
    if plan.changes_volume(view) {
        let mut after = volume.clone();
        wire::write_volume(plan, &mut after);
        context.writer(&objects.volumes).replace(&after).await?;
        if plan.volume_spec != view.volume.spec {
            tracing::info!(action = %plan.action, from = ?view.volume.spec.node, to = ?plan.volume_spec.node, "volume moves");
        }
    }
    tell(context, told, volume, view, plan);
    let wait = plan.recheck_after.map(jiff::SignedDuration::unsigned_abs);
    Ok(wait.map_or(Next::Wait, Next::After))
}

fn is_empty(attachment: &VolumeAttachment) -> bool {
    attachment
        .status
        .as_ref()
        .is_none_or(|status| status.attachment_ticket_statuses.is_empty())
}

fn tell(context: &Context, told: &Told, volume: &Volume, view: &View, plan: &Plan) {
    // Times and numbers in a sentence change with every decision; whom it is about does not.
    let of_volume = plan
        .reasons
        .iter()
        .map(|reason| (fingerprint(reason), reason, None));
    let of_tickets = plan.verdicts.iter().filter_map(|(id, judgement)| {
        let reason = judgement.reason.as_ref()?;
        let refused = refused_node(view, id, reason);
        // Another ticket may wait for the same thing, and concern other people.
        let whom = refused.map(|node| format!(" on {node}"));
        let fingerprint = fingerprint(reason) + &whom.unwrap_or_default();
        Some((fingerprint, reason, refused))
    });
    let now: Vec<Notice<(&Reason, Option<&NodeName>)>> = of_volume
        .chain(of_tickets)
        .map(|(fingerprint, reason, refused)| Notice {
            fingerprint,
            reason: (reason, refused),
            recipients: recipients(&context.objects, volume, reason, refused),
        })
        .collect();
    for news in told.fresh(&volume.name_any(), now) {
        let (reason, refused) = news.reason;
        let kind = if is_problem(reason, refused) {
            EventKind::Warning
        } else {
            EventKind::Normal
        };
        for about in news.recipients {
            context.tell(about, kind, reason.code(), &reason.to_string());
        }
    }
}

/// Who should know of a reason now: of a problem everybody, but of a refusal only those pods that are on its node.
fn recipients(
    objects: &Objects,
    volume: &Volume,
    reason: &Reason,
    refused: Option<&NodeName>,
) -> Vec<ObjectReference> {
    if is_step(reason) {
        return Vec::new();
    }
    let own = reference(volume);
    if !is_problem(reason, refused) {
        return vec![own];
    }
    let name = volume.name_any();
    let pods = match refused {
        Some(node) => users::pods_on(objects, &name, node.as_str()),
        None => users::pods(objects, &name),
    };
    let claim = users::claim_reference(objects, &name);
    pods.into_iter().chain(claim).chain([own]).collect()
}

fn is_problem(reason: &Reason, refused: Option<&NodeName>) -> bool {
    reason.is_warning() || refused.is_some()
}

/// Where pods wait in vain: the node of a workload's ticket that is not served because somebody else has the volume, or
/// because that node cannot take it. It ends by itself or not, so that it is no warning to everybody.
fn refused_node<'a>(view: &'a View, id: &TicketId, reason: &Reason) -> Option<&'a NodeName> {
    let is_refusal = matches!(
        reason,
        Reason::AttachedElsewhere { .. }
            | Reason::AttachingElsewhere { .. }
            | Reason::MigrationTargetNotReady { .. }
    );
    let ticket = view.tickets.get(id).filter(|_| is_refusal)?;
    let is_workload = ticket.attacher.is(AttacherKind::Csi);
    is_workload.then_some(&ticket.node)
}

/// What the volume's own events say as well.
fn is_step(reason: &Reason) -> bool {
    matches!(
        reason,
        Reason::HeldBy { .. }
            | Reason::Attaching { .. }
            | Reason::Detaching { .. }
            | Reason::NoTickets
    )
}

fn fingerprint(reason: &Reason) -> String {
    match reason {
        Reason::BackingOff { failures, .. } => format!("{} {failures}", reason.code()),
        other => format!("{} {}", other.code(), without_figures(&other.to_string())),
    }
}
