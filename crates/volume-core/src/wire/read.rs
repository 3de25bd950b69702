//! Reading: objects become a view.

use std::collections::{BTreeMap, BTreeSet};

use api_types::condition::{self, ConditionStatus};
use api_types::names::VOLUME_HEAD;
use api_types::names::annotation::SALVAGE_FROM;
use api_types::{InstanceState, VolumeCloneState, VolumeRobustness, volume_condition};

use super::nodes::Cluster;
use super::write::{CLONE_CONDITION, FAILED_REASON};
use super::{FieldError, count, small, time};
use crate::epoch::{FenceProof, InSyncRecord, Proposal};
use crate::identity::{
    EngineName, Epoch, NodeName, ReplicaName, SnapshotName, Timestamp, Version, VolumeName,
};
use crate::plan::{
    CloneState, EngineDesired, EngineRole, EngineSpec, Job, ReplicaDesired, ReplicaRole,
    ReplicaSpec, Restarts, RestoreState, Robustness, VolumeState, VolumeStatus,
};
use crate::view::{
    AntiAffinity, DataLocality, DataSource, Engine, EngineObserved, EngineRunning, JobProgress,
    Replica, ReplicaMode, ReplicaObserved, ReplicaVersion, Volume, VolumeView,
};

/// One volume with its own engines and replicas.
pub fn view<'a>(
    volume: &api_types::Volume,
    engines: impl IntoIterator<Item = &'a api_types::Engine>,
    replicas: impl IntoIterator<Item = &'a api_types::Replica>,
    cluster: &Cluster,
) -> Result<VolumeView, FieldError> {
    let engines = engines
        .into_iter()
        .filter_map(|object| Some((EngineName::new(object.metadata.name.clone()?), object)));
    let replicas = replicas
        .into_iter()
        .filter_map(|object| Some((ReplicaName::new(object.metadata.name.clone()?), object)));
    Ok(VolumeView {
        volume: volume_spec(volume, cluster)?,
        status: volume_status(volume)?,
        engines: engines
            .map(|(name, object)| Ok((name.clone(), engine(&name, object)?)))
            .collect::<Result<_, FieldError>>()?,
        replicas: replicas
            .map(|(name, object)| (name, replica(object)))
            .collect(),
        nodes: cluster.nodes.clone(),
        settings: cluster.settings.clone(),
    })
}

fn volume_spec(object: &api_types::Volume, cluster: &Cluster) -> Result<Volume, FieldError> {
    let name = object
        .metadata
        .name
        .as_deref()
        .filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| FieldError::new("metadata.name", "the volume has no name"))?;
    let spec = &object.spec;
    let size_bytes = u64::try_from(spec.size.bytes()).unwrap_or(0);
    if size_bytes == 0 {
        let message = format!(
            "{} is not a size; give the volume's size in bytes",
            spec.size
        );
        return Err(FieldError::new("spec.size", message));
    }
    let replicas_wanted = usize::try_from(spec.number_of_replicas).unwrap_or(0);
    let annotations = object.metadata.annotations.as_ref();
    let salvage_from = annotations
        .and_then(|all| all.get(SALVAGE_FROM))
        .map(String::as_str);
    let names = salvage_from.unwrap_or_default().split(',').map(str::trim);
    Ok(Volume {
        size_bytes,
        replicas_wanted: match replicas_wanted {
            0 => cluster.replicas_default,
            wanted => wanted,
        },
        node: node_name(&spec.node_id),
        migration_node: node_name(&spec.migration_node_id),
        disable_frontend: spec.disable_frontend,
        data_locality: match &spec.data_locality {
            api_types::DataLocality::Disabled | api_types::DataLocality::Other(_) => {
                DataLocality::Disabled
            }
            api_types::DataLocality::BestEffort => DataLocality::BestEffort,
            api_types::DataLocality::StrictLocal => DataLocality::StrictLocal,
        },
        node_selector: spec.node_selector.iter().cloned().collect(),
        disk_selector: spec.disk_selector.iter().cloned().collect(),
        node_anti_affinity: anti_affinity(&spec.replica_soft_anti_affinity),
        zone_anti_affinity: anti_affinity(&spec.replica_zone_soft_anti_affinity),
        disk_anti_affinity: anti_affinity(&spec.replica_disk_soft_anti_affinity),
        source: source(spec)?,
        salvage_from: names
            .filter(|name| !name.is_empty())
            .map(ReplicaName::from)
            .collect(),
        deleting: object.metadata.deletion_timestamp.is_some(),
        ..Volume::new(name, size_bytes, replicas_wanted)
    })
}

