//! What people are told of a volume: every transition once, and every refusal when it becomes one, or when they come if that
//! is later. Steps on the way are for the log and for `lariat why`: thirty events an attach would hide the one that matters.

use api_types::Volume;
use cluster_core::without_figures;
use events::EventKind;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::ResourceExt as _;
use volume_core::wire::FieldError;
use volume_core::{Reason, Robustness, VolumePlan, VolumeState, VolumeView};

use super::users;
use crate::runtime::told::{News, Notice, Told};
use crate::runtime::{Context, Stop, reference};

/// Tells what is new in this plan. `written`: its state has become true.
pub(super) fn plan(
    context: &Context,
    told: &Told,
    volume: &Volume,
    view: &VolumeView,
    plan: &VolumePlan,
    written: bool,
) {
    let name = volume.name_any();
    let claim = users::claim_reference(&context.objects, &name);
    let users: Vec<ObjectReference> = users::pods(&context.objects, &name)
        .into_iter()
        .chain(claim)
        .collect();
    reasons(context, told, volume, &users, plan);
    if !written {
        return;
    }
    let own = reference(volume);
    let tell = |kind, users: &[ObjectReference], reason: &str, message: &str| {
        for about in users.iter().chain([&own]) {
            context.tell(about.clone(), kind, reason, message);
        }
    };
    let (old, new) = (&view.status, &plan.status);
    context.metrics.volume_changed(old, new);
    if old.state != new.state {
        tracing::info!(from = %old.state, to = %new.state, node.name = ?new.current_node, epoch = %new.record.epoch, "state");
        let place = new
            .current_node
            .as_ref()
            .map(|node| format!(" on node {node}"))
            .unwrap_or_default();
        tell(
            EventKind::Normal,
            &users,
            state_name(new.state),
            &format!("the volume is {}{place}", new.state),
        );
    }
    if old.robustness != new.robustness && new.robustness != Robustness::Unknown {
        let (kind, reason) = match new.robustness {
            Robustness::Healthy => (EventKind::Normal, "Healthy"),
            Robustness::Degraded => (EventKind::Warning, "Degraded"),
            Robustness::Faulted | Robustness::Unknown => (EventKind::Warning, "Faulted"),
        };
        let (members, wanted) = (new.record.members.len(), view.volume.replicas_wanted);
        let message = format!(
            "the volume is {}; its in-sync set has {members} of {wanted} replicas",
            new.robustness
        );
        // That an attached volume is healthy is news only to those who knew it otherwise.
        let is_news = old.robustness != Robustness::Unknown || kind == EventKind::Warning;
        let users = if is_news { users.as_slice() } else { &[] };
        tell(kind, users, reason, &message);
    }
}

/// A volume is refused a place before it has a claim or a pod, which hear of it when they come.
fn reasons(
    context: &Context,
    told: &Told,
    volume: &Volume,
    users: &[ObjectReference],
    plan: &VolumePlan,
) {
    let own = reference(volume);
    let recipients = |reason: &Reason| -> Vec<ObjectReference> {
        if is_warning(reason) {
            users.iter().chain([&own]).cloned().collect()
        } else if is_step(reason) {
            Vec::new()
        } else {
            vec![own.clone()]
        }
    };
    let now: Vec<Notice<&Reason>> = plan
        .reasons
        .iter()
        .map(|reason| Notice {
            fingerprint: fingerprint(reason),
            reason,
            recipients: recipients(reason),
        })
        .collect();
    for news in told.fresh(&volume.name_any(), now) {
        let reason = news.reason;
        if news.is_new {
            tracing::info!(%reason, "new reason");
        }
        let kind = if is_warning(reason) {
            EventKind::Warning
        } else {
            EventKind::Normal
        };
        for about in news.recipients {
            context.tell(about, kind, name(reason), &reason.to_string());
        }
    }
}

pub(super) fn unreadable(
    context: &Context,
    told: &Told,
    volume: &Volume,
    error: &FieldError,
) -> Stop {
    let (name, message) = (volume.name_any(), error.to_string());
    let notice = Notice {
        fingerprint: message.clone(),
        reason: (),
        recipients: vec![reference(volume)],
    };
    for News { recipients, .. } in told.fresh(&name, vec![notice]) {
        for about in recipients {
            context.tell(about, EventKind::Warning, "Unreadable", &message);
        }
    }
    Stop::Unreadable {
        object: format!("Volume {name}"),
        message,
    }
}

