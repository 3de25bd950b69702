//! Kubernetes' strategic merge patch: a merge patch that knows from the schema which lists are keyed
//! and which are sets, and that can say more than "set" and "remove" by directives inside it.
//!
//! | directive | where | meaning |
//! |---|---|---|
//! | `$patch: replace` | an object, or an element of a keyed list | replace the whole object or list |
//! | `$patch: delete` | an object, or an element of a keyed list | empty the object; drop that element |
//! | `$retainKeys: [..]` | an object | drop every member that is not named |
//! | `$deleteFromPrimitiveList/f: [..]` | beside list `f` | drop these from a set |
//! | `$setElementOrder/f: [..]` | beside list `f` | put the list into this order |

mod directives;
mod lists;

use std::collections::HashSet;

use serde_json::{Map, Value};
use thiserror::Error;

use self::directives::{
    DELETE_FROM_LIST, Directive, SET_ELEMENT_ORDER, is_directive, without_directives,
};
use super::Rejection;
use super::apply::shape::declared_field;
use super::bounds::{TooDeep, check_depth};
use super::values::cannot_unmarshal;
use crate::schema::Schema;

/// Why a strategic merge patch was refused. The texts are the real server's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StrategicPatchError {
    #[error("{0}")]
    NotAnObject(String),
    #[error("the object or the patch is too deep")]
    TooDeep(#[source] TooDeep),
    #[error("lists of lists are not supported")]
    ListOfLists,
    #[error("invalid patch format of primitive list")]
    BadDeletionList,
    #[error("invalid patch format of setElementOrder list")]
    BadOrderList,
    #[error("invalid patch format of retainKeys")]
    BadRetainKeys,
    #[error("unknown patch type: {directive} in map: {map}")]
    UnknownDirective { directive: String, map: String },
    #[error("merging lists cannot yet be specified in the patch")]
    MergeDirectiveInList,
    #[error("map: {map} does not contain declared merge key: {key}")]
    NoMergeKey { map: String, key: String },
    #[error("cannot merge lists without merge key for type map")]
    UndeclaredMergeKey,
    #[error("list element types are not identical: {lists}")]
    MixedList { lists: String },
    #[error("expected a {expected}, but received a {received}")]
    WrongType {
        expected: &'static str,
        received: &'static str,
    },
    #[error("The order in patch list:\n{patch}\n doesn't match $setElementOrder list:\n{order}\n")]
    OrderMismatch { patch: String, order: String },
}

impl StrategicPatchError {
    /// What the client is told. Where the real server answers 500 for a patch that names no merge
    /// key or an unknown directive, ours says 400: the request is at fault.
    pub fn rejection(&self) -> Rejection {
        match self {
            Self::ListOfLists => Rejection::unprocessable(),
            Self::TooDeep(source) => Rejection::bad_request(source.to_string()),
            other => Rejection::bad_request(other.to_string()),
        }
    }
}

/// The live object with the patch merged into it as the kind's schema says.
pub fn apply(live: &Value, patch: &Value, schema: &Schema) -> Result<Value, StrategicPatchError> {
    check_depth(live).map_err(StrategicPatchError::TooDeep)?;
    check_depth(patch).map_err(StrategicPatchError::TooDeep)?;
    let (live, patch) = match (live, patch) {
        (Value::Object(live), Value::Object(patch)) => (live, patch),
        // Go decodes null into an empty patch.
        (Value::Object(_), Value::Null) => return Ok(live.clone()),
        (Value::Object(_), other) | (other, _) => {
            let complaint = cannot_unmarshal(other, "value of type map[string]interface {}");
            return Err(StrategicPatchError::NotAnObject(complaint));
        }
    };
    let root = Parent {
        schema: Some(schema),
        is_root: true,
    };
    merge_objects(live.clone(), patch, root).map(Value::Object)
}

/// The object whose fields are merged.
#[derive(Clone, Copy)]
struct Parent<'a> {
    schema: Option<&'a Schema>,
    is_root: bool,
}

impl<'a> Parent<'a> {
    fn below(schema: Option<&'a Schema>) -> Self {
        Self {
            schema,
            is_root: false,
        }
    }
}

