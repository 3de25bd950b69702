//! GET of a collection: which objects, of which moment, and where the next page starts.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use revision_store::{Object as Stored, Range, ReadError, Revision};
use serde_json::{Value, json};

use super::Call;
use crate::catalog::Resource;
use crate::core::{read, read_error};
use crate::field_error::FieldError;
use crate::request::Query;
use crate::selector::{ByName, FieldSelector, LabelSelector};
use crate::status::ApiError;

/// Which objects a list, a watch or a deletecollection is about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl Selection {
    pub fn parse(query: &Query, resource: &Resource, name: Option<&str>) -> Result<Self, ApiError> {
        let labels = LabelSelector::parse(query.get("labelSelector").unwrap_or_default())?;
        let supported: Vec<&str> = resource
            .selectable_fields
            .iter()
            .map(String::as_str)
            .collect();
        let mut text = query.get("fieldSelector").unwrap_or_default().to_owned();
        if let Some(name) = name {
            text.push_str(&format!(",metadata.name={name}"));
        }
        let fields = FieldSelector::parse(&text, &supported).map_err(|error| {
            ApiError::bad_request(format!(
                "Unable to find {:?} that match label selector {:?}, field selector {text:?}: {error}",
                format!("{}, Resource={}", resource.api_version(), resource.plural),
                query.get("labelSelector").unwrap_or_default(),
            ))
        })?;
        Ok(Self { labels, fields })
    }

    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Looks at no more of the object than it has to: its name, then its labels, and only then all of it.
    pub fn matches(&self, resource: &Resource, stored: &Stored) -> bool {
        let name = stored.key.rsplit('/').next().unwrap_or_default();
        let by_name = self.fields.by_name(name);
        by_name != ByName::NotSelected
            && self.labels.matches(&stored.value)
            && (by_name == ByName::Selected || self.fields.matches(&read(resource, stored)))
    }
}

/// The parameters of a list.
#[derive(Clone, Debug, Default)]
pub struct ListParameters {
    pub selection: Selection,
    limit: Option<usize>,
    position: Position,
}

/// Which moment to show, and from where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Position {
    /// The newest state, which is also not older than any state that exists.
    #[default]
    Newest,
    NotOlderThan(Revision),
    Exact(Revision),
    /// The page behind this key of the state at this revision.
    After {
        revision: Revision,
        key: String,
    },
}

