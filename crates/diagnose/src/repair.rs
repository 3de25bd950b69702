//! Repairs as data: what would be written, under which conditions, and how a person would do the same.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::{Value, json};

use crate::evidence::ObjectRef;

/// Writes that end a trouble. They are carried out in order; the first that is refused ends the repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Repair {
    /// What becomes better, in a sentence.
    pub summary: String,
    pub actions: Vec<Action>,
}

/// The object must still be the one that was looked at. The version is left out where the repair's own reason
/// cannot have changed with it: an object that is deleted by uid is the same object whatever its version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Precondition {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
}

impl Precondition {
    #[must_use]
    pub fn unchanged(metadata: &ObjectMeta) -> Self {
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
        }
    }

    #[must_use]
    pub fn same_object(metadata: &ObjectMeta) -> Self {
        Self {
            resource_version: String::new(),
            ..Self::unchanged(metadata)
        }
    }
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "verb")]
pub enum Action {
    /// A JSON merge patch.
    Patch {
        object: ObjectRef,
        patch: Value,
        when: Precondition,
    },
    Delete {
        object: ObjectRef,
        when: Precondition,
    },
}

impl Action {
    /// Takes one ticket out of a volume's VolumeAttachment.
    #[must_use]
    pub fn remove_ticket(attachment: &api_types::VolumeAttachment, ticket: &str) -> Self {
        Self::Patch {
            object: ObjectRef::new("volumeattachments.longhorn.io", &attachment.metadata),
            patch: json!({"spec": {"attachmentTickets": {(ticket): null}}}),
            when: Precondition::unchanged(&attachment.metadata),
        }
    }

    /// Sets annotations; None removes one.
    #[must_use]
    pub fn annotate(
        resource: &'static str,
        metadata: &ObjectMeta,
        annotations: &[(&str, Option<&str>)],
    ) -> Self {
        let values: serde_json::Map<String, Value> = annotations
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect();
        Self::Patch {
            object: ObjectRef::new(resource, metadata),
            patch: json!({"metadata": {"annotations": values}}),
            when: Precondition::unchanged(metadata),
        }
    }

    /// Leaves only the finalizers of others.
    #[must_use]
    pub fn drop_finalizer(resource: &'static str, metadata: &ObjectMeta, finalizer: &str) -> Self {
        let others: Vec<&String> = metadata
            .finalizers
            .iter()
            .flatten()
            .filter(|other| *other != finalizer)
            .collect();
        Self::Patch {
            object: ObjectRef::new(resource, metadata),
            patch: json!({"metadata": {"finalizers": others}}),
            when: Precondition::unchanged(metadata),
        }
    }

    #[must_use]
    pub fn object(&self) -> &ObjectRef {
        match self {
            Self::Patch { object, .. } | Self::Delete { object, .. } => object,
        }
    }

    #[must_use]
    pub fn when(&self) -> &Precondition {
        match self {
            Self::Patch { when, .. } | Self::Delete { when, .. } => when,
        }
    }

    /// The patch as it is sent: an object of another version refuses it, and no other object ever has that version.
    #[must_use]
    pub fn guarded_patch(&self) -> Option<Value> {
        let Self::Patch { patch, when, .. } = self else {
            return None;
        };
        let mut guarded = patch.clone();
        if !when.resource_version.is_empty() {
            guarded["metadata"]["resourceVersion"] = when.resource_version.clone().into();
        }
        Some(guarded)
    }
}

/// The command with which a person would do the same.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Patch { object, patch, .. } => write!(
                f,
                "kubectl patch {} --type merge -p '{patch}'",
                object.for_kubectl()
            ),
            Self::Delete { object, .. } => write!(f, "kubectl delete {}", object.for_kubectl()),
        }
    }
}
