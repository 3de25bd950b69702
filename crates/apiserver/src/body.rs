//! Request bodies: text to values, bounded, with duplicate fields noticed.

use serde_json::Value;

use crate::schema::decode;
use crate::status::ApiError;
use crate::verbs::Body;

/// The largest body that is read, as in the real server.
pub const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;

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
