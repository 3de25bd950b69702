//! Refusals: every error a client can see is one of these, and becomes a `Status` object.

use serde_json::{Value, json};

use crate::field_error::FieldError;
use crate::patch::Rejection;

/// A refused or failed request. The constructors below are the only wordings there are, so that
/// clients which match on reason, code or causes find what the real server gives them.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    /// `Status.details`, where there is something to detail.
    pub details: Option<Value>,
}

/// The resource an error speaks of, as `plural.group` and as a kind.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub group: &'a str,
    pub plural: &'a str,
    pub kind: &'a str,
    pub name: &'a str,
}

impl Subject<'_> {
    /// `volumes.longhorn.io "pvc-1"`, or `pods "web-0"` in the group without a name.
    fn quoted(&self) -> String {
        format!("{} {:?}", qualified(self.plural, self.group), self.name)
    }

    /// `VolumeAttachment.storage.k8s.io "csi-1"`: invalid objects are named by kind.
    fn quoted_kind(&self) -> String {
        format!("{} {:?}", qualified(self.kind, self.group), self.name)
    }

    /// Details of most errors carry the resource in the field `kind`; that is how the real one does
    /// it, and clients depend on it.
    fn details(&self) -> Value {
        json!({"name": self.name, "group": self.group, "kind": self.plural})
    }
}

fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() {
        name.to_owned()
    } else {
        format!("{name}.{group}")
    }
}

