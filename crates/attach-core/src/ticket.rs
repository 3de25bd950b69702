//! Tickets and their statuses.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use crate::attacher::{Attacher, AttacherKind};
use crate::lease::{self, Lease, ParameterError};
use crate::names::{Generation, NodeName, TicketId};

/// `true`, `false` or `any`.
pub const DISABLE_FRONTEND: &str = "disableFrontend";
/// Who asked, for people to read.
pub const LAST_ATTACHED_BY: &str = "lastAttachedBy";

/// Ids are keys of a map that kubectl users address by name: as long as an object's name may be.
const ID_BYTES_MAX: usize = 253;

/// One party's request to have the volume on one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub id: TicketId,
    pub attacher: Attacher,
    pub node: NodeName,
    pub frontend: Frontend,
    pub last_attached_by: Arc<str>,
    pub generation: Generation,
    pub lease: Lease,
    /// What is wrong with the ticket, if something is. Such a ticket is never selected and never
    /// satisfied, but where it matches the volume stays: a typo must not pull a disk from under a pod.
    pub defect: Option<Defect>,
}

/// Why a ticket cannot be served as filed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Defect {
    #[error("its id is {id:?}, but it is filed under another key")]
    IdIsNotKey { id: TicketId },
    #[error("it names no node")]
    NoNode,
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    #[error("its {field} cannot be read: {message}")]
    Unreadable { field: String, message: String },
}

impl Defect {
    /// The field of the ticket that is at fault.
    #[must_use]
    pub fn field(&self) -> String {
        match self {
            Self::IdIsNotKey { .. } => "id".to_owned(),
            Self::NoNode => "nodeID".to_owned(),
            Self::Parameter(error) => format!("parameters.{}", error.key),
            Self::Unreadable { field, .. } => field.clone(),
        }
    }
}

/// What a ticket asks of the block device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Frontend {
    /// The holder opens the device. Also the meaning of a ticket that says nothing.
    #[default]
    Enabled,
    /// Nobody may open the device: its content is being replaced.
    Disabled,
    /// The holder talks to the engine and does not care.
    Any,
}

impl Frontend {
    pub fn from_wire(value: Option<&str>) -> Result<Self, ParameterError> {
        match value {
            None | Some("false") => Ok(Self::Enabled),
            Some("true") => Ok(Self::Disabled),
            Some("any") => Ok(Self::Any),
            Some(other) => Err(ParameterError {
                key: DISABLE_FRONTEND,
                value: other.to_owned(),
                expected: "true, false or any",
            }),
        }
    }

    #[must_use]
    pub fn wire(self) -> &'static str {
        match self {
            Self::Enabled => "false",
            Self::Disabled => "true",
            Self::Any => "any",
        }
    }

    /// Whether a volume attached with `disable_frontend` serves this wish.
    #[must_use]
    pub fn accepts(self, disable_frontend: bool) -> bool {
        match self {
            Self::Enabled => !disable_frontend,
            Self::Disabled => disable_frontend,
            Self::Any => true,
        }
    }

    /// The volume's `disableFrontend` when this wish is selected.
    #[must_use]
    pub fn disable_frontend(self) -> bool {
        self == Self::Disabled
    }
}

impl Ticket {
    /// A sound ticket of generation 0 that asks for an open device.
    #[must_use]
    pub fn new(
        attacher: impl Into<Attacher>,
        id: impl Into<TicketId>,
        node: impl Into<NodeName>,
    ) -> Self {
        Self {
            id: id.into(),
            attacher: attacher.into(),
            node: node.into(),
            frontend: Frontend::Enabled,
            last_attached_by: "".into(),
            generation: Generation::default(),
            lease: Lease::default(),
            defect: None,
        }
    }

    /// The id under which a controller files the ticket for one of its objects.
    #[must_use]
    pub fn id_for(kind: AttacherKind, object: &str) -> TicketId {
        let mut id = format!("{}-{object}", kind.wire());
        let end = (0..=ID_BYTES_MAX.min(id.len()))
            .rev()
            .find(|&at| id.is_char_boundary(at))
            .unwrap_or(0);
        id.truncate(end);
        id.into()
    }

