//! Block front ends: how a volume looks from outside.
//!
//! The engine's loop owns its front end as it owns its replicas' sockets: it reports which
//! descriptors are ready, takes the requests that come out, and gives the outcomes back, in any
//! order. No front end has a thread on the data path, so a request costs no wake-up besides the
//! kernel's own. What would block (a loop device asks its backing file questions while it
//! is set up, and we are the ones who answer them) runs on a helper thread, which reports by mailbox.
//!
//! To add a front end: one file here, one variant of [`FrontendKind`], one arm in
//! [`FrontendKind::open`]; `tests/frontends.rs` already covers it.

pub mod fuse;
pub mod keeper;
pub mod nbd;
pub mod none;
#[cfg(feature = "ublk")]
pub mod ublk;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::io::{Outcome, Request, RequestId};
use crate::poller::{Poller, Readiness};

/// What a front end does for the loop that owns it.
pub trait Frontend: Send {
    fn state(&self) -> FrontendState;

    /// Handles one descriptor that is ready, and adds the requests that arrived.
    fn ready(&mut self, readiness: Readiness, requests: &mut Vec<Request>);

    /// Answers a request. Unknown or repeated names are ignored: an answer may come late.
    fn complete(&mut self, id: RequestId, outcome: Outcome);

    /// Hands over what `complete` has queued; called once per turn of the loop.
    fn flush(&mut self);

    /// Begins to close: no more users get in, and those inside may finish. Requests go on to come and
    /// must be answered, until [`FrontendState::Closed`] is reached.
    fn begin_close(&mut self);

    /// The means to follow a volume that grows, where there are such.
    fn resize(&mut self) -> Option<&mut dyn Resize>;

    /// Lets go of all descriptors and nothing else, as a kill would: no device is taken away.
    fn abandon(self: Box<Self>);
}

/// Ends a front end as a kill of the engine would, for tests of what comes after.
pub fn abandon(frontend: Box<dyn Frontend>) {
    frontend.abandon();
}

/// A front end that can follow the volume's size while it is open.
pub trait Resize {
    /// Shows the new size; users of the device see it without reopening.
    fn set_size(&mut self, size_bytes: u64);
}

/// ```text
/// Opening ──> Ready ──> Closing ──> Closed
///    └──────────┴──> Failed
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum FrontendState {
    Opening,
    Ready { endpoint: Endpoint },
    Closing,
    Closed,
    Failed { reason: String },
}

/// Where users find the volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Endpoint {
    /// A path that leads to a block device.
    BlockDevice(PathBuf),
    /// A unix socket that speaks NBD.
    NbdSocket(PathBuf),
    Nowhere,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::BlockDevice(path) => write!(f, "{}", path.display()),
            Endpoint::NbdSocket(path) => write!(f, "nbd+unix:///?socket={}", path.display()),
            Endpoint::Nowhere => f.write_str("none"),
        }
    }
}

/// The front ends that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FrontendKind {
    /// A FUSE file under a loop device.
    Fuse,
    /// An NBD server on a unix socket.
    Nbd,
    /// No device: for restore, clone and rebuild.
    None,
    /// A ublk device.
    #[cfg(feature = "ublk")]
    Ublk,
}

/// A front end that was started.
pub struct Opened {
    pub frontend: Box<dyn Frontend>,
    /// Why the device that an engine before this one had could not be taken over, where there was one: its users get I/O errors.
    pub made_anew: Option<String>,
}

/// How a front end is to be opened.
#[derive(Clone, Debug)]
pub struct FrontendOptions {
    pub volume: String,
    pub size_bytes: u64,
    /// Sockets and mount points are made here.
    pub runtime_dir: PathBuf,
    /// Links to block devices are made here.
    pub device_dir: PathBuf,
    /// The device's logical block size: 512 or 4096.
    pub sector_bytes: u32,
    /// Where to leave the FUSE connection, so that a successor can take it over.
    pub keeper: Option<PathBuf>,
}

#[derive(Debug, Error)]
pub enum OpenFrontendError {
    #[error("volume name {0:?} cannot be part of a path; use letters, digits, '-', '_' and '.'")]
    Name(String),
    #[error("sector size {0} is not supported; use 512 or 4096")]
    Sector(u32),
    #[cfg(feature = "ublk")]
    #[error(
        "this kernel has no ublk that can be used (CONFIG_BLK_DEV_UBLK, Linux 6.9; try `modprobe ublk_drv`): \
         use --frontend fuse"
    )]
    NoUblk(#[source] std::io::Error),
    #[error("cannot {attempt} {path}")]
    Path {
        attempt: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot {attempt}")]
    System {
        attempt: &'static str,
        #[source]
        source: std::io::Error,
    },
}

impl FrontendKind {
    pub const ALL: &'static [FrontendKind] = &[
        FrontendKind::Fuse,
        FrontendKind::Nbd,
        FrontendKind::None,
        #[cfg(feature = "ublk")]
        FrontendKind::Ublk,
    ];

    /// Starts a front end; it is usable when its state is [`FrontendState::Ready`].
    pub fn open(
        self,
        poller: &Arc<Poller>,
        options: FrontendOptions,
    ) -> Result<Opened, OpenFrontendError> {
        check_options(&options)?;
        let mut made_anew = None;
        let frontend: Box<dyn Frontend> = match self {
            FrontendKind::Fuse => {
                let mut frontend = fuse::FuseFrontend::open(poller, options)?;
                made_anew = frontend.made_anew.take();
                Box::new(frontend)
            }
            FrontendKind::Nbd => Box::new(nbd::NbdFrontend::open(poller, options)?),
            FrontendKind::None => Box::new(none::NoFrontend::default()),
            #[cfg(feature = "ublk")]
            FrontendKind::Ublk => Box::new(ublk::UblkFrontend::open(poller, &options)?),
        };
        Ok(Opened {
            frontend,
            made_anew,
        })
    }
}

/// Volume names become file names: nothing that could leave the folder gets through.
fn check_options(options: &FrontendOptions) -> Result<(), OpenFrontendError> {
    let name = &options.volume;
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 200 || name.starts_with('.') || !name.chars().all(allowed) {
        return Err(OpenFrontendError::Name(name.clone()));
    }
    if !matches!(options.sector_bytes, 512 | 4096) {
        return Err(OpenFrontendError::Sector(options.sector_bytes));
    }
    Ok(())
}

impl fmt::Display for FrontendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FrontendKind::Fuse => "fuse",
            FrontendKind::Nbd => "nbd",
            FrontendKind::None => "none",
            #[cfg(feature = "ublk")]
            FrontendKind::Ublk => "ublk",
        })
    }
}

#[derive(Debug, Error)]
#[error(
    "unknown front end {0:?}; use fuse, nbd or none (ublk is there in builds with the feature of that name)"
)]
pub struct UnknownFrontend(String);

impl FromStr for FrontendKind {
    type Err = UnknownFrontend;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        FrontendKind::ALL
            .iter()
            .copied()
            .find(|kind| kind.to_string() == text)
            .ok_or_else(|| UnknownFrontend(text.to_owned()))
    }
}
