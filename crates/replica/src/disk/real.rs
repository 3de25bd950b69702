//! The operating system's files.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Advice, AtFlags, Dir, FallocateFlags, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

use super::{Disk, DiskFile};

/// Larger writes are split at multiples of this. The page cache makes its folios as large as the writes that fill them,
/// and ext4 walks all blocks of a folio for each small write into it: on Linux 6.18, random writes of 4 KiB into a file
/// that was filled by writes of 1 MiB take 13 times as long as into one filled by 64 KiB, which also fills faster.
const WRITE_PIECE_BYTES: u64 = 64 * 1024;

/// A folder of this host, held by this process alone.
#[derive(Debug)]
pub struct RealDisk {
    /// Locked for as long as this lives. Everything goes through it and not through the path: where that leads to a new folder
    /// because this one was removed, the new one is not ours.
    folder: File,
}

impl RealDisk {
    /// Opens a folder. Fails with `WouldBlock` if another process holds it.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let folder = File::open(folder)?;
        rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { folder })
    }

    /// Makes a folder that only this user can look into, and opens it.
    pub fn create(folder: &Path) -> io::Result<Self> {
        std::fs::DirBuilder::new().mode(0o700).create(folder)?;
        if let Some(parent) = folder.parent() {
            File::open(parent)?.sync_all()?;
        }
        Self::open(folder)
    }

    fn open_file(&self, name: &str, how: OFlags) -> io::Result<RealFile> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | how;
        let mode = Mode::RUSR | Mode::WUSR;
        let open = || rustix::fs::openat(&self.folder, name, flags, mode);
        Ok(RealFile(retry_on_intr(open)?.into()))
    }
}

impl Disk for RealDisk {
    type File = RealFile;

    fn create(&self, name: &str) -> io::Result<RealFile> {
        self.open_file(name, OFlags::CREATE | OFlags::TRUNC)
    }

    fn open(&self, name: &str) -> io::Result<RealFile> {
        self.open_file(name, OFlags::empty())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.folder, from, &self.folder, to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.folder, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            result => Ok(result?),
        }
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.folder)? {
            // Names that are not text are not ours.
            let name = entry?.file_name().to_owned().into_string();
            names.extend(name.ok().filter(|name| name != "." && name != ".."));
        }
        Ok(names)
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.folder.sync_all()
    }
}

#[derive(Debug)]
pub struct RealFile(File);

impl RealFile {
    /// Reads until the buffer is full or the file ends, and zeroes the rest.
    fn read_to_end(
        &self,
        buffer: &mut [u8],
        offset_bytes: u64,
        mut filled: usize,
    ) -> io::Result<()> {
        while filled < buffer.len() {
            match self
                .0
                .read_at(&mut buffer[filled..], offset_bytes + filled as u64)
            {
                Ok(0) => {
                    buffer[filled..].fill(0);
                    return Ok(());
                }
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.read_to_end(buffer, offset_bytes, 0)
    }

    fn read_at_without_waiting(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<bool> {
        let mut parts = [io::IoSliceMut::new(buffer)];
        match rustix::io::preadv2(&self.0, &mut parts, offset_bytes, ReadWriteFlags::NOWAIT) {
            Ok(count) if count == buffer.len() => Ok(true),
            // A part is in memory, or the file ends within: the slow way knows which.
            Ok(_) | Err(Errno::AGAIN) => Ok(false),
            // Not every file system offers it.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn write_at(&self, data: &[u8], offset_bytes: u64) -> io::Result<()> {
        let (mut at, mut rest) = (offset_bytes, data);
        while !rest.is_empty() {
            let to_boundary = WRITE_PIECE_BYTES - at % WRITE_PIECE_BYTES;
            let (piece, behind) = rest.split_at(rest.len().min(to_boundary as usize));
            self.0.write_all_at(piece, at)?;
            at += piece.len() as u64;
            rest = behind;
        }
        Ok(())
    }

    fn punch(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(
            &self.0,
            mode,
            offset_bytes,
            length_bytes,
        )?)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn set_len(&self, length_bytes: u64) -> io::Result<()> {
        self.0.set_len(length_bytes)
    }

    fn length_bytes(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn next_data(&self, from_bytes: u64) -> io::Result<Option<(u64, u64)>> {
        let first = match rustix::fs::seek(&self.0, SeekFrom::Data(from_bytes)) {
            Ok(first) => first,
            // Past the last data, or past the end.
            Err(Errno::NXIO) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(Some((
            first,
            rustix::fs::seek(&self.0, SeekFrom::Hole(first))?,
        )))
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        // stat(2) counts in units of 512, whatever the file system's blocks are.
        Ok(self.0.metadata()?.blocks() * 512)
    }

    fn fetch_ahead(&self, offset_bytes: u64, length_bytes: u64) {
        let length = NonZeroU64::new(length_bytes);
        let _ = rustix::fs::fadvise(&self.0, offset_bytes, length, Advice::WillNeed);
    }

    fn forget_cached(&self) -> io::Result<()> {
        // To the end of the file. Pages that are dirty, or that somebody reads just now, stay.
        Ok(rustix::fs::fadvise(&self.0, 0, None, Advice::DontNeed)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_removed_folder_does_not_touch_the_next_one_of_its_name() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("v");
        let old = RealDisk::create(&folder).expect("a disk");
        for name in ["a", "b"] {
            old.create(name).expect("a file");
        }
        assert!(old.list().is_ok_and(|names| names.len() == 2));
        std::fs::remove_dir_all(&folder).expect("a removal");
        let new = RealDisk::create(&folder).expect("a disk");
        let file = new.create("a").expect("a file");
        file.write_at(&[7], 0).expect("a write");

        assert!(old.open("a").is_err());
        assert!(old.create("a").is_err() && old.create("c").is_err());
        assert!(old.rename("a", "b").is_err());
        assert!(old.remove("a").is_ok(), "that there is none is no error");
        assert!(old.list().unwrap_or_default().is_empty());
        assert_eq!(new.list().expect("names"), ["a"]);
        assert_eq!(file.length_bytes().expect("a length"), 1);
    }
}
