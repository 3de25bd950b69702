//! What an engine leaves behind when it does not end in order, and who still uses its device.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use csi_driver::node::{Lazily, unmount_newest};
use engine::frontend::{FrontendOptions, fuse};
use tokio::time::Instant;

use super::layout::Layout;
use crate::mount_table::{self, Mount};

/// How long an unmount is waited for. It goes on without us.
pub(super) const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(60);

/// Takes away links to devices that are not their volume's: a link outlives a restart of the machine, and the device that it leads to
/// may be another volume's by then. Before anybody asks for a device.
pub(super) fn drop_stale_links(layout: &Layout) -> io::Result<()> {
    for entry in std::fs::read_dir(layout.devices())? {
        let link = entry?.path();
        let Ok(target) = std::fs::read_link(&link) else {
            continue;
        };
        let is_own = match link.file_name().and_then(|name| name.to_str()) {
            Some(volume) => leads_to(layout, volume, &target)?,
            None => false,
        };
        if !is_own {
            tracing::warn!(link = %link.display(), device = %target.display(), "taking away a link that led to a device of before");
            std::fs::remove_file(&link)?;
        }
    }
    Ok(())
}

/// A loop device says what is behind it. Any other is its engine's for as long as that lives.
fn leads_to(layout: &Layout, volume: &str, target: &Path) -> io::Result<bool> {
    let is_loop = target
        .file_name()
        .is_some_and(|name| name.as_bytes().starts_with(b"loop"));
    if is_loop {
        let own = mount_table::loops_over(&fuse::mount_path(&layout.run(), volume))?;
        Ok(own.iter().any(|device| device == target))
    } else {
        Ok(UnixStream::connect(layout.control(volume)).is_ok())
    }
}

/// What is mounted from the volume's device.
pub(super) async fn users(layout: &Layout, volume: &str) -> Vec<Mount> {
    let file = fuse::mount_path(&layout.run(), volume);
    let found = tokio::task::spawn_blocking(move || -> std::io::Result<Vec<Mount>> {
        let mut mounts = Vec::new();
        for device in mount_table::loops_over(&file)? {
            mounts.extend(mount_table::of_device(&device)?);
        }
        Ok(mounts)
    });
    match found.await {
        Ok(Ok(mounts)) => mounts,
        Ok(Err(error)) => {
            tracing::warn!(volume.name = %volume, %error, "cannot see what is mounted of a volume");
            Vec::new()
        }
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Unmounts a volume's mounts, also if they are in use: who is inside keeps what is open, nobody else gets in.
pub(super) async fn drop_all(volume: &str, mounts: &[Mount]) {
    // The newest first, because a mount may be inside another.
    for mount in mounts.iter().rev() {
        tracing::warn!(volume.name = %volume, target = %mount.target.display(), "unmounting a volume that this node must let go of");
        let deadline = Instant::now() + UNMOUNT_TIMEOUT;
        if let Err(error) = unmount_newest(&mount.target, Lazily::Yes, deadline).await {
            tracing::warn!(volume.name = %volume, error = error.message(), "cannot unmount a volume");
        }
    }
}

/// Takes away the socket of a process that is gone. Its record goes with its device, unless a keeper has that for the next
/// one: an agent that starts meanwhile learns from the record that somebody still uses the device.
pub(super) async fn clear(layout: &Layout, volume: &str, device_is_kept: bool) {
    let options = FrontendOptions {
        volume: volume.to_owned(),
        size_bytes: 0,
        runtime_dir: layout.run(),
        device_dir: layout.devices(),
        sector_bytes: 4096,
        keeper: None,
    };
    let (control, record) = (layout.control(volume), layout.engine_record(volume));
    let mounted = fuse::mount_path(&layout.run(), volume);
    let cleared = tokio::task::spawn_blocking(move || {
        let _ = std::fs::remove_file(control);
        if device_is_kept {
            return Ok(());
        }
        let _ = std::fs::remove_file(record);
        let cleared = fuse::clear_leftovers(&options);
        let _ = std::fs::remove_file(mounted);
        cleared
    })
    .await;
    match cleared {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(volume.name = %volume, %error, "cannot clear what an engine left");
        }
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use super::*;

    /// A loop device over a file, for as long as this lives.
    struct Loop(String);

    impl Loop {
        fn over(file: &Path) -> Self {
            let made = Command::new("losetup")
                .args(["--find", "--show"])
                .arg(file)
                .output()
                .expect("losetup runs");
            assert!(made.status.success(), "{made:?}");
            Self(String::from_utf8_lossy(&made.stdout).trim().to_owned())
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("losetup").args(["--detach", &self.0]).status();
        }
    }

    /// After a restart of the machine a link of before leads to a device that another volume has taken, or to none.
    #[test]
    fn links_that_lead_to_another_volumes_device_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let layout = Layout::new(folder.path());
        layout.create().expect("its folders");
        let backing = fuse::mount_path(&layout.run(), "own");
        fs::write(&backing, vec![0; 1 << 20]).expect("a file");
        let device = Loop::over(&backing);
        // A device that no engine of ours serves, and one that is served.
        let _served = UnixListener::bind(layout.control("served")).expect("a socket");
        drop(UnixListener::bind(layout.control("dead")).expect("a socket"));
        for (volume, target) in [
            ("own", device.0.as_str()),
            ("stale", device.0.as_str()),
            ("gone", "/dev/loop-that-is-not-there"),
            ("served", "/dev/null"),
            ("dead", "/dev/null"),
        ] {
            symlink(target, layout.devices().join(volume)).expect("a link");
        }
        drop_stale_links(&layout).expect("a look");
        let left = fs::read_dir(layout.devices()).expect("the folder");
        let mut left: Vec<_> = left.map(|it| it.expect("an entry").file_name()).collect();
        left.sort();
        assert_eq!(left, ["own", "served"]);
    }
}
