//! Commands that take more than one step: snapshots, expansion, revert, purge, and the order among them.

use block_core::geometry::check_size;
use block_core::wire::{self, Failure, LayerRef, Reply, StatusCode};
use block_core::{ReplicaName, SnapshotName};

use super::data::{FanId, Origin};
use super::member::{Link, Role};
use super::rebuild::{self, Rebuild};
use super::reconcile::{self, Reconcile};
use super::{
    Action, CommandId, EngineCore, JobId, MemberAddress, MemberIndex, MemberSet, Moment, Phase,
    Purpose,
};
use crate::control::{Answer, Command, CommandError, Notice, SnapshotReport, Verdict};
use crate::frontend::{Endpoint, FrontendState};

use super::CommitVerdict;

/// The kinds of tasks that change which snapshots there are, or find out which of several lists is right: until they end, a list of
/// snapshots may be one of a moment that never was.
pub const SNAPSHOT_TASKS: [&str; 4] = [TAKE, MARK, REVERT, reconcile::TASK_KIND];
const TAKE: &str = "snapshot";
const MARK: &str = "delete snapshot";
const REVERT: &str = "revert";

/// Beginnings of the names of snapshots that the engine takes for itself.
pub const OWN_SNAPSHOT_PREFIXES: [&str; 2] = [reconcile::NAME_PREFIX, rebuild::NAME_PREFIX];

mod under_way;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

pub struct Task {
    /// Who is told of the end; none for what the engine does by itself.
    pub command: Option<CommandId>,
    pub kind: TaskKind,
}

pub enum TaskKind {
    Broadcast(Broadcast),
    ListSnapshots { job: Option<JobId> },
    Rebuild(Box<Rebuild>),
    Reconcile(Box<Reconcile>),
}

/// One request to all members, perhaps at one point of the write order.
pub struct Broadcast {
    pub label: &'static str,
    pub request: wire::Request,
    pub needs_barrier: bool,
    pub flush: Flushes,
    pub fan: Option<FanId>,
    pub barrier_since: Option<Moment>,
    pub then: Then,
}

/// A snapshot is frozen while writes are held back, and flushed while they are not: most of it before, together with all that
/// can be prepared, and the rest behind it.
///
/// ```text
/// Before ─> FlushingBefore ─> Between (writes are held back) ─> FlushingBehind
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushes {
    None,
    Before,
    FlushingBefore,
    Between,
    FlushingBehind,
}

/// What follows when all members have done it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Nothing,
    Resize {
        size_bytes: u64,
    },
    /// The removed system snapshots can be merged away.
    Purge,
}

impl EngineCore {
    pub(super) fn on_command(&mut self, id: CommandId, command: Command) {
        let result = match command {
            Command::Status => Ok(Some(Answer::Status(Box::new(self.status())))),
            Command::Commit {
                generation,
                verdict,
            } => {
                self.on_commit(generation, verdict_of(verdict));
                Ok(Some(Answer::Done))
            }
            Command::Shutdown => self.begin_shutdown(id),
            Command::SetRebuildRate {
                bytes_per_second_max,
            } => {
                self.rebuild_rate = bytes_per_second_max;
                Ok(Some(Answer::Done))
            }
            // Also while the volume opens: it may be the replica that has moved which it waits for.
            Command::SetAddress { name, address } => self
                .set_address(&name, address)
                .map(|()| Some(Answer::Done)),
            // The socket's server deals with these; in here they have no meaning.
            Command::Subscribe | Command::AttachCommitter => Ok(Some(Answer::Done)),
            other => self.begin_task(id, other),
        };
        match result {
            Ok(None) => {}
            Ok(Some(answer)) => self.out.push(Action::Answer {
                command: id,
                result: Ok(answer),
            }),
            Err(error) => self.out.push(Action::Answer {
                command: id,
                result: Err(error),
            }),
        }
    }

