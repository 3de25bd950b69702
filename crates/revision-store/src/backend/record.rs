//! The bytes of one stored change.
//!
//! ```text
//! offset  bytes  field (integers are little-endian)
//!      0      1  kind: 1 put, 2 delete
//!      1      8  time of the write, milliseconds since 1970
//!      9      8  create revision (0 in a delete)
//!     17      8  version (0 in a delete)
//!     25      4  length of the key, n
//!     29      n  key, UTF-8
//!   29+n   rest  value (empty in a delete)
//! ```
//!
//! The record's own revision and index are its key in the database. Checksums are the database's: it keeps one for
//! every page.

use bytes::Bytes;

use super::{BackendError, RecordId};
use crate::{Change, Event, Revision};

const KIND_PUT: u8 = 1;
const KIND_DELETE: u8 = 2;
const HEADER_BYTES: usize = 29;

/// A stored change as it is read back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) id: RecordId,
    pub(crate) time_ms: u64,
    pub(crate) key: String,
    pub(crate) change: RecordChange,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RecordChange {
    Put {
        value: Bytes,
        create_revision: Revision,
        version: u64,
    },
    Delete,
}

pub(crate) fn encoded_bytes(event: &Event) -> usize {
    HEADER_BYTES + event.key().len() + event.object().map_or(0, |object| object.value.len())
}

/// Writes the event's record into `out`, which has exactly [`encoded_bytes`].
pub(crate) fn encode(event: &Event, out: &mut [u8]) {
    let (kind, create_revision, version, value): (u8, u64, u64, &[u8]) = match &event.change {
        Change::Put { object, .. } => (
            KIND_PUT,
            object.create_revision.0,
            object.version,
            &object.value,
        ),
        Change::Delete { .. } => (KIND_DELETE, 0, 0, &[]),
    };
    let key = event.key().as_bytes();
    let key_bytes = u32::try_from(key.len()).expect("keys are bounded");
    out[0] = kind;
    out[1..9].copy_from_slice(&event.time_ms.to_le_bytes());
    out[9..17].copy_from_slice(&create_revision.to_le_bytes());
    out[17..25].copy_from_slice(&version.to_le_bytes());
    out[25..HEADER_BYTES].copy_from_slice(&key_bytes.to_le_bytes());
    let (out_key, out_value) = out[HEADER_BYTES..].split_at_mut(key.len());
    out_key.copy_from_slice(key);
    out_value.copy_from_slice(value);
}

pub(crate) fn decode(id: RecordId, bytes: &[u8]) -> Result<Record, BackendError> {
    let damaged = |reason| BackendError::damaged(id, reason);
    let (header, rest) = bytes
        .split_at_checked(HEADER_BYTES)
        .ok_or_else(|| damaged("shorter than its header"))?;
    let key_bytes = u32::from_le_bytes(header[25..29].try_into().expect("four bytes"));
    let (key, value) = usize::try_from(key_bytes)
        .ok()
        .and_then(|key_bytes| rest.split_at_checked(key_bytes))
        .ok_or_else(|| damaged("shorter than its key"))?;
    let key = str::from_utf8(key).map_err(|_| damaged("its key is not UTF-8"))?;
    let change = match header[0] {
        KIND_PUT => RecordChange::Put {
            value: Bytes::copy_from_slice(value),
            create_revision: Revision(integer_at(header, 9)),
            version: integer_at(header, 17),
        },
        KIND_DELETE => RecordChange::Delete,
        _ => return Err(damaged("of unknown kind")),
    };
    Ok(Record {
        id,
        time_ms: integer_at(header, 1),
        key: key.to_owned(),
        change,
    })
}

fn integer_at(header: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(
        header[offset..offset + 8]
            .try_into()
            .expect("a header has room for its integers"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Object;
    use std::sync::Arc;

    fn put(key: &str, value: &'static [u8]) -> Event {
        Event {
            revision: Revision(9),
            record_index: 3,
            time_ms: 1_700_000_000_123,
            change: Change::Put {
                object: Arc::new(Object {
                    key: key.into(),
                    value: Bytes::from_static(value),
                    create_revision: Revision(7),
                    mod_revision: Revision(9),
                    version: 2,
                    record_index: 3,
                }),
                previous: None,
            },
        }
    }

    fn encoded(event: &Event) -> Vec<u8> {
        let mut bytes = vec![0; encoded_bytes(event)];
        encode(event, &mut bytes);
        bytes
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        for (key, value) in [("/a", &b"value"[..]), ("/ключ", b""), ("k", &[0xff; 300])] {
            let event = put(key, value);
            let record = decode(event.record_id(), &encoded(&event)).unwrap();
            assert_eq!(record.key, key);
            assert_eq!(record.time_ms, event.time_ms);
            assert_eq!(
                record.change,
                RecordChange::Put {
                    value: Bytes::from_static(value),
                    create_revision: Revision(7),
                    version: 2
                }
            );
        }
    }

    #[test]
    fn a_damaged_record_says_how() {
        let good = encoded(&put("/key", b"value"));
        let changed = |offset: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[offset] = byte;
            bytes
        };
        for (bytes, reason) in [
            (good[..10].to_vec(), "shorter than its header"),
            (changed(25, 200), "shorter than its key"),
            (changed(28, 0xff), "shorter than its key"),
            (changed(30, 0xff), "not UTF-8"),
            (changed(0, 7), "unknown kind"),
        ] {
            let id = put("/key", b"").record_id();
            let error = decode(id, &bytes).unwrap_err().to_string();
            assert!(error.contains("revision 9, change 3"), "{error}");
            assert!(error.contains(reason), "{error}");
        }
    }
}
