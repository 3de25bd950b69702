//! Layer chains: how a volume and its snapshots share blocks.
//!
//! A replica has one live *head* and immutable snapshot *layers* below it. Each layer has an opinion on some blocks
//! (data, or an explicit zero) and none on the others; a block's content is the opinion of the topmost layer that has
//! one, and zero if none has. [`tree`] knows which layers there are and how snapshots, reverts and deletions change
//! that; [`block_map`] answers, for the live chain, which layer has a block's data; [`zeroing`] says how a range of the
//! head becomes zero.

pub mod block_map;
pub mod tree;
pub mod zeroing;

pub use block_map::{BlockMap, LayerSlot, Run};
pub use tree::{Layer, LayerId, LayerTree, MergeStep, TreeError};
pub use zeroing::{ZeroAction, plan_zeroes};

#[cfg(test)]
mod tests;