    /// Starts what is answered later (`None`), or says why not.
    fn begin_task(
        &mut self,
        id: CommandId,
        command: Command,
    ) -> Result<Option<Answer>, CommandError> {
        if self.phase != Phase::Serving {
            return Err(CommandError::new(
                "the volume is not open; ask for its status",
            ));
        }
        match command {
            Command::Snapshot {
                name,
                created_unix_ms,
            } => {
                let name = snapshot_name(&name)?;
                if OWN_SNAPSHOT_PREFIXES
                    .iter()
                    .any(|own| name.as_str().starts_with(own))
                {
                    return Err(CommandError::new(format!(
                        "snapshot {name}: names that begin with {} are the engine's own; choose another",
                        OWN_SNAPSHOT_PREFIXES.join(" or "),
                    )));
                }
                if self.reconcile_runs() {
                    return Err(CommandError::new(
                        "replicas are being compared after an unclean end: try again in a moment",
                    ));
                }
                let request = wire::Request::SnapshotCreate {
                    name,
                    created_unix_ms,
                    user_created: true,
                };
                self.broadcast(Some(id), TAKE, request, true, Then::Nothing);
            }
            Command::DeleteSnapshot { name } => {
                let name = snapshot_name(&name)?;
                self.refuse_during_rebuild()?;
                let request = wire::Request::SnapshotDelete { name };
                self.broadcast(Some(id), MARK, request, false, Then::Nothing);
            }
            Command::Revert { name } => {
                let name = snapshot_name(&name)?;
                self.refuse_during_rebuild()?;
                // A replica that still merges refuses to revert, and would be left behind by those that are done.
                if self.purge_runs() {
                    return Err(CommandError::new(
                        "snapshots are being merged: try again when that is done",
                    ));
                }
                if self.frontend
                    != (FrontendState::Ready {
                        endpoint: Endpoint::Nowhere,
                    })
                {
                    return Err(CommandError::new(
                        "the volume has a front end: run its engine with the front end none to revert",
                    ));
                }
                let request = wire::Request::SnapshotRevert { name };
                self.broadcast(Some(id), REVERT, request, true, Then::Nothing);
            }
            Command::Purge => {
                self.refuse_during_rebuild()?;
                if self.purge_runs() {
                    return Err(CommandError::new("snapshots are being merged already"));
                }
                if self.revert_waits() {
                    return Err(CommandError::new(
                        "the volume is being reverted: try again when that is done",
                    ));
                }
                let request = wire::Request::SnapshotPurge;
                self.broadcast(Some(id), "purge", request, false, Then::Nothing);
            }
            Command::Expand { size_bytes } => {
                check_size(size_bytes).map_err(|error| CommandError::new(error.to_string()))?;
                self.refuse_during_rebuild()?;
                if size_bytes < self.size_bytes {
                    return Err(CommandError::new(outgrown(self.size_bytes).to_string()));
                }
                let request = wire::Request::Expand { size_bytes };
                self.broadcast(
                    Some(id),
                    "expand",
                    request,
                    false,
                    Then::Resize { size_bytes },
                );
            }
            Command::ListSnapshots => {
                self.add_task(Some(id), TaskKind::ListSnapshots { job: None });
            }
            Command::Rebuild { name, address } => self.begin_rebuild(id, &name, address)?,
            Command::RemoveReplica { name } => {
                self.remove_replica(&name)?;
                return Ok(Some(Answer::Done));
            }
            // A repeat: it is the writer already, and says itself who is in sync.
            Command::Follow { .. } | Command::Promote { .. } => return Ok(Some(Answer::Done)),
            Command::Status
            | Command::Shutdown
            | Command::SetRebuildRate { .. }
            | Command::SetAddress { .. }
            | Command::Subscribe
            | Command::AttachCommitter
            | Command::Commit { .. } => unreachable!("dealt with before"),
        }
        Ok(None)
    }

    pub(super) fn broadcast(
        &mut self,
        command: Option<CommandId>,
        label: &'static str,
        request: wire::Request,
        needs_barrier: bool,
        then: Then,
    ) {
        let flush = match request {
            wire::Request::SnapshotCreate { .. } => Flushes::Before,
            _ => Flushes::None,
        };
        let broadcast = Broadcast {
            label,
            flush,
            request,
            needs_barrier,
            fan: None,
            barrier_since: None,
            then,
        };
        self.add_task(command, TaskKind::Broadcast(broadcast));
    }

