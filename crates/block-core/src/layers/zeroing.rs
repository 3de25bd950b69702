//! How a range of the head becomes zero.
//!
//! A hole in the head means "look below", so punching one is right only where nothing is below. Elsewhere the head needs
//! an explicit zero mark. Marks are kept beside the data and *data wins over a mark of the same layer*, which makes each
//! step safe on its own: a mark may become durable before or after the hole that it justifies is punched, as long as
//! the punch comes after. Until then the old data is overwritten with zeroes, in place.

use super::block_map::{BlockMap, LayerSlot, Run};
use crate::geometry::BlockRange;

/// What to do with a run of blocks that must read as zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroAction {
    /// The head has data and nothing is below: free it.
    Punch(BlockRange),
    /// The head has no data, a layer below has: mark it.
    Mark(BlockRange),
    /// The head has data and a layer below may have, too: overwrite and mark it; free it once the mark is durable.
    OverwriteAndMark(BlockRange),
}

/// Plans zeroes over whole blocks. Blocks that read as zero already need nothing.
#[must_use]
pub fn plan_zeroes(
    map: &BlockMap,
    range: BlockRange,
    head: LayerSlot,
    has_layers_below: bool,
) -> Vec<ZeroAction> {
    let mut actions = Vec::new();
    let mut first = range.first;
    while first < range.end {
        let Run {
            slot,
            end_block: end,
        } = map.run_at(first, range.end);
        let run = BlockRange { first, end };
        match slot {
            None => {}
            Some(slot) if slot != head => actions.push(ZeroAction::Mark(run)),
            // The map does not say whether a layer below has the block as well. Asking the files would cost a system
            // call for each layer; a mark too many costs one bit.
            Some(_) if has_layers_below => actions.push(ZeroAction::OverwriteAndMark(run)),
            Some(_) => actions.push(ZeroAction::Punch(run)),
        }
        first = end;
    }
    actions
}
