//! The machine-readable form. Field names are those of the API; scripts depend on them.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::names::{NodeName, TicketId};
use crate::plan::Judgement;
use crate::reasons::Reason;

use super::Explained;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    pub volumes: Vec<VolumeReport>,
}

/// What a volume's spec should become, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeReport {
    pub name: String,
    #[serde(rename = "nodeID")]
    pub node_id: String,
    #[serde(rename = "migrationNodeID")]
    pub migration_node_id: String,
    pub disable_frontend: bool,
    pub action: &'static str,
    pub reasons: Vec<ReasonReport>,
    pub tickets: BTreeMap<String, TicketReport>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReasonReport {
    pub code: &'static str,
    pub message: String,
}

/// A ticket's status after the decision, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TicketReport {
    #[serde(rename = "type")]
    pub attacher_type: String,
    #[serde(rename = "nodeID")]
    pub node_id: String,
    /// None for types that are not known.
    pub priority: Option<u32>,
    pub in_spec: bool,
    pub satisfied: bool,
    pub generation: i64,
    pub reason: String,
    pub message: String,
    pub verdict: &'static str,
}

impl VolumeReport {
    pub(super) fn new(explained: &Explained) -> Self {
        let Explained { view, plan } = explained;
        let spec = &plan.volume_spec;
        let tickets = plan.verdicts.iter().map(|(id, judgement)| {
            (
                id.as_str().to_owned(),
                TicketReport::new(explained, id, judgement),
            )
        });
        Self {
            name: view.volume.name.as_str().to_owned(),
            node_id: NodeName::to_wire(spec.node.as_ref()),
            migration_node_id: NodeName::to_wire(spec.migration_node.as_ref()),
            disable_frontend: spec.disable_frontend,
            action: plan.action.wire(),
            reasons: plan.reasons.iter().map(ReasonReport::new).collect(),
            tickets: tickets.collect(),
        }
    }
}

impl ReasonReport {
    fn new(reason: &Reason) -> Self {
        Self {
            code: reason.code(),
            message: reason.to_string(),
        }
    }
}

impl TicketReport {
    fn new(explained: &Explained, id: &TicketId, judgement: &Judgement) -> Self {
        let Explained { view, plan } = explained;
        let ticket = view.tickets.get(id);
        let status = plan.ticket_statuses.get(id);
        // Without a status of its own the ticket is on its way out; the reason says why.
        let reason = judgement.reason.as_ref();
        let generation = status
            .or_else(|| view.statuses.get(id))
            .map(|status| status.generation);
        Self {
            attacher_type: ticket
                .map(|ticket| ticket.attacher.wire().to_owned())
                .unwrap_or_default(),
            node_id: ticket
                .map(|ticket| ticket.node.as_str().to_owned())
                .unwrap_or_default(),
            priority: ticket
                .and_then(|ticket| ticket.attacher.priority())
                .map(|priority| priority.0),
            in_spec: ticket.is_some(),
            satisfied: status.is_some_and(|status| status.satisfied),
            generation: generation.unwrap_or_default().0,
            reason: status.map_or_else(
                || reason.map(Reason::code).unwrap_or_default().to_owned(),
                |status| status.condition.reason.to_string(),
            ),
            message: status.map_or_else(
                || reason.map(ToString::to_string).unwrap_or_default(),
                |status| status.condition.message.to_string(),
            ),
            verdict: judgement.verdict.wire(),
        }
    }
}
