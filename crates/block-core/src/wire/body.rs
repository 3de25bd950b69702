//! The fields inside payloads: little-endian numbers, and texts and lists behind their length.
//!
//! Replica metadata on disk uses the same encoding. Every length is checked against a limit before anything is
//! allocated, and a reader must use up all of its bytes.

use crate::names::{NAME_BYTES_MAX, NameError, ReplicaName, SnapshotName, VolumeName};

/// Why a body cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("the body ends in the middle of {field}")]
    Truncated { field: &'static str },
    #[error("{bytes} bytes follow the last field")]
    TrailingBytes { bytes: usize },
    #[error("{field} has {count} entries or bytes, more than {max}")]
    TooLong {
        field: &'static str,
        count: usize,
        max: usize,
    },
    #[error("{field} is not UTF-8 text")]
    NotText { field: &'static str },
    #[error("{field} has the unknown value {value}")]
    UnknownValue { field: &'static str, value: u64 },
    #[error("{field} is not a name")]
    Name {
        field: &'static str,
        source: NameError,
    },
}

/// Reads fields one after the other.
#[derive(Debug)]
pub struct BodyReader<'body> {
    rest: &'body [u8],
}

impl<'body> BodyReader<'body> {
    #[must_use]
    pub fn new(body: &'body [u8]) -> Self {
        Self { rest: body }
    }

    pub fn bytes(&mut self, field: &'static str, count: usize) -> Result<&'body [u8], BodyError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(BodyError::Truncated { field })?;
        self.rest = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], BodyError> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(BodyError::Truncated { field })?;
        self.rest = rest;
        Ok(*taken)
    }

    pub fn u8(&mut self, field: &'static str) -> Result<u8, BodyError> {
        Ok(u8::from_le_bytes(self.array(field)?))
    }

    pub fn u16(&mut self, field: &'static str) -> Result<u16, BodyError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    pub fn u32(&mut self, field: &'static str) -> Result<u32, BodyError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub fn u64(&mut self, field: &'static str) -> Result<u64, BodyError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    pub fn bool(&mut self, field: &'static str) -> Result<bool, BodyError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(BodyError::UnknownValue {
                field,
                value: value.into(),
            }),
        }
    }

    pub fn text(&mut self, field: &'static str, bytes_max: usize) -> Result<&'body str, BodyError> {
        let count = usize::from(self.u16(field)?);
        if count > bytes_max {
            return Err(BodyError::TooLong {
                field,
                count,
                max: bytes_max,
            });
        }
        std::str::from_utf8(self.bytes(field, count)?).map_err(|_| BodyError::NotText { field })
    }

    pub fn volume_name(&mut self, field: &'static str) -> Result<VolumeName, BodyError> {
        VolumeName::new(self.text(field, NAME_BYTES_MAX)?)
            .map_err(|source| BodyError::Name { field, source })
    }

    pub fn snapshot_name(&mut self, field: &'static str) -> Result<SnapshotName, BodyError> {
        SnapshotName::new(self.text(field, NAME_BYTES_MAX)?)
            .map_err(|source| BodyError::Name { field, source })
    }

    pub fn replica_name(&mut self, field: &'static str) -> Result<ReplicaName, BodyError> {
        ReplicaName::new(self.text(field, NAME_BYTES_MAX)?)
            .map_err(|source| BodyError::Name { field, source })
    }

    /// A flag byte and, if it is set, a value.
    pub fn option<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut Self) -> Result<T, BodyError>,
    ) -> Result<Option<T>, BodyError> {
        if self.bool(field)? {
            read(self).map(Some)
        } else {
            Ok(None)
        }
    }

    /// A list. Memory grows with the entries that are really there, not with the claimed count.
    pub fn list<T>(
        &mut self,
        field: &'static str,
        count_max: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, BodyError>,
    ) -> Result<Vec<T>, BodyError> {
        let count = self.u32(field)? as usize;
        if count > count_max {
            return Err(BodyError::TooLong {
                field,
                count,
                max: count_max,
            });
        }
        let mut entries = Vec::new();
        for _ in 0..count {
            entries.push(read(self)?);
        }
        Ok(entries)
    }

    /// Everything must have been read.
    pub fn finish(self) -> Result<(), BodyError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(BodyError::TrailingBytes {
                bytes: self.rest.len(),
            })
        }
    }
}

/// Writes fields one after the other.
#[derive(Debug, Default)]
pub struct BodyWriter {
    bytes: Vec<u8>,
}

impl BodyWriter {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.u8(value.into())
    }

    /// A text, cut at a character's boundary if it is longer than a length field can say.
    pub fn text(&mut self, text: &str) -> &mut Self {
        let text = cut_text(text, u16::MAX.into());
        self.u16(u16::try_from(text.len()).unwrap_or(u16::MAX));
        self.bytes(text.as_bytes())
    }

    pub fn option<T>(&mut self, value: Option<&T>, write: impl FnOnce(&mut Self, &T)) -> &mut Self {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
        self
    }

    pub fn list<T>(&mut self, entries: &[T], mut write: impl FnMut(&mut Self, &T)) -> &mut Self {
        self.u32(u32::try_from(entries.len()).unwrap_or(u32::MAX));
        for entry in entries {
            write(self, entry);
        }
        self
    }

    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        self.bytes
    }
}

/// The longest prefix of at most `bytes_max` bytes that ends between two characters.
#[must_use]
pub fn cut_text(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
