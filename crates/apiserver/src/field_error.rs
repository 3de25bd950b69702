//! What is wrong with one field, worded and coded as the real API server does.

use std::fmt;

use serde_json::{Value, json};

/// The ways in which a field can be wrong. Each has a fixed title in messages and a fixed reason in
/// a `Status`' causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldErrorKind {
    Required,
    Invalid,
    TypeInvalid,
    NotSupported,
    Duplicate,
    Forbidden,
    TooLong,
    TooMany,
    NotFound,
}

impl FieldErrorKind {
    fn title(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::NotFound => "Not found",
        }
    }

    /// The `reason` of a cause in `Status.details`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::NotFound => "FieldValueNotFound",
        }
    }
}

/// One complaint about one field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    pub kind: FieldErrorKind,
    /// The field as users write it: `spec.tickets[0].id`.
    pub path: String,
    /// The offending value, where the message shows it.
    pub value: Option<Value>,
    pub detail: String,
}

impl FieldError {
    pub fn new(kind: FieldErrorKind, path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            kind,
            path: path.into(),
            value: None,
            detail: detail.into(),
        }
    }

    pub fn required(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Required, path, detail)
    }

    pub fn forbidden(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Forbidden, path, detail)
    }

    /// With the values that there are, in the order in which they are shown.
    pub fn not_supported(path: impl Into<String>, value: Value, supported: &[&str]) -> Self {
        let quoted: Vec<String> = supported.iter().map(|one| format!("{one:?}")).collect();
        Self {
            value: Some(value),
            ..Self::new(
                FieldErrorKind::NotSupported,
                path,
                format!("supported values: {}", quoted.join(", ")),
            )
        }
    }

    pub fn invalid(path: impl Into<String>, value: Value, detail: impl Into<String>) -> Self {
        Self {
            value: Some(value),
            ..Self::new(FieldErrorKind::Invalid, path, detail)
        }
    }

    /// The message without the path, as it stands in a cause.
    pub fn message(&self) -> String {
        let mut text = self.kind.title().to_owned();
        if let Some(value) = &self.value {
            text.push_str(": ");
            text.push_str(&shown(value));
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }

    /// This error as one entry of `Status.details.causes`.
    pub fn cause(&self) -> Value {
        json!({"reason": self.kind.reason(), "message": self.message(), "field": self.path})
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message())
    }
}

/// Values are shown as JSON, which for strings means quoted, and never at a length that would turn
/// a message into a dump of the request.
fn shown(value: &Value) -> String {
    const SHOWN_CHARS_MAX: usize = 256;
    let text = value.to_string();
    if text.chars().count() <= SHOWN_CHARS_MAX {
        return text;
    }
    let mut cut: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    cut.push('…');
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_like_the_real_server() {
        let error = FieldError::invalid("spec.source", json!("x"), "field is immutable");
        assert_eq!(
            error.to_string(),
            r#"spec.source: Invalid value: "x": field is immutable"#
        );
        let error = FieldError::required("metadata.name", "");
        assert_eq!(error.to_string(), "metadata.name: Required value");
        assert_eq!(error.cause()["reason"], "FieldValueRequired");
    }
}
