//! How long a member may take.
//!
//! What needs no more than a member's memory, or a little of its disk, has a deadline. What takes time by the amount of data
//! has none: a flush writes all that was written since the last one, and on a slow disk that is minutes for a healthy
//! replica. Such a request waits for as long as the member answers others, of which pings see to that there are some; one that is silent is left behind
//! after the same time as one that misses a deadline. A disk that hangs while its replica lives is told by the others: those that have flushed together
//! before have the same data to make durable, and one that takes several times as long as the first is left behind too, while another is there.

use std::fmt;

use block_core::wire::{Flags, Request};

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
        Request::Flush | Request::SnapshotPrepare | Request::Expand { .. } => true,
        _ => false,
    }
}

/// Whether a member that has not answered this in time cannot be used, whatever else it answers.
pub fn has_deadline(request: &Request) -> bool {
    match request {
        Request::Write { .. } | Request::WriteZeroes { .. } => !syncs(request),
        Request::Flush
        | Request::Expand { .. }
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

/// Why a member cannot be waited for.
#[derive(Clone, Copy, Debug)]
pub enum Lateness {
    NoAnswer {
        waited_us: u64,
    },
    /// It lives, and others made the same durable in this time.
    Outpaced {
        waited_us: u64,
        first_us: u64,
    },
}

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer { waited_us } => write!(f, "no answer in {} ms", waited_us / 1000),
            Self::Outpaced {
                waited_us,
                first_us,
            } => write!(
                f,
                "its disk has not taken in {} ms what another took in {} ms",
                waited_us / 1000,
                first_us / 1000
            ),
        }
    }
}

impl EngineCore {
    /// Members that have missed a deadline, or are silent while something is asked of them.
    pub(super) fn late_members(&self) -> Vec<(MemberIndex, Lateness)> {
        let late = self.jobs.values().filter_map(|job| {
            let why = self.lateness(job)?;
            Some((job.member, why))
        });
        late.collect()
    }

    fn lateness(&self, job: &Job) -> Option<Lateness> {
        let waited_us = self.config.job_deadline_us;
        let since = if job.has_deadline {
            job.sent_at
        } else {
            let heard_at = self.members[job.member.position()].heard_at;
            job.sent_at.max(heard_at)
        };
        if self.now.since_us(since) >= waited_us {
            return Some(Lateness::NoAnswer { waited_us });
        }
        self.outpaced(job)
    }

    fn outpaced(&self, job: &Job) -> Option<Lateness> {
        let Purpose::Leg(fan) = job.purpose else {
            return None;
        };
        let first_us = self.fans.get(&fan)?.first_sync_us()?;
        let waited_us = self.now.since_us(job.sent_at);
        let patience_us = SYNC_PATIENCE * first_us.max(self.config.job_deadline_us);
        // To cut off the last one would only have it begin again.
        (waited_us >= patience_us && self.others_live(job.member)).then_some(Lateness::Outpaced {
            waited_us,
            first_us,
        })
    }
}
