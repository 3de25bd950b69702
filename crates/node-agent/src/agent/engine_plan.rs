//! What to do about a volume's engine process, decided from what runs and what the Engine objects ask for.
//!
//! A node runs at most one engine process of a volume: that of the largest epoch that should run here. An engine
//! is started once for its epoch: when its process is gone, only a new epoch brings another, because only the one who
//! issues epochs knows what was committed meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use api_types::{Engine, EngineRole, InstanceState, ReplicaRole, SnapshotRequest};

mod snapshots;

pub use snapshots::{Snapshot, Snapshots};

/// An Engine object of this node, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub name: String,
    pub generation: i64,
    pub epoch: u64,
    pub role: EngineRole,
    pub run: bool,
    pub frontend: bool,
    pub in_sync: BTreeSet<String>,
    pub version: u64,
    /// The replicas that the engine should use.
    pub roles: BTreeMap<String, ReplicaRole>,
    pub addresses: BTreeMap<String, String>,
    pub size_bytes: u64,
    pub snapshot_requests: BTreeMap<String, SnapshotRequest>,
    pub deleting: bool,
    /// Its status says that a process of this epoch was started.
    pub started: bool,
}

impl Wanted {
    #[must_use]
    pub fn read(engine: &Engine) -> Self {
        let spec = &engine.spec;
        let status = engine.status.as_ref();
        Self {
            name: engine.metadata.name.clone().unwrap_or_default(),
            generation: engine.metadata.generation.unwrap_or(0),
            epoch: u64::try_from(spec.epoch).unwrap_or(0),
            role: spec.role.clone(),
            run: spec.desire_state == InstanceState::Running,
            frontend: !spec.disable_frontend,
            in_sync: spec.in_sync_replicas.iter().cloned().collect(),
            version: u64::try_from(spec.in_sync_version).unwrap_or(0),
            roles: spec.replica_roles.clone(),
            addresses: spec.replica_address_map.clone(),
            size_bytes: u64::try_from(spec.volume_size.bytes()).unwrap_or(0),
            snapshot_requests: spec.snapshot_requests.clone(),
            deleting: engine.metadata.deletion_timestamp.is_some(),
            started: status.is_some_and(|status| status.started),
        }
    }

    fn should_run(&self) -> bool {
        self.run && !self.deleting
    }

    /// The in-sync replicas that the engine should do without, such as those of a lost node.
    pub fn written_off(&self) -> Vec<String> {
        // An object without roles is of a writer that does not say them.
        let says_roles = !self.roles.is_empty();
        self.in_sync
            .iter()
            .filter(|name| says_roles && !self.roles.contains_key(*name))
            .cloned()
            .collect()
    }

    /// The in-sync replicas that the engine counts on and whose address is not known yet. Those that it should do without are
    /// not waited for: a disk that is gone, or a replica whose object is, may never have an address again.
    fn without_address(&self) -> Vec<String> {
        let written_off = self.written_off();
        self.in_sync
            .iter()
            .filter(|name| !self.addresses.contains_key(*name) && !written_off.contains(name))
            .cloned()
            .collect()
    }

    /// Every in-sync replica, with an empty address where none is known. The engine has to know all that are recorded in order to
    /// propose a smaller set.
    fn set(&self) -> BTreeMap<String, String> {
        let at = |name: &String| self.addresses.get(name).cloned().unwrap_or_default();
        let names = self.in_sync.iter();
        names.map(|name| (name.clone(), at(name))).collect()
    }
}

/// A process that answers on its control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    pub epoch: u64,
    /// Whether it was started with a front end.
    pub frontend: bool,
    pub serving: bool,
    /// It only reads, and waits to become the writer.
    pub standby: bool,
    pub fenced: Option<String>,
    pub generation: u64,
    /// Version and members that it waits to see recorded.
    pub proposal: Option<(u64, BTreeSet<String>)>,
    pub size_bytes: u64,
    pub members: BTreeMap<String, Member>,
    /// Replicas that cannot be rebuilt now: it was tried a moment ago, or runs.
    pub rebuild_later: BTreeSet<String>,
    /// Replicas whose address it cannot be told now, for the same reasons.
    pub move_later: BTreeSet<String>,
    pub expand_later: bool,
    pub snapshots: Snapshots,
}

