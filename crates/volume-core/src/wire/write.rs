//! Writing: the plan's values go into the objects; everything else in them stays.

use api_types::condition::{self, ConditionStatus};
use api_types::names::{API_VERSION, FINALIZER, label};
use api_types::{ByteSize, InstanceState, VolumeCloneState, VolumeRobustness, volume_condition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::{count_to_wire, read, time_to_wire};
use crate::identity::{EngineName, Epoch, NodeName, ReplicaName, Timestamp};
use crate::plan::{
    CloneState, EngineDesired, EngineRole, EngineSpec, Job, ReplicaDesired, ReplicaRole,
    ReplicaSpec, RestoreState, Robustness, VolumePlan, VolumeState,
};
use crate::reason::Reason;
use crate::view::{DataSource, Volume};

/// The condition that carries the message of a failed clone; Longhorn has no field for it.
pub const CLONE_CONDITION: &str = "Clone";
/// The reason of a condition about a job that failed.
pub(super) const FAILED_REASON: &str = "Failed";

/// Writes the plan's status into the Volume.
pub fn write_status(
    plan: &VolumePlan,
    volume: &Volume,
    object: &mut api_types::Volume,
    now: Timestamp,
) {
    let (frontend_disabled, is_standby) = (object.spec.disable_frontend, object.spec.standby);
    let wire = object.status.get_or_insert_default();
    let status = &plan.status;
    wire.state = match status.state {
        VolumeState::Creating => api_types::VolumeState::Creating,
        VolumeState::Detached => api_types::VolumeState::Detached,
        VolumeState::Attaching => api_types::VolumeState::Attaching,
        VolumeState::Attached => api_types::VolumeState::Attached,
        VolumeState::Detaching => api_types::VolumeState::Detaching,
        VolumeState::Deleting => api_types::VolumeState::Deleting,
    };
    wire.robustness = match status.robustness {
        Robustness::Healthy => VolumeRobustness::Healthy,
        Robustness::Degraded => VolumeRobustness::Degraded,
        Robustness::Faulted => VolumeRobustness::Faulted,
        Robustness::Unknown => VolumeRobustness::Unknown,
    };
    wire.current_node_id = node(status.current_node.as_ref());
    wire.current_migration_node_id = node(status.current_migration_node.as_ref());
    wire.epoch = count_to_wire(status.record.epoch.0);
    wire.issued_epoch = count_to_wire(status.record.issued.0);
    wire.in_sync_version = count_to_wire(status.record.version.0);
    wire.in_sync_replicas = names(&status.record.members);
    wire.fence_proof = status.fence_proof.as_ref().map(|proof| {
        let mut written = wire.fence_proof.take().unwrap_or_default();
        written.epoch = count_to_wire(proof.epoch.0);
        written.replicas = names(&proof.replicas);
        written.time = time_to_wire(Some(proof.at));
        written.former_node_id = proof.node.as_str().to_owned();
        written
    });
    wire.replicas_created = count_to_wire(status.replicas_created);
    wire.current_size = ByteSize(count_to_wire(status.size_bytes));
    wire.expansion_required = status.expansion_required;
    wire.salvage_attempts = i64::from(status.salvage_attempts);
    wire.engine_restarts = i64::from(status.restarts.count);
    wire.engine_restarted_at = time_to_wire(status.restarts.last_at);
    wire.running_since = time_to_wire(status.running_since);
    wire.last_degraded_at = time_to_wire(status.last_degraded_at);
    wire.remount_requested_at = time_to_wire(status.remount_requested_at);
    wire.frontend_disabled = frontend_disabled && status.current_node.is_some();
    wire.is_standby = is_standby;
    if let Some(Reason::Salvaged { attempt: 1.., .. }) = plan
        .reasons
        .iter()
        .find(|reason| matches!(reason, Reason::Salvaged { .. }))
    {
        wire.last_auto_salvaged_at = time_to_wire(Some(now));
    }
    write_jobs(plan, volume, wire, now);
    write_scheduled(plan, wire, now);
}

fn write_jobs(
    plan: &VolumePlan,
    volume: &Volume,
    wire: &mut api_types::VolumeStatus,
    now: Timestamp,
) {
    let now = time_to_wire(Some(now));
    (wire.restore_required, wire.restore_initiated) = match plan.status.restore {
        RestoreState::NotNeeded => (false, false),
        RestoreState::Required | RestoreState::Failed { .. } => (true, true),
        RestoreState::Completed => (false, true),
    };
    let restore_error = match &plan.status.restore {
        RestoreState::Failed { message } => Some(message),
        RestoreState::NotNeeded | RestoreState::Required | RestoreState::Completed => None,
    };
    write_failure(wire, volume_condition::RESTORE, restore_error, &now);
    wire.clone_status.state = match plan.status.clone {
        CloneState::NotNeeded => VolumeCloneState::None,
        CloneState::Initiated => VolumeCloneState::Initiated,
        CloneState::CopyCompletedAwaitingHealthy => VolumeCloneState::CopyCompletedAwaitingHealthy,
        CloneState::Completed => VolumeCloneState::Completed,
        CloneState::Failed { .. } => VolumeCloneState::Failed,
    };
    let clone_error = match &plan.status.clone {
        CloneState::Failed { message } => Some(message),
        CloneState::NotNeeded
        | CloneState::Initiated
        | CloneState::CopyCompletedAwaitingHealthy
        | CloneState::Completed => None,
    };
    write_failure(wire, CLONE_CONDITION, clone_error, &now);
    if let DataSource::Clone { volume, snapshot } = &volume.source {
        volume
            .as_str()
            .clone_into(&mut wire.clone_status.source_volume);
        snapshot
            .as_str()
            .clone_into(&mut wire.clone_status.snapshot);
    }
}

/// A condition that exists only while there is an error to tell.
fn write_failure(
    wire: &mut api_types::VolumeStatus,
    condition_type: &str,
    error: Option<&String>,
    now: &str,
) {
    match error {
        Some(message) => {
            let failed = ConditionStatus::False;
            condition::set(
                &mut wire.conditions,
                condition_type,
                failed,
                FAILED_REASON,
                message,
                now,
            );
        }
        None => wire.conditions.retain(|condition| {
            condition.condition_type != condition_type || condition.reason != FAILED_REASON
        }),
    }
}

/// Places are looked for while the volume is new and while its engine runs; in between, what was found last stands.
fn write_scheduled(plan: &VolumePlan, wire: &mut api_types::VolumeStatus, now: Timestamp) {
    let is_new = plan.status.record.epoch == Epoch::NONE;
    let was_looked = is_new || plan.status.running_since.is_some();
    let (status, reason, message) = match &plan.status.unschedulable {
        Some(failure) => (false, "ReplicaSchedulingFailure", failure.to_string()),
        None if !was_looked || plan.status.record.members.is_empty() => return,
        None => (true, "", String::new()),
    };
    condition::set(
        &mut wire.conditions,
        volume_condition::SCHEDULED,
        status.into(),
        reason,
        &message,
        &time_to_wire(Some(now)),
    );
}

/// An Engine object for this volume with nothing decided yet.
#[must_use]
pub fn new_engine(name: &EngineName, volume: &api_types::Volume) -> api_types::Engine {
    let mut object = api_types::Engine::new(name.as_str(), api_types::EngineSpec::default());
    adopt(&mut object.metadata, volume);
    object
}

/// A Replica object for this volume with nothing decided yet.
#[must_use]
pub fn new_replica(name: &ReplicaName, volume: &api_types::Volume) -> api_types::Replica {
    let mut object = api_types::Replica::new(name.as_str(), api_types::ReplicaSpec::default());
    adopt(&mut object.metadata, volume);
    object.spec.data_directory_name = name.as_str().to_owned();
    object
}

fn adopt(
    metadata: &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    volume: &api_types::Volume,
) {
    let owner = volume.metadata.name.clone().unwrap_or_default();
    metadata.namespace.clone_from(&volume.metadata.namespace);
    metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    metadata
        .labels
        .get_or_insert_default()
        .extend([label::volume(&owner)]);
    metadata.owner_references = Some(vec![OwnerReference {
        api_version: API_VERSION.to_owned(),
        kind: "Volume".to_owned(),
        name: owner,
        uid: volume.metadata.uid.clone().unwrap_or_default(),
        // Deleting the volume in the foreground must not wait for us: our finalizer does that.
        block_owner_deletion: Some(false),
        controller: Some(true),
    }]);
}

/// Writes a planned engine into its object. `replicas` are the volume's, for their addresses.
pub fn write_engine<'a>(
    spec: &EngineSpec,
    volume: &api_types::Volume,
    replicas: impl IntoIterator<Item = &'a api_types::Replica>,
    object: &mut api_types::Engine,
) {
    let labels = object.metadata.labels.get_or_insert_default();
    labels.insert(label::NODE.to_owned(), spec.node.as_str().to_owned());
    let wire = &mut object.spec;
    wire.volume_name = volume.metadata.name.clone().unwrap_or_default();
    wire.volume_size = ByteSize(count_to_wire(spec.size_bytes));
    wire.node_id = spec.node.as_str().to_owned();
    wire.epoch = count_to_wire(spec.epoch.0);
    wire.role = match spec.role {
        EngineRole::Writer => api_types::EngineRole::Writer,
        EngineRole::Standby => api_types::EngineRole::Standby,
        EngineRole::Former => api_types::EngineRole::Former,
    };
    wire.active = spec.role != EngineRole::Standby;
    match spec.desired {
        EngineDesired::Running { frontend } => {
            wire.desire_state = InstanceState::Running;
            wire.disable_frontend = !frontend;
        }
        EngineDesired::Stopped => wire.desire_state = InstanceState::Stopped,
    }
    wire.frontend.clone_from(&volume.spec.frontend);
    wire.in_sync_replicas = names(&spec.record.members);
    wire.in_sync_version = count_to_wire(spec.record.version.0);
    wire.replica_roles = spec
        .replicas
        .iter()
        .map(|(name, role)| {
            let role = match role {
                ReplicaRole::InSync => api_types::ReplicaRole::InSync,
                ReplicaRole::Rebuild => api_types::ReplicaRole::Rebuild,
            };
            (name.as_str().to_owned(), role)
        })
        .collect();
    let addresses = read::addresses(replicas);
    // Also of members that it should do without, such as those of a lost node: it has to know all that are recorded in
    // order to propose a smaller set, and it may find that one is alive after all.
    wire.replica_address_map = spec
        .replicas
        .keys()
        .chain(&spec.record.members)
        .filter_map(|name| {
            let address = addresses.get(name.as_str())?;
            Some((name.as_str().to_owned(), (*address).to_owned()))
        })
        .collect();
    (wire.requested_data_source, wire.requested_backup_restore) = match &spec.job {
        None => (String::new(), String::new()),
        Some(Job::RestoreFrom { backup }) => (String::new(), backup.clone()),
        Some(Job::CloneFrom { volume, snapshot }) if snapshot.as_str().is_empty() => {
            (format!("vol://{volume}"), String::new())
        }
        Some(Job::CloneFrom { volume, snapshot }) => {
            (format!("snap://{volume}/{snapshot}"), String::new())
        }
    };
}

