//! Whether a value is what its schema asks for, complained about in the real server's words.

mod lists;
mod scalars;

use serde_json::{Map, Value};

use super::path::Path;
use super::{DEPTH_MAX, ListType, Schema, SchemaOrBool, cel};
use crate::field_error::{FieldError, FieldErrorKind};

pub(super) use lists::{canonical, correlate};

/// An answer with more complaints than this helps nobody.
const ERRORS_MAX: usize = 128;

/// Validates a custom resource: first its shape, then, if that is sound, its CEL rules.
///
/// With `old`, transition rules run, and what was already stored that way is let through unchanged
/// (ratcheting), so that tightening a schema does not strand existing objects.
pub fn validate(schema: &Schema, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut walk = Walk::new(Mode::Custom);
    walk.node(schema, value, old, &Path::ROOT, 0);
    let mut errors = walk.errors;
    if errors.is_empty() {
        return cel::validate(schema, value, old);
    }
    if cel::has_rules(schema) {
        errors.push(FieldError::invalid(
            "<nil>",
            "null".into(),
            "some validation rules were not checked because the object was invalid; correct the \
             existing errors to complete validation",
        ));
    }
    errors
}

/// Validates only the types of a built-in kind, which is all that decoding it into a struct would
/// do: nulls count as absent, nothing is required. What a kind demands beyond that is in its rules.
pub fn validate_types(schema: &Schema, value: &Value) -> Vec<FieldError> {
    let mut walk = Walk::new(Mode::Builtin);
    walk.node(schema, value, None, &Path::ROOT, 0);
    walk.errors
}

/// Validates the types of any object's `metadata`, which no CRD describes.
pub fn validate_metadata_types(value: &Value) -> Vec<FieldError> {
    let root = Path::ROOT;
    match value.get("metadata") {
        Some(metadata) => {
            let object_meta = crate::builtin::object_meta();
            validate_shape_types(&object_meta, metadata, &root.field("metadata"))
        }
        None => Vec::new(),
    }
}

/// Validates a value that is part of a CRD, such as a default: shape only.
pub(super) fn validate_shape(schema: &Schema, value: &Value, path: &Path<'_>) -> Vec<FieldError> {
    let mut walk = Walk::new(Mode::Custom);
    walk.node(schema, value, None, path, 0);
    walk.errors
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Custom,
    Builtin,
}

struct Walk {
    mode: Mode,
    errors: Vec<FieldError>,
}

impl Walk {
    fn new(mode: Mode) -> Self {
        Self {
            mode,
            errors: Vec::new(),
        }
    }

