//! Which blocks are being written.

use std::collections::BTreeMap;

use block_core::geometry::BlockRange;

/// Ranges of blocks with a write under way. They never overlap: who would overlap waits.
#[derive(Clone, Debug, Default)]
pub struct WriteLocks {
    end_by_first: BTreeMap<u64, u64>,
}

impl WriteLocks {
    /// Whether a write under way touches any of `range`.
    #[must_use]
    pub fn touches(&self, range: BlockRange) -> bool {
        // The last lock that begins before the range's end is the only one that can reach into it, since
        // locks do not overlap each other.
        self.end_by_first
            .range(..range.end)
            .next_back()
            .is_some_and(|(_, end)| *end > range.first && !range.is_empty())
    }

    /// Takes the range, if it is free.
    pub fn try_lock(&mut self, range: BlockRange) -> bool {
        if range.is_empty() {
            return true;
        }
        if self.touches(range) {
            return false;
        }
        self.end_by_first.insert(range.first, range.end);
        true
    }

    pub fn unlock(&mut self, range: BlockRange) {
        if !range.is_empty() {
            let end = self.end_by_first.remove(&range.first);
            assert_eq!(end, Some(range.end), "unlocked what was not locked");
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.end_by_first.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a list that is searched from end to end.
        #[test]
        fn agrees_with_a_plain_list(steps in prop::collection::vec((0u64..64, 0u64..8, any::<bool>()), 1..200)) {
            let mut locks = WriteLocks::default();
            let mut plain: Vec<BlockRange> = Vec::new();
            for (first, length, release) in steps {
                if release && !plain.is_empty() {
                    let range = plain.swap_remove(first as usize % plain.len());
                    locks.unlock(range);
                }
                let range = BlockRange { first, end: first + length };
                let free = plain.iter().all(|other| !other.overlaps(&range));
                prop_assert_eq!(locks.touches(range), !free);
                prop_assert_eq!(locks.try_lock(range), free);
                if free && !range.is_empty() {
                    plain.push(range);
                }
                prop_assert_eq!(locks.len(), plain.len());
            }
        }
    }
}
