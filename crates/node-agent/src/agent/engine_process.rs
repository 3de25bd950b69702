//! An engine process that answers, and what was asked of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine::control::{Command, EngineState, EngineStatus, ReplicaAt};
use tokio::sync::watch;

use super::control::{Connection, Pushed};
use super::engine_plan::Running;
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
    pub(super) commands: Arc<Mutex<Commands>>,
}

/// What was asked of the engine and takes its time.
#[derive(Default)]
pub(super) struct Commands {
    pub(super) running: BTreeSet<String>,
    /// When something failed last, and why.
    pub(super) failed: BTreeMap<String, (Instant, String)>,
}

/// The keys of an expansion and of a standby's set among commands; no replica has such a name.
pub(super) const EXPAND: &str = "";
pub(super) const SET: &str = " ";

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
                .map(|member| (member.name.clone(), member.role.clone()))
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

/// What tells a standby the set that the writer works with, or makes it the writer.
pub(super) fn set_command(
    promote: bool,
    generation: u64,
    in_sync: BTreeMap<String, String>,
) -> Command {
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