    pub(super) fn add_task(&mut self, command: Option<CommandId>, kind: TaskKind) -> TaskId {
        let id = TaskId(self.task_next);
        self.task_next += 1;
        let waits_for_barrier = matches!(&kind, TaskKind::Broadcast(it) if it.needs_barrier && it.flush == Flushes::None);
        self.tasks.insert(id, Task { command, kind });
        if waits_for_barrier {
            self.barrier_queue.push_back(id);
        }
        id
    }

    fn begin_rebuild(
        &mut self,
        command: CommandId,
        name: &str,
        address: String,
    ) -> Result<(), CommandError> {
        let name = ReplicaName::new(name).map_err(|error| CommandError::new(error.to_string()))?;
        let target = match self.find_member(&name) {
            Some(member) => {
                let state = &mut self.members[member.position()];
                if !matches!(state.role, Role::Out { .. }) {
                    return Err(CommandError::new(format!(
                        "replica {name} is a part of the volume already"
                    )));
                }
                state.to.address = address;
                state.link = Link::Down { retry_at: self.now };
                state.retries = 0;
                member
            }
            None => {
                let place = self.take_place(MemberAddress { name, address });
                place.ok_or_else(|| {
                    CommandError::new("the volume has too many replicas now: try again in a moment")
                })?
            }
        };
        let rebuild = Rebuild::new(target, self.now);
        let task = self.add_task(Some(command), TaskKind::Rebuild(Box::new(rebuild)));
        let state = &mut self.members[target.position()];
        state.role = Role::Joining { task, live: false };
        let member = state.name().to_string();
        self.out
            .push(Action::Notify(Notice::RebuildStarted { member }));
        self.connect_missing();
        Ok(())
    }

    fn remove_replica(&mut self, name: &str) -> Result<(), CommandError> {
        let name = ReplicaName::new(name).map_err(|error| CommandError::new(error.to_string()))?;
        let member = self
            .find_member(&name)
            .ok_or_else(|| CommandError::new(format!("the volume has no replica {name}")))?;
        if self.committed.contains(member) && !self.others_live(member) {
            return Err(CommandError::new(format!(
                "replica {name} is the last one in sync: rebuild another before"
            )));
        }
        if let Role::Joining { task, .. } = self.members[member.position()].role {
            self.end_rebuild(task, Err("removed".to_owned()));
        }
        self.fail_member(member, "removed by command");
        Ok(())
    }

    /// Lets every task take the steps that it can.
    pub(super) fn advance_tasks(&mut self) {
        if self.tasks.is_empty() {
            return;
        }
        // A snapshot has the same size on all members: none is taken while some of them have the new one.
        if self.barrier.is_none() && !self.expansion_runs() {
            self.barrier = self.barrier_queue.pop_front();
        }
        let ids: Vec<TaskId> = self.tasks.keys().copied().collect();
        for id in ids {
            let holds_barrier = self.barrier == Some(id) && self.writes_open == 0;
            // One behind the other: members that did two in different orders would refuse different ones.
            let may_expand = self.barrier.is_none() && !self.expansion_runs();
            let Some(task) = self.tasks.get_mut(&id) else {
                continue;
            };
            match &mut task.kind {
                TaskKind::Broadcast(broadcast) if broadcast.flush == Flushes::Before => {
                    broadcast.flush = Flushes::FlushingBefore;
                    self.start_fan(Origin::Task(id), wire::Request::SnapshotPrepare);
                }
                TaskKind::Broadcast(broadcast) => {
                    if broadcast.needs_barrier && self.barrier == Some(id) {
                        broadcast.barrier_since.get_or_insert(self.now);
                    }
                    let may_start = match &broadcast.request {
                        wire::Request::Expand { .. } => may_expand,
                        _ => holds_barrier || !broadcast.needs_barrier,
                    };
                    if broadcast.fan.is_none() && may_start {
                        let request = broadcast.request.clone();
                        if let wire::Request::Expand { size_bytes } = request
                            && size_bytes < self.size_bytes
                        {
                            self.end_broadcast(id, Err(outgrown(self.size_bytes)));
                            continue;
                        }
                        let fan = self.start_fan(Origin::Task(id), request);
                        if let Some(Task {
                            kind: TaskKind::Broadcast(broadcast),
                            ..
                        }) = self.tasks.get_mut(&id)
                        {
                            broadcast.fan = Some(fan);
                        }
                    }
                }
                TaskKind::ListSnapshots { job } => {
                    let gone = job.is_none_or(|job| !self.jobs.contains_key(&job));
                    if gone && let Some(member) = self.choose_reader(MemberSet::default()) {
                        let sent = self.send(member, Purpose::Task(id), wire::Request::ListLayers);
                        if let Some(Task {
                            kind: TaskKind::ListSnapshots { job },
                            ..
                        }) = self.tasks.get_mut(&id)
                        {
                            *job = Some(sent);
                        }
                    }
                }
                TaskKind::Rebuild(_) => self.advance_rebuild(id, holds_barrier),
                TaskKind::Reconcile(_) => self.advance_reconcile(id, holds_barrier),
            }
        }
    }

