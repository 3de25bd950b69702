//! An engine process that answers, and what was asked of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api_types::{ReplicaRole, SnapshotRequest};
use engine::control::{Answer, Command, EngineState, EngineStatus, ReplicaAt, SnapshotReport};
use engine::core::SNAPSHOT_TASKS;
use events::sentence;
use tokio::sync::watch;

use super::control::{Connection, ControlError, Pushed};
use super::engine_plan::{EngineCommand, Member, Running, Snapshot, Snapshots};
use super::process::{EngineRecord, Handle};

/// Between two attempts to rebuild the same replica, or to grow.
const COMMAND_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause, where pauses grow.
const PAUSE_MAX: Duration = Duration::from_secs(300);

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
    /// What is to be tried again after a pause.
    pub(super) attempts: BTreeMap<String, Attempt>,
    pub(super) listed: Option<Listed>,
}

/// The last attempt at something.
pub(super) struct Attempt {
    at: Instant,
    pause: Duration,
    /// Why it failed; none if it was done, and may not have been enough.
    pub(super) why: Option<String>,
}

impl Attempt {
    fn rests(&self) -> bool {
        self.at.elapsed() < self.pause
    }
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
        let before = self.attempts.remove(&key);
        if changes_snapshots(&key) {
            // That the list is old is pushed, too, and may come later than this.
            self.listed = None;
        }
        let why = match result {
            Ok(Answer::Snapshots(snapshots)) => {
                if !snapshots.iter().any(|found| found.removed) {
                    // The last merge was enough.
                    self.attempts.remove(MERGE_SNAPSHOTS);
                }
                self.listed = Some(Listed { version, snapshots });
                None
            }
            Ok(Answer::Done | Answer::Status(_)) => None,
            Err(error) => Some(sentence(&error)),
        };
        // A merge is not always enough: replicas that are busy or full are no failure of it, and what branches build on stays.
        if why.is_some() || key == MERGE_SNAPSHOTS {
            // A snapshot that cannot be taken costs each attempt a flush of all replicas, and a merge may have to wait for a person.
            let growing = before.filter(|_| changes_snapshots(&key));
            let pause = growing.map_or(COMMAND_PAUSE, |before| before.pause * 2);
            let attempt = Attempt {
                at: Instant::now(),
                pause: pause.min(PAUSE_MAX),
                why: why.clone(),
            };
            self.attempts.insert(key, attempt);
        }
        why.map_or(Ok(()), Err)
    }

    /// Why snapshots could not be taken or removed, by name.
    pub(super) fn snapshot_errors(
        &self,
        requests: &BTreeMap<String, SnapshotRequest>,
    ) -> BTreeMap<String, String> {
        let why = |key: &str| self.attempts.get(key)?.why.clone();
        let error = |(name, request): (&String, &SnapshotRequest)| {
            let merge = (*request == SnapshotRequest::Remove).then(|| why(MERGE_SNAPSHOTS));
            let why = why(&format!("{SNAPSHOT}{name}")).or(merge.flatten())?;
            Some((name.clone(), why))
        };
        requests.iter().filter_map(error).collect()
    }

    /// Why replicas could not be rebuilt or removed, by name.
    pub(super) fn replica_errors(&self) -> BTreeMap<String, String> {
        let errors = self.attempts.iter().filter(|(key, _)| is_of_replica(key));
        let why = |(key, attempt): (&String, &Attempt)| Some((key.clone(), attempt.why.clone()?));
        errors.filter_map(why).collect()
    }

    pub(super) fn error(&self, key: &str) -> String {
        let attempt = self.attempts.get(key);
        attempt
            .and_then(|attempt| attempt.why.clone())
            .unwrap_or_default()
    }

    /// Forgets attempts at what is not asked for any more: they say nothing about what will be.
    pub(super) fn keep_attempts(
        &mut self,
        roles: &BTreeMap<String, ReplicaRole>,
        requests: &BTreeMap<String, SnapshotRequest>,
    ) {
        self.attempts.retain(|key, _| {
            if let Some(name) = key.strip_prefix(SNAPSHOT) {
                requests.contains_key(name)
            } else if key == MERGE_SNAPSHOTS {
                !requests.is_empty()
            } else {
                !is_of_replica(key) || roles.get(key) == Some(&ReplicaRole::Rebuild)
            }
        });
    }
}

