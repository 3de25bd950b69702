//! The model's world: one volume, three nodes, three tickets; a ticket controller that decides from what it has seen; a
//! volume controller and node agents that follow; and everything that can go wrong between them.
//!
//! Truth and what the controller has seen are kept apart, and what it has seen catches up in three independent parts, as
//! three watches do: an observation can be late, and a restarted controller can know less than its predecessor did.

use std::collections::BTreeMap;

use attach_core::migration::{MigrationRecord, Phase};
use attach_core::ticket::Condition;
use attach_core::view::{
    Engine, Engines, Node, Nodes, Settings, Sharing, View, Volume, VolumeSpec, VolumeState,
};
use attach_core::{
    AttacherKind, Frontend, Generation, NodeName, Plan, Ticket, TicketId, TicketStatus,
};
use jiff::Timestamp;

pub const NODES: usize = 3;
pub const TICKETS: usize = 3;

pub type NodeAt = usize;

/// A ticket in one of the three places that tickets can be filed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Filed {
    pub kind: AttacherKind,
    pub node: NodeAt,
    pub generation: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    pub satisfied: bool,
    pub generation: i64,
    pub reason: &'static str,
}

/// The VolumeAttachment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attachment {
    pub tickets: [Option<Filed>; TICKETS],
    pub answers: [Option<Answer>; TICKETS],
}

/// The Volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vol {
    pub node: Option<NodeAt>,
    pub migration: Option<NodeAt>,
    pub record: Option<(NodeAt, NodeAt, Phase)>,
    pub state: VolumeState,
    pub current: Option<NodeAt>,
    pub current_migration: Option<NodeAt>,
}

/// Nodes and engines.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machines {
    pub up: [bool; NODES],
    pub engine: [bool; NODES],
}

/// One state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub vol: Vol,
    pub attachment: Attachment,
    pub machines: Machines,
    pub seen_vol: Vol,
    pub seen_attachment: Attachment,
    pub seen_machines: Machines,
    /// Statuses are written, the volume is not yet: what it is to become, and what it was decided from.
    pub pending: Option<(Vol, Vol)>,
    /// How often tickets may still come, change or go, and nodes crash.
    pub changes_left: u8,
    pub crashes_left: u8,
    /// The volume was sent from one node to another without having been let go.
    pub jumped: bool,
}

impl World {
    pub fn new(changes_left: u8, crashes_left: u8) -> Self {
        let vol = Vol {
            node: None,
            migration: None,
            record: None,
            state: VolumeState::Detached,
            current: None,
            current_migration: None,
        };
        let machines = Machines {
            up: [true; NODES],
            engine: [false; NODES],
        };
        Self {
            seen_vol: vol,
            seen_attachment: Attachment::default(),
            seen_machines: machines.clone(),
            vol,
            attachment: Attachment::default(),
            machines,
            pending: None,
            changes_left,
            crashes_left,
            jumped: false,
        }
    }

    /// The nodes that something has happened to, and one more. The others are still as good as that one, so nothing is
    /// lost by leaving them out.
    pub fn nodes_in_play(&self) -> usize {
        let filed = [&self.attachment, &self.seen_attachment]
            .into_iter()
            .flat_map(|attachment| attachment.tickets);
        let vols = [&self.vol, &self.seen_vol].into_iter().flat_map(|vol| {
            let record = vol
                .record
                .into_iter()
                .flat_map(|(source, target, _)| [source, target]);
            record.chain(
                [vol.node, vol.migration, vol.current, vol.current_migration]
                    .into_iter()
                    .flatten(),
            )
        });
        let machines = (0..NODES).filter(|&at| {
            [&self.machines, &self.seen_machines]
                .iter()
                .any(|machines| !machines.up[at] || machines.engine[at])
        });
        let pending = self
            .pending
            .iter()
            .flat_map(|(_, vol)| vol.node.into_iter().chain(vol.migration));
        let touched = filed
            .flatten()
            .map(|filed| filed.node)
            .chain(vols)
            .chain(machines)
            .chain(pending);
        touched.max().map_or(1, |last| (last + 2).min(NODES))
    }

