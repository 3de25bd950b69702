//! The way every written object goes: decode, prune, default, keep what the server owns, validate.

use std::sync::Arc;

use serde_json::Value;

use super::{Body, Call, FieldValidation};
use crate::builtin;
use crate::builtin::rules;
use crate::builtin::rules::meta::{self, MetaRule};
use crate::catalog::Origin;
use crate::crd;
use crate::events;
use crate::field_error::FieldError;
use crate::object;
use crate::patch::managed;
use crate::schema::{Schema, decode, default, prune, validate};
use crate::status::{ApiError, Subject};

/// What a write does, and to what.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change<'a> {
    Create,
    /// From this live object, through this subresource or none.
    Update {
        live: &'a Value,
    },
}

/// A request's object after decoding, and what to warn of.
pub(crate) struct Decoded {
    pub object: Value,
    pub warnings: Vec<String>,
}

/// Checks that the body is an object of this kind, and drops what the kind does not have.
pub(crate) fn decode_object(call: &Call, body: Body) -> Result<Decoded, ApiError> {
    let Body {
        mut value,
        duplicates,
    } = body;
    if !value.is_object() {
        return Err(ApiError::bad_request(format!(
            "the body must be an object of kind {}",
            call.resource.kind
        )));
    }
    if !object::is_shallow(&value) {
        return Err(ApiError::bad_request(format!(
            "the object is nested deeper than {} levels",
            object::DEPTH_MAX
        )));
    }
    check_type(call, &mut value)?;
    if crate::core::is_converted(&call.resource) {
        events::to_core(&mut value);
    }
    let mut complaints: Vec<String> = duplicates
        .iter()
        .map(|field| decode::duplicate_field(field))
        .collect();
    complaints.extend(prune_fields(call, &mut value));
    if call.resource.origin == Origin::Custom {
        rules::drop_metadata_nulls(&mut value);
    }
    check_types(call, &value)?;
    match call.field_validation {
        FieldValidation::Strict if !complaints.is_empty() => Err(ApiError::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: {STRICT}{}",
            call.resource.kind,
            call.resource.version,
            call.resource.kind,
            complaints.join(", "),
        ))),
        FieldValidation::Warn => Ok(Decoded {
            object: value,
            warnings: complaints,
        }),
        FieldValidation::Strict | FieldValidation::Ignore => Ok(Decoded {
            object: value,
            warnings: vec![],
        }),
    }
}

/// Precedes the fields that a strict client is told of.
pub(super) const STRICT: &str = "strict decoding error: ";

/// An object that does not say which one it is: the URL alone does not count.
pub(super) fn without_name(name: &str) -> ApiError {
    ApiError::bad_request(format!(
        "the name of the object ({name} based on URL) was undeterminable: name must be provided"
    ))
}

/// The schema that stored objects of the call's resource follow.
pub(crate) fn stored_schema(call: &Call) -> Arc<Schema> {
    if crate::core::is_converted(&call.resource) {
        builtin::schema("", "v1", &call.resource.kind)
            .unwrap_or_else(|| call.resource.schema.clone())
    } else {
        call.resource.schema.clone()
    }
}

/// Unknown fields go; each is named, for warnings and strict decoding.
pub(crate) fn prune_fields(call: &Call, value: &mut Value) -> Vec<String> {
    prune::prune(&stored_schema(call), value)
        .into_iter()
        .map(|path| prune::unknown_field(&path))
        .collect()
}

fn check_type(call: &Call, value: &mut Value) -> Result<(), ApiError> {
    let expected_version = call.resource.api_version();
    let kind = text_or_absent(value, "kind")?;
    let api_version = text_or_absent(value, "apiVersion")?;
    if call.resource.origin == Origin::Custom {
        if kind.is_none() {
            return Err(ApiError::bad_request(
                "Object 'Kind' is missing in the request body",
            ));
        }
        // It may be left out, and that is all.
        if value.get("apiVersion").is_some_and(Value::is_null) {
            return Err(ApiError::bad_request(
                "apiVersion must be a string, found null",
            ));
        }
    }
    if let Some(kind) = &kind
        && *kind != call.resource.kind
    {
        if call.resource.origin == Origin::Custom {
            let subject = Subject {
                kind,
                ..call.resource.subject(object::name(value))
            };
            let problem = format!("must be {}", call.resource.kind);
            let error = FieldError::invalid("kind", kind.as_str().into(), problem);
            return Err(ApiError::invalid(&subject, &[error]));
        }
        return Err(ApiError::bad_request(format!(
            "{kind} in version {:?} cannot be handled as a {}: the request's path is for {}",
            call.resource.version,
            call.resource.kind,
            call.resource.qualified_name(),
        )));
    }
    if let Some(api_version) = &api_version
        && *api_version != expected_version
    {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({expected_version})"
        )));
    }
    value["kind"] = call.resource.kind.as_str().into();
    value["apiVersion"] = expected_version.into();
    Ok(())
}

