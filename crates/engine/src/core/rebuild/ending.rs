//! How rebuilds end: joined, broken off and begun again, or given up.

use block_core::SnapshotName;
use block_core::wire;

use super::super::member::Role;
use super::super::reconcile;
use super::super::tasks::{Task, TaskId, TaskKind, Then};
use super::super::{Action, EngineCore, Job, MemberIndex, Purpose};
use super::{ATTEMPTS_MAX, NAME_PREFIX, RETRY_FIRST_US, Rebuild, Step};
use crate::control::{Answer, CommandError, Notice};

impl EngineCore {
    /// A rebuild lost its target or its source, or was refused something: it begins again, or gives up.
    pub(in crate::core) fn rebuild_interrupted(&mut self, id: TaskId, why: &str) {
        let now = self.now;
        if let Some(rebuild) = self.rebuild_mut(id) {
            rebuild.begin_at = now.after(RETRY_FIRST_US << rebuild.attempts);
            rebuild.attempts += 1;
        }
        self.rebuild_again(id, why);
    }

    pub(super) fn rebuild_again(&mut self, id: TaskId, why: &str) {
        let Some(rebuild) = self.rebuild_mut(id) else {
            return;
        };
        rebuild.jobs.clear();
        rebuild.queue.clear();
        rebuild.source = None;
        rebuild.barrier_since = None;
        let (target, attempts) = (rebuild.target, rebuild.attempts);
        if matches!(rebuild.step, Step::Snapshotting) {
            rebuild.abandoned = true;
        } else {
            rebuild.step = Step::Connecting;
            let snapshot = rebuild.snapshot.take();
            self.delete_rebuild_snapshot(snapshot);
            self.release_rebuild_barrier();
            self.barrier_queue.retain(|waiting| *waiting != id);
        }
        self.forget_target_requests(id, target);
        let member = self.members[target.position()].name().to_string();
        if attempts >= ATTEMPTS_MAX {
            self.end_rebuild(id, Err(why.to_owned()));
            return;
        }
        self.members[target.position()].role = Role::Joining {
            task: id,
            live: false,
        };
        self.out.push(Action::Notify(Notice::RebuildInterrupted {
            member,
            why: why.to_owned(),
        }));
    }

    /// What the target has not answered yet must not run behind the next beginning, and it may do requests in any order: a
    /// new connection sees to that.
    fn forget_target_requests(&mut self, id: TaskId, target: MemberIndex) {
        let asked = |job: &Job| job.member == target && job.purpose == Purpose::Task(id);
        if self.members[target.position()].is_up() && self.jobs.values().any(asked) {
            self.disconnect(target, "a rebuild broke off");
        }
    }

    /// A member failed that rebuilds may be reading from.
    pub(in crate::core) fn source_lost(&mut self, member: MemberIndex) {
        let affected: Vec<TaskId> = self
            .tasks
            .iter()
            .filter(|(_, task)| match &task.kind {
                TaskKind::Rebuild(rebuild) => {
                    rebuild.source == Some(member)
                        && !matches!(rebuild.step, Step::Committing | Step::Joining)
                }
                _ => false,
            })
            .map(|(id, _)| *id)
            .collect();
        for id in affected {
            self.rebuild_interrupted(id, "the replica that was copied from is lost");
        }
    }

    pub(in crate::core) fn end_rebuild(&mut self, id: TaskId, result: Result<(), String>) {
        let Some(Task {
            command,
            kind: TaskKind::Rebuild(rebuild),
        }) = self.tasks.remove(&id)
        else {
            return;
        };
        self.barrier_queue.retain(|waiting| *waiting != id);
        self.release_rebuild_barrier();
        if result.is_ok() {
            // A comparison that is under way deletes its own.
            let compares = self.reconcile_runs();
            for name in left_over(&rebuild) {
                if !(compares && name.as_str().starts_with(reconcile::NAME_PREFIX)) {
                    self.delete_rebuild_snapshot(Some(name));
                }
            }
        }
        // One that is still being taken is deleted when that is done.
        if !matches!(rebuild.step, Step::Snapshotting) {
            self.delete_rebuild_snapshot(rebuild.snapshot);
        }
        let state = &mut self.members[rebuild.target.position()];
        let member = state.name().to_string();
        let answer = match result {
            Ok(()) => {
                let copied_bytes = rebuild.copied_bytes;
                self.out.push(Action::Notify(Notice::RebuildFinished {
                    member,
                    copied_bytes,
                }));
                Ok(Answer::Done)
            }
            Err(why) => {
                if matches!(state.role, Role::Joining { .. }) {
                    state.role = Role::Out { why: why.clone() };
                    self.disconnect(rebuild.target, &why);
                }
                let notice = Notice::RebuildFailed {
                    member: member.clone(),
                    why: why.clone(),
                };
                self.out.push(Action::Notify(notice));
                Err(CommandError::new(format!(
                    "cannot rebuild replica {member}: {why}"
                )))
            }
        };
        if let Some(command) = command {
            self.out.push(Action::Answer {
                command,
                result: answer,
            });
        }
    }

    /// The last of the rebuilds that share a snapshot deletes it.
    pub(super) fn delete_rebuild_snapshot(&mut self, snapshot: Option<SnapshotName>) {
        let shared = self.tasks.values().any(|task| match &task.kind {
            TaskKind::Rebuild(rebuild) => rebuild.snapshot == snapshot,
            _ => false,
        });
        if !shared {
            self.delete_system_snapshot(snapshot);
        }
    }

    /// What the engine made for itself goes away again, and its space is given back.
    pub(in crate::core) fn delete_system_snapshot(&mut self, snapshot: Option<SnapshotName>) {
        if let Some(name) = snapshot {
            let request = wire::Request::SnapshotDelete { name };
            self.broadcast(None, "delete snapshot", request, false, Then::Purge);
        }
    }
}

/// The snapshots of engines that were killed while they rebuilt or compared, and of a comparison that ended, and deleted its own,
/// while it was being copied: nobody else deletes them.
fn left_over(rebuild: &Rebuild) -> Vec<SnapshotName> {
    let layers = rebuild.layers.iter();
    layers
        .filter(|layer| !layer.user_created && !layer.removed)
        .map(|layer| &layer.name)
        .filter(|name| {
            let own = [NAME_PREFIX, reconcile::NAME_PREFIX];
            own.iter().any(|prefix| name.as_str().starts_with(prefix))
        })
        .filter(|name| Some(*name) != rebuild.snapshot.as_ref())
        .cloned()
        .collect()
}
