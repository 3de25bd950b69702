//! What tests mount, and what unmounts it whatever happens.

use std::path::{Path, PathBuf};

/// What is mounted over a replica's folder.
pub struct SmallDisk {
    pub folder: PathBuf,
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.folder, rustix::mount::UnmountFlags::DETACH);
    }
}

/// A mounted file system; it is unmounted in any case, by force if need be.
pub struct Mounted {
    pub folder: tempfile::TempDir,
}

impl Mounted {
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        use rustix::mount::{UnmountFlags, unmount};
        if unmount(self.folder.path(), UnmountFlags::empty()).is_err() {
            let _ = unmount(self.folder.path(), UnmountFlags::DETACH);
        }
    }
}
