//! An engine process that answers, and what was asked of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine::control::{Command, EngineState, EngineStatus, ReplicaAt};
use tokio::sync::watch;

use super::control::{Connection, Pushed};
use super::engine_plan::{EngineCommand, Member, Running};
use super::process::{EngineRecord, Handle};

/// Between two attempts to rebuild the same replica, or to grow.
const COMMAND_PAUSE: Duration = Duration::from_secs(5);

/// A process that has a control socket.
pub(super) struct Managed {
    pub(super) handle: Handle,
    pub(super) connection: Arc<Connection>,
    pub(super) pushed: watch::Receiver<Pushed>,
    pub(super) record: EngineRecord,
    pub(super) status: EngineStatus,
    /// Up to which of what it pushed people were told.
    pub(super) told: u64,
    pub(super) commands: Arc<Mutex<Commands>>,
}

/// What was asked of the engine and takes its time.
#[derive(Default)]
pub(super) struct Commands {
    pub(super) running: BTreeSet<String>,
    /// When something failed last, and why.
    pub(super) failed: BTreeMap<String, (Instant, String)>,
}

/// The keys of an expansion and of a standby's set among commands, and what the key of a replica's address begins with; no
/// replica has such a name, and the name alone is the key of its rebuild.
pub(super) const EXPAND: &str = "";
const SET: &str = " ";
const MOVE: &str = " at ";

/// Whether this is the key of a replica's rebuild, or of its removal.
pub(super) fn is_of_replica(key: &str) -> bool {
    !key.is_empty() && !key.starts_with(' ')
}

impl Managed {
    /// What the plan needs to know of it.
    pub(super) fn running(&self) -> Running {
        let status = &self.status;
        let commands = lock(&self.commands);
        let recent = |at: &Instant| at.elapsed() < COMMAND_PAUSE;
        let mut later = commands.running.clone();
        later.extend(
            commands
                .failed
                .iter()
                .filter(|(_, (at, _))| recent(at))
                .map(|(name, _)| name.clone()),
        );
        Running {
            epoch: self.record.epoch,
            frontend: self.record.frontend,
            serving: status.state == EngineState::Serving,
            standby: matches!(status.state, EngineState::Standby { .. }),
            fenced: match &status.state {
                EngineState::Fenced { why } => Some(why.clone()),
                _ => None,
            },
            generation: status.generation,
            proposal: status.proposal.as_ref().map(|proposal| {
                let members = proposal.in_sync.iter().cloned().collect();
                (proposal.generation, members)
            }),
            size_bytes: status.size_bytes,
            members: status
                .members
                .iter()
                .map(|member| {
                    let known = Member {
                        role: member.role.clone(),
                        address: member.address.clone(),
                    };
                    (member.name.clone(), known)
                })
                .collect(),
            move_later: later
                .iter()
                .filter_map(|key| Some(key.strip_prefix(MOVE)?.to_owned()))
                .collect(),
            expand_later: later.contains(EXPAND),
            rebuild_later: later,
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The key of a command, and how the engine is asked.
pub(super) fn request(command: EngineCommand) -> (String, Command) {
    match command {
        EngineCommand::Set {
            promote,
            version: generation,
            in_sync,
        } => (SET.to_owned(), set_command(promote, generation, in_sync)),
        EngineCommand::Move { name, address } => (
            format!("{MOVE}{name}"),
            Command::SetAddress { name, address },
        ),
        EngineCommand::Rebuild { name, address } => {
            (name.clone(), Command::Rebuild { name, address })
        }
        EngineCommand::Remove { name } => (name.clone(), Command::RemoveReplica { name }),
        EngineCommand::Expand { size_bytes } => (EXPAND.to_owned(), Command::Expand { size_bytes }),
    }
}

/// What tells a standby the set that the writer works with, or makes it the writer.
fn set_command(promote: bool, generation: u64, in_sync: BTreeMap<String, String>) -> Command {
    let in_sync = in_sync
        .into_iter()
        .map(|(name, address)| ReplicaAt { name, address })
        .collect();
    if promote {
        Command::Promote {
            generation,
            in_sync,
        }
    } else {
        Command::Follow {
            generation,
            in_sync,
        }
    }
}
