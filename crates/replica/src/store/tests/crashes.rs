//! Random operations with crashes, full disks and failing disks at any point, against plain arrays.
//!
//! The oracle knows, for each sector, what it is now and what it may be after a crash. A flush makes these the same. What the
//! replica keeps for engines is in [`engines`], what is looked at after a crash in [`restarts`].

mod engines;
mod restarts;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use block_core::wire::VolumeKey;
use block_core::{SnapshotName, VolumeName};
use proptest::prelude::*;

use crate::disk::faulty::{Fault, FaultyDisk};
use crate::store::{OpenReplicaError, Replica, ReplicaSpec, WriteOptions};
use engines::Engines;

const SECTOR: usize = 512;
const SECTORS: u64 = 12 * 8;

/// A sector's content: its bytes repeat this number. 0 is zero.
type Tag = u32;

#[derive(Clone, Copy, Debug)]
enum Step {
    Write {
        first: u64,
        sectors: u64,
        options: u8,
    },
    Zero {
        first: u64,
        sectors: u64,
    },
    Flush,
    Snapshot,
    /// What a snapshot needs is made before.
    Prepare,
    /// A snapshot that the next flush makes durable.
    Freeze,
    Delete(usize),
    Revert(usize),
    Purge,
    Expand,
    Digest(usize),
    Reopen,
    /// An engine opens it: the same again, or one whose epoch is larger by so much.
    Open(u64),
    Fence(u64),
    /// An engine writes down an in-sync set of so many members.
    Record(usize),
    /// An engine ends in order, and another one begins.
    Close,
    /// The next operations run into a fault after so many disk operations.
    CrashIn(u64),
    ErrorIn(u64),
    /// The disk has room for so many more pages, for one operation.
    NearlyFull(u64),
}

fn step() -> impl Strategy<Value = Step> {
    // Mostly whole blocks, so that these paths are not drowned by partial ones.
    let range = || {
        prop_oneof![
            (0_u64..12, 1_u64..5).prop_map(|(first, blocks)| (first * 8, blocks * 8)),
            (0..SECTORS, 1_u64..20),
        ]
    };
    prop_oneof![
        14 => (range(), 0_u8..4).prop_map(|((first, sectors), options)| Step::Write { first, sectors, options }),
        6 => range().prop_map(|(first, sectors)| Step::Zero { first, sectors }),
        5 => Just(Step::Flush),
        2 => Just(Step::Snapshot),
        2 => Just(Step::Prepare),
        4 => Just(Step::Freeze),
        3 => (0_usize..8).prop_map(Step::Delete),
        1 => (0_usize..8).prop_map(Step::Revert),
        3 => Just(Step::Purge),
        1 => Just(Step::Expand),
        1 => (0_usize..8).prop_map(Step::Digest),
        1 => Just(Step::Reopen),
        3 => (0_u64..3).prop_map(Step::Open),
        2 => (1_u64..3).prop_map(Step::Fence),
        3 => (1_usize..4).prop_map(Step::Record),
        1 => Just(Step::Close),
        5 => (0_u64..25).prop_map(Step::CrashIn),
        1 => (0_u64..25).prop_map(Step::ErrorIn),
        1 => (0_u64..4).prop_map(Step::NearlyFull),
    ]
}

struct Sector {
    now: Tag,
    /// What it may be after a crash.
    possible: BTreeSet<Tag>,
}

impl Sector {
    fn certain(tag: Tag) -> Self {
        Self {
            now: tag,
            possible: BTreeSet::from([tag]),
        }
    }
}

struct Harness {
    disk: FaultyDisk,
    replica: Option<Replica<FaultyDisk>>,
    live: Vec<Sector>,
    snapshots: BTreeMap<SnapshotName, Vec<Tag>>,
    /// Those of them that a crash may take away.
    frozen: BTreeSet<SnapshotName>,
    /// Digests that were answered, which must stay.
    digests: BTreeMap<SnapshotName, [u8; 32]>,
    engines: Engines,
    next_tag: Tag,
    random: u64,
    crashes: u64,
    /// Which start of the machine this is.
    boot: u64,
}

