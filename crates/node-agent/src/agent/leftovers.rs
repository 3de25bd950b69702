//! What an engine leaves behind when it does not end in order, and who still uses its device.

use engine::frontend::{FrontendOptions, fuse};

use super::layout::Layout;
use crate::mount_table;

/// Lazily unmounts what is mounted from the volume's device.
pub(super) async fn drop_users(layout: &Layout, volume: &str) {
    let file = fuse::mount_path(&layout.run(), volume);
    let dropped = tokio::task::spawn_blocking(move || -> std::io::Result<usize> {
        let mut count = 0;
        for device in mount_table::loops_over(&file)? {
            let mounts = mount_table::of_device(&device)?;
            mount_table::detach_all(&mounts);
            count += mounts.len();
        }
        Ok(count)
    })
    .await;
    match dropped {
        Ok(Ok(0)) | Err(_) => {}
        Ok(Ok(count)) => {
            tracing::warn!(volume.name = %volume, count, "unmounted a volume that this node must let go of");
        }
        Ok(Err(error)) => {
            tracing::warn!(volume.name = %volume, %error, "cannot unmount a volume");
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
