//! PATCH: four ways to say what should be different.

use serde_json::Value;

use super::prepare::{self, Change};
use super::{Body, Call, Outcome};
use crate::body;
use crate::core::{CONFLICT_RETRIES_MAX, read_stored, show};
use crate::field_error::FieldError;
use crate::negotiate::PatchType;
use crate::object;
use crate::patch::{self, apply};
use crate::status::ApiError;

impl Call {
    pub(super) async fn patch_object(
        &self,
        patch_type: PatchType,
        patch: &[u8],
    ) -> Result<Outcome, ApiError> {
        if patch_type == PatchType::Apply {
            return self.apply_object(patch).await;
        }
        let name = self.name();
        for _ in 0..CONFLICT_RETRIES_MAX {
            let stored = self
                .core
                .get(&self.resource, self.namespace.as_deref(), name)
                .ok_or_else(|| ApiError::not_found(&self.resource.subject(name)))?;
            let live = read_stored(&self.resource, &stored);
            let shown = show(&self.resource, live.clone());
            let mut patched = self.patched(patch_type, &shown, patch)?;
            if patch_type == PatchType::Strategic {
                // It changes fields of a kind, never the kind.
                for field in ["kind", "apiVersion"] {
                    patched[field] = shown[field].clone();
                }
            }
            let body = Body {
                value: patched.clone(),
                duplicates: vec![],
            };
            let decoded =
                prepare::decode_object(self, body).map_err(|error| undecodable(&patched, error))?;
            self.check_patched_identity(&shown, &patched)?;
            if let Some(shown) = self.write_over(&stored, &live, decoded.object).await? {
                return Ok(Outcome::ok(shown, decoded.warnings));
            }
        }
        Err(ApiError::modified(&self.resource.subject(name)))
    }

    /// The object with the patch applied. Pure: the same for an object and for its `/scale`.
    pub(super) fn patched(
        &self,
        patch_type: PatchType,
        object: &Value,
        patch: &[u8],
    ) -> Result<Value, ApiError> {
        let patch = body::parse_json(patch)?.value;
        let result = match patch_type {
            PatchType::Json => {
                patch::json::apply(object, &patch).map_err(|error| error.rejection())
            }
            PatchType::Merge => {
                patch::merge::apply(object, &patch).map_err(|error| error.rejection())
            }
            PatchType::Strategic => patch::strategic::apply(object, &patch, &self.resource.schema)
                .map_err(|error| error.rejection()),
            PatchType::Apply => return Err(ApiError::bad_request("apply is not possible here")),
        };
        result.map_err(ApiError::from)
    }

    /// A patch may name the version it was made for, but not turn one object into another.
    fn check_patched_identity(&self, live: &Value, patched: &Value) -> Result<(), ApiError> {
        let subject = self.resource.subject(self.name());
        if object::name(patched) != object::name(live) {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({}) does not match the name on the URL ({})",
                object::name(patched),
                object::name(live),
            )));
        }
        if object::namespace(patched) != object::namespace(live) {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        if let Some(version) = object::resource_version(patched)
            && Some(version) != object::resource_version(live)
        {
            return Err(ApiError::modified(&subject));
        }
        let (found, given) = (object::uid(live), object::uid(patched));
        if !given.is_empty() && given != found {
            let error = FieldError::invalid("metadata.uid", given.into(), "field is immutable");
            return Err(ApiError::invalid(&subject, &[error]));
        }
        Ok(())
    }

    /// Server-side apply: creates what is not there, and owns what it sets.
    async fn apply_object(&self, text: &[u8]) -> Result<Outcome, ApiError> {
        let name = self.name();
        if self.subresource.is_some() {
            // Only whole objects are created by an apply: for a part of nothing its text does not matter.
            self.get()?;
        }
        let applied = body::parse_yaml(text)?;
        let mut decoded = prepare::decode_object(self, applied)?;
        let given = object::name(&decoded.object);
        if given.is_empty() {
            return Err(prepare::without_name(name));
        } else if given != name {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
        self.place_in_namespace(&mut decoded.object)?;
        self.leave_to_others(&mut decoded.object);
        for _ in 0..CONFLICT_RETRIES_MAX {
            let stored = self
                .core
                .get(&self.resource, self.namespace.as_deref(), name);
            let Some(stored) = stored else {
                if let Some(shown) = self.apply_new(&decoded.object).await? {
                    return Ok(Outcome {
                        code: 201,
                        ..Outcome::ok(shown, decoded.warnings)
                    });
                }
                continue;
            };
            let live = read_stored(&self.resource, &stored);
            if let Some(version) = object::resource_version(&decoded.object)
                && version != stored.mod_revision.to_string()
            {
                return Err(ApiError::modified(&self.resource.subject(name)));
            }
            let (found, uid) = (object::uid(&live), object::uid(&decoded.object));
            if !uid.is_empty() && uid != found {
                let error = FieldError::invalid("metadata.uid", uid.into(), "field is immutable");
                return Err(ApiError::invalid(&self.resource.subject(name), &[error]));
            }
            let merged = self.merged(Some(&live), &decoded.object)?;
            let kept = super::update::keep_what_is_not_the_clients(self, &live, merged);
            let new = prepare::finish(self, Change::Update { live: &live }, kept)?;
            if let Some(shown) = self.commit(&stored, &live, new).await? {
                return Ok(Outcome::ok(shown, decoded.warnings));
            }
        }
        Err(ApiError::modified(&self.resource.subject(name)))
    }

    /// Nobody owns by an apply what the same path could not write: status is a path of its own.
    fn leave_to_others(&self, applied: &mut Value) {
        let Some(fields) = applied.as_object_mut() else {
            return;
        };
        match self.subresource.as_deref() {
            Some("status") => {
                fields.retain(|name, _| {
                    matches!(name.as_str(), "apiVersion" | "kind" | "metadata" | "status")
                });
            }
            _ if self.resource.subresources.status => {
                fields.remove("status");
            }
            _ => {}
        }
    }

    async fn apply_new(&self, applied: &Value) -> Result<Option<Value>, ApiError> {
        if self.subresource.is_some() {
            return Err(ApiError::not_found(&self.resource.subject(self.name())));
        }
        self.refuse_uid_of_absent(applied)?;
        self.refuse_closed_namespace()?;
        let mut new = self.merged(None, applied)?;
        let managed = new["metadata"]["managedFields"].clone();
        self.stamp_new(&mut new, false);
        let mut new = prepare::finish(self, Change::Create, new)?;
        if !managed.is_null() {
            new["metadata"]["managedFields"] = managed;
        }
        self.store_new(new).await
    }

    fn merged(&self, live: Option<&Value>, applied: &Value) -> Result<Value, ApiError> {
        let now = self.core.now();
        let schema = prepare::stored_schema(self);
        apply::apply(apply::ApplyRequest {
            live,
            applied,
            manager: &self.manager,
            force: self.force,
            subresource: self.subresource.as_deref(),
            now: &now,
            schema: &schema,
        })
        .map_err(|error| error.rejection().into())
    }
}

/// Of a patch it is the result that is wrong, not the request.
fn undecodable(patched: &Value, error: ApiError) -> ApiError {
    if error.code != 400 {
        return error;
    }
    let why = match error.message.split_once(prepare::STRICT) {
        Some((_, fields)) => format!("{}{fields}", prepare::STRICT),
        None => error.message.clone(),
    };
    ApiError::invalid_patch(patched, &why)
}
