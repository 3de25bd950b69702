//! Why a volume is not staged, and whom that concerns.

use tokio::time::Instant;
use tonic::Status;

use super::device::{self, Device};
use super::effects::blocking;

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
    /// What a tool could not do with a device is about what is on it, unless the device does not answer or somebody else has it.
    pub(super) async fn of_tool(device: &Device, status: Status, deadline: Instant) -> Self {
        let (path, number) = (device.path.clone(), device.number);
        let looked = blocking("look at a device", deadline, move || {
            device::is_dead(number) || device::is_claimed(&path)
        });
        match looked.await {
            Ok(false) => Self::OfVolume(status),
            Ok(true) | Err(_) => Self::Other(status),
        }
    }
}
