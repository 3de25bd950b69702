//! Whether a CustomResourceDefinition makes sense, checked when it is written.
//!
//! This file has the definition itself: its names, its versions, their columns and subresources.
//! `rules` and `lists` have what makes a schema structural, so that it can be pruned, defaulted and
//! applied.

mod lists;
mod rules;

use serde_json::Value;

use super::Schema;
use super::path::Path;
use crate::builtin::rules::names;
use crate::field_error::{FieldError, FieldErrorKind};

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];

/// Everything wrong with a CustomResourceDefinition, whose types are known to be right.
pub fn validate_definition(definition: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let root = Path::ROOT;
    let spec_path = root.field("spec");
    let spec = &definition["spec"];
    identity(definition, &spec_path, &mut errors);
    names_of(&spec["names"], &spec_path.field("names"), &mut errors);
    conversion(spec, &spec_path, &mut errors);
    if spec["preserveUnknownFields"] == true {
        errors.push(FieldError::invalid(
            spec_path.field("preserveUnknownFields"),
            true.into(),
            "must be false",
        ));
    }
    versions(spec, &spec_path.field("versions"), &mut errors);
    errors
}

/// Everything wrong with changing one CustomResourceDefinition into another.
pub fn validate_definition_change(old: &Value, new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let established = list(&old["status"]["conditions"])
        .iter()
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True");
    let mut fixed = vec!["/spec/group", "/spec/names/plural"];
    if established {
        fixed.extend(["/spec/scope", "/spec/names/kind"]);
    }
    for pointer in fixed {
        let (before, after) = (old.pointer(pointer), new.pointer(pointer));
        if before != after {
            let path = pointer.trim_start_matches('/').replace('/', ".");
            let shown = after.cloned().unwrap_or_default();
            errors.push(FieldError::invalid(path, shown, "field is immutable"));
        }
    }
    let kept = list(&new["spec"]["versions"]);
    let stored = list(&old["status"]["storedVersions"]);
    for (index, version) in stored.iter().enumerate() {
        let name = version.as_str().unwrap_or_default();
        if !kept.iter().any(|version| version["name"] == name) {
            errors.push(FieldError::invalid(
                format!("status.storedVersions[{index}]"),
                name.into(),
                format!(
                    "missing from spec.versions; {name} was previously a storage version, and must \
                     remain in spec.versions until a storage migration ensures no data remains \
                     persisted in {name} and removes {name} from status.storedVersions"
                ),
            ));
        }
    }
    errors
}

fn identity(definition: &Value, spec_path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let spec = &definition["spec"];
    let group = text(&spec["group"]);
    let path = spec_path.field("group");
    if group.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else {
        invalid_all(names::subdomain(group), &path, group, errors);
        if !group.contains('.') {
            let problem = "should be a domain with at least one dot";
            errors.push(FieldError::invalid(path, group.into(), problem));
        }
    }
    let scope = text(&spec["scope"]);
    let path = spec_path.field("scope");
    if scope.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else {
        supported(scope, &["Cluster", "Namespaced"], path, errors);
    }
    let name = text(&definition["metadata"]["name"]);
    if name != format!("{}.{group}", text(&spec["names"]["plural"])) {
        errors.push(FieldError::invalid(
            "metadata.name",
            name.into(),
            "must be spec.names.plural+\".\"+spec.group",
        ));
    }
}

fn names_of(names_value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for field in ["plural", "singular", "kind", "listKind"] {
        let name = text(&names_value[field]);
        let path = path.field(field);
        if name.is_empty() {
            errors.push(FieldError::required(path, ""));
        } else {
            // Kinds have capitals; apart from those they follow the same rule.
            invalid_all(names::label_1035(&name.to_lowercase()), &path, name, errors);
        }
    }
    if !text(&names_value["kind"]).is_empty() && names_value["kind"] == names_value["listKind"] {
        errors.push(FieldError::invalid(
            path.field("listKind"),
            names_value["listKind"].clone(),
            "kind and listKind may not be the same",
        ));
    }
    for field in ["shortNames", "categories"] {
        let path = path.field(field);
        for (index, name) in list(&names_value[field]).iter().enumerate() {
            let name = text(name);
            invalid_all(names::label_1035(name), &path.index(index), name, errors);
        }
    }
}

