//! Who set which field, for every change that is not an apply: create, update and other patches.

use serde_json::Value;

use super::apply::shape::Node;
use super::apply::{ManagerId, Managers, Share, changes, remove_from, unowned};
use super::bounds::check_depth;
use crate::schema::Schema;

/// More updaters than this, and the oldest are merged into one named `ancient-changes`.
const UPDATERS_MAX: usize = 10;

/// Writes into `after` the managedFields that follow from changing `before` into it.
///
/// Call it last, on the object as it will be stored: defaulted, with what the endpoint does not
/// change put back. `after` may carry managedFields of the client: an empty list or one empty entry
/// resets them, valid ones take the place of the stored ones, others are ignored. On subresources
/// they are always ignored.
pub fn track_update(
    before: Option<&Value>,
    after: &mut Value,
    manager: &str,
    api_version: &str,
    subresource: Option<&str>,
    now: &str,
    schema: &Schema,
) {
    if check_depth(after).is_err() || before.is_some_and(|before| check_depth(before).is_err()) {
        keep(before, after);
        return;
    }
    let mut managers = managers_for(before, after, subresource.is_some());
    remove_from(after);
    if managers.is_empty() && before.is_some() {
        // Nobody is tracked until the next apply, which gives everything to `before-first-apply`.
        return;
    }
    let node = Node::root(schema);
    for share in managers.0.values_mut() {
        share.fields = share.fields.reconciled(node);
    }
    let change = changes(before, after, node);
    managers.take_changed(&change);
    let fields = change
        .set()
        .difference(&change.removed)
        .difference(&unowned());
    if !fields.is_empty() {
        let id = ManagerId::updater(manager, api_version, subresource);
        let fields = match managers.0.get(&id) {
            Some(share) => share.fields.union(&fields),
            None => fields,
        };
        let share = Share {
            fields,
            api_version: api_version.to_owned(),
            time: Some(now.to_owned()),
        };
        managers.0.insert(id, share);
    }
    managers.cap_updaters(UPDATERS_MAX);
    managers.write_to(after);
}

/// Puts the stored managedFields back if an object differs from the stored one in their times only,
/// and says whether it then is the stored one: a write that changes nothing must not make a new
/// resourceVersion.
pub fn keep_times_if_unchanged(before: &Value, after: &mut Value) -> bool {
    let untimed = |object: &Value| {
        let mut object = object.clone();
        if let Some(Value::Array(entries)) = object.pointer_mut("/metadata/managedFields") {
            for entry in entries.iter_mut().filter_map(Value::as_object_mut) {
                entry.remove("time");
            }
            // Their order depends on the times.
            entries.sort_by_cached_key(Value::to_string);
        }
        object
    };
    if untimed(before) != untimed(after) {
        return false;
    }
    after.clone_from(before);
    true
}

/// The managers to start from: the submitted ones if they are valid, else the stored ones.
fn managers_for(before: Option<&Value>, after: &Value, is_subresource: bool) -> Managers {
    let stored = || {
        before
            .and_then(|before| Managers::of(before).ok())
            .unwrap_or_default()
    };
    if is_subresource {
        return stored();
    }
    if is_reset(&after["metadata"]["managedFields"]) {
        return Managers::default();
    }
    match Managers::of(after) {
        Ok(submitted) if !submitted.is_empty() => submitted,
        Ok(_) | Err(_) => stored(),
    }
}

fn is_reset(submitted: &Value) -> bool {
    match submitted.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([Value::Object(entry)]) => entry.is_empty(),
        Some(_) | None => false,
    }
}

fn keep(before: Option<&Value>, after: &mut Value) {
    remove_from(after);
    let stored = before.map(|before| &before["metadata"]["managedFields"]);
    if let Some(stored @ Value::Array(_)) = stored
        && let Some(metadata) = after.get_mut("metadata").and_then(Value::as_object_mut)
    {
        metadata.insert("managedFields".to_owned(), stored.clone());
    }
}

#[cfg(test)]
mod tests;
