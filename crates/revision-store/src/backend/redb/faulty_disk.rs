//! A disk that loses what was not synced, and fails when told to.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use redb::StorageBackend;

const BLOCK: usize = 4096;

/// A handle of a disk; clones are handles of the same one.
#[derive(Clone, Debug, Default)]
pub(super) struct FaultyDisk(Arc<Mutex<Disk>>);

#[derive(Debug, Default)]
struct Disk {
    /// What a crash leaves for certain.
    synced: Vec<u8>,
    /// What the running process sees.
    cached: Vec<u8>,
    /// What lies between the two, in order.
    unsynced: Vec<Change>,
    /// The blocks that hold data; growing a file takes none.
    blocks: HashSet<usize>,
    /// Changes and syncs so far.
    operations: u64,
    fault: Option<Fault>,
}

#[derive(Clone, Debug)]
enum Change {
    Write { offset: usize, data: Vec<u8> },
    SetLen(usize),
}

/// What goes wrong from the n-th operation on, until it is repaired.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// Nothing works any more, not even reading.
    PowerCut { from: u64 },
    /// No block is left for what was never written; the rest can be overwritten.
    Full { from: u64 },
    /// Writing fails, as on a file system that was remounted read-only.
    ReadOnly { from: u64 },
    /// The data arrives, but the sync reports an error.
    SyncFails { from: u64 },
}

/// A small generator of repeatable chance (splitmix64).
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

impl FaultyDisk {
    pub(super) fn set_fault(&self, fault: Option<Fault>) {
        self.lock().fault = fault;
    }

    pub(super) fn restart_count(&self) {
        self.lock().operations = 0;
    }

    pub(super) fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// The disk that a machine finds after losing its power: each unsynced change arrived, or did not, or
    /// arrived in part.
    pub(super) fn after_crash(&self, chance: &mut Chance) -> Self {
        let disk = self.lock();
        let mut left = disk.synced.clone();
        for change in &disk.unsynced {
            let mut change = change.clone();
            match chance.below(3) {
                0 => continue,
                1 => {}
                _ => change.tear(chance),
            }
            change.apply(&mut left);
        }
        Self(Arc::new(Mutex::new(Disk {
            synced: left.clone(),
            cached: left,
            ..Disk::default()
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().expect("no test panics while it holds a disk")
    }
}

impl Change {
    /// Keeps only some leading sectors.
    fn tear(&mut self, chance: &mut Chance) {
        if let Self::Write { data, .. } = self {
            let sectors = data.len().div_ceil(512) as u64;
            let kept = usize::try_from(chance.below(sectors.max(1))).expect("small");
            data.truncate(kept * 512);
        }
    }

    fn blocks(&self) -> std::ops::Range<usize> {
        match self {
            Self::SetLen(_) => 0..0,
            Self::Write { offset, data } => offset / BLOCK..(offset + data.len()).div_ceil(BLOCK),
        }
    }

    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::SetLen(len) => bytes.resize(*len, 0),
            Self::Write { offset, data } => {
                let end = offset + data.len();
                // The growing of the file may be what was lost.
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[*offset..end].copy_from_slice(data);
            }
        }
    }
}

impl Disk {
    fn change(&mut self, change: Change) -> io::Result<()> {
        self.operations += 1;
        match self.fault {
            Some(Fault::PowerCut { from }) if self.operations > from => return Err(power_cut()),
            Some(Fault::Full { from })
                if self.operations > from && change.blocks().any(|b| !self.blocks.contains(&b)) =>
            {
                return Err(io::ErrorKind::StorageFull.into());
            }
            Some(Fault::ReadOnly { from }) if self.operations > from => {
                return Err(io::ErrorKind::ReadOnlyFilesystem.into());
            }
            _ => {}
        }
        self.blocks.extend(change.blocks());
        change.apply(&mut self.cached);
        self.unsynced.push(change);
        Ok(())
    }

    fn check_power(&self) -> io::Result<()> {
        match self.fault {
            Some(Fault::PowerCut { from }) if self.operations > from => Err(power_cut()),
            _ => Ok(()),
        }
    }
}

impl StorageBackend for FaultyDisk {
    fn len(&self) -> io::Result<u64> {
        let disk = self.lock();
        disk.check_power()?;
        Ok(disk.cached.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let disk = self.lock();
        disk.check_power()?;
        let offset = usize::try_from(offset).expect("test disks are small");
        let bytes = disk
            .cached
            .get(offset..offset + out.len())
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).expect("test disks are small");
        self.lock().change(Change::SetLen(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.lock();
        disk.operations += 1;
        disk.check_power()?;
        for change in std::mem::take(&mut disk.unsynced) {
            change.apply(&mut disk.synced);
        }
        match disk.fault {
            Some(Fault::SyncFails { from }) if disk.operations > from => {
                Err(io::Error::other("injected: the sync failed"))
            }
            _ => Ok(()),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).expect("test disks are small");
        let data = data.to_vec();
        self.lock().change(Change::Write { offset, data })
    }
}

fn power_cut() -> io::Error {
    io::Error::other("injected: the power is cut")
}
