//! A device past the page cache, which would answer for one that is gone.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

pub const BLOCK_BYTES: usize = 4096;

pub struct Direct(File);

impl Direct {
    pub fn open(device: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECT.bits().cast_signed();
        let mut options = File::options();
        options.read(true).write(true).custom_flags(flags);
        options.open(device).map(Self)
    }

    pub fn read(&self, block: u64) -> io::Result<Vec<u8>> {
        let mut memory = vec![0; 2 * BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        let aligned = &mut memory[start..start + BLOCK_BYTES];
        self.0.read_exact_at(aligned, block * BLOCK_BYTES as u64)?;
        Ok(aligned.to_vec())
    }

    /// A block of this byte.
    pub fn write(&self, block: u64, byte: u8) -> io::Result<()> {
        let memory = vec![byte; 2 * BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        let aligned = &memory[start..start + BLOCK_BYTES];
        self.0.write_all_at(aligned, block * BLOCK_BYTES as u64)
    }

    pub fn flush(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
