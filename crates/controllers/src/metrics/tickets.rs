//! How long tickets have waited, and for what.

use std::collections::BTreeMap;

use api_types::{SATISFIED_CONDITION, VolumeAttachment, condition};
use attach_core::Attacher;
use jiff::Timestamp;
use kube::ResourceExt as _;

/// The label of types and reasons that are not ours.
const OTHER: &str = "Other";
/// A ticket that no controller has looked at yet.
const UNDECIDED: &str = "NotDecidedYet";
/// Our own reasons and types make fewer pairs than this in any cluster; what others write is folded together beyond it.
const SERIES_MAX: usize = 100;

/// One ticket in one form.
type TicketKey = (String, String, i64);

/// When tickets that wait were first seen: a ticket that nobody has answered says nothing of its age.
#[derive(Debug, Default)]
pub(super) struct FirstSeen(BTreeMap<TicketKey, Timestamp>);

/// The waits of one type and reason.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Waits {
    pub count: u64,
    pub sum_seconds: f64,
    pub oldest_seconds: f64,
}

/// By the ticket's type and the reason's code.
pub(super) type ByReason = BTreeMap<(String, String), Waits>;

/// All tickets that are not satisfied. Remembers those that it sees, and forgets the others.
pub(super) fn unsatisfied<'a>(
    attachments: impl IntoIterator<Item = &'a VolumeAttachment>,
    seen: &mut FirstSeen,
    now: Timestamp,
) -> ByReason {
    let mut by_reason = ByReason::new();
    let mut still = BTreeMap::new();
    for attachment in attachments {
        let statuses = attachment.status.as_ref();
        for (id, ticket) in &attachment.spec.attachment_tickets {
            if statuses.is_some_and(|statuses| statuses.satisfies(ticket)) {
                continue;
            }
            let status = statuses
                .and_then(|statuses| statuses.attachment_ticket_statuses.get(id))
                .filter(|status| status.generation == ticket.generation);
            let answer = status
                .and_then(|status| condition::find(&status.conditions, SATISFIED_CONDITION))
                .filter(|condition| !condition.reason.is_empty());
            let key = (attachment.name_any(), id.clone(), ticket.generation);
            let first = seen.0.get(&key).copied().unwrap_or(now);
            still.insert(key, first);
            let answered = answer.and_then(|answer| answer.last_transition_time.parse().ok());
            let since = answered.map_or(first, |answered: Timestamp| answered.min(first));
            let reason = answer.map_or(UNDECIDED, |answer| &answer.reason);
            let pair = (type_label(&ticket.attacher_type), reason.to_owned());
            let pair = if by_reason.len() < SERIES_MAX || by_reason.contains_key(&pair) {
                pair
            } else {
                (OTHER.to_owned(), OTHER.to_owned())
            };
            by_reason
                .entry(pair)
                .or_default()
                .add(now.duration_since(since).as_secs_f64().max(0.0));
        }
    }
    seen.0 = still;
    by_reason
}

/// A type that we do not know may be anything.
fn type_label(text: &str) -> String {
    match Attacher::from_wire(text) {
        Attacher::Known(kind) => kind.wire().to_owned(),
        Attacher::Foreign(_) => OTHER.to_owned(),
    }
}

impl Waits {
    fn add(&mut self, seconds: f64) {
        self.count += 1;
        self.sum_seconds += seconds;
        self.oldest_seconds = self.oldest_seconds.max(seconds);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
    }

    /// Id, type, and if it was answered, the reason and when; no reason is a satisfied one.
    type Ticket<'a> = (&'a str, &'a str, Option<(&'a str, i64)>);

    fn attachment(name: &str, tickets: &[Ticket<'_>]) -> VolumeAttachment {
        let mut spec = serde_json::Map::new();
        let mut statuses = serde_json::Map::new();
        for (id, kind, answer) in tickets {
            let ticket = json!({"id": id, "type": kind, "nodeID": "n1", "generation": 1});
            spec.insert((*id).to_owned(), ticket);
            if let Some((reason, since)) = answer {
                let satisfied = reason.is_empty();
                let condition = json!({"type": "Satisfied", "status": if satisfied { "True" } else { "False" },
                    "reason": reason, "lastTransitionTime": at(*since).to_string()});
                let status = json!({"id": id, "generation": 1, "satisfied": satisfied, "conditions": [condition]});
                statuses.insert((*id).to_owned(), status);
            }
        }
        let object: Value = json!({
            "apiVersion": "longhorn.io/v1beta2", "kind": "VolumeAttachment",
            "metadata": {"name": name},
            "spec": {"volume": name, "attachmentTickets": spec},
            "status": {"attachmentTicketStatuses": statuses},
        });
        serde_json::from_value(object).expect("an attachment")
    }

    fn waits(found: &ByReason) -> Vec<String> {
        let line = |((kind, reason), waits): (&(String, String), &Waits)| {
            format!(
                "{kind} {reason}: {} for {} s, the oldest {} s",
                waits.count, waits.sum_seconds, waits.oldest_seconds
            )
        };
        found.iter().map(line).collect()
    }

    #[test]
    fn waits_are_summed_by_type_and_reason() {
        let objects = [
            attachment("a", &[("t1", "csi-attacher", Some(("Attaching", 0)))]),
            attachment(
                "b",
                &[
                    ("t2", "csi-attacher", Some(("Attaching", 60))),
                    ("t3", "longhorn-api", Some(("AttachedToOtherNode", 90))),
                    ("t4", "csi-attacher", Some(("", 10))),
                    ("t5", "made-up", Some(("UnknownAttacherType", 95))),
                ],
            ),
        ];
        let found = unsatisfied(&objects, &mut FirstSeen::default(), at(100));
        assert_eq!(
            waits(&found),
            [
                "Other UnknownAttacherType: 1 for 5 s, the oldest 5 s",
                "csi-attacher Attaching: 2 for 140 s, the oldest 100 s",
                "longhorn-api AttachedToOtherNode: 1 for 10 s, the oldest 10 s",
            ]
        );
    }

    #[test]
    fn a_ticket_that_nobody_answers_is_as_old_as_our_knowledge_of_it() {
        let silent = [attachment("a", &[("t1", "csi-attacher", None)])];
        let mut seen = FirstSeen::default();
        let first = unsatisfied(&silent, &mut seen, at(0));
        assert_eq!(
            waits(&first),
            ["csi-attacher NotDecidedYet: 1 for 0 s, the oldest 0 s"]
        );
        let later = unsatisfied(&silent, &mut seen, at(30));
        assert_eq!(
            waits(&later),
            ["csi-attacher NotDecidedYet: 1 for 30 s, the oldest 30 s"]
        );
        unsatisfied(&[], &mut seen, at(31));
        assert!(seen.0.is_empty(), "what is gone is forgotten");
    }

    #[test]
    fn reasons_of_others_cannot_make_series_without_end() {
        let objects: Vec<VolumeAttachment> = (0..SERIES_MAX + 50)
            .map(|number| {
                let reason = format!("Reason{number}");
                let name = format!("v{number}");
                attachment(&name, &[("t", "csi-attacher", Some((reason.as_str(), 0)))])
            })
            .collect();
        let found = unsatisfied(&objects, &mut FirstSeen::default(), at(1));
        assert_eq!(found.len(), SERIES_MAX + 1);
        let folded = (OTHER.to_owned(), OTHER.to_owned());
        assert_eq!(found[&folded].count, 50);
    }
}
