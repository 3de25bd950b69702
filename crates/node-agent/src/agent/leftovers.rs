//! What an engine leaves behind when it does not end in order, and who still uses its device.

use std::time::Duration;

use csi_driver::node::{Lazily, unmount_newest};
use engine::frontend::{FrontendOptions, fuse};
use tokio::time::Instant;

use super::layout::Layout;
use crate::mount_table::{self, Mount};

/// How long an unmount is waited for. It goes on without us.
pub(super) const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(60);

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
