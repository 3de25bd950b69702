//! Laying an applied object over a live one, and taking fields away.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value};

use super::path::PathElement;
use super::set::FieldSet;
use super::shape::{Node, Shape};

/// The live value with everything that the applied one sets.
pub(in crate::patch) fn merge(live: &Value, applied: &Value, node: Node<'_>) -> Value {
    match (node.shape(live), node.shape(applied)) {
        (Shape::Map, Shape::Map) => merge_maps(live, applied, node),
        (Shape::List, Shape::List) => merge_lists(live, applied, node),
        _ => applied.clone(),
    }
}

fn merge_maps(live: &Value, applied: &Value, node: Node<'_>) -> Value {
    let empty = Map::new();
    let live_fields = live.as_object().unwrap_or(&empty);
    let applied_fields = applied.as_object().unwrap_or(&empty);
    if live_fields.is_empty() && applied_fields.is_empty() {
        return applied.clone();
    }
    let mut result = live_fields.clone();
    for (name, applied) in applied_fields {
        let merged = match live_fields.get(name) {
            Some(live) => merge(live, applied, node.field(name)),
            None => applied.clone(),
        };
        result.insert(name.clone(), merged);
    }
    Value::Object(result)
}

/// Elements of both lists come in the applied order; those of the live list alone stay before the
/// shared element that they stood before.
fn merge_lists(live: &Value, applied: &Value, node: Node<'_>) -> Value {
    let live = elements(live, node);
    let applied = elements(applied, node);
    let applied_by_element: BTreeMap<&PathElement, &Value> = applied
        .iter()
        .map(|(element, item)| (element, *item))
        .collect();
    let mut live_by_element: BTreeMap<&PathElement, Option<&Value>> = BTreeMap::new();
    for (element, item) in &live {
        // Duplicates cannot be merged into: the applied element takes the place of all of them.
        live_by_element
            .entry(element)
            .and_modify(|found| *found = None)
            .or_insert(Some(item));
    }
    let merged = |element: &PathElement, applied: &Value| match live_by_element.get(element) {
        Some(Some(live)) => merge(live, applied, node.items()),
        Some(None) | None => applied.clone(),
    };
    let mut shared: VecDeque<&PathElement> = applied
        .iter()
        .map(|(element, _)| element)
        .filter(|element| live_by_element.contains_key(element))
        .collect();
    let mut result = Vec::with_capacity(live.len().max(applied.len()));
    let mut done: BTreeSet<&PathElement> = BTreeSet::new();
    let mut live_items = live.iter().peekable();
    for (element, item) in &applied {
        while let Some((live_element, live_item)) = live_items.peek() {
            if live_element == element {
                live_items.next();
                break;
            }
            if !applied_by_element.contains_key(live_element) {
                result.push((*live_item).clone());
                live_items.next();
            } else if done.contains(live_element) || shared.front() != Some(&live_element) {
                // A shared element comes when its turn in the applied order does.
                live_items.next();
            } else {
                break;
            }
        }
        if shared.front() == Some(&element) {
            shared.pop_front();
        }
        done.insert(element);
        result.push(merged(element, item));
    }
    for (element, item) in live_items {
        if !applied_by_element.contains_key(element) {
            result.push((*item).clone());
        }
    }
    Value::Array(result)
}

fn elements<'a>(list: &'a Value, node: Node<'_>) -> Vec<(PathElement, &'a Value)> {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    items
        .iter()
        .filter_map(|item| Some((node.element(item).ok()?, item)))
        .collect()
}

/// Takes the fields of a set out of a value. A list or object that loses its last part stays, empty:
/// it is not in the set, so it belongs to somebody.
pub(in crate::patch) fn remove(value: &mut Value, doomed: &FieldSet, node: Node<'_>) {
    match (node.shape(value), value) {
        (Shape::Map, Value::Object(fields)) => fields.retain(|name, field| {
            let element = PathElement::field(name);
            if doomed.has_member(&element) {
                return false;
            }
            if let Some(below) = doomed.child(&element) {
                remove(field, below, node.field(name));
            }
            true
        }),
        (Shape::List, Value::Array(items)) => items.retain_mut(|item| {
            let Ok(element) = node.element(item) else {
                return true;
            };
            if doomed.has_member(&element) {
                return false;
            }
            if let Some(below) = doomed.child(&element) {
                remove(item, below, node.items());
            }
            true
        }),
        _ => {}
    }
}