    fn push(&mut self, error: FieldError) {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(error);
        }
    }

    /// `{path} in body {complaint}`, the form of most schema errors.
    fn complain(&mut self, kind: FieldErrorKind, path: &Path<'_>, shown: Value, complaint: &str) {
        let error = FieldError {
            value: Some(shown),
            ..FieldError::new(kind, path.or_nil(), format!("{path} in body {complaint}"))
        };
        self.push(error);
    }

    fn node(
        &mut self,
        schema: &Schema,
        value: &Value,
        old: Option<&Value>,
        path: &Path<'_>,
        depth: usize,
    ) {
        if depth > DEPTH_MAX {
            let detail = format!("must not be nested deeper than {DEPTH_MAX} levels");
            self.push(FieldError::invalid(path.or_nil(), "".into(), detail));
            return;
        }
        // Ratcheting: whatever is wrong here was wrong before this request.
        if old == Some(value) || self.errors.len() >= ERRORS_MAX {
            return;
        }
        if value.is_null() && (schema.nullable || self.mode == Mode::Builtin) {
            return;
        }
        self.type_of(schema, value, path);
        self.combinators(schema, value, path, depth);
        self.scalar(schema, value, path);
        match value {
            Value::Object(fields) => self.object(schema, fields, old, path, depth),
            Value::Array(items) => self.list(schema, items, old, path, depth),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        self.allowed(schema, value, path);
    }

    fn type_of(&mut self, schema: &Schema, value: &Value, path: &Path<'_>) {
        let actual = type_name(value);
        let expected = match schema.type_name.as_deref() {
            _ if schema.int_or_string => {
                // Quantities may also be written as fractions.
                let fits = matches!(actual, "integer" | "string")
                    || (actual == "number" && schema.format.as_deref() == Some("quantity"));
                (!fits).then_some("integer,string")
            }
            None => None,
            Some("number") if actual == "integer" => None,
            Some(expected) => (expected != actual).then_some(expected),
        };
        if let Some(expected) = expected {
            let complaint = format!("must be of type {expected}: {actual:?}");
            self.complain(FieldErrorKind::TypeInvalid, path, actual.into(), &complaint);
        }
    }

    fn object(
        &mut self,
        schema: &Schema,
        fields: &Map<String, Value>,
        old: Option<&Value>,
        path: &Path<'_>,
        depth: usize,
    ) {
        if self.mode == Mode::Custom {
            self.object_limits(schema, fields, path);
            if schema.embedded_resource {
                self.embedded(fields, path);
            }
            for name in &schema.required {
                if !fields.contains_key(name) {
                    self.push(FieldError::required(path.field(name), ""));
                }
            }
        }
        let closed = matches!(
            schema.additional_properties.as_deref(),
            Some(SchemaOrBool::Bool(false))
        );
        for (name, child) in fields {
            let child_path = path.field(name);
            match schema.field(name) {
                Some(child_schema) => {
                    let old_child = old.and_then(|old| old.get(name));
                    self.node(child_schema, child, old_child, &child_path, depth + 1);
                }
                None if closed && !schema.preserve_unknown_fields => {
                    self.complain(
                        FieldErrorKind::Invalid,
                        &child_path,
                        "".into(),
                        "is a forbidden property",
                    );
                }
                None => {}
            }
        }
    }

    fn object_limits(&mut self, schema: &Schema, fields: &Map<String, Value>, path: &Path<'_>) {
        let count = fields.len() as u64;
        if let Some(minimum) = schema.min_properties
            && count < minimum
        {
            let complaint = format!("should have at least {minimum} properties");
            self.complain(FieldErrorKind::Invalid, path, count.into(), &complaint);
        }
        if let Some(maximum) = schema.max_properties
            && count > maximum
        {
            let error = FieldError {
                value: Some(count.into()),
                ..FieldError::new(
                    FieldErrorKind::TooMany,
                    path.or_nil(),
                    format!("must have at most {maximum} items"),
                )
            };
            self.push(error);
        }
    }

    /// A whole object inside another one says what it is.
    fn embedded(&mut self, fields: &Map<String, Value>, path: &Path<'_>) {
        for name in ["apiVersion", "kind"] {
            let child_path = path.field(name);
            match fields.get(name) {
                Some(Value::String(text)) if !text.is_empty() => {}
                None | Some(Value::String(_)) => {
                    self.push(FieldError::required(child_path, "must not be empty"));
                }
                Some(other) => {
                    let actual = type_name(other);
                    let complaint = format!("must be of type string: {actual:?}");
                    self.complain(
                        FieldErrorKind::TypeInvalid,
                        &child_path,
                        actual.into(),
                        &complaint,
                    );
                }
            }
        }
        if let Some(metadata) = fields.get("metadata") {
            let object_meta = crate::builtin::object_meta();
            for error in validate_shape_types(&object_meta, metadata, &path.field("metadata")) {
                self.push(error);
            }
        }
    }

    fn list(
        &mut self,
        schema: &Schema,
        items: &[Value],
        old: Option<&Value>,
        path: &Path<'_>,
        depth: usize,
    ) {
        if self.mode == Mode::Custom {
            self.list_limits(schema, items, path);
            self.list_duplicates(schema, items, path);
        }
        let Some(item_schema) = schema.items.as_deref() else {
            return;
        };
        let old_items = correlate(schema, old);
        for (index, item) in items.iter().enumerate() {
            let old_item = old_items.as_ref().and_then(|old| old.find(item));
            self.node(item_schema, item, old_item, &path.index(index), depth + 1);
        }
    }

    fn combinators(&mut self, schema: &Schema, value: &Value, path: &Path<'_>, depth: usize) {
        if !schema.all_of.is_empty() {
            let mut failed = 0;
            for alternative in &schema.all_of {
                let errors = self.attempt(alternative, value, path, depth);
                failed += usize::from(!errors.is_empty());
                errors.into_iter().for_each(|error| self.push(error));
            }
            if failed == schema.all_of.len() {
                self.composite(
                    path,
                    "must validate all the schemas (allOf). None validated",
                );
            } else if failed > 0 {
                self.composite(path, "must validate all the schemas (allOf)");
            }
        }
        if !schema.any_of.is_empty() {
            let attempts = self.attempts(&schema.any_of, value, path, depth);
            if let Some(best) = nearest(&attempts) {
                self.composite(path, "must validate at least one schema (anyOf)");
                best.iter().for_each(|error| self.push(error.clone()));
            }
        }
        if !schema.one_of.is_empty() {
            let attempts = self.attempts(&schema.one_of, value, path, depth);
            let valid = attempts.iter().filter(|errors| errors.is_empty()).count();
            if let Some(best) = nearest(&attempts) {
                self.composite(
                    path,
                    "must validate one and only one schema (oneOf). Found none valid",
                );
                best.iter().for_each(|error| self.push(error.clone()));
            } else if valid > 1 {
                self.composite(
                    path,
                    &format!(
                        "must validate one and only one schema (oneOf). Found {valid} valid \
                         alternatives"
                    ),
                );
            }
        }
        if let Some(not) = schema.not.as_deref()
            && self.attempt(not, value, path, depth).is_empty()
        {
            self.composite(path, "must not validate the schema (not)");
        }
    }

    /// The real server does not know the path of these errors, only that of their text.
    fn composite(&mut self, path: &Path<'_>, complaint: &str) {
        let quoted = path.to_string();
        self.push(FieldError::invalid(
            "<nil>",
            "".into(),
            format!("{quoted:?} {complaint}"),
        ));
    }

    fn attempts(
        &self,
        alternatives: &[Schema],
        value: &Value,
        path: &Path<'_>,
        depth: usize,
    ) -> Vec<Vec<FieldError>> {
        alternatives
            .iter()
            .map(|alternative| self.attempt(alternative, value, path, depth))
            .collect()
    }

    fn attempt(
        &self,
        schema: &Schema,
        value: &Value,
        path: &Path<'_>,
        depth: usize,
    ) -> Vec<FieldError> {
        let mut walk = Walk::new(self.mode);
        walk.node(schema, value, None, path, depth + 1);
        walk.errors
    }
}

fn validate_shape_types(schema: &Schema, value: &Value, path: &Path<'_>) -> Vec<FieldError> {
    let mut walk = Walk::new(Mode::Builtin);
    walk.node(schema, value, None, path, 0);
    walk.errors
}

/// The attempt that came closest, if none succeeded.
fn nearest(attempts: &[Vec<FieldError>]) -> Option<&Vec<FieldError>> {
    let best = attempts.iter().min_by_key(|errors| errors.len())?;
    (!best.is_empty()).then_some(best)
}

/// JSON Schema's name of a value's type; a number without a fraction is an integer.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) => match number.as_f64() {
            _ if number.is_i64() || number.is_u64() => "integer",
            Some(float) if float.fract() == 0.0 => "integer",
            Some(_) | None => "number",
        },
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests;
