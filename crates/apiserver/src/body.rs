//! Request bodies: text to values, bounded, with duplicate fields noticed.

use http::HeaderMap;
use serde_json::Value;

use crate::negotiate::{self, BodyEncoding};
use crate::protobuf;
use crate::schema::decode;
use crate::status::ApiError;
use crate::verbs::Body;

/// The largest body that is read, as in the real server.
pub const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;

/// The body of a request, by what its headers say of it.
pub(crate) fn parse(headers: &HeaderMap, text: &[u8]) -> Result<Body, ApiError> {
    match negotiate::body_encoding(headers)? {
        BodyEncoding::Json => parse_json(text),
        BodyEncoding::Yaml => parse_yaml(text),
        BodyEncoding::Protobuf => parse_protobuf(text),
    }
}

pub fn parse_json(text: &[u8]) -> Result<Body, ApiError> {
    let (value, duplicates) = decode::parse_json(text).map_err(|error| {
        ApiError::bad_request(format!(
            "the object provided is unrecognized: it is not JSON: {error}"
        ))
    })?;
    Ok(Body { value, duplicates })
}

pub fn parse_yaml(text: &[u8]) -> Result<Body, ApiError> {
    // JSON is YAML, and most clients that say YAML send JSON.
    if text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{')
        && let Ok(body) = parse_json(text)
    {
        return Ok(body);
    }
    let text = std::str::from_utf8(text)
        .map_err(|error| ApiError::bad_request(format!("error decoding YAML: {error}")))?;
    let value: Value = serde_saphyr::from_str(text)
        .map_err(|error| ApiError::bad_request(format!("error decoding YAML: {error}")))?;
    Ok(Body {
        value,
        duplicates: vec![],
    })
}

/// What typed clients send. Protobuf has no names, so nothing in it can be a duplicate.
pub fn parse_protobuf(bytes: &[u8]) -> Result<Body, ApiError> {
    let value = protobuf::decode(bytes).map_err(|error| {
        let message = chain(&error);
        if error.is_unsupported_media_type() {
            ApiError::unsupported_body(message)
        } else {
            ApiError::bad_request(message)
        }
    })?;
    Ok(Body {
        value,
        duplicates: vec![],
    })
}

/// An error and what led to it, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message.push_str(": ");
        message.push_str(&error.to_string());
        cause = error.source();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protobuf_is_read_or_refused_for_the_right_reason() {
        let check = |body: &[u8], expected: Result<&str, u16>| {
            let found = parse_protobuf(body).map(|body| body.value["kind"].to_string());
            let found = found.map_err(|error| error.code);
            assert_eq!(
                found.as_deref(),
                expected.as_ref().map(|kind| *kind),
                "{body:?}"
            );
        };
        check(
            b"k8s\0\n\x0f\n\x02v1\x12\x09ConfigMap\x12\0",
            Ok("\"ConfigMap\""),
        );
        // A kind that is not in the table can still be sent as JSON.
        check(b"k8s\0\n\x09\n\x04x/v1\x12\x01Y\x12\0", Err(415));
        check(b"{}", Err(400));
        check(b"k8s\0\n\xff", Err(400));
    }
}
