//! Merging lists: keyed lists of objects and sets of scalars, and the order of what comes out.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::directives::{Directive, without_directives};
use super::{FieldRule, ListMerge, Parent, StrategicPatchError, merge_objects};
use crate::patch::values::{go_text, go_type, identity};

/// Merges a list whose schema says `merge`. What the patch names comes in the patch's order, the
/// rest stays where it was relative to it.
pub(super) fn merge(
    live: Vec<Value>,
    patch: &[Value],
    rule: FieldRule<'_>,
) -> Result<Vec<Value>, StrategicPatchError> {
    let Some(kind) = ElementKind::of(&live, patch)? else {
        return Ok(live);
    };
    let (live, patch, merged) = match kind {
        ElementKind::Scalar => {
            let mut seen = HashSet::new();
            let merged = live
                .iter()
                .chain(patch)
                .filter(|item| seen.insert(identity(item)))
                .cloned()
                .collect();
            (live, patch.to_vec(), merged)
        }
        ElementKind::Object => {
            let key = rule
                .merge_key
                .ok_or(StrategicPatchError::UndeclaredMergeKey)?;
            let (live, patch) = carry_out_directives(live, patch, key)?;
            let merged = merge_keyed(live.clone(), &patch, key, rule)?;
            (live, patch, merged)
        }
    };
    let key = KeyOf::new(kind, rule);
    in_order(merged, &key.all(&patch)?, &key.all(&live)?, &key)
}

/// Merges a list that a `$setElementOrder` is about. Nothing comes back when the list is in neither.
pub(super) fn merge_in_order(
    live: Option<&Value>,
    patch: Option<&Value>,
    order: &Value,
    rule: FieldRule<'_>,
) -> Result<Option<Vec<Value>>, StrategicPatchError> {
    let order = list(order)?;
    let live = live.map(list).transpose()?;
    let patch = patch.map(list).transpose()?;
    if live.is_none() && patch.is_none() {
        return Ok(None);
    }
    let live_items = live.unwrap_or_default();
    let patch_items = patch.unwrap_or_default();
    let Some(kind) = ElementKind::of(live_items, patch_items)? else {
        return Ok(Some(Vec::new()));
    };
    if kind == ElementKind::Object && rule.merge_key.is_none() {
        return Err(StrategicPatchError::UndeclaredMergeKey);
    }
    let key = KeyOf::new(kind, rule);
    check_order(patch_items, order, &key)?;
    let merged = match (live, patch) {
        (Some(live), Some(patch)) if rule.strategy == ListMerge::Merge => {
            merge(live.to_vec(), patch, rule)?
        }
        (Some(live), None) => live.to_vec(),
        _ => match without_directives(&Value::Array(patch_items.to_vec())) {
            Value::Array(items) => items,
            _ => Vec::new(),
        },
    };
    in_order(merged, &key.all(order)?, &key.all(live_items)?, &key).map(Some)
}

/// Carries out a `$deleteFromPrimitiveList`. A list that is no set is left to the patch itself.
pub(super) fn delete_from_set(
    items: &mut Vec<Value>,
    doomed: &[Value],
    rule: FieldRule<'_>,
) -> Result<(), StrategicPatchError> {
    if rule.strategy != ListMerge::Merge
        || ElementKind::of(items, doomed)? != Some(ElementKind::Scalar)
    {
        return Ok(());
    }
    let doomed: HashSet<String> = doomed.iter().map(identity).collect();
    items.retain(|item| !doomed.contains(&identity(item)));
    Ok(())
}

fn list(value: &Value) -> Result<&[Value], StrategicPatchError> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(StrategicPatchError::WrongType {
            expected: "[]interface {}",
            received: go_type(other),
        }),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ElementKind {
    Scalar,
    Object,
}

impl ElementKind {
    /// All elements of both lists must be of one type. Nothing comes back when there are none.
    fn of(live: &[Value], patch: &[Value]) -> Result<Option<Self>, StrategicPatchError> {
        let mut elements = live.iter().chain(patch);
        let Some(first) = elements.next() else {
            return Ok(None);
        };
        let kind = match first {
            Value::Array(_) => return Err(StrategicPatchError::ListOfLists),
            Value::Object(_) => Self::Object,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Self::Scalar,
        };
        if elements.any(|other| go_type(other) != go_type(first)) {
            let lists = Value::Array(vec![
                Value::from(live.to_vec()),
                Value::from(patch.to_vec()),
            ]);
            let lists = go_text(&lists);
            return Err(StrategicPatchError::MixedList { lists });
        }
        Ok(Some(kind))
    }
}

/// What makes two elements of a list the same one.
enum KeyOf<'a> {
    Itself,
    Member(&'a str),
}

impl<'a> KeyOf<'a> {
    fn new(kind: ElementKind, rule: FieldRule<'a>) -> Self {
        match (kind, rule.merge_key) {
            (ElementKind::Object, Some(key)) => Self::Member(key),
            _ => Self::Itself,
        }
    }