impl ApiError {
    fn plain(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
        }
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::plain(400, "BadRequest", message)
    }

    pub fn unauthorized() -> Self {
        Self::plain(401, "Unauthorized", "Unauthorized")
    }

    pub fn forbidden(subject: &Subject<'_>, why: impl AsRef<str>) -> Self {
        let message = format!("{} is forbidden: {}", subject.quoted(), why.as_ref());
        Self {
            details: Some(subject.details()),
            ..Self::plain(403, "Forbidden", message)
        }
    }

    /// No such path: the answer to a group, version or resource that is not served.
    pub fn no_such_path() -> Self {
        Self {
            details: Some(json!({})),
            ..Self::plain(
                404,
                "NotFound",
                "the server could not find the requested resource",
            )
        }
    }

    pub fn not_found(subject: &Subject<'_>) -> Self {
        let message = format!("{} not found", subject.quoted());
        Self {
            details: Some(subject.details()),
            ..Self::plain(404, "NotFound", message)
        }
    }

    pub fn method_not_allowed() -> Self {
        Self {
            details: Some(json!({})),
            ..Self::plain(
                405,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            )
        }
    }

    pub fn not_acceptable(accepted: &str) -> Self {
        Self::plain(
            406,
            "NotAcceptable",
            format!("only the following media types are accepted: {accepted}"),
        )
    }

    pub fn already_exists(subject: &Subject<'_>) -> Self {
        let message = format!("{} already exists", subject.quoted());
        Self {
            details: Some(subject.details()),
            ..Self::plain(409, "AlreadyExists", message)
        }
    }

    pub fn conflict(subject: &Subject<'_>, why: impl AsRef<str>) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {}: {}",
            subject.quoted(),
            why.as_ref()
        );
        Self {
            details: Some(subject.details()),
            ..Self::plain(409, "Conflict", message)
        }
    }

    /// The usual conflict: somebody else wrote in between.
    pub fn modified(subject: &Subject<'_>) -> Self {
        Self::conflict(
            subject,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// A list or watch asks for history that is no longer kept.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::plain(410, "Expired", message)
    }

    pub fn too_large(limit_bytes: usize) -> Self {
        Self::plain(
            413,
            "RequestEntityTooLarge",
            format!("Request entity too large: limit is {limit_bytes}"),
        )
    }

    pub fn unsupported_media_type(accepted: &str) -> Self {
        Self::plain(
            415,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {accepted}"
            ),
        )
    }

    /// A body of a media type that is read, but not for what is in it.
    pub fn unsupported_body(message: impl Into<String>) -> Self {
        Self::plain(415, "UnsupportedMediaType", message)
    }

    pub fn invalid(subject: &Subject<'_>, errors: &[FieldError]) -> Self {
        let listed = match errors {
            [one] => one.to_string(),
            several => {
                let all: Vec<String> = several.iter().map(ToString::to_string).collect();
                format!("[{}]", all.join(", "))
            }
        };
        let mut details =
            json!({"name": subject.name, "group": subject.group, "kind": subject.kind});
        details["causes"] = errors.iter().map(FieldError::cause).collect();
        Self {
            details: Some(details),
            ..Self::plain(
                422,
                "Invalid",
                format!("{} is invalid: {listed}", subject.quoted_kind()),
            )
        }
    }

    /// The parameters of a request, or the options in its body, which are a kind of their own there: `PatchOptions`.
    pub fn invalid_options(kind: &str, errors: &[FieldError]) -> Self {
        let subject = Subject {
            group: "meta.k8s.io",
            plural: "",
            kind,
            name: "",
        };
        Self::invalid(&subject, errors)
    }

    /// A patch whose result cannot be decoded: the real server then names no object, but shows what the patch made.
    pub fn invalid_patch(patched: &Value, why: &str) -> Self {
        let subject = Subject {
            group: "",
            plural: "",
            kind: "",
            name: "",
        };
        let error = FieldError::invalid("patch", patched.to_string().into(), why);
        Self::invalid(&subject, &[error])
    }

    /// A patch that is well-formed but cannot be applied to this object.
    pub fn unprocessable(message: impl Into<String>) -> Self {
        Self::plain(422, "Invalid", message)
    }

    pub fn too_many_requests(message: impl Into<String>) -> Self {
        Self {
            details: Some(json!({"retryAfterSeconds": 1})),
            ..Self::plain(429, "TooManyRequests", message)
        }
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::plain(
            500,
            "InternalError",
            format!("Internal error occurred: {}", message.into()),
        )
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::plain(503, "ServiceUnavailable", message)
    }

    pub fn timeout(message: impl Into<String>) -> Self {
        Self::plain(504, "Timeout", message)
    }

    /// The `Status` object that goes over the wire.
    pub fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        });
        if let Some(details) = &self.details {
            let mut details = details.clone();
            if let Some(fields) = details.as_object_mut() {
                // The real server leaves out what is empty: the group of core kinds, most of all.
                fields.retain(|_, value| value != "");
            }
            status["details"] = details;
        }
        // Refusals that the real server does not classify have none.
        if self.reason.is_empty()
            && let Some(fields) = status.as_object_mut()
        {
            fields.remove("reason");
        }
        status
    }
}

impl From<Rejection> for ApiError {
    fn from(rejection: Rejection) -> Self {
        let Rejection {
            code,
            reason,
            message,
            causes,
        } = rejection;
        let details = (!causes.is_empty()).then(|| json!({"causes": causes}));
        Self {
            code,
            reason,
            message,
            details,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wording_and_details_are_the_real_servers() {
        let subject = Subject {
            group: "longhorn.io",
            plural: "volumes",
            kind: "Volume",
            name: "pvc-1",
        };
        let status = ApiError::not_found(&subject).to_status();
        assert_eq!(
            status["message"],
            r#"volumes.longhorn.io "pvc-1" not found"#
        );
        assert_eq!(status["details"]["kind"], "volumes");

        let errors = [
            FieldError::required("spec.size", ""),
            FieldError::forbidden("status", "no"),
        ];
        let status = ApiError::invalid(&subject, &errors).to_status();
        assert_eq!(
            status["message"],
            r#"Volume.longhorn.io "pvc-1" is invalid: [spec.size: Required value, status: Forbidden: no]"#
        );
        assert_eq!(status["details"]["causes"][0]["field"], "spec.size");
        assert_eq!(status["code"], 422);
    }
}
