//! Why a volume is not staged or published, and whom that concerns.

use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;

use super::device::{self, Device};
use super::effects::blocking;
use super::tool::Answer;

/// How long a device may take to show that it answers. Not the caller's time, which may be over: a check of a file system takes longer than
/// a kubelet waits, and what it has found is told all the same.
const PATIENCE: Duration = Duration::from_secs(5);

/// Codes cannot tell these apart: mount(8) fails alike for a damaged file system and for a device that was fenced meanwhile.
#[derive(Debug)]
pub(super) enum Refusal {
    /// About what is on the volume, or what is asked of it. The same call will be refused again until somebody changes one of them.
    OfVolume(Status),
    /// About the node, its tools or a moment that passes.
    Other(Status),
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self::Other(status)
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::OfVolume(status) | Refusal::Other(status) => status,
        }
    }
}

impl Refusal {
    /// Of a tool that has failed.
    pub(super) async fn of_tool(answer: &Answer, device: &Device, status: Status) -> Self {
        if is_about_content(answer, device).await {
            Self::OfVolume(status)
        } else {
            Self::Other(status)
        }
    }
}

/// Whether a tool has refused what is on a device: it was not ended itself, the device answers, and nobody else has it.
pub(super) async fn is_about_content(answer: &Answer, device: &Device) -> bool {
    let (path, number) = (device.path.clone(), device.number);
    let is_free = blocking("look at a device", Instant::now() + PATIENCE, move || {
        !device::is_dead(number) && !device::is_claimed(&path)
    });
    answer.code > 0 && is_free.await.unwrap_or(false)
}
