//! The edge: API objects become a [`View`](crate::View), a [`Plan`] becomes API values. Wire types go no further.

mod facts;

use std::collections::BTreeMap;

use api_types::condition::{self, ConditionStatus};
use api_types::names::VOLUME_HEAD;
use api_types::{
    AccessMode, AttachmentTicket, AttachmentTicketStatus, EngineRole, InstanceState, ReplicaMode,
    SATISFIED_CONDITION, ShareManagerState, VolumeCloneState, VolumeRobustness, node_condition,
};
use jiff::Timestamp;

use crate::attacher::Attacher;
use crate::breaker::{self, AttachRecord};
use crate::lease::Lease;
use crate::migration::{self, MigrationRecord};
use crate::names::{Generation, NodeName, TicketId};
use crate::plan::Plan;
use crate::ticket::{Condition, Defect, Frontend, Ticket, TicketStatus};
use crate::view::{
    Engine, Node, Robustness, Sharing, Volume, VolumeSpec, VolumeState, VolumeStatus,
};

pub use facts::{SnapshotSurroundings, backup, backup_fate, snapshot, snapshot_fate, volume_facts};

/// The name of the setting that decides about manual tickets on cordoned nodes.
pub const DETACH_MANUAL_WHEN_CORDONED: &str = "detach-manually-attached-volumes-when-cordoned";

/// A field of an object that cannot be read. The object is still usable without it where that is safe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// The path of the field in the object.
    pub field: String,
    pub message: String,
}

impl FieldError {
    fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

/// A Volume, with a complaint for each field that had to be left out.
///
/// A record that cannot be read is left out: the decision is then the one that upstream would make. A state that cannot
/// be read is an error: nothing may be attached or detached on a guess.
pub fn volume(object: &api_types::Volume) -> Result<(Volume, Vec<FieldError>), FieldError> {
    let mut complaints = Vec::new();
    let name = object
        .metadata
        .name
        .as_deref()
        .filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| FieldError::new("metadata.name", "the volume has no name"))?;
    let (spec, default) = (&object.spec, api_types::VolumeStatus::default());
    let status = object.status.as_ref().unwrap_or(&default);
    let annotations = object.metadata.annotations.as_ref();
    let annotation = |key: &str| annotations.and_then(|all| all.get(key)).map(String::as_str);
    let migration = json::<MigrationRecord>(
        migration::ANNOTATION,
        annotation(migration::ANNOTATION),
        &mut complaints,
    );
    let attach = json::<AttachRecord>(
        breaker::ANNOTATION,
        annotation(breaker::ANNOTATION),
        &mut complaints,
    );
    let volume = Volume {
        name: name.into(),
        sharing: sharing(spec),
        spec: VolumeSpec {
            node: NodeName::from_wire(&spec.node_id),
            migration_node: NodeName::from_wire(&spec.migration_node_id),
            disable_frontend: spec.disable_frontend,
            last_attached_by: spec.last_attached_by.as_str().into(),
        },
        status: VolumeStatus {
            state: state(&status.state)?,
            robustness: robustness(&status.robustness)?,
            current_node: NodeName::from_wire(&status.current_node_id),
            current_migration_node: NodeName::from_wire(&status.current_migration_node_id),
            clone_copied: status.clone_status.state
                == VolumeCloneState::CopyCompletedAwaitingHealthy,
            share_available: status.share_state == ShareManagerState::Running
                && !status.share_endpoint.is_empty(),
            engine_failed_at: (status.engine_restarts > 0)
                .then(|| time(&status.engine_restarted_at))
                .flatten(),
        },
        migration,
        attach,
        resume: annotation(breaker::RESUME_ANNOTATION)
            .unwrap_or_default()
            .into(),
    };
    Ok((volume, complaints))
}

