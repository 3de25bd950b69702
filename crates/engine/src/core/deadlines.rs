//! How long a member may take.
//!
//! What needs no more than a member's memory, or a little of its disk, has a deadline. What takes time by the amount of data
//! has none: a flush writes all that was written since the last one, and on a slow disk that is minutes for a healthy
//! replica. Such a request waits for as long as the member answers others, of which pings see to that there are some; one that is silent is left behind
//! after the same time as one that misses a deadline.

use block_core::wire::{Flags, Request};

use super::{EngineCore, Job, MemberIndex};

/// Whether a member that has not answered this in time cannot be used, whatever else it answers.
pub fn has_deadline(request: &Request) -> bool {
    match request {
        Request::Write { flags, .. } | Request::WriteZeroes { flags, .. } => {
            !flags.contains(Flags::FORCE_UNIT_ACCESS)
        }
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
        let since = if job.has_deadline {
            job.sent_at
        } else {
            let heard_at = self.members[job.member.position()].heard_at;
            job.sent_at.max(heard_at)
        };
        self.now.since_us(since) >= self.config.job_deadline_us
    }
}
