//! Protobuf itself: a message is a sequence of numbered values, each in one of six wire types.

use super::{LEVELS_MAX, MalformedError};

const FIELD_NUMBER_MAX: u64 = (1 << 29) - 1;

/// One value as it stands on the wire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Raw<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32,
    Bytes(&'a [u8]),
    /// Obsolete; nothing in Kubernetes uses it, so only its end matters.
    Group,
}

impl<'a> Raw<'a> {
    pub fn wire_type(self) -> &'static str {
        match self {
            Self::Varint(_) => "varint",
            Self::Fixed64(_) => "64-bit",
            Self::Fixed32 => "32-bit",
            Self::Bytes(_) => "bytes",
            Self::Group => "group",
        }
    }

    pub fn bytes(self) -> Result<&'a [u8], MalformedError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(self.instead_of("bytes")),
        }
    }

    pub fn text(self) -> Result<&'a str, MalformedError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| MalformedError::NotUtf8)
    }

    pub fn varint(self) -> Result<u64, MalformedError> {
        match self {
            Self::Varint(number) => Ok(number),
            _ => Err(self.instead_of("varint")),
        }
    }

    pub fn int64(self) -> Result<i64, MalformedError> {
        Ok(self.varint()?.cast_signed())
    }

    /// Negative numbers are written in 64 bits, so the upper half only repeats the sign.
    pub fn int32(self) -> Result<i32, MalformedError> {
        Ok(self.varint()? as i32)
    }

    pub fn double(self) -> Result<f64, MalformedError> {
        match self {
            Self::Fixed64(bits) => Ok(f64::from_bits(bits)),
            _ => Err(self.instead_of("64-bit")),
        }
    }

    pub fn instead_of(self, expected: &'static str) -> MalformedError {
        MalformedError::WireType {
            expected,
            actual: self.wire_type(),
        }
    }
}

/// The fields of one message in the order of the wire. Ends after the first error.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn field(&mut self) -> Result<(u32, Raw<'a>), MalformedError> {
        match self.item()? {
            (number, Item::Value(raw)) => Ok((number, raw)),
            (number, Item::GroupStart) => {
                self.skip_group(number)?;
                Ok((number, Raw::Group))
            }
            (_, Item::GroupEnd) => Err(MalformedError::Group),
        }
    }

    fn item(&mut self) -> Result<(u32, Item<'a>), MalformedError> {
        let tag = self.varint()?;
        let number = tag >> 3;
        if number == 0 || number > FIELD_NUMBER_MAX {
            return Err(MalformedError::FieldNumber { number });
        }
        let item = match (tag & 7) as u8 {
            0 => Item::Value(Raw::Varint(self.varint()?)),
            1 => {
                let (eight, rest) = self
                    .rest
                    .split_first_chunk()
                    .ok_or(MalformedError::Truncated)?;
                self.rest = rest;
                Item::Value(Raw::Fixed64(u64::from_le_bytes(*eight)))
            }
            2 => {
                let length = self.varint()?;
                Item::Value(Raw::Bytes(self.take(length)?))
            }
            3 => Item::GroupStart,
            4 => Item::GroupEnd,
            5 => {
                self.take(4)?;
                Item::Value(Raw::Fixed32)
            }
            wire_type => return Err(MalformedError::WireTypeUnknown { wire_type }),
        };
        Ok((number as u32, item))
    }

    fn skip_group(&mut self, number: u32) -> Result<(), MalformedError> {
        let mut open = vec![number];
        while let Some(&innermost) = open.last() {
            match self.item() {
                Ok((_, Item::Value(_))) => {}
                Ok((number, Item::GroupStart)) if open.len() < LEVELS_MAX => open.push(number),
                Ok((_, Item::GroupStart)) => return Err(MalformedError::TooDeep),
                Ok((number, Item::GroupEnd)) if number == innermost => {
                    open.pop();
                }
                Ok((_, Item::GroupEnd)) => return Err(MalformedError::Group),
                Err(_) if self.rest.is_empty() => return Err(MalformedError::Group),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn varint(&mut self) -> Result<u64, MalformedError> {
        let (number, rest) = varint(self.rest)?;
        self.rest = rest;
        Ok(number)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], MalformedError> {
        let (taken, rest) = usize::try_from(length)
            .ok()
            .and_then(|length| self.rest.split_at_checked(length))
            .ok_or(MalformedError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Raw<'a>), MalformedError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

enum Item<'a> {
    Value(Raw<'a>),
    GroupStart,
    GroupEnd,
}

/// The number at the beginning of these bytes, and what follows it.
pub(super) fn varint(bytes: &[u8]) -> Result<(u64, &[u8]), MalformedError> {
    let mut number = 0;
    for (index, byte) in bytes.iter().enumerate() {
        let bits = u64::from(byte & 0x7f);
        // The tenth byte holds the 64th bit and nothing else.
        if index == 9 && bits > 1 {
            return Err(MalformedError::NumberTooLong);
        }
        number |= bits << (7 * index);
        if byte & 0x80 == 0 {
            return Ok((number, &bytes[index + 1..]));
        }
        if index == 9 {
            return Err(MalformedError::NumberTooLong);
        }
    }
    Err(MalformedError::Truncated)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], expected: &str) {
        let read: Vec<String> = Fields::of(bytes)
            .map(|field| match field {
                Ok((number, raw)) => format!("{number}={raw:?}"),
                Err(error) => error.to_string(),
            })
            .collect();
        assert_eq!(read.join(", "), expected, "{bytes:?}");
    }

    #[test]
    fn every_wire_type() {
        check(b"", "");
        check(b"\x08\x96\x01", "1=Varint(150)");
        check(b"\x12\x02hi\x18\x01", "2=Bytes([104, 105]), 3=Varint(1)");
        check(b"\x09\x01\0\0\0\0\0\0\0", "1=Fixed64(1)");
        check(b"\x0d\x01\0\0\0\x10\0", "1=Fixed32, 2=Varint(0)");
        check(b"\x0b\x10\x05\x13\x14\x0c\x08\x01", "1=Group, 1=Varint(1)");
        check(
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            "1=Varint(18446744073709551615)",
        );
    }

    #[test]
    fn malformed() {
        let truncated = "the data ends in the middle of a value";
        check(b"\x08", truncated);
        check(b"\x80", truncated);
        check(b"\x12\x03hi", truncated);
        check(b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01hi", truncated);
        check(b"\x09\x01", truncated);
        check(b"\x0d\x01", truncated);
        check(b"\x08\x01\x08", &format!("1=Varint(1), {truncated}"));
        let long = "a number is longer than 64 bits";
        check(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", long);
        check(b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", long);
        check(b"\x00\x01", "0 is no field number");
        check(b"\x80\x80\x80\x80\x10\x01", "536870912 is no field number");
        check(b"\x0e", "6 is no wire type");
        let group = "a group ends that did not begin, or begins and does not end";
        check(b"\x0c", group);
        check(b"\x0b", group);
        check(b"\x0b\x14", group);
        check(&[0x0b; 1000], "nested more than 127 levels deep");
    }

    #[test]
    fn numbers_keep_their_sign() {
        let minus_two = Raw::Varint(u64::MAX - 1);
        assert_eq!(minus_two.int64().unwrap(), -2);
        assert_eq!(minus_two.int32().unwrap(), -2);
        assert!(minus_two.double().is_err());
        assert!(minus_two.text().is_err());
    }
}
