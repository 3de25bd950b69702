//! The members of a patch that are instructions rather than content.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::StrategicPatchError;
use crate::patch::values::go_text;

pub(super) const SET_ELEMENT_ORDER: &str = "$setElementOrder";
pub(super) const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList";
const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";

/// What `$patch` may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Directive {
    Replace,
    Delete,
    Merge,
}

impl Directive {
    pub(super) fn of(patch: &Map<String, Value>) -> Result<Option<Self>, StrategicPatchError> {
        match patch.get(PATCH) {
            None => Ok(None),
            Some(Value::String(text)) if text == "replace" => Ok(Some(Self::Replace)),
            Some(Value::String(text)) if text == "delete" => Ok(Some(Self::Delete)),
            Some(Value::String(text)) if text == "merge" => Ok(Some(Self::Merge)),
            Some(_) => Err(unknown(patch)),
        }
    }
}

pub(super) fn unknown(patch: &Map<String, Value>) -> StrategicPatchError {
    StrategicPatchError::UnknownDirective {
        directive: patch.get(PATCH).map(go_text).unwrap_or_default(),
        map: go_text(&Value::Object(patch.clone())),
    }
}

/// The list that a `$setElementOrder/…` or `$deleteFromPrimitiveList/…` is about.
pub(super) fn target<'a>(key: &'a str, prefix: &str) -> Option<&'a str> {
    let (found, name) = key.split_once('/')?;
    (found == prefix && !name.is_empty()).then_some(name)
}

/// Carries out `$retainKeys`, which must name everything the patch sets.
pub(super) fn retain_keys(
    live: &mut Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<(), StrategicPatchError> {
    let keys = match patch.get(RETAIN_KEYS) {
        None => return Ok(()),
        Some(Value::Array(keys)) => keys,
        Some(_) => return Err(StrategicPatchError::BadRetainKeys),
    };
    let retained: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let named = |name: &str| {
        retained.contains(name)
            || name == RETAIN_KEYS
            || name.starts_with(DELETE_FROM_LIST)
            || name.starts_with(SET_ELEMENT_ORDER)
    };
    if patch
        .iter()
        .any(|(name, value)| !value.is_null() && !named(name))
    {
        return Err(StrategicPatchError::BadRetainKeys);
    }
    live.retain(|name, _| retained.contains(name.as_str()));
    Ok(())
}

/// A value of a patch that meets nothing in the live object: there is nothing to delete, reorder or
/// replace, so only its content remains.
pub(super) fn without_directives(value: &Value) -> Value {
    match value {
        Value::Object(fields) if deletes(fields) => Value::Object(Map::new()),
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .filter(|(name, value)| !is_directive(name) && !value.is_null())
                .map(|(name, value)| (name.clone(), without_directives(value)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(
            items
                .iter()
                .filter(|item| item.get(PATCH).is_none())
                .map(without_directives)
                .collect(),
        ),
        scalar => scalar.clone(),
    }
}

fn deletes(fields: &Map<String, Value>) -> bool {
    fields
        .get(PATCH)
        .is_some_and(|directive| directive == "delete")
}

pub(super) fn is_directive(name: &str) -> bool {
    name == PATCH
        || name == RETAIN_KEYS
        || name.starts_with(DELETE_FROM_LIST)
        || name.starts_with(SET_ELEMENT_ORDER)
}