impl Harness {
    fn new(seed: u64) -> Self {
        let disk = FaultyDisk::new();
        let spec = ReplicaSpec {
            volume: VolumeName::new("v").expect("a name"),
            key: VolumeKey::from_bytes([0; 32]),
            size_bytes: SECTORS * SECTOR as u64,
        };
        drop(Replica::create(disk.clone(), &spec).expect("a replica"));
        let replica = Self::open_in(&disk, 1).expect("a replica");
        let engines = Engines::first(&replica);
        Self {
            disk,
            replica: Some(replica),
            engines,
            live: (0..SECTORS).map(|_| Sector::certain(0)).collect(),
            snapshots: BTreeMap::new(),
            frozen: BTreeSet::new(),
            boot: 1,
            digests: BTreeMap::new(),
            next_tag: 1,
            random: seed | 1,
            crashes: 0,
        }
    }

    fn replica(&self) -> &Replica<FaultyDisk> {
        self.replica.as_ref().expect("it is open between steps")
    }

    fn nth_snapshot(&self, nth: usize) -> Option<SnapshotName> {
        self.snapshots
            .keys()
            .nth(nth % self.snapshots.len().max(1))
            .cloned()
    }

    fn run(&mut self, number: usize, step: Step) {
        match step {
            Step::Write {
                first,
                sectors,
                options,
            } => self.write(first, sectors, options),
            Step::Zero { first, sectors } => {
                let end = (first + sectors).min(self.live.len() as u64);
                let (at, length) = (first * SECTOR as u64, (end - first) * SECTOR as u64);
                let done = self
                    .replica()
                    .write_zeroes(self.engines.tenure, at, length)
                    .is_ok();
                self.wrote(first, &vec![0; (end - first) as usize], done);
            }
            Step::Flush => drop(self.flush()),
            Step::Snapshot => self.snapshot(number, true),
            Step::Freeze => self.snapshot(number, false),
            Step::Prepare => {
                if self.replica().prepare_snapshot(self.engines.tenure).is_ok() {
                    self.all_is_durable();
                } else {
                    self.restart_if_broken(None);
                }
            }
            Step::Delete(nth) => {
                let Some(name) = self.nth_snapshot(nth) else {
                    return;
                };
                match self.replica().delete_snapshot(self.engines.tenure, &name) {
                    Ok(()) => drop(self.snapshots.remove(&name)),
                    Err(_) => {
                        self.restart_if_broken(None);
                        self.adopt_deletion(&name);
                    }
                }
            }
            Step::Revert(nth) => self.revert(nth),
            Step::Purge => {
                if self.replica().purge(self.engines.tenure).is_err() {
                    self.restart_if_broken(None);
                }
            }
            Step::Expand => {
                let sectors = self.live.len() + 8;
                let done = self
                    .replica()
                    .expand(self.engines.tenure, (sectors * SECTOR) as u64)
                    .is_ok();
                if !done {
                    self.restart_if_broken(None);
                }
                if self.replica().size_bytes() == (sectors * SECTOR) as u64 {
                    self.live.resize_with(sectors, || Sector::certain(0));
                } else {
                    assert!(!done, "an expansion was answered and is gone");
                }
            }
            Step::Digest(nth) => self.digest(nth),
            Step::Reopen => {
                self.replica = None;
                match self.open() {
                    Ok(replica) => {
                        self.replica = Some(replica);
                        self.engine_returns();
                    }
                    Err(_) => self.restart(None),
                }
            }
            Step::Open(advance) => drop(self.open_epoch(advance)),
            Step::Fence(advance) => drop(self.fence(advance)),
            Step::Record(members) => drop(self.record(members, false)),
            Step::Close => self.close(),
            Step::CrashIn(operations) => self.disk.set_fault(Fault::CrashAfter(operations)),
            Step::ErrorIn(operations) => self.disk.set_fault(Fault::ErrorAt(operations)),
            Step::NearlyFull(pages) => {
                self.disk
                    .set_pages_max(Some(self.disk.pages_used() + pages));
                return;
            }
        }
        self.disk.set_pages_max(None);
        self.check();
    }