    pub(super) fn release_barrier(&mut self, id: TaskId) {
        self.barrier_queue.retain(|waiting| *waiting != id);
        if self.barrier == Some(id) {
            self.barrier = None;
            self.wake_waiting();
        }
    }

    /// All members have done what a task asked for, or all have refused.
    pub(super) fn on_task_fan(
        &mut self,
        id: TaskId,
        message: wire::Request,
        result: Result<(), Failure>,
    ) {
        // Also when it failed: some members may have done it before they were left behind.
        if changes_snapshots(&message) {
            self.snapshots_version += 1;
        }
        match self.tasks.get(&id).map(|task| &task.kind) {
            Some(TaskKind::Broadcast(_)) => self.finish_broadcast(id, result),
            Some(TaskKind::Rebuild(_)) => self.rebuild_fan_done(id, result),
            Some(TaskKind::Reconcile(_)) => self.reconcile_fan_done(id, &result),
            Some(TaskKind::ListSnapshots { .. }) => {}
            // A rebuild that was ended while its snapshot was being taken.
            None => {
                if let wire::Request::SnapshotCreate {
                    name,
                    user_created: false,
                    ..
                } = message
                {
                    self.delete_system_snapshot(Some(name));
                }
            }
        }
    }

    fn finish_broadcast(&mut self, id: TaskId, result: Result<(), Failure>) {
        let Some(Task {
            kind: TaskKind::Broadcast(broadcast),
            ..
        }) = self.tasks.get_mut(&id)
        else {
            return;
        };
        match broadcast.flush {
            Flushes::Before | Flushes::FlushingBefore => {
                // If it failed, the snapshot itself will as well, and says why.
                broadcast.flush = Flushes::Between;
                self.barrier_queue.push_back(id);
            }
            Flushes::Between if result.is_ok() => {
                broadcast.flush = Flushes::FlushingBehind;
                self.end_barrier_of(id);
                self.start_fan(Origin::Task(id), wire::Request::Flush);
            }
            Flushes::None | Flushes::Between | Flushes::FlushingBehind => {
                self.end_barrier_of(id);
                self.end_broadcast(id, result);
            }
        }
    }

    /// Lets writes go on behind a broadcast that held them back.
    fn end_barrier_of(&mut self, id: TaskId) {
        if let Some(Task {
            kind: TaskKind::Broadcast(broadcast),
            ..
        }) = self.tasks.get_mut(&id)
            && let Some(since) = broadcast.barrier_since.take()
        {
            self.statistics.barrier.record(self.now.since_us(since));
        }
        self.release_barrier(id);
    }

