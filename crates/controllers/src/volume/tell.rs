//! What people are told of a volume: every transition once, and every reason when it becomes one.

use api_types::Volume;
use cluster_core::without_figures;
use events::EventKind;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::ResourceExt as _;
use volume_core::wire::FieldError;
use volume_core::{Reason, Robustness, VolumePlan, VolumeState, VolumeView};

use super::users;
use crate::runtime::told::Told;
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
    let about = references(context, volume);
    let pods = users::pods(&context.objects, &volume.name_any());
    // Whoever looks at a pod wants to know what became of its volume and what is refused, not every step on the way.
    let tell = |kind, is_step: bool, reason: &str, message: &str| {
        let pods = pods.iter().filter(|_| !is_step);
        for about in about.iter().chain(pods) {
            context.tell(about.clone(), kind, reason, message);
        }
    };
    let reasons = plan
        .reasons
        .iter()
        .map(|reason| (fingerprint(reason), reason));
    for reason in told.fresh(&volume.name_any(), reasons) {
        tracing::info!(%reason, "new reason");
        let kind = if is_warning(reason) {
            EventKind::Warning
        } else {
            EventKind::Normal
        };
        let is_step = kind == EventKind::Normal;
        tell(kind, is_step, name(reason), &reason.to_string());
    }
    if !written {
        return;
    }
    let (old, new) = (&view.status, &plan.status);
    if old.state != new.state {
        tracing::info!(from = %old.state, to = %new.state, node.name = ?new.current_node, epoch = %new.record.epoch, "state");
        let place = new
            .current_node
            .as_ref()
            .map(|node| format!(" on node {node}"))
            .unwrap_or_default();
        tell(
            EventKind::Normal,
            false,
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
        tell(kind, false, reason, &message);
    }
}

pub(super) fn unreadable(
    context: &Context,
    told: &Told,
    volume: &Volume,
    error: &FieldError,
) -> Stop {
    let (name, message) = (volume.name_any(), error.to_string());
    if !told.fresh(&name, [(message.clone(), ())]).is_empty() {
        context.tell(
            reference(volume),
            EventKind::Warning,
            "Unreadable",
            &message,
        );
    }
    Stop::Unreadable {
        object: format!("Volume {name}"),
        message,
    }
}

/// The volume, and the claim that people know it by.
fn references(context: &Context, volume: &Volume) -> Vec<ObjectReference> {
    let mut about = vec![reference(volume)];
    about.extend(users::claim_reference(&context.objects, &volume.name_any()));
    about
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
