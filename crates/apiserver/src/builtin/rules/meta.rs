//! The rules of every object's `metadata`.

use serde_json::{Map, Value};

use super::names::{self, NameRule};
use super::{items, object, text};
use crate::field_error::{FieldError, FieldErrorKind};
use crate::schema::path::Path;

const ANNOTATIONS_BYTES_MAX: usize = 256 << 10;
const STANDARD_FINALIZERS: [&str; 3] = ["foregroundDeletion", "kubernetes", "orphan"];

/// What a kind asks of its metadata.
#[derive(Clone, Copy, Debug)]
pub struct MetaRule {
    pub namespaced: bool,
    pub name: NameRule,
    /// Built-in kinds take only qualified finalizers besides the standard ones.
    pub finalizers_qualified: bool,
}

impl MetaRule {
    /// The rule of custom resources.
    pub const fn custom(namespaced: bool) -> Self {
        Self {
            namespaced,
            name: NameRule::Subdomain,
            finalizers_qualified: false,
        }
    }
}

/// Validates `metadata` of an object, whose types are known to be right.
pub fn validate(value: &Value, rule: MetaRule) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let root = Path::ROOT;
    let path = root.field("metadata");
    name(value, rule, &path, &mut errors);
    namespace(value, rule, &path, &mut errors);
    if let Some(labels) = object(value, "/metadata/labels") {
        validate_labels(labels, &path.field("labels"), &mut errors);
    }
    if let Some(annotations) = object(value, "/metadata/annotations") {
        validate_annotations(annotations, &path.field("annotations"), &mut errors);
    }
    owner_references(value, &path.field("ownerReferences"), &mut errors);
    finalizers(value, rule, &path.field("finalizers"), &mut errors);
    errors
}

/// Validates what an update does to `metadata`.
pub fn validate_update(old: &Value, new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
    ] {
        let pointer = format!("/metadata/{field}");
        let before = text(old, &pointer);
        let after = text(new, &pointer);
        if before != after {
            errors.push(FieldError::invalid(
                format!("metadata.{field}"),
                after.into(),
                "field is immutable",
            ));
        }
    }
    if !text(old, "/metadata/deletionTimestamp").is_empty() {
        let before = items(old, "/metadata/finalizers");
        let added: Vec<String> = items(new, "/metadata/finalizers")
            .iter()
            .filter(|finalizer| !before.contains(finalizer))
            .map(ToString::to_string)
            .collect();
        if !added.is_empty() {
            errors.push(FieldError::forbidden(
                "metadata.finalizers",
                format!(
                    "no new finalizers can be added if the object is being deleted, found new \
                     finalizers []string{{{}}}",
                    added.join(", ")
                ),
            ));
        }
    }
    errors
}

/// Labels, wherever they stand.
pub fn validate_labels(labels: &Map<String, Value>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (key, value) in labels {
        for problem in names::qualified(key) {
            errors.push(FieldError::invalid(path, key.as_str().into(), problem));
        }
        for problem in names::label_value(value.as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid(path, value.clone(), problem));
        }
    }
}

fn validate_annotations(
    annotations: &Map<String, Value>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let mut bytes = 0;
    for (key, value) in annotations {
        bytes += key.len() + value.as_str().map_or(0, str::len);
        // Unlike those of labels, the keys' prefixes may have capitals.
        for problem in names::qualified(&key.to_lowercase()) {
            errors.push(FieldError::invalid(path, key.as_str().into(), problem));
        }
    }
    if bytes > ANNOTATIONS_BYTES_MAX {
        errors.push(FieldError::new(
            FieldErrorKind::TooLong,
            path,
            format!("may not be more than {ANNOTATIONS_BYTES_MAX} bytes"),
        ));
    }
}

fn name(value: &Value, rule: MetaRule, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let prefix = text(value, "/metadata/generateName");
    if !prefix.is_empty() {
        for problem in rule.name.prefix_problems(prefix) {
            let path = path.field("generateName");
            errors.push(FieldError::invalid(path, prefix.into(), problem));
        }
    }
    let name = text(value, "/metadata/name");
    if name.is_empty() {
        errors.push(FieldError::required(
            path.field("name"),
            "name or generateName is required",
        ));
        return;
    }
    for problem in rule.name.problems(name) {
        errors.push(FieldError::invalid(
            path.field("name"),
            name.into(),
            problem,
        ));
    }
}

fn namespace(value: &Value, rule: MetaRule, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let namespace = text(value, "/metadata/namespace");
    let path = path.field("namespace");
    match (rule.namespaced, namespace.is_empty()) {
        (true, true) => errors.push(FieldError::required(path, "")),
        (true, false) => {
            for problem in names::label(namespace) {
                errors.push(FieldError::invalid(path, namespace.into(), problem));
            }
        }
        (false, true) => {}
        (false, false) => errors.push(FieldError::forbidden(path, "not allowed on this type")),
    }
}

