//! Server-side apply: a manager states the fields it wants, and the server merges them with what
//! others own.
//!
//! One apply is four steps over sets of fields:
//!
//! 1. *merge*: lay the applied object over the live one;
//! 2. *prune*: take away what this manager applied before, applies no longer, and nobody else owns;
//! 3. *conflict*: whatever thereby changed and belongs to someone else is a conflict, unless forced;
//! 4. *record*: the manager owns exactly what it applied, the others lose what changed.

mod compare;
mod fields_v1;
mod last_applied;
mod managers;
mod merge;
pub(super) mod path;
mod set;
pub(super) mod shape;
mod typed;

use serde_json::{Value, json};
use thiserror::Error;

use self::compare::{Comparison, field_set};
pub use self::fields_v1::{parse as parse_fields_v1, serialize as serialize_fields_v1};
pub use self::managers::{ManagerId, Operation};
pub(super) use self::managers::{Managers, Share, remove_from, unowned};
use self::managers::{remove_null_system_metadata, without_managed_fields};
pub use self::path::PathElement;
pub use self::set::{FieldSet, path_text};
use self::shape::Node;
use super::Rejection;
use super::bounds::{TooDeep, check_depth};
use super::values::same;
use crate::schema::Schema;

/// One apply. The applied object is what the client sent, without what the endpoint does not let it
/// set: the server takes `status` out of what is applied to the object itself, and leaves only
/// `status` and the names in what is applied to its status.
#[derive(Clone, Copy, Debug)]
pub struct ApplyRequest<'a> {
    /// The stored object, in the version that is applied. None creates it.
    pub live: Option<&'a Value>,
    pub applied: &'a Value,
    pub manager: &'a str,
    /// Take fields from other managers instead of refusing.
    pub force: bool,
    pub subresource: Option<&'a str>,
    /// RFC 3339, in seconds.
    pub now: &'a str,
    pub schema: &'a Schema,
}

/// Why an apply was refused.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ApplyError {
    #[error("the applied configuration is not an object")]
    NotAnObject,
    #[error("the live or the applied object is too deep")]
    TooDeep(#[source] TooDeep),
    #[error("metadata.managedFields must be nil")]
    ManagedFieldsSet,
    #[error(
        "Incorrect version specified in apply patch. Specified patch version: {specified}, expected: {expected}"
    )]
    WrongVersion { specified: String, expected: String },
    #[error("failed to create typed patch object ({object}): {complaints}")]
    NotOfItsKind { object: String, complaints: String },
    #[error("{}", conflict_message(*.count, .listed))]
    Conflicts {
        count: usize,
        /// The first of them, sorted by owner, then by path.
        listed: Vec<Conflict>,
    },
}

/// So many conflicts, of so many bytes together, are named one by one for each owner: an answer must
/// not dwarf its request.
const CONFLICTS_LISTED_MAX: usize = 1000;
const CONFLICTS_LISTED_BYTES_MAX: usize = 256 * 1024;

/// A field that the apply would change and another manager owns.
#[derive(Clone, Debug, PartialEq)]
pub struct Conflict {
    pub owner: ManagerId,
    pub path: Vec<PathElement>,
}

impl Conflict {
    /// This conflict as one entry of `Status.details.causes`.
    pub fn cause(&self) -> Value {
        json!({
            "reason": "FieldManagerConflict",
            "message": format!("conflict with {}", self.owner.description()),
            "field": path_text(&self.path),
        })
    }
}

impl ApplyError {
    /// What the client is told. Where the real server answers 500 for an object that does not fit
    /// its kind's types, ours says 400 with the same text: the request is at fault.
    pub fn rejection(&self) -> Rejection {
        match self {
            Self::TooDeep(source) => Rejection::bad_request(source.to_string()),
            Self::NotAnObject
            | Self::ManagedFieldsSet
            | Self::WrongVersion { .. }
            | Self::NotOfItsKind { .. } => Rejection::bad_request(self.to_string()),
            Self::Conflicts { listed, .. } => Rejection {
                code: 409,
                reason: "Conflict",
                message: self.to_string(),
                causes: listed.iter().map(Conflict::cause).collect(),
            },
        }
    }
}

