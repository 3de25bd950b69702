//! How deep a value may be, and how much work a patch may cause.

use serde_json::Value;
use thiserror::Error;

/// Deeper values are refused before anything recurses into them. Request bodies cannot be deeper
/// than 128 (the JSON parser's own limit), so only patches that nest values reach this.
pub const DEPTH_MAX: usize = 256;

/// A value is nested more than [`DEPTH_MAX`] levels deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("nested more than {DEPTH_MAX} levels deep")]
pub struct TooDeep;

/// Refuses a value that recursion must not enter.
pub fn check_depth(value: &Value) -> Result<(), TooDeep> {
    let mut budget = usize::MAX;
    match depth_within(value, DEPTH_MAX, &mut budget) {
        Some(_) => Ok(()),
        None => Err(TooDeep),
    }
}

/// The number of levels of a value (a scalar has one), or nothing if there are more than `limit` or
/// counting them costs more nodes than are left in `budget`. Iterative: it is what guards recursion.
pub(super) fn depth_within(value: &Value, limit: usize, budget: &mut usize) -> Option<usize> {
    let mut deepest = 0;
    let mut pending = vec![(value, 1)];
    while let Some((value, depth)) = pending.pop() {
        if depth > limit {
            return None;
        }
        deepest = deepest.max(depth);
        *budget = budget.checked_sub(1)?;
        match value {
            Value::Array(items) => pending.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(fields) => {
                pending.extend(fields.values().map(|field| (field, depth + 1)));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    Some(deepest)
}

/// Roughly the bytes a value takes on the wire, or nothing if that is more than `limit`. Never less
/// than the number of nodes, so a bound on it bounds memory too.
pub(super) fn size_within(value: &Value, limit: usize) -> Option<usize> {
    let mut total: usize = 0;
    let mut pending = vec![value];
    while let Some(value) = pending.pop() {
        total += 2;
        match value {
            Value::Array(items) => pending.extend(items),
            Value::Object(fields) => {
                total += fields.keys().map(|name| name.len() + 4).sum::<usize>();
                pending.extend(fields.values());
            }
            Value::String(text) => total += text.len(),
            Value::Null | Value::Bool(_) | Value::Number(_) => total += 2,
        }
        if total > limit {
            return None;
        }
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nested(levels: usize) -> Value {
        (1..levels).fold(json!(1), |inner, _| json!([inner]))
    }

    #[test]
    fn depth_is_bounded_exactly() {
        assert_eq!(check_depth(&nested(DEPTH_MAX)), Ok(()));
        assert_eq!(check_depth(&nested(DEPTH_MAX + 1)), Err(TooDeep));
    }

    #[test]
    fn counting_stops_when_the_budget_is_spent() {
        let mut budget = 3;
        assert_eq!(depth_within(&json!([1, 2, 3]), 9, &mut budget), None);
        let mut budget = 4;
        assert_eq!(depth_within(&json!([1, 2, 3]), 9, &mut budget), Some(2));
        assert_eq!(budget, 0);
    }

    #[test]
    fn size_grows_with_content() {
        assert!(size_within(&json!({"a": "x".repeat(100)}), 1000).is_some_and(|size| size > 100));
        assert_eq!(size_within(&json!({"a": "x".repeat(100)}), 50), None);
    }
}
