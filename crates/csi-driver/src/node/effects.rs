//! Mounts and unmounts, each of which may block for as long as a device does.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::mount::MountFlags;
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::device::{self, Device};
use super::mount_table::{Mount, MountTable};
use super::tool;

/// Mounts that are stacked on one path: more than one is left by crashes, more than this by nothing sane.
const STACK_MAX: usize = 16;
/// The kernel does not tell when it lets go of a device.
const RELEASE_CHECK: Duration = Duration::from_millis(10);
const RELEASE_PATIENCE: Duration = Duration::from_secs(3);

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
    let asked = ask_to_unmount(&mount.target, Lazily::No, deadline);
    let Some(complaint) = asked.await? else {
        return Ok(());
    };
    if !is_dead(mount, deadline).await? {
        let others = table.others_of(mount);
        let hint = if others.is_empty() {
            "if a process has a file open in it, fuser -vm says which".to_owned()
        } else {
            let others: Vec<String> = others
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            format!("its file system is also mounted at {}", others.join(", "))
        };
        return Err(Status::failed_precondition(format!(
            "cannot unmount {}: {complaint}; {hint}",
            mount.target.display()
        )));
    }
    detach(mount, deadline).await
}

/// Takes a dead mount off, whoever uses it.
pub async fn detach(mount: &Mount, deadline: Instant) -> Result<(), Status> {
    tracing::warn!(target = %mount.target.display(), source = mount.source, "the device of a mount is gone: unmounting lazily");
    unmount_newest(&mount.target, Lazily::Yes, deadline).await
}

/// Whether to unmount what is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lazily {
    Yes,
    No,
}

/// Unmounts the newest mount at a path, if there is one.
pub async fn unmount_newest(
    target: &Path,
    lazily: Lazily,
    deadline: Instant,
) -> Result<(), Status> {
    match ask_to_unmount(target, lazily, deadline).await? {
        None => Ok(()),
        Some(complaint) => Err(Status::internal(format!(
            "cannot unmount {}: {complaint}",
            target.display()
        ))),
    }
}

/// Says why it was refused, if it was.
///
/// By a process of its own: the last unmount of a file system writes it out, and nothing ends a thread that waits for
/// that in the kernel. A killed agent would stay for as long as the device takes, its connections would stay open with it, and the
/// device may wait for just these.
async fn ask_to_unmount(
    target: &Path,
    lazily: Lazily,
    deadline: Instant,
) -> Result<Option<String>, Status> {
    let count = || -> Result<usize, Status> {
        let table = mounts()?;
        let here = table.mounts.iter().filter(|mount| mount.target == target);
        Ok(here.count())
    };
    let before = count()?;
    if before == 0 {
        return Ok(None);
    }
    let mut arguments = vec!["--internal-only", "--no-canonicalize"];
    if lazily == Lazily::Yes {
        arguments.push("--lazy");
    }
    arguments.push("--");
    let arguments = arguments.into_iter().map(OsStr::new);
    let asked = tool::run("umount", arguments.chain([target.as_os_str()]));
    let Ok(answer) = timeout_at(deadline, asked).await else {
        return Err(Status::deadline_exceeded(format!(
            "{} is still being unmounted; does its device hang?",
            target.display()
        )));
    };
    let answer = answer?;
    // Somebody else may have been faster.
    let is_done = answer.code == 0 || count()? < before;
    Ok((!is_done).then_some(answer.complaint))
}

/// Waits a while until no file system uses a device any more: an unmount takes the mount away first and writes the rest out after, also if
/// whoever asked for it has been killed meanwhile. Somebody in another mount namespace may have it for ever, and is not waited for.
pub async fn until_released(device: &Device, deadline: Instant) -> Result<(), Status> {
    let give_up = deadline.min(Instant::now() + RELEASE_PATIENCE);
    loop {
        let path = device.path.clone();
        let busy = blocking("look at a device", deadline, move || {
            device::is_claimed(&path)
        });
        if !busy.await? || !mounts()?.places_of(&device.path, device.number).is_empty() {
            return Ok(());
        }
        if Instant::now() + RELEASE_CHECK > give_up {
            tracing::warn!(device = %device.path.display(), "unmounted here, and still in use: perhaps it is mounted in another mount namespace");
            return Ok(());
        }
        tokio::time::sleep(RELEASE_CHECK).await;
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
