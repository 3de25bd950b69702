//! The parts of the FUSE front end that may block: mounting, the loop device, and taking both away again.
//!
//! None of this may run on the engine's loop: each step asks the FUSE file questions that the loop answers.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags, makedev, mknodat};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::frontend::FrontendOptions;
use crate::sys;

/// Others take loop devices at the same time; this many lost races in a row mean something else.
const LOOP_ATTEMPTS_MAX: u32 = 64;

/// How long users of the device may go on after a detach was asked for, before they get errors.
const DETACH_GRACE: Duration = Duration::from_secs(10);

/// Where a volume's FUSE file and device link are.
#[derive(Clone, Debug)]
pub struct Places {
    pub volume: String,
    pub mount_file: PathBuf,
    pub link: PathBuf,
}

impl Places {
    pub fn of(options: &FrontendOptions) -> Self {
        Self {
            volume: options.volume.clone(),
            mount_file: mount_path(&options.runtime_dir, &options.volume),
            link: options.device_dir.join(&options.volume),
        }
    }
}

/// Where the FUSE file of a volume is, for those who clean up after an engine.
#[must_use]
pub fn mount_path(runtime_dir: &Path, volume: &str) -> PathBuf {
    runtime_dir.join(format!("{volume}.fuse"))
}

/// Mounts the FUSE connection of `channel` as one regular file.
pub fn mount_file(places: &Places, channel: BorrowedFd<'_>) -> io::Result<()> {
    if let Some(folder) = places.mount_file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    File::create(&places.mount_file)?;
    let data = CString::new(format!(
        "fd={},rootmode=100600,user_id=0,group_id=0",
        channel.as_raw_fd()
    ))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME;
    mount(
        "lariat",
        &places.mount_file,
        "fuse.lariat",
        flags,
        data.as_c_str(),
    )?;
    Ok(())
}

