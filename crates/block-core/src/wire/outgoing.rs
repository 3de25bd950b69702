//! A request on its way out, its data still where the sender has it.

use bytes::Bytes;

use super::frame::Frame;
use super::header::{HEADER_BYTES, Header, PayloadClaim};

/// A frame whose payload is sent in two parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    pub header: Header,
    pub fields: Vec<u8>,
    /// What is to be written. It is shared, never copied.
    pub data: Bytes,
}

impl Outgoing {
    /// The header's bytes; `fields` and then `data` follow them.
    #[must_use]
    pub fn encode_header(&self, checksum: &mut DataChecksum) -> [u8; HEADER_BYTES] {
        // Where there are fields, nobody else is sent the same data.
        let crc32c = if self.fields.is_empty() {
            checksum.of(&self.data)
        } else {
            crc32c::crc32c_append(crc32c::crc32c(&self.fields), &self.data)
        };
        self.header.encode_for(PayloadClaim {
            bytes: self.fields.len() + self.data.len(),
            crc32c,
        })
    }

    #[must_use]
    pub fn into_frame(self) -> Frame {
        let payload = match (self.fields.is_empty(), self.data.is_empty()) {
            (true, _) => self.data,
            (false, true) => self.fields.into(),
            (false, false) => [&self.fields[..], &self.data].concat().into(),
        };
        Frame {
            header: self.header,
            payload,
        }
    }
}

/// The checksum of what was sent last: a write goes to all replicas, one after the other.
#[derive(Debug, Default)]
pub struct DataChecksum {
    data: Bytes,
    crc32c: u32,
}

impl DataChecksum {
    fn of(&mut self, data: &Bytes) -> u32 {
        // The same memory holds the same bytes, for as long as a share of it is kept here.
        let is_same = (self.data.as_ptr(), self.data.len()) == (data.as_ptr(), data.len());
        if !is_same {
            self.data = data.clone();
            self.crc32c = crc32c::crc32c(data);
        }
        self.crc32c
    }

    /// Lets go of the data, so that its memory can be used again.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::Epoch;
    use crate::names::SnapshotName;
    use crate::wire::{Flags, Request, RequestId};

    #[test]
    fn parts_are_the_same_on_the_wire_as_whole_frames() {
        let shared = Bytes::from(vec![7; 8192]);
        let write = |data: &Bytes| Request::Write {
            offset_bytes: 4096,
            data: data.clone(),
            flags: Flags::NONE,
        };
        let copied = Request::RebuildWrite {
            name: SnapshotName::new("s").expect("a name"),
            offset_bytes: 0,
            data: shared.clone(),
        };
        let mut checksum = DataChecksum::default();
        // Twice the same data, other data of the same length, a part of it, none, and data behind a name.
        for request in [
            write(&shared),
            write(&shared),
            write(&Bytes::from(vec![8; 8192])),
            write(&shared.slice(..4096)),
            write(&shared.slice(4096..)),
            write(&Bytes::new()),
            copied,
            write(&shared),
            Request::Flush,
        ] {
            let frame = request.clone().into_frame(RequestId(3), Epoch(4));
            let parts = request.into_outgoing(RequestId(3), Epoch(4));
            let header = parts.encode_header(&mut checksum);
            let sent = [&header[..], &parts.fields, &parts.data].concat();
            assert_eq!(sent, frame.to_vec());
        }
    }

    #[test]
    fn data_that_goes_to_several_replicas_is_summed_once() {
        let data = Bytes::from(vec![7; 4096]);
        let mut checksum = DataChecksum::default();
        let summed = checksum.of(&data);
        // A mark that only a second sum would remove.
        checksum.crc32c = !summed;
        assert_eq!(checksum.of(&data.clone()), !summed);
        checksum.forget();
        assert_eq!(checksum.of(&data), summed);
    }
}