    fn write(&mut self, first: u64, sectors: u64, options: u8) {
        let end = (first + sectors).min(self.live.len() as u64);
        let tags: Vec<Tag> = (first..end)
            .map(|_| {
                self.next_tag += 1;
                // Zero blocks must occur for zero detection to matter.
                if options & 2 != 0 && self.next_tag % 16 < 10 {
                    0
                } else {
                    self.next_tag
                }
            })
            .collect();
        let data: Vec<u8> = tags
            .iter()
            .flat_map(|tag| tag.to_le_bytes().repeat(SECTOR / 4))
            .collect();
        let options = WriteOptions {
            force_unit_access: options & 1 != 0,
            detect_zeroes: options & 2 != 0,
        };
        let done = self
            .replica()
            .write(self.engines.tenure, first * SECTOR as u64, &data, options)
            .is_ok();
        self.wrote(first, &tags, done);
        if done && options.force_unit_access {
            self.all_is_durable();
        }
    }

    /// After a write: what the oracle knows. If it failed, each of its sectors is old or new.
    fn wrote(&mut self, first: u64, tags: &[Tag], done: bool) {
        let range = first as usize..first as usize + tags.len();
        for (sector, tag) in self.live[range.clone()].iter_mut().zip(tags) {
            sector.possible.insert(*tag);
            if done {
                sector.now = *tag;
            }
        }
        if !done && !self.restart_if_broken(None) {
            // The disk was full. What comes next is looked at without further trouble.
            self.disk.set_fault(Fault::None);
            let found = self.read_live();
            for ((sector, tag), found) in self.live[range.clone()]
                .iter_mut()
                .zip(tags)
                .zip(&found[range])
            {
                assert!(
                    *found == sector.now || found == tag,
                    "a failed write left {found}"
                );
                sector.now = *found;
            }
        }
    }

    fn flush(&mut self) -> bool {
        let done = self.replica().flush(self.engines.tenure).is_ok();
        if done {
            self.all_is_durable();
        } else {
            self.restart(None);
        }
        done
    }

    fn snapshot(&mut self, number: usize, durable: bool) {
        let name = SnapshotName::new(&format!("s{number:03}")).expect("a name");
        let content: Vec<Tag> = self.live.iter().map(|sector| sector.now).collect();
        let taken = if durable {
            self.replica()
                .create_snapshot(self.engines.tenure, &name, 0, true)
        } else {
            self.replica().freeze(self.engines.tenure, &name, 0, true)
        };
        if taken.is_ok() {
            self.snapshots.insert(name.clone(), content);
            if durable {
                self.all_is_durable();
            } else {
                self.frozen.insert(name);
            }
        } else if self.restart_if_broken(None) {
            // It may be there; then it shows what the volume might have been.
            if self.replica().shared().metadata.tree.find(&name).is_ok() {
                let found: Vec<Tag> = self.read_snapshot(&name, self.live.len());
                let live = self.read_live();
                assert_eq!(
                    found, live,
                    "nothing was written after the snapshot that was cut short"
                );
                if self.replica().stage_to_settle().is_some() {
                    self.frozen.insert(name.clone());
                }
                self.snapshots.insert(name, found);
            }
        }
    }

    fn revert(&mut self, nth: usize) {
        let Some(name) = self.nth_snapshot(nth) else {
            return;
        };
        if self.frozen.contains(&name) && !self.flush() {
            return;
        }
        let mut content = self.snapshots[&name].clone();
        content.resize(self.live.len(), 0);
        if self.replica().revert(self.engines.tenure, &name).is_ok() {
            self.live = content.into_iter().map(Sector::certain).collect();
        } else {
            self.restart_if_broken(Some(&content));
        }
    }