impl ListParameters {
    pub fn parse(query: &Query, resource: &Resource) -> Result<Self, ApiError> {
        let selection = Selection::parse(query, resource, None)?;
        let limit = query.number("limit")?.filter(|limit| *limit > 0);
        let limit = limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let version = parse_version(query)?;
        let position = match (
            query.get("continue"),
            version,
            query.get("resourceVersionMatch"),
        ) {
            (Some(_), Some(version), _) if version.0 != 0 => {
                return Err(ApiError::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            (Some(_), _, Some(_)) => {
                return Err(match_forbidden("is forbidden when continue is provided"));
            }
            (Some(token), _, None) => parse_continue(token)?,
            (None, None, None) => Position::Newest,
            (None, None, Some(_)) => {
                return Err(match_forbidden(
                    "is forbidden unless resourceVersion is provided",
                ));
            }
            (None, Some(version), Some("Exact")) if version.0 == 0 => {
                return Err(match_forbidden(
                    "\"exact\" is forbidden for resourceVersion \"0\"",
                ));
            }
            (None, Some(version), Some("Exact")) => Position::Exact(version),
            (None, Some(version), Some("NotOlderThan")) => Position::NotOlderThan(version),
            (None, Some(_), Some(other)) => {
                let supported = ["", "Exact", "NotOlderThan"];
                let error =
                    FieldError::not_supported("resourceVersionMatch", other.into(), &supported);
                return Err(ApiError::invalid_options("ListOptions", &[error]));
            }
            // Without a rule of its own a limited list of a given version is that version exactly.
            (None, Some(version), None) if limit.is_some() && version.0 != 0 => {
                Position::Exact(version)
            }
            (None, Some(version), None) => Position::NotOlderThan(version),
        };
        Ok(Self {
            selection,
            limit,
            position,
        })
    }
}

/// The match that a list asks for is not possible with the rest of its parameters.
fn match_forbidden(why: &str) -> ApiError {
    options_forbidden(format!("resourceVersionMatch {why}"))
}

pub(super) fn options_forbidden(why: impl Into<String>) -> ApiError {
    let error = FieldError::forbidden("resourceVersionMatch", why);
    ApiError::invalid_options("ListOptions", &[error])
}

/// `resourceVersion` of a list or watch.
pub(crate) fn parse_version(query: &Query) -> Result<Option<Revision>, ApiError> {
    query
        .get("resourceVersion")
        .map(|text| {
            text.parse().map_err(|_| {
                ApiError::bad_request(format!(
                    "resourceVersion: Invalid value: {text:?}: must be a whole number"
                ))
            })
        })
        .transpose()
}

fn parse_continue(token: &str) -> Result<Position, ApiError> {
    let invalid =
        || ApiError::bad_request("continue key is not valid: start a new list without it");
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| invalid())?;
    let token: Value = serde_json::from_slice(&bytes).map_err(|_| invalid())?;
    let revision = token["rv"]
        .as_u64()
        .filter(|revision| *revision > 0)
        .ok_or_else(invalid)?;
    let key = token["start"].as_str().ok_or_else(invalid)?.to_owned();
    Ok(Position::After {
        revision: Revision(revision),
        key,
    })
}

fn continue_token(revision: Revision, key: &str) -> String {
    URL_SAFE_NO_PAD
        .encode(json!({"v": "meta.k8s.io/v1", "rv": revision.0, "start": key}).to_string())
}

/// The objects of one page, still in their stored form.
#[derive(Debug)]
pub struct Listing {
    pub revision: Revision,
    pub objects: Vec<Arc<Stored>>,
    pub continue_token: Option<String>,
    pub remaining: Option<usize>,
}

impl Call {
    pub fn list(&self, parameters: &ListParameters) -> Result<Listing, ApiError> {
        let prefix = self.resource.key_prefix_in(self.namespace.as_deref());
        let newest = self.core.store.current_revision();
        let (at, after) = match &parameters.position {
            Position::Newest => (None, None),
            Position::NotOlderThan(version) if *version > newest => {
                return Err(read_error(ReadError::Future {
                    requested: *version,
                    current: newest,
                }));
            }
            Position::NotOlderThan(_) => (None, None),
            Position::Exact(version) => (Some(*version), None),
            // The token is the client's: it must not lead out of this collection.
            Position::After { revision, key } => (Some(*revision), Some(format!("{prefix}{key}"))),
        };
        let selective = !parameters.selection.is_everything();
        let page = self
            .core
            .store
            .range(&Range {
                prefix: &prefix,
                after: after.as_deref(),
                // A selective page may have to look at many objects to find its few.
                limit: parameters.limit.filter(|_| !selective),
                at,
            })
            .map_err(|error| expired_page(error, after.is_some()))?;
        let mut objects = page.objects;
        let mut remaining = page.remaining;
        if selective {
            let limit = parameters.limit.unwrap_or(usize::MAX);
            objects.retain(|stored| parameters.selection.matches(&self.resource, stored));
            remaining = objects.len().saturating_sub(limit);
            objects.truncate(limit);
        }
        let continue_token = match objects.last() {
            Some(last) if remaining > 0 => Some(continue_token(
                page.revision,
                last.key.strip_prefix(&prefix).unwrap_or_default(),
            )),
            _ => None,
        };
        let remaining = (continue_token.is_some() && !selective).then_some(remaining);
        Ok(Listing {
            revision: page.revision,
            objects,
            continue_token,
            remaining,
        })
    }

    /// Every object that the parameters select, on however many pages.
    pub(super) fn matching(
        &self,
        parameters: &ListParameters,
    ) -> Result<Vec<Arc<Stored>>, ApiError> {
        Ok(self.list(parameters)?.objects)
    }
}

fn expired_page(error: ReadError, paging: bool) -> ApiError {
    match error {
        ReadError::Compacted { .. } if paging => ApiError::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.",
        ),
        other => read_error(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;

    fn check(query: &str, expected: &Result<Position, u16>) {
        let pods = Catalog::new([]).find("", "v1", "pods").unwrap();
        let found = ListParameters::parse(&Query::parse(Some(query)), &pods);
        assert_eq!(
            found.map(|p| p.position).map_err(|e| e.code),
            *expected,
            "{query}"
        );
    }

    #[test]
    fn positions() {
        check("", &Ok(Position::Newest));
        check(
            "resourceVersion=0",
            &Ok(Position::NotOlderThan(Revision(0))),
        );
        check(
            "resourceVersion=7",
            &Ok(Position::NotOlderThan(Revision(7))),
        );
        check(
            "resourceVersion=7&limit=2",
            &Ok(Position::Exact(Revision(7))),
        );
        check(
            "resourceVersion=7&resourceVersionMatch=Exact",
            &Ok(Position::Exact(Revision(7))),
        );
        check("resourceVersion=0&resourceVersionMatch=Exact", &Err(422));
        check("resourceVersionMatch=Exact", &Err(422));
        check("resourceVersion=x", &Err(400));
        check("continue=nonsense", &Err(400));
        check("limit=-1", &Ok(Position::Newest));
        check("limit=many", &Err(400));
        check("fieldSelector=status.nothing%3D1", &Err(400));
        let token = continue_token(Revision(9), "default/a");
        check(
            &format!("continue={token}"),
            &Ok(Position::After {
                revision: Revision(9),
                key: "default/a".into(),
            }),
        );
        check(&format!("continue={token}&resourceVersion=3"), &Err(400));
    }
}
