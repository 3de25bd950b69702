//! One layer's two files: its data, and marks for blocks that it says are zero.
//!
//! The data file is sparse and as long as the volume: a block's bytes are at its own offset, a hole is no opinion. The
//! marks file has one bit for each block and is sparse, too. Where a block has data, its mark has no meaning.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use block_core::BLOCK_BYTES;
use block_core::geometry::BlockRange;
use block_core::layers::LayerId;
use block_core::wire::ExtentKind;

use crate::disk::{Disk, DiskFile};
use crate::store::lock;

/// How many blocks are looked at in one go: 64 MiB of volume, 2 KiB of marks.
pub const WINDOW_BLOCKS: u64 = 16 * 1024;

#[derive(Debug)]
pub struct LayerFiles<F> {
    pub id: LayerId,
    pub data: F,
    marks: F,
    /// Setting a bit reads and writes its byte.
    marks_change: Mutex<()>,
    /// Set after each write: whoever finds it unset may say that all marks are durable, once nobody syncs them any more.
    marks_are_dirty: AtomicBool,
    /// Whether a sync has failed. The kernel says that once for each open file, so only one of two who sync would hear of it.
    sync_failed: Mutex<bool>,
}

pub fn data_name(id: LayerId) -> String {
    format!("layer-{:016x}.data", id.0)
}

pub fn marks_name(id: LayerId) -> String {
    format!("layer-{:016x}.zero", id.0)
}

impl<F: DiskFile> LayerFiles<F> {
    /// Makes an empty layer. Its names are durable when this returns.
    pub fn create<D: Disk<File = F>>(disk: &D, id: LayerId, size_bytes: u64) -> io::Result<Self> {
        let data = disk.create(&data_name(id))?;
        data.set_len(size_bytes)?;
        data.sync_data()?;
        let marks = disk.create(&marks_name(id))?;
        disk.sync_folder()?;
        Ok(Self::new(id, data, marks, false))
    }

    /// Opens a layer. What a killed process wrote may not have been synced, so all of it counts as not.
    pub fn open<D: Disk<File = F>>(disk: &D, id: LayerId) -> io::Result<Self> {
        let (data, marks) = (disk.open(&data_name(id))?, disk.open(&marks_name(id))?);
        Ok(Self::new(id, data, marks, true))
    }

    pub fn remove<D: Disk<File = F>>(disk: &D, id: LayerId) -> io::Result<()> {
        disk.remove(&data_name(id))?;
        disk.remove(&marks_name(id))
    }

    fn new(id: LayerId, data: F, marks: F, marks_are_dirty: bool) -> Self {
        let marks_are_dirty = AtomicBool::new(marks_are_dirty);
        Self {
            id,
            data,
            marks,
            marks_change: Mutex::new(()),
            marks_are_dirty,
            sync_failed: Mutex::new(false),
        }
    }

    /// Makes all that was written before durable. Once that failed it fails for ever.
    pub fn sync(&self) -> io::Result<()> {
        let mut failed = lock(&self.sync_failed);
        if *failed {
            return Err(io::Error::other("an earlier sync of this layer failed"));
        }
        let synced = self.sync_files();
        *failed = synced.is_err();
        synced
    }

    fn sync_files(&self) -> io::Result<()> {
        if self.marks_are_dirty.swap(false, Ordering::AcqRel) {
            self.marks.sync_data()?;
        }
        self.data.sync_data()
    }

    /// See [`DiskFile::forget_cached`].
    pub fn forget_cached(&self) -> io::Result<()> {
        self.data.forget_cached()?;
        self.marks.forget_cached()
    }

    /// Makes holes of blocks that were set aside for data which never came. The file system allocates blocks before it
    /// fills them, and a power failure in between leaves them behind: they read as zero and count as a hole, but as data
    /// once a page of them is in memory. Only where nothing was written since the machine started: what is not yet on
    /// the disk looks the same.
    pub fn free_unwritten(&self) -> io::Result<()> {
        // Somebody else may have read the file.
        self.data.forget_cached()?;
        let mut hole_bytes = 0;
        self.for_each_hole(|_, length_bytes| {
            hole_bytes += length_bytes;
            Ok(())
        })?;
        // What the file system takes for itself counts as allocated, so that this may be in vain, but never too little.
        if self.data.allocated_bytes()? + hole_bytes <= self.data.length_bytes()? {
            return Ok(());
        }
        self.for_each_hole(|at, length_bytes| self.data.punch(at, length_bytes))
    }