fn text_or_absent(value: &Value, field: &str) -> Result<Option<String>, ApiError> {
    match &value[field] {
        Value::Null => Ok(None),
        Value::String(text) if text.is_empty() => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        other => Err(ApiError::bad_request(format!(
            "{field} must be a string, found {other}"
        ))),
    }
}

/// The real server decodes into types before it looks at values: a value of a wrong type is a bad
/// request there, not an invalid object. Of a custom resource only the metadata has types.
fn check_types(call: &Call, value: &Value) -> Result<(), ApiError> {
    let errors = match call.resource.origin {
        Origin::BuiltIn => validate::validate_types(&stored_schema(call), value),
        Origin::Custom => validate::validate_metadata_types(value),
    };
    match errors.first() {
        None => Ok(()),
        Some(error) => Err(ApiError::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: {error}",
            call.resource.kind, call.resource.version, call.resource.kind
        ))),
    }
}

/// The last steps before a write: defaults, generation, validation, ownership of fields. The object
/// is in its stored form; what comes back is what is stored.
pub(crate) fn finish(call: &Call, change: Change<'_>, mut new: Value) -> Result<Value, ApiError> {
    let schema = stored_schema(call);
    match call.resource.origin {
        Origin::BuiltIn => {
            rules::default_object(&call.resource.storage_group, &call.resource.kind, &mut new);
        }
        Origin::Custom => default::apply_defaults(&schema, &mut new),
    }
    if call
        .resource
        .is("apiextensions.k8s.io", "CustomResourceDefinition")
    {
        crd::accept(&mut new, &call.core.catalog(), &call.core.now());
    }
    let live = match change {
        Change::Create => None,
        Change::Update { live } => Some(live),
    };
    if let Some(live) = live {
        count_generation(call, live, &mut new);
    }
    let errors = complaints(call, &schema, live, &new);
    if !errors.is_empty() {
        return Err(ApiError::invalid(
            &call.resource.subject(object::name(&new)),
            &errors,
        ));
    }
    Ok(new)
}

/// Records who wrote what. Apply does this itself; every other write goes through here, last.
pub(crate) fn track(call: &Call, live: Option<&Value>, new: &mut Value) {
    let schema = stored_schema(call);
    // What a new object's status says is the server's doing, not its creator's; so are the finalizers of a namespace.
    let mut servers = Vec::new();
    if let (None, Some(fields)) = (live, new.as_object_mut()) {
        if call.resource.subresources.status {
            servers.extend(fields.remove_entry("status"));
        }
        if call.resource.is("", "Namespace") {
            servers.extend(fields.remove_entry("spec"));
        }
    }
    managed::track_update(
        live,
        new,
        &call.manager,
        &call.resource.api_version(),
        call.subresource.as_deref(),
        &call.core.now(),
        &schema,
    );
    for (field, value) in servers {
        new[field] = value;
    }
}

fn complaints(call: &Call, schema: &Schema, live: Option<&Value>, new: &Value) -> Vec<FieldError> {
    let (group, kind) = (&call.resource.storage_group, &call.resource.kind);
    match (call.resource.origin, live) {
        (Origin::BuiltIn, None) => rules::validate_create(group, kind, new),
        (Origin::BuiltIn, Some(live)) => rules::validate_update(group, kind, live, new),
        (Origin::Custom, _) => {
            let mut errors = meta::validate(new, MetaRule::custom(call.resource.namespaced));
            errors.extend(
                live.map(|live| meta::validate_update(live, new))
                    .into_iter()
                    .flatten(),
            );
            errors.extend(validate::validate(schema, new, live));
            errors
        }
    }
}

/// The generation counts changes of intent: everything but metadata, and status where that has a
/// writer of its own.
fn count_generation(call: &Call, live: &Value, new: &mut Value) {
    if !call.resource.traits.counts_generation {
        return;
    }
    let generation = live["metadata"]["generation"].as_i64().unwrap_or(0);
    let changed =
        call.subresource.as_deref() != Some("status") && intent(call, live) != intent(call, new);
    new["metadata"]["generation"] = (generation + i64::from(changed)).into();
}

fn intent<'a>(call: &Call, object: &'a Value) -> Vec<(&'a String, &'a Value)> {
    let apart = |field: &str| match field {
        "metadata" | "apiVersion" | "kind" => true,
        "status" => call.resource.subresources.status,
        _ => false,
    };
    let fields = object.as_object().into_iter().flatten();
    fields.filter(|(field, _)| !apart(field)).collect()
}