/// Writes a planned replica into its object. `disk_path` is where its disk is mounted, if that is known.
pub fn write_replica(
    spec: &ReplicaSpec,
    volume: &api_types::Volume,
    disk_path: Option<&str>,
    object: &mut api_types::Replica,
) {
    let labels = object.metadata.labels.get_or_insert_default();
    labels.insert(label::NODE.to_owned(), spec.node.as_str().to_owned());
    labels.insert(label::DISK_UUID.to_owned(), spec.disk.as_str().to_owned());
    let wire = &mut object.spec;
    wire.volume_name = volume.metadata.name.clone().unwrap_or_default();
    wire.volume_size = ByteSize(count_to_wire(spec.size_bytes));
    wire.node_id = spec.node.as_str().to_owned();
    wire.disk_id = spec.disk.as_str().to_owned();
    if let Some(path) = disk_path {
        path.clone_into(&mut wire.disk_path);
    }
    wire.desire_state = match spec.desired {
        ReplicaDesired::Running => InstanceState::Running,
        ReplicaDesired::Stopped => InstanceState::Stopped,
    };
    wire.epoch = count_to_wire(spec.epoch.0);
    wire.active = true;
    wire.healthy_at = time_to_wire(spec.healthy_at);
    wire.failed_at = time_to_wire(spec.failed_at);
    if spec.healthy_at.is_some() {
        wire.last_healthy_at.clone_from(&wire.healthy_at);
    }
    if spec.failed_at.is_some() {
        wire.last_failed_at.clone_from(&wire.failed_at);
    }
}

fn node(node: Option<&NodeName>) -> String {
    node.map_or_else(String::new, |node| node.as_str().to_owned())
}

fn names<'a>(names: impl IntoIterator<Item = &'a ReplicaName>) -> Vec<String> {
    names
        .into_iter()
        .map(|name| name.as_str().to_owned())
        .collect()
}
