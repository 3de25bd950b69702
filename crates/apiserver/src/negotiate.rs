//! Content types: what a body is in, and in what form a client wants its answer.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE};

use crate::status::ApiError;

/// The shape in which objects are returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Object,
    Table,
    /// `PartialObjectMetadata`: nothing but the metadata.
    Metadata,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Yaml,
}

/// An accepted answer: shape and encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept {
    pub shape: Shape,
    pub encoding: Encoding,
}

/// The first range of the `Accept` header that the server can do. Clients list what they prefer
/// first and fall back to plain JSON (kubectl: a table, else JSON; client-go: protobuf, else JSON).
pub fn accept(headers: &HeaderMap) -> Result<Accept, ApiError> {
    let default = Accept {
        shape: Shape::Object,
        encoding: Encoding::Json,
    };
    let Some(text) = headers.get(ACCEPT).and_then(|value| value.to_str().ok()) else {
        return Ok(default);
    };
    if text.trim().is_empty() {
        return Ok(default);
    }
    text.split(',')
        .find_map(accept_range)
        .ok_or_else(|| ApiError::not_acceptable("application/json, application/yaml"))
}

fn accept_range(range: &str) -> Option<Accept> {
    let mut parts = range.split(';').map(str::trim);
    let encoding = match parts.next()? {
        "application/json" | "*/*" | "application/*" | "text/*" => Encoding::Json,
        "application/yaml" => Encoding::Yaml,
        _ => return None,
    };
    let mut shape = Shape::Object;
    for parameter in parts {
        match parameter.split_once('=').unwrap_or((parameter, "")) {
            ("as", "Table") => shape = Shape::Table,
            ("as", "PartialObjectMetadata" | "PartialObjectMetadataList") => {
                shape = Shape::Metadata;
            }
            // Another transformation, or a version of it that is not there, is not this range.
            ("as", _) => return None,
            ("v", version) if version != "v1" => return None,
            ("g", group) if group != "meta.k8s.io" && group != "apidiscovery.k8s.io" => {
                return None;
            }
            _ => {}
        }
    }
    Some(Accept { shape, encoding })
}

/// Whether the client asks for aggregated discovery, and understands the version served here.
pub fn accepts_aggregated_discovery(headers: &HeaderMap) -> bool {
    let text = headers
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    text.split(',').any(|range| {
        let has = |wanted: &str| range.split(';').any(|part| part.trim() == wanted);
        has("application/json")
            && has("g=apidiscovery.k8s.io")
            && has("v=v2")
            && has("as=APIGroupDiscoveryList")
    })
}

/// How the body of a request is written: more than the server writes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyEncoding {
    Json,
    Yaml,
    Protobuf,
}

/// How the body of a create or update is written. No content type at all means JSON.
pub fn body_encoding(headers: &HeaderMap) -> Result<BodyEncoding, ApiError> {
    match media_type(headers).as_deref() {
        None | Some("application/json" | "*/*") => Ok(BodyEncoding::Json),
        Some("application/yaml") => Ok(BodyEncoding::Yaml),
        Some("application/vnd.kubernetes.protobuf") => Ok(BodyEncoding::Protobuf),
        Some(_) => Err(ApiError::unsupported_media_type(
            "application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    Json,
    Merge,
    Strategic,
    Apply,
}

pub fn patch_type(headers: &HeaderMap, strategic_known: bool) -> Result<PatchType, ApiError> {
    match media_type(headers).as_deref() {
        Some("application/json-patch+json") => Ok(PatchType::Json),
        Some("application/merge-patch+json") => Ok(PatchType::Merge),
        Some("application/strategic-merge-patch+json") if strategic_known => {
            Ok(PatchType::Strategic)
        }
        Some("application/apply-patch+yaml") => Ok(PatchType::Apply),
        _ => {
            let mut accepted = vec![
                "application/json-patch+json",
                "application/merge-patch+json",
            ];
            if strategic_known {
                accepted.push("application/strategic-merge-patch+json");
            }
            accepted.push("application/apply-patch+yaml");
            Err(ApiError::unsupported_media_type(&accepted.join(", ")))
        }
    }
}

fn media_type(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let media_type = text
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    (!media_type.is_empty()).then_some(media_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_headers_of_real_clients() {
        let check = |header: &str, expected: Option<(Shape, Encoding)>| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, header.parse().unwrap());
            let found = accept(&headers)
                .ok()
                .map(|accept| (accept.shape, accept.encoding));
            assert_eq!(found, expected, "{header}");
        };
        check("application/json", Some((Shape::Object, Encoding::Json)));
        check("*/*", Some((Shape::Object, Encoding::Json)));
        check("application/yaml", Some((Shape::Object, Encoding::Yaml)));
        check(
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
            Some((Shape::Table, Encoding::Json)),
        );
        check(
            "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
            Some((Shape::Object, Encoding::Json)),
        );
        check(
            "application/vnd.kubernetes.protobuf,application/json",
            Some((Shape::Object, Encoding::Json)),
        );
        check("application/vnd.kubernetes.protobuf", None);
        check(
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            Some((Shape::Metadata, Encoding::Json)),
        );
    }

    #[test]
    fn patch_types() {
        let mut headers = HeaderMap::new();
        headers.insert(
            CONTENT_TYPE,
            "application/strategic-merge-patch+json".parse().unwrap(),
        );
        assert_eq!(patch_type(&headers, true).unwrap(), PatchType::Strategic);
        assert_eq!(patch_type(&headers, false).unwrap_err().code, 415);
        headers.insert(
            CONTENT_TYPE,
            "application/merge-patch+json; charset=utf-8"
                .parse()
                .unwrap(),
        );
        assert_eq!(patch_type(&headers, false).unwrap(), PatchType::Merge);
    }
}
