//! Answers: objects and lists in the shape and encoding that the client asked for.

use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WARNING};
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

use crate::catalog::Origin;
use crate::core::{is_converted, read, type_meta};
use crate::negotiate::{Accept, Encoding, Shape};
use crate::object;
use crate::service::{Answer, full};
use crate::status::ApiError;
use crate::table::{self, IncludeObject};
use crate::verbs::{Call, Listing, Outcome};

/// A refused request.
pub(crate) fn failure(error: &ApiError) -> Answer {
    let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = json(code, &error.to_status());
    if let Some(seconds) = error
        .details
        .as_ref()
        .and_then(|details| details["retryAfterSeconds"].as_u64())
    {
        answer
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

/// One object.
pub(crate) fn outcome(
    call: &Call,
    outcome: Outcome,
    accept: Accept,
    include: IncludeObject,
) -> Answer {
    let code = StatusCode::from_u16(outcome.code).unwrap_or(StatusCode::OK);
    let value = match accept.shape {
        Shape::Table if outcome.own_kind => {
            let version = outcome.object["metadata"]["resourceVersion"].clone();
            let mut table = table::table(
                &call.resource,
                &[outcome.object],
                include,
                call.core.clock(),
            );
            table["metadata"] = json!({"resourceVersion": version});
            table
        }
        Shape::Metadata if outcome.own_kind => table::partial_metadata(&outcome.object),
        Shape::Object | Shape::Table | Shape::Metadata => outcome.object,
    };
    let mut answer = encoded(code, &value, accept.encoding);
    for warning in &outcome.warnings {
        let text = format!("299 - {warning:?}");
        if let Ok(value) = HeaderValue::from_str(&text) {
            answer.headers_mut().append(WARNING, value);
        }
    }
    answer
}

/// One page of a collection.
pub(crate) fn list(
    call: &Call,
    listing: &Listing,
    accept: Accept,
    include: IncludeObject,
) -> Answer {
    let resource = &call.resource;
    let mut metadata = json!({"resourceVersion": listing.revision.to_string()});
    if let Some(token) = &listing.continue_token {
        metadata["continue"] = token.as_str().into();
    }
    if let Some(remaining) = listing.remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    if accept.shape == Shape::Object && accept.encoding == Encoding::Json && !is_converted(resource)
    {
        return with_type("application/json", spliced_list(call, listing, &metadata));
    }
    let objects: Vec<Value> = listing
        .objects
        .iter()
        .map(|stored| read(resource, stored))
        .collect();
    let value = match accept.shape {
        Shape::Table => {
            let mut table = table::table(resource, &objects, include, call.core.clock());
            table["metadata"] = metadata;
            table
        }
        Shape::Metadata => json!({
            "kind": "PartialObjectMetadataList",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": metadata,
            "items": objects.iter().map(table::partial_metadata).collect::<Vec<_>>(),
        }),
        Shape::Object => json!({
            "kind": resource.list_kind,
            "apiVersion": resource.api_version(),
            "metadata": metadata,
            "items": objects,
        }),
    };
    encoded(StatusCode::OK, &value, accept.encoding)
}

/// The common case without a parse: stored bytes, one behind the other.
fn spliced_list(call: &Call, listing: &Listing, metadata: &Value) -> Vec<u8> {
    let resource = &call.resource;
    let api_version = resource.api_version();
    // Items of built-in kinds do not repeat their type; those of custom kinds do.
    let item_type = (resource.origin == Origin::Custom).then(|| type_meta(&api_version, resource));
    let stored_bytes: usize = listing
        .objects
        .iter()
        .map(|stored| stored.value.len() + 96)
        .sum();
    let mut bytes = Vec::with_capacity(stored_bytes + 256);
    let head = format!(
        r#"{{"kind":"{}","apiVersion":"{api_version}","metadata":{metadata},"items":["#,
        resource.list_kind
    );
    bytes.extend_from_slice(head.as_bytes());
    for (index, stored) in listing.objects.iter().enumerate() {
        if index > 0 {
            bytes.push(b',');
        }
        object::splice(&stored.value, stored.mod_revision.0, item_type, &mut bytes);
    }
    bytes.extend_from_slice(b"]}");
    bytes
}

pub(crate) fn json(code: StatusCode, value: &Value) -> Answer {
    encoded(code, value, Encoding::Json)
}

fn encoded(code: StatusCode, value: &Value, encoding: Encoding) -> Answer {
    match encoding {
        Encoding::Json => text(code, "application/json", value.to_string()),
        Encoding::Yaml => match serde_saphyr::to_string(value) {
            Ok(yaml) => text(code, "application/yaml", yaml),
            Err(_) => text(code, "application/json", value.to_string()),
        },
    }
}

pub(crate) fn with_type(content_type: &'static str, bytes: impl Into<bytes::Bytes>) -> Answer {
    text(StatusCode::OK, content_type, bytes)
}

pub(crate) fn text(
    code: StatusCode,
    content_type: &'static str,
    bytes: impl Into<bytes::Bytes>,
) -> Answer {
    let mut answer = Response::new(full(bytes));
    *answer.status_mut() = code;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    // What a client may do must not depend on what a proxy remembers.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    answer
}
