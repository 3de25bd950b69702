//! Request bodies in Kubernetes' protobuf, turned into the JSON the same client would have sent.
//!
//! kubectl and everything built on client-go write the built-in kinds as
//! `application/vnd.kubernetes.protobuf` and cannot be told otherwise by the server. Only reading is
//! needed: those clients take JSON as an answer.
//!
//! A body is the four bytes `k8s\0` and an envelope that names the kind and carries its message:
//!
//! | field | number | meaning |
//! |---|---|---|
//! | `typeMeta` | 1 | a message of `apiVersion` (1) and `kind` (2) |
//! | `raw` | 2 | the object |
//! | `contentEncoding` | 3 | nothing: no compression is in use |
//! | `contentType` | 4 | nothing for protobuf, or `application/json` if `raw` is JSON |
//!
//! Messages carry numbers where JSON has names, and leave out or keep zero values by other rules
//! than JSON. What each message holds is data: `fields.txt`, which `table` reads, `object` walks,
//! and the leaf types in `well_known` complete. `wire` knows protobuf and nothing of Kubernetes.
//!
//! # Where the table comes from, and how to extend it
//!
//! `fields.txt` states facts of the published Go API (`k8s.io/api`, `k8s.io/apimachinery` and
//! `k8s.io/apiextensions-apiserver`, v0.37.2): for every field of a kind's Go struct, the number in
//! its `protobuf` tag, the name in its `json` tag, its type, and whether Go holds it by value or by
//! pointer and marks it `omitempty`. A small Go program that walks the structs by reflection prints
//! it; a kind or a field of a later version can as well be added by hand:
//!
//! 1. Add a line `kind <apiVersion> <kind> <message>`.
//! 2. Add a block for every message that is not there yet, one line for each field, in the format
//!    that `table` describes.
//! 3. Add a line to `fixtures/filled.txt` and `fixtures/empty.txt`: the kind encoded by Go with every
//!    field set, and with none.

mod object;
mod table;
mod well_known;
mod wire;

#[cfg(test)]
mod tests;

use serde_json::Value;
use thiserror::Error;

use object::Decoder;
use table::TABLE;
use wire::Fields;

/// What every body begins with.
const PREFIX: &[u8] = b"k8s\0";

/// As many nested objects and arrays as the JSON parser reads: what is deeper could be stored but
/// never be read again.
pub const LEVELS_MAX: usize = 127;

/// About as many values as the largest JSON body can hold. Without this bound a body of two bytes
/// for each empty message would become hundreds of times its size.
pub const VALUES_MAX: usize = 500_000;

/// Why a body could not be read.
#[derive(Debug, Error)]
pub enum ProtobufError {
    #[error("the body is not Kubernetes protobuf: it does not begin with \"k8s\\0\"")]
    Prefix,
    #[error("the protobuf envelope is malformed")]
    Envelope(#[source] MalformedError),
    #[error("the protobuf envelope names no {missing}")]
    TypeMissing { missing: &'static str },
    #[error(
        "{kind} of {api_version} cannot be read as protobuf by this server: send it as \
         application/json"
    )]
    KindUnknown { api_version: String, kind: String },
    #[error(
        "the protobuf envelope holds {content_type}, which this server does not read: send the \
         object as application/json"
    )]
    ContentType { content_type: String },
    #[error(
        "the object in the protobuf envelope is encoded with {content_encoding}, which this server \
         does not read: send it as it is"
    )]
    ContentEncoding { content_encoding: String },
    #[error("the protobuf envelope holds no JSON object although it says so")]
    NotAnObject,
    /// The object itself is wrong. The path is empty if it is not one field that is to blame.
    #[error("{kind} in protobuf is malformed{}{path}", if path.is_empty() { "" } else { " at " })]
    Malformed {
        kind: String,
        path: String,
        #[source]
        source: MalformedError,
    },
}

impl ProtobufError {
    /// Whether the same object in another media type would be read: 415 rather than 400.
    pub fn is_unsupported_media_type(&self) -> bool {
        match self {
            Self::KindUnknown { .. } | Self::ContentType { .. } | Self::ContentEncoding { .. } => {
                true
            }
            Self::Prefix
            | Self::Envelope(_)
            | Self::TypeMissing { .. }
            | Self::NotAnObject
            | Self::Malformed { .. } => false,
        }
    }
}