/// A loop device over the mounted file, and its path. It lives while the descriptor is open.
pub fn attach_loop(places: &Places, sector_bytes: u32) -> io::Result<(File, PathBuf)> {
    let backing = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(&places.mount_file)?;
    let control = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/loop-control")?;
    let mut last = io::Error::other("no loop device is free");
    for _ in 0..LOOP_ATTEMPTS_MAX {
        let number = sys::loop_get_free(&control)?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        ensure_node(&path, number)?;
        let device = OpenOptions::new().read(true).write(true).open(&path)?;
        match sys::loop_configure(&device, &backing, sector_bytes, &places.volume) {
            Ok(()) => return Ok((device, path)),
            Err(error) if error.raw_os_error() == Some(EBUSY) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

const EBUSY: i32 = 16;

/// In a container `/dev` may lack the node of a loop device that the kernel has just made.
fn ensure_node(path: &Path, number: u32) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.file_type().is_block_device() => Ok(()),
        Ok(_) => Err(io::Error::other(format!(
            "{} is no block device",
            path.display()
        ))),
        Err(_) => {
            let mode = Mode::RUSR | Mode::WUSR;
            let device = makedev(7, number);
            match mknodat(rustix::fs::CWD, path, FileType::BlockDevice, mode, device) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }
    }
}

/// Makes the volume's link lead to `device`, whatever it led to before.
pub fn link_device(places: &Places, device: &Path) -> io::Result<()> {
    if let Some(folder) = places.link.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let fresh = places
        .link
        .with_file_name(format!(".{}.new", places.volume));
    let _ = std::fs::remove_file(&fresh);
    std::os::unix::fs::symlink(device, &fresh)?;
    std::fs::rename(&fresh, &places.link)
}

/// Shows the file's new size to the loop device's users.
pub fn refresh_size(places: &Places, device: &File) -> io::Result<()> {
    // The kernel keeps the size it last saw; asking makes it ask us.
    rustix::fs::stat(&places.mount_file)?;
    sys::loop_set_capacity(device)
}

/// Takes the device away while the engine still serves: users may finish, within a bound.
pub fn detach(places: &Places, device: Option<File>) -> io::Result<()> {
    let _ = std::fs::remove_file(&places.link);
    if let Some(device) = device {
        // While others have it open this only marks it; their last close then clears it.
        let cleared = sys::loop_clear(&device);
        drop(device);
        cleared?;
    }
    let give_up = Instant::now() + DETACH_GRACE;
    while !loops_over(&places.mount_file)?.is_empty() && Instant::now() < give_up {
        std::thread::sleep(Duration::from_millis(5));
    }
    let users_left = !loops_over(&places.mount_file)?.is_empty();
    let flags = if users_left {
        tracing::warn!(
            volume.name = %places.volume,
            "the device is still in use; its users get I/O errors from now on"
        );
        UnmountFlags::FORCE | UnmountFlags::DETACH
    } else {
        UnmountFlags::empty()
    };
    unmount_file(places, flags)
}

/// Takes everything away that a dead predecessor has left: its loop device first, then its mount.
///
/// The connection is aborted before, so that nothing below can wait for an engine that is gone.
pub fn clear_leftovers(places: &Places) -> io::Result<()> {
    let _ = std::fs::remove_file(&places.link);
    while is_mounted(&places.mount_file)? {
        // Of a mount in use, the forced unmount only aborts the connection, and says busy.
        let _ = unmount(&places.mount_file, UnmountFlags::FORCE);
        clear_loops(places)?;
        if is_mounted(&places.mount_file)? {
            unmount(
                &places.mount_file,
                UnmountFlags::FORCE | UnmountFlags::DETACH,
            )?;
        }
    }
    clear_loops(places)
}

/// Takes away what an engine that was killed has left: its device link, loop device and mount.
pub fn clear_leftovers_of(options: &FrontendOptions) -> io::Result<()> {
    clear_leftovers(&Places::of(options))
}

fn clear_loops(places: &Places) -> io::Result<()> {
    for path in loops_over(&places.mount_file)? {
        match OpenOptions::new()
            .read(true)
            .open(&path)
            .and_then(|device| sys::loop_clear(&device))
        {
            Ok(()) => {
                tracing::info!(volume.name = %places.volume, device = %path.display(), "cleared a leftover loop device");
            }
            // It went by itself in between.
            Err(error) if error.raw_os_error() == Some(ENXIO) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

const ENXIO: i32 = 6;

fn unmount_file(places: &Places, flags: UnmountFlags) -> io::Result<()> {
    match unmount(&places.mount_file, flags) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
        Err(rustix::io::Errno::BUSY) => {
            unmount(&places.mount_file, flags | UnmountFlags::DETACH)?;
        }
        Err(error) => return Err(error.into()),
    }
    let _ = std::fs::remove_file(&places.mount_file);
    Ok(())
}

/// Aborts the connection and takes all away, without the engine's help.
pub fn tear_down(places: &Places, device: Option<File>) {
    let _ = unmount(&places.mount_file, UnmountFlags::FORCE);
    drop(device);
    let gone = clear_leftovers(places);
    let _ = std::fs::remove_file(&places.mount_file);
    if let Err(error) = gone {
        tracing::warn!(volume.name = %places.volume, %error, "could not take the device away");
    }
}

/// The loop devices whose backing file is `file`.
pub fn loops_over(file: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/sys/block")? {
        let name = entry?.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with("loop")) else {
            continue;
        };
        // A device that is not configured has no such file.
        if let Ok(backing) = std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"))
        {
            let backing = backing.trim_end().trim_end_matches(" (deleted)");
            if Path::new(backing) == file {
                found.push(Path::new("/dev").join(name));
            }
        }
    }
    Ok(found)
}

/// Whether something is mounted on `file`. It reads the table of mounts: asking the file itself would
/// wait for the engine behind it.
pub fn is_mounted(file: &Path) -> io::Result<bool> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let wanted = file
        .as_os_str()
        .to_string_lossy()
        .replace('\\', "\\134")
        .replace(' ', "\\040");
    Ok(table
        .lines()
        .any(|line| line.split(' ').nth(4) == Some(wanted.as_str())))
}
