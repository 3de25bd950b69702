//! How processes end that did not mean to, and what the next one must find.

use super::{Harness, SECTOR, Sector, Tag};
use crate::disk::Disk;
use crate::disk::faulty::Fault;
use crate::store::SET_ASIDE_FILE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// What was written is there for the next process, and not durable yet.
    Kill,
    PowerLoss,
}

impl Harness {
    /// A replica that met a crash or stopped by itself is started again.
    pub(super) fn restart_if_broken(&mut self, reverted: Option<&[Tag]>) -> bool {
        let broken = self.disk.has_crashed() || self.replica().check_fault().is_err();
        if broken {
            self.restart(reverted);
        }
        broken
    }

    pub(super) fn restart(&mut self, reverted: Option<&[Tag]>) {
        self.crashes += 1;
        let random = self.draw();
        let mut end = match random % 3 {
            0 => End::Kill,
            _ => End::PowerLoss,
        };
        self.end_process(end);
        // Now and then the power goes while it comes back, before or after an engine is obeyed.
        if (random / 3).is_multiple_of(4) {
            let fault = Fault::CrashAfter(random / 12 % 32);
            self.disk.set_fault(fault);
            if let Ok(replica) = self.open() {
                self.take_over(&replica, end);
            }
            end = End::PowerLoss;
            self.end_process(end);
        }
        let mut opened = self.open();
        if let Ok(replica) = &opened
            && end == End::Kill
            && replica.shared().metadata.sync_failed
        {
            // Of its blocks nothing is certain but what the disk has. What it keeps for engines counts.
            assert!(self.take_over(replica, end), "nothing is in its way");
            end = End::PowerLoss;
            self.end_process(end);
            opened = self.open();
        }
        let files = self.disk.list().expect("a list");
        if opened.is_err() && files.iter().any(|file| file == SET_ASIDE_FILE) {
            // The disk failed, and was too full to note it: this replica can only be made anew.
            *self = Self::new(self.draw());
            return;
        }
        let replica = opened.expect("a replica opens after any crash");
        assert!(self.take_over(&replica, end), "nothing is in its way");
        self.replica = Some(replica);
        self.adopt_blocks(end, reverted);
        self.adopt_frozen(end);
        self.check_engines();
    }

    fn end_process(&mut self, end: End) {
        self.replica = None;
        self.disk.set_pages_max(None);
        match end {
            End::Kill => self.disk.kill(),
            End::PowerLoss => {
                self.boot += 1;
                let disk = self.disk.clone();
                disk.restart(|| self.draw());
            }
        }
    }

    fn adopt_blocks(&mut self, end: End, reverted: Option<&[Tag]>) {
        let sectors = (self.replica().size_bytes() / SECTOR as u64) as usize;
        let mut found = self.read_live();
        assert_eq!(found.len(), sectors);
        found.truncate(self.live.len());
        if reverted != Some(found.as_slice()) {
            for (at, (sector, found)) in self.live.iter().zip(&found).enumerate() {
                let possible = &sector.possible;
                assert!(
                    possible.contains(found),
                    "sector {at} is {found} after a crash, not of {possible:?}"
                );
            }
            let is_as_it_was = |(sector, found): (&Sector, &Tag)| sector.now == *found;
            assert!(
                end == End::Kill
                    || self.live.iter().zip(&found).all(is_as_it_was)
                    || self.is_in_doubt(),
                "what is missing must be told"
            );
        }
        if end == End::Kill && reverted.is_some() {
            // The content need not tell whether it was reverted, and so which blocks are durable.
            self.replica().flush(self.engines.tenure).expect("a flush");
        }
        if end == End::PowerLoss || reverted.is_some() {
            self.live = found.into_iter().map(Sector::certain).collect();
        } else {
            for (sector, found) in self.live.iter_mut().zip(found) {
                sector.now = found;
            }
        }
    }

    /// Other replicas have the same snapshot, and nobody compares them: it is there as it was taken, or not at all.
    fn adopt_frozen(&mut self, end: End) {
        for name in self.frozen.clone() {
            let Some(content) = self.snapshots.get(&name) else {
                continue;
            };
            let (is_there, is_known) = {
                let tree = &self.replica().shared().metadata.tree;
                (tree.find(&name).is_ok(), tree.find_any(&name).is_some())
            };
            // One whose deletion was cut short is known still.
            assert!(
                end == End::PowerLoss || is_known,
                "a kill took snapshot {name}"
            );
            if is_there {
                let found = self.read_snapshot(&name, content.len());
                assert_eq!(&found, content, "snapshot {name} after a crash");
            } else {
                self.snapshots.remove(&name);
            }
        }
        if end == End::PowerLoss {
            self.frozen.clear();
        }
    }
}
