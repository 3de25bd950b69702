//! Leases: who answers for a ticket, and until when.
//!
//! A ticket without an owner is how volumes get stuck for ever (longhorn #8339, #10090, #13633). Ours say
//! in their parameters whose they are; parameters are free text in the schema, so other tools
//! carry them along unharmed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

/// `Kind.group/name` of the object that needs the ticket, such as `Backup.longhorn.io/backup-1`.
pub const OWNER: &str = "lariat.io/owner";
/// The uid of that object: a namesake created later is somebody else.
pub const OWNER_UID: &str = "lariat.io/owner-uid";
/// RFC 3339 time after which nobody needs the ticket.
pub const DEADLINE: &str = "lariat.io/deadline";
/// Any text that changes with each beat. It is compared with what was seen before, never with a clock,
/// so that two nodes need not agree on the time.
pub const HEARTBEAT: &str = "lariat.io/heartbeat";
/// How many seconds the holder promises to take between two beats.
pub const HEARTBEAT_PERIOD_SECONDS: &str = "lariat.io/heartbeat-period-seconds";

/// Parameters that say who holds a ticket rather than what it asks for.
pub const KEYS: [&str; 5] = [
    OWNER,
    OWNER_UID,
    DEADLINE,
    HEARTBEAT,
    HEARTBEAT_PERIOD_SECONDS,
];

/// A promise longer than this is no promise.
const HEARTBEAT_PERIOD_SECONDS_MAX: i64 = 24 * 60 * 60;

/// What a ticket's parameters say about its holder. Every part is optional: tickets filed by other tools have none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lease {
    pub owner: Option<Owner>,
    pub deadline: Option<Timestamp>,
    pub heartbeat: Option<Heartbeat>,
}

/// A reference to the object that needs the ticket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// `Kind.group`, or just `Kind` for the core group.
    pub kind: Arc<str>,
    pub name: Arc<str>,
    pub uid: Option<Arc<str>>,
}

/// The latest beat, and how soon the next one is due.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Heartbeat {
    pub beat: Arc<str>,
    pub period: SignedDuration,
}

/// A parameter whose value means nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("parameter {key} is {value:?}, expected {expected}")]
pub struct ParameterError {
    pub key: &'static str,
    pub value: String,
    pub expected: &'static str,
}

impl Lease {
    pub fn from_parameters(parameters: &BTreeMap<String, String>) -> Result<Self, ParameterError> {
        Ok(Self {
            owner: owner(parameters)?,
            deadline: deadline(parameters)?,
            heartbeat: heartbeat(parameters)?,
        })
    }

    /// A lease for the given object, without deadline or heartbeat.
    #[must_use]
    pub fn owned_by(kind: &str, name: &str) -> Self {
        Self {
            owner: Some(Owner {
                kind: kind.into(),
                name: name.into(),
                uid: None,
            }),
            ..Self::default()
        }
    }

    /// Nobody answers for this ticket.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn write(&self, parameters: &mut BTreeMap<String, String>) {
        let mut put = |key: &str, value: String| parameters.insert(key.to_owned(), value);
        if let Some(owner) = &self.owner {
            put(OWNER, format!("{}/{}", owner.kind, owner.name));
            if let Some(uid) = &owner.uid {
                put(OWNER_UID, uid.to_string());
            }
        }
        if let Some(deadline) = self.deadline {
            put(DEADLINE, deadline.to_string());
        }
        if let Some(heartbeat) = &self.heartbeat {
            put(HEARTBEAT, heartbeat.beat.to_string());
            put(
                HEARTBEAT_PERIOD_SECONDS,
                heartbeat.period.as_secs().to_string(),
            );
        }
    }
}

fn owner(parameters: &BTreeMap<String, String>) -> Result<Option<Owner>, ParameterError> {
    let Some(value) = parameters.get(OWNER) else {
        return Ok(None);
    };
    match value.split_once('/') {
        Some((kind, name)) if !kind.is_empty() && !name.is_empty() => Ok(Some(Owner {
            kind: kind.into(),
            name: name.into(),
            uid: parameters.get(OWNER_UID).map(|uid| uid.as_str().into()),
        })),
        _ => Err(ParameterError {
            key: OWNER,
            value: value.clone(),
            expected: "Kind.group/name",
        }),
    }
}

fn deadline(parameters: &BTreeMap<String, String>) -> Result<Option<Timestamp>, ParameterError> {
    let Some(value) = parameters.get(DEADLINE) else {
        return Ok(None);
    };
    value.parse().map(Some).map_err(|_| ParameterError {
        key: DEADLINE,
        value: value.clone(),
        expected: "an RFC 3339 time such as 2026-01-31T12:00:00Z",
    })
}

fn heartbeat(parameters: &BTreeMap<String, String>) -> Result<Option<Heartbeat>, ParameterError> {
    let Some(beat) = parameters.get(HEARTBEAT) else {
        return Ok(None);
    };
    let value = parameters
        .get(HEARTBEAT_PERIOD_SECONDS)
        .cloned()
        .unwrap_or_default();
    match value.parse::<i64>() {
        Ok(seconds) if (1..=HEARTBEAT_PERIOD_SECONDS_MAX).contains(&seconds) => {
            Ok(Some(Heartbeat {
                beat: beat.as_str().into(),
                period: SignedDuration::from_secs(seconds),
            }))
        }
        _ => Err(ParameterError {
            key: HEARTBEAT_PERIOD_SECONDS,
            value,
            expected: "a whole number of seconds from 1 to 86400",
        }),
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}
