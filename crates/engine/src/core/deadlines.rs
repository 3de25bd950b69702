//! How long a member may take.
//!
//! What needs no more than a member's memory, or a little of its disk, has a deadline. What takes time by the amount of data
//! has none: a flush writes all that was written since the last one, and on a slow disk that is minutes for a healthy
//! replica. Such a request waits for as long as the member answers others, of which pings see to that there are some; one that is silent is left behind
//! after the same time as one that misses a deadline. A disk that hangs while its replica lives is told by the others: all have the same data to make
//! durable, and one that takes several times as long as the first is left behind too.

use block_core::wire::{Flags, Request};

use super::data::Fan;
use super::{EngineCore, Job, MemberIndex, Purpose};

/// A member may take this many times as long as the first one to make the same data durable, and this many deadlines in any case: one
/// machine may have written back more by itself than the other.
const SYNC_PATIENCE: u64 = 4;

/// Whether it is done when all that was written before is on the disk.
pub fn syncs(request: &Request) -> bool {
    match request {
        Request::Write { flags, .. } | Request::WriteZeroes { flags, .. } => {
            flags.contains(Flags::FORCE_UNIT_ACCESS)
        }
        Request::Flush | Request::SnapshotPrepare => true,
        _ => false,
    }
}

/// Whether a member that has not answered this in time cannot be used, whatever else it answers.
pub fn has_deadline(request: &Request) -> bool {
    match request {
        Request::Write { .. } | Request::WriteZeroes { .. } => !syncs(request),
        Request::Flush
        | Request::SnapshotPrepare
        | Request::SnapshotPurge
        | Request::SnapshotRevert { .. }
        | Request::SnapshotDigest { .. }
        | Request::VolumeDigest
        | Request::LayerHashes { .. }
        | Request::RebuildBegin { .. }
        | Request::RebuildVerify { .. }
        | Request::RebuildCommit => false,
        Request::Hello(_)
        | Request::Prove(_)
        | Request::CreateVolume { .. }
        | Request::OpenVolume { .. }
        | Request::Read { .. }
        | Request::Discard { .. }
        | Request::SnapshotCreate { .. }
        | Request::SnapshotDelete { .. }
        | Request::Expand { .. }
        | Request::ListLayers
        | Request::LayerExtents { .. }
        | Request::ReadLayer { .. }
        | Request::RebuildWrite { .. }
        | Request::RebuildMark { .. }
        | Request::Status
        | Request::SetMeta(_)
        | Request::Goodbye { .. } => true,
    }
}

impl EngineCore {
    /// Members that have missed a deadline, or are silent while something is asked of them.
    pub(super) fn late_members(&self) -> Vec<MemberIndex> {
        let late = self.jobs.values().filter(|job| self.is_late(job));
        late.map(|job| job.member).collect()
    }

    fn is_late(&self, job: &Job) -> bool {
        let deadline_us = self.config.job_deadline_us;
        if job.has_deadline {
            return self.now.since_us(job.sent_at) >= deadline_us;
        }
        let heard_at = self.members[job.member.position()].heard_at;
        let is_silent = self.now.since_us(job.sent_at.max(heard_at)) >= deadline_us;
        is_silent || self.is_outpaced(job)
    }

    fn is_outpaced(&self, job: &Job) -> bool {
        let Purpose::Leg(fan) = job.purpose else {
            return false;
        };
        let first_us = self.fans.get(&fan).and_then(Fan::first_sync_us);
        first_us.is_some_and(|first_us| {
            let patience_us = SYNC_PATIENCE * first_us.max(self.config.job_deadline_us);
            self.now.since_us(job.sent_at) >= patience_us
        })
    }
}
