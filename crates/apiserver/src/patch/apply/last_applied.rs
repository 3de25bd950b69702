//! Moving an object from kubectl's client-side apply to server-side apply. The annotation that
//! client-side apply left says which fields kubectl set: those it may take back without a conflict.

use serde_json::Value;

use super::shape::Node;
use super::{Comparison, Contested, field_set};
use crate::patch::bounds::check_depth;

/// Only this manager is trusted to continue what client-side apply began; another name opts out.
pub(super) const KUBECTL: &str = "kubectl";

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// All annotations of an object together may take this much.
const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;

/// The conflicts that are not about fields which kubectl itself last set and nobody changed since.
pub(super) fn unexcused(
    mut conflicts: Contested,
    live: &Value,
    api_version: &str,
    node: Node<'_>,
) -> Contested {
    let Some(last_applied) = annotated(live, api_version) else {
        return conflicts;
    };
    let change = Comparison::of(&last_applied, live, node);
    let excused = field_set(&last_applied, node)
        .difference(&change.set())
        .difference(&change.removed);
    for (_, fields) in &mut conflicts {
        *fields = fields.difference(&excused);
    }
    conflicts.retain(|(_, fields)| !fields.is_empty());
    conflicts
}

/// Keeps the annotation, where there is one, in step with what is applied.
pub(super) fn refresh(object: &mut Value, applied: &Value) {
    let Some(Value::Object(annotations)) = object.pointer_mut("/metadata/annotations") else {
        return;
    };
    match annotations.get(ANNOTATION) {
        Some(Value::String(text)) if !text.is_empty() => {}
        _ => return,
    }
    let mut applied = applied.clone();
    if let Some(Value::Object(annotations)) = applied.pointer_mut("/metadata/annotations") {
        annotations.remove(ANNOTATION);
    }
    annotations.insert(ANNOTATION.to_owned(), Value::from(format!("{applied}\n")));
    let size: usize = annotations
        .iter()
        .map(|(name, value)| name.len() + value.as_str().map_or(0, str::len))
        .sum();
    if size > ANNOTATIONS_BYTES_MAX {
        annotations.remove(ANNOTATION);
    }
}

fn annotated(live: &Value, api_version: &str) -> Option<Value> {
    let text = live["metadata"]["annotations"][ANNOTATION].as_str()?;
    let last_applied: Value = serde_json::from_str(text).ok()?;
    check_depth(&last_applied).ok()?;
    let usable = last_applied.is_object() && last_applied["apiVersion"] == api_version;
    usable.then_some(last_applied)
}
