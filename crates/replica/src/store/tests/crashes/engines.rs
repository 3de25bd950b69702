//! What a replica keeps for engines: which of them it obeys, and their record of the in-sync set.
//!
//! One file has both, and each change replaces all of it. So the oracle takes them for one value, of which it knows, as of a
//! sector, what it is now and what it may be after a crash. An answer makes these the same: nothing older comes back.

use block_core::epoch::Tenure;
use block_core::wire::SyncMeta;
use block_core::{Epoch, ReplicaName, SnapshotName};

use super::restarts::End;
use super::{Harness, SECTOR};
use crate::disk::faulty::{Fault, FaultyDisk};
use crate::store::{Replica, StoreError, WriteOptions};

const FIRST: Tenure = Tenure {
    epoch: Epoch(7),
    session: 1,
};

#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    epoch: Epoch,
    record: Option<(Epoch, SyncMeta)>,
}

impl Kept {
    fn of(replica: &Replica<FaultyDisk>) -> Self {
        let state = replica.shared();
        Self {
            epoch: state.metadata.accepted_epoch,
            record: state.metadata.sync.clone(),
        }
    }

    /// What an engine makes of it by opening the replica: nobody has ended in order any more.
    fn opened_by(mut self, epoch: Epoch) -> Self {
        self.epoch = epoch;
        if let Some((_, sync)) = &mut self.record {
            sync.clean = false;
        }
        self
    }
}

pub(super) struct Engines {
    /// Who makes the steps.
    pub tenure: Tenure,
    /// Who made them before. Nothing is taken of it.
    former: Tenure,
    now: Kept,
    /// What it may be after a loss of power.
    possible: Vec<Kept>,
    /// No number is used twice.
    last_session: u64,
    last_generation: u64,
}

impl Engines {
    pub fn first(replica: &Replica<FaultyDisk>) -> Self {
        replica.open_epoch(FIRST).expect("an epoch");
        let now = Kept {
            epoch: FIRST.epoch,
            record: None,
        };
        Self {
            tenure: FIRST,
            former: Epoch(FIRST.epoch.0 - 1).into(),
            possible: vec![now.clone()],
            now,
            last_session: FIRST.session,
            last_generation: 0,
        }
    }

    fn next_connection(&mut self, epoch: Epoch) -> Tenure {
        self.last_session += 1;
        Tenure {
            epoch,
            session: self.last_session,
        }
    }

    fn answered(&mut self, kept: Kept) {
        self.possible = vec![kept.clone()];
        self.now = kept;
    }

    fn obeyed(&mut self, tenure: Tenure) {
        self.former = std::mem::replace(&mut self.tenure, tenure);
    }
}

/// The steps return whether they came to an end, if by way of a restart. Else they were refused, and nothing has changed.
impl Harness {
    pub(super) fn open_epoch(&mut self, advance: u64) -> bool {
        let epoch = Epoch(self.engines.now.epoch.0 + advance);
        let tenure = self.engines.next_connection(epoch);
        let done = self.replica().open_epoch(tenure).is_ok();
        self.accepted(tenure, done)
    }

    pub(super) fn fence(&mut self, advance: u64) -> bool {
        let epoch = Epoch(self.engines.now.epoch.0 + advance);
        let done = self.replica().fence(epoch).is_ok();
        self.accepted(epoch.into(), done)
    }

    fn accepted(&mut self, tenure: Tenure, done: bool) -> bool {
        if done {
            self.engines.obeyed(tenure);
        }
        self.changed(self.engines.now.clone().opened_by(tenure.epoch), done)
    }

    pub(super) fn record(&mut self, members: usize, clean: bool) -> bool {
        self.engines.last_generation += 1;
        let in_sync: Vec<ReplicaName> = (0..members)
            .map(|member| ReplicaName::new(&format!("r{member}")).expect("a name"))
            .collect();
        let sync = SyncMeta {
            replica: in_sync[0].clone(),
            generation: self.engines.last_generation,
            in_sync,
            clean,
        };
        let tenure = self.engines.tenure;
        let done = self.replica().set_sync_meta(tenure, &sync).is_ok();
        let next = Kept {
            record: Some((tenure.epoch, sync)),
            ..self.engines.now.clone()
        };
        self.changed(next, done)
    }

    /// Nobody writes behind a clean record, so the next engine comes at once.
    pub(super) fn close(&mut self) {
        if self.flush() && self.record(1, true) {
            self.open_in_the_end(1);
        }
    }

    fn changed(&mut self, next: Kept, done: bool) -> bool {
        if done {
            self.engines.answered(next);
            self.check_engines();
            return true;
        }
        self.engines.possible.push(next);
        let restarted = self.restart_if_broken(None);
        if !restarted {
            self.engines.possible.pop();
        }
        restarted
    }

    /// An engine opens what a process finds that has just begun. Returns whether it was answered.
    pub(super) fn take_over(&mut self, replica: &Replica<FaultyDisk>, end: End) -> bool {
        let found = Kept::of(replica);
        let possible = &self.engines.possible;
        assert!(
            possible.contains(&found),
            "{found:?} after a crash, not of {possible:?}"
        );
        if end == End::PowerLoss {
            self.engines.possible = vec![found.clone()];
        }
        let tenure = self.engines.next_connection(found.epoch);
        let next = found.opened_by(tenure.epoch);
        let done = replica.open_epoch(tenure).is_ok();
        if done {
            self.engines.obeyed(tenure);
            self.engines.answered(next);
        } else {
            self.engines.possible.push(next);
        }
        done
    }

    /// The same for a process that ended in order, which leaves no choice.
    pub(super) fn engine_returns(&mut self) {
        assert_eq!(Kept::of(self.replica()), self.engines.now);
        self.open_in_the_end(0);
    }

    /// Where nobody else may go on.
    fn open_in_the_end(&mut self, advance: u64) {
        if !self.open_epoch(advance) {
            self.disk.set_fault(Fault::None);
            self.disk.set_pages_max(None);
            assert!(self.open_epoch(advance), "nothing is in its way");
        }
    }

    /// Whether the replica says that it may lack writes.
    pub(super) fn is_in_doubt(&self) -> bool {
        let status = self.replica().status().expect("a status");
        status.restarted_since_opened
    }

    /// What was answered is there, and whoever was replaced is refused before anything is touched.
    pub(super) fn check_engines(&self) {
        assert_eq!(Kept::of(self.replica()), self.engines.now);
        let (replica, former) = (self.replica(), self.engines.former);
        let name = SnapshotName::new("nobodys").expect("a name");
        let record = SyncMeta {
            replica: ReplicaName::new("r0").expect("a name"),
            generation: u64::MAX,
            in_sync: Vec::new(),
            clean: true,
        };
        let operations = self.disk.operations();
        for answer in [
            replica.write(former, 0, &[0xee; SECTOR], WriteOptions::default()),
            replica.write_zeroes(former, 0, SECTOR as u64),
            replica.flush(former),
            replica.freeze(former, &name, 0, true),
            replica.set_sync_meta(former, &record),
            replica.open_epoch(former),
            replica.fence(Epoch(self.engines.now.epoch.0 - 1)),
        ] {
            assert!(
                matches!(answer, Err(StoreError::Epoch(_))),
                "{former:?} got {answer:?}"
            );
        }
        assert_eq!(self.disk.operations(), operations);
    }
}
