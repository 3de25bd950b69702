//! The words in which front ends and the engine speak of I/O.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The unit of replicas' indexes, of range locks and of the device's physical block size.
pub const BLOCK_BYTES: u64 = 4096;

/// No request carries more data than this; front ends split what is larger.
///
/// It is also the largest FUSE write that a kernel with the default
/// `fs.fuse.max_pages_limit` (256 pages) sends, so a FUSE request is never split.
pub const REQUEST_DATA_BYTES_MAX: u64 = 1 << 20;

/// No request without data (zeroes, discard) covers more than this.
pub const REQUEST_SPAN_BYTES_MAX: u64 = 64 << 20;

/// Names one request between a front end and the engine; unique while that front end lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A run of bytes of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ByteRange {
    pub offset: u64,
    pub length: u64,
}

impl ByteRange {
    #[must_use]
    pub fn new(offset: u64, length: u64) -> Self {
        Self { offset, length }
    }

    /// The first byte after the range, or `None` where the sum does not fit.
    #[must_use]
    pub fn end(self) -> Option<u64> {
        self.offset.checked_add(self.length)
    }

    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.offset < other.offset.saturating_add(other.length)
            && other.offset < self.offset.saturating_add(self.length)
    }

    /// Cuts the range into pieces of at most `piece_bytes_max`, in order.
    pub fn pieces(self, piece_bytes_max: u64) -> impl Iterator<Item = ByteRange> {
        let end = self.offset.saturating_add(self.length);
        let mut offset = self.offset;
        std::iter::from_fn(move || {
            (offset < end).then(|| {
                let length = piece_bytes_max.min(end - offset);
                let piece = ByteRange { offset, length };
                offset += length;
                piece
            })
        })
    }
}

/// What a writer or reader asks of the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    Read {
        range: ByteRange,
    },
    Write {
        offset: u64,
        data: Bytes,
        /// Forced unit access: answered only when it is on stable storage.
        durable: bool,
    },
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        range: ByteRange,
        /// Space may be given back; `false` asks for it to stay allocated, which we take as a wish.
        may_unmap: bool,
        durable: bool,
    },
    /// The range's content is of no more interest. Ours reads as zeroes afterwards.
    Discard {
        range: ByteRange,
    },
    /// Everything answered before is on stable storage when this is answered.
    Flush,
}

impl Operation {
    /// The bytes that it touches; `None` for a flush.
    #[must_use]
    pub fn range(&self) -> Option<ByteRange> {
        match self {
            Operation::Read { range }
            | Operation::WriteZeroes { range, .. }
            | Operation::Discard { range } => Some(*range),
            Operation::Write { offset, data, .. } => {
                Some(ByteRange::new(*offset, data.len() as u64))
            }
            Operation::Flush => None,
        }
    }

    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(self, Operation::Read { .. })
    }
}

/// One operation with the name under which it is to be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub id: RequestId,
    pub operation: Operation,
}

/// What a request got: a read's data (empty for all others), or why not.
pub type Outcome = Result<Bytes, IoFault>;

/// Why a request failed, as far as a block device can tell its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum IoFault {
    #[error("the request lies outside of the volume or is not aligned")]
    Invalid,
    #[error("no replica could serve the request")]
    Failed,
    #[error("the last replica's disk is full")]
    NoSpace,
    #[error("the engine is shutting down")]
    ShuttingDown,
    #[error("a newer engine has taken the volume over")]
    Fenced,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_range_once() {
        for (offset, length, limit, expected) in [
            (0, 0, 4, vec![]),
            (0, 4, 4, vec![(0, 4)]),
            (3, 9, 4, vec![(3, 4), (7, 4), (11, 1)]),
        ] {
            let pieces: Vec<_> = ByteRange::new(offset, length)
                .pieces(limit)
                .map(|p| (p.offset, p.length))
                .collect();
            assert_eq!(pieces, expected);
        }
    }

    #[test]
    fn ranges_that_touch_do_not_overlap() {
        let a = ByteRange::new(0, 4096);
        assert!(!a.overlaps(ByteRange::new(4096, 4096)));
        assert!(a.overlaps(ByteRange::new(4095, 1)));
        assert!(ByteRange::new(u64::MAX - 1, 10).end().is_none());
    }
}
