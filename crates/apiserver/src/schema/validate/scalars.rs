//! Strings, numbers and enumerations.

use serde_json::Value;

use super::{FieldError, FieldErrorKind, Mode, Path, Schema, Walk, canonical};
use crate::builtin::rules::quantity;
use crate::schema::format;

impl Walk {
    pub(super) fn scalar(&mut self, schema: &Schema, value: &Value, path: &Path<'_>) {
        match value {
            Value::String(text) => self.string(schema, text, path),
            Value::Number(number) => {
                self.number_format(schema, value, path);
                if let Some(number) = number.as_f64() {
                    self.number(schema, number, value, path);
                }
            }
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {}
        }
    }

    fn string(&mut self, schema: &Schema, text: &str, path: &Path<'_>) {
        let length = text.chars().count() as u64;
        if let Some(maximum) = schema.max_length
            && length > maximum
        {
            let detail = format!("may not be more than {maximum} bytes");
            let error = FieldError::new(FieldErrorKind::TooLong, path.or_nil(), detail);
            self.push(error);
        }
        if let Some(minimum) = schema.min_length
            && length < minimum
        {
            let complaint = format!("should be at least {minimum} chars long");
            self.complain(FieldErrorKind::Invalid, path, text.into(), &complaint);
        }
        match schema.regex() {
            Some(Ok(regex)) if !regex.is_match(text) => {
                let complaint = format!("should match '{}'", regex_text(schema));
                self.complain(FieldErrorKind::Invalid, path, text.into(), &complaint);
            }
            Some(Err(error)) => {
                let complaint = format!(
                    "should match '{}', which is not a regular expression: {error}",
                    regex_text(schema)
                );
                self.complain(FieldErrorKind::Invalid, path, text.into(), &complaint);
            }
            Some(Ok(_)) | None => {}
        }
        let Some(format) = schema.format.as_deref() else {
            return;
        };
        if format == "quantity" {
            if self.mode == Mode::Builtin && text.parse::<quantity::Quantity>().is_err() {
                let error = FieldError {
                    value: Some(text.into()),
                    ..FieldError::new(
                        FieldErrorKind::TypeInvalid,
                        path.or_nil(),
                        quantity::FORMAT_ERROR,
                    )
                };
                self.push(error);
            }
        } else if !schema.int_or_string && !format::matches(format, text) {
            let complaint = format!("must be of type {format}: {text:?}");
            self.complain(FieldErrorKind::TypeInvalid, path, text.into(), &complaint);
        }
    }

    fn number(&mut self, schema: &Schema, number: f64, value: &Value, path: &Path<'_>) {
        if let Some(maximum) = schema.maximum {
            let strict = schema.exclusive_maximum;
            if number > maximum || (strict && number >= maximum) {
                let relation = if strict { "" } else { " or equal to" };
                let complaint = format!("should be less than{relation} {maximum}");
                self.complain(FieldErrorKind::Invalid, path, value.clone(), &complaint);
            }
        }
        if let Some(minimum) = schema.minimum {
            let strict = schema.exclusive_minimum;
            if number < minimum || (strict && number <= minimum) {
                let relation = if strict { "" } else { " or equal to" };
                let complaint = format!("should be greater than{relation} {minimum}");
                self.complain(FieldErrorKind::Invalid, path, value.clone(), &complaint);
            }
        }
        if let Some(factor) = schema.multiple_of
            && factor > 0.0
        {
            // Fractions such as 0.3 / 0.1 miss the whole number by a rounding error.
            let quotient = number / factor;
            if (quotient - quotient.round()).abs() > 1e-9 * quotient.abs().max(1.0) {
                let complaint = format!("should be a multiple of {factor}");
                self.complain(FieldErrorKind::Invalid, path, value.clone(), &complaint);
            }
        }
    }

    fn number_format(&mut self, schema: &Schema, value: &Value, path: &Path<'_>) {
        let range = match schema.format.as_deref() {
            Some("int32") => f64::from(i32::MIN)..=f64::from(i32::MAX),
            Some("int64") => -9_223_372_036_854_775_808.0..=9_223_372_036_854_774_784.0,
            _ => return,
        };
        let fits = value.is_i64() && schema.format.as_deref() == Some("int64")
            || value.as_f64().is_some_and(|number| range.contains(&number));
        if !fits {
            let format = schema.format.as_deref().unwrap_or_default();
            let complaint = format!("must be of type {format}: \"{value}\"");
            self.complain(FieldErrorKind::TypeInvalid, path, value.clone(), &complaint);
        }
    }

    pub(super) fn allowed(&mut self, schema: &Schema, value: &Value, path: &Path<'_>) {
        let Some(allowed) = &schema.allowed else {
            return;
        };
        let found = canonical(value);
        if allowed
            .iter()
            .any(|candidate| canonical(candidate) == found)
        {
            return;
        }
        let supported: Vec<String> = allowed
            .iter()
            .map(|candidate| match candidate {
                Value::String(text) => format!("{text:?}"),
                other => format!("\"{other}\""),
            })
            .collect();
        let error = FieldError {
            value: Some(value.clone()),
            ..FieldError::new(
                FieldErrorKind::NotSupported,
                path.or_nil(),
                format!("supported values: {}", supported.join(", ")),
            )
        };
        self.push(error);
    }
}

fn regex_text(schema: &Schema) -> &str {
    schema.pattern.as_deref().unwrap_or_default()
}
