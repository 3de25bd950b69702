//! Publish and unpublish: a staged volume appears where one pod looks for it.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use tokio::time::Instant;
use tonic::{Request, Status};

use super::device::{Device, number_of};
use super::effects::{self, blocking, mounts};
use super::mount_table::Mount;
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
            if is_single && let Err(status) = is_only_pod(&id, &device, &staging, &target) {
                service.notes.refused(&id, status.message());
                return Err(status);
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
        let mount = table.at(&self.target);
        match (shown(mount, self.device.number, self.read_only), mount) {
            (Shown::ForWriting, Some(mount)) => effects::make_read_only(mount, deadline).await,
            (Shown::AsWanted, _) => Ok(()),
            (Shown::Other, _) => {
                effects::unmount_all(&self.target, deadline).await?;
                Err(Status::aborted(format!(
                    "volume {} was unstaged while it was being published; stage it and call again",
                    self.volume
                )))
            }
            (Shown::Nothing | Shown::ForWriting, _) => Err(Status::internal(format!(
                "{} was mounted and is not in /proc/self/mountinfo",
                self.target.display()
            ))),
        }
    }
}

/// What is seen at a target after something was bound there.
#[derive(Debug, PartialEq, Eq)]
enum Shown {
    AsWanted,
    /// The volume, which still has to be made read-only.
    ForWriting,
    /// Not the volume: an unstage came between the look at the staged file system and the bind, which then showed the bare
    /// folder. What a pod would write there would be lost.
    Other,
    Nothing,
}

fn shown(mount: Option<&Mount>, device: (u32, u32), read_only: bool) -> Shown {
    match mount {
        None => Shown::Nothing,
        Some(mount) if mount.device != device => Shown::Other,
        Some(mount) if read_only && !mount.is_read_only() => Shown::ForWriting,
        Some(_) => Shown::AsWanted,
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

#[cfg(test)]
mod tests {
    use super::super::mount_table::MountTable;
    use super::*;

    #[test]
    fn only_the_staged_device_is_a_published_volume() {
        let check = |line: &str, read_only: bool, expected: Shown| {
            let table = MountTable::parse(line.as_bytes());
            let mount = table.at(Path::new("/pods/a"));
            assert_eq!(shown(mount, (7, 3), read_only), expected, "{line}");
        };
        let volume = "36 35 7:3 / /pods/a rw,relatime - ext4 /dev/loop3 rw";
        check(volume, false, Shown::AsWanted);
        check(volume, true, Shown::ForWriting);
        let guarded = "36 35 7:3 / /pods/a ro,relatime - ext4 /dev/loop3 rw";
        check(guarded, true, Shown::AsWanted);
        let bare = "36 35 8:1 /var/staging /pods/a rw,relatime - ext4 /dev/sda1 rw";
        check(bare, false, Shown::Other);
        check(bare, true, Shown::Other);
        check(
            "36 35 7:3 / /pods/b rw - ext4 /dev/loop3 rw",
            false,
            Shown::Nothing,
        );
    }
}
