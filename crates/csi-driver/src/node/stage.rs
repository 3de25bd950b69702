//! Stage and unstage: a device becomes a mounted file system, once for all pods of the node.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::time::Instant;
use tonic::{Request, Status};

use super::device::Device;
use super::effects::{self, mounts};
use super::file_system::{self, Content};
use super::refusal::Refusal;
use super::{NodeService, VolumeNotes, resolved, volume_id};
use crate::capability::{Capability, DEFAULT_FILE_SYSTEM, Usage, file_system as known_file_system};
use crate::controller::parameters::FILE_SYSTEM;
use crate::csi::v1::{
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnstageVolumeRequest,
    NodeUnstageVolumeResponse,
};
use crate::{deadline, limits};

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
                // The device is there, which is all that staging it could do. Whoever gets it writes what he likes: from here
                // on nothing on it is a half-made file system of ours.
                Usage::Block => {
                    service.notes.end(&id).await?;
                    Ok(NodeStageVolumeResponse::default())
                }
                Usage::Mount { file_system, flags } => {
                    let wanted = [file_system, &preferred]
                        .into_iter()
                        .find(|name| !name.is_empty());
                    let plan = Staging {
                        volume: id.clone(),
                        device,
                        target: resolved(&target),
                        wanted: wanted.cloned(),
                        flags: flags.clone(),
                        read_only: capability.read_only,
                        notes: service.notes.clone(),
                    };
                    let staged = plan.stage(deadline).await;
                    if let Err(Refusal::OfVolume(why)) = &staged {
                        service.notes.refused(&id, why.message());
                    }
                    staged?;
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
    notes: Arc<dyn VolumeNotes>,
}