    fn end_broadcast(&mut self, id: TaskId, result: Result<(), Failure>) {
        let Some(Task {
            command,
            kind: TaskKind::Broadcast(broadcast),
        }) = self.tasks.remove(&id)
        else {
            return;
        };
        let result = match result {
            Ok(()) => {
                self.follow(broadcast.then);
                Ok(Answer::Done)
            }
            Err(failure) => Err(CommandError::new(format!(
                "cannot {}: {failure}",
                broadcast.label
            ))),
        };
        if let Some(command) = command {
            self.out.push(Action::Answer { command, result });
        }
    }

    fn follow(&mut self, then: Then) {
        match then {
            Then::Nothing => {}
            Then::Resize { size_bytes } => {
                self.size_bytes = self.size_bytes.max(size_bytes);
                for member in &mut self.members {
                    member.size_bytes = member.size_bytes.max(size_bytes);
                }
                self.out.push(Action::ResizeFrontend {
                    size_bytes: self.size_bytes,
                });
            }
            Then::Purge => {
                // Else the next purge takes them along.
                if self.refuse_during_rebuild().is_ok() && !self.revert_waits() {
                    self.broadcast(
                        None,
                        "purge",
                        wire::Request::SnapshotPurge,
                        false,
                        Then::Nothing,
                    );
                }
            }
        }
    }

    pub(super) fn on_task_reply(
        &mut self,
        id: TaskId,
        member: MemberIndex,
        job: JobId,
        reply: Reply,
    ) {
        match self.tasks.get(&id).map(|task| &task.kind) {
            Some(TaskKind::ListSnapshots { .. }) => {
                let result = match reply {
                    Reply::Layers(layers) => Ok(Answer::Snapshots(report_snapshots(layers))),
                    Reply::Failed(failure) => Err(CommandError::new(format!(
                        "cannot list snapshots: {failure}"
                    ))),
                    _ => Err(CommandError::new(
                        "a replica answered something else than layers",
                    )),
                };
                if let Some(command) = self.tasks.remove(&id).and_then(|task| task.command) {
                    self.out.push(Action::Answer { command, result });
                }
            }
            Some(TaskKind::Rebuild(_)) => self.on_rebuild_reply(id, job, reply),
            Some(TaskKind::Reconcile(_)) => self.on_reconcile_reply(id, member, job, reply),
            Some(TaskKind::Broadcast(_)) | None => {}
        }
    }
}

fn verdict_of(verdict: Verdict) -> CommitVerdict {
    match verdict {
        Verdict::Recorded => CommitVerdict::Recorded,
        Verdict::NotNow { why } => CommitVerdict::NotNow(why),
        Verdict::Fenced { why } => CommitVerdict::Fenced(why),
    }
}

/// Why a volume of this size does not become smaller.
fn outgrown(size_bytes: u64) -> Failure {
    Failure::new(
        StatusCode::BadRequest,
        format!("the volume has {size_bytes} bytes and cannot become smaller"),
    )
}

fn snapshot_name(name: &str) -> Result<SnapshotName, CommandError> {
    SnapshotName::new(name).map_err(|error| CommandError::new(error.to_string()))
}

fn changes_snapshots(request: &wire::Request) -> bool {
    matches!(
        request,
        wire::Request::SnapshotCreate { .. }
            | wire::Request::SnapshotDelete { .. }
            | wire::Request::SnapshotRevert { .. }
            | wire::Request::SnapshotPurge
    )
}

fn report_snapshots(layers: Vec<wire::LayerInfo>) -> Vec<SnapshotReport> {
    let live = layers.iter().find(|layer| layer.layer == LayerRef::Head);
    let below_live = live.and_then(|live| live.parent.clone());
    let report = |layer: wire::LayerInfo| {
        let LayerRef::Snapshot(name) = layer.layer else {
            return None;
        };
        Some(SnapshotReport {
            below_live: below_live.as_ref() == Some(&name),
            name: name.to_string(),
            parent: layer.parent.map(|parent| parent.to_string()),
            created_unix_ms: layer.created_unix_ms,
            user_created: layer.user_created,
            removed: layer.removed,
            size_bytes: layer.size_bytes,
            allocated_bytes: layer.allocated_bytes,
        })
    };
    layers.into_iter().filter_map(report).collect()
}
