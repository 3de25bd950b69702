//! Which in-flight jobs must wait for which.
//!
//! Jobs that touch a common block run in the order in which they came, unless both only read. Everything else may
//! run at once and finish in any order. A barrier (a snapshot) comes after all earlier jobs and before all later ones.
//!
//! Blocks, not bytes: a replica may have to read a block to write a sector of it, so two writes of different sectors
//! of one block conflict as well.

use std::collections::{BTreeMap, HashMap};

use crate::geometry::BlockRange;

/// A job's place in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// What a job touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read(BlockRange),
    Write(BlockRange),
    /// Touches everything.
    Barrier,
}

impl Access {
    fn range(&self) -> BlockRange {
        match self {
            Self::Read(range) | Self::Write(range) => *range,
            Self::Barrier => BlockRange {
                first: 0,
                end: u64::MAX,
            },
        }
    }

    /// Whether two jobs must keep their order.
    #[must_use]
    pub fn conflicts_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Barrier, _) | (_, Self::Barrier) => true,
            (Self::Read(_), Self::Read(_)) => false,
            (Self::Read(one) | Self::Write(one), Self::Read(two) | Self::Write(two)) => {
                one.overlaps(two)
            }
        }
    }
}

/// The jobs that were begun and not completed.
#[derive(Debug, Default)]
pub struct ActiveJobs {
    jobs: HashMap<JobId, Job>,
    /// Jobs by where they start. A job that overlaps a range starts before its end and not earlier than the longest
    /// active job before its start, so looking for overlaps is a short walk.
    by_first_block: BTreeMap<(u64, JobId), Access>,
    /// The longest range among the active jobs, or among those since there were none.
    blocks_longest: u64,
    newest: Option<JobId>,
}

#[derive(Debug)]
struct Job {
    access: Access,
    /// Earlier jobs that conflict and are not complete.
    waits_for: usize,
    /// Later jobs that count this one among theirs.
    awaited_by: Vec<JobId>,
}

impl ActiveJobs {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a job behind all others and says whether it may run at once.
    ///
    /// # Panics
    /// If `id` is not larger than all before it: the order of ids is the order of jobs.
    pub fn insert(&mut self, id: JobId, access: Access) -> bool {
        assert!(
            self.newest.is_none_or(|newest| newest < id),
            "job {id:?} is not the newest"
        );
        self.newest = Some(id);
        let mut job = Job {
            access,
            waits_for: 0,
            awaited_by: Vec::new(),
        };
        let range = access.range();
        let earliest_block = range.first.saturating_sub(self.blocks_longest);
        let candidates = self
            .by_first_block
            .range((earliest_block, JobId(0))..(range.end.max(1), JobId(0)));
        for ((_, other), other_access) in candidates {
            if access.conflicts_with(other_access) {
                job.waits_for += 1;
                let earlier = self
                    .jobs
                    .get_mut(other)
                    .expect("both maps have the same jobs");
                earlier.awaited_by.push(id);
            }
        }
        let ready = job.waits_for == 0;
        self.blocks_longest = self.blocks_longest.max(range.blocks());
        self.by_first_block.insert((range.first, id), access);
        self.jobs.insert(id, job);
        ready
    }

    /// Removes a job, whether it ran or was given up, and returns the jobs that may run now, oldest first.
    ///
    /// # Panics
    /// If there is no such job: completing one twice would let others run too early.
    pub fn complete(&mut self, id: JobId) -> Vec<JobId> {
        let job = self.jobs.remove(&id).expect("a job is completed once");
        self.by_first_block.remove(&(job.access.range().first, id));
        if self.jobs.is_empty() {
            self.blocks_longest = 0;
        }
        let mut ready = Vec::new();
        for later in job.awaited_by {
            // It may have been given up while it waited.
            if let Some(waiting) = self.jobs.get_mut(&later) {
                waiting.waits_for -= 1;
                if waiting.waits_for == 0 {
                    ready.push(later);
                }
            }
        }
        ready.sort_unstable();
        ready
    }

    /// Whether nothing stands before this job.
    #[must_use]
    pub fn is_ready(&self, id: JobId) -> bool {
        self.jobs.get(&id).is_some_and(|job| job.waits_for == 0)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Slow and obvious: a job may run when no earlier job that is still there conflicts with it.
    #[derive(Default)]
    struct Oracle {
        jobs: Vec<(JobId, Access)>,
    }

    impl Oracle {
        fn is_ready(&self, id: JobId) -> bool {
            let at = self
                .jobs
                .iter()
                .position(|(other, _)| *other == id)
                .expect("a job");
            let access = self.jobs[at].1;
            self.jobs[..at]
                .iter()
                .all(|(_, earlier)| !access.conflicts_with(earlier))
        }

        fn ready(&self) -> Vec<JobId> {
            self.jobs
                .iter()
                .map(|(id, _)| *id)
                .filter(|id| self.is_ready(*id))
                .collect()
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(Access),
        /// Completes the n-th of the jobs that are there, ready or not.
        Complete(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = (0_u64..40, 0_u64..12).prop_map(|(first, blocks)| BlockRange {
            first,
            end: first + blocks,
        });
        prop_oneof![
            4 => range.clone().prop_map(|range| Step::Insert(Access::Read(range))),
            6 => range.prop_map(|range| Step::Insert(Access::Write(range))),
            1 => Just(Step::Insert(Access::Barrier)),
            8 => (0_usize..32).prop_map(Step::Complete),
        ]
    }

    proptest! {
        #[test]
        fn jobs_run_as_the_oracle_says(steps in proptest::collection::vec(step(), 1..200)) {
            let mut fast = ActiveJobs::new();
            let mut oracle = Oracle::default();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(access) => {
                        let id = JobId(number as u64);
                        oracle.jobs.push((id, access));
                        prop_assert_eq!(fast.insert(id, access), oracle.is_ready(id));
                    }
                    Step::Complete(_) if oracle.jobs.is_empty() => {}
                    Step::Complete(nth) => {
                        let before = oracle.ready();
                        let (id, _) = oracle.jobs.remove(nth % oracle.jobs.len());
                        let mut wanted = oracle.ready();
                        wanted.retain(|ready| !before.contains(ready));
                        prop_assert_eq!(fast.complete(id), wanted);
                    }
                }
                prop_assert_eq!(fast.len(), oracle.jobs.len());
                for (id, _) in &oracle.jobs {
                    prop_assert_eq!(fast.is_ready(*id), oracle.is_ready(*id));
                }
            }
        }
    }

    #[test]
    fn sectors_of_one_block_keep_their_order() {
        let mut jobs = ActiveJobs::new();
        assert!(jobs.insert(JobId(1), Access::Write(BlockRange::touched_by(0, 512))));
        assert!(!jobs.insert(JobId(2), Access::Write(BlockRange::touched_by(512, 512))));
        assert!(jobs.insert(JobId(3), Access::Write(BlockRange::touched_by(4096, 512))));
        assert_eq!(jobs.complete(JobId(1)), [JobId(2)]);
    }
}
