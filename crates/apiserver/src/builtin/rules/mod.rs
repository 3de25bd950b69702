//! What no schema can say about the built-in kinds: defaults, immutable fields, limits.
//!
//! One file for each family of kinds; each lists its kinds in a `RULES` table, and `FAMILIES` lists
//! the files. Rules read objects whose types are right (see
//! [`validate_types`](crate::schema::validate::validate_types)), and take a wrong type for absence.

mod definition;
mod event;
mod keyed_data;
mod lease;
pub mod meta;
pub mod names;
mod node;
mod pod;
pub mod quantity;
mod storage;
mod volume;
mod workload;

use serde_json::{Map, Value};

use crate::field_error::{FieldError, FieldErrorKind};
use crate::schema::Schema;
use crate::schema::path::Path;
use meta::MetaRule;
use names::NameRule;
use quantity::Quantity;

/// What one kind adds to the generic behaviour.
pub struct KindRules {
    group: &'static str,
    kind: &'static str,
    meta: MetaRule,
    /// Fills in what the real server fills in.
    default: fn(&mut Value),
    /// Complaints about an object by itself.
    object: fn(&Value, &mut Vec<FieldError>),
    /// Complaints about the change from one object to another.
    change: fn(&Value, &Value, &mut Vec<FieldError>),
}

static FAMILIES: [&[KindRules]; 9] = [
    &definition::RULES,
    &event::RULES,
    &keyed_data::RULES,
    &lease::RULES,
    &node::RULES,
    &pod::RULES,
    &storage::RULES,
    &volume::RULES,
    &workload::RULES,
];

/// The rules of a built-in kind, if it is one that is stored.
pub fn rules(group: &str, kind: &str) -> Option<&'static KindRules> {
    FAMILIES
        .iter()
        .flat_map(|family| family.iter())
        .find(|rules| rules.group == group && rules.kind == kind)
}

/// Fills in a built-in kind's defaults, drops nulls, and writes quantities and times in their
/// canonical forms. Does nothing to other kinds.
pub fn default_object(group: &str, kind: &str, value: &mut Value) {
    let Some(rules) = rules(group, kind) else {
        return;
    };
    let schema = super::schema(group, "v1", kind);
    if let Some(schema) = &schema {
        drop_nulls(schema, value);
    }
    (rules.default)(value);
    if let Some(schema) = &schema {
        write_canonically(schema, value);
    }
}

/// Drops the nulls of any object's `metadata`, such as the `creationTimestamp: null` that kubectl's
/// dry runs print. [`default_object`] does it for built-in kinds.
pub fn drop_metadata_nulls(value: &mut Value) {
    if let Some(metadata) = value.get_mut("metadata") {
        drop_nulls(&super::object_meta(), metadata);
    }
}

/// Validates a built-in kind's object when it is created.
pub fn validate_create(group: &str, kind: &str, value: &Value) -> Vec<FieldError> {
    let Some(rules) = rules(group, kind) else {
        return Vec::new();
    };
    let mut errors = meta::validate(value, rules.meta);
    (rules.object)(value, &mut errors);
    errors
}

/// Validates a built-in kind's object when it, or its status, is replaced by another.
pub fn validate_update(group: &str, kind: &str, old: &Value, new: &Value) -> Vec<FieldError> {
    let Some(rules) = rules(group, kind) else {
        return Vec::new();
    };
    let mut errors = meta::validate_update(old, new);
    errors.extend(meta::validate(new, rules.meta));
    (rules.change)(old, new, &mut errors);
    // Ratcheting: what was stored under older rules may stay.
    let mut standing = Vec::new();
    (rules.object)(old, &mut standing);
    let mut found = Vec::new();
    (rules.object)(new, &mut found);
    errors.extend(found.into_iter().filter(|error| !standing.contains(error)));
    errors
}

impl KindRules {
    const fn new(group: &'static str, kind: &'static str) -> Self {
        Self {
            group,
            kind,
            meta: MetaRule {
                namespaced: true,
                name: NameRule::Subdomain,
                finalizers_qualified: true,
            },
            default: |_| {},
            object: |_, _| {},
            change: |_, _, _| {},
        }
    }

    const fn cluster_wide(group: &'static str, kind: &'static str) -> Self {
        let mut rules = Self::new(group, kind);
        rules.meta.namespaced = false;
        rules
    }
}

