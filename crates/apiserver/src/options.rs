//! The parameters of a write, and the options of a delete: read, and refused as the real server refuses them.

use http::HeaderMap;
use http::header::USER_AGENT;

use crate::body;
use crate::field_error::{FieldError, FieldErrorKind};
use crate::request::Query;
use crate::status::ApiError;
use crate::verbs::{DeleteOptions, FieldValidation, grace_period, parse_propagation};

const MANAGER_BYTES_MAX: usize = 128;

/// Everything that is wrong with the parameters of a write, as the real server lists it.
pub(crate) fn check(kind: &str, query: &Query, apply: Option<bool>) -> Result<(), ApiError> {
    let mut errors = Vec::new();
    match apply {
        Some(true) if query.get("fieldManager").is_none_or(str::is_empty) => {
            errors.push(FieldError::required(
                "fieldManager",
                "is required for apply patch",
            ));
        }
        Some(false) if query.get("force").is_some() => {
            errors.push(FieldError::forbidden(
                "force",
                "may not be specified for non-apply patch",
            ));
        }
        _ => {}
    }
    errors.extend(query.get("fieldManager").and_then(manager_complaint));
    errors.extend(query.dry_run().err());
    errors.extend(field_validation(query).err());
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid_options(kind, &errors))
}

/// A delete's options come in the body, or as parameters, or not at all. With a body, parameters count for nothing.
pub(crate) fn delete(
    query: &Query,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<DeleteOptions, ApiError> {
    if body.is_empty() {
        return delete_parameters(query);
    }
    let given = body::parse(headers, body)?.value;
    if !given.is_null() && !given.is_object() {
        return Err(ApiError::bad_request("DeleteOptions must be an object"));
    }
    if let Some(kind) = given["kind"].as_str().filter(|kind| !kind.is_empty())
        && kind != "DeleteOptions"
    {
        let version = given["apiVersion"].as_str().unwrap_or_default();
        return Err(ApiError::bad_request(format!(
            "no kind {kind:?} is registered for version {version:?}: a delete takes DeleteOptions"
        )));
    }
    DeleteOptions::parse(&given)
}

fn delete_parameters(query: &Query) -> Result<DeleteOptions, ApiError> {
    let mut options = DeleteOptions {
        grace_period_seconds: query.number("gracePeriodSeconds")?.map(grace_period),
        ..DeleteOptions::default()
    };
    if let Some(policy) = query.get("propagationPolicy") {
        options.propagation = Some(parse_propagation(policy)?);
    }
    if let Err(error) = query.dry_run() {
        return Err(ApiError::invalid_options("DeleteOptions", &[error]));
    }
    Ok(options)
}

pub(crate) fn field_validation(query: &Query) -> Result<FieldValidation, FieldError> {
    match query.get("fieldValidation") {
        Some("Ignore") => Ok(FieldValidation::Ignore),
        None | Some("" | "Warn") => Ok(FieldValidation::Warn),
        Some("Strict") => Ok(FieldValidation::Strict),
        Some(other) => Err(FieldError::not_supported(
            "fieldValidation",
            other.into(),
            &["", "Ignore", "Strict", "Warn"],
        )),
    }
}

/// What is wrong with the name of a field manager.
fn manager_complaint(manager: &str) -> Option<FieldError> {
    if manager.len() > MANAGER_BYTES_MAX {
        let detail = format!("may not be more than {MANAGER_BYTES_MAX} bytes");
        return Some(FieldError::new(
            FieldErrorKind::TooLong,
            "fieldManager",
            detail,
        ));
    }
    let control = manager.chars().any(char::is_control);
    control.then(|| {
        FieldError::invalid(
            "fieldManager",
            manager.into(),
            "should only contain printable characters",
        )
    })
}

/// The name under which a writer's fields are recorded: what it says, else the program it is.
pub(crate) fn field_manager(query: &Query, headers: &HeaderMap) -> String {
    if let Some(manager) = query
        .get("fieldManager")
        .filter(|manager| !manager.is_empty())
    {
        return manager.to_owned();
    }
    let agent = headers
        .get(USER_AGENT)
        .and_then(|agent| agent.to_str().ok())
        .unwrap_or_default();
    let program: String = agent
        .split('/')
        .next()
        .unwrap_or_default()
        .chars()
        .take(MANAGER_BYTES_MAX)
        .collect();
    if program.is_empty() {
        "unknown".to_owned()
    } else {
        program
    }
}