/// A replica as the engine has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// As the engine names it.
    pub role: String,
    pub address: String,
}

impl Member {
    /// Whether the engine is, or wants to be, connected to it.
    fn is_used(&self) -> bool {
        matches!(self.role.as_str(), "inSync" | "rebuilding" | "joining")
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// All is as it should be.
    Rest,
    /// Nothing can be done before this changes.
    Wait(String),
    Start {
        engine: String,
    },
    /// `again`: the same engine is wanted, in another form.
    Shutdown {
        why: String,
        again: bool,
    },
    Command(Vec<EngineCommand>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineCommand {
    /// The set that the writer works with has changed, or it has become ours.
    Set {
        promote: bool,
        version: u64,
        in_sync: BTreeMap<String, String>,
    },
    /// The replica is served elsewhere than the engine knows.
    Move {
        name: String,
        address: String,
    },
    Rebuild {
        name: String,
        address: String,
    },
    Remove {
        name: String,
    },
    Expand {
        size_bytes: u64,
    },
    ListSnapshots,
    TakeSnapshot {
        name: String,
    },
    /// It goes from the chain with the next merge.
    MarkSnapshot {
        name: String,
    },
    /// Merges away what is marked.
    MergeSnapshots,
}

/// Whether an engine that was ended to be started again is still wanted. If not it has ended for good, and must be reported
/// so: somebody waits for that.
#[must_use]
pub fn is_awaited(engines: &[Wanted], epoch: u64) -> bool {
    let mut own = engines.iter().filter(|engine| engine.epoch == epoch);
    own.any(Wanted::should_run)
}

/// `resumable` is the epoch whose process this agent ended in order, with nothing proposed, to start it again.
#[must_use]
pub fn plan(running: Option<&Running>, engines: &[Wanted], resumable: Option<u64>) -> Step {
    let current = engines
        .iter()
        .filter(|engine| engine.should_run())
        .max_by_key(|engine| engine.epoch);
    match running {
        Some(running) => plan_running(running, engines, current),
        None => current.map_or(Step::Rest, |current| plan_start(current, resumable)),
    }
}

fn plan_start(current: &Wanted, resumable: Option<u64>) -> Step {
    if current.role == EngineRole::Former {
        // It handed the volume over; nobody waits for it.
        return Step::Rest;
    }
    if current.started && resumable != Some(current.epoch) {
        return Step::Rest;
    }
    if current.in_sync.is_empty() {
        return Step::Wait("no replica is in sync yet".to_owned());
    }
    let missing = current.without_address();
    if !missing.is_empty() {
        return Step::Wait(format!(
            "the address of {} is not known yet",
            missing.join(", ")
        ));
    }
    Step::Start {
        engine: current.name.clone(),
    }
}

fn plan_running(running: &Running, engines: &[Wanted], current: Option<&Wanted>) -> Step {
    let shutdown = |why: String| Step::Shutdown { why, again: false };
    if let Some(why) = &running.fenced {
        return shutdown(format!("fenced: {why}"));
    }
    let Some(own) = engines.iter().find(|engine| engine.epoch == running.epoch) else {
        return shutdown(format!("no Engine asks for epoch {}", running.epoch));
    };
    if !own.should_run() {
        return shutdown("it should not run".to_owned());
    }
    if let Some(newer) = current.filter(|current| current.epoch > running.epoch) {
        return shutdown(format!("epoch {} takes over", newer.epoch));
    }
    if own.role == EngineRole::Former {
        // The replicas end it when the new writer opens them; until then its users go on undisturbed.
        return Step::Rest;
    }
    let front_end_changes = || Step::Shutdown {
        why: "its front end changes".to_owned(),
        again: true,
    };
    if running.standby {
        // Nobody has written through it.
        if own.role == EngineRole::Standby && own.frontend != running.frontend {
            return front_end_changes();
        }
        return plan_standby(running, own);
    }
    if own.role == EngineRole::Standby {
        return shutdown("it is to be a standby, and was the writer".to_owned());
    }
    let recorded_as_proposed =
        running.proposal.as_ref() == Some(&(own.version, own.in_sync.clone()));
    if own.version > running.generation && !recorded_as_proposed {
        // It would go on with a set that the record has left behind. A start with a new epoch begins from the record.
        return shutdown(format!(
            "version {} of the in-sync set was recorded, and this engine, which has version {}, did not propose it",
            own.version, running.generation
        ));
    }
    if own.frontend != running.frontend {
        if running.proposal.is_some() {
            // Its successor of the same epoch would not know whether the proposal is recorded in the end.
            return Step::Wait(
                "the front end changes when the open proposal is decided".to_owned(),
            );
        }
        return front_end_changes();
    }
    command(commands(running, own))
}

/// A standby follows the writer's set, until it is the writer.
fn plan_standby(running: &Running, own: &Wanted) -> Step {
    let promote = own.role == EngineRole::Writer;
    if !promote && own.version <= running.generation {
        return command(moves(running, own));
    }
    let missing = own.without_address();
    if !missing.is_empty() {
        return Step::Wait(format!(
            "the address of {} is not known yet",
            missing.join(", ")
        ));
    }
    Step::Command(vec![EngineCommand::Set {
        promote,
        version: own.version,
        in_sync: own.set(),
    }])
}

fn command(commands: Vec<EngineCommand>) -> Step {
    if commands.is_empty() {
        Step::Rest
    } else {
        Step::Command(commands)
    }
}

/// An agent that was started again may serve its replicas at another address, and an engine that was told the old one would look
/// for them there for ever. Also before it serves: the replica that it waits for may be the one that has moved.
fn moves(running: &Running, own: &Wanted) -> Vec<EngineCommand> {
    let moved = |(name, address): (&String, &String)| {
        let member = running.members.get(name)?;
        let is_news = member.is_used() && member.address != *address;
        (is_news && !running.move_later.contains(name)).then(|| EngineCommand::Move {
            name: name.clone(),
            address: address.clone(),
        })
    };
    own.addresses.iter().filter_map(moved).collect()
}

fn commands(running: &Running, own: &Wanted) -> Vec<EngineCommand> {
    let mut commands = moves(running, own);
    if !running.serving {
        return commands;
    }
    let uses = |name: &String| running.members.get(name).is_some_and(Member::is_used);
    for (name, role) in &own.roles {
        let wanted = *role == ReplicaRole::Rebuild && !uses(name);
        // A failed member is first left behind, by a proposal; only then can it be rebuilt.
        let failed = running
            .members
            .get(name)
            .is_some_and(|member| member.role == "failed");
        if let Some(address) = own.addresses.get(name)
            && wanted
            && !failed
            && !running.rebuild_later.contains(name)
        {
            commands.push(EngineCommand::Rebuild {
                name: name.clone(),
                address: address.clone(),
            });
        }
    }
    // An object without roles is of a writer that does not say them: nothing is removed for that.
    if !own.roles.is_empty() && running.proposal.is_none() {
        let leaving = running
            .members
            .keys()
            .filter(|name| uses(name) && !own.roles.contains_key(*name));
        commands.extend(leaving.map(|name| EngineCommand::Remove { name: name.clone() }));
    }
    if own.size_bytes > running.size_bytes && !running.expand_later {
        commands.push(EngineCommand::Expand {
            size_bytes: own.size_bytes,
        });
    }
    commands.extend(running.snapshots.commands(&own.snapshot_requests));
    commands
}

#[cfg(test)]
mod tests;