fn conflict_message(count: usize, listed: &[Conflict]) -> String {
    if let (1, [conflict]) = (count, listed) {
        return format!(
            "Apply failed with 1 conflict: conflict with {}: {}",
            conflict.owner.description(),
            path_text(&conflict.path)
        );
    }
    let mut lines = Vec::new();
    let mut owner = None;
    for conflict in listed {
        if owner != Some(&conflict.owner) {
            owner = Some(&conflict.owner);
            lines.push(format!("conflicts with {}:", conflict.owner.description()));
        }
        lines.push(format!("- {}", path_text(&conflict.path)));
    }
    if count > listed.len() {
        lines.push(format!("- and {} more", count - listed.len()));
    }
    format!("Apply failed with {count} conflicts: {}", lines.join("\n"))
}

/// The object that results, with its managedFields. It still has to be defaulted and validated. When
/// nothing changed, neither does any time in it: the result equals the live object.
pub fn apply(request: ApplyRequest<'_>) -> Result<Value, ApplyError> {
    check(&request)?;
    let node = Node::root(request.schema);
    let api_version = request.applied["apiVersion"].as_str().unwrap_or_default();
    let before = request
        .live
        .map_or_else(|| json!({}), without_managed_fields);
    let mut managers = match request.live {
        // What cannot be read was not written by us; its object is as one without any.
        Some(live) => Managers::of(live).unwrap_or_default(),
        None => Managers::default(),
    };
    if managers.is_empty() && request.live.is_some() {
        managers = before_first_apply(&before, api_version, request.now, node);
    }
    for share in managers.0.values_mut() {
        share.fields = share.fields.reconciled(node);
    }
    let mut applied = request.applied.clone();
    remove_null_system_metadata(&mut applied);
    let applying = Applying {
        applied: &applied,
        now: request.now,
        before: &before,
        id: ManagerId::applier(request.manager, request.subresource),
        api_version,
        node,
    };
    let (mut after, managers) = match applying.run(managers.clone(), request.force) {
        Err(conflicts) if request.manager == last_applied::KUBECTL => {
            let unexcused = last_applied::unexcused(conflicts, &before, api_version, node);
            if unexcused.is_empty() {
                applying.run(managers, true)
            } else {
                Err(unexcused)
            }
        }
        outcome => outcome,
    }
    .map_err(listed)?;
    if request.manager == last_applied::KUBECTL {
        last_applied::refresh(&mut after, request.applied);
    }
    managers.write_to(&mut after);
    Ok(after)
}

fn check(request: &ApplyRequest<'_>) -> Result<(), ApplyError> {
    for object in request.live.into_iter().chain([request.applied]) {
        check_depth(object).map_err(ApplyError::TooDeep)?;
        if !object.is_object() {
            return Err(ApplyError::NotAnObject);
        }
    }
    let applied = request.applied;
    if !applied["metadata"]["managedFields"].is_null() {
        return Err(ApplyError::ManagedFieldsSet);
    }
    if let Some(expected) = request.live.and_then(|live| live["apiVersion"].as_str()) {
        let specified = applied["apiVersion"].as_str().unwrap_or_default();
        if specified != expected {
            return Err(ApplyError::WrongVersion {
                specified: specified.to_owned(),
                expected: expected.to_owned(),
            });
        }
    }
    typed::check(applied, Node::root(request.schema)).map_err(|complaints| {
        ApplyError::NotOfItsKind {
            object: name_of(applied),
            complaints,
        }
    })
}

/// `default/web; apps/v1, Kind=Deployment`
fn name_of(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let version = text(&object["apiVersion"]);
    let version = if version.contains('/') {
        version
    } else {
        format!("/{version}")
    };
    format!(
        "{}/{}; {version}, Kind={}",
        text(&object["metadata"]["namespace"]),
        text(&object["metadata"]["name"]),
        text(&object["kind"]),
    )
}

