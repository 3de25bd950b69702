//! Server-side apply.

pub(super) mod path;
pub(super) mod shape;
