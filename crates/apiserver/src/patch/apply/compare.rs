//! Which fields of an object are there, and which differ between two.

use std::collections::BTreeMap;

use serde_json::Value;

use super::path::PathElement;
use super::set::FieldSet;
use super::shape::{Node, Shape};
use crate::patch::values::same;

/// The fields that an applied object sets.
pub(in crate::patch) fn field_set(value: &Value, node: Node<'_>) -> FieldSet {
    let mut set = FieldSet::default();
    match (node.shape(value), value) {
        (Shape::Map, Value::Object(fields)) => {
            for (name, field) in fields {
                let below = node.field(name);
                let is_leaf = below.shape(field) == Shape::Leaf;
                // An empty list counts too: otherwise applying one twice would take it away.
                if is_leaf || is_hollow(Some(field)) || !node.names(name) {
                    set.insert_member(PathElement::field(name));
                }
                set.insert_below(PathElement::field(name), field_set(field, below));
            }
        }
        (Shape::List, Value::Array(items)) => {
            for item in items {
                if let Ok(element) = node.element(item) {
                    set.insert_member(element.clone());
                    set.insert_below(element, field_set(item, node.items()));
                }
            }
        }
        _ => {}
    }
    set
}

/// How a second object differs from a first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::patch) struct Comparison {
    pub(in crate::patch) added: FieldSet,
    pub(in crate::patch) modified: FieldSet,
    pub(in crate::patch) removed: FieldSet,
}

impl Comparison {
    pub(in crate::patch) fn of(before: &Value, after: &Value, node: Node<'_>) -> Self {
        // Controllers write what is there already more often than anything else.
        if same(before, after) {
            return Self::default();
        }
        let (comparison, _) = compare(Some(before), Some(after), node);
        comparison
    }

    /// What the second object sets that the first did not have so.
    pub(in crate::patch) fn set(&self) -> FieldSet {
        self.modified.union(&self.added)
    }

    fn record(&mut self, element: PathElement, below: Comparison, change: Option<Change>) {
        match change {
            Some(Change::Added) => self.added.insert_member(element.clone()),
            Some(Change::Modified) => self.modified.insert_member(element.clone()),
            Some(Change::Removed) => self.removed.insert_member(element.clone()),
            None => {}
        }
        self.added.insert_below(element.clone(), below.added);
        self.modified.insert_below(element.clone(), below.modified);
        self.removed.insert_below(element, below.removed);
    }

    fn absorb(&mut self, other: &Comparison) {
        self.added = self.added.union(&other.added);
        self.modified = self.modified.union(&other.modified);
        self.removed = self.removed.union(&other.removed);
    }
}

/// What happened to one place as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Added,
    Modified,
    Removed,
}

fn compare(
    before: Option<&Value>,
    after: Option<&Value>,
    node: Node<'_>,
) -> (Comparison, Option<Change>) {
    let presence = match (before, after) {
        (None, Some(_)) => Some(Change::Added),
        (Some(_), None) => Some(Change::Removed),
        (Some(_), Some(_)) | (None, None) => None,
    };
    let leaf_change = || match (before, after) {
        (Some(before), Some(after)) if !same(before, after) => Some(Change::Modified),
        _ => presence,
    };
    // Nothing inside either: the difference between `{}`, null and absent is all there is.
    if is_hollow(before) && is_hollow(after) {
        return (Comparison::default(), leaf_change());
    }
    let shape_before = before.map(|value| node.shape(value));
    let shape_after = after.map(|value| node.shape(value));
    match (shape_before, shape_after) {
        (Some(Shape::Leaf) | None, Some(Shape::Leaf) | None) => {
            (Comparison::default(), leaf_change())
        }
        (Some(Shape::Map) | None, Some(Shape::Map) | None) => {
            (compare_maps(before, after, node), presence)
        }
        (Some(Shape::List) | None, Some(Shape::List) | None) => {
            (compare_lists(before, after, node), presence)
        }
        // One turned into the other: all parts of the old are gone, all of the new are there.
        _ => {
            let (mut parts, _) = compare(before, None, node);
            let (added, _) = compare(None, after, node);
            parts.absorb(&added);
            (parts, Some(Change::Modified))
        }
    }
}

fn is_hollow(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(fields)) => fields.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_)) => false,
    }
}

fn compare_maps(before: Option<&Value>, after: Option<&Value>, node: Node<'_>) -> Comparison {
    let empty = serde_json::Map::new();
    let before = before.and_then(Value::as_object).unwrap_or(&empty);
    let after = after.and_then(Value::as_object).unwrap_or(&empty);
    let mut result = Comparison::default();
    let only_after = after.keys().filter(|name| !before.contains_key(*name));
    for name in before.keys().chain(only_after) {
        let (below, change) = compare(before.get(name), after.get(name), node.field(name));
        result.record(PathElement::field(name), below, change);
    }
    result
}

fn compare_lists(before: Option<&Value>, after: Option<&Value>, node: Node<'_>) -> Comparison {
    let mut elements: BTreeMap<PathElement, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
    for item in before.and_then(Value::as_array).into_iter().flatten() {
        if let Ok(element) = node.element(item) {
            elements.entry(element).or_default().0.push(item);
        }
    }
    for item in after.and_then(Value::as_array).into_iter().flatten() {
        if let Ok(element) = node.element(item) {
            elements.entry(element).or_default().1.push(item);
        }
    }
    let mut result = Comparison::default();
    for (element, (before, after)) in elements {
        let (below, change) = match (before.as_slice(), after.as_slice()) {
            ([before], [after]) => compare(Some(before), Some(after), node.items()),
            ([before], []) => compare(Some(before), None, node.items()),
            ([], [after]) => compare(None, Some(after), node.items()),
            // Duplicates, which only unvalidated lists have, change as one.
            (before, []) => (
                Comparison::default(),
                (!before.is_empty()).then_some(Change::Removed),
            ),
            ([], _) => (Comparison::default(), Some(Change::Added)),
            (before, after) => {
                let equal = before.len() == after.len()
                    && before
                        .iter()
                        .zip(after)
                        .all(|(left, right)| same(left, right));
                (Comparison::default(), (!equal).then_some(Change::Modified))
            }
        };
        result.record(element, below, change);
    }
    result
}