/// An object that nobody managed so far: everything in it belongs to whoever came before.
fn before_first_apply(before: &Value, api_version: &str, now: &str, node: Node<'_>) -> Managers {
    let fields = changes(None, before, node).set().difference(&unowned());
    let mut managers = Managers::default();
    if !fields.is_empty() {
        managers.0.insert(
            ManagerId::updater("before-first-apply", api_version, None),
            Share {
                fields,
                api_version: api_version.to_owned(),
                time: Some(now.to_owned()),
            },
        );
    }
    managers
}

/// What turns one object into another, or makes it, apart from what is always there.
pub(super) fn changes(before: Option<&Value>, after: &Value, node: Node<'_>) -> Comparison {
    let mut before = before.map_or_else(|| json!({}), without_managed_fields);
    let mut after = without_managed_fields(after);
    node.fill_structs(&mut before);
    node.fill_structs(&mut after);
    Comparison::of(&before, &after, node)
}

struct Applying<'a> {
    applied: &'a Value,
    now: &'a str,
    before: &'a Value,
    id: ManagerId,
    api_version: &'a str,
    node: Node<'a>,
}

impl Applying<'_> {
    fn run(&self, mut managers: Managers, force: bool) -> Result<(Value, Managers), Contested> {
        let merged = merge::merge(self.before, self.applied, self.node);
        let fields = field_set(self.applied, self.node);
        let last = managers.0.remove(&self.id);
        let after = match &last {
            Some(last) if !last.fields.difference(&fields).is_empty() => {
                self.prune(merged, &last.fields, &fields, &managers)
            }
            Some(_) | None => merged,
        };
        let change = Comparison::of(self.before, &after, self.node);
        if !force {
            let conflicts = conflicts(&managers, &change);
            if !conflicts.is_empty() {
                return Err(conflicts);
            }
        }
        managers.take_changed(&change);
        let fields = fields.difference(&unowned());
        if !fields.is_empty() {
            // A time is that of the manager's last change of the object: an apply that only shares what is there has none.
            let time = if same(self.before, &after) {
                last.and_then(|last| last.time)
            } else {
                Some(self.now.to_owned())
            };
            let share = Share {
                fields,
                api_version: self.api_version.to_owned(),
                time,
            };
            managers.0.insert(self.id.clone(), share);
        }
        Ok((after, managers))
    }

    /// Takes away what this manager applied last time, unless somebody else or its new
    /// configuration has it. What it never owned stays, except inside a struct that goes whole.
    fn prune(&self, merged: Value, last: &FieldSet, fields: &FieldSet, others: &Managers) -> Value {
        let node = self.node;
        let last = last.with_named_parents(node);
        let mut pruned = merged.clone();
        merge::remove(&mut pruned, &last, node);

        let owned = others
            .0
            .values()
            .fold(fields.clone(), |owned, share| owned.union(&share.fields))
            .with_named_parents(node);
        let merged_fields = field_set(&merged, node).with_named_parents(node);
        let pruned_fields = field_set(&pruned, node).with_named_parents(node);
        let mut with_owned = merged.clone();
        let gone = merged_fields.difference(&pruned_fields.union(&owned));
        merge::remove(&mut with_owned, &gone, node);

        let kept_fields = field_set(&with_owned, node).with_named_parents(node);
        let gone = merged_fields.difference(&kept_fields).intersection(&last);
        let mut result = merged;
        merge::remove(&mut result, &gone, node);
        result
    }
}

/// What each of the other managers would lose.
type Contested = Vec<(ManagerId, FieldSet)>;

fn conflicts(managers: &Managers, change: &Comparison) -> Contested {
    let changed = change.set();
    managers
        .0
        .iter()
        .map(|(owner, share)| (owner.clone(), share.fields.intersection(&changed)))
        .filter(|(_, fields)| !fields.is_empty())
        .collect()
}

fn listed(contested: Contested) -> ApplyError {
    let count = contested.iter().map(|(_, fields)| fields.len()).sum();
    let mut listed = Vec::new();
    for (owner, fields) in contested {
        let paths = fields.first_paths(CONFLICTS_LISTED_MAX, CONFLICTS_LISTED_BYTES_MAX);
        listed.extend(paths.into_iter().map(|path| {
            let owner = owner.clone();
            Conflict { owner, path }
        }));
    }
    ApplyError::Conflicts { count, listed }
}

#[cfg(test)]
mod tests;