    fn digest(&mut self, nth: usize) {
        let Some(name) = self.nth_snapshot(nth) else {
            return;
        };
        if self.frozen.contains(&name) && !self.flush() {
            return;
        }
        match self.replica().snapshot_digest(&name, true) {
            Ok(digest) => {
                let before = self.digests.entry(name).or_insert(digest);
                assert_eq!(*before, digest, "merges must not change a digest");
            }
            Err(error) => {
                assert!(
                    !matches!(error, crate::StoreError::Corrupt { .. }),
                    "{error}"
                );
                self.restart_if_broken(None);
            }
        }
    }

    fn adopt_deletion(&mut self, name: &SnapshotName) {
        if self.replica().shared().metadata.tree.find(name).is_err() {
            self.snapshots.remove(name);
        }
    }

    fn all_is_durable(&mut self) {
        for sector in &mut self.live {
            *sector = Sector::certain(sector.now);
        }
        self.frozen.clear();
    }

    fn open(&self) -> Result<Replica<FaultyDisk>, OpenReplicaError> {
        Self::open_in(&self.disk, self.boot)
    }

    fn open_in(disk: &FaultyDisk, boot: u64) -> Result<Replica<FaultyDisk>, OpenReplicaError> {
        let boot = u128::from(boot).to_be_bytes();
        let mut replica = Replica::open_in(disk.clone(), boot)?;
        // One thing happens after the other here: nobody would end the wait.
        replica.quiet_max = Duration::ZERO;
        Ok(replica)
    }

    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 11
    }

    fn read_live(&self) -> Vec<Tag> {
        let mut bytes = vec![0xee; self.replica().size_bytes() as usize];
        self.replica()
            .read(self.engines.tenure, 0, &mut bytes)
            .expect("reads work");
        tags(&bytes)
    }

    fn read_snapshot(&self, name: &SnapshotName, sectors: usize) -> Vec<Tag> {
        let mut bytes = vec![0xee; sectors * SECTOR];
        self.replica()
            .read_layer(name, 0, &mut bytes)
            .expect("snapshots can be read");
        tags(&bytes)
    }

    /// Everything that was not touched by a crash reads exactly as it should.
    fn check(&self) {
        if self.disk.fault_is_set() {
            return;
        }
        let wanted: Vec<Tag> = self.live.iter().map(|sector| sector.now).collect();
        self.check_engines();
        assert_eq!(self.read_live(), wanted, "the live volume");
        for (name, content) in &self.snapshots {
            assert_eq!(
                &self.read_snapshot(name, content.len()),
                content,
                "snapshot {name}"
            );
        }
    }
}

fn tags(bytes: &[u8]) -> Vec<Tag> {
    bytes
        .chunks_exact(SECTOR)
        .map(|sector| {
            let tag = Tag::from_le_bytes([sector[0], sector[1], sector[2], sector[3]]);
            assert!(
                sector.chunks_exact(4).all(|part| part == tag.to_le_bytes()),
                "a sector was torn"
            );
            tag
        })
        .collect()
}

proptest! {
    #![proptest_config(super::cases(300))]
    #[test]
    fn nothing_flushed_is_lost(seed in any::<u64>(), steps in proptest::collection::vec(step(), 1..60)) {
        let mut harness = Harness::new(seed);
        for (number, step) in steps.into_iter().enumerate() {
            harness.run(number, step);
        }
        harness.disk.set_fault(Fault::None);
        harness.disk.set_pages_max(None);
        if harness.disk.has_crashed() {
            harness.restart(None);
        }
        harness.check();
        harness.replica().purge(harness.engines.tenure).expect("a purge");
        harness.check();
    }
}