/// The variant's name, which is a CamelCase word for programs.
fn name(reason: &Reason) -> &'static str {
    match reason {
        Reason::CreatingReplica { .. } => "CreatingReplica",
        Reason::Unschedulable { .. } => "Unschedulable",
        Reason::NodeNotReady { .. } => "NodeNotReady",
        Reason::StrictLocalElsewhere { .. } => "StrictLocalElsewhere",
        Reason::NoReplicaAvailable { .. } => "NoReplicaAvailable",
        Reason::ReplicasStarting { .. } => "ReplicasStarting",
        Reason::StartingEngine { .. } => "StartingEngine",
        Reason::EngineStarting { .. } => "EngineStarting",
        Reason::OpeningFrontend { .. } => "OpeningFrontend",
        Reason::EngineFailed { .. } => "EngineFailed",
        Reason::RestartBackoff { .. } => "RestartBackoff",
        Reason::ClosingFrontend { .. } => "ClosingFrontend",
        Reason::StoppingEngine { .. } => "StoppingEngine",
        Reason::StoppingReplicas { .. } => "StoppingReplicas",
        Reason::EngineUnreachable { .. } => "EngineUnreachable",
        Reason::Fencing { .. } => "Fencing",
        Reason::Fenced { .. } => "Fenced",
        Reason::FenceImpossible { .. } => "FenceImpossible",
        Reason::InSyncChanged { .. } => "InSyncChanged",
        Reason::CommitRefused { .. } => "CommitRefused",
        Reason::StandbyStarting { .. } => "StandbyStarting",
        Reason::TookOver { .. } => "TookOver",
        Reason::TakeOverRefused { .. } => "TakeOverRefused",
        Reason::HandedOver { .. } => "HandedOver",
        Reason::MigrationNeedsWriter { .. } => "MigrationNeedsWriter",
        Reason::ReplicaFailed { .. } => "ReplicaFailed",
        Reason::Rebuilding { .. } => "Rebuilding",
        Reason::RebuildQueued { .. } => "RebuildQueued",
        Reason::WaitingForFailedReplica { .. } => "WaitingForFailedReplica",
        Reason::Evicting { .. } => "Evicting",
        Reason::RemovingReplica { .. } => "RemovingReplica",
        Reason::Salvaged { .. } => "Salvaged",
        Reason::SalvageRefused { .. } => "SalvageRefused",
        Reason::Faulted => "Faulted",
        Reason::Expanding { .. } => "Expanding",
        Reason::ExpansionBlocked { .. } => "ExpansionBlocked",
        Reason::ShrinkRefused { .. } => "ShrinkRefused",
        Reason::Cloning { .. } => "Cloning",
        Reason::CloneFailed { .. } => "CloneFailed",
        Reason::Restoring { .. } => "Restoring",
        Reason::RestoreFailed { .. } => "RestoreFailed",
        Reason::Deleting => "Deleting",
        Reason::DiskKeepsReplica { .. } => "DiskKeepsReplica",
    }
}

fn is_warning(reason: &Reason) -> bool {
    matches!(
        reason,
        Reason::Unschedulable { .. }
            | Reason::NodeNotReady { .. }
            | Reason::StrictLocalElsewhere { .. }
            | Reason::NoReplicaAvailable { .. }
            | Reason::EngineFailed { .. }
            | Reason::RestartBackoff { .. }
            | Reason::EngineUnreachable { .. }
            | Reason::FenceImpossible { .. }
            | Reason::CommitRefused { .. }
            | Reason::TakeOverRefused { .. }
            | Reason::ReplicaFailed { .. }
            | Reason::SalvageRefused { .. }
            | Reason::Faulted
            | Reason::ExpansionBlocked { .. }
            | Reason::ShrinkRefused { .. }
            | Reason::CloneFailed { .. }
            | Reason::RestoreFailed { .. }
            | Reason::DiskKeepsReplica { .. }
    )
}

/// What is on its way, and comes to an end by itself or becomes a warning.
fn is_step(reason: &Reason) -> bool {
    matches!(
        reason,
        Reason::ReplicasStarting { .. }
            | Reason::EngineStarting { .. }
            | Reason::OpeningFrontend { .. }
            | Reason::ClosingFrontend { .. }
            | Reason::StoppingEngine { .. }
            | Reason::StoppingReplicas { .. }
            | Reason::StandbyStarting { .. }
            | Reason::Deleting
    )
}

/// What makes a reason another one. Waits that count down and percents that count up do not.
fn fingerprint(reason: &Reason) -> String {
    match reason {
        Reason::RestartBackoff { attempts, .. } => format!("{} {attempts}", name(reason)),
        Reason::WaitingForFailedReplica { replica, .. } => format!("{} {replica}", name(reason)),
        Reason::Cloning { .. } | Reason::Restoring { .. } => name(reason).to_owned(),
        other => format!("{} {}", name(other), without_figures(&other.to_string())),
    }
}

fn state_name(state: VolumeState) -> &'static str {
    match state {
        VolumeState::Creating => "Creating",
        VolumeState::Detached => "Detached",
        VolumeState::Attaching => "Attaching",
        VolumeState::Attached => "Attached",
        VolumeState::Detaching => "Detaching",
        VolumeState::Deleting => "Deleting",
    }
}
