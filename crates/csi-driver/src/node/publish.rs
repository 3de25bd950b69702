//! Publish and unpublish: a staged volume appears where one pod looks for it.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use tokio::time::Instant;
use tonic::{Request, Status};

use super::device::{Device, number_of};
use super::effects::{self, blocking, mounts};
use super::{NodeService, resolved, volume_id};
use crate::capability::{Access, Capability, Usage};
use crate::csi::v1::{
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse,
};
use crate::{deadline, limits};

impl NodeService {
    pub(super) async fn publish(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<NodePublishVolumeResponse, Status> {
        let deadline = deadline::of(request.metadata());
        let request = request.into_inner();
        let id = volume_id(&request.volume_id)?.to_owned();
        let target = limits::path("target_path", &request.target_path)?.to_owned();
        limits::map("publish_context", &request.publish_context)?;
        limits::map("volume_context", &request.volume_context)?;
        limits::map("secrets", &request.secrets)?;
        let capability = Capability::parse_required(request.volume_capability.as_ref())?;
        if request.staging_target_path.is_empty() {
            return Err(Status::failed_precondition(
                "staging_target_path is missing: a volume is staged before it is published",
            ));
        }
        let staging = limits::path("staging_target_path", &request.staging_target_path)?.to_owned();
        let read_only = request.readonly || capability.read_only;
        if capability.usage == Usage::Block && read_only {
            return Err(Status::invalid_argument(
                "a raw block device cannot be published read-only: a read-only mount does not stop writes to a device",
            ));
        }
        // One pod only: then two publishes must not run beside each other.
        let is_single = capability.access == Access::SinglePod;
        let key = if is_single {
            id.clone()
        } else {
            place(&id, &target)
        };
        let guard = self.in_flight.begin(&key, "NodePublishVolume")?;
        let service = self.clone();
        self.to_the_end(async move {
            let _guard = guard;
            let device = service.device(&id, deadline).await?;
            let (staging, target) = (resolved(&staging), resolved(&target));
            if is_single {
                is_only_pod(&id, &device, &staging, &target)?;
            }
            match capability.usage {
                Usage::Block => publish_block(&id, &device, &target, deadline).await?,
                Usage::Mount { .. } => {
                    let publishing = Publishing {
                        volume: id,
                        device,
                        staging,
                        target,
                        read_only,
                    };
                    publishing.publish(deadline).await?;
                }
            }
            Ok(NodePublishVolumeResponse::default())
        })
        .await
    }

    pub(super) async fn unpublish(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<NodeUnpublishVolumeResponse, Status> {
        let deadline = deadline::of(request.metadata());
        let request = request.into_inner();
        let id = volume_id(&request.volume_id)?;
        let target = limits::path("target_path", &request.target_path)?.to_owned();
        let guard = self
            .in_flight
            .begin(&place(id, &target), "NodeUnpublishVolume")?;
        self.to_the_end(async move {
            let _guard = guard;
            let target = resolved(&target);
            effects::unmount_all(&target, deadline).await?;
            effects::remove_mount_point(&target)?;
            Ok(NodeUnpublishVolumeResponse::default())
        })
        .await
    }
}

/// Pods of one volume do not wait for each other: each has a path of its own.
fn place(id: &str, target: &Path) -> String {
    format!("{id} at {}", target.display())
}

/// A volume for one pod is shown at one path only.
fn is_only_pod(id: &str, device: &Device, staging: &Path, target: &Path) -> Result<(), Status> {
    let table = mounts()?;
    let places = table.places_of(&device.path, device.number);
    let other = places
        .into_iter()
        .find(|place| *place != staging && *place != target);
    other.map_or(Ok(()), |other| {
        Err(Status::failed_precondition(format!(
            "volume {id} is for one pod only, and is published at {}; unpublish it there first",
            other.display()
        )))
    })
}

/// A staged file system to be shown at one more path.
struct Publishing {
    volume: String,
    device: Device,
    staging: PathBuf,
    target: PathBuf,
    read_only: bool,
}

impl Publishing {
    async fn publish(&self, deadline: Instant) -> Result<(), Status> {
        let table = mounts()?;
        let staged = table
            .at(&self.staging)
            .filter(|mount| mount.device == self.device.number);
        let Some(staged) = staged else {
            return Err(Status::failed_precondition(format!(
                "volume {} is not staged at {}; stage it first",
                self.volume,
                self.staging.display()
            )));
        };
        if staged.is_read_only() && !self.read_only {
            return Err(Status::failed_precondition(format!(
                "volume {} is staged read-only and cannot be published for writing",
                self.volume
            )));
        }
        if let Some(mount) = table.at(&self.target) {
            if mount.device == self.device.number {
                if mount.is_read_only() && !self.read_only {
                    return Err(Status::already_exists(format!(
                        "volume {} is published read-only at {}",
                        self.volume,
                        self.target.display()
                    )));
                }
            } else if effects::is_dead(mount, deadline).await? {
                effects::unmount_all(&self.target, deadline).await?;
            } else {
                return Err(Status::already_exists(format!(
                    "{} is mounted at {}, and is not volume {}; unpublish it first",
                    mount.source,
                    self.target.display(),
                    self.volume
                )));
            }
        }
        if mounts()?.at(&self.target).is_none() {
            effects::ensure_folder(&self.target)?;
            effects::bind(&self.staging, &self.target, deadline).await?;
        }
        // Also where a crash came between the two steps.
        let table = mounts()?;
        match table.at(&self.target) {
            Some(mount) if self.read_only && !mount.is_read_only() => {
                effects::make_read_only(mount, deadline).await
            }
            Some(_) => Ok(()),
            None => Err(Status::internal(format!(
                "{} was mounted and is not in /proc/self/mountinfo",
                self.target.display()
            ))),
        }
    }
}

/// Shows the device itself at a path.
async fn publish_block(
    id: &str,
    device: &Device,
    target: &Path,
    deadline: Instant,
) -> Result<(), Status> {
    if mounts()?.at(target).is_some() {
        let path = target.to_owned();
        let found = blocking("look at a target", deadline, move || {
            std::fs::metadata(&path)
        })
        .await?;
        let number = found
            .ok()
            .filter(|found| found.file_type().is_block_device())
            .map(|found| number_of(found.rdev()));
        match number {
            Some(number) if number == device.number => return Ok(()),
            // The device that the volume had before it was attached anew.
            Some(_) => effects::unmount_all(target, deadline).await?,
            None => {
                return Err(Status::already_exists(format!(
                    "something that is not a block device is mounted at {}, and volume {id} cannot be; unpublish it first",
                    target.display()
                )));
            }
        }
    }
    effects::ensure_file(target)?;
    effects::bind(&device.path, target, deadline).await
}
