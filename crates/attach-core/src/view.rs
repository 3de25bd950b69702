//! What the decision sees: one volume, its tickets, and as much of the world as matters to them.
//!
//! A [`View`] is plain data, built from API objects in [`crate::wire`] and from nothing else in production; tests and the
//! model build it by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::breaker::{AttachRecord, BreakerPolicy};
use crate::migration::MigrationRecord;
use crate::names::{NodeName, TicketId, VolumeName};
use crate::ticket::{Ticket, TicketStatus};

/// Everything that one decision may depend on, the time included.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    pub now: Timestamp,
    pub volume: Volume,
    pub tickets: BTreeMap<TicketId, Ticket>,
    /// The statuses as last written.
    pub statuses: BTreeMap<TicketId, TicketStatus>,
    pub nodes: Nodes,
    pub engines: Engines,
    pub settings: Settings,
}

/// The volume and the records that we keep on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Volume {
    pub name: VolumeName,
    pub sharing: Sharing,
    pub spec: VolumeSpec,
    pub status: VolumeStatus,
    pub migration: Option<MigrationRecord>,
    pub attach: Option<AttachRecord>,
    /// The value of the annotation with which a person resumes a held volume. Any new value resumes.
    pub resume: Arc<str>,
}

/// How many nodes may use the volume, from access mode and `migratable`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// One node.
    #[default]
    Exclusive,
    /// Many nodes, through the share manager: rwx and not migratable.
    Shared,
    /// One node, and a second one while a virtual machine moves: rwx and migratable.
    Migratable,
}

/// The part of the Volume's spec that the ticket decision writes; nobody else does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct VolumeSpec {
    pub node: Option<NodeName>,
    pub migration_node: Option<NodeName>,
    pub disable_frontend: bool,
    pub last_attached_by: Arc<str>,
}

/// Where the volume really is, as far as is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct VolumeStatus {
    pub state: VolumeState,
    pub robustness: Robustness,
    pub current_node: Option<NodeName>,
    pub current_migration_node: Option<NodeName>,
    /// The clone into this volume has copied its data and waits to become healthy.
    pub clone_copied: bool,
    /// `shareState` is `running` and `shareEndpoint` is set.
    pub share_available: bool,
    /// When the last of its engines failed, unless the volume was detached since.
    pub engine_failed_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VolumeState {
    /// Also a volume whose status nobody has written yet.
    #[default]
    Creating,
    Detached,
    Attaching,
    Attached,
    Detaching,
    Deleting,
}

impl VolumeState {
    #[must_use]
    pub fn wire(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Detached => "detached",
            Self::Attaching => "attaching",
            Self::Attached => "attached",
            Self::Detaching => "detaching",
            Self::Deleting => "deleting",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Robustness {
    #[default]
    Unknown,
    Healthy,
    Degraded,
    Faulted,
}

/// The cluster's nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Nodes {
    /// Whether a node that is not listed does not exist. False only for dumps that hold no nodes at all.
    pub complete: bool,
    pub listed: BTreeMap<NodeName, Node>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub ready: bool,
    pub cordoned: bool,
}

/// What can be said about one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeCondition {
    Ready,
    NotReady,
    Gone,
    /// We were not shown any nodes.
    Unknown,
}

impl Nodes {
    #[must_use]
    pub fn condition(&self, name: &NodeName) -> NodeCondition {
        match self.listed.get(name) {
            Some(node) if node.ready => NodeCondition::Ready,
            Some(_) => NodeCondition::NotReady,
            None if self.complete => NodeCondition::Gone,
            None => NodeCondition::Unknown,
        }
    }

    #[must_use]
    pub fn is_cordoned(&self, name: &NodeName) -> bool {
        self.listed.get(name).is_some_and(|node| node.cordoned)
    }
}

impl NodeCondition {
    /// Certainly unable to run an engine. What we were not shown is not held against anyone.
    #[must_use]
    pub fn is_down(self) -> bool {
        matches!(self, Self::NotReady | Self::Gone)
    }
}

/// The volume's engines: one, or two during a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Engines {
    /// Whether an engine that is not listed does not exist. False only for dumps that hold none.
    pub complete: bool,
    pub listed: Vec<Engine>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Engine {
    pub node: NodeName,
    pub active: bool,
    /// Desired and observed to run, and not being deleted.
    pub running: bool,
    /// At least one replica serves reads and writes.
    pub has_rw_replica: bool,
    /// The replicas are told to take writes from it and from no other: a migration's target after the hand-over. False where engines have
    /// replicas of their own, as Longhorn's do.
    pub is_sole_writer: bool,
    /// None while nobody has listed them, and of a standby, whose replicas are the writer's: they have what his have.
    pub snapshots: Option<BTreeSet<Arc<str>>>,
    /// Why the engine does not run, when it failed.
    pub error: Option<Arc<str>>,
}

impl Engines {
    /// The volume can be used on this node: its engine runs with a replica behind it.
    #[must_use]
    pub fn is_available_on(&self, node: &NodeName) -> bool {
        self.listed
            .iter()
            .any(|engine| engine.node == *node && engine.running && engine.has_rw_replica)
    }

    #[must_use]
    pub fn on(&self, node: &NodeName) -> Option<&Engine> {
        self.listed.iter().find(|engine| engine.node == *node)
    }
}

/// Settings and limits of the decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// `detach-manually-attached-volumes-when-cordoned`.
    pub detach_manual_when_cordoned: bool,
    /// How long a migration may take to bring its target up.
    pub migration_deadline: SignedDuration,
    /// How soon to look again at what no watch will announce: a node that comes back, snapshots that sync.
    pub recheck: SignedDuration,
    /// None: never give up.
    pub breaker: Option<BreakerPolicy>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            detach_manual_when_cordoned: false,
            // Bringing up a second engine takes seconds; ten minutes outlast an image pull on a slow link.
            migration_deadline: SignedDuration::from_mins(10),
            recheck: SignedDuration::from_secs(10),
            breaker: Some(BreakerPolicy::default()),
        }
    }
}

impl Volume {
    /// A detached volume that nobody has touched.
    #[must_use]
    pub fn detached(name: &str) -> Self {
        Self {
            name: name.into(),
            sharing: Sharing::default(),
            spec: VolumeSpec::default(),
            status: VolumeStatus {
                state: VolumeState::Detached,
                ..VolumeStatus::default()
            },
            migration: None,
            attach: None,
            resume: "".into(),
        }
    }

    #[must_use]
    pub fn is_faulted(&self) -> bool {
        self.status.robustness == Robustness::Faulted
    }
}

impl VolumeStatus {
    #[must_use]
    pub fn is_attached_on(&self, node: &NodeName) -> bool {
        self.state == VolumeState::Attached && self.current_node.as_ref() == Some(node)
    }

    /// No engine of this volume is left anywhere. Everything that moves a volume waits for this.
    #[must_use]
    pub fn is_detached(&self) -> bool {
        self.state == VolumeState::Detached
            && self.current_node.is_none()
            && self.current_migration_node.is_none()
    }
}
