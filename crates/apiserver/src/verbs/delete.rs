//! DELETE: marks, waits for finalizers, removes.

use jiff::SignedDuration;
use revision_store::Object as Stored;
use serde_json::{Value, json};

use super::update::is_ready_to_go;
use super::{Call, ListParameters, Outcome};
use crate::catalog::Origin;
use crate::core::{CONFLICT_RETRIES_MAX, read, read_stored, show};
use crate::field_error::FieldError;
use crate::object::{self, CRD_CLEANUP_FINALIZER, FOREGROUND_FINALIZER, ORPHAN_FINALIZER};
use crate::status::{ApiError, Subject};

/// How long a pod is left to its node when nobody says otherwise.
const POD_GRACE_SECONDS: i64 = 30;

/// What happens to the objects that an object owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// The body of a delete, or its query parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    pub grace_period_seconds: Option<i64>,
    pub propagation: Option<Propagation>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub dry_run: bool,
}

impl DeleteOptions {
    pub fn parse(body: &Value) -> Result<Self, ApiError> {
        let refuse = |field: &str, value: &Value| {
            Err(ApiError::bad_request(format!(
                "DeleteOptions.{field}: cannot be {value}"
            )))
        };
        let grace_period_seconds = match &body["gracePeriodSeconds"] {
            Value::Null => None,
            value => match value.as_i64() {
                Some(seconds) => Some(grace_period(seconds)),
                None => return refuse("gracePeriodSeconds", value),
            },
        };
        let propagation = match (&body["propagationPolicy"], &body["orphanDependents"]) {
            (Value::Null, Value::Null) => None,
            (Value::Null, Value::Bool(true)) => Some(Propagation::Orphan),
            (Value::Null, Value::Bool(false)) => Some(Propagation::Background),
            (Value::String(policy), Value::Null) => Some(parse_propagation(policy)?),
            (policy, _) => return refuse("propagationPolicy", policy),
        };
        let dry_run = match &body["dryRun"] {
            Value::Null => false,
            Value::Array(modes) if modes.is_empty() => false,
            Value::Array(modes) if modes.iter().all(|mode| mode == "All") => true,
            other => return refuse("dryRun", other),
        };
        let precondition = |field: &str| body["preconditions"][field].as_str().map(str::to_owned);
        Ok(Self {
            grace_period_seconds,
            propagation,
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
            dry_run,
        })
    }
}

/// A negative period means the shortest.
pub(crate) fn grace_period(seconds: i64) -> i64 {
    if seconds < 0 { 1 } else { seconds }
}

pub(crate) fn parse_propagation(policy: &str) -> Result<Propagation, ApiError> {
    match policy {
        "Background" => Ok(Propagation::Background),
        "Foreground" => Ok(Propagation::Foreground),
        "Orphan" => Ok(Propagation::Orphan),
        other => {
            let supported = ["Background", "Foreground", "Orphan", "nil"];
            let error = FieldError::not_supported("propagationPolicy", other.into(), &supported);
            Err(ApiError::invalid_options("DeleteOptions", &[error]))
        }
    }
}

/// What a delete did.
enum Step {
    Removed(Value),
    Marked(Value),
    Raced,
}

impl Call {
    pub async fn delete(&self, options: &DeleteOptions) -> Result<Outcome, ApiError> {
        if self.subresource.is_some() {
            return Err(ApiError::method_not_allowed());
        }
        let name = self.name();
        for _ in 0..CONFLICT_RETRIES_MAX {
            let stored = self
                .core
                .get(&self.resource, self.namespace.as_deref(), name)
                .ok_or_else(|| ApiError::not_found(&self.resource.subject(name)))?;
            match self.delete_once(&stored, options).await? {
                Step::Removed(object) if !self.resource.traits.returns_deleted_object => {
                    let status = self.deleted_status(&object);
                    return Ok(Outcome {
                        own_kind: false,
                        ..Outcome::ok(status, vec![])
                    });
                }
                Step::Removed(object) | Step::Marked(object) => {
                    return Ok(Outcome::ok(object, vec![]));
                }
                Step::Raced => {}
            }
        }
        Err(ApiError::modified(&self.resource.subject(name)))
    }