    /// Visits what the file does not have: offset and length.
    fn for_each_hole(&self, mut visit: impl FnMut(u64, u64) -> io::Result<()>) -> io::Result<()> {
        let length_bytes = self.data.length_bytes()?;
        let mut at = 0;
        while at < length_bytes {
            let next = self.data.next_data(at)?;
            let (first, end) = next.unwrap_or((length_bytes, length_bytes));
            if at < first {
                visit(at, first - at)?;
            }
            at = end;
        }
        Ok(())
    }

    pub fn allocated_bytes(&self) -> io::Result<u64> {
        Ok(self.data.allocated_bytes()? + self.marks.allocated_bytes()?)
    }

    /// Says that blocks are zero, for as long as they have no data here.
    pub fn set_marks(&self, range: BlockRange) -> io::Result<()> {
        self.change_marks(range, |byte, mask| byte | mask)
    }

    /// Takes marks away.
    pub fn clear_marks(&self, range: BlockRange) -> io::Result<()> {
        if self.marks.next_data(range.first / 8)?.is_none() {
            return Ok(());
        }
        self.change_marks(range, |byte, mask| byte & !mask)
    }

    pub fn is_marked(&self, block: u64) -> io::Result<bool> {
        let mut byte = [0];
        self.marks.read_at(&mut byte, block / 8)?;
        Ok(byte[0] & (1 << (block % 8)) != 0)
    }

    fn change_marks(&self, range: BlockRange, change: impl Fn(u8, u8) -> u8) -> io::Result<()> {
        let _alone = lock(&self.marks_change);
        let mut block = range.first;
        while block < range.end {
            // Stop at multiples of the window, so that pieces are whole bytes but for the range's own ends.
            let end = ((block / WINDOW_BLOCKS + 1) * WINDOW_BLOCKS).min(range.end);
            let first_byte = block / 8;
            let mut bytes = vec![0; (end.div_ceil(8) - first_byte) as usize];
            self.marks.read_at(&mut bytes, first_byte)?;
            for at in block..end {
                let byte = &mut bytes[(at / 8 - first_byte) as usize];
                *byte = change(*byte, 1 << (at % 8));
            }
            let written = self.marks.write_at(&bytes, first_byte);
            self.marks_are_dirty.store(true, Ordering::Release);
            written?;
            block = end;
        }
        Ok(())
    }

    /// The first window at or after `from_block`, below `end_block`, in which the layer may have opinions.
    fn next_window(&self, from_block: u64, end_block: u64) -> io::Result<Option<BlockRange>> {
        let data = self
            .data
            .next_data(from_block * BLOCK_BYTES)?
            .map(|(first, _)| first / BLOCK_BYTES);
        let marks = self
            .marks
            .next_data(from_block / 8)?
            .map(|(first, _)| (first * 8).max(from_block));
        let Some(first) = [data, marks]
            .into_iter()
            .flatten()
            .min()
            .filter(|first| *first < end_block)
        else {
            return Ok(None);
        };
        Ok(Some(BlockRange {
            first,
            end: ((first / WINDOW_BLOCKS + 1) * WINDOW_BLOCKS).min(end_block),
        }))
    }

    /// Shows all opinions in `range`, in order, as runs of one kind. Takes time by what is there, not by the range.
    pub fn for_each_opinion<E: From<io::Error>>(
        &self,
        range: BlockRange,
        mut visit: impl FnMut(BlockRange, ExtentKind) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut from = range.first;
        while let Some(window) = self.next_window(from, range.end)? {
            for (run, kind) in self.opinions(window)? {
                visit(run, kind)?;
            }
            from = window.end;
        }
        Ok(())
    }

    /// The opinions in a range of at most [`WINDOW_BLOCKS`].
    pub fn opinions(&self, window: BlockRange) -> io::Result<Vec<(BlockRange, ExtentKind)>> {
        let mut kinds: Vec<Option<ExtentKind>> = vec![None; window.blocks() as usize];
        self.show_marks(window, &mut kinds)?;
        self.show_data(window, &mut kinds)?;
        let mut runs = Vec::new();
        let mut first = 0;
        for same in kinds.chunk_by(|one, next| one == next) {
            let run = BlockRange {
                first: window.first + first,
                end: window.first + first + same.len() as u64,
            };
            runs.extend(same[0].map(|kind| (run, kind)));
            first += same.len() as u64;
        }
        Ok(runs)
    }

