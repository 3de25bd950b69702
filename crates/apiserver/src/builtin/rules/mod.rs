//! What no schema can say about the built-in kinds.

pub mod quantity;
