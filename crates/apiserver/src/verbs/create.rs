//! POST: a new object.

use serde_json::Value;

use super::prepare::{self, Change};
use super::{Body, Call, Outcome};
use crate::core::show;
use crate::object;
use crate::status::ApiError;

/// How often another generated name is tried when one is taken.
const GENERATED_NAMES_MAX: usize = 8;

impl Call {
    pub(super) async fn create_object(&self, body: Body) -> Result<Outcome, ApiError> {
        let mut decoded = prepare::decode_object(self, body)?;
        self.place_in_namespace(&mut decoded.object)?;
        self.refuse_closed_namespace()?;
        let has_version = object::resource_version(&decoded.object).is_some();
        let generated = object::name(&decoded.object).is_empty();
        for _ in 0..GENERATED_NAMES_MAX {
            let mut new = decoded.object.clone();
            self.stamp_new(&mut new, generated);
            let mut new = prepare::finish(self, Change::Create, new)?;
            // Found out by the real server's store, after all that is invalid.
            if has_version {
                return Err(ApiError::bad_request(
                    "resourceVersion should not be set on objects to be created",
                ));
            }
            prepare::track(self, None, &mut new);
            if let Some(shown) = self.store_new(new).await? {
                return Ok(Outcome {
                    code: 201,
                    ..Outcome::ok(shown, decoded.warnings)
                });
            }
            if !generated {
                let name = object::name(&decoded.object);
                return Err(ApiError::already_exists(&self.resource.subject(name)));
            }
        }
        Err(ApiError::conflict(
            &self.resource.subject(""),
            "no generated name is free; try again",
        ))
    }

    /// Stores a prepared object and gives it back as clients see it, or nothing if the name is taken.
    pub(super) async fn store_new(&self, mut new: Value) -> Result<Option<Value>, ApiError> {
        if self.dry_run {
            let taken = self
                .core
                .get(&self.resource, object::namespace(&new), object::name(&new))
                .is_some();
            return Ok((!taken).then(|| show(&self.resource, new)));
        }
        let Some(revision) = self.core.insert(&self.resource, &new).await? else {
            return Ok(None);
        };
        new["metadata"]["resourceVersion"] = revision.to_string().into();
        Ok(Some(show(&self.resource, new)))
    }

    /// The namespace of the object is the one of the URL.
    pub(super) fn place_in_namespace(&self, object: &mut Value) -> Result<(), ApiError> {
        let given = object::namespace(object).map(str::to_owned);
        match (&self.namespace, given) {
            (Some(expected), Some(found)) if *expected != found => {
                Err(ApiError::bad_request(format!(
                    "the namespace of the provided object does not match the namespace sent on the request ({found} is not {expected})"
                )))
            }
            (Some(expected), _) => {
                object["metadata"]["namespace"] = expected.as_str().into();
                Ok(())
            }
            (None, _) => {
                // An object of the whole cluster is in no namespace, whatever its author thinks.
                object::metadata_mut(object).remove("namespace");
                Ok(())
            }
        }
    }

    /// Nothing new may be put where nothing is, or where everything is about to go.
    pub(super) fn refuse_closed_namespace(&self) -> Result<(), ApiError> {
        let Some(namespace) = &self.namespace else {
            return Ok(());
        };
        let catalog = self.core.catalog();
        let namespaces = catalog.find("", "v1", "namespaces").expect("built in");
        let stored = self
            .core
            .get(&namespaces, None, namespace)
            .ok_or_else(|| ApiError::not_found(&namespaces.subject(namespace)))?;
        if object::is_deleting(&crate::core::read(&namespaces, &stored)) {
            let mut error = ApiError::forbidden(
                &self.resource.subject(self.name()),
                format!(
                    "unable to create new content in namespace {namespace} because it is being terminated"
                ),
            );
            if let Some(details) = &mut error.details {
                details["causes"] = serde_json::json!([{
                    "reason": "NamespaceTerminating",
                    "message": format!("namespace {namespace} is being terminated"),
                    "field": "metadata.namespace",
                }]);
            }
            return Err(error);
        }
        Ok(())
    }

    /// What the server alone decides about a new object's metadata.
    pub(super) fn stamp_new(&self, object: &mut Value, generate_name: bool) {
        let counts_generation = self.resource.traits.counts_generation;
        let keeps_status =
            self.resource.traits.keeps_status_on_create || !self.resource.subresources.status;
        if !keeps_status && let Some(fields) = object.as_object_mut() {
            fields.remove("status");
        }
        let metadata = object::metadata_mut(object);
        for field in [
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
            "generation",
            "resourceVersion",
        ] {
            metadata.remove(field);
        }
        if generate_name && let Some(prefix) = metadata.get("generateName").and_then(Value::as_str)
        {
            let name = generated_name(prefix);
            metadata.insert("name".to_owned(), name.into());
        }
        metadata.insert("uid".to_owned(), uuid::Uuid::new_v4().to_string().into());
        metadata.insert("creationTimestamp".to_owned(), self.core.now().into());
        if counts_generation {
            metadata.insert("generation".to_owned(), 1.into());
        }
    }
}

/// The prefix, cut to leave room, and five characters without vowels, so that no word comes out.
fn generated_name(prefix: &str) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    const RANDOM_CHARS: usize = 5;
    const NAME_CHARS_MAX: usize = 63;
    let mut name: String = prefix.chars().take(NAME_CHARS_MAX - RANDOM_CHARS).collect();
    let random = uuid::Uuid::new_v4();
    for byte in &random.as_bytes()[..RANDOM_CHARS] {
        name.push(char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]));
    }
    name
}
