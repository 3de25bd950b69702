//! What every controller needs and no decision does.

pub mod events;
