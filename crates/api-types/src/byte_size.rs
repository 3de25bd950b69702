//! A number of bytes that is a string on the wire, as Longhorn's `int64,string` fields are.

use std::{
    borrow::Cow,
    fmt,
    num::{IntErrorKind, ParseIntError},
    str::FromStr,
};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A size in bytes: written as a decimal string (`"10737418240"`), read from a string or a number.
///
/// JSON numbers above 2^53 lose digits in JavaScript and some YAML tools, which is why Longhorn chose strings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub i64);

/// A text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseByteSizeError {
    /// More than 64 bits hold.
    #[error("size {0:?} is larger than {max} bytes", max = i64::MAX)]
    TooLarge(String),
    /// Not digits, or digits with a unit.
    #[error(
        "size {0:?} is not a whole number of bytes; write it without a unit, such as \"10737418240\" for 10 GiB"
    )]
    NotANumber(String),
}

/// How much of a refused text an error repeats; the text may come from anyone.
const SHOWN_CHARACTERS_MAX: usize = 64;

impl ByteSize {
    /// The size in bytes.
    pub const fn bytes(self) -> i64 {
        self.0
    }
}

impl From<i64> for ByteSize {
    fn from(bytes: i64) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl FromStr for ByteSize {
    type Err = ParseByteSizeError;

    /// The empty text is zero: "not set".
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Ok(Self(0));
        }
        let shown = || text.chars().take(SHOWN_CHARACTERS_MAX).collect();
        text.parse()
            .map(Self)
            .map_err(|error: ParseIntError| match error.kind() {
                IntErrorKind::PosOverflow => ParseByteSizeError::TooLarge(shown()),
                _ => ParseByteSizeError::NotANumber(shown()),
            })
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ByteSizeVisitor)
    }
}

struct ByteSizeVisitor;

impl de::Visitor<'_> for ByteSizeVisitor {
    type Value = ByteSize;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a whole number of bytes, as a string or a number")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
        Ok(ByteSize(bytes))
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
        let too_large = |_| E::custom(ParseByteSizeError::TooLarge(bytes.to_string()));
        i64::try_from(bytes).map(ByteSize).map_err(too_large)
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn inline_schema() -> bool {
        true
    }

    /// Digits only, and at most 18 of them: every such text fits 64 bits, so no object that the API
    /// server accepts can fail to parse here and hide the rest of a list.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "int64", "pattern": "^[0-9]{0,18}$" })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(input: Value, expected: Result<i64, &str>) {
        let size: Result<ByteSize, _> = serde_json::from_value(input);
        match (size, expected) {
            (Ok(size), Ok(bytes)) => {
                assert_eq!(size.bytes(), bytes);
                assert_eq!(
                    serde_json::to_value(size).unwrap(),
                    json!(bytes.to_string())
                );
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (size, expected) => panic!("{size:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn reads_strings_and_numbers_and_writes_strings() {
        check(json!("10737418240"), Ok(10_737_418_240));
        check(json!(10_737_418_240_i64), Ok(10_737_418_240));
        check(json!(""), Ok(0));
        check(json!("0"), Ok(0));
        check(json!("-1"), Ok(-1));
        check(json!("9223372036854775807"), Ok(i64::MAX));
        check(json!("9223372036854775808"), Err("is larger than"));
        check(json!(u64::MAX), Err("is larger than"));
        check(json!("10Gi"), Err("write it without a unit"));
        check(json!(" 1"), Err("write it without a unit"));
        check(json!(1.5), Err("a whole number of bytes"));
        check(json!(true), Err("a whole number of bytes"));
        check(json!(null), Err("a whole number of bytes"));
    }
}