/// Versions differ in their schemas only. Accepting a webhook and not calling it would hand out
/// objects that their author believes converted.
fn conversion(spec: &Value, spec_path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let conversion_path = spec_path.field("conversion");
    let path = conversion_path.field("strategy");
    match text(&spec["conversion"]["strategy"]) {
        "" | "None" => {}
        "Webhook" => errors.push(FieldError::forbidden(
            path,
            "this server does not call conversion webhooks; use strategy None, which changes only \
             apiVersion",
        )),
        other => supported(other, &["None"], path, errors),
    }
}

fn versions(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let versions = list(&spec["versions"]);
    let stored = versions
        .iter()
        .filter(|version| version["storage"] == true)
        .count();
    if stored != 1 {
        errors.push(FieldError::invalid(
            path,
            Value::Array(
                versions
                    .iter()
                    .map(|version| version["name"].clone())
                    .collect(),
            ),
            "must have exactly one version marked as storage version",
        ));
    }
    let mut seen = Vec::new();
    for (index, version) in versions.iter().enumerate() {
        let path = path.index(index);
        let name = text(&version["name"]);
        invalid_all(names::label_1035(name), &path.field("name"), name, errors);
        if seen.contains(&name) {
            let problem = "must contain unique version names";
            errors.push(FieldError::invalid(
                path.field("name"),
                name.into(),
                problem,
            ));
        }
        seen.push(name);
        schema(version, &path.field("schema"), errors);
        scale(&version["subresources"]["scale"], &path, errors);
        columns(version, &path.field("additionalPrinterColumns"), errors);
    }
}

fn schema(version: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let path = path.field("openAPIV3Schema");
    let value = &version["schema"]["openAPIV3Schema"];
    if value.is_null() {
        errors.push(FieldError::required(path, "schemas are required"));
        return;
    }
    rules::unsupported_keywords(value, &path, errors);
    match Schema::from_value(value.clone()) {
        Ok(schema) => rules::root(&schema, &path, errors),
        Err(error) => {
            let problem = format!("is not a schema: {error}");
            errors.push(FieldError::invalid(path, "".into(), problem));
        }
    }
}

fn scale(scale: &Value, version_path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if !scale.is_object() {
        return;
    }
    let subresources = version_path.field("subresources");
    let path = subresources.field("scale");
    for (field, root) in [
        ("specReplicasPath", ".spec."),
        ("statusReplicasPath", ".status."),
    ] {
        let json_path = text(&scale[field]);
        let path = path.field(field);
        if json_path.is_empty() {
            errors.push(FieldError::required(path, ""));
        } else if !json_path.starts_with(root) {
            let problem = format!("should be a json path under {}", root.trim_end_matches('.'));
            errors.push(FieldError::invalid(path, json_path.into(), problem));
        }
    }
}

fn columns(version: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (index, column) in list(&version["additionalPrinterColumns"])
        .iter()
        .enumerate()
    {
        let path = path.index(index);
        for field in ["name", "type", "jsonPath"] {
            if text(&column[field]).is_empty() {
                errors.push(FieldError::required(path.field(field), ""));
            }
        }
        let kind = text(&column["type"]);
        if !kind.is_empty() {
            supported(kind, &COLUMN_TYPES, path.field("type"), errors);
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn invalid_all(problems: Vec<String>, path: &Path<'_>, value: &str, errors: &mut Vec<FieldError>) {
    for problem in problems {
        errors.push(FieldError::invalid(path, value.into(), problem));
    }
}

fn supported(value: &str, allowed: &[&str], path: impl Into<String>, errors: &mut Vec<FieldError>) {
    if !allowed.contains(&value) {
        let names: Vec<String> = allowed.iter().map(|name| format!("{name:?}")).collect();
        errors.push(FieldError {
            value: Some(value.into()),
            ..FieldError::new(
                FieldErrorKind::NotSupported,
                path,
                format!("supported values: {}", names.join(", ")),
            )
        });
    }
}

#[cfg(test)]
mod tests;
