//! What a sentence rests on: a field of an object, its value, and since when it has it.

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Serialize;

use crate::dump::KINDS;

/// An object as kubectl names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ObjectRef {
    /// Such as `volumes.longhorn.io`.
    pub resource: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
}

impl ObjectRef {
    #[must_use]
    pub fn new(resource: &'static str, metadata: &ObjectMeta) -> Self {
        Self {
            resource,
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
    }

    /// An object that is known by name only; perhaps because it is missing.
    #[must_use]
    pub fn named(resource: &'static str, namespace: &str, name: &str) -> Self {
        Self {
            resource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// One of ours, in our namespace.
    #[must_use]
    pub fn ours(resource: &'static str, name: &str) -> Self {
        Self::named(resource, api_types::names::NAMESPACE, name)
    }

    /// Where the object is in the API.
    #[must_use]
    pub fn path(&self) -> Option<String> {
        let kind = KINDS.iter().find(|kind| kind.resource == self.resource)?;
        let (group, plural) = kind.path.rsplit_once('/')?;
        if self.namespace.is_empty() || group.contains("/namespaces/") {
            return Some(format!("{group}/{plural}/{}", self.name));
        }
        Some(format!(
            "{group}/namespaces/{}/{plural}/{}",
            self.namespace, self.name
        ))
    }

    /// `-n NAMESPACE RESOURCE NAME`, as kubectl takes it after a verb.
    #[must_use]
    pub fn for_kubectl(&self) -> String {
        let Self {
            resource,
            namespace,
            name,
        } = self;
        if namespace.is_empty() {
            format!("{resource} {name}")
        } else {
            format!("-n {namespace} {resource} {name}")
        }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Our own namespace says nothing that the group does not.
        if self.namespace.is_empty() || self.namespace == api_types::names::NAMESPACE {
            return write!(f, "{}/{}", self.resource, self.name);
        }
        write!(f, "{}/{}/{}", self.resource, self.namespace, self.name)
    }
}

/// One observation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    pub object: ObjectRef,
    /// The path of the field; empty when it is the object itself that is there or missing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
    pub value: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

/// Values are shown on one line; what is longer is cut.
const VALUE_BYTES_MAX: usize = 300;

impl Evidence {
    #[must_use]
    pub fn new(object: ObjectRef, field: &str, value: impl fmt::Display) -> Self {
        let mut value = value.to_string().replace('\n', " ");
        if value.len() > VALUE_BYTES_MAX {
            let end = (0..=VALUE_BYTES_MAX)
                .rev()
                .find(|end| value.is_char_boundary(*end));
            value.truncate(end.unwrap_or(0));
            value.push('…');
        }
        Self {
            object,
            field: field.to_owned(),
            value,
            since: None,
        }
    }

    /// That there is no such object.
    #[must_use]
    pub fn missing(object: ObjectRef) -> Self {
        Self::new(object, "", "does not exist")
    }

    #[must_use]
    pub fn since(mut self, since: Option<Timestamp>) -> Self {
        self.since = since;
        self
    }

    #[must_use]
    pub fn since_time(self, since: Option<&Time>) -> Self {
        self.since(since.map(|time| time.0))
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            return write!(f, "{} {}", self.object, self.value);
        }
        let value = if self.value.is_empty() {
            "\"\""
        } else {
            &self.value
        };
        write!(f, "{} {}={value}", self.object, self.field)
    }
}

/// A time as Longhorn writes it.
#[must_use]
pub(crate) fn time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// When an event happened, or happened again.
#[must_use]
pub(crate) fn last_seen(event: &Event) -> Option<Timestamp> {
    let series = event
        .series
        .as_ref()
        .and_then(|series| series.last_observed_time.as_ref());
    series
        .map(|time| time.0)
        .or(event.last_timestamp.as_ref().map(|time| time.0))
        .or(event.event_time.as_ref().map(|time| time.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_addresses() {
        let check = |object: ObjectRef, expected: &str| {
            assert_eq!(object.path().as_deref(), Some(expected));
        };
        check(
            ObjectRef::named("pods", "default", "p"),
            "/api/v1/namespaces/default/pods/p",
        );
        check(
            ObjectRef::named("persistentvolumes", "", "v"),
            "/api/v1/persistentvolumes/v",
        );
        check(
            ObjectRef::ours("backups.longhorn.io", "b"),
            "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/backups/b",
        );
    }
}
