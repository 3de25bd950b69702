//! Stage and unstage: a device becomes a mounted file system, once for all pods of the node.

use std::path::{Path, PathBuf};

use tokio::time::Instant;
use tonic::{Request, Status};

use super::device::Device;
use super::effects::{self, mounts};
use super::file_system::{self, Content};
use super::{NodeService, resolved, volume_id};
use crate::capability::{Capability, DEFAULT_FILE_SYSTEM, Usage, file_system as known_file_system};
use crate::controller::parameters::FILE_SYSTEM;
use crate::csi::v1::{
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnstageVolumeRequest,
    NodeUnstageVolumeResponse,
};
use crate::{deadline, limits};

/// In the staging folder while a file system is made: whoever finds it knows that what is on the device is our own
/// half-made one. The mount hides the folder's content afterwards.
const MAKING_MARK: &str = ".lariat-making-file-system";

impl NodeService {
    pub(super) async fn stage(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<NodeStageVolumeResponse, Status> {
        let deadline = deadline::of(request.metadata());
        let request = request.into_inner();
        let id = volume_id(&request.volume_id)?.to_owned();
        let target = limits::path("staging_target_path", &request.staging_target_path)?.to_owned();
        limits::map("publish_context", &request.publish_context)?;
        limits::map("volume_context", &request.volume_context)?;
        limits::map("secrets", &request.secrets)?;
        let capability = Capability::parse_required(request.volume_capability.as_ref())?;
        let preferred = request
            .volume_context
            .get(FILE_SYSTEM)
            .cloned()
            .unwrap_or_default();
        known_file_system(&preferred)?;
        let guard = self.in_flight.begin(&id, "NodeStageVolume")?;
        let service = self.clone();
        self.to_the_end(async move {
            let _guard = guard;
            let device = service.device(&id, deadline).await?;
            match &capability.usage {
                // The device is there, which is all that staging it could do.
                Usage::Block => Ok(NodeStageVolumeResponse::default()),
                Usage::Mount { file_system, flags } => {
                    let wanted = [file_system, &preferred]
                        .into_iter()
                        .find(|name| !name.is_empty());
                    let plan = Staging {
                        volume: id,
                        device,
                        target: resolved(&target),
                        wanted: wanted.cloned(),
                        flags: flags.clone(),
                        read_only: capability.read_only,
                    };
                    plan.stage(deadline).await?;
                    Ok(NodeStageVolumeResponse::default())
                }
            }
        })
        .await
    }

    pub(super) async fn unstage(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<NodeUnstageVolumeResponse, Status> {
        let deadline = deadline::of(request.metadata());
        let request = request.into_inner();
        let id = volume_id(&request.volume_id)?;
        let target = limits::path("staging_target_path", &request.staging_target_path)?.to_owned();
        let guard = self.in_flight.begin(id, "NodeUnstageVolume")?;
        let link = self.options.device_dir.join(id);
        self.to_the_end(async move {
            let _guard = guard;
            let target = resolved(&target);
            effects::unmount_all(&target, deadline).await?;
            let device =
                effects::blocking("look for a device", deadline, move || Device::at(&link));
            if let Ok(Some(device)) = device.await? {
                effects::until_released(&device, deadline).await?;
            }
            // The folder is the caller's, but must be as empty as we found it.
            remove_mark(&target)?;
            Ok(NodeUnstageVolumeResponse::default())
        })
        .await
    }

    /// Runs a call to its end even if its caller goes away: a second call must not format beside the first.
    pub(super) async fn to_the_end<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<T, Status> {
        tokio::spawn(call)
            .await
            .unwrap_or_else(|error| Err(Status::internal(format!("the call was lost: {error}"))))
    }
}

/// One volume to be mounted for staging.
struct Staging {
    volume: String,
    device: Device,
    target: PathBuf,
    /// None if whatever is there will do.
    wanted: Option<String>,
    flags: Vec<String>,
    read_only: bool,
}

impl Staging {
    async fn stage(&self, deadline: Instant) -> Result<(), Status> {
        if self.is_mounted(deadline).await? {
            return Ok(());
        }
        effects::ensure_folder(&self.target)?;
        let kind = self.ensure_file_system(deadline).await?;
        let mut options = self.flags.clone();
        if self.read_only {
            options.push("ro".to_owned());
        } else {
            file_system::check(&self.device, &kind).await?;
            file_system::grow_unmounted(&self.device, &kind).await?;
        }
        if kind == "xfs" {
            // A clone or a restored snapshot has its source's UUID, with which xfs refuses a second mount.
            options.push("nouuid".to_owned());
        }
        file_system::mount(&self.device, &kind, &options, &self.target).await?;
        tracing::info!(volume.name = self.volume, device = %self.device.path.display(), kind, "staged");
        Ok(())
    }

    /// Whether an earlier call has done it all. A mount of a dead device is cleared away.
    async fn is_mounted(&self, deadline: Instant) -> Result<bool, Status> {
        let table = mounts()?;
        let Some(mount) = table.at(&self.target) else {
            return Ok(false);
        };
        let refused = |sentence: String| Err(Status::already_exists(sentence));
        if mount.device != self.device.number {
            if effects::is_dead(mount, deadline).await? {
                effects::unmount_all(&self.target, deadline).await?;
                return Ok(false);
            }
            return refused(format!(
                "{} is mounted at {}, and is not the device of volume {}; unstage it first",
                mount.source,
                self.target.display(),
                self.volume
            ));
        }
        if self
            .wanted
            .as_ref()
            .is_some_and(|wanted| *wanted != mount.file_system)
        {
            return refused(format!(
                "volume {} is staged with file system {}, not {}",
                self.volume,
                mount.file_system,
                self.wanted.as_deref().unwrap_or_default()
            ));
        }
        if mount.is_read_only() && !self.read_only {
            return refused(format!("volume {} is staged read-only", self.volume));
        }
        Ok(true)
    }

    /// The file system of the device; made if the device is blank, and never otherwise.
    async fn ensure_file_system(&self, deadline: Instant) -> Result<String, Status> {
        let chosen = self.wanted.as_deref().unwrap_or(DEFAULT_FILE_SYSTEM);
        let content = file_system::probe(&self.device, deadline).await?;
        let refused = |sentence: String| {
            Err(Status::failed_precondition(format!(
                "volume {}: {} {sentence}",
                self.volume,
                self.device.path.display()
            )))
        };
        let mark = self.target.join(MAKING_MARK);
        match content {
            Content::FileSystem(kind)
                if self.wanted.as_ref().is_none_or(|wanted| *wanted == kind) =>
            {
                if known_file_system(&kind).is_err() {
                    return refused(format!(
                        "holds a file system of type {kind}, which is not supported; use the volume as a raw block device"
                    ));
                }
                remove_mark(&self.target)?;
                return Ok(kind);
            }
            Content::FileSystem(kind) => {
                return refused(format!(
                    "holds a file system of type {kind}, but {chosen} is asked for; ask for {kind}, or copy the data to another volume"
                ));
            }
            Content::Foreign(what) if !mark.exists() => {
                return refused(format!(
                    "holds {what} and no file system, and is therefore not formatted; if nobody needs it, run \"wipefs -a\" on it, or else use the volume as a raw block device"
                ));
            }
            Content::Foreign(_) | Content::Blank | Content::UnfinishedXfs => {}
        }
        if self.read_only {
            return refused("is blank, and cannot be formatted for reading only".to_owned());
        }
        std::fs::write(&mark, b"").map_err(|error| {
            Status::internal(format!("cannot write {}: {error}", mark.display()))
        })?;
        tracing::info!(volume.name = self.volume, device = %self.device.path.display(), kind = chosen, "formatting a blank device");
        file_system::make(&self.device, chosen).await?;
        remove_mark(&self.target)?;
        Ok(chosen.to_owned())
    }
}

fn remove_mark(target: &Path) -> Result<(), Status> {
    let mark = target.join(MAKING_MARK);
    match std::fs::remove_file(&mark) {
        Err(error)
            if error.kind() != std::io::ErrorKind::NotFound
                && error.kind() != std::io::ErrorKind::NotADirectory =>
        {
            Err(Status::internal(format!(
                "cannot remove {}: {error}",
                mark.display()
            )))
        }
        _ => Ok(()),
    }
}
