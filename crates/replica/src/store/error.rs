//! How operations on a replica fail, and what a client is told.

use std::io;

use block_core::SnapshotName;
use block_core::epoch::EpochRefusal;
use block_core::geometry::{RangeError, SizeError};
use block_core::layers::{LayerId, TreeError};
use block_core::wire::{Failure, GoodbyeReason, ReplicaMode, StatusCode};

use crate::layer_files::data_name;
use crate::metadata::{LoadMetadataError, StoreMetadataError};

#[derive(Debug, thiserror::Error)]
pub enum CreateReplicaError {
    #[error("the size is not one that a volume can have")]
    Size(#[from] SizeError),
    #[error("the folder is not empty: choose another, or remove what is in it")]
    FolderNotEmpty,
    #[error(
        "this file system does not keep holes of 4096 bytes; use ext4 or xfs with 4 KiB blocks"
    )]
    CoarseHoles,
    #[error("cannot make the replica's files")]
    Io(#[source] io::Error),
    #[error("cannot store the replica's metadata")]
    Metadata(#[from] StoreMetadataError),
    #[error("cannot open the new replica")]
    Open(#[from] OpenReplicaError),
}

#[derive(Debug, thiserror::Error)]
pub enum OpenReplicaError {
    #[error("cannot load the replica's metadata")]
    Metadata(#[from] LoadMetadataError),
    #[error("cannot open {file}, which the metadata names: the replica is incomplete, rebuild it")]
    Layer { file: String, source: io::Error },
    #[error("cannot read the replica's files")]
    Io(#[source] io::Error),
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    Epoch(#[from] EpochRefusal),
    #[error(transparent)]
    Range(#[from] RangeError),
    #[error(transparent)]
    Size(#[from] SizeError),
    #[error(transparent)]
    Tree(#[from] TreeError),
    #[error("cannot {action} {file}")]
    Io {
        action: &'static str,
        file: String,
        source: io::Error,
    },
    #[error("cannot store metadata")]
    Metadata(#[source] StoreMetadataError),
    #[error("the replica stopped by itself ({reason}); rebuild it from another")]
    Faulted { reason: String },
    #[error("not possible while the replica is {mode:?}")]
    WrongMode { mode: ReplicaMode },
    #[error("no rebuild is under way: begin it first")]
    NoRebuild,
    #[error("{what} is running; try again when it is done")]
    Busy { what: &'static str },
    #[error(
        "a range of {length_bytes} bytes is above the limit of {max_bytes}, or is not made of whole {unit_bytes}"
    )]
    BadLength {
        length_bytes: u64,
        max_bytes: u64,
        unit_bytes: u64,
    },
    #[error(
        "snapshot {name} is not what it was: its digest was {kept}, is {found}; a disk has changed data by itself"
    )]
    Corrupt {
        name: SnapshotName,
        kept: String,
        found: String,
    },
    #[error(
        "layer {name} is not equal to the source's: digest {wanted} expected, {found} found; copy it again"
    )]
    NotVerified {
        name: SnapshotName,
        wanted: String,
        found: String,
    },
    #[error("the rebuilt layers must be verified up to the newest before the replica can be used")]
    VerifyFirst,
    #[error("too many blocks were written in part during this rebuild; begin it again")]
    TooManyPartialBlocks,
}

impl StoreError {
    pub(crate) fn io(action: &'static str, id: LayerId, source: io::Error) -> Self {
        Self::Io {
            action,
            file: data_name(id),
            source,
        }
    }

    fn code(&self) -> StatusCode {
        let of_io = |error: &io::Error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StatusCode::NoSpace,
            _ => StatusCode::Io,
        };
        match self {
            Self::Epoch(EpochRefusal::Stale { .. }) => StatusCode::StaleEpoch,
            Self::Epoch(EpochRefusal::Superseded { .. }) => StatusCode::Superseded,
            Self::Epoch(EpochRefusal::None)
            | Self::WrongMode { .. }
            | Self::NoRebuild
            | Self::VerifyFirst => StatusCode::WrongMode,
            Self::Range(RangeError::OutOfRange { .. }) => StatusCode::OutOfRange,
            Self::Range(RangeError::Unaligned { .. }) | Self::Size(_) | Self::BadLength { .. } => {
                StatusCode::BadRequest
            }
            Self::Tree(error) => match error {
                TreeError::Exists { .. } => StatusCode::AlreadyExists,
                TreeError::NotFound { .. } | TreeError::Removed { .. } => StatusCode::NotFound,
                TreeError::TooManyLayers => StatusCode::LimitReached,
                TreeError::Shrink { .. } | TreeError::Inconsistent { .. } => StatusCode::BadRequest,
            },
            Self::Io { source, .. } => of_io(source),
            Self::Metadata(
                StoreMetadataError::NotStored(source) | StoreMetadataError::Uncertain(source),
            ) => of_io(source),
            Self::Faulted { .. } => StatusCode::Io,
            Self::Busy { .. } => StatusCode::Busy,
            Self::Corrupt { .. } | Self::NotVerified { .. } => StatusCode::Corrupt,
            Self::TooManyPartialBlocks => StatusCode::LimitReached,
        }
    }

    /// What the client is told: the code to act on, and the whole chain of causes as text.
    #[must_use]
    pub fn failure(&self) -> Failure {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        Failure::new(self.code(), text)
    }

    /// Which of the engine's connections is obeyed, where that is why another is refused.
    #[must_use]
    pub fn newest_session(&self) -> Option<u64> {
        match self {
            Self::Epoch(EpochRefusal::Superseded { accepted, .. }) => Some(*accepted),
            _ => None,
        }
    }

    /// Why a connection that got this answer can be ended: nothing that it sends will ever be accepted again.
    #[must_use]
    pub fn ends_connection(&self) -> Option<GoodbyeReason> {
        match self {
            Self::Epoch(EpochRefusal::Stale { .. }) => Some(GoodbyeReason::StaleEpoch),
            Self::Epoch(EpochRefusal::Superseded { .. }) => Some(GoodbyeReason::Superseded),
            _ => None,
        }
    }
}