fn anti_affinity(toggle: &api_types::Toggle) -> AntiAffinity {
    match toggle {
        api_types::Toggle::Ignored | api_types::Toggle::Other(_) => AntiAffinity::AsSettings,
        api_types::Toggle::Enabled => AntiAffinity::Soft,
        api_types::Toggle::Disabled => AntiAffinity::Hard,
    }
}

fn source(spec: &api_types::VolumeSpec) -> Result<DataSource, FieldError> {
    if !spec.from_backup.is_empty() {
        return Ok(DataSource::Restore {
            backup: spec.from_backup.clone(),
        });
    }
    if spec.data_source.is_empty() {
        return Ok(DataSource::Empty);
    }
    let (volume, snapshot) = clone_source(&spec.data_source).ok_or_else(|| {
        let text = &spec.data_source;
        FieldError::new(
            "spec.dataSource",
            format!("{text:?} is neither vol://VOLUME nor snap://VOLUME/SNAPSHOT"),
        )
    })?;
    Ok(DataSource::Clone { volume, snapshot })
}

/// `vol://VOLUME` (its live data: no snapshot) or `snap://VOLUME/SNAPSHOT`.
fn clone_source(text: &str) -> Option<(VolumeName, SnapshotName)> {
    let (volume, snapshot) = match (text.strip_prefix("vol://"), text.strip_prefix("snap://")) {
        (Some(volume), _) => (volume, ""),
        (None, Some(rest)) => rest
            .split_once('/')
            .filter(|(_, snapshot)| !snapshot.is_empty())?,
        (None, None) => return None,
    };
    (!volume.is_empty()).then(|| (volume.into(), snapshot.into()))
}

/// What the volume controller wrote last. Why no place was found for a replica is not read: no decision depends on it, and
/// its condition stays until the next look for a place.
fn volume_status(object: &api_types::Volume) -> Result<VolumeStatus, FieldError> {
    let default = api_types::VolumeStatus::default();
    let status = object.status.as_ref().unwrap_or(&default);
    Ok(VolumeStatus {
        state: state(&status.state)?,
        robustness: robustness(&status.robustness)?,
        current_node: node_name(&status.current_node_id),
        current_migration_node: node_name(&status.current_migration_node_id),
        record: InSyncRecord {
            epoch: Epoch(count(status.epoch)),
            issued: Epoch(count(status.issued_epoch.max(status.epoch))),
            version: Version(count(status.in_sync_version)),
            members: replica_names(&status.in_sync_replicas),
        },
        fence_proof: status.fence_proof.as_ref().map(|proof| FenceProof {
            epoch: Epoch(count(proof.epoch)),
            replicas: replica_names(&proof.replicas),
            node: NodeName::from(proof.former_node_id.as_str()),
            at: time(&proof.time).unwrap_or(Timestamp(0)),
        }),
        replicas_created: count(status.replicas_created),
        size_bytes: count(status.current_size.bytes()),
        expansion_required: status.expansion_required,
        restore: restore(status),
        clone: clone(status)?,
        salvage_attempts: small(status.salvage_attempts),
        restarts: Restarts {
            count: small(status.engine_restarts),
            last_at: time(&status.engine_restarted_at),
        },
        running_since: time(&status.running_since),
        last_degraded_at: time(&status.last_degraded_at),
        remount_requested_at: time(&status.remount_requested_at),
        unschedulable: None,
    })
}

