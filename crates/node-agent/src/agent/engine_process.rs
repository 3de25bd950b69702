//! An engine process that answers, and what was asked of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine::control::{Answer, Command, EngineState, EngineStatus, ReplicaAt, SnapshotReport};
use events::sentence;
use tokio::sync::watch;

use super::control::{Connection, ControlError, Pushed};
use super::engine_plan::{EngineCommand, Member, Running, Snapshot, Snapshots};
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
    pub(super) listed: Option<Listed>,
}

/// The engine's snapshots, and the version of its list that this is, or an older one: then it is asked again.
pub(super) struct Listed {
    pub(super) version: u64,
    pub(super) snapshots: Vec<SnapshotReport>,
}

impl Commands {
    /// What became of a command. `version` is that of the list of snapshots from before it was asked.
    pub(super) fn finish(
        &mut self,
        key: String,
        version: u64,
        result: Result<Answer, ControlError>,
    ) -> Result<(), String> {
        self.running.remove(&key);
        self.failed.remove(&key);
        if key.starts_with(SNAPSHOT) || key == MERGE_SNAPSHOTS {
            // That the list is old is pushed, too, and may come later than this.
            self.listed = None;
        }
        match result {
            Ok(Answer::Snapshots(snapshots)) => {
                self.listed = Some(Listed { version, snapshots });
                Ok(())
            }
            Ok(Answer::Done | Answer::Status(_)) => Ok(()),
            Err(error) => {
                let why = sentence(&error);
                self.failed.insert(key, (Instant::now(), why.clone()));
                Err(why)
            }
        }
    }

    /// Whether a snapshot is being taken or marked. A merge may take long, and says that something has changed when it is done.
    fn change_snapshots(&self) -> bool {
        self.running.iter().any(|key| key.starts_with(SNAPSHOT))
    }

    /// Why snapshots could not be taken or removed, by name.
    pub(super) fn snapshot_errors(&self) -> BTreeMap<String, String> {
        let errors = self.failed.iter().filter_map(|(key, (_, why))| {
            Some((key.strip_prefix(SNAPSHOT)?.to_owned(), why.clone()))
        });
        errors.collect()
    }

    /// Forgets failures of what is not asked for any more.
    pub(super) fn keep_failures(&mut self, is_asked_for: impl Fn(Failed<'_>) -> bool) {
        self.failed.retain(|key, _| {
            if let Some(name) = key.strip_prefix(SNAPSHOT) {
                is_asked_for(Failed::Snapshot(name))
            } else {
                !is_of_replica(key) || is_asked_for(Failed::Replica(key))
            }
        });
    }
}

/// Whose command failed.
pub(super) enum Failed<'a> {
    Replica(&'a str),
    Snapshot(&'a str),
}

/// The keys of commands that are of no replica, and what the keys of a replica's address and of a snapshot begin with; no
/// replica has such a name, and the name alone is the key of its rebuild.
pub(super) const EXPAND: &str = "";
const SET: &str = " ";
const MOVE: &str = " at ";
pub(super) const LIST_SNAPSHOTS: &str = " list";
pub(super) const MERGE_SNAPSHOTS: &str = " merge";
const SNAPSHOT: &str = " snapshot ";

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
        let snapshots = self.snapshots(&commands, &later);
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
            snapshots,
            rebuild_later: later,
        }
    }

    fn snapshots(&self, commands: &Commands, later: &BTreeSet<String>) -> Snapshots {
        let of_snapshot = |key: &String| Some(key.strip_prefix(SNAPSHOT)?.to_owned());
        let listed = self.listed(commands).map(|listed| {
            let entry = |found: &SnapshotReport| {
                let marked = found.removed;
                (found.name.clone(), Snapshot { marked })
            };
            listed.iter().map(entry).collect()
        });
        Snapshots {
            listed,
            busy: later.contains(LIST_SNAPSHOTS) || commands.change_snapshots(),
            later: later.iter().filter_map(of_snapshot).collect(),
            merge_later: later.contains(MERGE_SNAPSHOTS),
        }
    }

    /// The engine's snapshots, unless something has changed since they were listed, or is changing them.
    pub(super) fn listed<'a>(&self, commands: &'a Commands) -> Option<&'a [SnapshotReport]> {
        let listed = commands.listed.as_ref()?;
        let is_current = listed.version == self.status.snapshots_version;
        (is_current && !commands.change_snapshots()).then_some(listed.snapshots.as_slice())
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
        EngineCommand::ListSnapshots => (LIST_SNAPSHOTS.to_owned(), Command::ListSnapshots),
        EngineCommand::TakeSnapshot { name } => {
            let key = format!("{SNAPSHOT}{name}");
            let created_unix_ms = jiff::Timestamp::now().as_millisecond();
            let command = Command::Snapshot {
                name,
                created_unix_ms: u64::try_from(created_unix_ms).unwrap_or(0),
            };
            (key, command)
        }
        EngineCommand::MarkSnapshot { name } => (
            format!("{SNAPSHOT}{name}"),
            Command::DeleteSnapshot { name },
        ),
        EngineCommand::MergeSnapshots => (MERGE_SNAPSHOTS.to_owned(), Command::Purge),
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
