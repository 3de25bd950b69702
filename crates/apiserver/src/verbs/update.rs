//! PUT, and the part of it that every change of an existing object shares.

use revision_store::Object as Stored;
use serde_json::Value;

use super::prepare::{self, Change};
use super::{Body, Call, Outcome};
use crate::catalog::Resource;
use crate::core::{CONFLICT_RETRIES_MAX, read_stored, show};
use crate::field_error::FieldError;
use crate::object;
use crate::patch::managed;
use crate::status::{ApiError, Subject};

impl Call {
    pub(super) async fn update_object(&self, body: Body) -> Result<Outcome, ApiError> {
        let decoded = prepare::decode_object(self, body)?;
        let mut wanted = decoded.object;
        let name = self.name().to_owned();
        let given = object::name(&wanted);
        if given.is_empty() {
            return Err(prepare::without_name(&name));
        }
        if given != name {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
        self.place_in_namespace(&mut wanted)?;
        for _ in 0..CONFLICT_RETRIES_MAX {
            let Some(stored) = self
                .core
                .get(&self.resource, self.namespace.as_deref(), &name)
            else {
                return self.update_absent(wanted, decoded.warnings).await;
            };
            let live = read_stored(&self.resource, &stored);
            self.check_versions(&stored, &live, &wanted)?;
            if let Some(shown) = self.write_over(&stored, &live, wanted.clone()).await? {
                return Ok(Outcome::ok(shown, decoded.warnings));
            }
        }
        Err(ApiError::modified(&self.resource.subject(&name)))
    }

    /// Some kinds may be created by an update; for all others there is nothing to update.
    async fn update_absent(
        &self,
        mut new: Value,
        warnings: Vec<String>,
    ) -> Result<Outcome, ApiError> {
        let name = self.name();
        if !self.resource.traits.update_may_create || self.subresource.is_some() {
            return Err(ApiError::not_found(&self.resource.subject(name)));
        }
        self.refuse_uid_of_absent(&new)?;
        self.refuse_closed_namespace()?;
        self.stamp_new(&mut new, false);
        let mut new = prepare::finish(self, Change::Create, new)?;
        prepare::track(self, None, &mut new);
        let shown = self
            .store_new(new)
            .await?
            .ok_or_else(|| ApiError::modified(&self.resource.subject(name)))?;
        Ok(Outcome {
            code: 201,
            ..Outcome::ok(shown, warnings)
        })
    }

    /// Who names a uid means an object that exists, and would be surprised by another.
    pub(super) fn refuse_uid_of_absent(&self, wanted: &Value) -> Result<(), ApiError> {
        let uid = object::uid(wanted);
        if uid.is_empty() {
            return Ok(());
        }
        let why = format!(
            "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        );
        Err(ApiError::conflict(&self.resource.subject(self.name()), why))
    }

    fn check_versions(
        &self,
        stored: &Stored,
        live: &Value,
        wanted: &Value,
    ) -> Result<(), ApiError> {
        let subject = self.resource.subject(self.name());
        let (found, given) = (object::uid(live), object::uid(wanted));
        if !given.is_empty() && given != found {
            return Err(ApiError::conflict(
                &subject,
                format!(
                    "Precondition failed: UID in precondition: {given}, UID in object meta: {found}"
                ),
            ));
        }
        match object::resource_version(wanted) {
            Some(version) if version != stored.mod_revision.to_string() => {
                return Err(ApiError::modified(&subject));
            }
            None if self.resource.traits.update_needs_version => {
                let error = FieldError::invalid(
                    "metadata.resourceVersion",
                    0.into(),
                    "must be specified for an update",
                );
                // Found out by the real server's store, which knows resources and no kinds.
                let subject = Subject {
                    kind: subject.plural,
                    ..subject
                };
                return Err(ApiError::invalid(&subject, &[error]));
            }
            _ => {}
        }
        Ok(())
    }

    /// Prepares `wanted` as the successor of `live` and stores it. `Ok(None)`: somebody was faster.
    pub(super) async fn write_over(
        &self,
        stored: &Stored,
        live: &Value,
        wanted: Value,
    ) -> Result<Option<Value>, ApiError> {
        let new = keep_what_is_not_the_clients(self, live, wanted);
        let mut new = prepare::finish(self, Change::Update { live }, new)?;
        prepare::track(self, Some(live), &mut new);
        self.commit(stored, live, new).await
    }

    /// Stores the successor; removes the object if that was the last finalizer; does nothing if
    /// nothing changed, so that a repeated write makes no event.
    pub(crate) async fn commit(
        &self,
        stored: &Stored,
        live: &Value,
        mut new: Value,
    ) -> Result<Option<Value>, ApiError> {
        new["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
        let unchanged = managed::keep_times_if_unchanged(live, &mut new);
        if unchanged || self.dry_run {
            return Ok(Some(show(&self.resource, new)));
        }
        let revision = if is_ready_to_go(&self.resource, &new) {
            self.core.remove(&self.resource, stored).await?
        } else {
            self.core.replace(&self.resource, stored, &new).await?
        };
        Ok(revision.map(|revision| {
            new["metadata"]["resourceVersion"] = revision.to_string().into();
            show(&self.resource, new)
        }))
    }
}

/// Marked for deletion, and nobody holds it any longer.
pub(super) fn is_ready_to_go(resource: &Resource, object: &Value) -> bool {
    let held_by_namespace = resource.is("", "Namespace")
        && object["spec"]["finalizers"]
            .as_array()
            .is_some_and(|list| !list.is_empty());
    let grace = object["metadata"]["deletionGracePeriodSeconds"]
        .as_i64()
        .unwrap_or(0);
    object::is_deleting(object)
        && object::finalizers(object).is_empty()
        && !held_by_namespace
        && grace == 0
}

/// A client may send anything; some fields have another author, and keep their value.
pub(super) fn keep_what_is_not_the_clients(call: &Call, live: &Value, wanted: Value) -> Value {
    match call.subresource.as_deref() {
        Some("status") => status_only(call, live, &wanted),
        Some("finalize") => {
            let mut new = live.clone();
            new["spec"]["finalizers"] = wanted["spec"]["finalizers"].clone();
            new
        }
        _ => {
            let mut new = wanted;
            if call.resource.subresources.status
                && let Some(fields) = new.as_object_mut()
            {
                object::copy_field(live, fields, "status");
            }
            keep_identity(live, &mut new);
            new
        }
    }
}

fn status_only(call: &Call, live: &Value, wanted: &Value) -> Value {
    let mut new = live.clone();
    if let Some(fields) = new.as_object_mut() {
        object::copy_field(wanted, fields, "status");
    }
    if call.resource.traits.status_may_change_metadata {
        // Owners of pods are left alone: kubelets of old wrote them wrongly.
        let owners = (!call.resource.is("", "Pod")).then_some("ownerReferences");
        for field in ["labels", "annotations", "finalizers"]
            .into_iter()
            .chain(owners)
        {
            object::copy_field(&wanted["metadata"], object::metadata_mut(&mut new), field);
        }
    }
    object::copy_field(
        &wanted["metadata"],
        object::metadata_mut(&mut new),
        "managedFields",
    );
    new
}

fn keep_identity(live: &Value, new: &mut Value) {
    const SERVERS_OWN: [&str; 8] = [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "selfLink",
    ];
    let metadata = object::metadata_mut(new);
    for field in SERVERS_OWN {
        object::copy_field(&live["metadata"], metadata, field);
    }
    // A generated name's prefix is kept when the client leaves it out, as typed clients do.
    if !metadata.contains_key("generateName") {
        object::copy_field(&live["metadata"], metadata, "generateName");
    }
}
