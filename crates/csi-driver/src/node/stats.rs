//! How full a volume is, how it is, and growing it.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use tokio::time::Instant;
use tonic::{Request, Status};

use super::device::{self, Device, number_of};
use super::effects::{blocking, mounts};
use super::mount_table::Mount;
use super::{NodeService, file_system, resolved, volume_id};
use crate::csi::v1::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetVolumeHealthRequest,
    NodeGetVolumeHealthResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    VolumeHealth, VolumeHealthErrorType, VolumeUsage, volume_health::VolumeHealthEntry,
    volume_usage::Unit,
};
use crate::{deadline, limits};

/// What is at a path where a volume should be.
enum Place {
    /// A file system.
    Mounted(Mount),
    /// A device, by its number.
    Block((u32, u32)),
}

impl NodeService {
    pub(super) async fn stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<NodeGetVolumeStatsResponse, Status> {
        let deadline = deadline::of(request.metadata());
        let request = request.into_inner();
        let id = volume_id(&request.volume_id)?;
        let path = limits::any_path("volume_path", &request.volume_path)?;
        let usage = match place(id, path, deadline).await? {
            Place::Mounted(mount) => file_system_usage(mount.target, deadline).await?,
            Place::Block(number) => {
                let bytes = device::bytes(number).map_err(|error| {
                    Status::internal(format!("the size of volume {id} cannot be read: {error}"))
                })?;
                vec![VolumeUsage {
                    total: signed(bytes),
                    unit: Unit::Bytes.into(),
                    ..VolumeUsage::default()
                }]
            }
        };
        Ok(NodeGetVolumeStatsResponse { usage })
    }

    pub(super) async fn health(
        &self,
        request: Request<NodeGetVolumeHealthRequest>,
    ) -> Result<NodeGetVolumeHealthResponse, Status> {
        let deadline = deadline::of(request.metadata());
        let request = request.into_inner();
        let id = volume_id(&request.volume_id)?;
        let paths = [&request.volume_publish_path, &request.staging_target_path];
        let place = match paths.into_iter().find(|path| !path.is_empty()) {
            Some(path) => {
                let path = limits::any_path("volume_publish_path", path)?;
                place(id, path, deadline).await?
            }
            None => self.any_place(id, deadline).await?,
        };
        let number = match &place {
            Place::Mounted(mount) => mount.device,
            Place::Block(number) => *number,
        };
        let mut entries = Vec::new();
        let mut say = |status: VolumeHealthErrorType, reason: &str, message: String| {
            entries.push(VolumeHealthEntry {
                status: status.into(),
                reason: reason.to_owned(),
                message,
            });
        };
        let dead = blocking("look at a device", deadline, move || {
            device::is_dead(number)
        })
        .await?;
        if dead {
            say(
                VolumeHealthErrorType::Inaccessible,
                "DeviceGone",
                format!(
                    "the device of volume {id} is gone or fails every read; the pod must be started again"
                ),
            );
        } else if let Place::Mounted(mount) = &place {
            // One that was asked for read-only has that option on its own mount too.
            if mount.is_super_read_only() && !mount.is_read_only() {
                say(
                    VolumeHealthErrorType::Inaccessible,
                    "ReadOnly",
                    format!(
                        "the kernel made the file system of volume {id} read-only after an error; see its log"
                    ),
                );
            }
        }
        Ok(NodeGetVolumeHealthResponse {
            volume_health: Some(VolumeHealth {
                volume_id: id.to_owned(),
                health_statuses: entries,
            }),
        })
    }

    /// Where a volume is mounted, wherever that may be; or else its device.
    async fn any_place(&self, id: &str, deadline: Instant) -> Result<Place, Status> {
        let device = self.device(id, deadline).await?;
        let table = mounts()?;
        let mut mounted = table
            .mounts
            .into_iter()
            .filter(|mount| mount.device == device.number);
        Ok(mounted
            .next()
            .map_or(Place::Block(device.number), Place::Mounted))
    }

    pub(super) async fn expand(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<NodeExpandVolumeResponse, Status> {
        let deadline = deadline::of(request.metadata());
        let request = request.into_inner();
        let id = volume_id(&request.volume_id)?.to_owned();
        let path = limits::any_path("volume_path", &request.volume_path)?.to_owned();
        limits::map("secrets", &request.secrets)?;
        let range = request.capacity_range.unwrap_or_default();
        let guard = self.in_flight.begin(&id, "NodeExpandVolume")?;
        let service = self.clone();
        self.to_the_end(async move {
            let _guard = guard;
            let place = place(&id, &path, deadline).await?;
            let device = service.device(&id, deadline).await?;
            let bytes = grown_device(&id, &device, range.required_bytes)?;
            if range.limit_bytes > 0 && bytes > range.limit_bytes {
                return Err(Status::out_of_range(format!(
                    "the device of volume {id} has {bytes} bytes, more than the limit of {}",
                    range.limit_bytes
                )));
            }
            if let Place::Mounted(mount) = place {
                file_system::grow(&device, &mount.file_system, &mount.target).await?;
            }
            Ok(NodeExpandVolumeResponse {
                capacity_bytes: bytes,
            })
        })
        .await
    }
}

fn grown_device(id: &str, device: &Device, required: i64) -> Result<i64, Status> {
    let bytes = device.bytes().map(signed).map_err(|error| {
        Status::internal(format!("the size of volume {id} cannot be read: {error}"))
    })?;
    if bytes < required {
        return Err(Status::unavailable(format!(
            "the device of volume {id} has {bytes} bytes and not yet the {required} that are required; call again"
        )));
    }
    Ok(bytes)
}

/// What is at a path; NotFound if it is nothing that could be a volume.
async fn place(id: &str, path: &Path, deadline: Instant) -> Result<Place, Status> {
    let path = resolved(path);
    let nothing = || Status::not_found(format!("volume {id} is not mounted at {}", path.display()));
    let table = mounts()?;
    let mount = table.at(&path).ok_or_else(nothing)?;
    // A bound device has the number of the file system that its node is on, which has none of its own.
    if mount.device.0 != 0 {
        return Ok(Place::Mounted(mount.clone()));
    }
    let target = path.clone();
    let found = blocking("look at a path", deadline, move || {
        std::fs::metadata(&target)
    })
    .await?;
    let found = found
        .ok()
        .filter(|found| found.file_type().is_block_device());
    found
        .map(|found| Place::Block(number_of(found.rdev())))
        .ok_or_else(nothing)
}

async fn file_system_usage(path: PathBuf, deadline: Instant) -> Result<Vec<VolumeUsage>, Status> {
    let shown = path.display().to_string();
    let found = blocking("ask a file system", deadline, move || {
        rustix::fs::statvfs(&path)
    })
    .await?;
    let found = found.map_err(|error| {
        Status::internal(format!("cannot ask the file system at {shown}: {error}"))
    })?;
    let bytes = |blocks: u64| signed(blocks.saturating_mul(found.f_frsize));
    Ok(vec![
        VolumeUsage {
            available: bytes(found.f_bavail),
            total: bytes(found.f_blocks),
            used: bytes(found.f_blocks.saturating_sub(found.f_bfree)),
            unit: Unit::Bytes.into(),
        },
        VolumeUsage {
            available: signed(found.f_favail),
            total: signed(found.f_files),
            used: signed(found.f_files.saturating_sub(found.f_ffree)),
            unit: Unit::Inodes.into(),
        },
    ])
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