fn changes_snapshots(key: &str) -> bool {
    key.starts_with(SNAPSHOT) || key == MERGE_SNAPSHOTS
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
        let mut later = commands.running.clone();
        let resting = commands.attempts.iter();
        let resting = resting.filter(|(_, attempt)| attempt.rests());
        later.extend(resting.map(|(key, _)| key.clone()));
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
            busy: later.contains(LIST_SNAPSHOTS) || self.change_snapshots(commands),
            later: later.iter().filter_map(of_snapshot).collect(),
            merge_later: later.contains(MERGE_SNAPSHOTS),
        }
    }

    /// Whether snapshots are being taken or marked, also for an agent that is gone, or replicas compared of which one may have a
    /// snapshot that others have not. A merge may take long, and says that something has changed when it is done.
    fn change_snapshots(&self, commands: &Commands) -> bool {
        let mut tasks = self.status.tasks.iter().map(|task| task.kind.as_str());
        tasks.any(|kind| SNAPSHOT_TASKS.contains(&kind))
            || commands.running.iter().any(|key| key.starts_with(SNAPSHOT))
    }

    /// The engine's snapshots, unless something has changed since they were listed, or is changing them.
    pub(super) fn listed<'a>(&self, commands: &'a Commands) -> Option<&'a [SnapshotReport]> {
        let listed = commands.listed.as_ref()?;
        let is_current = listed.version == self.status.snapshots_version;
        (is_current && !self.change_snapshots(commands)).then_some(listed.snapshots.as_slice())
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

#[cfg(test)]
mod tests {
    use engine::control::CommandError;

    use super::*;

    fn failure() -> Result<Answer, ControlError> {
        Err(ControlError::Refused(CommandError::new("no room")))
    }

    fn pause(commands: &Commands, key: &str) -> Option<u64> {
        let attempt = commands.attempts.get(key)?;
        Some(attempt.pause.as_secs())
    }

    #[test]
    fn what_changes_snapshots_is_tried_less_and_less_often() {
        let mut commands = Commands::default();
        let key = format!("{SNAPSHOT}a");
        for expected in [5, 10, 20, 40, 80, 160, 300, 300] {
            assert!(commands.finish(key.clone(), 1, failure()).is_err());
            assert_eq!(pause(&commands, &key), Some(expected));
        }
        commands
            .finish(key.clone(), 1, Ok(Answer::Done))
            .expect("done");
        assert_eq!(pause(&commands, &key), None);
        // Others are cheap, and wait for something that is soon over.
        for _ in 0..3 {
            assert!(commands.finish("replica".to_owned(), 1, failure()).is_err());
            assert_eq!(pause(&commands, "replica"), Some(5));
        }
    }

    #[test]
    fn a_merge_that_was_not_enough_is_not_repeated_at_once() {
        let mut commands = Commands::default();
        let requests = BTreeMap::from([
            ("a".to_owned(), SnapshotRequest::Remove),
            ("b".to_owned(), SnapshotRequest::Take),
        ]);
        let merge = |commands: &mut Commands, result| {
            let _ = commands.finish(MERGE_SNAPSHOTS.to_owned(), 1, result);
        };
        merge(&mut commands, Ok(Answer::Done));
        assert!(commands.attempts[MERGE_SNAPSHOTS].rests());
        assert!(commands.snapshot_errors(&requests).is_empty());
        merge(&mut commands, failure());
        assert_eq!(pause(&commands, MERGE_SNAPSHOTS), Some(10));
        // It concerns those that are to go.
        let errors = commands.snapshot_errors(&requests);
        assert_eq!(errors.keys().collect::<Vec<_>>(), ["a"]);
        commands.keep_attempts(&BTreeMap::new(), &requests);
        assert!(commands.attempts.contains_key(MERGE_SNAPSHOTS));
        let list = || Ok(Answer::Snapshots(Vec::new()));
        let finished = commands.finish(LIST_SNAPSHOTS.to_owned(), 2, list());
        finished.expect("a list");
        assert!(commands.attempts.is_empty(), "nothing is marked");
        merge(&mut commands, failure());
        commands.keep_attempts(&BTreeMap::new(), &BTreeMap::new());
        assert!(
            commands.attempts.is_empty(),
            "the next one has its own time"
        );
    }
}
