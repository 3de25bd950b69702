//! Mounts and unmounts, each of which may block for as long as a device does.

use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::device;
use super::mount_table::{Mount, MountTable};

/// Mounts that are stacked on one path: more than one is left by crashes, more than this by nothing sane.
const STACK_MAX: usize = 16;

/// Runs what may block on a thread of its own, and does not wait past the deadline: a thread that hangs in the kernel hangs alone.
pub async fn blocking<T: Send + 'static>(
    what: &str,
    deadline: Instant,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    match timeout_at(deadline, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(Status::internal(format!("cannot {what}: {error}"))),
        Err(_) => Err(Status::deadline_exceeded(format!(
            "cannot {what}: the kernel has not answered in time; does the device hang?"
        ))),
    }
}

/// The table of mounts, now.
pub fn mounts() -> Result<MountTable, Status> {
    MountTable::read()
        .map_err(|error| Status::internal(format!("cannot read /proc/self/mountinfo: {error}")))
}

/// Shows a folder, file or device at another path.
pub async fn bind(source: &Path, target: &Path, deadline: Instant) -> Result<(), Status> {
    let (from, to) = (source.to_owned(), target.to_owned());
    let bound = blocking("bind a mount", deadline, move || {
        rustix::mount::mount_bind(&from, &to)
    });
    bound.await?.map_err(|error| {
        Status::internal(format!(
            "cannot bind {} to {}: {error}",
            source.display(),
            target.display()
        ))
    })
}

/// Takes the right to write from one mount, and leaves its other options as they are.
pub async fn make_read_only(mount: &Mount, deadline: Instant) -> Result<(), Status> {
    let target = mount.target.clone();
    let flags = MountFlags::BIND | MountFlags::RDONLY | kept_flags(&mount.options);
    let remounted = blocking("remount", deadline, move || {
        rustix::mount::mount_remount(&target, flags, c"")
    });
    remounted.await?.map_err(|error| {
        Status::internal(format!(
            "cannot make {} read-only: {error}",
            mount.target.display()
        ))
    })
}

/// A remount drops every flag that it does not name.
fn kept_flags(options: &[String]) -> MountFlags {
    let flags = options.iter().map(|option| match option.as_str() {
        "nosuid" => MountFlags::NOSUID,
        "nodev" => MountFlags::NODEV,
        "noexec" => MountFlags::NOEXEC,
        "noatime" => MountFlags::NOATIME,
        "nodiratime" => MountFlags::NODIRATIME,
        "relatime" => MountFlags::RELATIME,
        _ => MountFlags::empty(),
    });
    flags.fold(MountFlags::empty(), |all, flag| all | flag)
}

/// Unmounts everything at a path. A mount whose device is dead is taken off lazily: nothing of it can be saved,
/// and whoever still has a file open gets errors already.
pub async fn unmount_all(target: &Path, deadline: Instant) -> Result<(), Status> {
    for _ in 0..STACK_MAX {
        let table = mounts()?;
        let Some(mount) = table.at(target) else {
            return Ok(());
        };
        unmount(&table, mount, deadline).await?;
    }
    Err(Status::internal(format!(
        "{} is still mounted after {STACK_MAX} unmounts; look at /proc/self/mountinfo",
        target.display()
    )))
}

async fn unmount(table: &MountTable, mount: &Mount, deadline: Instant) -> Result<(), Status> {
    let path = mount.target.clone();
    let unmounted = blocking("unmount", deadline, move || {
        rustix::mount::unmount(&path, UnmountFlags::NOFOLLOW)
    });
    let error = match unmounted.await? {
        // EINVAL: it is not a mount any more.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
        Err(error) => error,
    };
    if !is_dead(mount, deadline).await? {
        let others = table.others_of(mount);
        let hint = if others.is_empty() {
            "a process has a file open in it; see fuser -vm".to_owned()
        } else {
            let others: Vec<String> = others
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            format!("its file system is also mounted at {}", others.join(", "))
        };
        return Err(Status::failed_precondition(format!(
            "cannot unmount {}: {error}; {hint}",
            mount.target.display()
        )));
    }
    detach(mount, deadline).await
}

/// Takes a dead mount off, whoever uses it.
pub async fn detach(mount: &Mount, deadline: Instant) -> Result<(), Status> {
    tracing::warn!(target = %mount.target.display(), source = mount.source, "the device of a mount is gone: unmounting lazily");
    let path = mount.target.clone();
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    let detached = blocking("unmount lazily", deadline, move || {
        rustix::mount::unmount(&path, flags)
    });
    match detached.await? {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(error) => Err(Status::internal(format!(
            "cannot unmount {}, whose device is gone: {error}",
            mount.target.display()
        ))),
    }
}

/// Whether the device under a mount is gone. A bound device node has the number of `/dev`'s own file system, which
/// is no block device and never dies.
pub async fn is_dead(mount: &Mount, deadline: Instant) -> Result<bool, Status> {
    let number = mount.device;
    if number.0 == 0 {
        return Ok(false);
    }
    blocking("look at a device", deadline, move || {
        device::is_dead(number)
    })
    .await
}

/// Makes a folder, with its parents.
pub fn ensure_folder(path: &Path) -> Result<(), Status> {
    std::fs::create_dir_all(path).map_err(|error| {
        Status::internal(format!(
            "cannot make the folder {}: {error}",
            path.display()
        ))
    })
}

/// Makes an empty file to mount a device on.
pub fn ensure_file(path: &Path) -> Result<(), Status> {
    if let Some(parent) = path.parent() {
        ensure_folder(parent)?;
    }
    let made = std::fs::File::options()
        .create(true)
        .append(true)
        .open(path);
    made.map(drop).map_err(|error| {
        Status::internal(format!("cannot make the file {}: {error}", path.display()))
    })
}

/// Removes a mount point that is no mount any more. Never more than an empty folder or an empty file.
pub fn remove_mount_point(path: &Path) -> Result<(), Status> {
    let removed = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
        Ok(found) if found.is_dir() => std::fs::remove_dir(path),
        Ok(found) if found.is_file() && found.len() == 0 => std::fs::remove_file(path),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is neither an empty folder nor an empty file",
        )),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Status::internal(format!(
            "cannot remove {}: {error}; nothing is mounted there, so that its content is not the volume's: move it away",
            path.display()
        ))),
        _ => Ok(()),
    }
}