    /// The object for which a controller filed this ticket, by the inverse of [`Ticket::id_for`].
    /// `exact` is false when the id had to be cut, so that only the name's beginning is known.
    #[must_use]
    pub fn object(&self) -> Option<ObjectName<'_>> {
        let kind = self.attacher.kind()?;
        let start = self
            .id
            .as_str()
            .strip_prefix(kind.wire())?
            .strip_prefix('-')?;
        Some(ObjectName {
            start,
            exact: self.id.as_str().len() < ID_BYTES_MAX,
        })
    }

    /// Known, sound and therefore eligible for selection.
    #[must_use]
    pub fn is_eligible(&self) -> bool {
        self.defect.is_none() && self.attacher.kind().is_some()
    }

    #[must_use]
    pub fn is(&self, kind: AttacherKind) -> bool {
        self.attacher.is(kind)
    }

    /// Whether both ask for the same. A renewed lease is the same request: otherwise every heartbeat would
    /// make a satisfied ticket unsatisfied for a moment.
    #[must_use]
    pub fn is_same_request(&self, other: &Self) -> bool {
        self.attacher == other.attacher
            && self.node == other.node
            && self.frontend == other.frontend
            && self.last_attached_by == other.last_attached_by
    }

    /// The generation that `next` gets when it is written over `previous` under this id: one more when the
    /// request changed; and when a removed ticket comes back before its status is gone, one
    /// more than that status, so that the old status cannot answer for the new request.
    #[must_use]
    pub fn generation_after(
        next: &Self,
        previous: Option<&Self>,
        status: Option<&TicketStatus>,
    ) -> Generation {
        match (previous, status) {
            (Some(previous), _) if previous.is_same_request(next) => previous.generation,
            (Some(previous), _) => previous.generation.next(),
            (None, Some(status)) => status.generation.next(),
            (None, None) => next.generation,
        }
    }

    /// The ticket's parameters in the API.
    #[must_use]
    pub fn parameters(&self) -> BTreeMap<String, String> {
        let mut parameters = BTreeMap::from([
            (DISABLE_FRONTEND.to_owned(), self.frontend.wire().to_owned()),
            (
                LAST_ATTACHED_BY.to_owned(),
                self.last_attached_by.to_string(),
            ),
        ]);
        self.lease.write(&mut parameters);
        parameters
    }

    /// Reads the parameters into the ticket; what cannot be read becomes its defect.
    pub fn set_parameters(&mut self, parameters: &BTreeMap<String, String>) {
        self.last_attached_by = parameters
            .get(LAST_ATTACHED_BY)
            .map_or("", String::as_str)
            .into();
        match Frontend::from_wire(parameters.get(DISABLE_FRONTEND).map(String::as_str)) {
            Ok(frontend) => self.frontend = frontend,
            Err(error) => {
                // Any: see `Ticket::defect` for why it must still match where it stands.
                self.frontend = Frontend::Any;
                self.defect = Some(error.into());
            }
        }
        match Lease::from_parameters(parameters) {
            Ok(lease) => self.lease = lease,
            Err(error) => self.defect = Some(error.into()),
        }
    }

    /// Which parameters say what is asked for, as opposed to who asks.
    #[must_use]
    pub fn is_request_parameter(key: &str) -> bool {
        !lease::KEYS.contains(&key)
    }
}

/// The name of an object, or as much of it as its ticket's id could hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectName<'a> {
    pub start: &'a str,
    pub exact: bool,
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ticket {:?}", self.attacher, self.id.as_str())
    }
}

/// The controller's answer to one generation of a ticket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TicketStatus {
    pub satisfied: bool,
    pub generation: Generation,
    pub condition: Condition,
}

/// The `Satisfied` condition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Condition {
    pub status: bool,
    pub reason: Cow<'static, str>,
    pub message: Cow<'static, str>,
    /// When `status` last changed. Missing in statuses that others wrote without it.
    pub last_transition: Option<Timestamp>,
}

impl TicketStatus {
    /// The one question that holders ask. A status of another generation answers another request.
    #[must_use]
    pub fn satisfies(&self, ticket: &Ticket) -> bool {
        self.satisfied && self.condition.status && self.generation == ticket.generation
    }
}
