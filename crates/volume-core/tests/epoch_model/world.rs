//! The modelled world: what is in the API, in the processes, in the replicas' files, and in flight.
//!
//! Everything is a small number so that millions of states fit in memory: replicas and nodes are
//! indices, sets of them are bit masks, writes are bits.
//!
//! The network is asynchronous: a message is delivered at any time, or never. That covers loss, delay
//! and every partition, so none of these needs a state of its own. So does a crash of a node: its
//! engine dies, and its replica, whose files survive, merely stops answering. Nodes are *believed* lost
//! or ready independently of the truth, which covers a node that is cut off from the API only.

/// A set of replicas, or of writes.
pub type Mask = u8;

pub const REPLICAS: u8 = 3;

pub fn bits(mask: Mask) -> impl Iterator<Item = u8> {
    (0..8).filter(move |bit| mask & (1 << bit) != 0)
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub api: Api,
    /// Plans that were made but not written yet, by controllers that may since have been replaced.
    pub pending: Vec<Pending>,
    /// Engine processes, and what they have in flight; by epoch.
    pub engines: Vec<Engine>,
    pub replicas: [Replica; REPLICAS as usize],
    /// The newest engine that has ever served.
    pub served: u8,
    /// Writes handed to some engine so far.
    pub writes: u8,
    /// Writes that a client was told are safe.
    pub acknowledged: Mask,
    /// Writes handed to an engine while a newer one was serving already.
    pub too_late: Mask,
    /// What the environment may still do.
    pub budget: Budget,
}

/// The objects in the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Api {
    pub record: Record,
    /// Epoch of the fence proof, 0 for none.
    pub proof: u8,
    pub engines: Vec<EngineObject>,
    pub failed: Mask,
    pub healthy: Mask,
    /// Nodes whose lease is believed to have run out.
    pub lost: Mask,
    /// `Volume.spec.nodeID`.
    pub wanted: u8,
    /// `Volume.spec.migrationNodeID`.
    pub migration: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Record {
    pub epoch: u8,
    pub issued: u8,
    pub version: u8,
    pub members: Mask,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineObject {
    pub epoch: u8,
    pub node: u8,
    pub role: Role,
    pub running: bool,
    pub rebuild: Mask,
}

/// `EngineRole`, in a form that can be hashed and sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    Writer,
    Standby,
    Former,
}

/// A plan between being made and being written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pending {
    pub observed: Api,
    pub planned: Api,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Engine {
    pub epoch: u8,
    pub node: u8,
    pub phase: Phase,
    /// The committed record as this engine knows it.
    pub known: Record,
    /// Sets proposed on top of `known` and not answered; the last is the one reported.
    pub proposals: Vec<Mask>,
    /// A replica that is being brought up to date.
    pub rebuild: Option<u8>,
    pub requests: Vec<Request>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Open for reading on a migration's target; `written` asks to take over.
    Standby {
        written: bool,
    },
    /// Asking the members to accept its epoch; these have.
    Starting {
        accepted: Mask,
    },
    Serving,
    Dead,
}

/// One write in one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    pub write: u8,
    /// Replicas to which the message is on its way.
    pub in_flight: Mask,
    /// Replicas that have confirmed.
    pub done: Mask,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    /// Largest epoch stored.
    pub accepted: u8,
    /// Writes in its files.
    pub content: Mask,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    pub crashes: u8,
    pub health_changes: u8,
    pub moves: u8,
    pub migrations: u8,
    pub suspicions: u8,
}

impl State {
    /// A healthy volume, attached to node 0 with epoch 1, before the first write.
    pub fn healthy(budget: Budget) -> Self {
        let record = Record {
            epoch: 1,
            issued: 1,
            version: 1,
            members: 0b111,
        };
        let engine = Engine {
            epoch: 1,
            node: 0,
            phase: Phase::Serving,
            known: record,
            proposals: Vec::new(),
            rebuild: None,
            requests: Vec::new(),
        };
        let object = EngineObject {
            epoch: 1,
            node: 0,
            role: Role::Writer,
            running: true,
            rebuild: 0,
        };
        Self {
            api: Api {
                record,
                proof: 0,
                engines: vec![object],
                failed: 0,
                healthy: 0b111,
                lost: 0,
                wanted: 0,
                migration: None,
            },
            pending: Vec::new(),
            engines: vec![engine],
            replicas: [Replica {
                accepted: 1,
                content: 0,
            }; REPLICAS as usize],
            served: 1,
            writes: 0,
            acknowledged: 0,
            too_late: 0,
            budget,
        }
    }

    pub fn engine(&self, epoch: u8) -> Option<&Engine> {
        self.engines.iter().find(|engine| engine.epoch == epoch)
    }

    pub fn engine_mut(&mut self, epoch: u8) -> Option<&mut Engine> {
        self.engines.iter_mut().find(|engine| engine.epoch == epoch)
    }

    pub fn replica(&self, index: u8) -> Replica {
        self.replicas[usize::from(index)]
    }

    pub fn replica_mut(&mut self, index: u8) -> &mut Replica {
        &mut self.replicas[usize::from(index)]
    }
}

impl Engine {
    pub fn is_alive(&self) -> bool {
        self.phase != Phase::Dead
    }

    /// The end of the process. What it has sent may still arrive; what was sent to it is gone.
    pub fn die(&mut self) {
        self.phase = Phase::Dead;
        self.proposals.clear();
        self.rebuild = None;
        self.known = Record {
            epoch: self.epoch,
            issued: 0,
            version: 0,
            members: 0,
        };
        for request in &mut self.requests {
            request.done = 0;
        }
        self.requests.retain(|request| request.in_flight != 0);
    }
}