    /// The view that the ticket controller decides from.
    pub fn seen(&self, sharing: Sharing) -> View {
        let mut volume = Volume::detached("vol");
        let vol = &self.seen_vol;
        volume.sharing = sharing;
        volume.spec = VolumeSpec {
            node: vol.node.map(name),
            migration_node: vol.migration.map(name),
            ..VolumeSpec::default()
        };
        volume.status.state = vol.state;
        volume.status.current_node = vol.current.map(name);
        volume.status.current_migration_node = vol.current_migration.map(name);
        volume.migration = vol.record.map(|(source, target, phase)| MigrationRecord {
            source: name(source),
            target: name(target),
            phase,
            since: Timestamp::UNIX_EPOCH,
            deadline: Timestamp::MAX,
        });
        View {
            now: Timestamp::UNIX_EPOCH,
            volume,
            tickets: self.seen_attachment.wire_tickets(),
            statuses: self.seen_attachment.wire_statuses(),
            nodes: self.seen_machines.wire_nodes(),
            engines: self.seen_machines.wire_engines(),
            settings: Settings {
                breaker: None,
                ..Settings::default()
            },
        }
    }
}

impl Vol {
    /// The volume with what the plan writes into it.
    pub fn with(&self, plan: &Plan) -> Self {
        let record = plan.migration.as_ref();
        Self {
            node: plan.volume_spec.node.as_ref().map(place),
            migration: plan.volume_spec.migration_node.as_ref().map(place),
            record: record
                .map(|record| (place(&record.source), place(&record.target), record.phase)),
            ..*self
        }
    }

    pub fn is_detached(&self) -> bool {
        self.state == VolumeState::Detached
            && self.current.is_none()
            && self.current_migration.is_none()
    }
}

impl Attachment {
    pub fn ticket(&self, at: usize) -> Option<Ticket> {
        let filed = self.tickets[at]?;
        let frontend = match filed.kind {
            AttacherKind::Backup | AttacherKind::Snapshot => Frontend::Any,
            _ => Frontend::Enabled,
        };
        let generation = Generation(filed.generation);
        Some(Ticket {
            frontend,
            generation,
            ..Ticket::new(filed.kind, id(at), name(filed.node))
        })
    }

    /// The answer says yes, to the ticket as it is now.
    pub fn is_satisfied(&self, at: usize) -> bool {
        match (self.tickets[at], self.answers[at]) {
            (Some(filed), Some(answer)) => {
                answer.satisfied && answer.generation == filed.generation
            }
            _ => false,
        }
    }

    fn wire_tickets(&self) -> BTreeMap<TicketId, Ticket> {
        (0..TICKETS)
            .filter_map(|at| Some((id(at), self.ticket(at)?)))
            .collect()
    }

    fn wire_statuses(&self) -> BTreeMap<TicketId, TicketStatus> {
        let statuses = (0..TICKETS).filter_map(|at| {
            let answer = self.answers[at]?;
            let condition = Condition {
                status: answer.satisfied,
                reason: answer.reason.into(),
                message: "".into(),
                last_transition: Some(Timestamp::UNIX_EPOCH),
            };
            let generation = Generation(answer.generation);
            Some((
                id(at),
                TicketStatus {
                    satisfied: answer.satisfied,
                    generation,
                    condition,
                },
            ))
        });
        statuses.collect()
    }

    /// The attachment with the plan's statuses.
    pub fn with(&self, plan: &Plan) -> Self {
        let mut after = self.clone();
        for at in 0..TICKETS {
            after.answers[at] = plan.ticket_statuses.get(&id(at)).map(|status| Answer {
                satisfied: status.satisfied,
                generation: status.generation.0,
                reason: plan.verdicts[&id(at)]
                    .reason
                    .as_ref()
                    .map_or("", attach_core::Reason::code),
            });
        }
        after
    }
}

impl Machines {
    fn wire_nodes(&self) -> Nodes {
        let listed = (0..NODES)
            .map(|at| {
                (
                    name(at),
                    Node {
                        ready: self.up[at],
                        cordoned: false,
                    },
                )
            })
            .collect();
        Nodes {
            complete: true,
            listed,
        }
    }

    fn wire_engines(&self) -> Engines {
        let running = (0..NODES).filter(|&at| self.engine[at]);
        let listed = running.map(|at| Engine {
            node: name(at),
            active: true,
            running: true,
            has_rw_replica: true,
            is_sole_writer: false,
            snapshots: None,
            error: None,
        });
        Engines {
            complete: true,
            listed: listed.collect(),
        }
    }
}

fn name(at: NodeAt) -> NodeName {
    ["n0", "n1", "n2"][at].into()
}

fn place(node: &NodeName) -> NodeAt {
    (0..NODES)
        .find(|&at| name(at) == *node)
        .expect("a node of the model")
}

fn id(at: usize) -> TicketId {
    ["t0", "t1", "t2"][at].into()
}
