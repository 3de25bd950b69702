//! The four ways to change part of an object, and the record of who set which field.
//!
//! Everything here is a pure function over JSON values and a [`Schema`](crate::schema::Schema): no
//! store, no clock, no request. The order in which the server uses it:
//!
//! 1. [`json`], [`merge`] or [`strategic`] turn the live object and a patch into a new object, then
//!    [`managed::track_update`] records whose fields changed; or
//! 2. [`apply`] does both at once, because who owns a field decides what the merge may do.
//!
//! Every error answers [`Rejection`], which is what the client sees. Nothing here panics on any
//! input, recursion is bounded by [`bounds::DEPTH_MAX`], and no small patch makes a large object.

pub mod apply;
pub mod bounds;
pub mod json;
pub mod managed;
pub mod merge;
pub mod strategic;
mod values;

#[cfg(test)]
mod test_cluster;
#[cfg(test)]
mod test_values;

use serde_json::Value;

/// What a client is told about a patch that was refused: the parts of a `Status` object that the
/// patch decides. The server adds the object's kind and name where the real one does.
#[derive(Clone, Debug, PartialEq)]
pub struct Rejection {
    /// The HTTP status code.
    pub code: u16,
    /// `Status.reason`.
    pub reason: &'static str,
    /// `Status.message`.
    pub message: String,
    /// `Status.details.causes`.
    pub causes: Vec<Value>,
}

impl Rejection {
    fn bad_request(message: impl Into<String>) -> Self {
        Self {
            code: 400,
            reason: "BadRequest",
            message: message.into(),
            causes: Vec::new(),
        }
    }

    fn too_large(message: impl Into<String>) -> Self {
        Self {
            code: 413,
            reason: "RequestEntityTooLarge",
            message: message.into(),
            causes: Vec::new(),
        }
    }

    /// The real server hides why a well-formed patch did not apply behind this one sentence; its
    /// clients match on it, so ours does too.
    fn unprocessable() -> Self {
        Self {
            code: 422,
            reason: "Invalid",
            message: "the server rejected our request due to an error in our request".to_owned(),
            causes: Vec::new(),
        }
    }
}