fn state(state: &api_types::VolumeState) -> Result<VolumeState, FieldError> {
    use api_types::VolumeState as Wire;
    Ok(match state {
        Wire::Creating => VolumeState::Creating,
        Wire::Detached => VolumeState::Detached,
        Wire::Attaching => VolumeState::Attaching,
        Wire::Attached => VolumeState::Attached,
        Wire::Detaching => VolumeState::Detaching,
        Wire::Deleting => VolumeState::Deleting,
        Wire::Other(other) => return Err(unknown("status.state", other, Wire::KNOWN)),
    })
}

fn robustness(robustness: &VolumeRobustness) -> Result<Robustness, FieldError> {
    Ok(match robustness {
        VolumeRobustness::Healthy => Robustness::Healthy,
        VolumeRobustness::Degraded => Robustness::Degraded,
        VolumeRobustness::Faulted => Robustness::Faulted,
        VolumeRobustness::Unknown => Robustness::Unknown,
        VolumeRobustness::Other(other) => {
            return Err(unknown("status.robustness", other, VolumeRobustness::KNOWN));
        }
    })
}

fn restore(status: &api_types::VolumeStatus) -> RestoreState {
    match (status.restore_required, status.restore_initiated) {
        (false, false) => RestoreState::NotNeeded,
        (false, true) => RestoreState::Completed,
        (true, _) => match failure(&status.conditions, volume_condition::RESTORE) {
            Some(message) => RestoreState::Failed { message },
            None => RestoreState::Required,
        },
    }
}

fn clone(status: &api_types::VolumeStatus) -> Result<CloneState, FieldError> {
    Ok(match &status.clone_status.state {
        VolumeCloneState::None => CloneState::NotNeeded,
        VolumeCloneState::Initiated => CloneState::Initiated,
        VolumeCloneState::CopyCompletedAwaitingHealthy => CloneState::CopyCompletedAwaitingHealthy,
        VolumeCloneState::Completed => CloneState::Completed,
        VolumeCloneState::Failed => CloneState::Failed {
            message: failure(&status.conditions, CLONE_CONDITION).unwrap_or_default(),
        },
        VolumeCloneState::Other(other) => {
            let field = "status.cloneStatus.state";
            return Err(unknown(field, other, VolumeCloneState::KNOWN));
        }
    })
}

fn failure(conditions: &[api_types::Condition], condition_type: &str) -> Option<String> {
    condition::find(conditions, condition_type)
        .filter(|found| found.status == ConditionStatus::False && found.reason == FAILED_REASON)
        .map(|found| found.message.clone())
}

fn unknown(field: &str, value: &str, known: &[&str]) -> FieldError {
    FieldError::new(
        field,
        format!("{value:?} is not one of {}", known.join(", ")),
    )
}

