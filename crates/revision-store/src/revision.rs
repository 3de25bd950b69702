//! The store's one counter.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// A point in the history of the whole store: the state after its n-th write.
///
/// 0 is the empty store; the first write makes revision 1. Revisions are never reused, not even after
/// compaction or a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// The store before its first write.
    pub const EMPTY: Self = Self(0);

    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The revision before this one; the empty store has none before it.
    pub(crate) fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl FromStr for Revision {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}
