//! What a decision is about, as facts with names: two sets of them make a list of changes. Pure.

use std::collections::BTreeMap;

use attach_core::reaper::Removal;
use attach_core::view::{View, VolumeSpec};
use attach_core::{NodeName, Plan, TicketId, TicketStatus};
use jiff::Timestamp;
use volume_core::{VolumePlan, VolumeStatus, VolumeView};

use super::{Change, Entry};

/// Values by their names. Objects have a name of two words, such as `engine v1-e-3`; fields one of one.
pub type Facts = BTreeMap<String, String>;

/// One decision: what it found, what it wants, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub who: &'static str,
    pub before: Facts,
    pub after: Facts,
    pub reasons: Vec<String>,
}

impl Decision {
    /// What it changes of what was last recorded. A decision whose writes were refused half-way is made again, and then
    /// finds its first half done: only the record knows that nobody was told of it.
    #[must_use]
    pub fn entry(&self, recorded: Option<&Facts>, at: Timestamp) -> Option<Entry> {
        let changes = changes(recorded.unwrap_or(&self.before), &self.after);
        Entry::new(at, self.who, changes, self.reasons.iter().cloned())
    }
}

fn changes(before: &Facts, after: &Facts) -> Vec<Change> {
    let mut changes = Vec::new();
    for (what, to) in after {
        let from = before.get(what);
        if from == Some(to) {
            continue;
        }
        let change = match from {
            None if what.starts_with("ticket ") => Change::new(what, "filed", to),
            None if what.contains(' ') => Change::new(what, "", format!("created {to}")),
            from => Change::new(what, from.map_or("", String::as_str), to),
        };
        changes.push(change);
    }
    for (what, from) in before {
        if after.contains_key(what) {
            continue;
        }
        let to = match what {
            ticket if ticket.starts_with("ticket ") => "withdrawn",
            _ => "removed",
        };
        changes.push(Change::new(what, from, to));
    }
    changes
}

/// What the attachment controller decides about.
#[must_use]
pub fn of_attachment(view: &View, plan: &Plan) -> Decision {
    let facts = |spec: &VolumeSpec, statuses: &BTreeMap<TicketId, TicketStatus>| {
        let node = |node: &Option<NodeName>| NodeName::to_wire(node.as_ref());
        let mut facts = Facts::from([
            ("spec.nodeID".to_owned(), node(&spec.node)),
            (
                "spec.migrationNodeID".to_owned(),
                node(&spec.migration_node),
            ),
            (
                "spec.disableFrontend".to_owned(),
                spec.disable_frontend.to_string(),
            ),
        ]);
        for (id, status) in statuses {
            let word = if status.satisfied {
                "satisfied".to_owned()
            } else {
                format!("waiting: {}", status.condition.reason)
            };
            facts.insert(named(view, id), word);
        }
        facts
    };
    let of_tickets = plan
        .verdicts
        .values()
        .filter_map(|judgement| judgement.reason.as_ref());
    let mut reasons: Vec<String> = Vec::new();
    for reason in plan.reasons.iter().chain(of_tickets) {
        let sentence = reason.to_string();
        if !reasons.contains(&sentence) {
            reasons.push(sentence);
        }
    }
    Decision {
        who: "attachment-controller",
        before: facts(&view.volume.spec, &view.statuses),
        after: facts(&plan.volume_spec, &plan.ticket_statuses),
        reasons,
    }
}

/// A ticket, with what it asks for while that is known.
fn named(view: &View, id: &TicketId) -> String {
    view.tickets.get(id).map_or_else(
        || format!("ticket {id}"),
        |ticket| format!("ticket {id} ({} for {})", ticket.attacher, ticket.node),
    )
}

/// What the volume controller decides about.
#[must_use]
pub fn of_volume(view: &VolumeView, plan: &VolumePlan) -> Decision {
    let mut before = status_facts(&view.status);
    let mut after = status_facts(&plan.status);
    let engine = |name: &dyn ToString, node: &dyn ToString| {
        (
            format!("engine {}", name.to_string()),
            format!("on {}", node.to_string()),
        )
    };
    let replica = |name: &dyn ToString, node: &dyn ToString| {
        (
            format!("replica {}", name.to_string()),
            format!("on {}", node.to_string()),
        )
    };
    before.extend(
        view.engines
            .iter()
            .map(|(name, found)| engine(name, &found.spec.node)),
    );
    after.extend(
        plan.engines
            .iter()
            .map(|(name, spec)| engine(name, &spec.node)),
    );
    before.extend(
        view.replicas
            .iter()
            .map(|(name, found)| replica(name, &found.spec.node)),
    );
    after.extend(
        plan.replicas
            .iter()
            .map(|(name, spec)| replica(name, &spec.node)),
    );
    Decision {
        who: "volume-controller",
        before,
        after,
        reasons: plan.reasons.iter().map(ToString::to_string).collect(),
    }
}

fn status_facts(status: &VolumeStatus) -> Facts {
    let node = |node: &Option<volume_core::NodeName>| {
        node.as_ref().map(ToString::to_string).unwrap_or_default()
    };
    let members: Vec<String> = status
        .record
        .members
        .iter()
        .map(ToString::to_string)
        .collect();
    Facts::from([
        ("state".to_owned(), status.state.to_string()),
        ("robustness".to_owned(), status.robustness.to_string()),
        ("currentNodeID".to_owned(), node(&status.current_node)),
        (
            "currentMigrationNodeID".to_owned(),
            node(&status.current_migration_node),
        ),
        ("epoch".to_owned(), status.record.epoch.to_string()),
        ("inSyncReplicas".to_owned(), members.join(", ")),
    ])
}

/// A ticket that the reaper took out.
#[must_use]
pub fn of_removal(removal: &Removal, at: Timestamp) -> Option<Entry> {
    let change = Change::new(format!("ticket {}", removal.ticket), "filed", "removed");
    Entry::new(at, "reaper", vec![change], [removal.cause.to_string()])
}

/// What became of a snapshot that somebody asked for.
#[must_use]
pub fn of_snapshot(
    name: &str,
    from: &str,
    to: &str,
    why: Option<&str>,
    at: Timestamp,
) -> Option<Entry> {
    let change = Change::new(format!("snapshot {name}"), from, to);
    Entry::new(at, "snapshots", vec![change], why.map(str::to_owned))
}
