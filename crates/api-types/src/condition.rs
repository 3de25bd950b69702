//! Conditions in Longhorn's form: all fields are strings, and a probe time that was never taken is empty.

use crate::wire::{object, string_enum};

string_enum! {
    /// Whether a condition holds.
    pub open enum ConditionStatus {
        /// It holds.
        True = "True",
        /// It does not hold.
        False = "False",
        /// Nobody knows yet.
        #[default]
        Unknown = "Unknown",
    }
}

object! {
    /// One observation about an object.
    pub struct Condition {
        /// What is observed, such as `Satisfied` or `Ready`. At most one condition of a type is in a list.
        #[serde(rename = "type")]
        pub condition_type: String,
        /// Whether it holds.
        pub status: ConditionStatus,
        /// When it was last looked at, in RFC 3339; empty when probes are not recorded.
        pub last_probe_time: String,
        /// When `status` last changed, in RFC 3339.
        pub last_transition_time: String,
        /// One CamelCase word for programs.
        pub reason: String,
        /// A sentence for people.
        pub message: String,
    }
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// The condition of a type, if it was ever observed.
pub fn find<'a>(conditions: &'a [Condition], condition_type: &str) -> Option<&'a Condition> {
    conditions
        .iter()
        .find(|condition| condition.condition_type == condition_type)
}

/// Whether a condition was observed and holds.
pub fn is_true(conditions: &[Condition], condition_type: &str) -> bool {
    find(conditions, condition_type)
        .is_some_and(|condition| condition.status == ConditionStatus::True)
}

/// Records an observation and says whether anything changed.
///
/// `last_transition_time` becomes `now` only when the status changes, and nothing else is stamped: a
/// controller that observes the same thing again writes the same bytes, and so causes no further event.
pub fn set(
    conditions: &mut Vec<Condition>,
    condition_type: &str,
    status: ConditionStatus,
    reason: &str,
    message: &str,
    now: &str,
) -> bool {
    let existing = conditions
        .iter_mut()
        .find(|condition| condition.condition_type == condition_type);
    let Some(condition) = existing else {
        conditions.push(Condition {
            condition_type: condition_type.to_owned(),
            status,
            last_transition_time: now.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            ..Condition::default()
        });
        return true;
    };
    let status_changed = condition.status != status;
    if !status_changed && condition.reason == reason && condition.message == message {
        return false;
    }
    if status_changed {
        condition.status = status;
        now.clone_into(&mut condition.last_transition_time);
    }
    reason.clone_into(&mut condition.reason);
    message.clone_into(&mut condition.message);
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn transition_time_moves_only_with_the_status() {
        let mut conditions = Vec::new();
        let mut step = |status: bool, reason: &str, now: &str| {
            let changed = set(&mut conditions, "Satisfied", status.into(), reason, "", now);
            (
                changed,
                conditions[0].last_transition_time.clone(),
                conditions.len(),
            )
        };
        assert_eq!(step(false, "Waiting", "t1"), (true, "t1".to_owned(), 1));
        assert_eq!(step(false, "Waiting", "t2"), (false, "t1".to_owned(), 1));
        assert_eq!(step(false, "Blocked", "t3"), (true, "t1".to_owned(), 1));
        assert_eq!(step(true, "", "t4"), (true, "t4".to_owned(), 1));
        assert!(is_true(&conditions, "Satisfied"));
        assert!(!is_true(&conditions, "Ready"));
    }

    #[test]
    fn an_update_keeps_the_fields_of_other_tools() {
        let stored = json!([{ "type": "Ready", "status": "True", "observedGeneration": 7, "lastProbeTime": "p" }]);
        let mut conditions: Vec<Condition> = serde_json::from_value(stored).unwrap();
        set(
            &mut conditions,
            "Ready",
            ConditionStatus::False,
            "Gone",
            "node is gone",
            "t1",
        );
        let expected = json!([{
            "type": "Ready", "status": "False", "observedGeneration": 7, "lastProbeTime": "p",
            "lastTransitionTime": "t1", "reason": "Gone", "message": "node is gone",
        }]);
        assert_eq!(serde_json::to_value(conditions).unwrap(), expected);
    }
}