fn engine(name: &EngineName, object: &api_types::Engine) -> Result<Engine, FieldError> {
    let spec = &object.spec;
    let role = match &spec.role {
        api_types::EngineRole::Writer => EngineRole::Writer,
        api_types::EngineRole::Standby => EngineRole::Standby,
        api_types::EngineRole::Former => EngineRole::Former,
        api_types::EngineRole::Other(other) => {
            let field = format!("engine {name}: spec.role");
            return Err(unknown(&field, other, api_types::EngineRole::KNOWN));
        }
    };
    // Whatever else is wanted of it, it is not to be served from.
    let desired = if spec.desire_state == InstanceState::Running {
        EngineDesired::Running {
            frontend: !spec.disable_frontend,
        }
    } else {
        EngineDesired::Stopped
    };
    let roles = spec.replica_roles.iter().map(|(name, role)| {
        let role = match role {
            api_types::ReplicaRole::InSync => ReplicaRole::InSync,
            api_types::ReplicaRole::Rebuild | api_types::ReplicaRole::Other(_) => {
                ReplicaRole::Rebuild
            }
        };
        (ReplicaName::from(name.as_str()), role)
    });
    let epoch = Epoch(count(spec.epoch));
    Ok(Engine {
        spec: EngineSpec {
            node: NodeName::from(spec.node_id.as_str()),
            epoch,
            role,
            desired,
            // The engine knows members and version only; the rest of the record is the Volume's.
            record: InSyncRecord {
                epoch,
                issued: epoch,
                version: Version(count(spec.in_sync_version)),
                members: replica_names(&spec.in_sync_replicas),
            },
            replicas: roles.collect(),
            size_bytes: count(spec.volume_size.bytes()),
            job: job(spec),
        },
        observed: engine_observed(object),
    })
}

fn job(spec: &api_types::EngineSpec) -> Option<Job> {
    if !spec.requested_backup_restore.is_empty() {
        return Some(Job::RestoreFrom {
            backup: spec.requested_backup_restore.clone(),
        });
    }
    let (volume, snapshot) = clone_source(&spec.requested_data_source)?;
    Some(Job::CloneFrom { volume, snapshot })
}

fn engine_observed(object: &api_types::Engine) -> EngineObserved {
    let Some(status) = object
        .status
        .as_ref()
        .filter(|status| !status.owner_id.is_empty())
    else {
        return EngineObserved::Pending;
    };
    match &status.current_state {
        // One that is starting may have to commit a smaller set before it can serve.
        InstanceState::Starting if status.proposed_in_sync_replicas.is_empty() => {
            // One that waits to be started, also again with the same epoch, has no process.
            if status.uuid.is_empty() {
                EngineObserved::Pending
            } else {
                EngineObserved::Starting
            }
        }
        InstanceState::Stopped => EngineObserved::Stopped,
        InstanceState::Error => EngineObserved::Failed {
            message: error_message(&status.message),
        },
        // One that is stopping still runs; one of which nothing is known may.
        InstanceState::Starting
        | InstanceState::Running
        | InstanceState::Stopping
        | InstanceState::Unknown
        | InstanceState::Other(_) => EngineObserved::Running(running(&object.spec, status)),
    }
}

fn error_message(message: &str) -> String {
    if message.is_empty() {
        "its process ended by itself".to_owned()
    } else {
        message.to_owned()
    }
}

fn running(spec: &api_types::EngineSpec, status: &api_types::EngineStatus) -> EngineRunning {
    let modes = status.replica_mode_map.iter().map(|(name, mode)| {
        let mode = match mode {
            api_types::ReplicaMode::ReadWrite => ReplicaMode::ReadWrite,
            api_types::ReplicaMode::WriteOnly => ReplicaMode::WriteOnly,
            api_types::ReplicaMode::Error | api_types::ReplicaMode::Other(_) => ReplicaMode::Error,
        };
        (ReplicaName::from(name.as_str()), mode)
    });
    let members = replica_names(&status.proposed_in_sync_replicas);
    EngineRunning {
        endpoint: (!status.endpoint.is_empty()).then(|| status.endpoint.clone()),
        modes: modes.collect(),
        size_bytes: count(status.current_size.bytes()),
        snapshots: status
            .snapshots
            .keys()
            .filter(|name| *name != VOLUME_HEAD)
            .map(|name| SnapshotName::from(name.as_str()))
            .collect(),
        proposal: (!members.is_empty()).then(|| Proposal {
            epoch: Epoch(count(status.epoch)),
            based_on: Version(count(status.proposal_based_on)),
            members,
        }),
        wants_take_over: status.wants_take_over,
        job: job_progress(spec, status),
    }
}