/// What the schema says about merging one field.
#[derive(Clone, Copy)]
struct FieldRule<'a> {
    schema: Option<&'a Schema>,
    strategy: ListMerge,
    merge_key: Option<&'a str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ListMerge {
    /// Nothing declared: objects merge, lists are replaced.
    Default,
    Merge,
    Replace,
}

impl<'a> FieldRule<'a> {
    fn of(parent: Parent<'a>, name: &str) -> Self {
        let schema = parent
            .schema
            .and_then(|schema| declared_field(schema, parent.is_root, name));
        let declared = schema
            .and_then(|schema| schema.patch_strategy.as_deref())
            .unwrap_or("");
        let mut strategies = declared.split(',').map(str::trim);
        // `retainKeys` changes what clients send, not how it is merged.
        let strategy = strategies
            .find_map(|strategy| match strategy {
                "merge" => Some(ListMerge::Merge),
                "replace" => Some(ListMerge::Replace),
                _ => None,
            })
            .unwrap_or(ListMerge::Default);
        Self {
            schema,
            strategy,
            merge_key: schema.and_then(|schema| schema.patch_merge_key.as_deref()),
        }
    }

    fn element(&self) -> Option<&'a Schema> {
        self.schema.and_then(|schema| schema.items.as_deref())
    }
}

fn merge_objects(
    mut live: Map<String, Value>,
    patch: &Map<String, Value>,
    parent: Parent<'_>,
) -> Result<Map<String, Value>, StrategicPatchError> {
    match Directive::of(patch)? {
        Some(Directive::Replace) => {
            return Ok(patch
                .iter()
                .filter(|(name, _)| name.as_str() != "$patch")
                .map(|(name, value)| (name.clone(), without_directives(value)))
                .collect());
        }
        Some(Directive::Delete) => return Ok(Map::new()),
        Some(Directive::Merge) => return Err(directives::unknown(patch)),
        None => {}
    }
    directives::retain_keys(&mut live, patch)?;

    let mut ordered = HashSet::new();
    for (key, order) in patch {
        if !key.starts_with(SET_ELEMENT_ORDER) {
            continue;
        }
        let name =
            directives::target(key, SET_ELEMENT_ORDER).ok_or(StrategicPatchError::BadOrderList)?;
        let rule = FieldRule::of(parent, name);
        if let Some(list) = lists::merge_in_order(live.get(name), patch.get(name), order, rule)? {
            live.insert(name.to_owned(), Value::Array(list));
            ordered.insert(name);
        }
    }

    for (name, value) in patch {
        if is_directive(name) || ordered.contains(name.as_str()) {
            continue;
        }
        merge_field(&mut live, name, value, FieldRule::of(parent, name))?;
    }

    // After the fields: what a patch both adds to a set and deletes from it ends up deleted.
    for (key, doomed) in patch {
        if !key.starts_with(DELETE_FROM_LIST) {
            continue;
        }
        let name = directives::target(key, DELETE_FROM_LIST)
            .ok_or(StrategicPatchError::BadDeletionList)?;
        let rule = FieldRule::of(parent, name);
        match (live.get_mut(name), doomed) {
            (_, Value::Null) => {
                live.remove(name);
            }
            (Some(Value::Array(items)), Value::Array(doomed)) => {
                lists::delete_from_set(items, doomed, rule)?;
            }
            (_, Value::Array(_)) => {}
            _ => return Err(StrategicPatchError::BadDeletionList),
        }
    }
    Ok(live)
}

fn merge_field(
    live: &mut Map<String, Value>,
    name: &str,
    patch: &Value,
    rule: FieldRule<'_>,
) -> Result<(), StrategicPatchError> {
    if patch.is_null() {
        live.remove(name);
        return Ok(());
    }
    let merged = match (live.remove(name), patch) {
        (Some(Value::Object(_)), Value::Object(_)) if rule.strategy == ListMerge::Replace => {
            patch.clone()
        }
        (Some(Value::Object(live)), Value::Object(patch)) => {
            Value::Object(merge_objects(live, patch, Parent::below(rule.schema))?)
        }
        (Some(Value::Array(live)), Value::Array(patch)) if rule.strategy == ListMerge::Merge => {
            Value::Array(lists::merge(live, patch, rule)?)
        }
        (_, patch) => without_directives(patch),
    };
    live.insert(name.to_owned(), merged);
    Ok(())
}

#[cfg(test)]
mod tests;