/// What is wrong with one message or field.
#[derive(Debug, Error)]
pub enum MalformedError {
    #[error("the data ends in the middle of a value")]
    Truncated,
    #[error("a number is longer than 64 bits")]
    NumberTooLong,
    #[error("{number} is no field number")]
    FieldNumber { number: u64 },
    #[error("{wire_type} is no wire type")]
    WireTypeUnknown { wire_type: u8 },
    #[error("wire type {actual} where {expected} is needed")]
    WireType {
        expected: &'static str,
        actual: &'static str,
    },
    #[error("a group ends that did not begin, or begins and does not end")]
    Group,
    #[error("text is not UTF-8")]
    NotUtf8,
    #[error("not JSON")]
    Json(#[source] serde_json::Error),
    #[error("a time of {seconds} s and {nanoseconds} ns after 1970 is outside the years 1 to 9999")]
    Time { seconds: i64, nanoseconds: i32 },
    #[error("{number} is no number that JSON can express")]
    NotFinite { number: f64 },
    #[error("{discriminant} is neither an integer (0) nor a string (1)")]
    IntOrString { discriminant: i64 },
    #[error("nested more than {LEVELS_MAX} levels deep")]
    TooDeep,
    #[error("more than {VALUES_MAX} values")]
    TooManyValues,
}

/// The object in a body of type `application/vnd.kubernetes.protobuf`, as JSON.
///
/// `apiVersion` and `kind` are those of the envelope. Fields that a newer client knows and
/// `fields.txt` does not are skipped. Time and memory are bounded by the length of the body, which
/// the caller bounds, and by [`LEVELS_MAX`] and [`VALUES_MAX`].
pub fn decode(bytes: &[u8]) -> Result<Value, ProtobufError> {
    let envelope = bytes.strip_prefix(PREFIX).ok_or(ProtobufError::Prefix)?;
    let envelope = Envelope::read(envelope).map_err(ProtobufError::Envelope)?;
    if !envelope.content_encoding.is_empty() {
        return Err(ProtobufError::ContentEncoding {
            content_encoding: shown(envelope.content_encoding).to_owned(),
        });
    }
    match envelope.content_type {
        "" | "application/vnd.kubernetes.protobuf" => envelope.decode_message(),
        "application/json" => envelope.decode_json(),
        content_type => Err(ProtobufError::ContentType {
            content_type: shown(content_type).to_owned(),
        }),
    }
}

#[derive(Default)]
struct Envelope<'a> {
    api_version: &'a str,
    kind: &'a str,
    raw: &'a [u8],
    content_encoding: &'a str,
    content_type: &'a str,
}

impl<'a> Envelope<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, MalformedError> {
        let mut envelope = Self::default();
        for field in Fields::of(bytes) {
            match field? {
                (1, raw) => envelope.read_type(raw.bytes()?)?,
                (2, raw) => envelope.raw = raw.bytes()?,
                (3, raw) => envelope.content_encoding = raw.text()?,
                (4, raw) => envelope.content_type = raw.text()?,
                (_, _) => {}
            }
        }
        Ok(envelope)
    }

    fn read_type(&mut self, bytes: &'a [u8]) -> Result<(), MalformedError> {
        for field in Fields::of(bytes) {
            match field? {
                (1, raw) => self.api_version = raw.text()?,
                (2, raw) => self.kind = raw.text()?,
                (_, _) => {}
            }
        }
        Ok(())
    }

    fn decode_message(&self) -> Result<Value, ProtobufError> {
        if self.kind.is_empty() {
            return Err(ProtobufError::TypeMissing { missing: "kind" });
        }
        if self.api_version.is_empty() {
            return Err(ProtobufError::TypeMissing {
                missing: "apiVersion",
            });
        }
        let message =
            TABLE
                .kind(self.api_version, self.kind)
                .ok_or_else(|| ProtobufError::KindUnknown {
                    api_version: shown(self.api_version).to_owned(),
                    kind: shown(self.kind).to_owned(),
                })?;
        let mut object = Decoder::new(&TABLE)
            .root(message, self.raw)
            .map_err(|failure| ProtobufError::Malformed {
                kind: shown(self.kind).to_owned(),
                path: failure.path(),
                source: failure.error,
            })?;
        self.set_type(&mut object);
        Ok(Value::Object(object))
    }

    /// JSON needs no table, so any kind may come this way.
    fn decode_json(&self) -> Result<Value, ProtobufError> {
        let value = serde_json::from_slice(self.raw).map_err(|error| ProtobufError::Malformed {
            kind: shown(self.kind).to_owned(),
            path: String::new(),
            source: MalformedError::Json(error),
        })?;
        let Value::Object(mut object) = value else {
            return Err(ProtobufError::NotAnObject);
        };
        self.set_type(&mut object);
        Ok(Value::Object(object))
    }

    fn set_type(&self, object: &mut serde_json::Map<String, Value>) {
        for (name, text) in [("apiVersion", self.api_version), ("kind", self.kind)] {
            if !text.is_empty() {
                object.insert(name.to_owned(), Value::from(text));
            }
        }
    }
}

/// Text of the client in an error, which it must not turn into a dump of the request.
fn shown(text: &str) -> &str {
    const SHOWN_CHARS_MAX: usize = 64;
    text.char_indices()
        .nth(SHOWN_CHARS_MAX)
        .map_or(text, |(end, _)| &text[..end])
}
