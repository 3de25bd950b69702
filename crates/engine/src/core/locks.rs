//! Which blocks are being written.

use std::collections::BTreeMap;

use block_core::geometry::BlockRange;

/// Ranges of blocks with a write under way. They never overlap: who would overlap waits.
#[derive(Clone, Debug, Default)]
pub struct WriteLocks {
    end_by_first: BTreeMap<u64, u64>,
    /// Somebody waits until what is under way here has ended; who comes later waits behind.
    reserved: Option<BlockRange>,
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
        let is_reserved = |reserved: &BlockRange| reserved.overlaps(&range);
        if self.touches(range) || self.reserved.as_ref().is_some_and(is_reserved) {
            return false;
        }
        self.end_by_first.insert(range.first, range.end);
        true
    }

    /// Takes the range, if it is free; else it is kept for the next call, and nobody else takes any of it before. For one at
    /// a time.
    pub fn try_lock_next(&mut self, range: BlockRange) -> bool {
        self.reserved = None;
        let is_taken = self.try_lock(range);
        if !is_taken {
            self.reserved = Some(range);
        }
        is_taken
    }

    /// Who waited does not any more.
    pub fn give_up_next(&mut self) {
        self.reserved = None;
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

    #[test]
    fn who_waits_for_a_range_gets_it_before_those_who_come_later() {
        let range = |first, end| BlockRange { first, end };
        let mut locks = WriteLocks::default();
        assert!(locks.try_lock(range(4, 6)));
        assert!(!locks.try_lock_next(range(0, 8)), "somebody is there");
        assert!(!locks.try_lock(range(1, 2)), "free, and reserved");
        assert!(locks.try_lock(range(8, 9)), "beside it");
        assert!(!locks.touches(range(1, 2)), "reads go on");
        locks.unlock(range(4, 6));
        assert!(!locks.try_lock(range(4, 6)), "the same once more");
        assert!(locks.try_lock_next(range(0, 8)));
        locks.unlock(range(0, 8));
        assert!(locks.try_lock(range(4, 6)));
        assert!(!locks.try_lock_next(range(0, 8)));
        locks.give_up_next();
        assert!(locks.try_lock(range(1, 2)));
    }
}