/// To Go, null is the zero value, and most zero values are not written.
fn drop_nulls(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(fields) if !schema.preserve_unknown_fields => {
            fields.retain(|_, child| !child.is_null());
            for (name, child) in fields {
                if let Some(child_schema) = schema.field(name) {
                    drop_nulls(child_schema, child);
                }
            }
        }
        Value::Array(items) => {
            if let Some(item_schema) = schema.items.as_deref() {
                for item in items {
                    drop_nulls(item_schema, item);
                }
            }
        }
        Value::Object(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Reading and writing a value in Go leaves each quantity and each time in one spelling.
fn write_canonically(schema: &Schema, value: &mut Value) {
    let canonical = match schema.format.as_deref() {
        Some("quantity") => Quantity::from_json(value)
            .ok()
            .map(|quantity| quantity.to_string()),
        Some("date-time") => value.as_str().and_then(|text| {
            let instant: jiff::Timestamp = text.parse().ok()?;
            let name = schema
                .definition
                .as_deref()
                .map(|known| known.name.as_str());
            let is_precise = name.is_some_and(|name| name.ends_with(".MicroTime"));
            let digits = if is_precise {
                "%Y-%m-%dT%H:%M:%S.%6fZ"
            } else {
                "%Y-%m-%dT%H:%M:%SZ"
            };
            jiff::fmt::strtime::format(digits, instant).ok()
        }),
        Some(_) | None => None,
    };
    if let Some(canonical) = canonical {
        *value = canonical.into();
        return;
    }
    match value {
        Value::Object(fields) => {
            for (name, child) in fields {
                if let Some(child_schema) = schema.field(name) {
                    write_canonically(child_schema, child);
                }
            }
        }
        Value::Array(items) => {
            if let Some(item_schema) = schema.items.as_deref() {
                for item in items {
                    write_canonically(item_schema, item);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

// What rules read objects with. Absent and mistyped are the same to them.

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn items<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value
        .pointer(pointer)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn object<'a>(value: &'a Value, pointer: &str) -> Option<&'a Map<String, Value>> {
    value.pointer(pointer).and_then(Value::as_object)
}

/// Sets a field that is absent. Does nothing where `parent` is no object.
fn default_field(parent: &mut Value, name: &str, default: impl Into<Value>) {
    if let Value::Object(fields) = parent
        && fields.get(name).is_none_or(Value::is_null)
    {
        fields.insert(name.to_owned(), default.into());
    }
}

/// The object in a field, made if it is absent.
fn child_object<'a>(parent: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    default_field(parent, name, Map::new());
    parent.get_mut(name).filter(|child| child.is_object())
}

// What rules complain with.

/// `value` must not have changed since `old`.
fn immutable(old: &Value, new: &Value, pointer: &str, path: &str, errors: &mut Vec<FieldError>) {
    let (before, after) = (old.pointer(pointer), new.pointer(pointer));
    if !same(before, after) {
        let shown = after.cloned().unwrap_or_default();
        errors.push(FieldError::invalid(path, shown, "field is immutable"));
    }
}

/// Equal as the API sees it: an empty map or list is as good as none.
fn same(before: Option<&Value>, after: Option<&Value>) -> bool {
    fn present(value: Option<&Value>) -> Option<&Value> {
        value.filter(|value| match value {
            Value::Null => false,
            Value::Array(items) => !items.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
        })
    }
    present(before) == present(after)
}

fn one_of(value: &str, allowed: &[&str], path: impl Into<String>, errors: &mut Vec<FieldError>) {
    if !allowed.contains(&value) {
        let supported: Vec<String> = allowed.iter().map(|name| format!("{name:?}")).collect();
        errors.push(FieldError {
            value: Some(value.into()),
            ..FieldError::new(
                FieldErrorKind::NotSupported,
                path,
                format!("supported values: {}", supported.join(", ")),
            )
        });
    }
}

fn all_invalid(problems: Vec<String>, path: &Path<'_>, value: &str, errors: &mut Vec<FieldError>) {
    errors.extend(
        problems
            .into_iter()
            .map(|problem| FieldError::invalid(path, value.into(), problem)),
    );
}

fn too_long(path: impl Into<String>, bytes_max: usize) -> FieldError {
    FieldError::new(
        FieldErrorKind::TooLong,
        path,
        format!("may not be more than {bytes_max} bytes"),
    )
}

fn duplicate(path: impl Into<String>, value: &str) -> FieldError {
    FieldError {
        value: Some(value.into()),
        ..FieldError::new(FieldErrorKind::Duplicate, path, "")
    }
}

fn not_found(path: impl Into<String>, value: &str) -> FieldError {
    FieldError {
        value: Some(value.into()),
        ..FieldError::new(FieldErrorKind::NotFound, path, "")
    }
}

#[cfg(test)]
mod tests;