impl Staging {
    async fn stage(&self, deadline: Instant) -> Result<(), Refusal> {
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
    async fn is_mounted(&self, deadline: Instant) -> Result<bool, Refusal> {
        let table = mounts()?;
        let Some(mount) = table.at(&self.target) else {
            return Ok(false);
        };
        let refused = |sentence: String| Err(Refusal::OfVolume(Status::already_exists(sentence)));
        if mount.device != self.device.number {
            if effects::is_dead(mount, deadline).await? {
                effects::unmount_all(&self.target, deadline).await?;
                return Ok(false);
            }
            return Err(Refusal::Other(Status::already_exists(format!(
                "{} is mounted at {}, and is not the device of volume {}; unstage it first",
                mount.source,
                self.target.display(),
                self.volume
            ))));
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

    /// The file system of the device; made if the device is blank or we began to make one, and never otherwise.
    async fn ensure_file_system(&self, deadline: Instant) -> Result<String, Refusal> {
        let content = file_system::probe(&self.device, deadline).await?;
        let is_begun = match &content {
            Content::Unknown => self.notes.is_begun(&self.volume).await?,
            Content::Blank
            | Content::FileSystem(_)
            | Content::UnfinishedXfs
            | Content::Foreign(_) => false,
        };
        match decide(content, is_begun, self.wanted.as_deref(), self.read_only) {
            Decision::Use(kind) => {
                // Whoever made it may have died before he could say so.
                self.notes.end(&self.volume).await?;
                Ok(kind)
            }
            Decision::Make(kind) => {
                self.notes.begin(&self.volume).await?;
                tracing::info!(volume.name = self.volume, device = %self.device.path.display(), kind, is_begun, "making a file system");
                file_system::make(&self.device, &kind).await?;
                self.notes.end(&self.volume).await?;
                Ok(kind)
            }
            Decision::Refuse(why) => {
                let device = self.device.path.display();
                let sentence = format!("volume {}: {device} {why}", self.volume);
                Err(Refusal::OfVolume(Status::failed_precondition(sentence)))
            }
        }
    }
}

/// What is to be done about what a device holds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    /// The file system of this type is mounted as it is.
    Use(String),
    /// One of this type is made.
    Make(String),
    /// Neither; why, as the end of a sentence that begins with the device.
    Refuse(String),
}

/// `is_begun`: a file system was begun here, perhaps on another node, and nobody has used the volume since. That explains bytes
/// of no known format, and nothing else.
fn decide(content: Content, is_begun: bool, wanted: Option<&str>, read_only: bool) -> Decision {
    let chosen = wanted.unwrap_or(DEFAULT_FILE_SYSTEM);
    match content {
        Content::FileSystem(kind) if wanted.is_some_and(|wanted| wanted != kind) => {
            Decision::Refuse(format!(
                "holds a file system of type {kind}, but {chosen} is asked for; ask for {kind}, or copy the data to another volume"
            ))
        }
        Content::FileSystem(kind) if known_file_system(&kind).is_err() => {
            Decision::Refuse(format!(
                "holds a file system of type {kind}, which is not supported; use the volume as a raw block device"
            ))
        }
        Content::FileSystem(kind) => Decision::Use(kind),
        Content::Foreign(what) => not_formatted(&what),
        Content::Unknown if !is_begun => not_formatted("data of a format that is not known"),
        Content::Unknown | Content::Blank | Content::UnfinishedXfs if read_only => {
            Decision::Refuse(
                "has no file system yet, and cannot be formatted for reading only".to_owned(),
            )
        }
        Content::Unknown | Content::Blank | Content::UnfinishedXfs => {
            Decision::Make(chosen.to_owned())
        }
    }
}

fn not_formatted(what: &str) -> Decision {
    Decision::Refuse(format!(
        "holds {what} and no file system, and is therefore not formatted; if nobody needs it, run \"blkdiscard -f\" on it, or else use the volume as a raw block device"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `Ok`: used or made; `Err`: a part of the refusal.
    #[track_caller]
    fn check(
        content: &Content,
        is_begun: bool,
        wanted: &str,
        read_only: bool,
        expected: Result<Decision, &str>,
    ) {
        let wanted = (!wanted.is_empty()).then_some(wanted);
        let found = decide(content.clone(), is_begun, wanted, read_only);
        let row = format!("{content:?} begun: {is_begun}, wanted: {wanted:?}, ro: {read_only}");
        match (found, expected) {
            (Decision::Refuse(why), Err(part)) => assert!(why.contains(part), "{row}: {why}"),
            (found, expected) => assert_eq!(Ok(found), expected, "{row}"),
        }
    }

    #[test]
    fn only_what_is_nobodys_is_formatted() {
        let kind = |kind: &str| Content::FileSystem(kind.to_owned());
        let used = |kind: &str| Ok(Decision::Use(kind.to_owned()));
        let made = |kind: &str| Ok(Decision::Make(kind.to_owned()));
        // What is there and known is used, whether or not its maker could take the mark away.
        for is_begun in [false, true] {
            for read_only in [false, true] {
                check(&kind("ext4"), is_begun, "", read_only, used("ext4"));
                check(&kind("xfs"), is_begun, "xfs", read_only, used("xfs"));
                let other = Err("copy the data");
                check(&kind("ext4"), is_begun, "xfs", read_only, other);
                let unknown = Err("not supported");
                check(&kind("ntfs"), is_begun, "", read_only, unknown);
            }
            check(&Content::Blank, is_begun, "", false, made("ext4"));
            check(&Content::Blank, is_begun, "xfs", false, made("xfs"));
            check(&Content::Blank, is_begun, "", true, Err("reading only"));
            // The kernel never mounts it, so that nobody can have used it.
            let unfinished = Content::UnfinishedXfs;
            check(&unfinished, is_begun, "xfs", false, made("xfs"));
            check(&unfinished, is_begun, "", true, Err("reading only"));
        }
        // The mark alone tells what we left half-made from what is somebody's.
        let unknown = Content::Unknown;
        check(&unknown, true, "", false, made("ext4"));
        check(&unknown, true, "xfs", false, made("xfs"));
        check(&unknown, true, "", true, Err("reading only"));
        check(&unknown, false, "", false, Err("not formatted"));
        check(&unknown, false, "xfs", false, Err("a format that is not"));
        check(&unknown, false, "", true, Err("not formatted"));
        // What somebody signed is his, whatever the mark says, and he is told how to get rid of it.
        let foreign = Content::Foreign("a signature of swap".to_owned());
        for is_begun in [false, true] {
            check(&foreign, is_begun, "", false, Err("not formatted"));
            check(&foreign, is_begun, "xfs", false, Err("of swap and no"));
            check(&foreign, is_begun, "", true, Err("blkdiscard -f"));
        }
    }
}
