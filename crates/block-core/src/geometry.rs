//! Units of the data path: bytes, sectors of 512 and blocks of 4096 bytes.

/// The unit of the layer index, of job ordering and of copying.
pub const BLOCK_BYTES: u64 = 4096;
/// The smallest unit that a client may read or write.
pub const SECTOR_BYTES: u64 = 512;
/// No volume is larger than this: 16 TiB is ext4's largest file, and a layer is one file.
pub const VOLUME_BYTES_MAX: u64 = (16 << 40) - BLOCK_BYTES;

/// A half-open run of whole blocks, `first..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockRange {
    pub first: u64,
    pub end: u64,
}

impl BlockRange {
    /// The blocks that a byte range touches, even if only in part.
    #[must_use]
    pub fn touched_by(offset_bytes: u64, length_bytes: u64) -> Self {
        let end_bytes = offset_bytes.saturating_add(length_bytes);
        Self {
            first: offset_bytes / BLOCK_BYTES,
            end: end_bytes.div_ceil(BLOCK_BYTES),
        }
    }

    /// The blocks that lie wholly inside a byte range. Empty ranges start and end at the same block.
    #[must_use]
    pub fn inside(offset_bytes: u64, length_bytes: u64) -> Self {
        let first = offset_bytes.div_ceil(BLOCK_BYTES);
        let end = offset_bytes.saturating_add(length_bytes) / BLOCK_BYTES;
        Self {
            first,
            end: end.max(first),
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first >= self.end
    }

    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.end.saturating_sub(self.first)
    }

    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        !self.is_empty() && !other.is_empty() && self.first < other.end && other.first < self.end
    }
}

/// Why a byte range is not one that a volume can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    #[error("offset {offset_bytes} and length {length_bytes} must be multiples of 512 bytes")]
    Unaligned {
        offset_bytes: u64,
        length_bytes: u64,
    },
    #[error("bytes {offset_bytes}+{length_bytes} reach past the volume's end at {size_bytes}")]
    OutOfRange {
        offset_bytes: u64,
        length_bytes: u64,
        size_bytes: u64,
    },
}

/// Checks a client's byte range against the volume's size.
pub fn check_range(
    offset_bytes: u64,
    length_bytes: u64,
    size_bytes: u64,
) -> Result<(), RangeError> {
    if !offset_bytes.is_multiple_of(SECTOR_BYTES) || !length_bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(RangeError::Unaligned {
            offset_bytes,
            length_bytes,
        });
    }
    match offset_bytes.checked_add(length_bytes) {
        Some(end_bytes) if end_bytes <= size_bytes => Ok(()),
        _ => Err(RangeError::OutOfRange {
            offset_bytes,
            length_bytes,
            size_bytes,
        }),
    }
}

/// Why a size cannot be a volume's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    #[error("size {size_bytes} must be a multiple of 4096 bytes and not 0")]
    Unaligned { size_bytes: u64 },
    #[error("size {size_bytes} is above the largest volume of {VOLUME_BYTES_MAX} bytes")]
    TooLarge { size_bytes: u64 },
}

/// Checks a new volume's size, or the size that one is to be expanded to.
pub fn check_size(size_bytes: u64) -> Result<(), SizeError> {
    if size_bytes == 0 || !size_bytes.is_multiple_of(BLOCK_BYTES) {
        return Err(SizeError::Unaligned { size_bytes });
    }
    if size_bytes > VOLUME_BYTES_MAX {
        return Err(SizeError::TooLarge { size_bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_round_outwards_or_inwards() {
        for (offset, length, touched, inside) in [
            (0, 4096, (0, 1), (0, 1)),
            (512, 512, (0, 1), (1, 1)),
            (4096, 8192, (1, 3), (1, 3)),
            (512, 8192, (0, 3), (1, 2)),
            (8192, 0, (2, 2), (2, 2)),
        ] {
            assert_eq!(
                BlockRange::touched_by(offset, length),
                BlockRange {
                    first: touched.0,
                    end: touched.1
                }
            );
            assert_eq!(
                BlockRange::inside(offset, length),
                BlockRange {
                    first: inside.0,
                    end: inside.1
                }
            );
        }
    }

    #[test]
    fn bad_ranges_are_refused() {
        assert_eq!(check_range(512, 1024, 4096), Ok(()));
        assert!(matches!(
            check_range(1, 512, 4096),
            Err(RangeError::Unaligned { .. })
        ));
        assert!(matches!(
            check_range(4096, 512, 4096),
            Err(RangeError::OutOfRange { .. })
        ));
        assert!(matches!(
            check_range(u64::MAX - 511, 512, 4096),
            Err(RangeError::OutOfRange { .. })
        ));
        assert!(
            check_size(0).is_err()
                && check_size(512).is_err()
                && check_size(u64::MAX - 4095).is_err()
        );
    }
}
