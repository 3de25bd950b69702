//! JSON patch (RFC 6902), with the real server's limits and two habits of its library: the root
//! cannot be replaced, and `test` of an absent member against null succeeds (controllers rely on
//! that to add the first finalizer).

use json_patch::{PatchError, PatchOperation};
use serde::Deserialize;
use serde_json::{Map, Value};
use thiserror::Error;

use super::Rejection;
use super::bounds::{DEPTH_MAX, TooDeep, check_depth, depth_within, size_within};
use super::values::{cannot_unmarshal, same};

/// More operations than this are refused unread.
pub const OPERATIONS_MAX: usize = 10_000;

/// All the `copy` operations of one patch may add this much, which is also what a request may hold:
/// copying a list into itself twenty times would otherwise make a gigabyte of a kilobyte.
pub const COPIED_BYTES_MAX: usize = 3 * 1024 * 1024;

/// Nodes visited to keep the result's depth within bounds, and list elements shifted (64 to one),
/// over a whole patch. A tenth of a second's work; honest patches use a few hundred.
const WORK_MAX: usize = 10_000_000;

/// Why a JSON patch was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JsonPatchError {
    #[error("the body is not a JSON patch: {0}")]
    NotAPatch(String),
    #[error("The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {count}")]
    TooManyOperations { count: usize },
    #[error("operation {index} does not apply")]
    NotApplicable {
        index: usize,
        #[source]
        reason: NotApplicable,
    },
}

/// Why one operation of a patch could not be carried out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotApplicable {
    #[error("it is not an operation of RFC 6902: {0}")]
    NotAnOperation(String),
    #[error("{0}")]
    Failed(String),
    #[error("testing value {path} failed")]
    TestFailed { path: String },
    #[error("the whole document cannot be the target")]
    Root,
    #[error("the copies of this patch exceed {COPIED_BYTES_MAX} bytes")]
    CopiesTooMuch,
    #[error("the result would be too deep")]
    TooDeep(#[source] TooDeep),
    #[error("the patch causes too much work")]
    TooMuchWork,
}

impl JsonPatchError {
    /// What the client is told.
    pub fn rejection(&self) -> Rejection {
        match self {
            Self::NotAPatch(detail) => {
                Rejection::bad_request(format!("error decoding patch: {detail}"))
            }
            Self::TooManyOperations { .. } => Rejection::too_large(self.to_string()),
            Self::NotApplicable { .. } => Rejection::unprocessable(),
        }
    }
}

/// The live object with every operation of the patch carried out in order, or none of them.
pub fn apply(live: &Value, patch: &Value) -> Result<Value, JsonPatchError> {
    check_depth(patch).map_err(|source| JsonPatchError::NotAPatch(source.to_string()))?;
    let operations = operations(patch)?;
    let fail = |index| move |reason| JsonPatchError::NotApplicable { index, reason };
    check_depth(live).map_err(|source| fail(0)(NotApplicable::TooDeep(source)))?;
    let mut state = Patching {
        document: live.clone(),
        copied_bytes_left: COPIED_BYTES_MAX,
        work_left: WORK_MAX,
    };
    for (index, operation) in operations.iter().enumerate() {
        let operation = PatchOperation::deserialize(operation)
            .map_err(|error| fail(index)(NotApplicable::NotAnOperation(error.to_string())))?;
        state.carry_out(&operation).map_err(fail(index))?;
    }
    Ok(state.document)
}

/// What strict field validation says about the patch itself: members that no operation has.
pub fn unknown_members(patch: &Value) -> Vec<String> {
    const KNOWN: [&str; 4] = ["op", "path", "from", "value"];
    let operations = patch.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut complaints = Vec::new();
    for (index, operation) in operations.iter().enumerate() {
        let names = operation.as_object().into_iter().flat_map(Map::keys);
        for name in names.filter(|name| !KNOWN.contains(&name.as_str())) {
            complaints.push(format!("json patch unknown field \"[{index}].{name}\""));
        }
    }
    complaints
}