/// The job that was asked for, from what each replica says of its part.
fn job_progress(
    spec: &api_types::EngineSpec,
    status: &api_types::EngineStatus,
) -> Option<JobProgress> {
    let parts: Vec<(&str, &str, i64)> = match job(spec)? {
        Job::RestoreFrom { .. } => status
            .restore_status
            .values()
            .map(|part| (part.error.as_str(), part.state.as_str(), part.progress))
            .collect(),
        Job::CloneFrom { .. } => status
            .clone_status
            .values()
            .map(|part| (part.error.as_str(), part.state.as_str(), part.progress))
            .collect(),
    };
    if let Some((error, ..)) = parts.iter().find(|(error, ..)| !error.is_empty()) {
        return Some(JobProgress::Failed {
            message: (*error).to_owned(),
        });
    }
    let slowest = parts.iter().map(|(.., progress)| *progress).min()?;
    if parts.iter().all(|(_, state, _)| *state == "complete") {
        return Some(JobProgress::Completed);
    }
    Some(JobProgress::Running {
        percent: u8::try_from(slowest.clamp(0, 100)).unwrap_or(0),
    })
}

fn replica(object: &api_types::Replica) -> Replica {
    let spec = &object.spec;
    let desired = if spec.desire_state == InstanceState::Running {
        ReplicaDesired::Running
    } else {
        ReplicaDesired::Stopped
    };
    let default = api_types::ReplicaStatus::default();
    let status = object.status.as_ref().unwrap_or(&default);
    Replica {
        spec: ReplicaSpec {
            node: NodeName::from(spec.node_id.as_str()),
            disk: spec.disk_id.as_str().into(),
            size_bytes: count(spec.volume_size.bytes()),
            epoch: Epoch(count(spec.epoch)),
            desired,
            failed_at: time(&spec.failed_at),
            healthy_at: time(&spec.healthy_at),
        },
        observed: replica_observed(status),
        accepted: Epoch(count(status.accepted_epoch)),
        content: content(status),
    }
}

fn replica_observed(status: &api_types::ReplicaStatus) -> ReplicaObserved {
    if status.owner_id.is_empty() {
        return ReplicaObserved::Pending;
    }
    match &status.current_state {
        InstanceState::Starting | InstanceState::Unknown | InstanceState::Other(_) => {
            ReplicaObserved::Pending
        }
        InstanceState::Stopped => ReplicaObserved::Stopped,
        InstanceState::Running | InstanceState::Stopping => ReplicaObserved::Running,
        InstanceState::Error => ReplicaObserved::Failed {
            message: error_message(&status.message),
        },
    }
}

/// Its own metadata, once its files were opened and found whole.
fn content(status: &api_types::ReplicaStatus) -> Option<ReplicaVersion> {
    if status.verified != Some(true) {
        return None;
    }
    Some(ReplicaVersion {
        epoch: Epoch(count(status.last_write_epoch)),
        revision: count(status.revision),
        size_bytes: count(status.current_size.bytes()),
        snapshots: status
            .layers
            .iter()
            .map(|name| SnapshotName::from(name.as_str()))
            .collect(),
        digest: u64::from_str_radix(&status.digest, 16).ok()?,
    })
}

fn replica_names(names: &[String]) -> BTreeSet<ReplicaName> {
    names
        .iter()
        .map(|name| ReplicaName::from(name.as_str()))
        .collect()
}

fn node_name(text: &str) -> Option<NodeName> {
    (!text.is_empty()).then(|| NodeName::from(text))
}

/// Where each replica listens, as far as is known.
pub(super) fn addresses<'a>(
    replicas: impl IntoIterator<Item = &'a api_types::Replica>,
) -> BTreeMap<&'a str, &'a str> {
    replicas
        .into_iter()
        .filter_map(|replica| {
            let address = &replica.status.as_ref()?.address;
            let name = replica.metadata.name.as_deref()?;
            (!address.is_empty()).then_some((name, address.as_str()))
        })
        .collect()
}