    fn show_marks(&self, window: BlockRange, kinds: &mut [Option<ExtentKind>]) -> io::Result<()> {
        let (first_byte, end_byte) = (window.first / 8, window.end.div_ceil(8));
        if self
            .marks
            .next_data(first_byte)?
            .is_none_or(|(first, _)| first >= end_byte)
        {
            return Ok(());
        }
        let mut bytes = vec![0; (end_byte - first_byte) as usize];
        self.marks.read_at(&mut bytes, first_byte)?;
        for block in window.first..window.end {
            if bytes[(block / 8 - first_byte) as usize] & (1 << (block % 8)) != 0 {
                kinds[(block - window.first) as usize] = Some(ExtentKind::Zero);
            }
        }
        Ok(())
    }

    fn show_data(&self, window: BlockRange, kinds: &mut [Option<ExtentKind>]) -> io::Result<()> {
        let mut from = window.first;
        while from < window.end {
            let Some((first_bytes, end_bytes)) = self.data.next_data(from * BLOCK_BYTES)? else {
                break;
            };
            let first = (first_bytes / BLOCK_BYTES).min(window.end);
            let end = end_bytes.div_ceil(BLOCK_BYTES).min(window.end);
            let places = (first - window.first) as usize..(end - window.first) as usize;
            kinds[places].fill(Some(ExtentKind::Data));
            from = end.max(from + 1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, OnceLock, Weak};

    use super::*;
    use crate::disk::faulty::{Fault, FaultyDisk, FaultyFile};

    /// A file during whose first write the layer is synced, as by somebody else's flush.
    struct Interrupted {
        file: FaultyFile,
        layer: Arc<OnceLock<Weak<LayerFiles<Interrupted>>>>,
        unsynced: AtomicBool,
    }

    impl DiskFile for Interrupted {
        fn read_at(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<()> {
            self.file.read_at(buffer, offset_bytes)
        }

        fn read_at_without_waiting(&self, buffer: &mut [u8], at: u64) -> io::Result<bool> {
            self.file.read_at_without_waiting(buffer, at)
        }

        fn write_at(&self, data: &[u8], offset_bytes: u64) -> io::Result<()> {
            if let Some(layer) = self.layer.get().and_then(Weak::upgrade) {
                layer.sync()?;
            }
            self.unsynced.store(true, Ordering::Release);
            self.file.write_at(data, offset_bytes)
        }

        fn punch(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
            self.file.punch(offset_bytes, length_bytes)
        }

        fn sync_data(&self) -> io::Result<()> {
            self.unsynced.store(false, Ordering::Release);
            self.file.sync_data()
        }

        fn set_len(&self, length_bytes: u64) -> io::Result<()> {
            self.file.set_len(length_bytes)
        }

        fn length_bytes(&self) -> io::Result<u64> {
            self.file.length_bytes()
        }

        fn next_data(&self, from_bytes: u64) -> io::Result<Option<(u64, u64)>> {
            self.file.next_data(from_bytes)
        }

        fn allocated_bytes(&self) -> io::Result<u64> {
            self.file.allocated_bytes()
        }
    }

    #[test]
    fn marks_that_are_written_during_a_sync_are_synced_by_the_next() {
        let disk = FaultyDisk::new();
        let interrupting = Arc::new(OnceLock::new());
        let file = |name: &str, layer: &Arc<OnceLock<_>>| Interrupted {
            file: disk.create(name).expect("a file"),
            layer: Arc::clone(layer),
            unsynced: AtomicBool::new(false),
        };
        let data = file("data", &Arc::default());
        let marks = file("marks", &interrupting);
        let layer = Arc::new(LayerFiles::new(LayerId(1), data, marks, false));
        interrupting.get_or_init(|| Arc::downgrade(&layer));
        let range = BlockRange { first: 3, end: 5 };
        layer.set_marks(range).expect("marks");
        layer.sync().expect("a sync");
        assert!(!layer.marks.unsynced.load(Ordering::Acquire));
    }

    /// Of the marks or of the data: who syncs next, maybe before the first has said what it met, is not told that all is well.
    #[test]
    fn a_failed_sync_is_told_to_everybody() {
        for operations in [0, 1] {
            let disk = FaultyDisk::new();
            let layer = LayerFiles::create(&disk, LayerId(1), 1 << 20).expect("a layer");
            let range = BlockRange { first: 3, end: 5 };
            layer.set_marks(range).expect("marks");
            disk.set_fault(Fault::ErrorAt(operations));
            assert!(layer.sync().is_err() && !disk.fault_is_set());
            assert!(layer.sync().is_err(), "operation {operations}");
        }
    }
}
