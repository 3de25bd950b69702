//! What is under way, for those who must not come in between.

use block_core::wire;

use super::{Broadcast, TaskKind};
use crate::control::CommandError;
use crate::core::EngineCore;

impl EngineCore {
    pub(super) fn refuse_during_rebuild(&self) -> Result<(), CommandError> {
        let rebuilding = self.tasks.values().any(|task| match &task.kind {
            TaskKind::Rebuild(_) => true,
            TaskKind::Reconcile(reconcile) => !reconcile.is_resting(),
            TaskKind::Broadcast(_) | TaskKind::ListSnapshots { .. } => false,
        });
        if rebuilding {
            return Err(CommandError::new(
                "replicas are being rebuilt or compared: try again when that is done",
            ));
        }
        Ok(())
    }

    pub(in crate::core) fn purge_runs(&self) -> bool {
        self.any_broadcast(|it| matches!(it.request, wire::Request::SnapshotPurge))
    }

    /// Whether a revert was accepted that has not come to its end.
    pub(super) fn revert_waits(&self) -> bool {
        self.any_broadcast(|it| matches!(it.request, wire::Request::SnapshotRevert { .. }))
    }

    /// Whether members are being asked to expand. It holds back what needs a barrier, and no writes: to expand may take long.
    pub(super) fn expansion_runs(&self) -> bool {
        self.any_broadcast(|it| {
            matches!(it.request, wire::Request::Expand { .. }) && it.fan.is_some()
        })
    }

    fn any_broadcast(&self, is_meant: impl Fn(&Broadcast) -> bool) -> bool {
        self.tasks.values().any(|task| match &task.kind {
            TaskKind::Broadcast(broadcast) => is_meant(broadcast),
            _ => false,
        })
    }
}
