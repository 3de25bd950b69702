//! What an engine does besides serving I/O: filling a new volume (clone, restore) and growing it.

use super::draft::Draft;
use super::is_wanted;
use crate::identity::ReplicaName;
use crate::placement::{Place, has_room_to_grow};
use crate::plan::{
    CloneState, EngineSpec, Job, ReplicaRole, RestoreState, Robustness, VolumeStatus,
};
use crate::reason::Reason;
use crate::view::{DataSource, JobProgress};

/// A new volume with a source has to be filled before anyone may see its device.
pub(super) fn open(draft: &mut Draft<'_>) {
    match &draft.view.volume.source {
        DataSource::Empty => {}
        DataSource::Clone { .. } => {
            if draft.status.clone == CloneState::NotNeeded {
                draft.status.clone = CloneState::Initiated;
            }
        }
        DataSource::Restore { .. } => {
            if draft.status.restore == RestoreState::NotNeeded {
                draft.status.restore = RestoreState::Required;
            }
        }
    }
}

/// Is the content still incomplete?
pub(super) fn is_filling(status: &VolumeStatus) -> bool {
    let restoring = matches!(
        status.restore,
        RestoreState::Required | RestoreState::Failed { .. }
    );
    let cloning = matches!(
        status.clone,
        CloneState::Initiated | CloneState::Failed { .. }
    );
    restoring || cloning
}

/// Learns how far the writer's job is.
pub(super) fn follow(draft: &mut Draft<'_>) {
    let Some(running) = draft.running_writer() else {
        return;
    };
    if running.size_bytes > 0 {
        draft.status.size_bytes = running.size_bytes;
    }
    follow_restore(draft, running.job.as_ref());
    follow_clone(draft, running.job.as_ref());
}

/// Gives a running writer its job.
pub(super) fn assign(draft: &mut Draft<'_>) {
    let job = next_job(draft);
    if draft.running_writer().is_some()
        && let Some(spec) = writer_mut(draft)
    {
        spec.job = job;
    }
}

fn follow_restore(draft: &mut Draft<'_>, progress: Option<&JobProgress>) {
    if draft.status.restore != RestoreState::Required {
        if let RestoreState::Failed { message } = draft.status.restore.clone() {
            draft.say(Reason::RestoreFailed { message });
        }
        return;
    }
    match progress {
        Some(JobProgress::Completed) => draft.status.restore = RestoreState::Completed,
        Some(JobProgress::Failed { message }) => {
            draft.status.restore = RestoreState::Failed {
                message: message.clone(),
            };
            draft.say(Reason::RestoreFailed {
                message: message.clone(),
            });
        }
        Some(JobProgress::Running { percent }) => {
            draft.say(Reason::Restoring { percent: *percent });
        }
        None => draft.say(Reason::Restoring { percent: 0 }),
    }
}

fn follow_clone(draft: &mut Draft<'_>, progress: Option<&JobProgress>) {
    match draft.status.clone.clone() {
        CloneState::NotNeeded | CloneState::Completed => {}
        CloneState::Failed { message } => draft.say(Reason::CloneFailed { message }),
        CloneState::CopyCompletedAwaitingHealthy => {
            if super::robustness(draft) == Robustness::Healthy {
                draft.status.clone = CloneState::Completed;
            }
        }
        CloneState::Initiated => match progress {
            Some(JobProgress::Completed) => {
                // A healthy copy has nothing to await.
                let healthy = super::robustness(draft) == Robustness::Healthy;
                draft.status.clone = if healthy {
                    CloneState::Completed
                } else {
                    CloneState::CopyCompletedAwaitingHealthy
                };
            }
            Some(JobProgress::Failed { message }) => {
                draft.status.clone = CloneState::Failed {
                    message: message.clone(),
                };
                draft.say(Reason::CloneFailed {
                    message: message.clone(),
                });
            }
            Some(JobProgress::Running { percent }) => {
                draft.say(Reason::Cloning { percent: *percent });
            }
            None => draft.say(Reason::Cloning { percent: 0 }),
        },
    }
}

fn next_job(draft: &Draft<'_>) -> Option<Job> {
    match &draft.view.volume.source {
        DataSource::Restore { backup } if draft.status.restore == RestoreState::Required => {
            Some(Job::RestoreFrom {
                backup: backup.clone(),
            })
        }
        DataSource::Clone { volume, snapshot } if draft.status.clone == CloneState::Initiated => {
            Some(Job::CloneFrom {
                volume: volume.clone(),
                snapshot: snapshot.clone(),
            })
        }
        DataSource::Empty | DataSource::Restore { .. } | DataSource::Clone { .. } => None,
    }
}

/// Growing: every replica's disk must have room first, then the replicas and the engine are told.
pub(super) fn expand(draft: &mut Draft<'_>) {
    let (wanted, actual) = (draft.view.volume.size_bytes, draft.status.size_bytes);
    draft.status.expansion_required = actual > 0 && wanted > actual;
    if wanted < actual {
        draft.say(Reason::ShrinkRefused {
            from_bytes: actual,
            to_bytes: wanted,
        });
    }
    if !draft.status.expansion_required || draft.running_writer().is_none() {
        return;
    }
    // A replica that is being copied would have to be copied at two sizes.
    let is_rebuilding = draft.writer().is_some_and(|(_, spec)| {
        spec.replicas
            .values()
            .any(|role| *role == ReplicaRole::Rebuild)
    });
    if is_rebuilding {
        return;
    }
    let members: Vec<ReplicaName> = draft.status.record.members.iter().cloned().collect();
    for name in &members {
        let Some(spec) = draft.replicas.get(name) else {
            continue;
        };
        let growth_bytes = wanted.saturating_sub(spec.size_bytes);
        let Some(disk) = draft.view.disk(&spec.node, &spec.disk) else {
            continue;
        };
        if growth_bytes > 0 && !has_room_to_grow(disk, growth_bytes, &draft.view.settings) {
            let place = Place {
                node: spec.node.clone(),
                disk: spec.disk.clone(),
            };
            draft.say(Reason::ExpansionBlocked {
                place,
                growth_bytes,
            });
            return;
        }
    }
    for name in &members {
        if let Some(spec) = draft.replicas.get_mut(name) {
            spec.size_bytes = spec.size_bytes.max(wanted);
        }
    }
    // A standby must know it too: it reads the same replicas.
    for spec in draft
        .engines
        .values_mut()
        .filter(|spec| is_wanted(spec.desired))
    {
        spec.size_bytes = wanted;
    }
    draft.say(Reason::Expanding {
        from_bytes: actual,
        to_bytes: wanted,
    });
}

fn writer_mut<'d>(draft: &'d mut Draft<'_>) -> Option<&'d mut EngineSpec> {
    let name = draft.writer()?.0.clone();
    draft.engines.get_mut(&name)
}
