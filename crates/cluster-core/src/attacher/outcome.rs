//! What an answer of the driver is written down as.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::event::truncate_message;
use crate::identity::{DriverName, Timestamp};
use crate::names::finalizer_name;
use crate::view::{ErrorReport, VolumeAttachment};

/// A failed call, by its gRPC code.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the driver answered with code {code}: {message}")]
pub struct RpcError {
    pub code: i32,
    pub message: String,
}

impl RpcError {
    /// Has the operation certainly ended? After the others it may still be running, and the attachment
    /// is uncertain: cancelled, deadline exceeded, resource exhausted, aborted, unavailable.
    pub fn is_final(&self) -> bool {
        !matches!(self.code, 1 | 4 | 8 | 10 | 14)
    }

    fn report(&self, now: Timestamp, with_code: bool) -> ErrorReport {
        ErrorReport {
            message: truncate_message(&self.message).to_owned(),
            at: now,
            code: with_code.then_some(self.code),
        }
    }
}

/// Patches of one attachment, to be made in the given order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachmentPatch {
    /// One status patch: attached, the driver's metadata, no error.
    Attached {
        metadata: BTreeMap<String, String>,
    },
    AttachFailed {
        error: ErrorReport,
    },
    /// The finalizers that stay. The object may be gone after this; "not found" is fine from here on.
    Finalizers {
        finalizers: Vec<String>,
    },
    /// Not attached, no metadata, no error.
    Detached,
    DetachFailed {
        error: ErrorReport,
    },
}

pub fn after_publish(
    answer: Result<BTreeMap<String, String>, &RpcError>,
    now: Timestamp,
) -> AttachmentPatch {
    match answer {
        Ok(metadata) => AttachmentPatch::Attached { metadata },
        Err(error) => AttachmentPatch::AttachFailed {
            error: error.report(now, true),
        },
    }
}

/// The finalizer goes first: a status patch that fails must not make the driver detach twice.
pub fn after_unpublish(
    driver: &DriverName,
    attachment: &VolumeAttachment,
    answer: Result<(), &RpcError>,
    now: Timestamp,
) -> Vec<AttachmentPatch> {
    match answer {
        Ok(()) => {
            let own = finalizer_name(driver);
            let finalizers = attachment
                .finalizers
                .iter()
                .filter(|other| **other != own)
                .cloned()
                .collect();
            vec![
                AttachmentPatch::Finalizers { finalizers },
                AttachmentPatch::Detached,
            ]
        }
        Err(error) => vec![AttachmentPatch::DetachFailed {
            error: error.report(now, false),
        }],
    }
}
