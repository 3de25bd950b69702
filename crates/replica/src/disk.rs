//! The little that a replica needs of a file system, so that tests can take its place.
//!
//! Everything above promises to survive a crash at any point. [`real`] is the operating system; the tests' own disk
//! forgets what was not synced, tears pages, and fails on demand.

use std::io;

pub mod real;

#[cfg(test)]
pub mod faulty;

/// One folder of files, without subfolders.
pub trait Disk: Send + Sync + 'static {
    type File: DiskFile;

    /// Makes an empty file, or empties an old one of that name.
    fn create(&self, name: &str) -> io::Result<Self::File>;
    fn open(&self, name: &str) -> io::Result<Self::File>;
    /// Replaces `to` at one go.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file; that there is none is no error.
    fn remove(&self, name: &str) -> io::Result<()>;
    fn list(&self) -> io::Result<Vec<String>>;
    /// Names made, changed and removed before this are durable after it.
    fn sync_folder(&self) -> io::Result<()>;
}

/// An open sparse file. All methods may be called from many threads.
pub trait DiskFile: Send + Sync + 'static {
    /// Fills the buffer; holes and what is past the end read as zero.
    fn read_at(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<()>;
    /// Like [`DiskFile::read_at`], but answers `false` (with the buffer's content undefined) if it would have to wait
    /// for the device.
    fn read_at_without_waiting(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<bool>;
    /// Writes all of `data`. After an error any part of it may have been written.
    fn write_at(&self, data: &[u8], offset_bytes: u64) -> io::Result<()>;
    /// Makes a range a hole; the length stays.
    fn punch(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()>;
    /// What was written, punched or resized before this is durable after it.
    fn sync_data(&self) -> io::Result<()>;
    fn set_len(&self, length_bytes: u64) -> io::Result<()>;
    fn length_bytes(&self) -> io::Result<u64>;
    /// The first run of data at or after `from_bytes`: its first byte and the byte after its last.
    fn next_data(&self, from_bytes: u64) -> io::Result<Option<(u64, u64)>>;
    /// What the file takes on the disk.
    fn allocated_bytes(&self) -> io::Result<u64>;
    /// Has a range fetched, without waiting for it. It is advice: nothing depends on whether it is taken.
    fn fetch_ahead(&self, _offset_bytes: u64, _length_bytes: u64) {}
    /// Reads after this come from the device, where what is read was synced before. Files that keep nothing in memory
    /// have nothing to forget.
    fn forget_cached(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A whole small file.
pub fn read_file<D: Disk>(disk: &D, name: &str, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = disk.open(name)?;
    let length_bytes = file.length_bytes()?;
    if length_bytes > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{length_bytes} bytes, more than {bytes_max}"),
        ));
    }
    let mut content = vec![0; usize::try_from(length_bytes).unwrap_or(usize::MAX)];
    file.read_at(&mut content, 0)?;
    Ok(content)
}
