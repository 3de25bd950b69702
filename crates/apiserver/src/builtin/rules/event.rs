//! Events, in both of their groups.

use serde_json::{Map, Value};

use super::{KindRules, default_field, one_of, text, too_long};
use crate::field_error::FieldError;

const REASON_BYTES_MAX: usize = 128;
const ACTION_BYTES_MAX: usize = 128;
const NOTE_BYTES_MAX: usize = 1024;

pub(super) static RULES: [KindRules; 2] = [
    KindRules {
        default: |event| {
            default_field(event, "source", Map::new());
            default_field(event, "reportingComponent", "");
            default_field(event, "reportingInstance", "");
        },
        object: |event, errors| {
            namespace(
                event,
                "/involvedObject/namespace",
                "involvedObject.namespace",
                errors,
            );
            if !text(event, "/eventTime").is_empty() {
                let fields = ["reportingComponent", "action", "reason", "message"];
                new_style(event, fields, errors);
            }
        },
        ..KindRules::new("", "Event")
    },
    KindRules {
        object: |event, errors| {
            namespace(event, "/regarding/namespace", "regarding.namespace", errors);
            if text(event, "/eventTime").is_empty() {
                errors.push(FieldError::required("eventTime", ""));
            }
            new_style(
                event,
                ["reportingController", "action", "reason", "note"],
                errors,
            );
        },
        ..KindRules::new("events.k8s.io", "Event")
    },
];

/// An event lives where its object lives; those about cluster-wide objects live in `default`.
fn namespace(event: &Value, pointer: &str, path: &str, errors: &mut Vec<FieldError>) {
    let subject = text(event, pointer);
    let own = text(event, "/metadata/namespace");
    let matches = if subject.is_empty() {
        matches!(own, "" | "default")
    } else {
        subject == own
    };
    if !matches {
        let problem = "does not match event.namespace";
        errors.push(FieldError::invalid(path, subject.into(), problem));
    }
}

fn new_style(
    event: &Value,
    [controller, action, reason, note]: [&str; 4],
    errors: &mut Vec<FieldError>,
) {
    let field = |name: &str| text(event, &format!("/{name}"));
    for required in [controller, "reportingInstance", action, reason] {
        if field(required).is_empty() {
            errors.push(FieldError::required(required, ""));
        }
    }
    for (name, bytes_max) in [
        ("reportingInstance", ACTION_BYTES_MAX),
        (action, ACTION_BYTES_MAX),
        (reason, REASON_BYTES_MAX),
        (note, NOTE_BYTES_MAX),
    ] {
        if field(name).len() > bytes_max {
            errors.push(too_long(name, bytes_max));
        }
    }
    let kind = field("type");
    if kind.is_empty() {
        errors.push(FieldError::required("type", ""));
    } else {
        one_of(kind, &["Normal", "Warning"], "type", errors);
    }
}