/// What the real server decodes before it looks at the object: a list of objects whose members, as
/// far as they are there, have the right types. An unknown `op` is found out later.
fn operations(patch: &Value) -> Result<&[Value], JsonPatchError> {
    let not_a_patch =
        |value: &Value, into: &str| JsonPatchError::NotAPatch(cannot_unmarshal(value, into));
    let operations = match patch {
        Value::Array(operations) => operations.as_slice(),
        // Go decodes null into an empty list.
        Value::Null => &[],
        other => return Err(not_a_patch(other, "value of type []handlers.jsonPatchOp")),
    };
    if operations.len() > OPERATIONS_MAX {
        let count = operations.len();
        return Err(JsonPatchError::TooManyOperations { count });
    }
    for operation in operations {
        let Value::Object(members) = operation else {
            return Err(not_a_patch(operation, "value of type handlers.jsonPatchOp"));
        };
        for name in ["op", "path", "from"] {
            match members.get(name) {
                None | Some(Value::String(_)) => {}
                Some(other) => {
                    let into = format!("struct field jsonPatchOp.{name} of type string");
                    return Err(not_a_patch(other, &into));
                }
            }
        }
    }
    Ok(operations)
}

struct Patching {
    document: Value,
    copied_bytes_left: usize,
    work_left: usize,
}

impl Patching {
    fn carry_out(&mut self, operation: &PatchOperation) -> Result<(), NotApplicable> {
        let path = operation.path().as_str();
        match operation {
            PatchOperation::Test(test) => return self.test(path, &test.value),
            PatchOperation::Add(add) => self.check_nesting(path, &add.value)?,
            PatchOperation::Replace(replace) => self.check_nesting(path, &replace.value)?,
            PatchOperation::Remove(_) => {}
            PatchOperation::Move(operation) => {
                let document = std::mem::take(&mut self.document);
                let checked = match document.pointer(operation.from.as_str()) {
                    Some(moved) => self.check_nesting(path, moved),
                    None => Err(missing(operation.from.as_str())),
                };
                self.document = document;
                checked?;
                self.charge_shift(operation.from.as_str())?;
            }
            PatchOperation::Copy(operation) => {
                let document = std::mem::take(&mut self.document);
                let checked = match document.pointer(operation.from.as_str()) {
                    Some(copied) => self
                        .charge_copy(copied)
                        .and_then(|()| self.check_nesting(path, copied)),
                    None => Err(missing(operation.from.as_str())),
                };
                self.document = document;
                checked?;
            }
        }
        if path.is_empty() {
            return Err(NotApplicable::Root);
        }
        self.charge_shift(path)?;
        // The document is our own copy and thrown away on any error: nothing to roll back.
        json_patch::patch_unsafe(&mut self.document, std::slice::from_ref(operation))
            .map_err(|error: PatchError| NotApplicable::Failed(error.to_string()))
    }

    fn test(&self, path: &str, expected: &Value) -> Result<(), NotApplicable> {
        let holds = match self.document.pointer(path) {
            Some(found) => same(found, expected),
            None => expected.is_null() && self.parent(path).is_some_and(Value::is_object),
        };
        if holds {
            return Ok(());
        }
        Err(NotApplicable::TestFailed {
            path: path.to_owned(),
        })
    }

    fn parent(&self, path: &str) -> Option<&Value> {
        let (parent, _) = path.rsplit_once('/')?;
        self.document.pointer(parent)
    }

    /// Recursion over the result (ours and the parser's of whoever reads it) must stay bounded.
    fn check_nesting(&mut self, path: &str, value: &Value) -> Result<(), NotApplicable> {
        let levels_above = path.matches('/').count();
        let limit = DEPTH_MAX.saturating_sub(levels_above);
        match depth_within(value, limit, &mut self.work_left) {
            Some(_) => Ok(()),
            None if self.work_left == 0 => Err(NotApplicable::TooMuchWork),
            None => Err(NotApplicable::TooDeep(TooDeep)),
        }
    }

    fn charge_copy(&mut self, copied: &Value) -> Result<(), NotApplicable> {
        let size =
            size_within(copied, self.copied_bytes_left).ok_or(NotApplicable::CopiesTooMuch)?;
        self.copied_bytes_left -= size;
        Ok(())
    }

    /// Inserting into a list or removing from it moves the elements after.
    fn charge_shift(&mut self, path: &str) -> Result<(), NotApplicable> {
        let shifted = match self.parent(path) {
            Some(Value::Array(items)) => items.len(),
            _ => 0,
        };
        self.work_left = self
            .work_left
            .checked_sub(1 + shifted / 64)
            .ok_or(NotApplicable::TooMuchWork)?;
        Ok(())
    }
}

fn missing(path: &str) -> NotApplicable {
    NotApplicable::Failed(format!("doc is missing path: {path}"))
}

#[cfg(test)]
mod tests;