    /// Deletes every object that a list with these parameters would show.
    pub async fn delete_collection(
        &self,
        parameters: &ListParameters,
        options: &DeleteOptions,
    ) -> Result<Outcome, ApiError> {
        let listed = self.matching(parameters)?;
        let mut items = Vec::new();
        for stored in listed {
            let one = Call {
                name: Some(object::name(&read_stored(&self.resource, &stored)).to_owned()),
                namespace: namespace_of(self, &stored),
                ..self.clone()
            };
            match one.delete(options).await {
                // Shown as they were listed.
                Ok(_) => items.push(self.list_item(read(&self.resource, &stored))),
                // Somebody else was faster: it is gone, which is what was asked for.
                Err(error) if error.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let list = json!({
            "kind": self.resource.list_kind,
            "apiVersion": self.resource.api_version(),
            "metadata": {"resourceVersion": self.core.store.current_revision().to_string()},
            "items": items,
        });
        Ok(Outcome {
            own_kind: false,
            ..Outcome::ok(list, vec![])
        })
    }

    /// In lists of built-in kinds the list alone says what its items are.
    fn list_item(&self, mut item: Value) -> Value {
        if self.resource.origin == Origin::BuiltIn
            && let Some(fields) = item.as_object_mut()
        {
            fields.remove("kind");
            fields.remove("apiVersion");
        }
        item
    }

    async fn delete_once(
        &self,
        stored: &Stored,
        options: &DeleteOptions,
    ) -> Result<Step, ApiError> {
        let live = read_stored(&self.resource, stored);
        self.check_preconditions(&live, options)?;
        let mut new = live.clone();
        self.mark(&mut new, options);
        let gone = is_ready_to_go(&self.resource, &new);
        if options.dry_run || self.dry_run || (new == live && !gone) {
            return Ok(if gone {
                Step::Removed(self.last_seen(live, new))
            } else {
                Step::Marked(show(&self.resource, new))
            });
        }
        let revision = if gone {
            self.core.remove(&self.resource, stored).await?
        } else {
            self.core.replace(&self.resource, stored, &new).await?
        };
        let Some(revision) = revision else {
            return Ok(Step::Raced);
        };
        new["metadata"]["resourceVersion"] = revision.to_string().into();
        Ok(if gone {
            Step::Removed(self.last_seen(live, new))
        } else {
            Step::Marked(show(&self.resource, new))
        })
    }

    /// An object that goes at once is shown as it was; one that was asked to go before, or that is given time as a rule,
    /// with the marks of that.
    fn last_seen(&self, live: Value, marked: Value) -> Value {
        if object::is_deleting(&live) || self.resource.traits.graceful_deletion {
            return show(&self.resource, marked);
        }
        let mut live = live;
        live["metadata"]["resourceVersion"] = marked["metadata"]["resourceVersion"].clone();
        show(&self.resource, live)
    }

    fn check_preconditions(&self, live: &Value, options: &DeleteOptions) -> Result<(), ApiError> {
        // Here the real server speaks of the kind where it otherwise names the resource.
        let subject = Subject {
            plural: &self.resource.kind,
            ..self.resource.subject(self.name())
        };
        let advice = "The object might have been deleted and then recreated";
        if let Some(expected) = &options.uid
            && expected != object::uid(live)
        {
            return Err(ApiError::conflict(
                &subject,
                format!(
                    "the UID in the precondition ({expected}) does not match the UID in record ({}). {advice}",
                    object::uid(live)
                ),
            ));
        }
        if let Some(expected) = &options.resource_version
            && Some(expected.as_str()) != object::resource_version(live)
        {
            return Err(ApiError::conflict(
                &subject,
                format!(
                    "the ResourceVersion in the precondition ({expected}) does not match the ResourceVersion in record ({}). The object might have been modified",
                    object::resource_version(live).unwrap_or_default()
                ),
            ));
        }
        Ok(())
    }

    /// The object as a delete leaves it, if it stays at all.
    fn mark(&self, object: &mut Value, options: &DeleteOptions) {
        match options.propagation {
            Some(Propagation::Foreground) => {
                object::remove_finalizer(object, ORPHAN_FINALIZER);
                object::add_finalizer(object, FOREGROUND_FINALIZER);
            }
            Some(Propagation::Orphan) => {
                object::remove_finalizer(object, FOREGROUND_FINALIZER);
                object::add_finalizer(object, ORPHAN_FINALIZER);
            }
            Some(Propagation::Background) => {
                object::remove_finalizer(object, ORPHAN_FINALIZER);
                object::remove_finalizer(object, FOREGROUND_FINALIZER);
            }
            None => {}
        }
        let first_time = !object::is_deleting(object);
        if self
            .resource
            .is("apiextensions.k8s.io", "CustomResourceDefinition")
            && first_time
        {
            object::add_finalizer(object, CRD_CLEANUP_FINALIZER);
        }
        let grace = self.grace_seconds(object, options);
        let due = self
            .core
            .clock()
            .checked_add(SignedDuration::from_secs(grace));
        let deadline = due.map_or_else(|_| self.core.now(), object::timestamp);
        let running_grace = object["metadata"]["deletionGracePeriodSeconds"].as_i64();
        if first_time || running_grace.is_some_and(|running| grace < running) {
            let generation = object["metadata"]["generation"].as_i64();
            let metadata = object::metadata_mut(object);
            metadata.insert("deletionTimestamp".to_owned(), deadline.into());
            metadata.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
            if first_time && let Some(generation) = generation.filter(|count| *count > 0) {
                metadata.insert("generation".to_owned(), (generation + 1).into());
            }
        }
        if self.resource.is("", "Namespace") {
            object["status"]["phase"] = "Terminating".into();
        }
    }

    /// Only pods that a node may be running are left time.
    fn grace_seconds(&self, object: &Value, options: &DeleteOptions) -> i64 {
        if !self.resource.traits.graceful_deletion {
            return 0;
        }
        let on_a_node = object["spec"]["nodeName"]
            .as_str()
            .is_some_and(|node| !node.is_empty());
        let over = matches!(
            object["status"]["phase"].as_str(),
            Some("Succeeded" | "Failed")
        );
        if !on_a_node || over {
            return 0;
        }
        options
            .grace_period_seconds
            .or_else(|| object["spec"]["terminationGracePeriodSeconds"].as_i64())
            .unwrap_or(POD_GRACE_SECONDS)
            .max(0)
    }

    fn deleted_status(&self, object: &Value) -> Value {
        let mut details = json!({
            "name": object::name(object),
            "kind": self.resource.plural,
            "uid": object::uid(object),
        });
        if !self.resource.group.is_empty() {
            details["group"] = self.resource.group.as_str().into();
        }
        json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": details,
        })
    }
}

fn namespace_of(call: &Call, stored: &Stored) -> Option<String> {
    object::namespace(&read_stored(&call.resource, stored)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_checked() {
        let parse = |body: Value| DeleteOptions::parse(&body);
        assert_eq!(parse(json!({})).unwrap(), DeleteOptions::default());
        let options = parse(json!({
            "gracePeriodSeconds": 0, "propagationPolicy": "Foreground",
            "preconditions": {"uid": "u"}, "dryRun": ["All"],
        }))
        .unwrap();
        assert_eq!(options.propagation, Some(Propagation::Foreground));
        assert_eq!(options.uid.as_deref(), Some("u"));
        assert!(options.dry_run);
        assert!(parse(json!({"propagationPolicy": "Sideways"})).is_err());
        assert!(parse(json!({"gracePeriodSeconds": "soon"})).is_err());
        assert!(parse(json!({"propagationPolicy": "Orphan", "orphanDependents": true})).is_err());
    }
}