    fn of(&self, item: &Value) -> Result<String, StrategicPatchError> {
        match self {
            Self::Itself => Ok(identity(item)),
            Self::Member(key) => {
                let Value::Object(fields) = item else {
                    return Err(StrategicPatchError::WrongType {
                        expected: "map[string]interface {}",
                        received: go_type(item),
                    });
                };
                let value = fields
                    .get(*key)
                    .ok_or_else(|| StrategicPatchError::NoMergeKey {
                        map: go_text(item),
                        key: (*key).to_owned(),
                    })?;
                Ok(identity(value))
            }
        }
    }

    /// Where each key stands first.
    fn all(&self, items: &[Value]) -> Result<HashMap<String, usize>, StrategicPatchError> {
        let mut positions = HashMap::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            positions.entry(self.of(item)?).or_insert(index);
        }
        Ok(positions)
    }
}

/// Takes the elements with `$patch` out of a keyed list's patch and does what they say to the live
/// list.
fn carry_out_directives(
    mut live: Vec<Value>,
    patch: &[Value],
    merge_key: &str,
) -> Result<(Vec<Value>, Vec<Value>), StrategicPatchError> {
    let mut kept = Vec::new();
    let mut doomed = HashSet::new();
    let mut replace = false;
    let key = KeyOf::Member(merge_key);
    for item in patch {
        let empty = Map::new();
        let fields = item.as_object().unwrap_or(&empty);
        match Directive::of(fields)? {
            None => kept.push(item.clone()),
            Some(Directive::Delete) => {
                doomed.insert(key.of(item)?);
            }
            Some(Directive::Replace) => replace = true,
            Some(Directive::Merge) => return Err(StrategicPatchError::MergeDirectiveInList),
        }
    }
    if replace {
        return Ok((kept.iter().map(without_directives).collect(), Vec::new()));
    }
    if !doomed.is_empty() {
        live.retain(|item| key.of(item).map_or(true, |key| !doomed.contains(&key)));
    }
    Ok((live, kept))
}

fn merge_keyed(
    mut live: Vec<Value>,
    patch: &[Value],
    merge_key: &str,
    rule: FieldRule<'_>,
) -> Result<Vec<Value>, StrategicPatchError> {
    let key = KeyOf::Member(merge_key);
    let mut positions: HashMap<String, usize> = HashMap::new();
    for (index, item) in live.iter().enumerate() {
        // An element of the live list without the key cannot be meant by any patch.
        if let Ok(found) = key.of(item) {
            positions.entry(found).or_insert(index);
        }
    }
    for item in patch {
        let found = key.of(item)?;
        match (positions.get(&found), item) {
            (Some(index), Value::Object(patch)) => {
                let old = match live[*index].take() {
                    Value::Object(old) => old,
                    _ => Map::new(),
                };
                live[*index] =
                    Value::Object(merge_objects(old, patch, Parent::below(rule.element()))?);
            }
            _ => {
                positions.insert(found, live.len());
                live.push(without_directives(item));
            }
        }
    }
    Ok(live)
}

/// The elements that `first` names in its order, interleaved with the others, which stay where they
/// were in the live list as far as the two orders agree.
fn in_order(
    merged: Vec<Value>,
    first: &HashMap<String, usize>,
    live: &HashMap<String, usize>,
    key: &KeyOf<'_>,
) -> Result<Vec<Value>, StrategicPatchError> {
    let mut named = Vec::new();
    let mut others = Vec::new();
    for item in merged {
        let found = key.of(&item)?;
        let place = live.get(&found).copied();
        match first.get(&found) {
            Some(rank) => named.push((*rank, place, item)),
            None => others.push((place, item)),
        }
    }
    named.sort_by_key(|(rank, _, _)| *rank);
    others.sort_by_key(|(place, _)| place.unwrap_or(usize::MAX));

    let mut result = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for (_, named_place, item) in named {
        while let Some((place, _)) = others.peek() {
            let comes_first =
                matches!((place, named_place), (Some(place), Some(named)) if *place < named);
            match others.next_if(|_| comes_first) {
                Some((_, other)) => result.push(other),
                None => break,
            }
        }
        result.push(item);
    }
    result.extend(others.map(|(_, item)| item));
    Ok(result)
}

/// What the patch sets must come in the order that it asks for.
fn check_order(
    patch: &[Value],
    order: &[Value],
    key: &KeyOf<'_>,
) -> Result<(), StrategicPatchError> {
    let mut wanted = order.iter();
    if order.is_empty() {
        return Ok(());
    }
    for item in patch {
        if item.get("$patch").is_some() {
            continue;
        }
        let found = key.of(item)?;
        let mut matched = false;
        for candidate in wanted.by_ref() {
            if key.of(candidate)? == found {
                matched = true;
                break;
            }
        }
        if !matched {
            return Err(StrategicPatchError::OrderMismatch {
                patch: go_text(&Value::Array(patch.to_vec())),
                order: go_text(&Value::Array(order.to_vec())),
            });
        }
    }
    Ok(())
}