fn owner_references(value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let references = items(value, "/metadata/ownerReferences");
    let mut controllers = Vec::new();
    for reference in references {
        let api_version = text(reference, "/apiVersion");
        let (version, kind) = (api_version.rsplit('/').next(), text(reference, "/kind"));
        let mut empty = |field: &str, value: &str, problem: &str| {
            if value.is_empty() {
                let path = path.field(field);
                errors.push(FieldError::invalid(path, value.into(), problem));
            }
        };
        empty(
            "apiVersion",
            version.unwrap_or_default(),
            "version must not be empty",
        );
        empty("kind", kind, "must not be empty");
        empty("name", text(reference, "/name"), "must not be empty");
        empty("uid", text(reference, "/uid"), "must not be empty");
        if api_version == "v1" && kind == "Event" {
            let problem = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid(path, reference.clone(), problem));
        }
        if reference.get("controller") == Some(&Value::Bool(true)) {
            controllers.push(text(reference, "/name"));
        }
    }
    if let [first, second, ..] = controllers[..] {
        errors.push(FieldError::invalid(
            path,
            Value::Array(references.to_vec()),
            format!(
                "Only one reference can have Controller set to true. Found \"true\" in references \
                 for {first} and {second}"
            ),
        ));
    }
}

fn finalizers(value: &Value, rule: MetaRule, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let finalizers = items(value, "/metadata/finalizers");
    for (index, finalizer) in finalizers.iter().enumerate() {
        let name = finalizer.as_str().unwrap_or_default();
        for problem in names::qualified(name) {
            errors.push(FieldError::invalid(path, name.into(), problem));
        }
        if rule.finalizers_qualified && !name.contains('/') && !STANDARD_FINALIZERS.contains(&name)
        {
            let problem = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(path.index(index), name.into(), problem));
        }
    }
    let has = |name: &str| finalizers.iter().any(|finalizer| finalizer == name);
    if has("orphan") && has("foregroundDeletion") {
        errors.push(FieldError::invalid(
            path,
            Value::Array(finalizers.to_vec()),
            "finalizer foregroundDeletion and orphan cannot be both set",
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[expect(
        clippy::needless_pass_by_value,
        reason = "rows read better as plain json!"
    )]
    fn check(rule: MetaRule, metadata: Value, expected: &[&str]) {
        let errors = validate(&json!({"metadata": metadata}), rule);
        let starts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(starts.len(), expected.len(), "{starts:#?}");
        for (actual, expected) in starts.iter().zip(expected) {
            assert!(actual.starts_with(expected), "{actual}\n{expected}");
        }
    }

    const CUSTOM: MetaRule = MetaRule::custom(true);
    const BUILTIN: MetaRule = MetaRule {
        namespaced: false,
        name: NameRule::Subdomain,
        finalizers_qualified: true,
    };

    #[test]
    fn names_and_namespaces() {
        check(CUSTOM, json!({"name": "a", "namespace": "b"}), &[]);
        check(
            CUSTOM,
            json!({}),
            &[
                "metadata.name: Required value: name or generateName is required",
                "metadata.namespace: Required value",
            ],
        );
        check(
            CUSTOM,
            json!({"name": "A_b", "generateName": "X", "namespace": "a.b"}),
            &[
                r#"metadata.generateName: Invalid value: "X": a lowercase RFC 1123 subdomain"#,
                r#"metadata.name: Invalid value: "A_b": a lowercase RFC 1123 subdomain must consist of"#,
                r#"metadata.namespace: Invalid value: "a.b": a lowercase RFC 1123 label"#,
            ],
        );
        check(
            BUILTIN,
            json!({"name": "a", "namespace": "b"}),
            &["metadata.namespace: Forbidden: not allowed on this type"],
        );
    }

    #[test]
    fn labels_annotations_finalizers_owners() {
        check(
            BUILTIN,
            json!({"name": "a", "labels": {"a b": "c", "ok": "d e"}, "annotations": {"UP/x": "any thing", "/": ""}}),
            &[
                r#"metadata.labels: Invalid value: "a b": name part must consist of"#,
                r#"metadata.labels: Invalid value: "d e": a valid label must be"#,
                r#"metadata.annotations: Invalid value: "/": prefix part must be non-empty"#,
                r#"metadata.annotations: Invalid value: "/": name part must be non-empty"#,
                r#"metadata.annotations: Invalid value: "/": name part must consist of"#,
            ],
        );
        check(
            BUILTIN,
            json!({"name": "a", "annotations": {"a": "x".repeat(ANNOTATIONS_BYTES_MAX)}}),
            &["metadata.annotations: Too long: may not be more than 262144 bytes"],
        );
        check(
            BUILTIN,
            json!({"name": "a", "finalizers": ["plain", "x.io/ok", "orphan", "foregroundDeletion"]}),
            &[
                r#"metadata.finalizers[0]: Invalid value: "plain": name is neither a standard"#,
                "metadata.finalizers: Invalid value: [",
            ],
        );
        check(
            CUSTOM,
            json!({"name": "a", "namespace": "b", "finalizers": ["plain"]}),
            &[],
        );
        check(
            BUILTIN,
            json!({"name": "a", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1", "controller": true},
                {"apiVersion": "", "kind": "Pod", "name": "y", "uid": "", "controller": true}]}),
            &[
                r#"metadata.ownerReferences.apiVersion: Invalid value: "": version must not be empty"#,
                r#"metadata.ownerReferences.uid: Invalid value: "": must not be empty"#,
                "metadata.ownerReferences: Invalid value: [",
            ],
        );
    }

    #[test]
    fn updates() {
        let old = json!({"metadata": {"name": "a", "uid": "1", "deletionTimestamp": "t", "finalizers": ["x/y"]}});
        let new = json!({"metadata": {"name": "b", "uid": "1", "deletionTimestamp": "t", "finalizers": ["x/z"]}});
        let errors: Vec<String> = validate_update(&old, &new)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            errors,
            [
                r#"metadata.name: Invalid value: "b": field is immutable"#,
                r#"metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{"x/z"}"#,
            ]
        );
        assert!(validate_update(&old, &old).is_empty());
    }
}
