//! Blocks of the head that hold zeroes, and may be freed once their marks are durable.
//!
//! They are freed with the next flush. Where nobody flushes, the list must not grow for ever: what touches is one range, and
//! beyond a bound no more is noted. Such blocks keep their zeroes, and the space, until they are discarded or written again:
//! a flush in their place could take minutes, and a discard has a deadline.

use std::collections::BTreeMap;

use block_core::geometry::BlockRange;
use block_core::layers::LayerId;

/// About 4 MiB.
const RANGES_MAX: usize = 1 << 16;

#[derive(Default)]
pub(super) struct PendingPunches {
    layer: Option<LayerId>,
    end_by_first: BTreeMap<u64, u64>,
}

impl PendingPunches {
    pub fn add(&mut self, layer: LayerId, range: BlockRange) {
        // What a former head has is not freed any more.
        if self.layer != Some(layer) {
            self.clear();
            self.layer = Some(layer);
        }
        let BlockRange { mut first, mut end } = range;
        // Ranges in here do not touch each other: of those that begin before the new one's end, the last ones can reach it.
        while let Some((other_first, other_end)) = self.last_up_to(end).filter(|it| it.1 >= first) {
            self.end_by_first.remove(&other_first);
            first = first.min(other_first);
            end = end.max(other_end);
        }
        if self.end_by_first.len() < RANGES_MAX {
            self.end_by_first.insert(first, end);
        }
    }

    fn last_up_to(&self, block: u64) -> Option<(u64, u64)> {
        let found = self.end_by_first.range(..=block).next_back();
        found.map(|(first, end)| (*first, *end))
    }

    pub fn take(&mut self) -> (Option<LayerId>, Vec<BlockRange>) {
        let ranges = std::mem::take(&mut self.end_by_first).into_iter();
        let ranges = ranges.map(|(first, end)| BlockRange { first, end });
        (self.layer, ranges.collect())
    }

    pub fn clear(&mut self) {
        self.end_by_first.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const HEAD: LayerId = LayerId(7);

    proptest! {
        /// Against a set of blocks, with as few ranges as these need.
        #[test]
        fn agrees_with_a_set_of_blocks(ranges in prop::collection::vec((0u64..64, 1u64..8), 0..40)) {
            let mut punches = PendingPunches::default();
            let mut blocks = BTreeSet::new();
            for (first, length) in ranges {
                punches.add(HEAD, BlockRange { first, end: first + length });
                blocks.extend(first..first + length);
            }
            let (_, found) = punches.take();
            let found_blocks: Vec<u64> = found.iter().flat_map(|range| range.first..range.end).collect();
            let runs = blocks.iter().filter(|block| !blocks.contains(&(*block + 1))).count();
            prop_assert_eq!(found_blocks, blocks.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(found.len(), runs);
        }
    }

    #[test]
    fn only_the_head_s_are_kept_and_not_without_bound() {
        let mut punches = PendingPunches::default();
        let block = |at: u64| BlockRange {
            first: 2 * at,
            end: 2 * at + 1,
        };
        punches.add(LayerId(6), block(0));
        for at in 0..2 * RANGES_MAX as u64 {
            punches.add(HEAD, block(at));
        }
        // The same again takes no more.
        punches.add(HEAD, block(1));
        let (layer, ranges) = punches.take();
        assert_eq!((layer, ranges.len()), (Some(HEAD), RANGES_MAX));
        assert!(punches.take().1.is_empty());
    }
}