fn sharing(spec: &api_types::VolumeSpec) -> Sharing {
    match (&spec.access_mode, spec.migratable) {
        (AccessMode::ReadWriteMany, true) => Sharing::Migratable,
        (AccessMode::ReadWriteMany, false) => Sharing::Shared,
        (AccessMode::ReadWriteOnce | AccessMode::ReadWriteOncePod | AccessMode::Other(_), _) => {
            Sharing::Exclusive
        }
    }
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

fn unknown(field: &str, value: &str, known: &[&str]) -> FieldError {
    FieldError::new(
        field,
        format!("{value:?} is not one of {}", known.join(", ")),
    )
}

fn json<T: serde::de::DeserializeOwned>(
    key: &str,
    value: Option<&str>,
    complaints: &mut Vec<FieldError>,
) -> Option<T> {
    match serde_json::from_str(value?) {
        Ok(record) => Some(record),
        Err(error) => {
            complaints.push(FieldError::new(
                format!("metadata.annotations[{key}]"),
                error.to_string(),
            ));
            None
        }
    }
}

/// A ticket as filed under `key`. Never fails: what is wrong with it becomes its defect.
#[must_use]
pub fn ticket(key: &str, wire: &AttachmentTicket) -> Ticket {
    let mut ticket = Ticket {
        id: key.into(),
        attacher: Attacher::from_wire(&wire.attacher_type),
        node: wire.node_id.as_str().into(),
        frontend: Frontend::default(),
        last_attached_by: "".into(),
        generation: Generation(wire.generation),
        lease: Lease::default(),
        defect: None,
    };
    ticket.set_parameters(&wire.parameters);
    if wire.node_id.is_empty() {
        ticket.defect = Some(Defect::NoNode);
    }
    if wire.id != key {
        ticket.defect = Some(Defect::IdIsNotKey {
            id: wire.id.as_str().into(),
        });
    }
    ticket
}

/// The ticket as it is filed.
#[must_use]
pub fn ticket_to_wire(ticket: &Ticket) -> AttachmentTicket {
    AttachmentTicket {
        id: ticket.id.as_str().to_owned(),
        attacher_type: ticket.attacher.wire().to_owned(),
        node_id: ticket.node.as_str().to_owned(),
        parameters: ticket.parameters(),
        generation: ticket.generation.0,
        ..AttachmentTicket::default()
    }
}

/// All tickets of a VolumeAttachment.
#[must_use]
pub fn tickets(object: &api_types::VolumeAttachment) -> BTreeMap<TicketId, Ticket> {
    let tickets = &object.spec.attachment_tickets;
    tickets
        .iter()
        .map(|(key, wire)| (key.as_str().into(), ticket(key, wire)))
        .collect()
}

/// All statuses of a VolumeAttachment.
#[must_use]
pub fn statuses(object: &api_types::VolumeAttachment) -> BTreeMap<TicketId, TicketStatus> {
    let statuses = object
        .status
        .iter()
        .flat_map(|status| &status.attachment_ticket_statuses);
    statuses
        .map(|(key, wire)| (key.as_str().into(), status(wire)))
        .collect()
}

fn status(wire: &AttachmentTicketStatus) -> TicketStatus {
    let found = condition::find(&wire.conditions, SATISFIED_CONDITION);
    TicketStatus {
        satisfied: wire.satisfied,
        generation: Generation(wire.generation),
        condition: Condition {
            status: found.is_some_and(|condition| condition.status == ConditionStatus::True),
            reason: found
                .map(|condition| condition.reason.clone())
                .unwrap_or_default()
                .into(),
            message: found
                .map(|condition| condition.message.clone())
                .unwrap_or_default()
                .into(),
            // The time at which a condition became unknown says nothing about when it became false.
            last_transition: found
                .filter(|condition| {
                    matches!(
                        condition.status,
                        ConditionStatus::True | ConditionStatus::False
                    )
                })
                .and_then(|condition| time(&condition.last_transition_time)),
        },
    }
}

/// Writes the plan's statuses over those of the object; fields that others added to a status stay.
pub fn write_statuses(plan: &Plan, object: &mut api_types::VolumeAttachment) {
    let all = &mut object
        .status
        .get_or_insert_default()
        .attachment_ticket_statuses;
    all.retain(|key, _| plan.ticket_statuses.contains_key(key.as_str()));
    for (id, status) in &plan.ticket_statuses {
        let wire = all.entry(id.as_str().to_owned()).or_default();
        id.as_str().clone_into(&mut wire.id);
        wire.satisfied = status.satisfied;
        wire.generation = status.generation.0;
        let Condition {
            status,
            reason,
            message,
            last_transition,
        } = &status.condition;
        let at = last_transition.map(|at| at.to_string()).unwrap_or_default();
        condition::set(
            &mut wire.conditions,
            SATISFIED_CONDITION,
            (*status).into(),
            reason,
            message,
            &at,
        );
    }
}

/// Writes the plan's spec and records into the Volume.
pub fn write_volume(plan: &Plan, object: &mut api_types::Volume) {
    let spec = &plan.volume_spec;
    object.spec.node_id = NodeName::to_wire(spec.node.as_ref());
    object.spec.migration_node_id = NodeName::to_wire(spec.migration_node.as_ref());
    object.spec.disable_frontend = spec.disable_frontend;
    object.spec.last_attached_by = spec.last_attached_by.to_string();
    let records = [
        (migration::ANNOTATION, plan.migration.as_ref().map(to_json)),
        (breaker::ANNOTATION, plan.attach.as_ref().map(to_json)),
    ];
    let annotations = object.metadata.annotations.get_or_insert_default();
    for (key, value) in records {
        match value {
            Some(value) => annotations.insert(key.to_owned(), value),
            None => annotations.remove(key),
        };
    }
}

/// The annotation's value for a record.
pub fn to_json(record: &impl serde::Serialize) -> String {
    serde_json::to_string(record)
        .expect("records hold text, numbers and times, all of which JSON has")
}

/// A node: ready by its longhorn.io Node; cordoned by the Kubernetes node, which the longhorn.io Node also reports.
#[must_use]
pub fn node(object: &api_types::Node) -> Node {
    let conditions = object
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    let schedulable = condition::find(conditions, node_condition::SCHEDULABLE);
    Node {
        ready: condition::is_true(conditions, node_condition::READY),
        cordoned: schedulable.is_some_and(|condition| {
            condition.status == ConditionStatus::False
                && condition.reason == "KubernetesNodeCordoned"
        }),
    }
}

/// An engine, unless it has no node.
#[must_use]
pub fn engine(object: &api_types::Engine) -> Option<Engine> {
    let default = api_types::EngineStatus::default();
    let status = object.status.as_ref().unwrap_or(&default);
    let wanted = object.spec.desire_state == InstanceState::Running
        && object.metadata.deletion_timestamp.is_none();
    let failed = wanted && status.current_state == InstanceState::Error;
    Some(Engine {
        node: NodeName::from_wire(&object.spec.node_id)?,
        active: object.spec.active,
        running: wanted && status.current_state == InstanceState::Running,
        has_rw_replica: status
            .replica_mode_map
            .values()
            .any(|mode| *mode == ReplicaMode::ReadWrite),
        is_sole_writer: object.spec.role == EngineRole::Writer && object.spec.epoch > 0,
        snapshots: status
            .snapshots
            .contains_key(VOLUME_HEAD)
            .then(|| status.snapshots.keys().map(|name| name.as_str().into()))
            .map(Iterator::collect),
        error: failed.then(|| engine_error(status).into()),
    })
}

fn engine_error(status: &api_types::EngineStatus) -> String {
    let told = status
        .conditions
        .iter()
        .find(|condition| !condition.message.is_empty());
    told.map_or_else(
        || "its process ended by itself".to_owned(),
        |condition| condition.message.clone(),
    )
}

/// A time as Longhorn writes it; empty and broken ones are no time.
fn time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

#[cfg(test)]
mod tests;
